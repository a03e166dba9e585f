"""How every command shows what it found: JSON, a table, a file, a figure."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from looplit.commands.arguments import require_file_name
from looplit.plots.files import require_figure_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from looplit.laws.answers.answer import Answer

Draw = Callable[[], "Figure"]
"""Makes a figure; called only where one is asked for, because it imports matplotlib."""


def output_options(
    parser: argparse.ArgumentParser, figure: str = "", json_file: bool = False
) -> argparse._ArgumentGroup:
    """`--json` and `--plot`.

    Args:
        parser: To add them to.
        figure: What the figure shows, where there is one.
        json_file: Whether `--json FILE` is taken for `--out FILE`.

    Returns:
        Their group.
    """
    group = parser.add_argument_group("output")
    said = "print JSON in place of the table"
    if json_file:
        group.add_argument("--json", nargs="?", const=True, default=False, metavar="FILE",
                           help=f"{said}; with a file the same as --out")  # fmt: skip
    else:
        group.add_argument("--json", action="store_true", help=said)
    if figure:
        group.add_argument("--plot", metavar="FILE", help=f"draw {figure}: .svg, .png or .pdf")
    return group


def check_outputs(args: argparse.Namespace, *files: str) -> None:
    """Refuses files that cannot be written, before what they are to hold is computed; makes their folders.

    Args:
        args: What was parsed.
        *files: Options beside `--plot` that name a file to write.

    Raises:
        InputError: The file cannot be written, or a figure's suffix is another.
    """
    plot = getattr(args, "plot", None)
    if plot:
        require_figure_name("plot", plot)
        require_file_name("plot", plot)
    for name in files:
        require_file_name(name, getattr(args, name))


def show(args: argparse.Namespace, answer: Answer, draw: Draw | None = None) -> int:
    """Prints an answer of the laws as its table or JSON, draws its figure where asked, and gives the exit code."""
    if args.json:
        print(json.dumps(answer.to_dict(), indent=1, allow_nan=False))
    else:
        print(answer)
    if draw is not None:
        draw_plot(args, draw)
    return 0


def print_json(payload: Any) -> None:
    """Prints JSON."""
    print(json.dumps(payload, indent=2))


def write_json(path: str | Path, payload: Any) -> None:
    """Writes JSON to a file."""
    Path(path).write_text(json.dumps(payload, indent=2) + "\n", encoding="utf-8")


def draw_plot(args: argparse.Namespace, draw: Draw) -> None:
    """Draws and saves the figure where `--plot` asks for one."""
    if args.plot:
        from looplit.plots.style import save

        save(draw(), args.plot)
