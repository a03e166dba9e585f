"""One checkpoint from a sharded one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from looplit.checkpoints.index import WholePlanner
from looplit.checkpoints.optimizer_state import numbered
from looplit.checkpoints.reading import RUN_STATE, read_folder, read_tensors


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
    checkpoint = read_folder(folder, "ckpt_path")
    tensors: dict[str, Any] = {}
    read_tensors(folder, tensors, "ckpt_path", WholePlanner(keys={"state_dict"} if weights_only else None), alone=True)
    checkpoint["state_dict"] = tensors.pop("state_dict")
    if weights_only:
        return {key: value for key, value in checkpoint.items() if key not in RUN_STATE}
    checkpoint["optimizer_states"] = [numbered(tensors[f"optimizer_{i}"]) for i in range(len(tensors))]
    return checkpoint
