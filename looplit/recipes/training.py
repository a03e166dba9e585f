"""What a module asks of its recipe: settings of every parameter group, the schedule, growth. No torch here."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

from looplit.errors import require
from looplit.model.config import Role

Optimizer = str  # an algorithm's short name or import path, see `looplit.optim.algorithms`


class GroupSettings(NamedTuple):
    """How the parameters of one role train; `betas` and `eps` are AdamW's."""

    algorithm: Optimizer
    learning_rate: float
    weight_decay: float
    betas: tuple[float, float]
    eps: float


class Schedule(NamedTuple):
    """Of the learning rate, see `looplit.optim.learning_rate_factor`."""

    warmup_steps: int
    warmdown_ratio: float
    final_factor: float = 0.0


class TrainingSettings(Protocol):
    """Hyperparameters of one run, scaled to its size and length."""

    @property
    def schedule(self) -> Schedule:
        """Course of the learning rate over the run."""

    def groups(self, optimizer: Optimizer) -> dict[Role, GroupSettings]:
        """Settings by role; `optimizer` is that of the matrices, the rest takes AdamW."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name."""


def is_number(value: Any) -> bool:
    """Whether a setting is a finite number; true and false are none.

    >>> is_number(0.5), is_number("0.5"), is_number(True)
    (True, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_betas(betas: Any) -> None:
    """Refuses what is not a pair of AdamW's coefficients."""
    pair = isinstance(betas, tuple | list) and len(betas) == 2 and all(map(is_number, betas))
    require(pair and all(0 <= beta < 1 for beta in betas), "betas", betas, "must be two numbers in [0, 1)")
