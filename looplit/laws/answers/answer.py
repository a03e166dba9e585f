"""The form of an answer. Needs nothing but Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What was found; kinds of answers add what their figures show.

    Args:
        payload: All numbers, ready for JSON.
        text: The table on screen, which `print` shows.
    """

    payload: Mapping[str, Any]
    text: str

    def to_dict(self) -> dict[str, Any]:
        """All numbers, ready for JSON."""
        return dict(self.payload)

    def __str__(self) -> str:
        return self.text
