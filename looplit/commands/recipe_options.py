"""What the `recipe` command of both studies shares: options of the config file and of the output."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from looplit.errors import require
from looplit.planning.config_files import parse_value
from looplit.planning.run_config import CORPORA, Layout


def add_layout_options(parser: argparse.ArgumentParser) -> None:
    """Machine and data of the config file; `layout_of` reads them."""
    machine = parser.add_argument_group("config file")
    machine.add_argument("--devices", type=int, default=8, help="per node (default %(default)s)")
    machine.add_argument("--nodes", type=int, default=1)
    machine.add_argument("--micro-batch", type=int, help="sequences per device; default the most that fits 80 GB")
    machine.add_argument("--precision", default="bf16-mixed")
    machine.add_argument("--corpus", default="fineweb", help=", ".join(CORPORA))
    machine.add_argument("--folder", help="of the prepared corpus")
    machine.add_argument("--seed", type=int, default=1, help="of the run and of its drawn passes")


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """What to print or write in place of the card."""
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print JSON")
    output.add_argument("--yaml", action="store_true", help="print a complete config file")
    output.add_argument("--write-configs", metavar="FOLDER", type=Path, help="write every published run's config file")


def layout_of(args: argparse.Namespace) -> Layout:
    """Data and machine that parsed options describe."""
    return Layout(args.devices, args.nodes, args.micro_batch, args.precision, args.corpus, args.folder, args.seed)


def assignments(option: str, texts: Iterable[str]) -> dict[str, Any]:
    """Values by name of an option that takes NAME=VALUE and may be repeated.

    Args:
        option: Its name, for messages.
        texts: What was given.

    Raises:
        InputError: There is no equals sign.
    """
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        require(bool(equals), option, text, "must be NAME=VALUE, as in learning_rate=0.01")
        parsed = parse_value(value)
        values[name] = tuple(parsed) if isinstance(parsed, list) else parsed
    return values
