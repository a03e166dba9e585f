"""`loops fit`: the law from finished runs."""

from __future__ import annotations

import argparse
from typing import Any

from looplit.commands.arguments import assignments, number, quantity
from looplit.commands.output import check_outputs, output_options, show
from looplit.commands.run_options import bootstrap_options, inputs, run_options
from looplit.errors import require
from looplit.laws.loops.fit_answer import fit_answer
from looplit.wording import is_numeral

INPUTS = "RUNS"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `loops fit`."""
    run_options(parser)
    group = parser.add_argument_group("law")
    group.add_argument("--recurrent_share", "--nrec", dest="nrec", type=number,
                       help="N_rec/N of every run (default each run's recurrent_parameters)")  # fmt: skip
    group.add_argument("--hold", nargs="+", default=[], metavar="NAME=VALUE", help="hold c, p or q")
    group.add_argument("--own_flops", action="store_true", help="compare runs at equal training_flops, as they "
                       "report it, in place of the law's 6·N_comp·D")  # fmt: skip
    group.add_argument("--budget", type=quantity, help="FLOPs at which to read compute-optimal sizes")
    bootstrap_options(parser)
    group = output_options(parser, "what a setting is worth, and loss at equal compute")
    group.add_argument("--out", "--save", metavar="FILE", help="write the fit as JSON, for --law")


def run(args: argparse.Namespace) -> int:
    """Shows the law and what the runs say."""
    check_outputs(args, "out")
    held = assignments("hold", args.hold)
    for name, value in held.items():
        require(is_numeral(value), "hold", f"{name}={value}", "must give a number, as in p=0.24")
    found = fit_answer(**inputs(args) | {"hold": {name: float(value) for name, value in held.items()}})
    if args.out:
        found.fit.save(args.out)

    def draw() -> Any:
        from looplit.plots.loops import runs_figure

        return runs_figure(found.law, found.nrec, found.runwise_g, found.comparisons)

    return show(args, found, draw)
