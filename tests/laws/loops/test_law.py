"""The truncation study's law: its published values, its limits, and its costs against exact counts."""

from __future__ import annotations

import numpy as np
import pytest

from looplit.accounting.flops import loop_cost, nonembedding_parameters, truncated_compute_parameters
from looplit.errors import InputError
from looplit.laws.loops import PUBLISHED, STUDY_SETTINGS, LoopLaw, compute_ratio, cost_units, training_compute
from looplit.recipes.families import FAMILIES

# The study rounds to three decimals, or four digits; half a unit of the last is the tolerance.
ROUNDED = 5e-4


def test_published_values() -> None:
    assert PUBLISHED.g([2, 4], [2, 4]) == pytest.approx([1.910, 2.504], abs=ROUNDED)
    assert PUBLISHED.ceiling == pytest.approx(3.040, abs=ROUNDED)
    assert PUBLISHED.effective_ratio(4, [4, 1], 0.507) == pytest.approx([1.762, 1.185], abs=ROUNDED)
    saved = 1 - PUBLISHED.compute_per_effective(8, 2) / PUBLISHED.compute_per_effective(8, 8)
    assert float(saved) == pytest.approx(0.34, abs=5e-3)
    assert PUBLISHED.criterion == pytest.approx(1.0218 - 2 * 0.2368)


def test_g_is_one_without_looping_rises_with_both_and_stays_below_its_ceiling() -> None:
    passes = np.arange(1, 65)
    g = np.array([PUBLISHED.g(t, np.minimum(passes, t)) for t in passes])  # rows T, columns B
    allowed = passes[None, :] <= passes[:, None]
    assert g[0, 0] == 1
    assert (np.diff(g, axis=0)[allowed[:-1]] > 0).all()
    assert (np.diff(g, axis=1)[allowed[:, 1:]] > 0).all()
    assert (g < PUBLISHED.ceiling).all()
    assert float(PUBLISHED.g(16, 0)) == 0
    assert float(PUBLISHED.effective_ratio(16, 0, 0.5)) == 0.5  # prelude and coda alone


def test_doubling_trained_passes_adds_more_than_doubling_passes() -> None:
    """The study's first finding, from every setting where both are possible."""
    for t, b in ((2, 1), (4, 1), (4, 2), (8, 1), (8, 2), (8, 4)):
        assert PUBLISHED.g(t, 2 * b) > PUBLISHED.g(2 * t, b)


def test_loss_is_the_written_equation() -> None:
    size, tokens, t, b, r = 2.4e8, 16 * 2.0**30, 8, 2, 0.507
    g = np.exp(1.1120 * (1 - t**-0.2368 * b**-1.0218))
    effective = size * (1 - r) + g * size * r
    by_hand = 0.2986 + (6.4870 * (effective / 2.4e8) ** -0.3057 + 7.6334 * 16**-0.3928) ** 0.3251
    assert float(PUBLISHED.loss(size, tokens, t, b, r)) == pytest.approx(by_hand, rel=1e-14)
    assert float(PUBLISHED.loss(2.4e8, 2.0**30)) == pytest.approx(0.2986 + (6.4870 + 7.6334) ** 0.3251, rel=1e-14)
    table = PUBLISHED.loss(np.array([[1e8], [2e8]]), np.array([1e9, 2e9, 4e9]), 4, 2)
    assert table.shape == (2, 3)
    assert (np.diff(table, axis=0) < 0).all()
    assert (np.diff(table, axis=1) < 0).all()


def test_effective_size_inverts_the_loss() -> None:
    sizes, tokens = np.geomspace(1e7, 1e10, 7), np.geomspace(1e9, 1e11, 7)
    assert PUBLISHED.effective_size(PUBLISHED.loss_at(sizes, tokens), tokens) == pytest.approx(sizes, rel=1e-9)
    endless = float(PUBLISHED.loss_at(1e30, 1e9))
    assert np.isnan(PUBLISHED.effective_size([endless - 1e-3, 0.2], 1e9)).all()


@pytest.mark.parametrize("setting", STUDY_SETTINGS)
def test_costs_are_those_of_the_accounting(setting: tuple[int, int]) -> None:
    config = FAMILIES["loop_2"].backbone(8)
    share = config.core / (config.prelude + config.core + config.coda)
    size = nonembedding_parameters(config)
    assert float(cost_units(*setting)) == loop_cost(*setting)
    counted = truncated_compute_parameters(config, *setting)
    assert size * float(compute_ratio(*setting, share)) == pytest.approx(counted, rel=1e-14)
    assert float(training_compute(size, 1e9, *setting, share)) == pytest.approx(6e9 * counted, rel=1e-14)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PUBLISHED.g(2, 3), "trained_passes = 3"),
        (lambda: PUBLISHED.g([4, 2], [2, -1]), "B must be from 0 to T"),
        (lambda: cost_units(0, 0), "passes = 0: T must be at least 1"),
        (lambda: compute_ratio(2, 2, 1.5), "nrec = 1.5: N_rec/N must be above 0 and at most 1"),
    ],
)
def test_wrong_settings_are_refused(call: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_a_law_where_truncation_pays() -> None:
    assert LoopLaw(**PUBLISHED.__dict__ | {"q": 0.3}).criterion < 0
