"""`python -m looplit consolidate`: one file from a sharded checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

from looplit.commands.arguments import CommandParser, require_file_name
from looplit.errors import require


def consolidate_main(argv: list[str]) -> int:
    """`consolidate --ckpt_path FOLDER --out FILE`: writes the file and says its size.

    Raises:
        InputError: Wrong input, in one line.
    """
    args = consolidate_parser().parse_args(argv)
    ckpt_path, out = args.ckpt_path or args.folder, args.out or args.file
    require(ckpt_path is not None, "ckpt_path", None, "say which sharded checkpoint")
    require(out is not None, "out", None, "say which file to write")
    require(not Path(out).exists(), "out", out, "exists already")
    require_file_name("out", out)
    import torch

    from looplit.checkpoints.consolidation import consolidate

    part = Path(f"{out}.part")
    torch.save(consolidate(ckpt_path, args.weights_only), part)
    os.replace(part, out)
    print(f"{out}: {Path(out).stat().st_size:,} bytes")
    return 0


def consolidate_parser() -> CommandParser:
    """The options of `consolidate`."""
    parser = CommandParser(
        "consolidate",
        "--ckpt_path FOLDER --out FILE",
        description="Makes one checkpoint file of a sharded checkpoint folder: it resumes anywhere, opens anywhere.",
    )
    parser.add_argument("folder", nargs="?", metavar="FOLDER", help="the same as --ckpt_path")
    parser.add_argument("file", nargs="?", metavar="FILE", help="the same as --out")
    group = parser.add_argument_group("checkpoint")
    group.add_argument("--ckpt_path", metavar="FOLDER", help="sharded checkpoint, as strategy looplit_fsdp writes it")
    group.add_argument("--out", metavar="FILE", help="file to write; must not exist")
    group.add_argument("--weights_only", action="store_true", help="leave out optimizer, schedule and loops")
    return parser
