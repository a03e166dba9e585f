"""`laws forecast`: CORE at a budget, the compute for a score, GPT-3 crossings, held-out runs."""

from __future__ import annotations

import argparse
from typing import Any

from looplit.commands.arguments import quantity
from looplit.commands.output import output_options, show
from looplit.commands.run_options import bootstrap_options, inputs, run_options
from looplit.laws.answers.forecast import forecast_answer

INPUTS = "RUNS"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `laws forecast`."""
    run_options(parser)
    group = parser.add_argument_group("forecast")
    group.add_argument("--series", default="family", metavar="COLUMN", help="tells the series apart: corpus …")
    group.add_argument("--at", type=quantity, nargs="+", default=[], metavar="C", help="forecast CORE at these FLOPs")
    group.add_argument("--target", type=quantity, nargs="+", default=[], metavar="CORE",
                       help="compute that these scores need, beside those of GPT-3")  # fmt: skip
    group.add_argument(
        "--tasks", nargs="+", metavar="TASK", help="that carry the forecast (default the study's filter)"
    )
    group.add_argument("--held_out", nargs="+", default=[], metavar="FAMILY:DEPTH",
                       help="runs to leave out of the calibration and to show against the forecast")  # fmt: skip
    bootstrap_options(parser)
    output_options(parser, "CORE against compute, and the tasks' sigmoids")


def run(args: argparse.Namespace) -> int:
    """Shows the forecast."""
    found = forecast_answer(**inputs(args))

    def draw() -> Any:
        from looplit.plots.tasks import forecast_figure

        return forecast_figure(found.fitted, found.points, found.held_out, found.series)

    return show(args, found, draw)
