"""One look for every figure: a colour and a marker per family, sizes that stay legible at column width, saving."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from looplit.plots.files import require_figure_name

COLUMN_IN = 3.4
"""Width of a text column in inches."""

LEGEND_ROW_IN = 0.14
"""Height of a legend's row in inches."""

# Okabe and Ito's colour-blind safe palette, its yellow replaced by Tol's wine, which prints.
FAMILY_STYLES: dict[str, tuple[str, str]] = {
    "vanilla": ("#000000", "o"),
    "deep_vanilla": ("#882255", "s"),
    "deep_vanilla_grow": ("#E69F00", "D"),
    "operator_1": ("#56B4E9", "^"),
    "loop_2": ("#009E73", "v"),
    "loop_grow": ("#CC79A7", "P"),
    "untied_2": ("#0072B2", "X"),
    "untied_grow": ("#D55E00", "*"),
}
"""Family → (colour, marker)."""

LABELS = {name: name.replace("_", " ").title().replace(" 1", "-1").replace(" 2", "-2") for name in FAMILY_STYLES}

_SETTINGS: Any = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "lines.linewidth": 1.1,
    "lines.markersize": 4.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "looplit",
}


def family_style(name: str, position: int = 0) -> tuple[str, str]:
    """Colour and marker of a family; other names take one by `position`, the same for the same order of names."""
    styles = list(FAMILY_STYLES.values())
    return FAMILY_STYLES.get(name, styles[position % len(styles)])


def label(name: str) -> str:
    """A family's name for a legend; other names as they are."""
    return LABELS.get(name, name)


def sequence_colors(count: int) -> list[tuple[float, float, float, float]]:
    """`count` colours of an ordered quantity (budgets, passes, depths), dark to light, none too pale to print."""
    viridis = matplotlib.colormaps["viridis"]
    return [viridis(0.85 * i / max(count - 1, 1)) for i in range(count)]


@contextmanager
def panels(columns: int = 1, rows: int = 1, height: float = 2.6) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure of `rows` × `columns` panels, each a column wide, in the project's style; not bound to any screen.

    Args:
        columns: Panels side by side.
        rows: Panels on top of one another.
        height: Inches per row.
    """
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(COLUMN_IN * columns, height * rows), layout="constrained")
        yield figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def log_ticks(axes: Axes) -> None:
    """A log x axis with decades labelled and the ticks between them bare."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(numticks=8))
    axes.xaxis.set_minor_formatter(NullFormatter())


def plain_log_ticks(axes: Axes) -> None:
    """A log x axis of small numbers (tokens per parameter, multipliers), labelled 1, 2, 5, 10 and not in powers."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def legend_below(axes: Axes, columns: int = 2) -> None:
    """The legend under the axis label, where it covers no curve."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0), borderaxespad=5, ncols=columns, columnspacing=1.2)


class Picture:
    """A figure that a notebook shows at the end of a cell, whatever its backend."""

    def __init__(self, figure: Figure) -> None:
        self.figure = figure

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        with matplotlib.rc_context(_SETTINGS):
            self.figure.savefig(buffer, format="png", dpi=130)
        return buffer.getvalue()


def save(figure: Figure, *paths: str | Path) -> None:
    """Writes the figure to every path, in the format of its suffix; the same figure gives the same bytes of SVG.

    Raises:
        InputError: A suffix is not one of .svg, .png and .pdf.
    """
    for path in map(Path, paths):
        require_figure_name("path", path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context(_SETTINGS):
            figure.savefig(path, dpi=200, metadata={"Date": None} if path.suffix == ".svg" else None)
