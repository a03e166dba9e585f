"""`python -m looplit laws`: fits and forecasts from finished runs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from looplit.commands.arguments import CommandParser
from looplit.commands.laws import forecast, ladder, recurrence, residuals, vertex
from looplit.commands.laws.base import require_plot

SUBCOMMANDS = {
    "ladder": (ladder, "scaling exponents above a shared floor, and compute multipliers"),
    "vertex": (vertex, "optima of sweeps: tokens per parameter, growth fraction, learning rate and others"),
    "forecast": (forecast, "CORE at a budget, and the compute that a score needs"),
    "recurrence": (recurrence, "best number of passes at equal compute, and strategies when data repeat"),
    "residuals": (residuals, "downstream loss against validation loss, by family and task"),
}


def laws_parser() -> argparse.ArgumentParser:
    """The options of `laws` and its subcommands."""
    parser = CommandParser(prog="python -m looplit laws", description="Fits and forecasts from finished runs.")
    commands = parser.add_subparsers(dest="subcommand", required=True, metavar="SUBCOMMAND")
    for name, (module, purpose) in SUBCOMMANDS.items():
        module.add_arguments(commands.add_parser(name, help=purpose, description=purpose))
    return parser


def laws_main(argv: Sequence[str]) -> int:
    """Runs one subcommand and prints its table, or its JSON.

    Args:
        argv: Arguments after `laws`.

    Raises:
        InputError: Wrong input; the message is one line.
    """
    args = laws_parser().parse_args(list(argv))
    if args.plot:
        require_plot(args.plot)
    found = SUBCOMMANDS[args.subcommand][0].answer(args)
    print(json.dumps(found.payload, indent=1, allow_nan=False) if args.json else found.text)
    if args.plot:
        from looplit.plots.style import save

        save(found.draw(), args.plot)
    return 0
