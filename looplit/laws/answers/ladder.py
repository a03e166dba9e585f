"""Scaling exponents above a shared floor, compute multipliers, held-out runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from looplit.errors import require
from looplit.laws.answers.answer import Answer
from looplit.laws.answers.base import (
    Runs,
    chosen_runs,
    described,
    note_left_out,
    require_score,
    runs_name,
    series_rungs,
)
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
from looplit.laws.results import Result, checked, column, split_held_out
from looplit.laws.rows import Rows
from looplit.results import is_rising, resolved, unit_of
from looplit.wording import shown, shown_interval, table

C0_HOUR = 3600.0
"""C0 where ladders are read against seconds: one hour."""

AGAINST = ("training_flops", "train_seconds")
"""What compute can be."""


@dataclass(frozen=True)
class LadderAnswer(Answer):
    """Exponents and multipliers.

    Args:
        fits: Of every family, above the reference's floor.
        saved: Measured multipliers of every family.
        held_out: (family, compute, loss) of runs that were kept out.
    """

    fits: LadderFits
    saved: Mapping[str, Sequence[Multiplier]]
    held_out: Sequence[tuple[str, float, float]]


def ladder_answer(
    runs: Runs,
    *,
    where: Sequence[str] = (),
    loss: str = "final_val_loss",
    reference: str = "vanilla",
    against: str = "training_flops",
    c0: float | None = None,
    score: str | None = None,
    interpolation: str = "loss",
    at: Sequence[float] = (),
    held_out: Sequence[str] = (),
    bootstrap: int = 0,
    seed: int = 0,
) -> LadderAnswer:
    """Fits and multipliers of every family among the runs.

    Args:
        runs: Finished runs, or where they lie.
        where: Conditions, as in `chosen_runs`.
        loss: Column of the loss.
        reference: Family of the floor and of multiplier 1.
        against: What compute is; with seconds the floor still comes from the FLOPs fit.
        c0: C0, 1.0265e18 FLOPs or one hour by default.
        score: Column at which multipliers are matched, the loss by default.
        interpolation: Of multipliers, as in `compute_at`.
        at: Values of compute for multipliers by the fitted laws.
        held_out: Runs to keep out of every fit, as "family:depth".
        bootstrap: Resamples behind the intervals.
        seed: Of the resampling.

    Raises:
        InputError: The runs do not make up ladders, or lack what is asked for.
    """
    loss = resolved(loss)
    score = resolved(score or loss)
    require(against in AGAINST, "against", against, f"must be one of {', '.join(AGAINST)}")
    fitted, kept_out = split_held_out(chosen_runs(runs, where, loss, against, loss, score=score), held_out)
    families = _ladders(runs, fitted, kept_out, against)
    require(reference in families, "reference", reference, f"must be one of {', '.join(families)}")
    fits = _fits(families, reference, against, loss, c0, bootstrap, seed)
    require_score("score", score)
    saved = measured_multipliers(families, reference, against, score, interpolation)
    by_law = {name: law_multipliers(fits.families[reference], fit, at) for name, fit in fits.families.items()}
    note_left_out([run.name for run in kept_out if run.family not in fits.families], "no law of its family")
    held = [(run, run.values[against], run.values[loss]) for run in kept_out if run.family in fits.families]
    payload = {
        "reference": reference,
        "compute": {"column": against, "unit": unit_of(against)},
        "matched": {"column": score, "unit": unit_of(score)},
        "interpolation": INTERPOLATIONS[interpolation].replace("loss", score),
        "bootstrap": {"draws": bootstrap, "seed": seed, "level": fits.floor.level},
        "floor": fits.floor.to_dict(draws=False),
        "families": _families(fits, reference, saved, by_law),
        "held_out": [
            {"run": run.name} | against_forecast(fits.families[run.family], compute, observed)
            for run, compute, observed in held
        ],
    }
    squares = [(run.family, compute, observed) for run, compute, observed in held]
    return LadderAnswer(payload, _text(payload, fits), fits, saved, squares)


def _ladders(runs: Runs, fitted: Sequence[Result], kept_out: Sequence[Result], against: str) -> dict[str, list[Result]]:
    families = series_rungs(fitted, kept_out)
    short = [name for name, members in families.items() if len(set(column(members, against))) < 2]
    note_left_out(short, "fewer than two rungs")
    require(len(short) < len(families), "runs", runs_name(runs), "no family has two rungs of different compute")
    return {name: members for name, members in families.items() if name not in short}


def _fits(
    families: Mapping[str, Sequence[Result]],
    reference: str,
    against: str,
    loss: str,
    c0: float | None,
    bootstrap: int,
    seed: int,
) -> LadderFits:
    """Ladders against the chosen compute; against seconds, with the floor of the FLOPs fit."""
    floor, usual = None, C0_VANILLA_D8
    units = {"compute": unit_of(against), "output": unit_of(loss)}
    if against == "train_seconds":
        rows = rows_of(families[reference], "training_flops", loss)
        floor = fit_power(rows, units={"output": units["output"]}, bootstrap=bootstrap, seed=seed, progress=True)
        usual = C0_HOUR
    ladders = {name: rows_of(runs, against, loss) for name, runs in families.items()}
    return fit_ladders(ladders, reference, c0 or usual, floor=floor, units=units,
                       bootstrap=bootstrap, seed=seed, progress=True)  # fmt: skip


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
        score: Column to match; the higher the better for those that `is_rising` knows.
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


def _families(
    fits: LadderFits,
    reference: str,
    saved: Mapping[str, Sequence[Multiplier]],
    by_law: Mapping[str, Sequence[Multiplier]],
) -> dict[str, Any]:
    families: dict[str, Any] = {}
    for name, fit in fits.families.items():
        gain, interval = exponent_gain(fit, fits.families[reference])
        families[name] = {
            "fit": fit.to_dict(draws=False),
            "exponent_gain": {"value": gain, "interval": interval},
            "multipliers": [asdict(point) for point in saved.get(name, [])],
            "law_multipliers": [asdict(point) for point in by_law[name]],
        }
    return families


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
