"""What a grid of passes, sizes and weight decays tells, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from looplit.laws.answers.base import method
from looplit.laws.fit import Fit
from looplit.wording import shown, table


def recurrence_text(payload: Mapping[str, Any]) -> str:
    """The tables of `RecurrenceAnswer`."""
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
