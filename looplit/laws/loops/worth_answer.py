"""What a loop setting is worth, and every setting of the study beside the others. Needs no scipy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from looplit.errors import require, require_between
from looplit.laws.answers.answer import Answer
from looplit.laws.loops.law import COMPUTE_UNIT, EQUATION, NREC, PUBLISHED, UNITS, LoopLaw
from looplit.laws.loops.optimum import (
    STUDY_SETTINGS,
    Setting,
    Worth,
    best_trained_passes,
    full_backpropagation,
    worth,
)
from looplit.wording import counted, table

MOST_PASSES = 10_000
"""T that the answers go up to, far beyond what was ever trained."""


def check_passes(passes: int) -> None:
    """Refuses a T that no answer is for: every B up to it is tried."""
    require_between("passes", passes, 1, MOST_PASSES)


def worth_answer(passes: int, trained_passes: int, nrec: float = NREC, law: LoopLaw = PUBLISHED) -> Answer:
    """What one setting is worth, and its alternatives at equal T and at equal cost.

    Args:
        passes: T, up to `MOST_PASSES`.
        trained_passes: B, the last ones.
        nrec: N_rec/N, the core's share of the non-embedding parameters.
        law: By which.

    Raises:
        InputError: There is no such setting.
    """
    check_passes(passes)
    require(1 <= trained_passes <= passes, "trained_passes", trained_passes,
            f"must be from 1 to passes = {passes}")  # fmt: skip
    here = worth(passes, trained_passes, nrec, law)
    full = full_backpropagation(here.units)
    payload = worth_fields(here) | {
        "best_B": None if law.untold else best_trained_passes(passes, nrec, law),
        "full_bptt_alternative": worth_fields(worth(*full, nrec, law)),
        "method": method_fields(nrec, law),
    }
    return Answer(payload, f"{_card(payload, nrec, law)}\n{method_line(nrec, law)}")


def frontier_answer(nrec: float = NREC, law: LoopLaw = PUBLISHED) -> Answer:
    """Parameters saved against compute needed at equal loss, every setting of the study.

    Args:
        nrec: N_rec/N, the core's share of the non-embedding parameters.
        law: By which.
    """
    found = [worth(*setting, nrec, law) for setting in STUDY_SETTINGS]
    payload = {
        "nrec": nrec,
        "settings": [worth_fields(each) | {"parameters_saved": each.parameters_saved} for each in found],
        "method": method_fields(nrec, law),
    }
    title = f"Beside the best model without loops at equal loss, size free; N_rec/N = {nrec:g}"
    return Answer(payload, f"{title}\n{worth_table(found)}\n{method_line(nrec, law)}")


def method_fields(nrec: float, law: LoopLaw) -> dict[str, Any]:
    """The JSON keys of how an answer comes about: the law, what was held, and units."""
    said = {"equation": EQUATION, "law": law_name(law), "held": law.coefficients | {"nrec": nrec}, "units": UNITS}
    return said | {"warnings": list(law.untold)}


def method_line(nrec: float, law: LoopLaw) -> str:
    """The same for the screen, in three lines; what the law's runs could not tell follows."""
    held = ", ".join(f"{name} = {value:.5g}" for name, value in law.coefficients.items())
    return "\n".join([
        f"by {law_name(law)}, {EQUATION}",
        f"  L in {UNITS['loss']}, N in non-embedding parameters, D in tokens; compute in {COMPUTE_UNIT}",
        f"  held: {held}, N_rec/N = {nrec:g}",
        *(f"warning: {sentence}; what rests on it above is a guess" for sentence in law.untold),
    ])  # fmt: skip


def law_name(law: LoopLaw) -> str:
    """Whose law an answer goes by."""
    return "the published law" if law == PUBLISHED else "the given law"


def worth_fields(found: Worth) -> dict[str, Any]:
    """The JSON keys of one setting."""
    return setting_fields(found.setting) | {
        "g": found.g,
        "effective_ratio": found.effective_ratio,
        "units": int(found.units),
        "compute_per_token": found.compute_per_token,
        "compute_per_effective": found.compute_per_effective,
    }


def setting_fields(setting: Setting) -> dict[str, Any]:
    """T and B, as whole numbers where they are."""
    t, b = (int(value) if value == int(value) else value for value in setting)
    return {"T": t, "B": b}


def verdict(law: LoopLaw) -> str:
    """What q - 2p says where T and B are both free, and that it says nothing where the runs do not tell p from q."""
    if law.untold:
        return "not identified"
    return "train every pass" if law.criterion >= 0 else f"train {law.q / (2 * law.p):.0%} of the passes"


def worth_table(found: Iterable[Worth]) -> str:
    """Settings beside no looping, a row each."""
    rows = [
        [str(each.setting), f"{each.units:g}", f"{each.g:.3f}", f"{each.effective_ratio:.3f}",
         f"{each.compute_per_token:.3f}", f"{each.compute_per_effective:.3f}", f"{each.parameters_saved:.1%}"]
        for each in found
    ]  # fmt: skip
    headers = ["(T, B)", "units", "g", "N_eff/N", "compute per token", "compute at equal loss", "parameters saved"]
    return table(headers, rows)


def _card(payload: dict[str, Any], nrec: float, law: LoopLaw) -> str:
    """The answer on screen."""
    t, b, full = payload["T"], payload["B"], payload["full_bptt_alternative"]
    saved = 1 - 1 / payload["effective_ratio"]
    prescribed = _prescribed(payload, nrec, law)
    chosen = (
        "every pass is trained already"
        if t == b
        else f"({full['T']}, {full['B']}) costs {full['units']} units and has g {full['g']:.3f}, N_eff/N "
        f"{full['effective_ratio']:.3f}, compute per effective parameter {full['compute_per_effective']:.3f}"
    )
    lines = [
        ("g(T, B)", f"{payload['g']:.3f}", f"untied copies of the core; 1 without looping, ceiling {law.ceiling:.2f}"),
        ("N_eff/N", f"{payload['effective_ratio']:.3f}", "size of the model without loops that is as good"),
        ("cost of the core", f"{payload['units']}", "units, T + 2B; 3 without looping"),
        ("compute per token", f"{payload['compute_per_token']:.3f}", "relative to no looping"),
        ("compute per effective parameter", f"{payload['compute_per_effective']:.3f}",
         f"needed at the loss of the best model without loops, with {saved:.1%} fewer parameters"),
    ]  # fmt: skip
    return "\n".join([
        f"({t}, {b}): {counted(t, 'pass')}, the last {b} trained; "
        f"N_rec/N = {nrec:g}; by {law_name(law)}, compute 6·N_comp·D",
        *(f"  {name:<32}{value:>7}  {meaning}" for name, value, meaning in lines),
        f"  if T = {t} is prescribed: {prescribed}",
        f"  if T can be chosen too: {chosen}",
    ])  # fmt: skip


def _prescribed(payload: dict[str, Any], nrec: float, law: LoopLaw) -> str:
    """Which B is best at the T of a setting."""
    best = payload["best_B"]
    if best is None:
        return "the best B is not identified"
    if best == payload["B"]:
        return f"B = {best} is best at equal loss"
    needed = worth(payload["T"], best, nrec, law).compute_per_effective
    return f"B = {best} is best, with {1 - needed / payload['compute_per_effective']:.1%} less compute at equal loss"
