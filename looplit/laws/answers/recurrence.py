"""Best number of passes at equal compute, strategies and weight decay when data repeat."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from looplit.errors import require
from looplit.laws.answers.answer import Answer
from looplit.laws.answers.base import Runs, attempted, chosen_runs, note_differing, runs_name
from looplit.laws.answers.recurrence_text import recurrence_text
from looplit.laws.curves import best_measured, optimum
from looplit.laws.fit import Fit
from looplit.laws.matched import (
    STRATEGIES,
    Cell,
    Curve,
    Cut,
    at_tuned_weight_decay,
    average_cells,
    ladders_by_passes,
    marginal_gains,
    matched_cut,
    shared_budgets,
    strategies,
    strategy_multiplier,
    tuned_weight_decay,
    weight_decay_optima,
)
from looplit.laws.multiplier import INTERPOLATIONS, compute_at
from looplit.laws.replicates import require_recurrences
from looplit.laws.results import Result
from looplit.results import resolved, unit_of


@dataclass(frozen=True)
class RecurrenceAnswer(Answer):
    """What a grid of passes, sizes and weight decays tells.

    Args:
        cuts: At equal compute.
        gains: Depth → passes → loss less that of one pass.
        curves: Of the strategies.
        decay_fits: (depth, passes) → loss against weight decay.
        unit: Of the loss.
    """

    cuts: Sequence[Cut]
    gains: Mapping[int, Mapping[int, float]]
    curves: Mapping[str, Curve]
    decay_fits: Mapping[tuple[int, int], Fit]
    unit: str


def recurrence_answer(
    runs: Runs,
    *,
    where: Sequence[str] = (),
    loss: str = "final_val_loss",
    budgets: Sequence[float] | None = None,
    weight_decay: float | None = None,
    at: float | None = None,
) -> RecurrenceAnswer:
    """Cuts, marginal gains, strategies and weight-decay optima from a grid of runs.

    Args:
        runs: Finished runs, or where they lie.
        where: Conditions, as in `chosen_runs`.
        loss: Column of the loss.
        budgets: Training FLOPs at which to cut, by default five where three ladders overlap.
        weight_decay: The fixed value, by default the most frequent, 0.8 in a tie.
        at: Loss to compare strategies at, by default the best of one-pass models.

    Raises:
        InputError: The runs are not a grid of one series, or tell nothing.
    """
    loss = resolved(loss)
    cells = _cells(chosen_runs(runs, where, loss, *GRID, "training_flops", loss), loss)
    decays = [cell.weight_decay for cell in cells]
    fixed = _most_frequent(decays) if weight_decay is None else weight_decay
    at_fixed = [cell for cell in cells if cell.weight_decay == fixed]
    require(bool(at_fixed), "weight_decay", fixed, f"no run has it; there are {sorted(set(decays))}")
    unit = unit_of(loss)
    missing: dict[str, str] = {}
    cuts = _cuts(at_fixed, budgets, unit, missing)
    tuned = at_tuned_weight_decay(cells) if len(set(decays)) > 1 else []
    tuned_cuts = _cuts(tuned, budgets, unit, missing) if tuned else []
    curves, gains = strategies(cells, fixed), marginal_gains(at_fixed)
    decay_fits = weight_decay_optima(cells, unit)
    compared = _compared(curves, at)
    looped = any(k > 1 for row in gains.values() for k in row)
    require(bool(cuts or tuned_cuts or looped or compared or decay_fits), "runs", runs_name(runs),
            "neither passes nor weight decay vary in a way that tells anything")  # fmt: skip
    payload = {
        "loss": {"column": loss, "unit": unit},
        "compute": {"column": "training_flops", "unit": unit_of("training_flops")},
        **_held(fixed, cells),
        "interpolation": "log loss against log compute, within the measurements",
        "cuts": [_cut(cut) for cut in cuts],
        "cuts_at_tuned_weight_decay": [_cut(cut) for cut in tuned_cuts],
        "not_identified": missing,
        "marginal_gain": gains,
        "strategy_interpolation": INTERPOLATIONS["loss"],
        "strategies": {
            name: {"what": STRATEGIES[name], "compute": curve[0].tolist(), "loss": curve[1].tolist()}
            for name, curve in curves.items()
        },
        "strategy_multipliers": compared,
        "weight_decay_optima": [_decay(depth, passes, fit) for (depth, passes), fit in decay_fits.items()],
    }
    return RecurrenceAnswer(payload, recurrence_text(payload), cuts, gains, curves, decay_fits, unit)


def _most_frequent(decays: Sequence[float]) -> float:
    return max(sorted(set(decays)), key=lambda decay: (decays.count(decay), decay == 0.8))


def _held(fixed: float, cells: Sequence[Cell]) -> dict[str, Any]:
    return {
        "held": {"weight_decay": fixed, "unit": unit_of("weight_decay"), "in": ["cuts", "marginal_gain"]},
        "held_tuned": {
            "weight_decay": {str(depth): decay for depth, decay in tuned_weight_decay(cells).items()},
            "unit": f"{unit_of('weight_decay')}, by depth",
            "in": ["cuts_at_tuned_weight_decay"],
        },
    }


GRID = ("depth", "passes", "weight_decay")
"""Columns that tell the cells of a grid apart."""

ONE_PASS = {"operator": ("loop", "untied"), "vanilla": ("tied_vanilla", "untied_vanilla")}
"""Family of one pass, its K left out → the series whose K = 1 it is."""


def _cells(runs: Sequence[Result], loss: str) -> list[Cell]:
    """The grid of one series, replicates averaged.

    Raises:
        InputError: The runs are of several series, or a setting beside those of the grid varies.
    """
    _require_one_series(runs)
    note_differing(require_recurrences(runs, GRID), ("passes",))
    return average_cells(
        Cell(int(run.values["depth"]), int(run.values["passes"]), run.values["weight_decay"],
             run.values["training_flops"], run.values[loss])
        for run in runs
    )  # fmt: skip


def _require_one_series(runs: Sequence[Result]) -> None:
    """Families that differ only in K, as operator_1, loop_2 and loop_3, are one series; others are not to be mixed."""
    names = {run.family: run.family.removesuffix(f"_{run.values['passes']:g}") for run in runs}
    series = set(names.values())
    for once, looped in ONE_PASS.items():
        if once in series and len(series & set(looped)) == 1:
            series.discard(once)
    rule = "are not one series that differs only in K; choose with --where family="
    require(len(series) == 1, "families", ", ".join(names), f"{rule}{next(iter(names))}, for example")


def _cuts(cells: Sequence[Cell], budgets: Sequence[float] | None, unit: str, missing: dict[str, str]) -> list[Cut]:
    """Cuts at the budgets asked for; at shared ones where none are, if there are any."""
    ladders = ladders_by_passes(cells)
    chosen = budgets or attempted("cuts", lambda: shared_budgets(ladders), missing) or []
    return [matched_cut(ladders, budget, unit) for budget in chosen]


def _cut(cut: Cut) -> dict[str, Any]:
    found = optimum(cut.fit) if cut.fit else None
    return {
        "budget": cut.budget,
        "passes": cut.passes,
        "standard_error": found.standard_error if found else None,
        "censored": cut.censored,
        "losses": {str(passes): loss for passes, loss in cut.losses.items()},
        "fit": cut.fit.to_dict(draws=False) if cut.fit else None,
    }


def _compared(curves: Mapping[str, Curve], at: float | None) -> list[dict[str, Any]]:
    """Multipliers between all pairs of strategies at one loss, with the compute each needs."""
    slow = [curve for name, curve in curves.items() if name.startswith("size")]
    loss = at if at is not None else min((float(curve[1].min()) for curve in slow), default=None)
    if loss is None:
        return []
    return [
        {
            "loss": loss,
            "slow": first,
            "fast": second,
            "compute_slow": compute_at(*curves[first], loss),
            "compute_fast": compute_at(*curves[second], loss),
            "multiplier": strategy_multiplier(curves[first], curves[second], loss),
        }
        for first, second in itertools.combinations(curves, 2)
    ]


def _decay(depth: int, passes: int, fit: Fit) -> dict[str, Any]:
    found = optimum(fit)
    return {
        "depth": depth,
        "passes": passes,
        "optimum": found.value if found else None,
        "standard_error": found.standard_error if found else None,
        "bracketed": found is not None,
        "best_measured": best_measured(fit),
        "fit": fit.to_dict(draws=False),
    }
