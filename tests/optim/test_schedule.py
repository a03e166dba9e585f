"""The schedule against values worked out by hand from the study's rule."""

from __future__ import annotations

import pytest

from looplit.optim import learning_rate_factor, rewarm_factor


@pytest.mark.parametrize(
    ("steps", "warmup", "warmdown", "values"),
    [
        # WU 4, decay over the last round(0.4·10) = 4 steps: t0 = 6, 1 at 6, 0 at 9
        (10, 4, 0.4, [0.25, 0.5, 0.75, 1, 1, 1, 1, 2 / 3, 1 / 3, 0]),
        # WDR 1: the decay starts right after the warmup, t0 = WU = 2
        (6, 2, 1.0, [0.5, 1, 1, 2 / 3, 1 / 3, 0]),
        # no warmup: full from the first step
        (5, 0, 0.4, [1, 1, 1, 1, 0]),  # round(2) = 2 steps: t0 = 3, 1 at 3, 0 at 4
        # a decay of a single step gives 0
        (5, 0, 0.2, [1, 1, 1, 1, 0]),
        # no decay at all
        (4, 1, 0.0, [1, 1, 1, 1]),
        # a warmup longer than the run is capped at the run
        (4, 40, 0.6, [0.25, 0.5, 0.75, 1]),
        # warmup and decay overlap: the decay starts where the warmup ends
        (6, 4, 0.8, [0.25, 0.5, 0.75, 1, 1, 0]),
    ],
)
def test_values_by_hand(steps: int, warmup: int, warmdown: float, values: list[float]) -> None:
    assert [learning_rate_factor(t, steps, warmup, warmdown) for t in range(steps)] == pytest.approx(values)


@pytest.mark.parametrize(
    ("steps", "warmup", "warmdown", "final", "values"),
    [
        # the truncation study: no warmup, linear from 1 to 0.1 over the whole run
        (7, 0, 1.0, 0.1, [1, 0.85, 0.7, 0.55, 0.4, 0.25, 0.1]),
        # t0 = 3 of 5 steps: the final factor is reached at the last one
        (5, 2, 0.4, 0.5, [0.5, 1, 1, 1, 0.5]),
        # a decay of a single step, and a run of a single step
        (5, 0, 0.2, 0.3, [1, 1, 1, 1, 0.3]),
        (1, 0, 1.0, 0.1, [0.1]),
        # a final factor of 1 does not decay, whatever the ratio
        (4, 1, 1.0, 1.0, [1, 1, 1, 1]),
    ],
)
def test_the_decay_ends_at_the_final_factor(
    steps: int, warmup: int, warmdown: float, final: float, values: list[float]
) -> None:
    factors = [learning_rate_factor(t, steps, warmup, warmdown, final_factor=final) for t in range(steps)]
    assert factors == pytest.approx(values)


def test_after_the_end_the_rate_stays() -> None:
    assert learning_rate_factor(10, 10, 0, 0.5) == 0
    assert learning_rate_factor(99, 10, 0, 0.5) == 0
    assert learning_rate_factor(99, 10, 0, 1.0, final_factor=0.1) == 0.1


def test_the_published_d8_vanilla() -> None:
    """1,962 steps, WU 40, WDR 0.6: the decay starts at 1962 - round(1177.2) = 785."""
    at = {0: 1 / 40, 39: 1.0, 784: 1.0, 785: 1.0, 786: 1175 / 1176, 1373: 588 / 1176, 1961: 0.0}
    for t, factor in at.items():
        assert learning_rate_factor(t, 1962, 40, 0.6) == pytest.approx(factor)


def test_rewarm_starts_at_zero_and_ends_after_its_steps() -> None:
    factors = {99: 1.0, 100: 0.0, 101: 1 / 40, 120: 0.5, 139: 39 / 40, 140: 1.0, 1000: 1.0}
    assert {t: rewarm_factor(t, [100]) for t in factors} == pytest.approx(factors)


def test_rewarms_of_several_growths_multiply() -> None:
    assert rewarm_factor(130, [100, 120]) == pytest.approx(30 / 40 * 10 / 40)


def test_no_rewarm_where_none_is_asked_for() -> None:
    assert rewarm_factor(100, [100], 0) == 1.0
