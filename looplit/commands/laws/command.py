"""`python -m looplit laws`: fits and forecasts from finished runs."""

from __future__ import annotations

from collections.abc import Sequence

from looplit.commands.subcommands import run_subcommand

SUBCOMMANDS = {
    "ladder": "scaling exponents above a shared floor, and compute multipliers",
    "vertex": "optima of sweeps: tokens per parameter, growth fraction, learning rate and others",
    "forecast": "CORE at a budget, and the compute that a score needs",
    "recurrence": "best number of passes at equal compute, and strategies when data repeat",
    "residuals": "downstream loss against validation loss, by family and task",
}


def laws_main(argv: Sequence[str]) -> int:
    """Runs one subcommand and prints its table, or its JSON.

    Args:
        argv: Arguments after `laws`.

    Raises:
        InputError: Wrong input; the message is one line.
    """
    return run_subcommand("laws", SUBCOMMANDS, argv)
