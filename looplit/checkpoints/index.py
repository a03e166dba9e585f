"""Sharded checkpoints read as data alone: their index and values are pickles, and torch's own reader runs those."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader
from torch.distributed.checkpoint._nested_dict import set_element
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem
from torch.serialization import _get_layout

INDEX_FILE = ".metadata"  # of a sharded checkpoint: which tensors it has, and where in its files

_RECORDS = (
    Metadata, MetadataIndex, StorageMeta, TensorStorageMetadata, BytesStorageMetadata, ChunkStorageMetadata,
    TensorProperties, _StorageInfo,
)  # fmt: skip
_MAKERS: dict[tuple[str, str], Callable[..., Any]] = {
    **{(record.__module__, record.__name__): partial(object.__new__, record) for record in _RECORDS},
    (_MEM_FORMAT_ENCODING.__module__, _MEM_FORMAT_ENCODING.__name__): _MEM_FORMAT_ENCODING,
    (_get_layout.__module__, _get_layout.__name__): _get_layout,
    ("torch", "Size"): torch.Size,
    # Where the checkpoint was written, which nothing reads. The module is named differently from Python 3.13 on.
    **{(m, n): os.path.join for m in ("pathlib", "pathlib._local") for n in ("PosixPath", "WindowsPath")},
}
"""All that an index is made of, dtypes aside."""


class _IndexUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _MAKERS:
            make = _MAKERS[module, name]
            # Not the class itself, on which a pickle could set attributes that outlive it.
            return type(name, (), {"__new__": lambda _, *args: make(*args)})
        if module == "torch" and isinstance(vars(torch).get(name), torch.dtype):
            return vars(torch)[name]
        raise pickle.UnpicklingError(f"GLOBAL {module}.{name}")  # as torch says it


def read_index(folder: Path) -> Metadata:
    """The index of a sharded checkpoint, which can run nothing.

    Raises:
        UnpicklingError: It asks for what is not part of an index, or is none. A broken pickle can raise anything else.
    """
    with (folder / INDEX_FILE).open("rb") as file:
        index = _IndexUnpickler(file).load()
    if not (isinstance(index, Metadata) and _sound(index)):
        raise pickle.UnpicklingError(f"{INDEX_FILE} is no index of tensors in files beside it")
    return index


def _sound(index: Metadata) -> bool:
    entries, places = index.state_dict_metadata, index.storage_data
    return (
        isinstance(entries, dict)
        and all(isinstance(entry, TensorStorageMetadata | BytesStorageMetadata) for entry in entries.values())
        and isinstance(places, dict)
        and all(isinstance(place, _StorageInfo) for place in places.values())
        and all(Path(place.relative_path).name == place.relative_path for place in places.values())
    )


class DataReader(FileSystemReader):
    """torch's reader, but its index runs nothing; that of one process alone, which torch tries next, is not read."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        index = read_index(Path(self.path))
        index.storage_meta = StorageMeta(load_id=self.load_id)
        return index


class DataPlanner(DefaultLoadPlanner):
    """torch's planner, with values that are no tensors (an optimizer's settings) read as data alone."""

    def load_bytes(self, read_item: ReadItem, value: BytesIO) -> None:
        name, entry = read_item.dest_index.fqn, torch.load(value, weights_only=True)
        if self.flatten_state_dict:
            set_element(self.original_state_dict, self.mappings[name], entry)
        else:
            self.state_dict[name] = entry


class WholePlanner(DataPlanner, _EmptyStateDictLoadPlanner):
    """Reads all that the index names, or what is below some keys, into an empty dictionary."""
