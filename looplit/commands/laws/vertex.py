"""`laws vertex`: the optimum of each sweep, its mean and drift, and what a wrong value costs."""

from __future__ import annotations

import argparse
from typing import Any

from looplit.commands.arguments import quantity
from looplit.commands.output import output_options, show
from looplit.commands.run_options import inputs, run_options
from looplit.laws.answers.vertex import vertex_answer

INPUTS = "RUNS"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `laws vertex`."""
    run_options(parser)
    group = parser.add_argument_group("sweeps")
    group.add_argument("--x", default="tokens_per_parameter", metavar="COLUMN",
                       help="what was swept: this (default %(default)s), growth_fraction, passes …")  # fmt: skip
    group.add_argument("--group", nargs="+", metavar="COLUMN",
                       help="what tells sweeps of one family apart: budget (equal training FLOPs) or any column "
                       "(default budget for tokens_per_parameter, depth and budget for growth_fraction, else "
                       "depth)")  # fmt: skip
    group.add_argument("--center", type=quantity, help="the recipe's value of x; x then becomes a multiplier of it")
    output_options(parser, "the sweeps")


def run(args: argparse.Namespace) -> int:
    """Shows optima."""
    found = vertex_answer(**inputs(args))

    def draw() -> Any:
        from looplit.plots.stages import sweeps_figure

        return sweeps_figure(found.curves)

    return show(args, found, draw)
