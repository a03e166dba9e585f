"""`python -m looplit loops`: what a loop setting is worth, which is best, and the law from one's own runs."""

from __future__ import annotations

from collections.abc import Sequence

from looplit.commands.subcommands import run_subcommand

SUBCOMMANDS = {
    "worth": "what a loop setting (T, B) is worth: T passes, gradient through the last B",
    "optimum": "the best setting at given passes, loop compute, size or training compute",
    "frontier": "parameters saved against compute needed, every setting of the study",
    "fit": "the law from finished runs, and what the runs say by themselves",
}
HINT = "Options alone ask for worth: loops --passes 8 --trained_passes 2, or loops --T 8 --B 2."


def loops_main(argv: Sequence[str]) -> int:
    """Runs one subcommand, `worth` where only options are given, and prints its table, or its JSON.

    Args:
        argv: Arguments after `loops`.

    Raises:
        InputError: Wrong input; the message is one line.
    """
    alone = bool(argv) and argv[0].startswith("-") and argv[0] not in ("-h", "--help")
    return run_subcommand("loops", SUBCOMMANDS, ["worth", *argv] if alone else argv, HINT)
