"""`loops frontier`: parameters saved against compute needed, every setting of the study."""

from __future__ import annotations

import argparse
from typing import Any

from looplit.commands.loops.law_options import chosen_law, law_options
from looplit.commands.output import output_options, show
from looplit.laws.loops.worth_answer import frontier_answer

INPUTS = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `loops frontier`."""
    law_options(parser)
    output_options(parser, "the frontier")


def run(args: argparse.Namespace) -> int:
    """Shows every setting of the study."""
    law = chosen_law(args.law)

    def draw() -> Any:
        from looplit.plots.loops import frontier_figure

        return frontier_figure(law, args.nrec)

    return show(args, frontier_answer(args.nrec, law), draw)
