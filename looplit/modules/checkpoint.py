"""From a checkpoint file back to a model, whatever its family."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import torch

from looplit.checkpoints.reading import read_file
from looplit.errors import require
from looplit.modules import families, truncated
from looplit.modules.base import CLASS_KEY, CLASS_PATH_KEY, LoopedLM
from looplit.parts import imported
from looplit.recipes.study import IMPORT_RULE


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
        InputError: No such file, not a checkpoint, or its class is not a `LoopedLM` or not importable.
    """
    checkpoint = read_checkpoint(path, argument)
    cls = _class_of(checkpoint, f"{argument} = {str(path)!r}: class_path")
    whole = cls is not None and "hyper_parameters" in checkpoint
    require(whole, argument, str(path), "not a checkpoint of one of LoopLit's families")
    assert cls is not None
    return cls.load_from_checkpoint(path, map_location=map_location, weights_only=True).eval()


def _class_of(checkpoint: dict[str, Any], argument: str) -> type[LoopedLM] | None:
    """The class that a checkpoint names, which is LoopLit's or one that Python can import; None if it names none."""
    name = checkpoint.get(CLASS_PATH_KEY, checkpoint.get(CLASS_KEY))  # older ones have no path
    built_in = vars(families) | vars(truncated)
    if not isinstance(name, str) or ("." not in name and name not in built_in):
        return None
    cls = imported(argument, name, IMPORT_RULE) if "." in name else built_in[name]
    known = isinstance(cls, type) and issubclass(cls, LoopedLM) and hasattr(cls, "family")
    require(known, argument, name, "is not a LoopedLM with a family, so it is not called")
    return cls
