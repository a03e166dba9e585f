"""What the law says is best: trained passes at given T, settings at given loop compute, at given size, or all free."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from looplit.errors import require
from looplit.laws.loops.law import (
    NREC,
    PUBLISHED,
    Array,
    LoopLaw,
    compute_ratio,
    cost_units,
    training_compute,
)

LONGEST = 64
"""Passes up to which whole-numbered optima are sought, four times what the study's runs cover."""

_GRID = np.linspace(0, np.log(1e4), 3001)
"""log T over which a continuous optimum is bracketed; a parabola through three neighbours then leaves 1e-6."""


class Setting(NamedTuple):
    """(T, B): forward passes, and how many of the last ones are trained."""

    passes: float
    trained_passes: float

    def __str__(self) -> str:
        return f"({self.passes:g}, {self.trained_passes:g})"


NO_LOOPING = Setting(1, 1)

STUDY_SETTINGS = tuple(Setting(t, b) for t in (1, 2, 4, 8, 16) for b in (1, 2, 4, 8, 16) if b <= t)
"""The study's 15 settings."""


def all_settings(longest: int = LONGEST) -> list[Setting]:
    """Every whole-numbered (T, B) with 1 ≤ B ≤ T ≤ `longest`."""
    return [Setting(t, b) for t in range(1, longest + 1) for b in range(1, t + 1)]


@dataclass(frozen=True)
class Worth:
    """What one setting is worth, relative to no looping.

    Args:
        setting: (T, B).
        g: Untied copies of the core that the loops replace.
        effective_ratio: N_eff/N.
        units: T + 2B.
        compute_per_token: N_comp/N.
        compute_per_effective: N_comp/N_eff, the compute needed to match the best model without loops at equal loss.
        parameters_saved: 1 - N/N_eff, the share of non-embedding parameters saved at equal loss.
    """

    setting: Setting
    g: float
    effective_ratio: float
    units: float
    compute_per_token: float
    compute_per_effective: float
    parameters_saved: float


def worth(passes: float, trained_passes: float, nrec: float = NREC, law: LoopLaw = PUBLISHED) -> Worth:
    """What (T, B) is worth.

    At equal loss the optimal N_eff and D are those of the best model without loops, at any budget; so the setting
    needs N_comp/N_eff times its compute and N/N_eff times its parameters.

    >>> two = worth(2, 2)
    >>> f"{two.compute_per_effective:.3f} of the compute, {two.parameters_saved:.1%} fewer parameters"
    '1.031 of the compute, 31.6% fewer parameters'
    """
    ratio = float(law.effective_ratio(passes, trained_passes, nrec))
    require(ratio > 0, "trained_passes", trained_passes, "leaves no effective parameter at nrec = 1")
    per_token = float(compute_ratio(passes, trained_passes, nrec))
    return Worth(
        setting=Setting(passes, trained_passes),
        g=float(law.g(passes, trained_passes)),
        effective_ratio=ratio,
        units=float(cost_units(passes, trained_passes)),
        compute_per_token=per_token,
        compute_per_effective=per_token / ratio,
        parameters_saved=1 - 1 / ratio,
    )


def best_trained_passes(passes: int, nrec: float = NREC, law: LoopLaw = PUBLISHED) -> int:
    """B* at a prescribed T: the least compute at equal loss, the size free.

    >>> best_trained_passes(8)
    2
    """
    candidates = np.arange(1, passes + 1)
    return int(candidates[np.argmin(law.compute_per_effective(passes, candidates, nrec))])


def best_split(units: float, law: LoopLaw = PUBLISHED) -> Setting:
    """Real (T, B) of the highest g at a loop compute of T + 2B units: B/T = q/(2p), at most 1 (full backpropagation).

    It follows from maximising p·log T + q·log B; at equal size and compute the highest g is also the lowest loss.

    >>> str(best_split(12))
    '(4, 4)'
    """
    _require_units(units)
    share = min(1.0, law.q / (2 * law.p)) if law.p > 0 else 1.0
    return Setting(units / (1 + 2 * share), share * units / (1 + 2 * share))


def best_whole_split(units: float, law: LoopLaw = PUBLISHED) -> Setting:
    """Whole-numbered (T, B) of the highest g with T + 2B at most `units`.

    >>> str(best_whole_split(12)), str(best_whole_split(10))
    ('(4, 4)', '(4, 3)')
    """
    _require_units(units)
    trained = np.arange(1, int(units // 3) + 1)
    passes = np.floor(units - 2 * trained)  # g rises with T, so whatever B leaves is spent
    best = int(np.argmax(law.g(passes, trained)))
    return Setting(int(passes[best]), int(trained[best]))


def full_backpropagation(units: float) -> Setting:
    """The longest loop with every pass trained that costs at most `units`.

    >>> str(full_backpropagation(12))
    '(4, 4)'
    """
    _require_units(units)
    return Setting(units // 3, units // 3)


def _require_units(units: float) -> None:
    require(3 <= units <= 1e6, "units", units, "must be from 3, one pass forward and backward, to a million")


@dataclass(frozen=True)
class Optimum:
    """A training run that the law recommends.

    Args:
        setting: (T, B).
        size: N, non-embedding parameters.
        tokens: D.
        compute: 6·N_comp·D.
        loss: Predicted, nats per token.
    """

    setting: Setting
    size: float
    tokens: float
    compute: float
    loss: float


def tokens_for(size: ArrayLike, compute: ArrayLike, passes: ArrayLike, trained_passes: ArrayLike,
               nrec: ArrayLike = NREC) -> Array:  # fmt: skip
    """D = C/(6·N_comp)."""
    return np.asarray(compute, float) / training_compute(size, 1, passes, trained_passes, nrec)


def best_at_size(
    size: float,
    compute: float,
    settings: Iterable[Setting] | None = None,
    nrec: float = NREC,
    law: LoopLaw = PUBLISHED,
) -> Optimum:
    """The setting of the lowest loss at a given size and compute; what a setting saves goes to tokens.

    Args:
        size: N.
        compute: C.
        settings: To choose from; default every whole-numbered one up to `LONGEST` passes.
        nrec: N_rec/N.
        law: The law.
    """
    choices = _choices(settings)
    t, b = np.array(choices, float).T
    tokens = tokens_for(size, compute, t, b, nrec)
    losses = law.loss(size, tokens, t, b, nrec)
    best = int(np.argmin(losses))
    return Optimum(choices[best], size, float(tokens[best]), compute, float(losses[best]))


def _choices(settings: Iterable[Setting] | None) -> list[Setting]:
    choices = list(all_settings() if settings is None else settings)
    require(bool(choices), "settings", "none", "must hold at least one (T, B)")
    return choices


class PassesPath(NamedTuple):
    """T* and D* over budgets at one size, with full backpropagation and real T."""

    compute: Array
    passes: Array
    tokens: Array
    loss: Array


def best_passes(size: float, compute: ArrayLike, nrec: float = NREC, law: LoopLaw = PUBLISHED) -> PassesPath:
    """Real T* from 1 to 10^4 with every pass trained, and D*, at a given size over budgets.

    Args:
        size: N.
        compute: C, one budget or an array of them.
        nrec: N_rec/N.
        law: The law.
    """
    budgets = np.atleast_1d(np.asarray(compute, float))

    def loss(log_passes: Array) -> Array:
        t = np.exp(log_passes)
        return law.loss(size, tokens_for(size, budgets[:, None], t, t, nrec), t, t, nrec)

    losses = loss(_GRID)
    middle = np.clip(np.argmin(losses, axis=1), 1, len(_GRID) - 2)
    before, at, after = (np.take_along_axis(losses, (middle + shift)[:, None], 1)[:, 0] for shift in (-1, 0, 1))
    step = _GRID[1] * (before - after) / (2 * (before - 2 * at + after))
    log_passes = np.where(np.argmin(losses, axis=1) == 0, 0.0, _GRID[middle] + step)
    passes = np.exp(np.maximum(log_passes, 0.0))
    tokens = tokens_for(size, budgets, passes, passes, nrec)
    return PassesPath(budgets, passes, tokens, law.loss(size, tokens, passes, passes, nrec))


def switch_points(
    size: float, passes: Sequence[int] = (1, 2, 4), nrec: float = NREC, law: LoopLaw = PUBLISHED
) -> list[float]:
    """Budgets at which, at a given size, each loop count takes over from the one before it, every pass trained.

    With h = N_comp/N and s the size term, C = 6·N·D0·[H·(h2^β - h1^β)/(s1 - s2)]^(1/β) makes the losses equal;
    infinite where more passes add nothing.

    Args:
        size: N.
        passes: Rising loop counts.
        nrec: N_rec/N.
        law: The law.
    """
    t = np.asarray(passes, float)
    require(bool(np.all(np.diff(t) > 0)), "passes", passes, "must rise")
    terms = law.size_term(size * law.effective_ratio(t, t, nrec))
    ratios = compute_ratio(t, t, nrec) ** law.beta
    with np.errstate(divide="ignore"):
        reduced = law.H * np.diff(ratios) / -np.diff(terms)
    return [float(budget) for budget in 6 * size * law.d0 * reduced ** (1 / law.beta)]


class Exponents(NamedTuple):
    """T* ∝ C^passes and D* ∝ C^tokens."""

    passes: float
    tokens: float


def asymptotic_exponents(law: LoopLaw = PUBLISHED) -> Exponents:
    """β/(β + p + q) and its complement: given size and full backpropagation, once T·N_rec outweighs N_once.

    >>> [round(exponent, 3) for exponent in asymptotic_exponents()]
    [0.238, 0.762]
    """
    passes = law.beta / (law.beta + law.p + law.q)
    return Exponents(passes, 1 - passes)


def finite_exponents(
    size: float, budgets: tuple[float, float], nrec: float = NREC, law: LoopLaw = PUBLISHED
) -> Exponents:
    """Slopes of log T* and log D* between two budgets at a given size. They add up to more than 1: N_once is not free.

    Args:
        size: N.
        budgets: The two ends, where loops pay already (T* > 1).
        nrec: N_rec/N.
        law: The law.
    """
    path = best_passes(size, budgets, nrec, law)
    require(bool(np.all(path.passes > 1)), "budgets", budgets, "T* is 1 at one of them; loops do not pay there yet")
    span = np.log(budgets[1] / budgets[0])
    return Exponents(*(float(np.log(values[1] / values[0]) / span) for values in (path.passes, path.tokens)))


def best_size(
    compute: float, passes: float = 1, trained_passes: float = 1, nrec: float = NREC, law: LoopLaw = PUBLISHED
) -> Optimum:
    """The compute-optimal size and tokens of a setting.

    C fixes x = N_eff·D; the best N_eff solves α·size term = β·data term.

    Args:
        compute: C.
        passes: T.
        trained_passes: B.
        nrec: N_rec/N.
        law: The law.
    """
    product = compute / (6 * float(law.compute_per_effective(passes, trained_passes, nrec)) * law.n0 * law.d0)
    total = law.alpha + law.beta
    reduced = (law.alpha * law.A / (law.beta * law.H)) ** (1 / total) * product ** (law.beta / total)
    effective, tokens = law.n0 * reduced, law.d0 * product / reduced
    size = effective / float(law.effective_ratio(passes, trained_passes, nrec))
    return Optimum(Setting(passes, trained_passes), size, tokens, compute, float(law.loss_at(effective, tokens)))


def best_of_all(
    compute: float, settings: Iterable[Setting] | None = None, nrec: float = NREC, law: LoopLaw = PUBLISHED
) -> Optimum:
    """The best size, tokens and setting at a budget: the setting of the least compute per effective parameter.

    Over whole passes only: between 1 and 2 the law's curve dips below no looping, where there is nothing to run.

    >>> str(best_of_all(1e20).setting)
    '(1, 1)'
    """
    choices = _choices(settings)
    t, b = np.array(choices, float).T
    cost = law.compute_per_effective(t, b, nrec)
    return best_size(compute, *choices[int(np.argmin(cost))], nrec, law)
