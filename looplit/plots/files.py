"""Names of figure files, checked without matplotlib."""

from __future__ import annotations

from pathlib import Path

from looplit.errors import require

SUFFIXES = (".svg", ".png", ".pdf")
"""Of figures."""


def require_figure_name(argument: str, path: str | Path) -> None:
    """Raises `InputError` unless the suffix is one of a figure's."""
    require(Path(path).suffix in SUFFIXES, argument, str(path), f"must end in {', '.join(SUFFIXES)}")
