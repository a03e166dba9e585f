"""Fitting: bounded least squares from several starts, Huber refit, standard errors, bootstrap."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import OptimizeResult, least_squares
from scipy.special import stdtrit

from looplit.errors import require, require_between
from looplit.laws.fit import SPACES, Array, Fit, Interval, Law, Parameter, percentile_interval
from looplit.laws.rows import Rows

ILL_CONDITIONED = 1e4
"""Condition number above which parameters trade for one another: 0.01 % in the data then moves them by their size."""

OUTLIER = 0.01
"""Chance of a warning on an outlier where the noise is normal and there is none."""

REFINED = 8
"""Starts from which the optimizer runs, those of least misfit."""


@dataclass(frozen=True)
class Huber:
    """The robust refit: scale 1.345·MAD/0.6745 of the residuals before it, MAD about the median.

    Args:
        floor: Smallest scale.
        relative: Whether the floor is a share of the median observation where residuals are raw, so that fits do not
            depend on the unit of the observation (residuals of logs are shares already); else it is in units of the
            residuals.
        rounds: Refits, each with the scale of the last; fewer where the scale settles to 1 %. One is the published
            procedure; more let a gross outlier lose its hold on the scale.
    """

    floor: float = 1e-6
    relative: bool = True
    rounds: int = 1

    def scale(self, residuals: Array, unit: float = 1.0) -> float:
        """The scale for a refit after `residuals`; `unit` is what a relative floor is a share of."""
        mad = np.median(np.abs(residuals - np.median(residuals)))
        return max(1.345 * float(mad) / 0.6745, self.floor * (unit if self.relative else 1))


PUBLISHED_HUBER = Huber()


def fit_law(
    law: Law,
    rows: Rows,
    starts: Sequence[Mapping[str, float]],
    bounds: Mapping[str, tuple[float, float]],
    *,
    fixed: Mapping[str, float] | None = None,
    space: str = "raw",
    huber: Huber | None = PUBLISHED_HUBER,
    units: Mapping[str, str] | None = None,
    bootstrap: int = 0,
    seed: int = 0,
    progress: bool = False,
) -> Fit:
    """A law fitted by bounded least squares from several starts, then refitted with a Huber loss.

    Residuals are scaled to order one before the optimizer sees them, so that its tolerances, and the answer, do not
    depend on the unit of the observation.

    Args:
        law: What to fit; its parameters are those of `bounds` and those of `fixed`.
        rows: From `check_rows`.
        starts: Values of the fitted parameters, moved into the bounds if they lie outside; the eight of least misfit
            are refined.
        bounds: Of the fitted parameters, in the order in which they are reported; infinite where there is none.
        fixed: Parameters and reference scales to hold.
        space: Where residuals are taken, a key of `SPACES`.
        huber: The robust refit; None for plain least squares.
        units: Units that differ from the law's own ("output" for the observation).
        bootstrap: Residual resamples behind the intervals, each refitted from the solution at its Huber scale. A fit
            through as many points as parameters has no residuals to resample, and stays without.
        seed: Of the resampling.
        progress: Whether to show a bar.

    Raises:
        InputError: There are fewer points than parameters.
    """
    names, held = tuple(bounds), dict(fixed or {})
    _require_points(law, rows, names)
    to_space, _ = SPACES[space]
    target = to_space(rows.observed, held.get("E"))

    def predict(point: Any) -> Any:
        return to_space(law.predict(rows.columns, held | dict(zip(names, point, strict=True))), held.get("E"))

    limits = tuple(zip(*bounds.values(), strict=True))
    share_of = (float(np.median(np.abs(target))) or 1.0) if space == "raw" else 1.0
    solve = _Solver(predict, target, limits)
    begins = sorted((np.array([float(start[name]) for name in names]) for start in starts), key=solve.misfit)[:REFINED]
    solution, scale = solve.robust(min(map(solve, begins), key=lambda result: float(result.cost)), huber, share_of)
    residuals = target - predict(solution.x)
    found = Solution(
        names, solution.x, solve.jacobian(solution.x), residuals, scale, solution.success, solution.active_mask
    )
    fit = report(law, rows, found, space, held, units)
    if not bootstrap or fit.freedom <= 0:
        return fit
    aims = [to_space(drawn, held.get("E")) for drawn in resampled_observations(fit, bootstrap, seed)]
    points = np.array([
        _Solver(predict, aim, limits, tolerance=1e-9)(solution.x, scale).x for aim in tracked(aims, progress, law.name)
    ])  # fmt: skip
    return with_draws(fit, dict(zip(names, points.T, strict=True)))


@dataclass(frozen=True)
class _Solver:
    """Bounded least squares on residuals scaled to order one."""

    predict: Callable[[Any], Any]
    target: Array
    bounds: tuple[tuple[float, ...], ...]
    tolerance: float = 1e-14

    def __call__(self, begin: Array, scale: float | None = None) -> OptimizeResult:
        """Solution from one start: least squares, or Huber's loss beyond `scale`."""
        unit = scale or float(np.std(self.target)) or 1.0
        with np.errstate(over="ignore", invalid="ignore"):  # a trial step may overshoot; the optimizer then shortens it
            return least_squares(
                lambda point: (self.predict(point) - self.target) / unit,
                self._inside(begin),
                jac="cs",
                bounds=self.bounds,
                x_scale="jac",
                loss="linear" if scale is None else "huber",
                ftol=self.tolerance,
                xtol=self.tolerance,
                gtol=self.tolerance,
                max_nfev=400,
            )

    def misfit(self, point: Array) -> float:
        """Sum of squares at a point; infinite where the prediction is none."""
        with np.errstate(all="ignore"):
            total = float(np.sum((self.predict(self._inside(point)) - self.target) ** 2))
        return total if np.isfinite(total) else np.inf

    def _inside(self, point: Array) -> Array:
        return np.clip(point, *(np.asarray(bound, float) for bound in self.bounds))

    def jacobian(self, point: Array) -> Array:
        """Derivative of the prediction by complex steps: exact to rounding, free of a step size to tune."""
        steps = 1e-30j * np.eye(len(point))
        return np.stack([np.imag(self.predict(point + step)) / 1e-30 for step in steps], axis=1)

    def robust(self, result: OptimizeResult, huber: Huber | None, unit: float) -> tuple[OptimizeResult, float | None]:
        """The Huber refit of `result`, and its scale; `unit` as in `Huber.scale`."""
        if huber is None:
            return result, None
        scale: float | None = None
        for _ in range(huber.rounds):
            new = huber.scale(self.target - self.predict(result.x), unit)
            if scale is not None and abs(new / scale - 1) < 0.01:
                break
            scale, result = new, self(result.x, new)
        return result, scale


def fit_linear(
    law: Law,
    rows: Rows,
    design: Mapping[str, Array],
    target: Array,
    *,
    space: str = "raw",
    fixed: Mapping[str, float] | None = None,
    units: Mapping[str, str] | None = None,
) -> Fit:
    """A law that is linear in its parameters once the observation is in `space`, by ordinary least squares.

    Args:
        law: What to fit.
        rows: From `check_rows`.
        design: One column per fitted parameter.
        target: The observations in `space`.
        space: Where residuals are taken.
        fixed: Parameters and reference scales to hold.
        units: Units that differ from the law's own.

    Raises:
        InputError: There are fewer points than parameters, or the design does not tell them apart.
    """
    names = tuple(design)
    _require_points(law, rows, names)
    jac = np.stack(list(design.values()), axis=1)
    point, _, rank, _ = np.linalg.lstsq(jac, target, rcond=1e-12)
    require(rank == len(names), "inputs", f"{len(rows)} rows", f"do not tell {', '.join(names)} of {law.name!r} apart")
    found = Solution(names, np.asarray(point, float), jac, target - jac @ point)
    return report(law, rows, found, space, fixed or {}, units)


def _require_points(law: Law, rows: Rows, names: Sequence[str]) -> None:
    # Replicates tell how much runs scatter, not how the law bends.
    points = len(set(zip(*(column.tolist() for column in rows.columns.values()), strict=True)))
    rule = f"the law {law.name!r} has {len(names)} parameters to fit ({', '.join(names)})"
    require(points >= len(names), "points", points, f"{rule}; given: {', '.join(rows.labels) or 'none'}")


@dataclass(frozen=True)
class Solution:
    """Where an optimizer ended.

    Args:
        names: Of the fitted parameters.
        point: Their values.
        jac: Derivative of the prediction in fit space, one column per parameter.
        residuals: Observed minus predicted in fit space.
        scale: Huber's; None for least squares.
        converged: Whether the tolerance was reached.
        active: Per parameter -1 on its lower bound, 1 on its upper, else 0; None if there are no bounds.
    """

    names: tuple[str, ...]
    point: Array
    jac: Array
    residuals: Array
    scale: float | None = None
    converged: bool = True
    active: Any = None


def report(
    law: Law, rows: Rows, found: Solution, space: str, fixed: Mapping[str, float], units: Mapping[str, str] | None
) -> Fit:
    """The `Fit` of a solution: standard errors, condition number, bounds and warnings."""
    names, jac = found.names, found.jac
    on_bound = np.zeros(len(names), int) if found.active is None else np.asarray(found.active)
    free = on_bound == 0
    condition, covariance = _condition(jac), _covariance(jac[:, free], found.residuals, found.scale, len(names))
    full = np.zeros((len(names), len(names)))
    if covariance is not None:
        full[np.ix_(free, free)] = covariance
    parameters = tuple(
        Parameter(
            name,
            float(value),
            standard_error=float(np.sqrt(full[j, j])) if free[j] and covariance is not None else None,
            bound={-1: "lower", 0: None, 1: "upper"}[int(on_bound[j])],
        )
        for j, (name, value) in enumerate(zip(names, found.point, strict=True))
    )
    warnings = list(rows.warnings)
    warnings += [f"{entry.name} lies on its {entry.bound} bound" for entry in parameters if entry.bound]
    if len(rows) == len(names):
        warnings.append(f"{len(rows)} points for {len(names)} parameters: no standard error and no interval")
    warnings += _outliers(jac[:, free], found.residuals, rows, space)
    if condition > ILL_CONDITIONED:
        warnings.append(f"not identified: the data hardly tell the parameters apart (condition number {condition:.0e})")
    if not found.converged:
        warnings.append("the optimizer did not converge")
    return Fit(
        law=law.name,
        parameters=parameters,
        fixed=dict(fixed),
        columns={name: tuple(column.tolist()) for name, column in rows.columns.items()},
        observed=tuple(rows.observed.tolist()),
        residuals=tuple(found.residuals.tolist()),
        labels=rows.labels,
        units=dict(law.inputs) | {"output": law.output} | dict(units or {}),
        space=space,
        huber_scale=found.scale,
        converged=bool(found.converged),
        condition_number=condition,
        covariance=() if covariance is None else tuple(map(tuple, full.tolist())),
        warnings=tuple(warnings),
    )


def _outliers(jac: Array, residuals: Array, rows: Rows, space: str) -> list[str]:
    """A warning on points that the others do not explain: their residual from a fit without them is beyond its noise.

    Externally studentized residuals of the fit linearised at its solution, two-sided at `OUTLIER` over all points
    (Bonferroni): t = r·sqrt((n - p - 1)/(S·(1 - h) - r²)), S the sum of squares, h the leverage.
    """
    freedom = len(residuals) - jac.shape[1] - 1
    if freedom < 1 or np.linalg.matrix_rank(jac) < jac.shape[1]:
        return []
    base, _ = np.linalg.qr(jac)
    residuals = residuals - base @ (base.T @ residuals)  # those of least squares, also at a Huber solution
    least = 1e-9 * (float(np.max(np.abs(rows.observed))) if space == "raw" else 1)  # below it, rounding
    spare = 1 - np.sum(base**2, axis=1)
    rest = np.maximum(float(residuals @ residuals) * spare - residuals**2, least**2)
    t = np.abs(residuals) * np.sqrt(freedom / rest)
    limit = stdtrit(freedom, 1 - OUTLIER / 2 / len(residuals))
    named = ", ".join(rows.labels[i] for i in np.flatnonzero((t > limit) & (np.abs(residuals) > least)))
    return [f"outliers, which the other points do not explain: {named}"] if named else []


def _condition(jac: Array) -> float:
    """Condition number of the Jacobian with unit columns, capped at 1e16 so that it stays a JSON number."""
    lengths = np.linalg.norm(jac, axis=0)
    singular = np.linalg.svd(jac / np.where(lengths > 0, lengths, 1), compute_uv=False)
    return float(min(singular[0] / max(singular[-1], 1e-300), 1e16))


def _covariance(jac: Array, residuals: Array, scale: float | None, fitted: int) -> Array | None:
    """Covariance of least squares, or Huber's for the robust fit (Huber 1981, section 7.6, with his correction K).

    None where no degree of freedom is left or the Jacobian is singular.
    """
    count, freedom = len(residuals), len(residuals) - fitted
    if freedom <= 0 or jac.shape[1] == 0 or np.linalg.matrix_rank(jac) < jac.shape[1]:
        return None
    variance = float(residuals @ residuals) / freedom
    if scale is not None:
        clipped = np.clip(residuals, -scale, scale)
        inner = float(np.mean(np.abs(residuals) <= scale)) or 1 / count
        correction = 1 + fitted / count * (1 - inner) / inner
        variance = correction**2 * float(clipped @ clipped) / freedom / inner**2
    _, singular, rotation = np.linalg.svd(jac, full_matrices=False)
    root = rotation.T / singular
    return np.asarray(variance * root @ root.T)


def resampled_observations(fit: Fit, count: int, seed: int) -> list[Array]:
    """`count` synthetic sets of observations: the fit's prediction plus its centred residuals, drawn with replacement.

    Residuals are widened by sqrt(n/(n - p)), because a fit of p parameters shrinks them. The inputs stay as they were,
    so that no draw leaves a parameter without data.
    """
    require_between("bootstrap", count, 0)
    require_between("seed", seed, 0)
    rng, size = np.random.default_rng(seed), len(fit.residuals)
    to_space, from_space = SPACES[fit.space]
    floor, residuals = fit.fixed.get("E"), np.asarray(fit.residuals)
    prediction = to_space(np.asarray(fit.observed), floor) - residuals
    widened = (residuals - residuals.mean()) * np.sqrt(size / max(size - len(fit.parameters), 1))
    return [from_space(prediction + widened[rng.integers(size, size=size)], floor) for _ in range(count)]


def with_draws(fit: Fit, draws: Mapping[str, Array]) -> Fit:
    """The fit with bootstrap draws, and with an interval for each fitted parameter among them."""
    parameters = tuple(
        replace(entry, interval=draw_interval(draws[entry.name], fit)) if entry.name in draws else entry
        for entry in fit.parameters
    )
    plain = {name: tuple(np.asarray(draw).tolist()) for name, draw in draws.items()}
    return replace(fit, parameters=parameters, draws=plain)


def draw_interval(draws: ArrayLike, fit: Fit) -> Interval:
    """The interval of a quantity drawn with `fit`, at its level and degrees of freedom."""
    low, high = percentile_interval(draws, fit.level, fit.freedom)
    return float(low), float(high)


def tracked(items: Sequence[Any], progress: bool, name: str) -> Iterable[Any]:
    """`items`, with a progress bar if wanted and stderr is a terminal."""
    if not progress:
        return items
    from tqdm import tqdm

    bar: Iterable[Any] = tqdm(items, desc=f"bootstrap of {name}", leave=False, disable=None)
    return bar
