"""What the light commands share in reading their arguments. Nothing here imports torch."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from looplit.errors import InputError, require

_SUFFIXES = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


class CommandParser(argparse.ArgumentParser):
    """An error is one line for the caller to print, not a usage text and an exit; no abbreviated options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False} | settings)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{self.prog.removeprefix('python -m looplit ')}: {message}")


def quantity(text: str) -> float:
    """An option's type: a positive number such as 240M or 2.1e19.

    >>> quantity("240M"), quantity("2.1e19")
    (240000000.0, 2.1e+19)
    """
    factor = _SUFFIXES.get(text[-1:].upper(), 1)
    try:
        value = float(text[:-1] if factor > 1 else text) * factor
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number such as 240M or 2.1e19")
    return value


def count(text: str) -> int:
    """An option's type: a positive whole number such as 524288, 4_096, 1e9, 100M or 1.5B.

    >>> count("30B"), count("2.5M"), count("4_096")
    (30000000000, 2500000, 4096)
    """
    value = quantity(text)
    if value != round(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return round(value)


def nonempty(text: str) -> str:
    """An option's type: a text that says something."""
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def natural(text: str) -> int:
    """An option's type: a whole number from 0 up."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 up")
    return int(text)


def number_from_0(text: str) -> float:
    """An option's type: a number from 0 up.

    >>> number_from_0("0.5")
    0.5
    """
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 up")
    return value


def require_checkpoints(paths: Iterable[str]) -> None:
    """Refuses what is not a checkpoint file, before anything is loaded.

    Raises:
        InputError: No such file, or a folder.
    """
    for path in paths:
        folder = Path(path).is_dir()
        require(not folder, "ckpt_path", path, "a folder; make one file of a sharded checkpoint: looplit consolidate")
        require(Path(path).is_file(), "ckpt_path", path, "there is no such checkpoint file")


def require_file_name(argument: str, path: str | Path | None) -> None:
    """Refuses a file to write that cannot be one, before hours are spent on what it is to hold; makes its folder.

    Raises:
        InputError: The path is a folder, leads through a file, or into a folder that cannot be written to.
    """
    if path is None:
        return
    require(not Path(path).is_dir(), argument, str(path), "a folder; name a file")
    through = next((str(parent) for parent in Path(path).parents if parent.is_file()), None)
    require(through is None, argument, str(path), f"{through} is a file")
    folder = Path(path).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{argument} = {str(path)!r}: its folder cannot be made ({error.strerror})") from error
    require(os.access(folder, os.W_OK), argument, str(path), f"{folder} cannot be written to")
