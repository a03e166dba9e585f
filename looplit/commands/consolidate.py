"""`python -m looplit consolidate`: one file from a sharded checkpoint."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch

from looplit.checkpoints.index import WholePlanner
from looplit.checkpoints.reading import RUN_STATE, read_folder, read_tensors
from looplit.errors import require
from looplit.strategies.optimizer_state import numbered


def consolidate(folder: str | Path, weights_only: bool = False) -> dict[str, Any]:
    """A sharded checkpoint as the checkpoint of a single device, on the CPU, in one process.

    Args:
        folder: As `looplit_fsdp` writes it.
        weights_only: Whether to leave out what only a resumed run needs: optimizer, schedule, loops and callbacks.

    Raises:
        InputError: No sharded checkpoint, one that was not written to its end, a broken file of it, or more
            than data in it.
    """
    folder = Path(folder)
    checkpoint = read_folder(folder, "DIR")
    tensors: dict[str, Any] = {}
    read_tensors(folder, tensors, "DIR", WholePlanner(keys={"state_dict"} if weights_only else None), alone=True)
    checkpoint["state_dict"] = tensors.pop("state_dict")
    if weights_only:
        return {key: value for key, value in checkpoint.items() if key not in RUN_STATE}
    checkpoint["optimizer_states"] = [numbered(tensors[f"optimizer_{i}"]) for i in range(len(tensors))]
    return checkpoint


def consolidate_main(argv: list[str]) -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="looplit consolidate", allow_abbrev=False,
        description="Makes one checkpoint file of a sharded checkpoint folder: it resumes anywhere, opens anywhere.",
    )  # fmt: skip
    parser.add_argument("folder", metavar="DIR", help="sharded checkpoint, as strategy looplit_fsdp writes it")
    parser.add_argument("out", metavar="OUT", help="file to write; must not exist")
    parser.add_argument("--weights_only", action="store_true", help="leave out optimizer, schedule and loops")
    args = parser.parse_args(argv)
    out = Path(args.out)
    require(not out.exists(), "OUT", str(out), "exists already")
    part = out.with_name(f"{out.name}.part")
    out.parent.mkdir(parents=True, exist_ok=True)
    torch.save(consolidate(args.folder, args.weights_only), part)
    os.replace(part, out)
    print(f"{out}: {out.stat().st_size:,} bytes")
    return 0
