"""`loops frontier`: parameters saved against compute needed, every setting of the study."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from looplit.commands.loops.law_options import chosen_law, law_options
from looplit.commands.output import output_options, show
from looplit.laws.loops.worth_answer import frontier_answer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INPUTS = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `loops frontier`."""
    law_options(parser)
    output_options(parser, "the frontier")


def run(args: argparse.Namespace) -> int:
    """Shows every setting of the study."""
    law = chosen_law(args.law)

    def draw() -> Figure:
        from looplit.plots.loops import frontier_figure

        return frontier_figure(law, args.nrec)

    return show(args, frontier_answer(args.nrec, law), draw)
