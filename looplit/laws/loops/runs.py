"""What finished runs say of looping by themselves: g run by run, loss at equal compute, compute-optimal sizes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.interpolate import PchipInterpolator

from looplit.errors import InputError, require
from looplit.laws.curves import fit_parabola, optimum
from looplit.laws.fit import Array, Fit
from looplit.laws.loops.fit import loop_rows
from looplit.laws.loops.law import NREC, PUBLISHED, LoopLaw, training_compute
from looplit.laws.loops.optimum import NO_LOOPING, Setting, tokens_for
from looplit.laws.matched import Curve
from looplit.laws.results import Result, having
from looplit.laws.rows import Rows, average_replicates, check_rows

SAME_SIZE = 0.08
"""Share of N by which models of one width may differ: a linear boundary adds 2 % to 2-4-2 blocks, 6 % to 1-1-1."""


@dataclass(frozen=True)
class LoopRun:
    """One finished run.

    Args:
        name: How messages call it.
        setting: (T, B).
        size: N, non-embedding parameters.
        nrec: N_rec/N.
        tokens: D.
        compute: Training FLOPs, by the law's count or as measured.
        loss: Validation loss, nats per token.
    """

    name: str
    setting: Setting
    size: float
    nrec: float
    tokens: float
    compute: float
    loss: float


def loop_runs(
    results: Sequence[Result], loss: str = "final_val_loss", nrec: float | None = None, own_flops: bool = False
) -> list[LoopRun]:
    """The runs that have every number the law reads; a run without `trained_passes` trained all its passes.

    Args:
        results: From `read_results`.
        loss: Column of the loss.
        nrec: N_rec/N of every run; default each run's own `recurrent_parameters` over its `nonembedding_parameters`.
        own_flops: Take each run's `training_flops` (attention and head included) as its compute, in place of the law's
            6·N_comp·D.

    Raises:
        InputError: No run has the columns; names one that is lacking.
    """
    needed = ["nonembedding_parameters", "tokens", "passes", loss]
    needed += ["recurrent_parameters"] if nrec is None else []
    needed += ["training_flops"] if own_flops else []
    runs = []
    for result in having(results, *needed):
        values = result.values
        size, tokens, passes = values["nonembedding_parameters"], values["tokens"], values["passes"]
        share = values["recurrent_parameters"] / size if nrec is None else nrec
        try:
            setting = Setting(passes, values.get("trained_passes", passes))
            counted = float(training_compute(size, tokens, *setting, share))
        except InputError as error:
            raise InputError(f"{result.name}: {error}") from None
        compute = values["training_flops"] if own_flops else counted
        runs.append(LoopRun(result.name, setting, size, share, tokens, compute, values[loss]))
    return runs


def rows_of(runs: Sequence[LoopRun]) -> Rows:
    """The runs as `fit_loops` reads them."""
    size, nrec = np.array([run.size for run in runs]), np.array([run.nrec for run in runs])
    t, b = np.array([run.setting for run in runs], float).T
    tokens, losses = [run.tokens for run in runs], [run.loss for run in runs]
    return loop_rows(size * (1 - nrec), size * nrec, tokens, t, b, losses, [run.name for run in runs])


class Quartiles(NamedTuple):
    """Spread of an estimate over runs."""

    low: float
    median: float
    high: float
    runs: int

    def shifted(self, factor: float, offset: float) -> Quartiles:
        """The quartiles of factor·estimate + offset, the factor above zero."""
        low, median, high = (factor * value + offset for value in self[:3])
        return Quartiles(low, median, high, self.runs)


def runwise_g(runs: Iterable[LoopRun], law: LoopLaw = PUBLISHED) -> dict[Setting, Quartiles]:
    """g of each looped setting from its runs one by one: quartiles over sizes and budgets.

    The size-data part of the law tells the N_eff that gives a run's loss on its tokens; g = (N_eff - N_once)/N_rec.
    Runs whose loss no size explains (the data term alone exceeds it) are left out.

    Args:
        runs: From `loop_runs`.
        law: Its c, p and q play no part.
    """
    found: dict[Setting, list[float]] = {}
    for run in runs:
        g = (float(law.effective_size(run.loss, run.tokens)) / run.size - (1 - run.nrec)) / run.nrec
        if run.setting != NO_LOOPING and np.isfinite(g):
            found.setdefault(run.setting, []).append(g)
    return {setting: _quartiles(values) for setting, values in sorted(found.items())}


def _quartiles(values: Sequence[float]) -> Quartiles:
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return Quartiles(low, median, high, len(values))


def sizes_without_loops(runs: Iterable[LoopRun]) -> list[float]:
    """Sizes that were run without loops, rising: those at which looping can be compared with it."""
    return sorted({run.size for run in runs if run.setting == NO_LOOPING})


def ladders_at(runs: Sequence[LoopRun], size: float, within: float = SAME_SIZE) -> dict[Setting, Curve]:
    """(compute, loss) of each setting at one size; replicates averaged, a setting with one budget left out.

    Args:
        runs: From `loop_runs`.
        size: N.
        within: Share of it by which a setting's own size may differ; its nearest one counts.
    """
    nearest: dict[Setting, float] = {}
    for run in runs:
        off = abs(run.size - size)
        if off <= within * size and off <= abs(nearest.get(run.setting, np.inf) - size):
            nearest[run.setting] = run.size
    points: dict[Setting, list[tuple[float, float]]] = {}
    for run in runs:
        if run.size == nearest.get(run.setting):
            points.setdefault(run.setting, []).append((run.compute, run.loss))
    ladders = {setting: average_replicates(*zip(*pairs, strict=True)) for setting, pairs in sorted(points.items())}
    return {setting: curve for setting, curve in ladders.items() if len(curve[0]) > 1}


def law_ladders(
    size: float, compute: ArrayLike, settings: Iterable[Setting], nrec: float = NREC, law: LoopLaw = PUBLISHED
) -> dict[Setting, Curve]:
    """(compute, loss) of each setting at one size, by the law."""
    budgets = np.asarray(compute, float)
    return {
        setting: (budgets, law.loss(size, tokens_for(size, budgets, *setting, nrec), *setting, nrec))
        for setting in settings
    }


@dataclass(frozen=True)
class Comparison:
    """Settings at equal compute and one size.

    Args:
        differences: (compute, loss minus that of no looping) of each looped setting, where both can be read.
        budgets: Compute along the strip of best settings.
        best: The best setting at each of `budgets`.
    """

    differences: Mapping[Setting, Curve]
    budgets: Array
    best: tuple[Setting, ...]

    def stretches(self) -> list[tuple[Setting, float, float]]:
        """The strip as (setting, from, to): stretches of compute over which one setting stays the best."""
        edges = [0, *(i for i in range(1, len(self.best)) if self.best[i] != self.best[i - 1]), len(self.best)]
        return [
            (self.best[first], float(self.budgets[first]), float(self.budgets[end - 1]))
            for first, end in itertools.pairwise(edges)
        ]


def compare(ladders: Mapping[Setting, Curve], points: int = 60) -> Comparison:
    """Loss minus no looping at equal compute, and which setting is best at which budget.

    Ladders are read between their measurements only, by a monotone cubic through log loss against log compute. (A
    chord lies above a convex curve, which would favour the ladder that is read at its own points.)

    Args:
        ladders: (compute, loss) by setting at one size, no looping (1, 1) among them.
        points: Budgets along the strip, over the compute that no looping covers.

    Raises:
        InputError: There is no ladder without loops.
    """
    require(NO_LOOPING in ladders, "ladders", ", ".join(map(str, ladders)), "must hold no looping, (1, 1)")
    reference = ladders[NO_LOOPING]
    differences = {}
    for setting, (compute, loss) in ladders.items():
        gain = loss - read_ladder(reference, compute)
        shared = np.isfinite(gain)
        if setting != NO_LOOPING and shared.any():
            differences[setting] = (compute[shared], gain[shared])
    budgets = np.geomspace(reference[0][0], reference[0][-1], points)
    names = list(ladders)
    table = np.array([read_ladder(ladders[name], budgets) for name in names])
    best = np.argmin(np.where(np.isfinite(table), table, np.inf), axis=0)
    return Comparison(differences, budgets, tuple(names[i] for i in best))


def read_ladder(curve: Curve, compute: ArrayLike) -> Array:
    """Loss of a ladder at `compute`, between its measurements; NaN outside them."""
    spends, losses = curve
    budgets = np.asarray(compute, float)
    inside = (budgets >= spends[0]) & (budgets <= spends[-1])
    within = np.clip(budgets, spends[0], spends[-1])  # far outside, the cubic overflows
    read = np.exp(PchipInterpolator(np.log(spends), np.log(losses))(np.log(within)))
    return np.where(inside, read, np.nan)


@dataclass(frozen=True)
class SizeOptimum:
    """Compute-optimal size of a setting at one budget.

    Args:
        size: N*, the vertex of log loss as a parabola in log N; the best measured size where the data do not bracket
            it.
        loss: There, nats per token.
        bracketed: Whether they do.
        fit: The parabola; None with fewer than three sizes.
    """

    size: float
    loss: float
    bracketed: bool
    fit: Fit | None


def optimal_sizes(runs: Sequence[LoopRun], budget: float, unit: str = "nats per token") -> dict[Setting, SizeOptimum]:
    """The compute-optimal size of every setting at one budget, each size read at the budget by `read_ladder`.

    Args:
        runs: From `loop_runs`.
        budget: Training FLOPs, in the count of the runs.
        unit: Of the loss.

    Raises:
        InputError: No setting can be read at the budget.
    """
    table: dict[Setting, dict[float, float]] = {}
    for size in sorted({run.size for run in runs}):
        for setting, curve in ladders_at(runs, size, within=0).items():
            loss = float(read_ladder(curve, budget))
            if np.isfinite(loss):
                table.setdefault(setting, {})[size] = loss
    require(bool(table), "budget", budget, "no size has measurements on both sides of it")
    return {setting: _size_optimum(losses, unit) for setting, losses in sorted(table.items())}


def _size_optimum(losses: Mapping[float, float], unit: str) -> SizeOptimum:
    best = min(losses, key=lambda size: losses[size])
    if len(losses) < 3:
        return SizeOptimum(best, losses[best], False, None)
    rows = check_rows({"x": list(losses)}, list(losses.values()), [f"{size:.3g} parameters" for size in losses])
    fit = fit_parabola(rows, "log", "log", {"x": "non-embedding parameters", "output": unit})
    found = optimum(fit)
    if found is None:
        return SizeOptimum(best, losses[best], False, fit)
    return SizeOptimum(found.value, fit["minimum"], True, fit)
