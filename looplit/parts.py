"""Parts of a model or a recipe that are one class each: by short name, by import path, or given as the class."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, TypeVar

from looplit.errors import InputError, require

T = TypeVar("T")


def part_class(argument: str, value: Any, built_in: Mapping[str, type[T]], base: type[T]) -> type[T]:
    """The class that `value` stands for.

    Args:
        argument: What the caller's user calls it.
        value: A key of `built_in`, the import path of a subclass of `base`, as in "my_module.GatedInjection", or that
            class.
        built_in: LoopLit's own classes by short name.
        base: What every such class extends.

    Raises:
        InputError: It stands for none; the line lists the short names.
    """
    if isinstance(value, str) and value in built_in:
        return built_in[value]
    article = "an" if base.__name__[0] in "AEIOU" else "a"
    rule = f"must be one of {', '.join(built_in)}, or the import path of {article} {base.__name__}"
    found = imported(argument, value, rule) if isinstance(value, str) and "." in value else value
    require(isinstance(found, type) and issubclass(found, base), argument, value, rule)
    return found


def part_name(argument: str, value: Any, built_in: Mapping[str, type[T]], base: type[T]) -> str:
    """The plain text that stands for the class of `value`: its short name, else its import path.

    Raises:
        InputError: As `part_class`; or a class that its import path does not lead to, such as one made in a function.
    """
    found = part_class(argument, value, built_in, base)
    for name, own in built_in.items():
        if found is own:
            return name
    path = import_path(found)
    if found is not value:  # a path has just led to it, perhaps one that another module gives
        return str(value)
    rule = "checkpoints keep its import path, so it must be a class at the top of a module"
    require("." not in found.__qualname__, argument, path, rule)
    return path


def import_path(part: type) -> str:
    """The path that a class is imported by.

    >>> import_path(InputError)
    'looplit.errors.InputError'
    """
    return f"{part.__module__}.{part.__qualname__}"


def imported(argument: str, path: str, rule: str) -> Any:
    """What the module of a dotted path holds under its last part; the module must be importable as it is.

    Args:
        argument: What the caller's user calls it.
        path: Such as "my_module.MyFamily".
        rule: What it must be, for messages.

    Raises:
        InputError: It is not importable, or holds nothing of that name.
    """
    module, _, name = path.rpartition(".")
    require(bool(module) and all(part.isidentifier() for part in path.split(".")), argument, path, rule)
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        hint = f"name the folder of {module.partition('.')[0]} in PYTHONPATH, or run python -m looplit there"
        raise InputError(f"{argument} = {path!r}: cannot be imported ({error}); {rule}; {hint}") from error
