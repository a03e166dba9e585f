"""Passes at matched compute and strategies on repeated data, from grids made of known curves."""

from __future__ import annotations

import numpy as np
import pytest

from looplit.errors import InputError
from looplit.laws.curves import optimum
from looplit.laws.matched import (
    Cell,
    at_tuned_weight_decay,
    ladders_by_passes,
    loss_at,
    lower_convex_envelope,
    marginal_gains,
    matched_cut,
    shared_budgets,
    strategies,
    strategy_multiplier,
    weight_decay_optima,
)

PASSES = (1, 2, 3, 4, 6, 8, 12)


def best_passes(compute: np.ndarray | float) -> np.ndarray | float:
    """K* of the made-up world: 2 at 1e18 and 4 at 1e20."""
    return 2 * (compute / 1e18) ** (np.log(2) / np.log(100))


def world(compute: np.ndarray, passes: int) -> np.ndarray:
    log_loss = 1.2 - 0.05 * np.log(compute / 1e18) + 0.01 * np.log(passes / best_passes(compute)) ** 2
    return np.exp(log_loss)


@pytest.mark.parametrize("budget", [2e18, 1e19, 5e19])
def test_optimum_at_a_budget_is_recovered(budget: float) -> None:
    compute = np.geomspace(1e18, 1e20, 400)
    cut = matched_cut({k: (compute, world(compute, k)) for k in PASSES}, budget)
    # Dense ladders leave a relative interpolation error near 1e-6 in loss, far below the curvature read here.
    assert cut.passes == pytest.approx(best_passes(budget), rel=1e-3)
    assert not cut.censored


def test_ladders_are_never_extrapolated() -> None:
    compute = np.geomspace(1e18, 1e20, 5)
    assert loss_at((compute, world(compute, 1)), 0.99e18) is None
    assert loss_at((compute, world(compute, 1)), 1e20) == pytest.approx(world(compute[-1:], 1)[0])
    ladders = {k: (compute * (10 if k == 12 else 1), world(compute, k)) for k in PASSES}
    assert 12 not in matched_cut(ladders, 2e18).losses
    with pytest.raises(InputError, match="no ladder"):
        matched_cut(ladders, 1e22)


def test_censored_optimum_is_the_best_measured_one() -> None:
    compute = np.geomspace(1e18, 1e20, 50)
    ladders = {k: (compute, world(compute, k)) for k in (6, 8, 12)}  # all above K*, so loss only rises with K
    cut = matched_cut(ladders, 1e18)
    assert cut.censored
    assert cut.passes == 6
    two = matched_cut({k: ladders[k] for k in (6, 8)}, 1e18)
    assert (two.fit, two.censored, two.passes) == (None, True, 6)


def test_shared_budgets_lie_where_three_ladders_do() -> None:
    ladders = {k: (np.array([k * 1e18, k * 1e20]), np.array([3.0, 2.5])) for k in (1, 2, 3, 4)}
    budgets = shared_budgets(ladders)
    assert budgets[0] == pytest.approx(3e18)
    assert budgets[-1] == pytest.approx(2e20)
    assert len(budgets) == 5


def test_envelope_against_brute_force() -> None:
    """At every budget, the envelope is the lowest chord between any two points, as far as loss still falls."""
    rng = np.random.default_rng(0)
    compute, loss = np.exp(rng.uniform(40, 46, 30)), rng.uniform(2.5, 3.5, 30)
    spends, lowest = lower_convex_envelope(compute, loss)
    x = np.log(compute)
    for at in np.linspace(np.log(spends[0]), np.log(spends[-1]), 40):
        chords = [
            loss[i] + (loss[j] - loss[i]) * (at - x[i]) / (x[j] - x[i])
            for i in range(30)
            for j in range(30)
            if x[i] <= at <= x[j] and x[i] < x[j]
        ]
        assert np.interp(at, np.log(spends), lowest) == pytest.approx(min(chords), abs=1e-9)
    assert (np.diff(lowest) < 0).all()
    assert lowest[-1] == loss.min()


def overfitting_grid() -> list[Cell]:
    """Size overfits at fixed weight decay and tuning helps; loops do not overfit."""
    cells = []
    for depth in (6, 8, 10, 12):
        for passes in (1, 2, 4):
            for decay in (0.4, 0.8, 1.6):
                compute = 1e17 * depth**1.5 * (passes + 2)
                best_decay = 0.1 * depth
                loss = 3.6 - 0.02 * depth - 0.1 * np.log(passes) + 0.05 * np.log(decay / best_decay) ** 2
                cells.append(Cell(depth, passes, decay, compute, float(loss)))
    return cells


def test_strategies_and_their_multiplier() -> None:
    cells = overfitting_grid()
    curves = strategies(cells, 0.8)
    size, loops = curves["size, tuned weight decay"], curves["loops, fixed weight decay"]
    assert len(size[0]) == 4
    loss = float(size[1].min())
    multiplier = strategy_multiplier(size, loops, loss)
    assert multiplier is not None
    assert multiplier > 1
    assert strategy_multiplier(loops, size, loss) == pytest.approx(1 / multiplier)
    assert strategy_multiplier(size, loops, 1.0) is None
    tuned = {cell.depth: cell.weight_decay for cell in at_tuned_weight_decay(cells)}
    assert tuned == {6: 0.8, 8: 0.8, 10: 0.8, 12: 1.6}


def test_marginal_gains_and_weight_decay() -> None:
    cells = overfitting_grid()
    gains = marginal_gains([cell for cell in cells if cell.weight_decay == 0.8])
    assert gains[8] == pytest.approx({1: 0.0, 2: -0.1 * np.log(2), 4: -0.1 * np.log(4)})
    found = optimum(weight_decay_optima(cells)[8, 2])
    # The made-up loss is a parabola itself, not its logarithm, so the vertex moves by a per mille.
    assert found.value == pytest.approx(0.8, rel=5e-3)
    assert set(ladders_by_passes(cells)) == {1, 2, 4}
