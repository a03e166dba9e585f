"""Options of the commands that read finished runs."""

from __future__ import annotations

import argparse
from typing import Any

from looplit.commands.arguments import natural


def run_options(parser: argparse.ArgumentParser) -> None:
    """Which runs, and their loss."""
    parser.add_argument("runs", metavar="RUNS", help="CSV table, or folder of runs with their result.json files")
    group = parser.add_argument_group("runs")
    group.add_argument("--where", nargs="+", default=[], metavar="COLUMN=VALUE[,VALUE]",
                       help="read only such runs: family=vanilla,loop_grow corpus=fineweb")  # fmt: skip
    group.add_argument("--loss", default="final_val_loss", metavar="COLUMN", help="column of the loss")


def bootstrap_options(parser: argparse.ArgumentParser) -> None:
    """Resampling behind the intervals of a fit."""
    group = parser.add_argument_group("intervals")
    group.add_argument("--bootstrap", type=natural, default=0, help="resamples behind 90%% intervals")
    group.add_argument("--seed", type=natural, default=0, help="of the resampling")


def inputs(args: argparse.Namespace) -> dict[str, Any]:
    """Options of the question, by the names that the library has for them; those of the output aside."""
    return {name: value for name, value in vars(args).items() if name not in ("json", "plot", "out")}
