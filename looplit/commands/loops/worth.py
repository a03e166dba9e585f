"""`loops worth`, or `loops` with options alone: what one setting is worth. Answered without scipy."""

from __future__ import annotations

import argparse

from looplit.commands.arguments import integer
from looplit.commands.loops.law_options import chosen_law, law_options
from looplit.commands.output import output_options, show
from looplit.laws.loops.worth_answer import worth_answer

INPUTS = "--passes T --trained_passes B"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `loops worth`."""
    group = parser.add_argument_group("setting")
    group.add_argument("--passes", "--T", type=integer, required=True, metavar="T", help="passes")
    group.add_argument("--trained_passes", "--B", type=integer, required=True, metavar="B", help="the last ones")
    law_options(parser)
    output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Shows what the setting is worth."""
    return show(args, worth_answer(args.passes, args.trained_passes, args.nrec, chosen_law(args.law)))
