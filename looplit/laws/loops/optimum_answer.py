"""The best loop setting under what is given: loop compute; passes; size; training compute."""

from __future__ import annotations

from typing import Any

import numpy as np

from looplit.errors import InputError, require
from looplit.laws.answers.answer import Answer
from looplit.laws.loops.law import NREC, PUBLISHED, LoopLaw
from looplit.laws.loops.optimum import (
    LONGEST,
    NO_LOOPING,
    STUDY_SETTINGS,
    Exponents,
    Optimum,
    Setting,
    all_settings,
    asymptotic_exponents,
    best_at_size,
    best_of_all,
    best_passes,
    best_size,
    best_split,
    best_trained_passes,
    best_whole_split,
    finite_exponents,
    switch_points,
    worth,
)
from looplit.laws.loops.runs import (
    Comparison,
    compare,
    law_ladders,
)
from looplit.laws.loops.worth_answer import (
    check_passes,
    method_fields,
    method_line,
    setting_fields,
    verdict,
    worth_fields,
    worth_table,
)
from looplit.wording import table

SWITCHES = (1, 2, 4)
"""Loop counts between which switch points are given."""


def optimum_answer(
    *,
    parameters: float | None = None,
    flops: float | None = None,
    passes: int | None = None,
    units: float | None = None,
    nrec: float = NREC,
    law: LoopLaw = PUBLISHED,
) -> Answer:
    """The best setting under what is given, of which at least one is.

    Args:
        parameters: Non-embedding parameters N.
        flops: Training compute, 6·N_comp·D.
        passes: Prescribed T.
        units: Prescribed loop compute T + 2B; excludes the others.
        nrec: N_rec/N, the core's share of the non-embedding parameters.
        law: By which.

    Raises:
        InputError: Nothing is given, or what does not go together.
    """
    asked = {"n": parameters, "compute": flops, "T": passes, "units": units}
    given = {name: value for name, value in asked.items() if value is not None}
    require(bool(given), "optimum", "nothing", "say what is given: --parameters, --flops, --passes or --units")
    if passes is not None:
        check_passes(passes)
    if units is not None:
        require(len(given) == 1, "units", units, "excludes --parameters, --flops and --passes")
        payload, text = _at_units(units, nrec, law)
    elif parameters is not None:
        payload, text = _at_size(parameters, flops, passes, nrec, law)
    elif flops is not None:
        payload, text = _at_compute(flops, passes, nrec, law)
    else:
        assert passes is not None
        payload, text = _at_passes(passes, nrec, law)
    payload = {"given": given | {"nrec": nrec}} | payload | {"method": method_fields(nrec, law)}
    return Answer(payload, f"{text}\n{method_line(nrec, law)}")


def at_budgets(
    parameters: float, flops: float | None = None, nrec: float = NREC, law: LoopLaw = PUBLISHED
) -> Comparison:
    """Loss minus no looping of one size by the law, from a tenth of the first switch point to ten times the last.

    Args:
        parameters: Non-embedding parameters N.
        flops: A training compute that the budgets reach in any case.
        nrec: N_rec/N, the core's share of the non-embedding parameters.
        law: By which.
    """
    ends = switch_points(parameters, SWITCHES, nrec, law)
    budgets = np.geomspace(ends[0] / 10, max(10 * ends[-1], flops or 0), 200)
    return compare(law_ladders(parameters, budgets, STUDY_SETTINGS[:6], nrec, law), points=200)


def _at_units(units: float, nrec: float, law: LoopLaw) -> tuple[dict[str, Any], str]:
    whole, real = worth(*best_whole_split(units, law), nrec, law), best_split(units, law)
    text = "\n".join([
        f"Highest g at a loop compute of T + 2B = {units:g} units (at equal size and compute, the lowest loss)",
        f"  whole passes: {whole.setting}, {whole.units:g} units, g {whole.g:.3f}, N_eff/N {whole.effective_ratio:.3f}",
        f"  real passes: ({real.passes:.3g}, {real.trained_passes:.3g}), g {float(law.g(*real)):.3f}; "
        + (verdict(law) if law.untold else f"q - 2p = {law.criterion:.3f}, so {verdict(law)}"),
    ])  # fmt: skip
    criterion = None if law.untold else law.criterion
    return {"best": worth_fields(whole), "continuous": setting_fields(real), "q_minus_2p": criterion}, text


def _at_passes(passes: int, nrec: float, law: LoopLaw) -> tuple[dict[str, Any], str]:
    best = best_trained_passes(passes, nrec, law)
    trained = sorted({1, 2, 4, 8, 16, best, passes} & set(range(1, passes + 1)))
    found = [worth(passes, b, nrec, law) for b in trained]
    chosen = "the best B is not identified" if law.untold else f"B = {best} needs the least compute at equal loss"
    text = f"T = {passes} given, size free: {chosen}\n{worth_table(found)}"
    fields = None if law.untold else worth_fields(worth(passes, best, nrec, law))
    return {"best": fields, "all": [worth_fields(each) for each in found]}, text


def _at_size(
    size: float, compute: float | None, passes: int | None, nrec: float, law: LoopLaw
) -> tuple[dict[str, Any], str]:
    switches = dict(zip(SWITCHES[1:], switch_points(size, SWITCHES, nrec, law), strict=True))
    limits = asymptotic_exponents(law)
    payload: dict[str, Any] = {
        "switch_points": [
            {"passes": t, "compute": switch if np.isfinite(switch) else None} for t, switch in switches.items()
        ],
        "exponents": {"asymptotic": limits._asdict()},
    }
    lines = [
        f"{size:.4g} non-embedding parameters, N_rec/N = {nrec:g}, every pass trained:",
        *(f"  from {switch:.3g} FLOPs {t} passes are better than {t // 2}" for t, switch in switches.items()),
        f"  T* ∝ C^{limits.passes:.3f} and D* ∝ C^{limits.tokens:.3f} in the limit of endless compute",
    ]
    if compute is None:
        return payload, "\n".join(lines)
    best = best_at_size(size, compute, _candidates(passes), nrec, law)
    path = best_passes(size, compute, nrec, law)
    here = _local_exponents(size, compute, nrec, law)
    payload["best"] = optimum_fields(best)
    payload["continuous"] = {
        "T": float(path.passes[0]), "B": float(path.passes[0]), "tokens": float(path.tokens[0]),
        "loss": float(path.loss[0]),
    }  # fmt: skip
    payload["exponents"]["local"] = here._asdict() if here else None
    lines += [
        f"at {compute:.4g} FLOPs{f' and T = {passes}' if passes else ''}: "
        + _optimum_line(best)
        + (f"; no more than {LONGEST} passes were tried" if not passes and best.setting.passes == LONGEST else ""),
        f"  with T free, real and all trained: T* = {float(path.passes[0]):.2f} on {float(path.tokens[0]):.3g} tokens, "
        f"loss {float(path.loss[0]):.4f}",
    ]
    if here:
        lines.append(f"  from here to ten times the compute T* grows as C^{here.passes:.3f}, D* as C^{here.tokens:.3f}")
    return payload, "\n".join(lines)


def _local_exponents(size: float, compute: float, nrec: float, law: LoopLaw) -> Exponents | None:
    """Slopes from this budget to ten times it; None where loops do not pay yet."""
    try:
        return finite_exponents(size, (compute, 10 * compute), nrec, law)
    except InputError:
        return None


def _at_compute(compute: float, passes: int | None, nrec: float, law: LoopLaw) -> tuple[dict[str, Any], str]:
    best = best_of_all(compute, _candidates(passes), nrec, law)
    looped = best_of_all(compute, [setting for setting in all_settings() if setting.passes > 1], nrec, law)
    single = best_size(compute, *NO_LOOPING, nrec, law)
    shown_optima = {"best": best, "no_looping": single, "best_looped": looped}
    rows = [
        [name.replace("_", " "), str(found.setting), f"{found.size:.4g}", f"{found.tokens:.4g}", f"{found.loss:.4f}",
         f"{float(law.compute_per_effective(*found.setting, nrec)):.3f}", f"{1 - found.size / single.size:.1%}"]
        for name, found in shown_optima.items()
    ]  # fmt: skip
    headers = ["", "(T, B)", "N", "tokens", "loss", "compute at equal loss", "fewer N at this compute"]
    text = f"{compute:.4g} FLOPs{f', T = {passes}' if passes else ''}, size free; N_rec/N = {nrec:g}\n"
    return {name: optimum_fields(found) for name, found in shown_optima.items()}, text + table(headers, rows)


def _candidates(passes: int | None) -> list[Setting]:
    return all_settings() if passes is None else [Setting(passes, b) for b in range(1, passes + 1)]


def optimum_fields(found: Optimum) -> dict[str, Any]:
    """The JSON keys of a recommended run."""
    return setting_fields(found.setting) | {
        "n": found.size, "tokens": found.tokens, "compute": found.compute, "loss": found.loss
    }  # fmt: skip


def _optimum_line(found: Optimum) -> str:
    return f"{found.setting} on {found.tokens:.4g} tokens, loss {found.loss:.4f}"
