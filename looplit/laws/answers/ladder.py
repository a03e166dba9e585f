"""`laws ladder`: exponents above a shared floor, compute multipliers, held-out runs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from looplit.commands.arguments import quantity
from looplit.commands.laws.base import (
    Answer,
    bootstrap_arguments,
    chosen_runs,
    common_arguments,
    described,
    note_left_out,
    require_score,
    rungs,
    shown,
    shown_interval,
    table,
)
from looplit.errors import require
from looplit.laws.multiplier import INTERPOLATIONS, Multiplier, law_multipliers, multipliers
from looplit.laws.power import (
    C0_VANILLA_D8,
    LadderFits,
    against_forecast,
    exponent_gain,
    fit_ladders,
    fit_power,
    power_rows,
)
from looplit.laws.results import (
    UNITS,
    Result,
    checked,
    column,
    grouped,
    is_rising,
    resolved,
    split_held_out,
    unit_of,
)
from looplit.laws.rows import Rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

C0_HOUR = 3600.0
"""C0 where ladders are read against seconds: one hour."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `laws ladder`."""
    common_arguments(parser)
    parser.add_argument("--reference", default="vanilla", help="family of the floor and of multiplier 1")
    parser.add_argument("--against", choices=["training_flops", "train_seconds"], default="training_flops",
                        help="what compute is; with seconds the floor still comes from the FLOPs fit")  # fmt: skip
    parser.add_argument("--c0", type=quantity, help="C0 (default: 1.0265e18 FLOPs, or one hour)")
    parser.add_argument(
        "--score", type=resolved, help="match multipliers at this column, core_metric for example, not at the loss"
    )
    parser.add_argument("--interpolation", choices=list(INTERPOLATIONS), default="loss",
                        help="of multipliers: the score, or its logarithm, against log compute")  # fmt: skip
    parser.add_argument("--at", type=quantity, nargs="+", default=[], metavar="C",
                        help="also multipliers by the fitted laws at these values of compute")  # fmt: skip
    parser.add_argument("--held_out", nargs="+", default=[], metavar="FAMILY:DEPTH",
                        help="runs to leave out of every fit and to show against the forecast")  # fmt: skip
    bootstrap_arguments(parser)


def answer(args: argparse.Namespace) -> Answer:
    """Fits and multipliers of every family among the runs."""
    every = chosen_runs(args, args.against, args.loss)
    runs, kept_out = split_held_out(every, args.held_out)
    families = {name: rungs(members) for name, members in grouped(runs).items()}
    short = [name for name, members in families.items() if len(set(column(members, args.against))) < 2]
    note_left_out(short, "fewer than two rungs")
    families = {name: members for name, members in families.items() if name not in short}
    require(bool(families), "runs", str(args.runs), "no family has two rungs of different compute")
    require(args.reference in families, "reference", args.reference, f"must be one of {', '.join(families)}")
    fits = _fits(args, families)
    score = args.score or args.loss
    require_score("score", score)
    saved = measured_multipliers(families, args.reference, args.against, score, args.interpolation)
    by_law = {name: law_multipliers(fits.families[args.reference], fit, args.at) for name, fit in fits.families.items()}
    held = [
        {"run": run.name} | against_forecast(fits.families[run.family], run.values[args.against], run.values[args.loss])
        for run in kept_out
        if run.family in fits.families
    ]
    note_left_out([run.name for run in kept_out if run.family not in fits.families], "no law of its family")
    payload = _payload(args, fits, saved, by_law, held, score)

    def draw() -> Figure:
        from looplit.plots.ladders import ladder_figure

        squares = [
            (run.family, run.values[args.against], run.values[args.loss])
            for run in kept_out
            if run.family in fits.families
        ]
        return ladder_figure(fits, saved, args.reference, squares)

    return Answer(payload, _text(payload, fits), draw)


def _fits(args: argparse.Namespace, families: Mapping[str, Sequence[Result]]) -> LadderFits:
    """Ladders against the chosen compute; against seconds, with the floor of the FLOPs fit."""
    floor, c0 = None, args.c0 or C0_VANILLA_D8
    units = {"compute": UNITS[args.against], "output": unit_of(args.loss)}
    if args.against == "train_seconds":
        rows = rows_of(families[args.reference], "training_flops", args.loss)
        floor = fit_power(rows, units={"output": units["output"]}, bootstrap=args.bootstrap, seed=args.seed,
                          progress=True)  # fmt: skip
        c0 = args.c0 or C0_HOUR
    ladders = {name: rows_of(runs, args.against, args.loss) for name, runs in families.items()}
    return fit_ladders(ladders, args.reference, c0, floor=floor, units=units,
                       bootstrap=args.bootstrap, seed=args.seed, progress=True)  # fmt: skip


def rows_of(runs: Sequence[Result], against: str, loss: str) -> Rows:
    """A family's runs as checked rows of a power law."""
    return power_rows(column(runs, against), column(runs, loss), [run.name for run in runs])


def measured_multipliers(
    families: Mapping[str, Sequence[Result]], reference: str, against: str, score: str, interpolation: str = "loss"
) -> dict[str, list[Multiplier]]:
    """Interpolated multipliers of every family over the reference, at any score that runs have.

    Args:
        families: Runs by family.
        reference: The family compared with.
        against: Column of compute.
        score: Column to match; the higher the better for those of `RISING`.
        interpolation: As in `compute_at`.
    """
    usable = {
        name: checked([run for run in runs if {against, score} <= run.values.keys()], against, score)
        for name, runs in families.items()
    }
    ladders = {name: (column(runs, against), column(runs, score)) for name, runs in usable.items() if runs}
    scored = sorted({key for run in families[reference] for key in run.values})
    require(reference in ladders, "score", score, f"no run of {reference} has it; there are {', '.join(scored)}")
    falling = not is_rising(score)
    return {name: multipliers(ladders[reference], ladder, interpolation, falling) for name, ladder in ladders.items()}


def _payload(
    args: argparse.Namespace,
    fits: LadderFits,
    saved: Mapping[str, Sequence[Multiplier]],
    by_law: Mapping[str, Sequence[Multiplier]],
    held: list[dict[str, Any]],
    score: str,
) -> dict[str, Any]:
    families: dict[str, Any] = {}
    for name, fit in fits.families.items():
        gain, interval = exponent_gain(fit, fits.families[args.reference])
        families[name] = {
            "fit": fit.to_dict(draws=False),
            "exponent_gain": {"value": gain, "interval": interval},
            "multipliers": [asdict(point) for point in saved.get(name, [])],
            "law_multipliers": [asdict(point) for point in by_law[name]],
        }
    return {
        "reference": args.reference,
        "compute": {"column": args.against, "unit": UNITS[args.against]},
        "matched": {"column": score, "unit": unit_of(score)},
        "interpolation": INTERPOLATIONS[args.interpolation].replace("loss", score),
        "bootstrap": {"draws": args.bootstrap, "seed": args.seed, "level": fits.floor.level},
        "floor": fits.floor.to_dict(draws=False),
        "families": families,
        "held_out": held,
    }


def _text(payload: Mapping[str, Any], fits: LadderFits) -> str:
    floor = fits.floor
    exponents = [
        [
            name,
            str(len(fit.observed)),
            f"{fit['gamma']:.4f}",
            shown(fit.parameter("gamma").standard_error, ".4f"),
            shown_interval(fit.parameter("gamma").interval, ".4f"),
            f"{entry['exponent_gain']['value']:+.4f}",
            shown_interval(entry["exponent_gain"]["interval"], "+.4f"),
            f"{fit['log_A']:.3f}",
        ]
        for (name, fit), entry in zip(fits.families.items(), payload["families"].values(), strict=True)
    ]
    parts = [
        f"Floor E = {floor['E']:.4f} {floor.units['output']}, from {payload['reference']}",
        described(floor),
        "",
        "Exponents above that floor (± holds the floor, intervals do not)",
        described(next(iter(fits.families.values()))),
        *(f"warning: {name}: {warning}" for name, fit in list(fits.families.items())[1:] for warning in fit.warnings),
        table(["family", "runs", "γ", "±", "90 %", "γ gain", "90 %", "log A"], exponents),
        "",
        f"Compute multipliers over {payload['reference']} by its {payload['compute']['unit']}, matched at "
        f"{payload['matched']['column']}; {payload['interpolation']}, never extrapolated",
        _multiplier_table(payload["families"], "multipliers"),
    ]
    if any(entry["law_multipliers"] for entry in payload["families"].values()):
        parts += ["", "The same by the fitted laws (* outside the data of either)",
                  _multiplier_table(payload["families"], "law_multipliers")]  # fmt: skip
    if payload["held_out"]:
        rows = [
            [run["run"], f"{run['observed']:.4f}", f"{run['forecast']:.4f}", f"{run['error']:+.4f}",
             shown_interval(run["interval"], ".4f")]
            for run in payload["held_out"]
        ]  # fmt: skip
        parts += ["", "Held out of every fit", table(["run", "observed", "forecast", "error", "90 % of law"], rows)]
    return "\n".join(parts)


def _multiplier_table(families: Mapping[str, Any], kind: str) -> str:
    spends = sorted({point["compute"] for entry in families.values() for point in entry[kind]})
    rows = []
    for name, entry in families.items():
        by_compute = {point["compute"]: point for point in entry[kind]}
        rows.append([name, *(_multiplier_cell(by_compute.get(spend)) for spend in spends)])
    return table(["family", *(f"{spend:.3g}" for spend in spends)], rows)


def _multiplier_cell(point: Mapping[str, Any] | None) -> str:
    if point is None or point["value"] is None:
        return "–"
    interval = "" if point["interval"] is None else " " + shown_interval(point["interval"], ".2f")
    return f"{point['value']:.3f}{'*' if point['extrapolated'] else ''}{interval}"
