"""Compute multipliers: how much more compute a reference needs for the same loss (growth study, sections 2 and 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from looplit.errors import require
from looplit.laws.fit import Array, Fit, Interval
from looplit.laws.power import invert
from looplit.laws.rows import average_replicates, check_rows
from looplit.laws.solve import draw_interval

INTERPOLATIONS = {"loss": "loss against log compute", "log loss": "log loss against log compute"}


@dataclass(frozen=True)
class Multiplier:
    """What a ladder saves at one point of the reference ladder.

    Args:
        compute: The reference's compute.
        score: The loss, or other score, that both reach.
        value: Reference compute divided by the ladder's; None where the ladder's measurements do not bracket the score,
            and by fitted laws where one of them does not fall with compute.
        extrapolated: Whether fitted laws were read outside the data of either; always False for interpolation.
        interval: Bootstrap interval where both laws have draws of one shared floor.
    """

    compute: float
    score: float
    value: float | None
    extrapolated: bool = False
    interval: Interval | None = None


def compute_at(
    compute: ArrayLike, score: ArrayLike, target: float, interpolation: str = "loss", falling: bool = True
) -> float | None:
    """Compute at which a measured ladder first reaches `target`, between the two points that bracket it.

    Only brackets over which the score improves count, and nothing is extrapolated.

    Args:
        compute: FLOPs or seconds; points at equal compute are averaged.
        score: Loss, or with `falling=False` a score that improves upwards.
        target: The score to reach.
        interpolation: "loss" (linear in the score against log compute, the default, which gives the published values)
            or "log loss" (linear in its logarithm; the paper's wording).
        falling: Whether lower is better.

    >>> compute_at([1e18, 1e20], [3.0, 2.0], 2.5)
    1e+19
    >>> compute_at([1e18, 1e20], [3.0, 2.0], 1.9) is None
    True
    """
    require(interpolation in INTERPOLATIONS, "interpolation", interpolation, f"must be one of {list(INTERPOLATIONS)}")
    require(np.isfinite(target), "target", target, "must be finite")
    spends, scores = _ladder(compute, score)
    positive = interpolation == "loss" or bool((scores > 0).all() and target > 0)
    require(positive, "score", float(scores.min()), "must be above 0 to be interpolated in its logarithm")
    if interpolation == "log loss":
        scores, target = np.log(scores), float(np.log(target))
    if not falling:
        scores, target = -scores, -target
    for i in range(len(spends) - 1):
        above, below = scores[i], scores[i + 1]
        if above > below and above >= target >= below:
            share = (above - target) / (above - below)
            return _between(spends[i], spends[i + 1], float(share))
    return None


def _ladder(compute: ArrayLike, score: ArrayLike) -> tuple[Array, Array]:
    """A measured ladder in order of compute, points of equal compute averaged."""
    rows = check_rows({"compute": compute}, score, positive=("compute",), what="score", distinct=False)
    return average_replicates(rows.columns["compute"], rows.observed)


def _between(low: float, high: float, share: float) -> float:
    """Geometric interpolation that returns the ends exactly."""
    return float(low if share == 0 else high if share == 1 else low ** (1 - share) * high**share)


def multipliers(
    reference: tuple[ArrayLike, ArrayLike],
    ladder: tuple[ArrayLike, ArrayLike],
    interpolation: str = "loss",
    falling: bool = True,
) -> list[Multiplier]:
    """The multiplier of `ladder` over `reference` at every measured point of the reference.

    Args:
        reference: (compute, score) of the family compared with.
        ladder: (compute, score) of the family in question.
        interpolation: As in `compute_at`.
        falling: Whether lower scores are better.

    Raises:
        InputError: A ladder's lengths differ, compute is not above 0, or a number is not finite.
    """
    points = []
    for compute, score in zip(*_ladder(*reference), strict=True):
        needed = compute_at(*ladder, float(score), interpolation, falling)
        points.append(Multiplier(float(compute), float(score), float(compute) / needed if needed else None))
    return points


def law_multipliers(reference: Fit, fit: Fit, compute: Sequence[float]) -> list[Multiplier]:
    """Multipliers by inverting two fitted power laws with a shared floor: defined at any compute.

    Raises:
        InputError: Compute is not above 0, or the floors differ; the multiplier then tells where two floors part, not
            what compute saves.
    """
    require(reference["E"] == fit["E"], "E", fit["E"], f"must be the reference's floor {reference['E']!r}")
    wrong = [spend for spend in compute if not 0 < spend < np.inf]
    require(not wrong, "compute", wrong, "must be finite and above 0")
    points: list[Multiplier] = []
    falling = reference["gamma"] > 0 and fit["gamma"] > 0
    for spend in compute:
        loss = float(reference.predict(compute=spend))
        needed = float(invert(fit, loss)) if falling else 0.0
        if not 0 < needed < np.inf:
            points.append(Multiplier(spend, loss, None, extrapolated=True))
            continue
        inside = all(
            min(law.columns["compute"]) <= at <= max(law.columns["compute"])
            for law, at in ((reference, spend), (fit, needed))
        )
        points.append(Multiplier(spend, loss, spend / needed, not inside, _law_interval(reference, fit, spend)))
    return points


def _law_interval(reference: Fit, fit: Fit, compute: float) -> Interval | None:
    """Interval of compute/Ĉ(L_reference(compute)), draw by draw; the floor of a draw cancels."""
    if not (reference.draws and fit.draws):
        return None
    ours, theirs = ({name: np.asarray(draw) for name, draw in law.draws.items()} for law in (fit, reference))
    log_spend = np.log(compute / reference["C0"])
    log_reducible = theirs["log_A"] - theirs["gamma"] * log_spend
    log_needed = (ours["log_A"] - log_reducible) / ours["gamma"]
    return draw_interval(np.exp(log_spend - log_needed + np.log(reference["C0"] / fit["C0"])), fit)
