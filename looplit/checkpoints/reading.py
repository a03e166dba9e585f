"""Checkpoints read as data alone, and whether a sharded one is whole, found before anything is built or loaded."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from looplit.checkpoints.addresses import opened
from looplit.checkpoints.index import INDEX_FILE, DataPlanner, DataReader, read_index
from looplit.errors import InputError, require

METADATA_FILE = "meta.pt"  # of a sharded checkpoint: all that is not a tensor; written last
RUN_STATE = ("optimizer_states", "lr_schedulers", "loops", "callbacks")  # what only a resumed run needs
WEIGHTS_ONLY = "holds weights only and cannot be resumed; looplit.load, validate and evaluate take it"


def read_file(path: str | Path, argument: str = "ckpt_path", mmap: bool = False, map_location: Any = "cpu") -> Any:
    """What `torch.save` has written. Nothing in it is run.

    Args:
        path: The file, or its address.
        argument: What an error calls it.
        mmap: Whether tensors are mapped, not copied; not for an address.
        map_location: Device of the tensors, as torch takes it.

    Raises:
        FileNotFoundError: There is no such file.
        InputError: It holds more than data, is not readable, or the address is of a kind that is not read.
    """
    try:
        with opened(path, argument) as file:
            return torch.load(file, map_location=map_location, weights_only=True, mmap=mmap)
    except FileNotFoundError:
        raise FileNotFoundError(f"{argument} = {str(path)!r}: there is no such checkpoint") from None
    except InputError:
        raise
    except Exception as error:  # a broken file can raise anything, and so can the library that an address is read with
        raise unreadable(argument, path, error) from error


def read_folder(folder: str | Path, argument: str = "ckpt_path") -> dict[str, Any]:
    """All of a sharded checkpoint that is not a tensor; the files of tensors are there and have their lengths.

    Args:
        folder: As `looplit_fsdp` writes it.
        argument: What an error calls it.

    Raises:
        InputError: No sharded checkpoint, one that was not written to its end, a file of it is broken, or holds more
            than data.
    """
    folder = Path(folder)
    whole = (folder / METADATA_FILE).is_file() and (folder / INDEX_FILE).is_file()
    require(whole, argument, str(folder), "there is no complete sharded checkpoint")
    try:
        lengths = _lengths(read_index(folder))
        content: dict[str, Any] = torch.load(folder / METADATA_FILE, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken pickle can raise anything
        raise unreadable(argument, folder, error) from error
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


def read_tensors(
    folder: str | Path, state: dict[str, Any], argument: str = "ckpt_path", planner: DataPlanner | None = None,
    alone: bool = False,
) -> None:  # fmt: skip
    """Reads the tensors and values of a sharded checkpoint that `read_folder` has found whole. Nothing in it is run.

    Args:
        folder: As `looplit_fsdp` writes it.
        state: Tensors to read into, and values to replace.
        argument: What an error calls the folder.
        planner: What to read; default all that is in `state`.
        alone: Whether this process reads by itself, though others may be connected.

    Raises:
        InputError: A value holds more than data, or is not readable.
    """
    alone = alone or not dist.is_initialized()
    try:
        _load_state_dict(state, storage_reader=DataReader(folder), planner=planner or DataPlanner(), no_dist=alone)
    except CheckpointException as error:
        cause = next(iter(error.failures.values()))[0]
        if isinstance(cause, pickle.UnpicklingError | EOFError | RuntimeError):
            raise unreadable(argument, folder, cause) from error
        raise


def unreadable(argument: str, path: str | Path, error: BaseException) -> InputError:
    """The one line for a checkpoint that was not read, which names the class or function that it asks for.

    >>> print(unreadable("path", "a.ckpt", EOFError()))
    path = 'a.ckpt': not a readable checkpoint (EOFError)
    """
    asked = re.search(r"GLOBAL (\S*\w)", str(error))
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    if asked:
        reason = f"it asks for {asked[1]}; only data is read"
    elif isinstance(error, pickle.UnpicklingError) and reason.startswith("Weights only load failed"):
        reason = "it holds more than data"  # torch first says how to load it all the same
    return InputError(f"{argument} = {str(path)!r}: not a readable checkpoint ({reason})")
