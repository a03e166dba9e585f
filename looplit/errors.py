"""Errors that a person caused and can mend: one clear line each, exit code 2 at the command line."""

from __future__ import annotations

from numbers import Integral
from typing import Any


class InputError(ValueError):
    """Wrong input. The message is one line that names the argument, the value and the rule.

    `python -m looplit` prints the line and exits with code 2; a traceback is kept for errors of any other kind,
    which are ours.
    """


class RunStopped(RuntimeError):
    """A run that ended before its time (a loss that is not finite, a signal). One line, no traceback.

    Args:
        message: The line.
        exit_code: Of `python -m looplit`.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def require(condition: bool, argument: str, value: Any, rule: str) -> None:
    """Raises `InputError` as "argument = value: rule" unless `condition` holds.

    >>> require(3 > 2, "passes", 3, "must be above 2")
    >>> require(1 > 2, "passes", 1, "must be above 2")
    Traceback (most recent call last):
    looplit.errors.InputError: passes = 1: must be above 2
    """
    if not condition:
        raise InputError(f"{argument} = {value!r}: {rule}")


def require_whole(argument: str, value: Any, least: int = 1) -> None:
    """Raises `InputError` unless `value` is a whole number of at least `least`; true and false are none.

    >>> require_whole("passes", 4, 1)
    >>> require_whole("passes", 2.5, 1)
    Traceback (most recent call last):
    looplit.errors.InputError: passes = 2.5: must be a whole number, at least 1
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    require(whole, argument, value, f"must be a whole number, at least {least}")
    require_between(argument, value, least)


def require_between(argument: str, value: float, least: float, most: float | None = None) -> None:
    """Raises `InputError` unless `value` is at least `least` and at most `most`, if there is such a bound.

    >>> require_between("workers", 3, 1)
    >>> require_between("seed", -1, 0, 10)
    Traceback (most recent call last):
    looplit.errors.InputError: seed = -1: must be at least 0
    """
    require(value >= least, argument, value, f"must be at least {least}")
    require(most is None or value <= most, argument, value, f"must be at most {most}")
