"""`laws ladder`: exponents above a shared floor, compute multipliers, held-out runs."""

from __future__ import annotations

import argparse
from typing import Any

from looplit.commands.arguments import quantity
from looplit.commands.output import output_options, show
from looplit.commands.run_options import bootstrap_options, inputs, run_options
from looplit.laws.answers.ladder import AGAINST, ladder_answer
from looplit.laws.multiplier import INTERPOLATIONS

INPUTS = "RUNS"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `laws ladder`."""
    run_options(parser)
    group = parser.add_argument_group("fit")
    group.add_argument("--reference", default="vanilla", metavar="FAMILY", help="of the floor and of multiplier 1")
    group.add_argument("--against", choices=AGAINST, default=AGAINST[0],
                       help="what compute is; with seconds the floor still comes from the FLOPs fit")  # fmt: skip
    group.add_argument("--c0", type=quantity, help="C0 (default 1.0265e18 FLOPs, or one hour)")
    group.add_argument("--held_out", nargs="+", default=[], metavar="FAMILY:DEPTH",
                       help="runs to leave out of every fit and to show against the forecast")  # fmt: skip
    group = parser.add_argument_group("multipliers")
    group.add_argument("--score", metavar="COLUMN", help="match at this, e.g. core_metric (default the loss)")
    group.add_argument("--interpolation", choices=list(INTERPOLATIONS), default="loss",
                       help="the score, or its logarithm, against log compute")  # fmt: skip
    group.add_argument("--at", type=quantity, nargs="+", default=[], metavar="C",
                       help="also multipliers by the fitted laws at these values of compute")  # fmt: skip
    bootstrap_options(parser)
    output_options(parser, "ladders and multipliers")


def run(args: argparse.Namespace) -> int:
    """Shows exponents and multipliers."""
    found = ladder_answer(**inputs(args))

    def draw() -> Any:
        from looplit.plots.ladders import ladder_figure

        return ladder_figure(found.fits, found.saved, args.reference, found.held_out)

    return show(args, found, draw)
