"""`laws residuals`: whether families differ downstream at equal validation loss."""

from __future__ import annotations

import argparse
from typing import Any

from looplit.commands.output import output_options, show
from looplit.commands.run_options import inputs, run_options
from looplit.laws.answers.residuals import residuals_answer

INPUTS = "RUNS"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `laws residuals`."""
    run_options(parser)
    group = parser.add_argument_group("residuals")
    group.add_argument("--score", default="core_loss", metavar="COLUMN", help="pooled downstream loss")
    group.add_argument("--reference", default="vanilla", metavar="FAMILY", help="whose line is each task's yardstick")
    group.add_argument("--categories", metavar="FILE", help="eval_meta_data.csv of the bundle, to group tasks")
    output_options(parser, "scores against loss, and residuals")


def run(args: argparse.Namespace) -> int:
    """Shows residuals."""
    found = residuals_answer(**inputs(args))

    def draw() -> Any:
        from looplit.plots.tasks import residuals_figure

        return residuals_figure(found.pooled, found.tasks, found.runs, found.loss, found.score)

    return show(args, found, draw)
