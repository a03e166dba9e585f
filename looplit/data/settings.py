"""Two corpora compared by what decided their content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Settings that are derived: the argument that a person gave, and its value.
_ARGUMENTS = {"train_tokens": "tokens", "document_seed": "seed"}
FILES = "names, sizes and times "  # in the value of a setting that stands for files


def first_difference(requested: Mapping[str, Any], found: Mapping[str, Any]) -> str | None:
    """The first of the settings asked for that differs from what was found, with both values; None if all agree.

    >>> first_difference({"tokenizer": "gpt2", "block": 65}, {"tokenizer": "gpt2", "block": 129})
    'context 128, not 64'
    >>> first_difference({"train_tokens": 10}, {"train_tokens": 10, "left_out": {}}) is None
    True
    """
    for name, value in requested.items():
        before = found.get(name)
        if before == value:
            continue
        if FILES in str(value) and FILES in str(before):
            return f"{name} files that have changed since, in name, size or time of modification"
        if name == "block" and isinstance(before, int):
            return f"context {before - 1}, not {value - 1}"
        return f"{_ARGUMENTS.get(name, name)} {before!r}, not {value!r}"
    return None
