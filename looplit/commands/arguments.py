"""What the commands share in reading their arguments. Nothing here imports torch."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from looplit.errors import InputError, require

_SUFFIXES = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def underscored(words: Iterable[str]) -> list[str]:
    """Words of a command line, names of options with underscores for hyphens and values as they are.

    >>> underscored(["--batch-tokens=1M", "--set", "eps=1e-8", "a-b", "-1", "--", "--x-y"])
    ['--batch_tokens=1M', '--set', 'eps=1e-8', 'a-b', '-1', '--', '--x-y']
    """
    words = list(words)
    end = words.index("--") if "--" in words else len(words)
    return [_underscored(word) if word.startswith("--") else word for word in words[:end]] + words[end:]


def _underscored(word: str) -> str:
    name, equals, value = word[2:].partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"


class CommandParser(argparse.ArgumentParser):
    """The options of one command, whose errors are one line for the caller to print; takes no abbreviations.

    Args:
        command: Words after `python -m looplit`.
        inputs: What comes before the options in the line of usage.
        **settings: As argparse takes them.
    """

    def __init__(self, command: str, inputs: str = "", **settings: Any) -> None:
        prog = f"python -m looplit {command}"
        usage = f"{prog} {inputs}{' ' * bool(inputs)}[options]"
        super().__init__(prog=prog, usage=usage, allow_abbrev=False, formatter_class=_Layout, **settings)
        self.command = command

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        return super().parse_known_args(None if args is None else underscored(args), namespace)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{self.command}: {message}")


class _Layout(argparse.RawDescriptionHelpFormatter):
    """Says the metavar of an option once, and every default."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        numeric = action.type in (int, float, quantity, count, natural, integer, number, number_from_0)
        return "N" if numeric else action.dest.rpartition("_")[2].upper()

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        metavar = self._get_default_metavar_for_optional(action)
        return f"{', '.join(action.option_strings)} {self._format_args(action, metavar)}"

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        said = "default" in text or action.default in (None, False, argparse.SUPPRESS) or action.default == []
        return text if said else f"{text}{' ' * bool(text)}(default %(default)s)"


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


def integer(text: str) -> int:
    """An option's type: a whole number; the command says which."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def integers(text: str) -> list[int]:
    """An option's type: whole numbers with commas between, such as 2,3,4."""
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers") from None


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


def number(text: str) -> float:
    """An option's type: a number; the command says which."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


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


def assignments(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Texts by name of an option that takes NAME=VALUE several times.

    Args:
        option: Its name, for messages.
        texts: What was given.

    Raises:
        InputError: There is no equals sign.
    """
    for text in texts:
        require("=" in text, option, text, "must be NAME=VALUE, as in learning_rate=0.01")
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


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
