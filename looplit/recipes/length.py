"""How long a run of the growth study trains: its budget, and the optimizer steps that this pays for (A.4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from looplit.accounting.flops import compute_parameters, flops_per_token, initial_parameters
from looplit.accounting.recurrence import RandomPasses
from looplit.errors import require
from looplit.model.config import BackboneConfig
from looplit.recipes.run import epoch_steps


@dataclass(frozen=True)
class Budget:
    """How long a run trains; without any of the lengths, by the family's tokens per parameter.

    Args:
        tokens_per_parameter: TPP of the reference budget, per stored parameter of the initial model. A growing run
            spends the compute that this many tokens cost without growth.
        tokens: Training tokens.
        flops: Training FLOPs, not exceeded (by the mean of drawn passes, under random recurrence).
        epochs: Passes over a pool of `pool_tokens`.
        pool_tokens: Unique tokens to draw from; fresh data throughout if None.
    """

    tokens_per_parameter: float | None = None
    tokens: int | None = None
    flops: float | None = None
    epochs: int | None = None
    pool_tokens: int | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        for name, value in given.items():
            require(0 < value < math.inf, name, value, "must be a finite number above 0")
        lengths = [name for name in given if name != "pool_tokens"]
        require(len(lengths) <= 1, "budget", ", ".join(lengths), "a run has one length, give one of these")
        require("epochs" not in given or "pool_tokens" in given, "epochs", self.epochs, "needs pool_tokens")


def stretches(
    passes: int, events: Sequence[tuple[int, float]], random_passes: RandomPasses | None
) -> list[tuple[float, tuple[int, ...]]]:
    """(share of the run, passes to draw from) of each stretch between growths."""
    shares = [1.0, *(fraction for _, fraction in events), 0.0]
    choices: list[tuple[int, ...]] = [(passes,), *((target,) for target, _ in events)]
    if random_passes:
        choices[-1] = random_passes.choices
    return [(start - end, drawn) for start, end, drawn in zip(shares, shares[1:], choices, strict=False)]


def budget_steps(
    budget: Budget,
    tokens_per_parameter: float,
    backbone: BackboneConfig,
    parts: Sequence[tuple[float, tuple[int, ...]]],
    batch_tokens: int,
) -> int:
    """Optimizer steps that the budget pays for."""

    def mean(cost: Callable[[BackboneConfig, int], int]) -> float:
        return sum(share * sum(cost(backbone, k) for k in drawn) / len(drawn) for share, drawn in parts)

    if budget.epochs is not None:
        assert budget.pool_tokens is not None
        return budget.epochs * epoch_steps(budget.pool_tokens, batch_tokens, backbone.context)
    if budget.tokens is not None:
        return round(budget.tokens / batch_tokens)
    if budget.flops is not None:
        return math.floor(budget.flops / (mean(flops_per_token) * batch_tokens))
    reference = (budget.tokens_per_parameter or tokens_per_parameter) * initial_parameters(backbone)
    tokens = reference * compute_parameters(backbone, backbone.passes) / mean(compute_parameters)
    return round(tokens / batch_tokens)
