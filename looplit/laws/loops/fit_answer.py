"""The loop law from finished runs, and what the runs say by themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from looplit.errors import InputError, require
from looplit.laws.answers.answer import Answer
from looplit.laws.answers.base import Runs, chosen_runs, described, method, note_differing, note_left_out
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
from looplit.laws.loops.worth_answer import setting_fields, verdict
from looplit.laws.replicates import require_recurrences
from looplit.laws.results import having
from looplit.laws.rows import Rows
from looplit.results import resolved, unit_of
from looplit.wording import shown, shown_interval, table

GRID = ("nonembedding_parameters", "tokens", "passes")
"""Columns that tell the runs of a joint fit apart, beside the trained passes of those that give them."""

INTERPOLATION = "runs read by a monotone cubic of log loss in log compute, within the measurements"


@dataclass(frozen=True)
class LoopFitAnswer(Answer):
    """The law and the runs.

    Args:
        fit: The joint law's.
        law: The same, to be asked what settings are worth.
        nrec: Median N_rec/N of the runs.
        runwise_g: g run by run.
        comparisons: Settings at equal compute, by size.
    """

    fit: Fit
    law: LoopLaw
    nrec: float
    runwise_g: Mapping[Setting, Quartiles]
    comparisons: Mapping[float, Comparison]


def fit_answer(
    runs: Runs,
    *,
    where: Sequence[str] = (),
    loss: str = "final_val_loss",
    nrec: float | None = None,
    own_flops: bool = False,
    budget: float | None = None,
    hold: Mapping[str, float] | None = None,
    bootstrap: int = 0,
    seed: int = 0,
) -> LoopFitAnswer:
    """The joint law, the laws of single loop counts, g by run, and runs compared at equal compute.

    Args:
        runs: Finished runs, or where they lie.
        where: Conditions, as in `chosen_runs`.
        loss: Column of the loss.
        nrec: N_rec/N of every run, by default each run's own.
        own_flops: Compare runs at equal training_flops, as they report it, in place of the law's 6·N_comp·D.
        budget: FLOPs at which to read compute-optimal sizes.
        hold: Coefficients of `LOOP_BOUNDS` to hold.
        bootstrap: Resamples behind the intervals.
        seed: Of the resampling.

    Raises:
        InputError: The runs do not identify the law, or lack what is asked for.
    """
    chosen = chosen_runs(runs, where, resolved(loss), resolved(loss))
    found = loop_runs(chosen, resolved(loss), nrec, own_flops)
    note_differing(require_recurrences(having(chosen, *GRID), (*GRID, "trained_passes")), ("passes",))
    hold, rows = hold or {}, rows_of(found)
    for name in hold:
        require(name in LOOP_BOUNDS, "hold", name, f"must name one of {', '.join(LOOP_BOUNDS)}, as in p=0.24")
    units = {"output": unit_of(resolved(loss))}
    fit = fit_loops(rows, hold=hold, units=units, bootstrap=bootstrap, seed=seed, progress=True)
    law, share = law_of(fit), float(np.median([run.nrec for run in found]))
    single, g = _single_laws(rows, hold, units), runwise_g(found, law)
    comparisons = _comparisons(found)
    missing = None if comparisons else _why_no_comparison(found)
    sizes = optimal_sizes(found, budget, units["output"]) if budget else {}
    compute_unit = "training FLOPs, as each run reports" if own_flops else COMPUTE_UNIT
    payload = {
        "fit": fit.to_dict(draws=False),
        "nrec": share,
        "full_bptt_favoured": None if law.untold else law.criterion > 0,
        "fixed_passes": {str(passes): _single_fields(passes, each, share) for passes, each in single.items()},
        "runwise_g": [setting_fields(setting) | each._asdict() | {"law": float(law.g(*setting))}
                      for setting, each in g.items()],
        "compute": {"unit": compute_unit},
        "interpolation": INTERPOLATION,
        "equal_compute": {f"{size:g}": _comparison_fields(each) for size, each in comparisons.items()},
        "no_equal_compute_because": missing,
        "optimal_sizes": [_size_fields(setting, each) for setting, each in sizes.items()],
    }  # fmt: skip
    text = "\n".join([
        *_fit_text(fit, law), *_single_text(single, share), *_g_text(g, law),
        *_comparison_text(comparisons, compute_unit, missing), *_size_text(sizes, budget),
    ])  # fmt: skip
    return LoopFitAnswer(payload, text, fit, law, share, g, comparisons)


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
