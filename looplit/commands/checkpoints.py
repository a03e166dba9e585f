"""What the commands share that measure checkpoints on the validation data of their runs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from looplit.commands.arguments import CommandParser, count, require_checkpoints
from looplit.commands.output import check_outputs, output_options, print_json, write_json
from looplit.errors import require

if TYPE_CHECKING:
    from torch import Tensor

    from looplit.modules import LoopedLM


def checkpoint_parser(command: str, description: str, figure: str) -> CommandParser:
    """A command's common options; it adds its own."""
    parser = CommandParser(command, "--ckpt_path CKPT …", description=description)
    add = parser.add_argument_group("checkpoints and data").add_argument
    add("--ckpt_path", required=True, nargs="+", metavar="CKPT", help="checkpoints of LoopLit's runs")
    add("--folder", "--data", help="prepared corpus (default the data of the checkpoint's run)")
    add("--tokens", type=count, default=65_536, help="validation tokens at most")
    add("--batch_size", type=count, help="rows per forward (default the data's)")
    add("--device", help="cpu, cuda, cuda:1, … (default cuda where there is one)")
    group = output_options(parser, figure, json_file=True)
    group.add_argument("--out", metavar="FILE", help="write all numbers there as JSON")
    return parser


def parse_checkpoints(parser: CommandParser, argv: list[str]) -> argparse.Namespace:
    """Parsed options, of which no file is missing and none to be written is in the way."""
    args = parser.parse_args(argv)
    if isinstance(args.json, str):
        args.out, args.json = args.out or args.json, False
    require_checkpoints(args.ckpt_path)
    check_outputs(args, "out")
    return args


def load_checkpoint(path: str, args: argparse.Namespace) -> LoopedLM:
    """The model on the device asked for."""
    from looplit.eval.device import chosen_device
    from looplit.modules import load

    return load(path, chosen_device(args.device), "ckpt_path")


def validation_batches(path: str, model: LoopedLM, args: argparse.Namespace) -> list[tuple[Tensor, Tensor]]:
    """Validation tokens for the model, on its device."""
    from looplit.eval.run_data import validation_sample

    config = model.config
    sample = validation_sample(path, args.folder, config, args.tokens, args.batch_size)
    batches = sample.batches(model.device)
    largest = max(int(tokens.max()) for batch in batches for tokens in batch)
    rule = f"holds token {largest}; the model's vocabulary is {config.vocabulary}"
    require(largest < config.vocabulary, "folder", args.folder, rule)
    return batches


def run_fields(path: str, model: LoopedLM) -> dict[str, Any]:
    """The JSON keys of the run that left the checkpoint."""
    depth = {} if model.recipe.depth is None else {"depth": model.recipe.depth}
    return {
        "checkpoint_path": str(path),
        "family": model.recipe.name,
        **depth,
        "passes": model.backbone.passes,
        "training_flops": model.meter.flops,
    }


def show_rows(args: argparse.Namespace, rows: list[dict[str, Any]], text: str) -> None:
    """Prints the table or JSON, and writes JSON where a file is named: an object for one checkpoint, else a list."""
    found = rows[0] if len(rows) == 1 else rows
    if args.json:
        print_json(found)
    else:
        print(text)
    if args.out:
        write_json(args.out, found)
