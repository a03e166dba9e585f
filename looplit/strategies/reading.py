"""Whether a sharded checkpoint is whole, found before anything is built or loaded."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata

from looplit.errors import InputError, require

METADATA_FILE = "meta.pt"  # of a sharded checkpoint: all that is not a tensor; written last
RUN_STATE = ("optimizer_states", "lr_schedulers", "loops", "callbacks")  # what only a resumed run needs
WEIGHTS_ONLY = "holds weights only and cannot be resumed; looplit.load, validate and evaluate take it"


def read_folder(folder: str | Path, argument: str = "ckpt_path") -> dict[str, Any]:
    """All of a sharded checkpoint that is not a tensor; the files of tensors are there and have their lengths.

    Args:
        folder: As `looplit_fsdp` writes it.
        argument: What an error calls it.

    Raises:
        InputError: No sharded checkpoint, one that was not written to its end, or a file of it is broken.
    """
    folder = Path(folder)
    whole = (folder / METADATA_FILE).is_file() and (folder / ".metadata").is_file()
    require(whole, argument, str(folder), "there is no complete sharded checkpoint")
    try:
        lengths = _lengths(FileSystemReader(folder).read_metadata())
        content: dict[str, Any] = torch.load(folder / METADATA_FILE, map_location="cpu", weights_only=True)
    except (EOFError, OSError, RuntimeError, pickle.UnpicklingError, AttributeError, ImportError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{argument} = {str(folder)!r}: not a readable checkpoint ({reason})") from error
    for name, length in lengths.items():
        there = (folder / name).is_file()
        require(there, argument, str(folder), f"broken: its file {name} is missing")
        size = (folder / name).stat().st_size
        require(size >= length, argument, str(folder), f"broken: its file {name} has {size} of {length} bytes")
    return content


def _lengths(metadata: Metadata) -> dict[str, int]:
    """Bytes that the tensors need in each file."""
    lengths: dict[str, int] = {}
    for place in (metadata.storage_data or {}).values():
        lengths[place.relative_path] = max(lengths.get(place.relative_path, 0), place.offset + place.length)
    return lengths
