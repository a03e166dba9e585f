"""Compute-optimal and data-constrained recipes: one depth gives the whole run (growth study, A.4 and section 5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from looplit.accounting.flops import compute_parameters, flops_per_token, initial_parameters
from looplit.accounting.recurrence import Growth, RandomPasses, Recurrence, growth_step
from looplit.errors import require
from looplit.model.config import CONTEXT, BackboneConfig
from looplit.recipes.families import FAMILIES, Family, Hyperparameters
from looplit.recipes.run import BATCH_TOKENS, Run, batch_windows, epoch_steps
from looplit.recipes.tuning import Tuning, matrix_learning_rate, tuned_backbone
from looplit.recipes.variants import family_named
from looplit.wording import counted

__all__ = ["Budget", "Mode", "data_constrained", "growth_fraction", "matrix_learning_rate", "recipe"]

Mode = Literal["published", "simple"]

# ρ, the share of training tokens processed after growth, as each ladder was run.
PUBLISHED_GROWTH_FRACTIONS: dict[str, dict[int, float]] = {
    "loop_grow": {6: 0.25, 8: 0.18, 10: 0.14, 12: 0.15, 14: 0.14, 16: 0.12, 18: 0.13},
    "untied_grow": {6: 0.40, 8: 0.29, 10: 0.25, 12: 0.27, 14: 0.24, 16: 0.23, 18: 0.25, 26: 0.23},
    "deep_vanilla_grow": {8: 0.5},
}
# The study's recommendation: one ρ per family, and the tokens per parameter of the family that it grows from.
SIMPLE_GROWTH_FRACTIONS = {"loop_grow": 0.2, "untied_grow": 0.3, "deep_vanilla_grow": 0.5}
GROWN_FROM = {"loop_grow": "loop_2", "untied_grow": "untied_2", "deep_vanilla_grow": "deep_vanilla"}

FIXED_WEIGHT_DECAY = 0.8  # of the data-constrained study, at every depth
SELECTED_WEIGHT_DECAY = {6: 0.4, 8: 0.8, 10: 0.8, 12: 1.2, 14: 1.2, 16: 1.6, 18: 1.6}  # selected at K = 1


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


def growth_fraction(family: Family, depth: int, mode: Mode = "published") -> float | None:
    """ρ, the share of training tokens after growth; None for a family that does not grow.

    Args:
        family: One of the eight.
        depth: Nominal depth.
        mode: "published" is the ladder's own value, at other depths that of the nearest published depth (of two
            equally near the deeper, which is nearer in log depth); "simple" is the study's recommendation for new
            ladders (A.4.3), one value per family.

    >>> growth_fraction(FAMILIES["untied_grow"], 26), growth_fraction(FAMILIES["untied_grow"], 26, "simple")
    (0.23, 0.3)
    """
    require(mode in get_args(Mode), "mode", mode, "must be published or simple")
    if family.grow_to is None:
        return None
    if mode == "simple":
        return SIMPLE_GROWTH_FRACTIONS[family.name]
    published = PUBLISHED_GROWTH_FRACTIONS[family.name]
    return published[min(published, key=lambda known: (abs(known - depth), -known))]


def recipe(
    name: str,
    depth: int,
    *,
    mode: Mode = "published",
    budget: Budget | None = None,
    tuning: Tuning | None = None,
    growth: Sequence[tuple[int, float]] | None = None,
    random_passes: RandomPasses | None = None,
    batch_tokens: int = BATCH_TOKENS,
    **shape: Any,
) -> Run:
    """The run that the study prescribes for a family at a depth.

    T = TPP·N·N_c,K0 / Σ share·N_c,K over the stretches between growths, N the initial stored parameters; with a fixed
    K this is TPP·N. Steps are T over the batch, rounded.

    Args:
        name: Family or variant, as `family_named` takes it.
        depth: Nominal depth, at least 3.
        mode: "published" trains as the printed ladders did; "simple" as the study recommends (A.4.3): the tokens per
            parameter of the family without growth, and one ρ per family.
        budget: How long to train, if not by the family's tokens per parameter.
        tuning: Departures from the family's hyperparameters.
        growth: (passes, ρ) pairs in order, ρ the share of training after that growth; default the family's own.
        random_passes: Passes to draw from after the last growth.
        batch_tokens: Tokens per optimizer step, a multiple of the context.
        **shape: Fields of `BackboneConfig` to set otherwise: width, prelude, boundary, vocabulary, context …
            (not those that `Hyperparameters` has: they go through `tuning`).

    >>> run = recipe("untied_grow", 26)
    >>> run.steps, run.recurrence.growths[0].step
    (68699, 52898)
    """
    for field in fields(Hyperparameters):
        require(field.name not in shape, field.name, shape.get(field.name), "goes through tuning")
    budget, tuning = budget or Budget(), tuning or Tuning()
    family = family_named(name)
    batch_windows(batch_tokens, shape.get("context") or CONTEXT)
    events = _growth_events(family, depth, mode) if growth is None else list(growth)
    for _, fraction in events:
        require(0 < fraction < 1, "fraction", fraction, "the share of the run after growth lies between 0 and 1")
    if events and not family.tied:
        shape = {"stored_cores": max(passes for passes, _ in events), **shape}
    backbone, tuned = tuned_backbone(family, depth, tuning, shape)
    stretches = _stretches(backbone.passes, events, random_passes)
    reference = FAMILIES[GROWN_FROM[name]] if mode == "simple" and name in GROWN_FROM else family

    def of_length(steps: int) -> Run:
        for length in ("flops", "tokens", "tokens_per_parameter"):
            given = getattr(budget, length)
            rule = f"pays for no optimizer step of {counted(batch_tokens, 'token')}"
            require(given is None or steps >= 1, length, given, rule)
        growths = tuple(Growth(passes, growth_step(fraction, steps), fraction) for passes, fraction in events)
        recurrence = Recurrence(backbone.passes, growths, random_passes)
        return Run(
            family=name, depth=depth, backbone=backbone, hyperparameters=tuned, recurrence=recurrence, steps=steps,
            batch_tokens=batch_tokens, optimizer=tuning.optimizer, pool_tokens=budget.pool_tokens,
        )  # fmt: skip

    run = of_length(_steps(budget, reference.tokens_per_parameter, backbone, stretches, batch_tokens))
    while budget.flops is not None and run.expected_training_flops > budget.flops:  # growth steps are rounded down
        run = of_length(run.steps - 1)
    return run


def data_constrained(
    name: str,
    depth: int,
    *,
    budget: Budget | None = None,
    weight_decay: Literal["fixed", "selected"] | float = "fixed",
    batch_tokens: int = BATCH_TOKENS,
    **shape: Any,
) -> Run:
    """A run of the data-constrained study (section 5, Appendix D): repeated data, a constant recipe.

    Every looped run takes Operator-1's hyperparameters, the plain controls Vanilla's, both with GLR 0.04 at every
    depth and the weight decay of one of three modes.

    Args:
        name: operator_1, loop_K, untied_K, vanilla, tied_vanilla_K or untied_vanilla_K.
        depth: Nominal depth.
        budget: Default 100M unique tokens, ten times. The study's others are 250M, four times, and 1B fresh tokens.
        weight_decay: "fixed" is 0.8; "selected" is the best at K = 1 of that depth (of the nearest depth, where it
            was not swept); a number is itself (the study's grid is 0.05, 0.2, 0.4, 0.8, 1.2, 1.6).
        batch_tokens: Tokens per optimizer step.
        **shape: As in `recipe`.

    >>> run = data_constrained("loop_3", 8)
    >>> run.steps, run.hyperparameters.learning_rate, run.hyperparameters.weight_decay
    (1900, 0.04, 0.8)
    """
    if weight_decay == "fixed":
        decay = FIXED_WEIGHT_DECAY
    elif weight_decay == "selected":
        decay = SELECTED_WEIGHT_DECAY[min(SELECTED_WEIGHT_DECAY, key=lambda known: (abs(known - depth), -known))]
    else:
        require(isinstance(weight_decay, int | float) and weight_decay >= 0, "weight_decay", weight_decay,
                "must be fixed, selected, or a number of at least 0")  # fmt: skip
        decay = float(weight_decay)
    budget = budget or Budget(pool_tokens=100_000_000, epochs=10)
    source = "vanilla" if family_named(name).boundary == "identity" else "operator_1"
    tuning = Tuning(source, exponents={"learning_rate": 0.0}, overrides={"weight_decay": decay})
    return recipe(name, depth, budget=budget, tuning=tuning, growth=(), batch_tokens=batch_tokens, **shape)


def _growth_events(family: Family, depth: int, mode: Mode) -> list[tuple[int, float]]:
    fraction = growth_fraction(family, depth, mode)
    return [] if fraction is None or family.grow_to is None else [(family.grow_to, fraction)]


def _stretches(
    passes: int, events: Sequence[tuple[int, float]], random_passes: RandomPasses | None
) -> list[tuple[float, tuple[int, ...]]]:
    """(share of the run, passes to draw from) of each stretch between growths."""
    shares = [1.0, *(fraction for _, fraction in events), 0.0]
    choices: list[tuple[int, ...]] = [(passes,), *((target,) for target, _ in events)]
    if random_passes:
        choices[-1] = random_passes.choices
    return [(start - end, drawn) for start, end, drawn in zip(shares, shares[1:], choices, strict=False)]


def _steps(
    budget: Budget,
    tokens_per_parameter: float,
    backbone: BackboneConfig,
    stretches: Sequence[tuple[float, tuple[int, ...]]],
    batch_tokens: int,
) -> int:
    """Optimizer steps that the budget pays for."""

    def mean(cost: Callable[[BackboneConfig, int], int]) -> float:
        return sum(share * sum(cost(backbone, k) for k in drawn) / len(drawn) for share, drawn in stretches)

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
