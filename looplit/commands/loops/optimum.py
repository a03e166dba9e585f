"""`loops optimum`: the best setting under what is given."""

from __future__ import annotations

import argparse
from typing import Any

from looplit.commands.arguments import integer, quantity
from looplit.commands.loops.law_options import chosen_law, law_options
from looplit.commands.output import output_options, show
from looplit.commands.run_options import inputs
from looplit.errors import require
from looplit.laws.loops.optimum_answer import at_budgets, optimum_answer

INPUTS = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `loops optimum`."""
    group = parser.add_argument_group("given, one or more")
    group.add_argument("--parameters", "--n", type=quantity, help="non-embedding parameters, e.g. 240M")
    group.add_argument("--flops", "--compute", type=quantity, help="training FLOPs, 6·N_comp·D")
    group.add_argument("--passes", "--T", type=integer, metavar="T", help="prescribed passes")
    group.add_argument("--units", type=quantity, help="prescribed loop compute T + 2B; excludes the others")
    law_options(parser)
    output_options(parser, "loss minus no looping over budgets, with --parameters")


def run(args: argparse.Namespace) -> int:
    """Shows the best setting."""
    law = chosen_law(args.law)
    needs_size = args.plot is not None and args.parameters is None
    require(not needs_size, "plot", args.plot, "needs --parameters: the figure is of one size")
    found = optimum_answer(**inputs(args) | {"law": law})

    def draw() -> Any:
        from looplit.plots.loops import comparison_figure

        return comparison_figure({args.parameters: at_budgets(args.parameters, args.flops, args.nrec, law)})

    return show(args, found, draw)
