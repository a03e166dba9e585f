"""From a budget back to a run: the depth that a compute, token or parameter budget pays for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from looplit.accounting.flops import stored_parameters
from looplit.errors import InputError, require
from looplit.recipes.growth_study import recipe
from looplit.recipes.length import Budget
from looplit.recipes.run import Run

DEPTHS = range(3, 129)


def run_for_compute(name: str, flops: float, **options: Any) -> Run:
    """The compute-optimal run of a training budget: the depth whose own recipe costs nearest to it, then the steps.

    The steps spend the budget to the last whole step and never exceed it; tokens per parameter then differ a little
    from the family's.

    Args:
        name: Family or variant.
        flops: Training FLOPs.
        **options: Of `recipe`, without a budget.

    >>> run = run_for_compute("vanilla", 1e20)
    >>> run.depth, run.steps
    (20, 17469)
    """
    depth = _nearest(lambda depth: recipe(name, depth, **options).training_flops, flops, "flops")
    return recipe(name, depth, budget=Budget(flops=flops), **options)


def run_for_tokens(name: str, tokens: int, **options: Any) -> Run:
    """The run of a token budget: the depth whose own recipe trains nearest to it, then exactly those tokens.

    >>> run_for_tokens("vanilla", 1_000_000_000).depth
    8
    """
    depth = _nearest(lambda depth: recipe(name, depth, **options).tokens, tokens, "tokens")
    return recipe(name, depth, budget=Budget(tokens=tokens), **options)


def run_for_parameters(name: str, parameters: int, **options: Any) -> Run:
    """The run of the deepest model that stores at most `parameters`, cores that wait for growth included.

    >>> run_for_parameters("untied_grow", 1_000_000_000).depth
    12
    """
    fitting = None
    for depth in DEPTHS:
        run = recipe(name, depth, **options)
        if stored_parameters(run.backbone) > parameters:
            break
        fitting = run
    if fitting is None:
        raise InputError(f"parameters = {parameters}: even d{DEPTHS[0]} of {name} stores more")
    return fitting


def _nearest(size: Callable[[int], float], budget: float, argument: str) -> int:
    """The depth whose size is nearest to the budget in log; sizes rise with depth."""
    require(budget > 0, argument, budget, "must be above 0")
    sizes: dict[int, float] = {}
    for depth in DEPTHS:
        sizes[depth] = size(depth)
        if sizes[depth] >= budget:
            break
    return min(sizes, key=lambda depth: abs(math.log(sizes[depth] / budget)))
