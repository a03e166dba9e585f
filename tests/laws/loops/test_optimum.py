"""Optima of the law against brute force, and the study's findings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from looplit.errors import InputError
from looplit.laws.loops import (
    PUBLISHED,
    STUDY_SETTINGS,
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
    full_backpropagation,
    switch_points,
    tokens_for,
    training_compute,
    worth,
)

N = 2.4e8
BUDGETS = np.geomspace(1e17, 1e24, 8)


def test_study_settings() -> None:
    assert len(STUDY_SETTINGS) == len(set(STUDY_SETTINGS)) == 15
    assert all(1 <= b <= t <= 16 for t, b in STUDY_SETTINGS)


# Prescribed passes.


def test_prescribed_passes_call_for_truncation() -> None:
    assert best_trained_passes(8) == 2
    assert best_trained_passes(1) == 1
    for t in (4, 8, 16):
        best = best_trained_passes(t)
        assert best < t
        losses = [best_size(1e20, t, b).loss for b in range(1, t + 1)]
        assert best == 1 + int(np.argmin(losses))  # the same at a budget as at equal loss


# Prescribed loop compute.


@pytest.mark.parametrize("units", [6, 12, 24, 48])
def test_free_split_trains_every_pass(units: int) -> None:
    assert best_whole_split(units) == best_split(units) == full_backpropagation(units) == (units / 3, units / 3)


@pytest.mark.parametrize("q", [0.1, 0.3, 0.47, 0.48, 1.0])
def test_split_is_the_best_on_the_line_of_equal_cost(q: float) -> None:
    law = replace(PUBLISHED, q=q)
    units = 30.0
    trained = np.linspace(1e-3, units / 3, 100_001)
    best = trained[np.argmax(law.g(units - 2 * trained, trained))]
    found = best_split(units, law)
    assert found.passes + 2 * found.trained_passes == pytest.approx(units)
    assert found.trained_passes == pytest.approx(best, abs=2e-4)  # two steps of the grid
    assert (found.trained_passes == pytest.approx(found.passes)) == (q >= 2 * law.p)


def test_whole_split_that_does_not_divide() -> None:
    fitting = [setting for setting in all_settings(10) if setting.passes + 2 * setting.trained_passes <= 10]
    assert best_whole_split(10) == max(fitting, key=lambda setting: float(PUBLISHED.g(*setting)))
    assert full_backpropagation(11) == (3, 3)
    for call in (best_split, best_whole_split, full_backpropagation):
        for units in (2, float("inf")):
            with pytest.raises(InputError, match=f"units = {units}"):
                call(units)


# Prescribed size.


@pytest.mark.parametrize("compute", BUDGETS)
def test_real_passes_minimise_the_loss(compute: float) -> None:
    def loss(log_passes: float) -> float:
        t = np.exp(log_passes)
        return float(PUBLISHED.loss(N, tokens_for(N, compute, t, t), t, t))

    found = best_passes(N, compute)
    reference = minimize_scalar(loss, bounds=(0, 6), method="bounded", options={"xatol": 1e-10})
    # The loss is flat at its minimum: double precision leaves about 1e-7 in log T, the parabola 1e-6.
    assert np.log(found.passes[0]) == pytest.approx(max(reference.x, 0), abs=1e-5)
    assert found.loss[0] == pytest.approx(reference.fun, rel=1e-10)  # the reference stops short of T = 1
    spent = training_compute(N, found.tokens, found.passes, found.passes)
    assert spent == pytest.approx([compute], rel=1e-12)


def test_whole_optimum_lies_beside_the_real_one_and_trains_every_pass() -> None:
    for compute in (1e19, 1e20, 1e21):
        found, real = best_at_size(N, compute), best_passes(N, compute)
        assert found.setting.passes == found.setting.trained_passes
        assert abs(found.setting.passes - real.passes[0]) < 1
        assert found.loss >= real.loss[0]
        assert float(training_compute(N, found.tokens, *found.setting)) == pytest.approx(compute)
    assert best_at_size(N, 1e18).setting == (1, 1)
    assert best_at_size(N, 1e21, [Setting(8, b) for b in (1, 2, 4, 8)]).setting == (8, 4)
    with pytest.raises(InputError, match="settings"):
        best_at_size(N, 1e20, [])


@pytest.mark.parametrize("size", [6e7, 1.2e8, 2.4e8, 4.8e8])
def test_switch_points(size: float) -> None:
    first, second = switch_points(size)
    assert first < second
    for compute, (low, high) in ((first, (1, 2)), (second, (2, 4))):
        both = np.array([low, high])
        tied = PUBLISHED.loss(size, tokens_for(size, compute, both, both), both, both)
        assert tied[0] == pytest.approx(tied[1], rel=1e-13)
        choices = [Setting(t, t) for t in (1, 2, 4)]
        assert best_at_size(size, 0.99 * compute, choices).setting.passes == low
        assert best_at_size(size, 1.01 * compute, choices).setting.passes == high
    assert switch_points(size, law=replace(PUBLISHED, c=0.0)) == [np.inf, np.inf]
    with pytest.raises(InputError, match="must rise"):
        switch_points(size, (2, 1))


def test_exponents() -> None:
    limit = asymptotic_exponents()
    assert limit == pytest.approx((0.238, 0.762), abs=5e-4)
    assert limit.passes == pytest.approx(0.3928 / (0.3928 + 0.2368 + 1.0218))
    finite = finite_exponents(N, (1e19, 1e21), 0.507)
    assert finite == pytest.approx((0.22, 0.84), abs=5e-3)
    # At T near a thousand N_once is a thousandth of the compute, and so is what separates the slopes from their limit.
    assert finite_exponents(N, (1e30, 1e31)) == pytest.approx(limit, abs=1e-3)
    with pytest.raises(InputError, match="loops do not pay there"):
        finite_exponents(N, (1e18, 1e21))


# Everything free.


@pytest.mark.parametrize("setting", [(1, 1), (2, 2), (8, 2)])
def test_best_size_minimises_the_loss(setting: tuple[int, int]) -> None:
    compute = 1e20
    sizes = np.geomspace(1e7, 1e11, 400_001)
    losses = PUBLISHED.loss(sizes, tokens_for(sizes, compute, *setting), *setting)
    found = best_size(compute, *setting)
    assert found.size == pytest.approx(sizes[np.argmin(losses)], rel=1e-3)  # flat: 1e-16 in loss is 1e-4 in size
    assert found.loss == pytest.approx(losses.min(), rel=1e-10)  # the grid misses the minimum by half a step
    assert found.loss <= losses.min() * (1 + 1e-15)
    assert float(training_compute(found.size, found.tokens, *setting)) == pytest.approx(compute)


@pytest.mark.parametrize("compute", BUDGETS)
def test_no_looping_is_best_when_all_is_free(compute: float) -> None:
    assert best_of_all(compute).setting == (1, 1)
    looped = [setting for setting in all_settings() if setting.passes > 1]
    assert best_of_all(compute, looped).setting == (2, 2)


@pytest.mark.parametrize(
    ("passes", "compute", "saved"), [(2, 1.031, 0.316), (4, 1.430, 0.433), (8, 2.376, 0.478)]
)  # fmt: skip
def test_what_full_backpropagation_costs_and_saves(passes: int, compute: float, saved: float) -> None:
    found = worth(passes, passes)
    assert (found.compute_per_effective, found.parameters_saved) == pytest.approx((compute, saved), abs=5e-4)
    for budget in BUDGETS:  # at equal loss, at any budget
        plain = best_size(budget)
        looped = best_size(budget * found.compute_per_effective, passes, passes)
        assert looped.loss == pytest.approx(plain.loss, rel=1e-13)
        assert looped.size / plain.size == pytest.approx(1 - found.parameters_saved, rel=1e-12)
        assert looped.tokens == pytest.approx(plain.tokens, rel=1e-12)


def test_full_backpropagation_is_the_frontier() -> None:
    """No truncated setting saves as much as the full one of the same compute, its passes a real number."""
    passes = np.geomspace(2, 64, 4000)
    compute, saved = PUBLISHED.compute_per_effective(passes, passes), 1 - 1 / PUBLISHED.effective_ratio(passes, passes)
    for setting in STUDY_SETTINGS:
        found = worth(*setting)
        if setting.passes > setting.trained_passes and found.compute_per_effective > compute[0]:
            assert found.parameters_saved < np.interp(found.compute_per_effective, compute, saved)
