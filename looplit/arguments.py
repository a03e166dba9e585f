"""What the light commands share in reading their arguments. Nothing here imports torch."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from looplit.errors import InputError

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
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number such as 240M or 2.1e19")
    return value


def count(text: str) -> int:
    """An option's type: a positive whole number such as 524288, 4_096, 1e9, 100M or 1.5B.

    >>> count("30B"), count("2.5M"), count("4_096")
    (30000000000, 2500000, 4096)
    """
    value = quantity(text)
    if value != round(value):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return round(value)


def nonempty(text: str) -> str:
    """An option's type: a text that says something."""
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def natural(text: str) -> int:
    """An option's type: a whole number from 0 up."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 up")
    return int(text)
