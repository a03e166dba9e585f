"""Curves that are linear in their parameters: lines, parabolas with their vertex, and proportions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import stdtr

from looplit.errors import require
from looplit.laws.fit import SPACES, Array, Fit, Law, Parameter, register
from looplit.laws.rows import Rows, average_replicates, refuse
from looplit.laws.solve import fit_linear

Predict = Callable[[Mapping[str, Any], Mapping[str, Any]], Any]


def _curve(kind: str, x_space: str, y_space: str) -> Law:
    """The line or parabola in the given spaces."""
    to_x, to_y = ("" if space == "raw" else "log " for space in (x_space, y_space))

    def predict(columns: Mapping[str, Any], p: Mapping[str, Any]) -> Any:
        x = SPACES[x_space][0](columns["x"], None)
        if kind == "line":
            value = p["a"] + p["b"] * x
        else:
            value = p["a"] + p["b"] * (x - p["x0"]) + p["c"] * (x - p["x0"]) ** 2
        return SPACES[y_space][1](value, None)

    name = f"{kind} of {to_y}y in {to_x}x"
    if kind == "line":
        return Law(name, f"{to_y}y = a + b·{to_x}x", {"x": "x"}, ("a", "b"), "y", predict)
    equation = f"{to_y}y = a + b·({to_x}x - x0) + c·({to_x}x - x0)²"
    return Law(name, equation, {"x": "x"}, ("a", "b", "c", "x0"), "y", predict)


CURVES = {
    (kind, x_space, y_space): register(_curve(kind, x_space, y_space))
    for kind in ("line", "parabola")
    for x_space in ("raw", "log")
    for y_space in ("raw", "log")
}

PROPORTION = register(
    Law("proportion", "y = r·x", {"x": "x"}, ("r",), "y", lambda columns, p: p["r"] * columns["x"]),
)


def fit_line(rows: Rows, x_space: str = "raw", y_space: str = "raw", units: Mapping[str, str] | None = None) -> Fit:
    """A straight line with, as derived quantities, R² and `p`: the two-sided p-value of the slope b being zero.

    Args:
        rows: With one column "x"; positive where its space is "log", and so the observations.
        x_space: "raw" or "log".
        y_space: "raw" or "log".
        units: Of "x" and "output".

    Raises:
        InputError: There are fewer than two points, all x are equal, or a value has no logarithm.
    """
    _require_logs(rows, x_space, y_space)
    x, y = SPACES[x_space][0](rows.columns["x"], None), SPACES[y_space][0](rows.observed, None)
    fit = fit_linear(CURVES["line", x_space, y_space], rows, {"a": np.ones_like(x), "b": x}, y,
                     space=y_space, units=units)  # fmt: skip
    derived = [Parameter("R2", _r_squared(y, np.asarray(fit.residuals)))]
    slope = fit.parameter("b")
    if slope.standard_error is not None:
        derived.append(Parameter("p", _two_sided(slope.value, slope.standard_error, len(rows) - 2)))
    return replace(fit, derived=tuple(derived))


def _require_logs(rows: Rows, x_space: str, y_space: str) -> None:
    spaces = {"x": (x_space, rows.columns["x"]), "y": (y_space, rows.observed)}
    for name, (space, values) in spaces.items():
        if space == "log":
            refuse(values <= 0, name, values, rows.labels, "must be above 0 to be read in logs")


def _r_squared(y: Array, residuals: Array) -> float:
    total = float(np.sum((y - y.mean()) ** 2))
    return 1 - float(residuals @ residuals) / total if total > 0 else 1.0


def _two_sided(value: float, standard_error: float, freedom: int) -> float:
    return float(2 * stdtr(freedom, -abs(value) / standard_error)) if standard_error > 0 else float(value == 0)


def is_significant(fit: Fit, name: str = "b", errors: float = 3) -> bool:
    """Whether a parameter is at least `errors` standard errors from zero (the bold entries of Table 8)."""
    entry = fit.parameter(name)
    return entry.standard_error is not None and abs(entry.value) >= errors * entry.standard_error


def is_curved(fit: Fit, level: float = 0.05) -> bool:
    """Whether a parabola bends upwards beyond its noise: the one-sided p of c ≤ 0 is below `level`.

    Noise alone has a vertex too. A fit without standard errors gives nothing to judge by and counts as curved.
    """
    curvature = fit.parameter("c")
    if not curvature.standard_error:
        return True
    return bool(stdtr(fit.freedom, -curvature.value / curvature.standard_error) < level)


def best_measured(fit: Fit) -> float:
    """The x of a sweep with the lowest observation, replicates averaged."""
    x, means = average_replicates(fit.columns["x"], fit.observed)
    return float(x[np.argmin(means)])


def fit_parabola(rows: Rows, x_space: str = "log", y_space: str = "log", units: Mapping[str, str] | None = None) -> Fit:
    """A parabola with its minimum: derived "vertex" (x, its own unit) and "minimum" (y), errors by the delta method.

    A vertex outside the data carries the bound beyond which it lies, and a curve that is not `is_curved` beyond noise
    a warning. A curve that bends downwards, and a sweep that only falls or only rises, have no optimum: "vertex" and
    "minimum" are then absent and a warning says why.

    Args:
        rows: With one column "x".
        x_space: "log" or "raw".
        y_space: "log" or "raw".
        units: Of "x" and "output".

    Raises:
        InputError: There are fewer than three points, or fewer than three different x, or a value has no logarithm.
    """
    to_x, from_x = SPACES[x_space]
    to_y, from_y = SPACES[y_space]
    _require_logs(rows, x_space, y_space)
    x, y = to_x(rows.columns["x"], None), to_y(rows.observed, None)
    x0 = float(x.mean())
    design = {"a": np.ones_like(x), "b": x - x0, "c": (x - x0) ** 2}
    law = CURVES["parabola", x_space, y_space]
    fit = fit_linear(law, rows, design, y, space=y_space, fixed={"x0": x0}, units=units)
    steps = np.diff(average_replicates(x, y)[1])
    if fit["c"] <= 0:
        return _warned(fit, "no optimum: the curve does not bend upwards")
    if (steps < 0).all() or (steps > 0).all():
        return _warned(fit, "no optimum: the sweep is monotone")
    if not is_curved(fit):
        curvature = fit.parameter("c")
        t = curvature.value / (curvature.standard_error or 1.0)
        fit = _warned(fit, f"the curvature is not clearly above 0 (t = {t:.2g} at {len(rows)} points): the optimum "
                      "may be noise")  # fmt: skip
    at = x0 - fit["b"] / (2 * fit["c"])
    bound = "lower" if at < x.min() else "upper" if at > x.max() else None
    lowest = fit["a"] - fit["b"] ** 2 / (4 * fit["c"])
    half = fit["b"] / (2 * fit["c"])
    slopes = np.array([[0, -1 / (2 * fit["c"]), half / fit["c"]], [1, -half, half**2]])
    errors = np.sqrt(np.diag(slopes @ np.array(fit.covariance) @ slopes.T)) if fit.covariance else (None, None)
    vertex, minimum = (
        Parameter(name, value, None if error is None else float(error * (value if space == "log" else 1)))
        for name, value, error, space in (
            ("vertex", float(from_x(at, None)), errors[0], x_space),
            ("minimum", float(from_y(lowest, None)), errors[1], y_space),
        )
    )
    fit = replace(fit, derived=(replace(vertex, bound=bound), minimum))
    return _warned(fit, f"the vertex lies beyond the {bound} end of the data") if bound else fit


def _warned(fit: Fit, warning: str) -> Fit:
    return replace(fit, warnings=(*fit.warnings, warning))


def optimum(fit: Fit) -> Parameter | None:
    """The vertex of a parabola where the data bracket it, else None."""
    found = next((entry for entry in fit.derived if entry.name == "vertex"), None)
    return None if found is None or found.bound else found


def fit_proportion(rows: Rows, units: Mapping[str, str] | None = None) -> Fit:
    """y = r·x by least squares without intercept."""
    require(bool(np.any(rows.columns["x"] != 0)), "x", 0, "all x are zero")
    return fit_linear(PROPORTION, rows, {"r": rows.columns["x"]}, rows.observed, units=units)
