"""The taskwise forecast: recovery from known task laws and sigmoids, its inverse, held-out runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from looplit.errors import InputError
from looplit.laws.forecast import (
    EXCLUDED_TASKS,
    GPT3_CORE,
    CoreForecast,
    TaskPoints,
    fit_forecast,
    fit_task_accuracy,
    fit_task_nll,
)

TASKS = {f"task_{i}": (0.4 + 0.05 * i, 1.2 + 0.1 * i, 0.12 + 0.02 * i, 2.0 + 0.3 * i, 2.5 + 0.2 * i) for i in range(4)}
"""Task → (E, A, α, s, b)."""
R = 0.87


def truth(gain: float, compute: np.ndarray) -> tuple[dict, dict, np.ndarray]:
    """NLL, accuracy and CORE of a series that is `gain` times as efficient."""
    nll = {task: e + a * (gain * compute / 1e18) ** -rate for task, (e, a, rate, _, _) in TASKS.items()}
    accuracy = {task: 1 / (1 + np.exp(s * nll[task] - b)) for task, (*_, s, b) in TASKS.items()}
    return nll, accuracy, R * np.mean(list(accuracy.values()), axis=0)


def series(gain: float = 1.0, noise: float = 0.0, seed: int = 0) -> TaskPoints:
    compute = np.geomspace(3e17, 1e20, 8)
    nll, accuracy, core = truth(gain, compute)
    rng = np.random.default_rng(seed)
    jitter = {task: tuple(values * np.exp(noise * rng.standard_normal(8))) for task, values in nll.items()}
    return TaskPoints(tuple(compute), jitter, {task: tuple(values) for task, values in accuracy.items()}, tuple(core),
                      tuple(f"gain {gain} run {i}" for i in range(8)))  # fmt: skip


def test_pipeline_is_recovered_and_extrapolates() -> None:
    fitted = fit_forecast({"vanilla": series(), "untied_grow": series(1.5)})
    assert fitted.conversion["r"] == pytest.approx(R, rel=1e-9)
    for task, (floor, height, rate, s, b) in TASKS.items():
        law, sigmoid = fitted.nll["untied_grow"][task], fitted.accuracy[task]
        assert law["E"] == pytest.approx(floor, rel=1e-4)
        assert law["gamma"] == pytest.approx(rate, rel=1e-4)
        assert np.exp(law["log_A"]) == pytest.approx(height * 1.5**-rate, rel=1e-4)
        assert (sigmoid["s"], sigmoid["b"]) == pytest.approx((s, b), rel=1e-4)
        assert law.huber_scale == 0.002  # noise-free, so the stated floor
        assert sigmoid.huber_scale == 0.005
    far = np.array([1.2e21])
    assert fitted.score("untied_grow", far) == pytest.approx(truth(1.5, far)[2], rel=1e-5)


def test_inverse_and_crossings() -> None:
    fitted = fit_forecast({"vanilla": series(), "untied_grow": series(1.5)})
    needed = fitted.compute_for("vanilla", 0.45)
    assert float(fitted.score("vanilla", needed)) == pytest.approx(0.45, abs=1e-9)
    # The second series is the first with 1.5 times the compute, so it needs that much less for every score.
    for spends in fitted.crossings(GPT3_CORE | {"high": 0.6}).values():
        if spends["vanilla"]:
            assert spends["vanilla"] / spends["untied_grow"] == pytest.approx(1.5, rel=1e-3)
    assert fitted.compute_for("vanilla", 0.99) is None
    assert fitted.compute_for("vanilla", 1e-6) is None


def test_saved_forecast_predicts_bit_for_bit(tmp_path: Path) -> None:
    fitted = fit_forecast({"vanilla": series(noise=0.01)}, bootstrap=6)
    fitted.save(tmp_path / "forecast.json")
    loaded = CoreForecast.load(tmp_path / "forecast.json")
    compute = np.geomspace(1e18, 1e24, 20)
    assert np.array_equal(loaded.score("vanilla", compute), fitted.score("vanilla", compute))
    assert np.array_equal(loaded.interval("vanilla", compute), fitted.interval("vanilla", compute))


def test_interval_widens_beyond_the_data() -> None:
    fitted = fit_forecast({"vanilla": series(noise=0.01)}, bootstrap=40)
    low, high = fitted.interval("vanilla", [1e19, 1e22])
    assert (low < fitted.score("vanilla", [1e19, 1e22])).all()
    assert high[1] - low[1] > 2 * (high[0] - low[0])


def test_excluded_tasks_stay_out_by_default() -> None:
    points = series()
    extra = {EXCLUDED_TASKS[0]: points.nll["task_0"]}
    points = TaskPoints(points.compute, points.nll | extra, points.accuracy | extra, points.core, points.labels)
    assert set(fit_forecast({"a": points}).accuracy) == set(TASKS)
    assert set(fit_forecast({"a": points}, tasks=["task_1"]).accuracy) == {"task_1"}


def test_bounds_hold_and_are_told() -> None:
    rising = fit_task_accuracy([1.0, 1.5, 2.0, 2.5], [0.1, 0.2, 0.3, 0.4])
    assert rising["s"] == pytest.approx(0, abs=1e-9)
    assert any("s lies on its lower bound" in warning for warning in rising.warnings)
    flat = fit_task_nll(np.geomspace(1e18, 1e20, 5), [2.0, 2.01, 1.99, 2.0, 2.005])
    assert 0 <= flat["E"] < 1.99
    assert 0.005 <= flat["gamma"] <= 2


def test_refusals() -> None:
    full, partial = series(), series()
    partial = TaskPoints(partial.compute, {"task_0": partial.nll["task_0"]}, partial.accuracy, partial.core,
                         partial.labels)  # fmt: skip
    with pytest.raises(InputError, match="tasks = 'task_1, task_2, task_3': b was evaluated on task_0"):
        fit_forecast({"a": full, "b": partial})
    with pytest.raises(InputError, match="series = 'c'"):
        fit_forecast({"a": full}).score("c", 1e20)


def test_interval_of_the_compute_for_a_score() -> None:
    """The ends are where the interval of the score meets the target; an end that no draw reaches is infinite."""
    fitted = fit_forecast({"vanilla": series(noise=0.003)}, bootstrap=60)
    low, high = fitted.compute_interval("vanilla", 0.4)
    needed = fitted.compute_for("vanilla", 0.4)
    assert needed is not None
    assert low < needed < high
    # Ends are ranks of 60 draws, and quantiles of the score are interpolated between two.
    assert float(fitted.interval("vanilla", low)[1]) == pytest.approx(0.4, abs=2e-3)
    assert float(fitted.interval("vanilla", high)[0]) == pytest.approx(0.4, abs=2e-3)
    assert fitted.compute_interval("vanilla", 0.999)[1] == np.inf
    assert not fit_forecast({"vanilla": series()}).drawn


def test_a_forecast_far_below_the_data_is_zero() -> None:
    fitted = fit_forecast({"vanilla": series()})
    with np.errstate(over="raise"):
        assert float(fitted.score("vanilla", 1e-10)) == pytest.approx(0, abs=1e-9)


def test_a_file_that_holds_no_pipeline_is_named(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text("{}")
    with pytest.raises(InputError, match=r"f\.json': holds no such fit"):
        CoreForecast.load(tmp_path / "f.json")
