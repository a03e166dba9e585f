"""Checkpoints that are replaced whole: whenever a run is killed, a name ending in .ckpt is a whole checkpoint."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from lightning.pytorch.plugins.io import TorchCheckpointIO

from looplit.checkpoints.addresses import is_address
from looplit.checkpoints.reading import read_file


def part_of(path: Path) -> Path:
    """The name of what is being written or removed, and is taken for no checkpoint.

    >>> part_of(Path("last.ckpt")).name
    'last.ckpt.part'
    """
    return path.with_name(f"{path.name}.part")


def previous_of(path: Path) -> Path:
    """Where the checkpoint that is being replaced stands until the new one has its name.

    >>> previous_of(Path("last.ckpt")).name
    'last.previous.ckpt'
    """
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def put_in_place(part: Path, path: Path) -> None:
    """Gives a whole checkpoint its name. At every moment that name, or `previous_of` it, has a whole checkpoint.

    A folder cannot be replaced in one go, as a file can by a file.
    """
    if part.is_file() and not path.is_dir():
        os.replace(part, path)
        return
    previous = previous_of(path)
    if path.exists():
        discard(previous)
        path.rename(previous)
    part.rename(path)
    discard(previous)


def discard(path: Path) -> None:
    """Removes a checkpoint, if it is there, under a name that is taken for none: half of a folder may be left."""
    part = part_of(path)
    remove(part)
    if path.exists():
        path.rename(part)
        remove(part)


def remove(path: Path) -> None:
    """Removes a file or folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class DataOnlyIO(TorchCheckpointIO):
    """Lightning's files and addresses, read as data alone. Lightning by itself runs what it finds at an address."""

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: bool | None = None) -> dict[str, Any]:
        """Reads a checkpoint; with `weights_only=False`, which someone must have written, as Lightning does.

        Raises:
            FileNotFoundError: There is none.
            InputError: It holds more than data, or is not readable.
        """
        if weights_only is False:
            return super().load_checkpoint(path, map_location, weights_only)
        checkpoint: dict[str, Any] = read_file(path, map_location=map_location)
        return checkpoint


class WholeFileIO(DataOnlyIO):
    """Lightning's files, written beside their place: Lightning copies them there from another file system, bit by bit.

    Writing to addresses of object stores is left to Lightning.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        if is_address(path):
            return super().save_checkpoint(checkpoint, path, storage_options)
        part = part_of(Path(path))
        super().save_checkpoint(checkpoint, part, storage_options)
        put_in_place(part, Path(path))
