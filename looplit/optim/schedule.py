"""Learning-rate schedule as a pure function of the optimizer step (both studies' recipes)."""

from __future__ import annotations

from collections.abc import Iterable

from looplit.accounting.recurrence import REWARM_STEPS


def learning_rate_factor(
    t: int, steps: int, warmup_steps: int, warmdown_ratio: float, final_factor: float = 0.0
) -> float:
    """Factor of the learning rate at step t: linear warmup, flat, then linear to `final_factor` at the last step.

    t < WU: (t+1)/WU. Then 1 until t0 = max(WU, S - round(WDR·S)); from t0 linear, 1 at t0 and the final factor at
    t = S-1. WU is capped at S. A decay of a single step gives the final factor, and so does every step after the last.
    The growth study decays to 0; the truncation study from 1 to 0.1 over the whole run.

    Args:
        t: Optimizer step, from 0.
        steps: S, planned optimizer steps of the run.
        warmup_steps: WU.
        warmdown_ratio: WDR, share of the run that decays, in [0, 1].
        final_factor: Factor at the last step.

    >>> [learning_rate_factor(t, 10, 2, 0.5) for t in (0, 1, 2, 5, 7, 9)]
    [0.5, 1.0, 1.0, 1.0, 0.5, 0.0]
    >>> [round(learning_rate_factor(t, 10, 0, 1.0, final_factor=0.1), 3) for t in (0, 1, 5, 9)]
    [1.0, 0.9, 0.5, 0.1]
    """
    warmup_steps = min(warmup_steps, steps)
    if t < warmup_steps:
        return (t + 1) / warmup_steps
    decay_start = max(warmup_steps, steps - round(warmdown_ratio * steps))
    if t < decay_start:
        return 1.0
    span = steps - 1 - decay_start
    left = max(0.0, (steps - 1 - t) / span) if span > 0 else 0.0
    return final_factor + (1 - final_factor) * left


def rewarm_factor(t: int, growth_steps: Iterable[int], rewarm_steps: int = REWARM_STEPS) -> float:
    """Factor after growth: min(1, (t - g)/rewarm_steps) for every growth step g ≤ t, multiplied.

    >>> rewarm_factor(100, [100]), rewarm_factor(120, [100]), rewarm_factor(99, [100])
    (0.0, 0.5, 1.0)
    """
    factor = 1.0
    for g in growth_steps:
        if g <= t < g + rewarm_steps:
            factor *= (t - g) / rewarm_steps
    return factor
