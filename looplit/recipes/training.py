"""What a module asks of its recipe: settings of every parameter group, the schedule, growth. No torch here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from looplit.errors import require
from looplit.model.config import BackboneConfig, Role

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


class ModelRecipe(Protocol):
    """What the arguments of a module stand for: its model, and how that trains.

    Attributes:
        name: Of the family or variant, as in JSON and reports.
        depth: Nominal depth, where the recipe has one.
        backbone: Shape and constants.
        optimizer: Of the block matrices.
        batch_tokens: Tokens per optimizer step that the settings were made for; None if they do not depend on it.
        growth_plan: (K after growth, growth fraction ρ) where the recipe prescribes growth.
    """

    @property
    def name(self) -> str: ...

    @property
    def depth(self) -> int | None: ...

    @property
    def backbone(self) -> BackboneConfig: ...

    @property
    def optimizer(self) -> Optimizer: ...

    @property
    def batch_tokens(self) -> int | None: ...

    @property
    def growth_plan(self) -> tuple[int, float] | None: ...

    def settings(self, steps: int) -> TrainingSettings:
        """The settings of a run of `steps` optimizer steps."""


def is_number(value: Any) -> bool:
    """Whether a setting is a finite number; true and false are none.

    >>> is_number(0.5), is_number("0.5"), is_number(True)
    (True, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def given_arguments(given: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """The arguments of a module that are not None, which stands for the recipe's own value.

    Raises:
        InputError: An argument that is not one of `known`.
    """
    for name in given:
        require(name in known, "model.init_args", name, f"must be one of {', '.join(known)}")
    return {name: value for name, value in given.items() if value is not None}


def check_betas(betas: Any) -> None:
    """Refuses what is not a pair of AdamW's coefficients."""
    pair = isinstance(betas, tuple | list) and len(betas) == 2 and all(map(is_number, betas))
    require(pair and all(0 <= beta < 1 for beta in betas), "betas", betas, "must be two numbers in [0, 1)")


def check_batch(recipe: ModelRecipe, taken: int) -> None:
    """Says whether an optimizer step takes the tokens that the recipe's learning rates were made for.

    Raises:
        InputError: It takes others.
    """
    made_for = recipe.batch_tokens
    require(
        made_for in (None, taken), "batch_tokens", made_for,
        f"an optimizer step takes {taken} tokens; the model's learning rates depend on that number, say it",
    )  # fmt: skip
