"""`laws recurrence`: best number of passes at equal compute, strategies and weight decay when data repeat."""

from __future__ import annotations

import argparse
from typing import Any

from looplit.commands.arguments import number, quantity
from looplit.commands.output import output_options, show
from looplit.commands.run_options import inputs, run_options
from looplit.laws.answers.recurrence import recurrence_answer

INPUTS = "RUNS"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `laws recurrence`."""
    run_options(parser)
    group = parser.add_argument_group("grid")
    group.add_argument("--budgets", type=quantity, nargs="+", metavar="C",
                       help="FLOPs at which to cut (default five where three ladders overlap)")  # fmt: skip
    group.add_argument("--weight_decay", type=number, help="the fixed value (default the most frequent, 0.8 in a tie)")
    group.add_argument("--at", type=quantity, metavar="LOSS",
                       help="loss to compare strategies at (default the best of one-pass models)")  # fmt: skip
    output_options(parser, "cuts, gains, strategies and weight decay")


def run(args: argparse.Namespace) -> int:
    """Shows what the grid tells."""
    found = recurrence_answer(**inputs(args))

    def draw() -> Any:
        from looplit.plots.recurrence import recurrence_figure

        return recurrence_figure(found.cuts, found.gains, found.curves, found.decay_fits, found.unit)

    return show(args, found, draw)
