"""Recurrence at matched compute, and strategies when data repeat (growth study, section 5, A.2.2 and D)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from looplit.errors import require
from looplit.laws.curves import fit_parabola, optimum
from looplit.laws.fit import Array, Fit
from looplit.laws.multiplier import compute_at
from looplit.laws.rows import average_replicates, check_rows
from looplit.results import unit_of

Curve = tuple[Array, Array]
"""(compute, loss), in order of compute."""


@dataclass(frozen=True)
class Cell:
    """One run of a depth × passes × weight-decay grid.

    Args:
        depth: Nominal depth.
        passes: K.
        weight_decay: The run's.
        compute: Training FLOPs.
        loss: Validation loss.
    """

    depth: int
    passes: int
    weight_decay: float
    compute: float
    loss: float


def average_cells(cells: Iterable[Cell]) -> list[Cell]:
    """One cell for each depth, passes and weight decay, with the mean compute and loss of its replicates.

    The best of several seeds would be compared with means, and be better by luck.
    """
    groups: dict[tuple[int, int, float], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.depth, cell.passes, cell.weight_decay), []).append(cell)
    return [
        Cell(*key, float(np.mean([cell.compute for cell in group])), float(np.mean([cell.loss for cell in group])))
        for key, group in groups.items()
    ]


@dataclass(frozen=True)
class Cut:
    """Loss against passes at one budget.

    Args:
        budget: Training FLOPs.
        losses: Interpolated loss by passes, of the ladders whose measurements bracket the budget.
        fit: log loss as a parabola in log K; None with fewer than three ladders.
        passes: The optimum K*: the vertex, or where the fit is censored the best measured K.
        censored: Whether the data do not bracket the vertex.
    """

    budget: float
    losses: Mapping[int, float]
    fit: Fit | None
    passes: float
    censored: bool


def loss_at(curve: Curve, compute: float) -> float | None:
    """Loss of a measured ladder at `compute`, linear in log loss against log compute; None outside the measurements."""
    spends, losses = curve
    if not spends[0] <= compute <= spends[-1]:
        return None
    return float(np.exp(np.interp(np.log(compute), np.log(spends), np.log(losses))))


def ladders_by_passes(cells: Sequence[Cell]) -> dict[int, Curve]:
    """(compute, loss) of each K over depth; all runs at one weight decay per depth, replicates averaged."""
    ladders = {}
    for passes in sorted({cell.passes for cell in cells}):
        inside = average_cells(cell for cell in cells if cell.passes == passes)
        ladders[passes] = average_replicates([cell.compute for cell in inside], [cell.loss for cell in inside])
    return ladders


def matched_cut(ladders: Mapping[int, Curve], budget: float, unit: str = "nats per token") -> Cut:
    """Best number of passes at one budget: each ladder interpolated, then log loss as a parabola in log K.

    Args:
        ladders: (compute, loss) by passes.
        budget: Training FLOPs.
        unit: Of the loss.

    Raises:
        InputError: No ladder brackets the budget.
    """
    losses = {passes: loss for passes, curve in sorted(ladders.items()) if (loss := loss_at(curve, budget)) is not None}
    require(bool(losses), "budget", budget, "no ladder has measurements on both sides of it")
    best = min(losses, key=lambda passes: losses[passes])
    if len(losses) < 3:
        return Cut(budget, losses, None, best, True)
    rows = check_rows({"x": list(losses)}, list(losses.values()), [f"K = {passes}" for passes in losses])
    fit = fit_parabola(rows, "log", "log", {"x": "passes K", "output": unit})
    found = optimum(fit)
    return Cut(budget, losses, fit, found.value if found else best, found is None)


def shared_budgets(ladders: Mapping[int, Curve], count: int = 5) -> list[float]:
    """`count` budgets, evenly spaced in log compute, over the range where at least three ladders can be read.

    Fewer where that range has gaps.
    """
    ends = sorted((curve[0][0], curve[0][-1]) for curve in ladders.values())
    edges = sorted({edge for pair in ends for edge in pair})
    inside = [edge for edge in edges if sum(low <= edge <= high for low, high in ends) >= 3]
    require(len(inside) > 1, "ladders", len(ladders), "at least three must share a range of compute")
    spaced = np.geomspace(inside[0], inside[-1], count).tolist()
    return [budget for budget in spaced if sum(low <= budget <= high for low, high in ends) >= 3]


def lower_convex_envelope(compute: ArrayLike, loss: ArrayLike) -> Curve:
    """The falling part of the lower convex hull of the points in (log compute, loss).

    The best loss at each budget from a grid of cells, mixing the two neighbouring ones. Replicates must have been
    averaged before: where two points have equal compute, the lower counts.

    >>> import numpy as np
    >>> lower_convex_envelope(np.array([1e18, 1e19, 1e20, 1e21]), [3.0, 2.9, 2.0, 2.5])[0].tolist()
    [1e+18, 1e+20]
    """
    values, heights = np.asarray(compute, float), np.asarray(loss, float)
    wrong = [f"({x:g}, {y:g})" for x, y in zip(values, heights, strict=True) if not (0 < x < np.inf and np.isfinite(y))]
    require(not wrong, "(compute, loss)", ", ".join(wrong), "must be finite, and compute above 0")
    spends, groups = np.unique(values, return_inverse=True)
    lowest = np.full(len(spends), np.inf)
    np.minimum.at(lowest, groups, heights)
    hull: list[int] = []
    x = np.log(spends)
    for i in range(len(x)):
        while len(hull) > 1 and _turns_up(x, lowest, hull[-2], hull[-1], i):
            hull.pop()
        hull.append(i)
    hull = hull[: int(np.argmin(lowest[hull])) + 1]
    return spends[hull], lowest[hull]


def _turns_up(x: Array, y: Array, first: int, middle: int, last: int) -> bool:
    """Whether the middle point lies on or above the chord."""
    return bool((y[middle] - y[first]) * (x[last] - x[first]) >= (y[last] - y[first]) * (x[middle] - x[first]))


def tuned_weight_decay(cells: Sequence[Cell], passes: int = 1) -> dict[int, float]:
    """The best measured weight decay of each depth at `passes`, replicates averaged."""
    best: dict[int, Cell] = {}
    for cell in average_cells(cells):
        if cell.passes == passes and (cell.depth not in best or cell.loss < best[cell.depth].loss):
            best[cell.depth] = cell
    return {depth: cell.weight_decay for depth, cell in sorted(best.items())}


def at_tuned_weight_decay(cells: Sequence[Cell]) -> list[Cell]:
    """The cells of each depth at the best weight decay of its one-pass model."""
    tuned = tuned_weight_decay(cells)
    return [cell for cell in cells if cell.weight_decay == tuned.get(cell.depth)]


def weight_decay_optima(cells: Sequence[Cell], unit: str = "nats per token") -> dict[tuple[int, int], Fit]:
    """log loss as a parabola in log weight decay, by (depth, passes), where at least three values were run."""
    fits = {}
    for key in sorted({(cell.depth, cell.passes) for cell in cells}):
        inside = [cell for cell in cells if (cell.depth, cell.passes) == key and cell.weight_decay > 0]
        if len({cell.weight_decay for cell in inside}) >= 3:
            labels = [f"d{cell.depth} K = {cell.passes} WD {cell.weight_decay:g}" for cell in inside]
            rows = check_rows({"x": [cell.weight_decay for cell in inside]}, [cell.loss for cell in inside], labels)
            fits[key] = fit_parabola(rows, "log", "log", {"x": unit_of("weight_decay"), "output": unit})
    return fits


STRATEGIES = {
    "size, fixed weight decay": "one pass, larger models",
    "size, tuned weight decay": "one pass, larger models, each at its best weight decay",
    "loops, fixed weight decay": "lower convex envelope over depth × passes",
    "loops, weight decay tuned at one pass": "the same, each depth at the best weight decay of its one-pass model",
}


def strategies(cells: Sequence[Cell], weight_decay: float = 0.8) -> dict[str, Curve]:
    """(compute, loss) that each way of spending compute on a fixed pool of data reaches; empty ones left out.

    The two size strategies are measured ladders over depth; the two loop strategies are lower convex envelopes in
    (log compute, loss) over all depth × passes cells.

    Args:
        cells: The grid; replicates are averaged.
        weight_decay: The fixed value.
    """
    cells = average_cells(cells)
    fixed = [cell for cell in cells if np.isclose(cell.weight_decay, weight_decay)]
    at_tuned = at_tuned_weight_decay(cells)
    grids = dict(zip(STRATEGIES, (_one_pass(fixed), _one_pass(at_tuned), fixed, at_tuned), strict=True))
    curves = {}
    for name, grid in grids.items():
        if grid:
            points = [cell.compute for cell in grid], [cell.loss for cell in grid]
            curves[name] = lower_convex_envelope(*points) if name.startswith("loops") else average_replicates(*points)
    return curves


def _one_pass(cells: Sequence[Cell]) -> list[Cell]:
    return [cell for cell in cells if cell.passes == 1]


def strategy_multiplier(slow: Curve, fast: Curve, loss: float) -> float | None:
    """Compute of `slow` divided by that of `fast` at equal loss; None where either's measurements do not bracket it."""
    ours, theirs = compute_at(*fast, loss), compute_at(*slow, loss)
    return theirs / ours if ours and theirs else None


def marginal_gains(cells: Sequence[Cell]) -> dict[int, dict[int, float]]:
    """L(K) - L(1) by depth and passes, at equal weight decay; cells of one weight decay per depth."""
    gains: dict[int, dict[int, float]] = {}
    for depth in sorted({cell.depth for cell in cells}):
        inside = [cell for cell in cells if cell.depth == depth]
        passes, losses = average_replicates([cell.passes for cell in inside], [cell.loss for cell in inside])
        if passes[0] == 1:
            gains[depth] = {int(k): float(loss - losses[0]) for k, loss in zip(passes, losses, strict=True)}
    return gains
