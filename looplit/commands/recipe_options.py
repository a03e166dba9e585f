"""What the `recipe` command of both studies shares: options of the config file and of the output."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from looplit.commands.arguments import assignments, integer
from looplit.planning.config_files import parse_value
from looplit.planning.run_config import CORPORA, Layout


def add_layout_options(parser: argparse.ArgumentParser) -> None:
    """Machine and data of the config file; `layout_of` reads them."""
    add = parser.add_argument_group("config file").add_argument
    add("--devices", type=integer, default=8, help="per node")
    add("--nodes", type=integer, default=1, help="machines")
    add("--micro_batch", type=integer, help="sequences per device (default the most that fits 80 GB)")
    add("--precision", default="bf16-mixed", help="as Lightning's Trainer names it")
    add("--corpus", default="fineweb", help=", ".join(CORPORA))
    add("--folder", help="of the prepared corpus (default the corpus's own)")
    add("--seed", type=integer, default=1, help="of the run and of its drawn passes")


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """What to print or write in place of the card."""
    output = parser.add_argument_group("output").add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print JSON")
    output.add_argument("--yaml", action="store_true", help="print a complete config file")
    output.add_argument("--write_configs", metavar="FOLDER", type=Path, help="write every published run's config file")


def layout_of(args: argparse.Namespace) -> Layout:
    """Data and machine that parsed options describe."""
    return Layout(args.devices, args.nodes, args.micro_batch, args.precision, args.corpus, args.folder, args.seed)


def assigned(option: str, texts: Sequence[str]) -> dict[str, Any]:
    """Values by name of an option that takes NAME=VALUE several times.

    Args:
        option: Its name, for messages.
        texts: What was given.

    Raises:
        InputError: There is no equals sign.
    """
    values = {name: parse_value(text) for name, text in assignments(option, texts).items()}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
