"""From a checkpoint file back to a model, whatever its family."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import torch

from looplit.checkpoints.reading import read_file
from looplit.errors import require
from looplit.modules.base import CLASS_KEY, LoopedLM
from looplit.recipes.resolve import CLASSES
from looplit.recipes.truncation import CLASS


def read_checkpoint(path: str | Path, argument: str = "path") -> dict[str, Any]:
    """The content of a checkpoint file, tensors on the CPU and mapped, not copied.

    Args:
        path: The file.
        argument: What the caller's user calls it.

    Raises:
        InputError: No such file, or not a checkpoint that Lightning has written.
    """
    sharded = Path(path).is_dir()
    require(not sharded, argument, str(path), "a folder; make one file of a sharded checkpoint: looplit consolidate")
    require(Path(path).is_file(), argument, str(path), "there is no such checkpoint file")
    require(zipfile.is_zipfile(path), argument, str(path), "not a readable checkpoint")
    checkpoint = read_file(path, argument, mmap=True)
    whole = isinstance(checkpoint, dict) and {"state_dict", "pytorch-lightning_version"} <= checkpoint.keys()
    require(whole, argument, str(path), "not a checkpoint of a run")
    return dict(checkpoint)


def load(path: str | Path, map_location: str | torch.device = "cpu", argument: str = "path") -> LoopedLM:
    """The model of a checkpoint in eval mode, at the number of passes it was saved at.

    Args:
        path: A checkpoint that a run of LoopLit has written.
        map_location: Device of the weights.
        argument: What the caller's user calls the path.

    Raises:
        InputError: No such file, not a checkpoint, or not one of LoopLit's.
    """
    from looplit import modules  # whose names this one is part of

    checkpoint = read_checkpoint(path, argument)
    name = checkpoint.get(CLASS_KEY)
    ours = name in (*CLASSES, CLASS) and "hyper_parameters" in checkpoint
    require(ours, argument, str(path), "not a checkpoint of one of LoopLit's families")
    family: type[LoopedLM] = getattr(modules, str(name))
    return family.load_from_checkpoint(path, map_location=map_location, weights_only=True).eval()
