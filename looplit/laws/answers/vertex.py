"""The optimum of each sweep, its mean and drift, and what a wrong value costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from looplit.errors import require
from looplit.laws.answers.answer import Answer
from looplit.laws.answers.base import Runs, attempted, chosen_runs, method, note_compared, note_left_out, runs_name
from looplit.laws.curves import best_measured, fit_parabola, is_curved, optimum
from looplit.laws.fit import Fit
from looplit.laws.replicates import SIZE, budgets, replicates, require_series
from looplit.laws.results import Result, column, grouped, having
from looplit.laws.stages import affine_growth, drift, growth_allocation, sensitivity, sweep_rows
from looplit.results import is_known, resolved, unit_of
from looplit.wording import shown, table

GROUPS = {"tokens_per_parameter": ("budget",), "growth_fraction": ("depth", "budget")}
"""Swept column → what tells sweeps of one family apart; by default the depth."""


@dataclass(frozen=True)
class VertexAnswer(Answer):
    """Optima of sweeps.

    Args:
        curves: Family → sweep → its parabola.
    """

    curves: Mapping[str, Mapping[str, Fit]]


def vertex_answer(
    runs: Runs,
    *,
    where: Sequence[str] = (),
    loss: str = "final_val_loss",
    x: str = "tokens_per_parameter",
    group: Sequence[str] | None = None,
    center: float | None = None,
) -> VertexAnswer:
    """Vertices of every family's sweeps.

    Args:
        runs: Finished runs, or where they lie.
        where: Conditions, as in `chosen_runs`.
        loss: Column of the loss.
        x: Swept column.
        group: What tells sweeps of one family apart: "budget" (equal training FLOPs) or any column; default `GROUPS`.
        center: The recipe's value of x; x then becomes a multiplier of it.

    Raises:
        InputError: No family has a sweep of three values.
    """
    sweep = _Question(resolved(loss), resolved(x), tuple(group or GROUPS.get(resolved(x), ("depth",))), center)
    found = having([sweep.derived(run) for run in chosen_runs(runs, where, sweep.loss)], sweep.x, argument="x")
    if sweep.space == "log":
        note_left_out([run.name for run in found if run.values[sweep.x] == 0], f"{sweep.x} is 0, and read in logs")
        found = [run for run in found if run.values[sweep.x] != 0]
    note_compared(grouped(found), ("family", *sweep.group))
    families = {family: _fitted(family, members, sweep) for family, members in grouped(found).items()}
    families = {family: sweeps for family, sweeps in families.items() if sweeps}
    require(bool(families), "runs", runs_name(runs), f"no sweep has three values of {sweep.x}")
    payload = {
        "x": {"column": sweep.x, "unit": sweep.unit, "space": sweep.space, "center": center},
        "loss": {"column": sweep.loss, "unit": unit_of(sweep.loss), "space": "log"},
        "grouped_by": list(sweep.group),
        "families": {family: _family(sweeps, sweep) for family, sweeps in families.items()},
    }
    curves = {family: {name: each.fit for name, each in sweeps.items()} for family, sweeps in families.items()}
    fits = {f"{family}, {name}": fit for family, sweeps in curves.items() for name, fit in sweeps.items()}
    return VertexAnswer(payload, _text(payload, fits), curves)


@dataclass(frozen=True)
class _Question:
    """What was swept, and how its sweeps are told apart."""

    loss: str
    x: str
    group: tuple[str, ...]
    center: float | None

    @property
    def space(self) -> str:
        return "raw" if self.x == "growth_fraction" else "log"

    @property
    def unit(self) -> str:
        """Unit of the swept values, of which some are multiples of a recipe's value."""
        return f"multiple of {self.x} = {self.center:g}" if self.center else unit_of(self.x)

    def derived(self, run: Result) -> Result:
        """The run with tokens per initial stored parameter, and with x as a multiplier of the centre."""
        values = dict(run.values)
        initial = values.get("initial_parameters", values.get("stored_parameters"))
        if initial and "tokens" in values:
            values.setdefault("tokens_per_parameter", values["tokens"] / initial)
        if self.center and self.x in values:
            values[self.x] /= self.center
        return replace(run, values=values)


@dataclass(frozen=True)
class _Sweep:
    """Runs of one sweep and their parabola."""

    runs: Sequence[Result]
    fit: Fit

    def mean(self, key: str) -> float:
        """Mean of a column over the sweep."""
        return float(np.mean(column(self.runs, key)))


def _fitted(family: str, runs: Sequence[Result], asked: _Question) -> dict[str, _Sweep]:
    sweeps = _sweeps(runs, asked.group)
    short = [name for name, inside in sweeps.items() if len(set(column(inside, asked.x))) < 3]
    note_left_out([f"{family} at {name}" for name in short], f"fewer than three values of {asked.x}")
    kept = {name: inside for name, inside in sweeps.items() if name not in short}
    _require_series(kept, asked.x, asked.group)
    return {name: _sweep(inside, asked) for name, inside in kept.items()}


def _require_series(sweeps: Mapping[str, Sequence[Result]], x: str, group: Sequence[str]) -> None:
    """Refuses sweeps of a family that differ in more than x, what tells the sweeps apart, and what follows from these.

    Raises:
        InputError: Names the setting.
    """
    growth = ("growth_fraction", "growth_step")
    varied = {x, *(growth if x in growth else ()), *(() if is_known(x) else SIZE)}
    for inside in sweeps.values():
        replicates(inside, (x,))
        require_series(inside, varied)
    apart = {"training_flops" if key == "budget" else key for key in group}
    require_series([run for inside in sweeps.values() for run in inside], varied | apart)


def _sweep(runs: Sequence[Result], asked: _Question) -> _Sweep:
    space = asked.space
    rows = sweep_rows(column(runs, asked.x), column(runs, asked.loss), [run.name for run in runs], space)
    return _Sweep(runs, fit_parabola(rows, space, "log", {"x": asked.unit, "output": unit_of(asked.loss)}))


def _sweeps(runs: Sequence[Result], group: Sequence[str]) -> dict[str, list[Result]]:
    sweeps = {"": list(runs)}
    for key in group:
        split = {}
        for name, members in sweeps.items():
            parts = budgets(members) if key == "budget" else grouped(members, key)
            for part, inside in parts.items():
                split[f"{name} {key} {part}".strip()] = inside
        sweeps = split
    return sweeps


def _family(sweeps: Mapping[str, _Sweep], asked: _Question) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    optima: dict[str, float] = {}
    for name, sweep in sweeps.items():
        found = optimum(sweep.fit)
        clear = found is not None and is_curved(sweep.fit)
        if found and clear:
            optima[name] = found.value
        entries[name] = {
            "optimum": None if found is None else found.value,
            "standard_error": None if found is None else found.standard_error,
            "bracketed": found is not None,
            "clear": clear,
            "best_measured": best_measured(sweep.fit),
            "fit": sweep.fit.to_dict(draws=False),
        }
    answered: dict[str, Any] = {"sweeps": entries, "mean": float(np.mean(list(optima.values()))) if optima else None}
    missing: dict[str, str] = {}
    answered["drift"] = attempted("drift", lambda: _drift(sweeps, optima, asked), missing)
    answered["affine_growth"] = attempted("affine_growth", lambda: _affine(sweeps, optima, asked), missing)
    answered["sensitivity"] = attempted("sensitivity", lambda: _sensitivity(sweeps, asked), missing)
    return answered | {"not_identified": missing}


def _sized(sweeps: Mapping[str, _Sweep], scale: str) -> bool:
    return all(scale in run.values for sweep in sweeps.values() for run in sweep.runs)


def _drift(sweeps: Mapping[str, _Sweep], optima: Mapping[str, float], asked: _Question) -> dict[str, Any] | None:
    """How the optimum moves with compute or size; nothing where too few optima are known to ask."""
    scale = "training_flops" if "budget" in asked.group else "stored_parameters"
    if asked.x == "growth_fraction" or len(optima) < 2 or not _sized(sweeps, scale):
        return None
    sizes = [sweeps[name].mean(scale) for name in optima]
    return drift(sizes, list(optima.values()), list(optima), unit_of(scale), asked.unit).to_dict(draws=False)


def _sensitivity(sweeps: Mapping[str, _Sweep], asked: _Question) -> dict[str, Any] | None:
    scale = "stored_parameters"
    if not (asked.center or asked.x == "multiplier") or asked.group != ("depth",) or not _sized(sweeps, scale):
        return None
    slices = {sweep.mean(scale): (column(sweep.runs, asked.x), column(sweep.runs, asked.loss))
              for sweep in sweeps.values()}  # fmt: skip
    row, _ = sensitivity(slices)
    units = {"regret": f"1e-3 {unit_of(asked.loss)}", "size": unit_of(scale)}
    return {key: value for key, value in asdict(row).items() if key != "drift"} | {"units": units}


def _affine(sweeps: Mapping[str, _Sweep], optima: Mapping[str, float], asked: _Question) -> dict[str, Any] | None:
    if asked.x != "growth_fraction":
        return None
    pairs = {
        name: growth_allocation(
            column(sweeps[name].runs, "growth_fraction"), column(sweeps[name].runs, "tokens_per_parameter"), best
        )
        for name, best in optima.items()
        if all("tokens_per_parameter" in run.values for run in sweeps[name].runs)
    }
    if len(pairs) < 2:
        return None
    fixed, grown = zip(*pairs.values(), strict=True)
    return affine_growth(fixed, grown, list(pairs)).to_dict(draws=False)


def _text(payload: Mapping[str, Any], fits: Mapping[str, Fit]) -> str:
    x, loss = payload["x"], payload["loss"]
    rows, notes, lines = [], [], []
    for family, entry in payload["families"].items():
        for name, sweep in entry["sweeps"].items():
            rows.append([f"{family}, {name}", str(len(sweep["fit"]["observed"])),
                         shown(sweep["optimum"]) + "?" * (sweep["bracketed"] and not sweep["clear"]),
                         shown(sweep["standard_error"], ".2g"), shown(sweep["best_measured"]),
                         shown(sweep["fit"]["fixed"]["x0"])])  # fmt: skip
            notes += [f"{family}, {name}: {warning}" for warning in sweep["fit"]["warnings"]]
        lines += _summary(family, entry, loss["unit"])
    space = "log " if x["space"] == "log" else ""
    first, fit = next(iter(fits.items()))
    return "\n".join([
        f"Optimum of {x['column']} ({x['unit']}; – where the data do not bracket one, ? where noise alone "
        f"could have made it: left out of mean and drift), log {loss['column']} against "
        f"{space}{x['column']}; each sweep by itself, x0 its mean {space}x, {first} for example:",
        method(fit),
        table(["sweep", "runs", "optimum", "±", "best measured", "held x0"], rows),
        *notes,
        "",
        *lines,
    ])  # fmt: skip


def _summary(family: str, entry: Mapping[str, Any], unit: str) -> list[str]:
    """The mean optimum, and what follows from all sweeps of a family, each law with its method."""
    lines = [f"{family}: mean optimum {shown(entry['mean'])}"]
    if entry["drift"]:
        fit = Fit.from_dict(entry["drift"])
        slope, derived = fit.parameter("b"), {value.name: value.value for value in fit.derived}
        lines.append(f"drift exponent b = {slope.value:+.3f} ± {shown(slope.standard_error, '.3f')} "
                     f"(p = {shown(derived.get('p'), '.3f')} of no drift)")  # fmt: skip
        lines += [*method(fit).splitlines(), *fit.warnings]
    if entry["affine_growth"]:
        fit = Fit.from_dict(entry["affine_growth"])
        lines += [f"TPP at the transition = {fit['b']:.3f}·TPP without growth {fit['a']:+.3f} (R² {fit['R2']:.5f})",
                  *method(fit).splitlines(), *fit.warnings]  # fmt: skip
    if entry["sensitivity"]:
        cost = entry["sensitivity"]
        lines.append(f"×½ and ×2 cost {shown(cost['regret'], '.1f')}, the slice spans {cost['loss_range']:.1f} "
                     f"(1e-3 {unit}, at {unit_of('stored_parameters')} = {cost['size']:.3g})")  # fmt: skip
    lines += [f"{name.replace('_', ' ')}: not identified ({why})" for name, why in entry["not_identified"].items()]
    return "\n  ".join(lines).splitlines()
