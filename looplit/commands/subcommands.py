"""Commands that are made of subcommands, a module each, of which only the one that is asked for is imported."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence

from looplit.commands.arguments import CommandParser
from looplit.commands.output import check_outputs
from looplit.errors import InputError, require


def run_subcommand(command: str, purposes: Mapping[str, str], argv: Sequence[str], hint: str = "") -> int:
    """Runs the subcommand that comes first in `argv` and returns its exit code.

    The module `looplit.commands.COMMAND.SUBCOMMAND` has `INPUTS` (before the options in the line of usage),
    `add_arguments(parser)` and `run(args)`.

    Args:
        command: Name.
        purposes: Subcommand → what it is for, in a line.
        argv: Arguments after the command.
        hint: Further line of help.

    Raises:
        InputError: Wrong input; the message is one line.
    """
    names = ", ".join(purposes)
    if not argv:
        raise InputError(f"{command}: say which: {names}")
    name = argv[0]
    if name in ("-h", "--help"):
        print(_help(command, purposes, hint), end="")
        return 0
    require(name in purposes, command, name, f"must be one of {names}")
    module = importlib.import_module(f"looplit.commands.{command}.{name}")
    parser = CommandParser(
        f"{command} {name}", module.INPUTS, description=f"{purposes[name][:1].upper()}{purposes[name][1:]}."
    )
    module.add_arguments(parser)
    args = parser.parse_args(list(argv[1:]))
    check_outputs(args)
    return int(module.run(args))


def _help(command: str, purposes: Mapping[str, str], hint: str) -> str:
    lines = [f"usage: python -m looplit {command} SUBCOMMAND [options]", "", "subcommands, each with --help:"]
    lines += [f"  {name:<10}  {purpose}" for name, purpose in purposes.items()]
    return "\n".join([*lines, *(["", hint] if hint else []), ""])
