"""What `loops fit` answers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from looplit.commands.laws.base import (
    Answer,
    chosen_runs,
    described,
    method,
    note_left_out,
    shown,
    shown_interval,
    table,
)
from looplit.commands.loops.command import setting_fields, verdict
from looplit.errors import InputError, require
from looplit.laws.fit import Fit
from looplit.laws.loops.fit import LOOP_BOUNDS, fit_at_passes, fit_loops, law_of
from looplit.laws.loops.law import COMPUTE_UNIT, LoopLaw
from looplit.laws.loops.optimum import (
    NO_LOOPING,
    Setting,
    best_trained_passes,
)
from looplit.laws.loops.runs import (
    SAME_SIZE,
    Comparison,
    LoopRun,
    Quartiles,
    SizeOptimum,
    compare,
    ladders_at,
    loop_runs,
    optimal_sizes,
    rows_of,
    runwise_g,
    sizes_without_loops,
)
from looplit.laws.results import unit_of
from looplit.laws.rows import Rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INTERPOLATION = "runs read by a monotone cubic of log loss in log compute, within the measurements"


def fit_answer(args: argparse.Namespace) -> Answer:
    """The joint law, the laws of single loop counts, g by run, and runs compared at equal compute."""
    runs = loop_runs(chosen_runs(args, args.loss), args.loss, args.nrec, args.own_flops)
    hold, rows = _held(args.hold), rows_of(runs)
    units = {"output": unit_of(args.loss)}
    fit = fit_loops(rows, hold=hold, units=units, bootstrap=args.bootstrap, seed=args.seed, progress=True)
    if args.save:
        fit.save(args.save)
    law, nrec = law_of(fit), float(np.median([run.nrec for run in runs]))
    single = _single_laws(rows, hold, units)
    g = runwise_g(runs, law)
    comparisons = _comparisons(runs)
    missing = None if comparisons else _why_no_comparison(runs)
    sizes = optimal_sizes(runs, args.budget, units["output"]) if args.budget else {}
    compute_unit = "training FLOPs, as each run reports" if args.own_flops else COMPUTE_UNIT
    payload = {
        "fit": fit.to_dict(draws=False),
        "nrec": nrec,
        "full_bptt_favoured": None if law.untold else law.criterion > 0,
        "fixed_passes": {str(passes): _single_fields(passes, each, nrec) for passes, each in single.items()},
        "runwise_g": [setting_fields(setting) | each._asdict() | {"law": float(law.g(*setting))}
                      for setting, each in g.items()],
        "compute": {"unit": compute_unit},
        "interpolation": INTERPOLATION,
        "equal_compute": {f"{size:g}": _comparison_fields(each) for size, each in comparisons.items()},
        "no_equal_compute_because": missing,
        "optimal_sizes": [_size_fields(setting, each) for setting, each in sizes.items()],
    }  # fmt: skip
    text = "\n".join([
        *_fit_text(fit, law), *_single_text(single, nrec), *_g_text(g, law),
        *_comparison_text(comparisons, compute_unit, missing), *_size_text(sizes, args.budget),
    ])  # fmt: skip

    def draw() -> Figure:
        from looplit.plots.loops import runs_figure

        return runs_figure(law, nrec, g, comparisons)

    return Answer(payload, text, draw)


def _held(pairs: Sequence[str]) -> dict[str, float]:
    held = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        require(name in LOOP_BOUNDS, "hold", pair, f"must name one of {', '.join(LOOP_BOUNDS)}, as in p=0.24")
        try:
            held[name] = float(value)
        except ValueError:
            raise InputError(f"hold = {pair!r}: must give a number, as in p=0.24") from None
    return held


def _single_laws(rows: Rows, hold: Mapping[str, float], units: Mapping[str, str]) -> dict[int, Fit]:
    """The law of each loop count that has at least three trained-pass counts beside runs without loops."""
    t, b = rows.columns["T"], rows.columns["B"]
    if not np.any(t == 1):
        return {}
    fits = {}
    for passes in np.unique(t[t > 1]).astype(int).tolist():
        if len(np.unique(b[t == passes])) >= 3:
            try:
                fits[passes] = fit_at_passes(rows, passes, hold=hold, units=units)
            except InputError as error:
                note_left_out([f"law of T = {passes}"], str(error))
    return fits


def _comparisons(runs: Sequence[LoopRun]) -> dict[float, Comparison]:
    """Settings at equal compute at each size that was run without loops too."""
    ladders = {size: ladders_at(runs, size) for size in sizes_without_loops(runs)}
    return {size: compare(each) for size, each in ladders.items() if NO_LOOPING in each and len(each) > 1}


def _why_no_comparison(runs: Sequence[LoopRun]) -> str:
    """What the runs lack for a comparison at equal compute."""
    if all(run.setting != NO_LOOPING for run in runs):
        return "there is no run without loops, (1, 1)"
    if all(run.setting == NO_LOOPING for run in runs):
        return "every run is without loops"
    return (
        f"no size has runs without loops at two budgets and, within {SAME_SIZE:.0%} of it, runs of a looped setting at "
        "two"
    )


def _single_fields(passes: int, fit: Fit, nrec: float) -> dict[str, Any]:
    return {"best_B": best_trained_passes(passes, nrec, law_of(fit)), "fit": fit.to_dict(draws=False)}


def _comparison_fields(found: Comparison) -> dict[str, Any]:
    return {
        "differences": [
            setting_fields(setting) | {"compute": compute.tolist(), "loss_minus_no_looping": gain.tolist()}
            for setting, (compute, gain) in found.differences.items()
        ],
        "best": [setting_fields(setting) | {"from": start, "to": end} for setting, start, end in found.stretches()],
    }


def _size_fields(setting: Setting, found: SizeOptimum) -> dict[str, Any]:
    return (
        setting_fields(setting)
        | {"n": found.size, "loss": found.loss, "bracketed": found.bracketed}
        | {"fit": found.fit.to_dict(draws=False) if found.fit else None}
    )


def _fit_text(fit: Fit, law: LoopLaw) -> list[str]:
    rows = [
        [entry.name, f"{entry.value:.4f}", shown(entry.standard_error, ".4f"), shown_interval(entry.interval, ".4f")]
        for entry in (*fit.parameters, *fit.derived)
    ]
    return [
        described(fit),
        table(["coefficient", "value", "±", f"{fit.level:.0%}"], rows),
        "q - 2p: not identified, so no word on how many passes to train"
        if law.untold
        else f"q - 2p = {law.criterion:.3f}: at a free choice of T and B, {verdict(law)}",
    ]


def _single_text(single: Mapping[int, Fit], nrec: float) -> list[str]:
    if not single:
        return []
    rows = [
        [str(passes), *(f"{float(law_of(fit).g(passes, b)):.3f}" if b <= passes else "–" for b in (1, 2, 4, 8, 16)),
         str(best_trained_passes(passes, nrec, law_of(fit)))]
        for passes, fit in single.items()
    ]  # fmt: skip
    return ["", "Laws of one loop count each (with the runs without loops): g, and the best B at this T",
            f"T = {next(iter(single))} for example:", described(next(iter(single.values()))),
            table(["T", *(f"B = {b}" for b in (1, 2, 4, 8, 16)), "best B"], rows)]  # fmt: skip


def _g_text(found: Mapping[Setting, Quartiles], law: LoopLaw) -> list[str]:
    rows = [
        [str(setting), f"{each.median:.3f}", f"[{each.low:.3f}, {each.high:.3f}]", f"{float(law.g(*setting)):.3f}",
         str(each.runs)]
        for setting, each in found.items()
    ]  # fmt: skip
    return ["", "g run by run (N_eff from each run's loss by the size-data law)",
            table(["(T, B)", "median", "quartiles", "law", "runs"], rows)] if rows else []  # fmt: skip


def _comparison_text(found: Mapping[float, Comparison], unit: str, missing: str | None) -> list[str]:
    if missing:
        return ["", f"No comparison with no looping at equal compute: {missing}"]
    rows = [
        [f"{size:.3g}", str(setting), f"{start:.3g}", f"{end:.3g}"]
        for size, each in found.items()
        for setting, start, end in each.stretches()
    ]
    title = f"Best measured setting at equal compute ({unit}), by non-embedding parameters N without loops; looped " \
            f"models within {SAME_SIZE:.0%} of it count as that size; {INTERPOLATION}"  # fmt: skip
    return ["", title, table(["N", "(T, B)", "from FLOPs", "to"], rows)]


def _size_text(found: Mapping[Setting, SizeOptimum], budget: float | None) -> list[str]:
    rows = [
        [str(setting), f"{each.size:.4g}", f"{each.loss:.4f}", "yes" if each.bracketed else "no, best measured",
         shown(each.fit["x0"] if each.fit else None)]
        for setting, each in found.items()
    ]  # fmt: skip
    if not rows:
        return []
    example = next(((setting, each.fit) for setting, each in found.items() if each.fit), None)
    return [
        "", f"Compute-optimal size at {budget:.3g} FLOPs (log loss as a parabola in log N; {INTERPOLATION})",
        *([f"{example[0]} for example:", method(example[1])] if example else []),
        table(["(T, B)", "N*", "loss", "bracketed", "held x0"], rows),
    ]  # fmt: skip
