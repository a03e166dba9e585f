"""`laws vertex`: the optimum of each sweep, its mean and drift, and what a wrong value costs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from looplit.commands.arguments import quantity
from looplit.commands.laws.base import (
    Answer,
    attempted,
    chosen_runs,
    common_arguments,
    method,
    note_left_out,
    shown,
    table,
)
from looplit.errors import require
from looplit.laws.curves import best_measured, fit_parabola, is_curved, optimum
from looplit.laws.fit import Fit
from looplit.laws.replicates import budgets, replicates
from looplit.laws.results import Result, column, grouped, having, resolved, unit_of
from looplit.laws.stages import affine_growth, drift, growth_allocation, sensitivity, sweep_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `laws vertex`."""
    common_arguments(parser)
    parser.add_argument("--x", type=resolved, default="tokens_per_parameter",
                        help="swept column: tokens_per_parameter (default), growth_fraction, passes …")  # fmt: skip
    parser.add_argument("--group", nargs="+", metavar="COLUMN",
                        help="what tells sweeps of one family apart: budget (equal training FLOPs) or any column "
                        "(default: budget for tokens_per_parameter, depth and budget for growth_fraction, else "
                        "depth)")  # fmt: skip
    parser.add_argument("--center", type=quantity, help="the recipe's value of x; x then becomes a multiplier of it")


def answer(args: argparse.Namespace) -> Answer:
    """Vertices of every family's sweeps."""
    runs = having([_derived(run, args) for run in chosen_runs(args, args.loss)], args.x, argument="x")
    presets = {"tokens_per_parameter": ["budget"], "growth_fraction": ["depth", "budget"]}
    group = args.group or presets.get(args.x, ["depth"])
    space = "raw" if args.x == "growth_fraction" else "log"
    if space == "log":
        note_left_out([run.name for run in runs if run.values[args.x] == 0], f"{args.x} is 0, and read in logs")
        runs = [run for run in runs if run.values[args.x] != 0]
    families: dict[str, dict[str, _Sweep]] = {}
    for family, members in grouped(runs).items():
        sweeps = _sweeps(members, group)
        short = [name for name, inside in sweeps.items() if len(set(column(inside, args.x))) < 3]
        note_left_out([f"{family} at {name}" for name in short], f"fewer than three values of {args.x}")
        for name, inside in sweeps.items():
            if name not in short:
                replicates(inside, (args.x,))
        fitted = {name: _sweep(inside, args, space) for name, inside in sweeps.items() if name not in short}
        families |= {family: fitted} if fitted else {}
    require(bool(families), "runs", args.runs, f"no sweep has three values of {args.x}")
    payload = {
        "x": {"column": args.x, "unit": _x_unit(args), "space": space, "center": args.center},
        "loss": {"column": args.loss, "unit": unit_of(args.loss), "space": "log"},
        "grouped_by": group,
        "families": {family: _family(sweeps, group, args) for family, sweeps in families.items()},
    }
    fits = {f"{family}, {name}": sweep.fit for family, sweeps in families.items() for name, sweep in sweeps.items()}

    def draw() -> Figure:
        from looplit.plots.stages import sweeps_figure

        curves = {family: {name: sweep.fit for name, sweep in sweeps.items()} for family, sweeps in families.items()}
        return sweeps_figure(curves)

    return Answer(payload, _text(payload, fits), draw)


@dataclass(frozen=True)
class _Sweep:
    """Runs of one sweep and their parabola."""

    runs: Sequence[Result]
    fit: Fit

    def mean(self, key: str) -> float:
        """Mean of a column over the sweep."""
        return float(np.mean(column(self.runs, key)))


def _derived(run: Result, args: argparse.Namespace) -> Result:
    """The run with tokens per initial stored parameter, and with x as a multiplier of the centre."""
    values = dict(run.values)
    initial = values.get("initial_parameters", values.get("stored_parameters"))
    if initial and "tokens" in values:
        values.setdefault("tokens_per_parameter", values["tokens"] / initial)
    if args.center and args.x in values:
        values[args.x] /= args.center
    return Result(run.name, run.labels, values)


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


def _x_unit(args: argparse.Namespace) -> str:
    """Unit of the swept values, of which some are multiples of a recipe's value."""
    return f"multiple of {args.x} = {args.center:g}" if args.center else unit_of(args.x)


def _sweep(runs: Sequence[Result], args: argparse.Namespace, space: str) -> _Sweep:
    rows = sweep_rows(column(runs, args.x), column(runs, args.loss), [run.name for run in runs], space)
    return _Sweep(runs, fit_parabola(rows, space, "log", {"x": _x_unit(args), "output": unit_of(args.loss)}))


def _family(sweeps: Mapping[str, _Sweep], group: Sequence[str], args: argparse.Namespace) -> dict[str, Any]:
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
    answered["drift"] = attempted("drift", lambda: _drift(sweeps, optima, group, args), missing)
    answered["affine_growth"] = attempted("affine_growth", lambda: _affine(sweeps, optima, args), missing)
    answered["sensitivity"] = attempted("sensitivity", lambda: _sensitivity(sweeps, group, args), missing)
    return answered | {"not_identified": missing}


def _sized(sweeps: Mapping[str, _Sweep], scale: str) -> bool:
    return all(scale in run.values for sweep in sweeps.values() for run in sweep.runs)


def _drift(
    sweeps: Mapping[str, _Sweep], optima: Mapping[str, float], group: Sequence[str], args: argparse.Namespace
) -> dict[str, Any] | None:
    """How the optimum moves with compute or size; nothing where too few optima are known to ask."""
    scale = "training_flops" if "budget" in group else "stored_parameters"
    if args.x == "growth_fraction" or len(optima) < 2 or not _sized(sweeps, scale):
        return None
    sizes = [sweeps[name].mean(scale) for name in optima]
    return drift(sizes, list(optima.values()), list(optima), unit_of(scale), _x_unit(args)).to_dict(draws=False)


def _sensitivity(sweeps: Mapping[str, _Sweep], group: Sequence[str], args: argparse.Namespace) -> dict[str, Any] | None:
    scale = "stored_parameters"
    if not (args.center or args.x == "multiplier") or group != ["depth"] or not _sized(sweeps, scale):
        return None
    slices = {sweep.mean(scale): (column(sweep.runs, args.x), column(sweep.runs, args.loss))
              for sweep in sweeps.values()}  # fmt: skip
    row, _ = sensitivity(slices)
    units = {"regret": f"1e-3 {unit_of(args.loss)}", "size": unit_of(scale)}
    return {key: value for key, value in asdict(row).items() if key != "drift"} | {"units": units}


def _affine(
    sweeps: Mapping[str, _Sweep], optima: Mapping[str, float], args: argparse.Namespace
) -> dict[str, Any] | None:
    if args.x != "growth_fraction":
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
