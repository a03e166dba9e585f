"""`laws recurrence`: best number of passes at equal compute, strategies and weight decay when data repeat."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from looplit.commands.arguments import quantity
from looplit.commands.laws.base import Answer, attempted, chosen_runs, common_arguments, method, shown, table
from looplit.errors import require
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
from looplit.laws.replicates import replicates
from looplit.laws.results import Result, unit_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `laws recurrence`."""
    common_arguments(parser)
    parser.add_argument("--budgets", type=quantity, nargs="+", metavar="C",
                        help="FLOPs at which to cut (default: five where three ladders overlap)")  # fmt: skip
    parser.add_argument("--weight_decay", type=float, help="the fixed value (default: the most frequent, 0.8 in a tie)")
    parser.add_argument("--at", type=quantity, metavar="LOSS",
                        help="loss to compare strategies at (default: the best of one-pass models)")  # fmt: skip


def answer(args: argparse.Namespace) -> Answer:
    """Cuts, marginal gains, strategies and weight-decay optima from a grid of runs."""
    cells = _cells(args)
    decays = [cell.weight_decay for cell in cells]
    fixed = (
        max(sorted(set(decays)), key=lambda decay: (decays.count(decay), decay == 0.8))
        if args.weight_decay is None
        else args.weight_decay
    )
    at_fixed = [cell for cell in cells if cell.weight_decay == fixed]
    require(bool(at_fixed), "weight_decay", fixed, f"no run has it; there are {sorted(set(decays))}")
    unit = unit_of(args.loss)
    missing: dict[str, str] = {}
    cuts = _cuts(at_fixed, args.budgets, unit, missing)
    tuned = at_tuned_weight_decay(cells) if len(set(decays)) > 1 else []
    tuned_cuts = _cuts(tuned, args.budgets, unit, missing) if tuned else []
    curves = strategies(cells, fixed)
    gains = marginal_gains(at_fixed)
    decay_fits = weight_decay_optima(cells, unit)
    compared = _compared(curves, args.at)
    looped = any(k > 1 for row in gains.values() for k in row)
    require(bool(cuts or tuned_cuts or looped or compared or decay_fits), "runs", args.runs,
            "neither passes nor weight decay vary in a way that tells anything")  # fmt: skip
    payload = {
        "loss": {"column": args.loss, "unit": unit},
        "compute": {"column": "training_flops", "unit": unit_of("training_flops")},
        "held": {"weight_decay": fixed, "unit": unit_of("weight_decay"), "in": ["cuts", "marginal_gain"]},
        "held_tuned": {
            "weight_decay": {str(depth): decay for depth, decay in tuned_weight_decay(cells).items()},
            "unit": f"{unit_of('weight_decay')}, by depth",
            "in": ["cuts_at_tuned_weight_decay"],
        },
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

    def draw() -> Figure:
        from looplit.plots.recurrence import recurrence_figure

        return recurrence_figure(cuts, gains, curves, decay_fits, unit)

    return Answer(payload, _text(payload), draw)


GRID = ("depth", "passes", "weight_decay")
"""Columns that tell the cells of a grid apart."""

ONE_PASS = {"operator": ("loop", "untied"), "vanilla": ("tied_vanilla", "untied_vanilla")}
"""Family of one pass, its K left out → the series whose K = 1 it is."""


def _cells(args: argparse.Namespace) -> list[Cell]:
    """The grid of one series, replicates averaged.

    Raises:
        InputError: The runs are of several series, or a setting beside those of the grid varies.
    """
    runs = chosen_runs(args, *GRID, "training_flops", args.loss)
    _require_one_series(runs)
    replicates(runs, GRID)
    return average_cells(
        Cell(int(run.values["depth"]), int(run.values["passes"]), run.values["weight_decay"],
             run.values["training_flops"], run.values[args.loss])
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


def _text(payload: Mapping[str, Any]) -> str:
    held, unit = payload["held"], payload["loss"]["unit"]
    parts = [
        f"Loss ({unit}) at equal compute ({payload['compute']['unit']}); {payload['interpolation']}; "
        f"held: {held['unit']} = {held['weight_decay']:g}",
        "K* from log loss as a parabola in log K, or the best measured K where it is censored",
        *(_cut_table(payload["cuts"]) if payload["cuts"] else ()),
        *(f"{name}: not identified ({why})" for name, why in payload["not_identified"].items()),
    ]
    if payload["cuts_at_tuned_weight_decay"]:
        parts += ["", "The same; held: each depth at the best weight decay of its one-pass model",
                  *_cut_table(payload["cuts_at_tuned_weight_decay"])]  # fmt: skip
    parts += _gains(payload["marginal_gain"], unit)
    rows = [[f"{entry['slow']} / {entry['fast']}", f"{entry['loss']:.4f}", shown(entry["compute_slow"], ".3g"),
             shown(entry["compute_fast"], ".3g"), shown(entry["multiplier"], ".2f")]
            for entry in payload["strategy_multipliers"]]  # fmt: skip
    if rows:
        parts += ["", f"{payload['compute']['unit']} that strategies need for one loss "
                  f"({payload['strategy_interpolation']}; – where not measured)",
                  table(["strategies", "loss", "first", "second", "multiplier"], rows)]  # fmt: skip
    decays = payload["weight_decay_optima"]
    if decays:
        rows = [[_cell(entry), shown(entry["optimum"]), shown(entry["standard_error"], ".2g"),
                 shown(entry["best_measured"]), shown(entry["fit"]["fixed"]["x0"])] for entry in decays]  # fmt: skip
        parts += ["", f"Best weight decay (– where not bracketed), x0 the mean of its logarithm, {_cell(decays[0])} "
                  "for example:", method(Fit.from_dict(decays[0]["fit"])),
                  table(["cell", "optimum", "±", "best measured", "held x0"], rows),
                  *_warnings((_cell(entry), entry["fit"]) for entry in decays)]  # fmt: skip
    return "\n".join(parts)


def _cell(entry: Mapping[str, Any]) -> str:
    return f"d{entry['depth']} K = {entry['passes']}"


def _warnings(fits: Iterable[tuple[str, Mapping[str, Any] | None]]) -> list[str]:
    """What named fits warn of, a line for each warning that names all it holds for."""
    named: dict[str, list[str]] = {}
    for name, fit in fits:
        for warning in fit["warnings"] if fit else ():
            named.setdefault(warning, []).append(name)
    return [f"warning: {', '.join(names)}: {warning}" for warning, names in named.items()]


def _cut_table(cuts: Sequence[Mapping[str, Any]]) -> list[str]:
    passes = sorted({int(k) for cut in cuts for k in cut["losses"]})
    fits = [(f"{cut['budget']:.3g}", cut["fit"]) for cut in cuts]
    rows = [
        [name, f"{cut['passes']:.2f}{' (censored)' if cut['censored'] else ''}", shown(cut["standard_error"], ".2g"),
         *(shown(cut["losses"].get(str(k)), ".4f") for k in passes), shown(fit["fixed"]["x0"] if fit else None)]
        for (name, fit), cut in zip(fits, cuts, strict=True)
    ]  # fmt: skip
    lines = [table(["training FLOPs", "K*", "±", *(f"K = {k}" for k in passes), "held x0"], rows), *_warnings(fits)]
    for name, fit in fits:
        if fit:
            return [f"x0 the mean log K, {name} FLOPs for example:", method(Fit.from_dict(fit)), *lines]
    return lines


def _gains(gains: Mapping[int, Mapping[int, float]], unit: str) -> Sequence[str]:
    passes = sorted({k for row in gains.values() for k in row if k > 1})
    if not passes:
        return []
    rows = [[f"d{depth}", *(shown(row.get(k), "+.4f") for k in passes)] for depth, row in gains.items()]
    return ["", f"L(K) - L(1) at equal depth, {unit}", table(["depth", *(f"K = {k}" for k in passes)], rows)]
