"""Sweeps: vertices recovered, flagged or refused; drift; growth allocation; sensitivity."""

from __future__ import annotations

import numpy as np
import pytest

from looplit.errors import InputError
from looplit.laws.curves import (
    best_measured,
    fit_line,
    fit_parabola,
    fit_proportion,
    is_curved,
    is_significant,
    optimum,
)
from looplit.laws.fit import Fit
from looplit.laws.rows import check_rows
from looplit.laws.stages import (
    affine_growth,
    drift,
    growth_allocation,
    growth_expansion,
    sensitivity,
    sweep_rows,
)


def bowl(x: np.ndarray, best: float, depth: float = 3.0, curvature: float = 0.02) -> np.ndarray:
    """A loss whose logarithm is a parabola in log x."""
    return depth * np.exp(curvature * np.log(x / best) ** 2)


def test_vertex_in_logs_is_recovered() -> None:
    x = np.array([2.0, 3.5, 6.0, 10.0, 17.0])
    fit = fit_parabola(sweep_rows(x, bowl(x, 5.7)))
    found = optimum(fit)
    assert found is not None
    assert found.value == pytest.approx(5.7, rel=1e-9)
    assert fit["minimum"] == pytest.approx(3.0, rel=1e-12)
    assert found.standard_error == pytest.approx(0, abs=1e-6)


def test_vertex_error_is_that_of_resampling() -> None:
    """The delta method against the spread of the vertex over fresh noise."""
    x = np.geomspace(2, 20, 9)
    fits = [
        fit_parabola(sweep_rows(x, bowl(x, 6.0) * np.exp(1e-3 * np.random.default_rng(seed).standard_normal(9))))
        for seed in range(200)
    ]
    spread = np.std([fit["vertex"] for fit in fits])
    claimed = np.mean([fit.parameter("vertex").standard_error for fit in fits])
    # A standard deviation from 200 draws is known to 5 %, and the vertex is not quite normal.
    assert claimed == pytest.approx(spread, rel=0.2)


def test_growth_fraction_sweeps_are_in_raw_rho() -> None:
    rho = np.linspace(0, 0.8, 6)
    fit = fit_parabola(sweep_rows(rho, 3.2 * np.exp(0.05 * (rho - 0.271) ** 2), x_space="raw"), "raw")
    assert optimum(fit).value == pytest.approx(0.271, rel=1e-9)


@pytest.mark.parametrize(("best", "end"), [(1.5, "lower"), (30.0, "upper")])
def test_vertex_outside_the_data_is_flagged(best: float, end: str) -> None:
    x = np.array([2.0, 3.5, 6.0, 10.0, 17.0])
    loss = bowl(x, best)
    inner = 1 if best < 2 else 3
    loss[inner] = loss[0 if best < 2 else 4] * (1 - 1e-4)  # not monotone, so only the vertex' place is wrong
    fit = fit_parabola(sweep_rows(x, loss))
    if fit.parameter("vertex").bound is None:
        pytest.fail("the case does not put the vertex outside the data")
    assert fit.parameter("vertex").bound == end
    assert optimum(fit) is None
    assert any(f"beyond the {end} end" in warning for warning in fit.warnings)


def test_monotone_and_upside_down_sweeps_have_no_optimum() -> None:
    x = np.array([2.0, 3.5, 6.0, 10.0])
    falling = fit_parabola(sweep_rows(x, bowl(x, 9.0)))  # the vertex would lie inside the last interval
    assert optimum(falling) is None
    assert any("monotone" in warning for warning in falling.warnings)
    hill = fit_parabola(sweep_rows(x, [3.0, 3.1, 3.1, 3.0]))
    assert optimum(hill) is None
    assert any("does not bend upwards" in warning for warning in hill.warnings)
    with pytest.raises(InputError, match="the fit of 'parabola of log y in log x' has a, b, c"):
        falling.parameter("vertex")


def test_three_points_have_no_error_and_say_so() -> None:
    fit = fit_parabola(sweep_rows([1.0, 2.0, 4.0], [3.1, 3.0, 3.2]))
    assert fit.parameter("vertex").standard_error is None
    assert any("no standard error" in warning for warning in fit.warnings)
    with pytest.raises(InputError, match="points = 2: .* 3 parameters"):
        fit_parabola(sweep_rows([1.0, 2.0, 2.0], [3.1, 3.0, 3.2]))


def test_drift_exponent_and_its_p_value() -> None:
    sizes = np.array([2.1e8, 2.6e8, 3.3e8, 5e8])
    exact = drift(sizes, 0.04 * (sizes / 2.1e8) ** -0.8)
    assert exact["b"] == pytest.approx(-0.8, rel=1e-9)
    noisy = drift(sizes, 6 * np.exp([0.05, -0.04, 0.03, -0.05]))
    assert 0.05 < noisy["p"] < 1
    assert not is_significant(noisy)
    # scipy's own regression is the reference for the p-value.
    from scipy.stats import linregress

    reference = linregress(np.log(sizes), np.log(noisy.observed))
    assert noisy["p"] == pytest.approx(reference.pvalue, rel=1e-9)
    assert noisy.parameter("b").standard_error == pytest.approx(reference.stderr, rel=1e-9)
    assert noisy["R2"] == pytest.approx(reference.rvalue**2, rel=1e-9)


def test_affine_growth_law_from_sweeps() -> None:
    """Budgets made from Eq. 5 and 11 give back its coefficients, and the expansion they imply."""
    expansion, rho = 0.45, np.linspace(0, 0.6, 7)
    fixed, grown = [], []
    for tpp in (3.0, 6.0, 12.0, 24.0):
        at_rho = tpp / (1 + expansion * rho)
        best = (tpp / (0.883 * tpp + 0.103) - 1) / expansion
        pair = growth_allocation(rho, at_rho, best)
        fixed.append(pair[0])
        grown.append(pair[1])
    assert fixed == pytest.approx([3.0, 6.0, 12.0, 24.0], rel=1e-9)
    fit = affine_growth(fixed, grown)
    assert (fit["b"], fit["a"]) == pytest.approx((0.883, 0.103), rel=1e-6)
    assert fit["R2"] > 0.9999
    assert growth_expansion(fit, 1e9) == pytest.approx(1 / 0.883, rel=1e-6)


def test_sensitivity_row() -> None:
    multipliers = np.array([0.25, 0.5, 1, 2, 4])
    slices = {size: (multipliers, bowl(multipliers, (size / 2e8) ** -0.5)) for size in (2e8, 3e8, 4e8)}
    row, fits = sensitivity(slices)
    centre = bowl(multipliers, 2**-0.5)
    assert row.drift["b"] == pytest.approx(-0.5, rel=1e-8)
    assert row.significant
    assert row.size == 4e8
    assert row.regret == pytest.approx(1e3 * ((centre[1] + centre[3]) / 2 - centre[2]))
    assert row.loss_range == pytest.approx(1e3 * np.ptp(centre))
    assert set(fits) == set(slices)


def test_regret_averages_over_seeds() -> None:
    row, _ = sensitivity({2e8: ([0.5, 1, 1, 2], [3.02, 3.0, 3.01, 3.04])})
    assert row.regret == pytest.approx(1e3 * (3.03 - 3.005))


def test_curves_load_and_predict_alike(tmp_path) -> None:
    x = np.linspace(1, 5, 8)
    for x_space in ("raw", "log"):
        for y_space in ("raw", "log"):
            for kind in (fit_line, fit_parabola):
                fit = kind(check_rows({"x": x}, 2 + np.cos(x)), x_space, y_space)
                fit.save(tmp_path / "fit.json")
                assert np.array_equal(Fit.load(tmp_path / "fit.json").predict(x=x), fit.predict(x=x))
                inside = fit.predict(x=x)
                residuals = np.log(2 + np.cos(x)) - np.log(inside) if y_space == "log" else 2 + np.cos(x) - inside
                assert residuals == pytest.approx(np.array(fit.residuals), abs=1e-12)


def test_proportion() -> None:
    x = np.array([0.1, 0.2, 0.4])
    assert fit_proportion(check_rows({"x": x}, 0.869 * x))["r"] == pytest.approx(0.869)


def test_optima_that_agree_are_no_repeats() -> None:
    """Three sweeps, two of them with the same optimum at the same size: results of fits, not one row twice."""
    law = affine_growth([5.0, 5.0, 7.0], [4.6, 4.6, 6.4])
    assert law["b"] == pytest.approx(0.9)
    assert drift([1e8, 1e8, 2e8], [6.0, 6.0, 3.0])["b"] == pytest.approx(-1)


def test_curvature_beyond_noise() -> None:
    x = np.geomspace(1, 16, 5)
    noise = 1e-3 * np.random.default_rng(0).standard_normal((200, 5))
    kept = [is_curved(fit_parabola(sweep_rows(x, 3 * np.exp(each)))) for each in noise]
    # One in twenty by design: 10 of 200, with a standard deviation of 3.
    assert 1 <= sum(kept) <= 20
    assert all(is_curved(fit_parabola(sweep_rows(x, bowl(x, 4) * np.exp(each)))) for each in noise[:50])
    assert is_curved(fit_parabola(sweep_rows(x[:3], bowl(x[:3], 2))))  # three points leave nothing to judge by


def test_the_best_measured_value_is_that_of_the_best_mean() -> None:
    fit = fit_parabola(sweep_rows([1, 2, 2, 3, 4], [3.2, 3.0, 3.4, 3.1, 3.3]))
    assert best_measured(fit) == 3


def test_curves_in_logs_refuse_what_has_none() -> None:
    with pytest.raises(InputError, match="x = -1.0 in row 1, row 2: must be above 0 to be read in logs"):
        fit_parabola(check_rows({"x": [-1.0, 0, 1]}, [1.0, 2, 3]))
    with pytest.raises(InputError, match="y = 0.0 in row 2: must be above 0 to be read in logs"):
        fit_line(check_rows({"x": [1.0, 2]}, [1.0, 0]), "raw", "log")
