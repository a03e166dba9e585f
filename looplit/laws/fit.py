"""What every fit returns: the law, its parameters with uncertainty, residuals and how far the data identify it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, stdtrit

from looplit.errors import InputError, require

Array = NDArray[np.float64]
LEVEL = 0.9
"""Coverage of every interval that names no other."""

Interval = tuple[float, float]

SPACES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "raw": (lambda y, floor: y, lambda z, floor: z),
    "log": (lambda y, floor: np.log(y), lambda z, floor: np.exp(z)),
    "log above floor": (lambda y, floor: np.log(y - floor), lambda z, floor: floor + np.exp(z)),
}
"""Space of the residuals → (transform, inverse); the last subtracts the fixed floor E first."""


@dataclass(frozen=True)
class Law:
    """A family of curves: an equation, what it reads, and what it predicts.

    Args:
        name: Key under which saved fits find the law again.
        equation: As a person would write it.
        inputs: Unit of each column that the law reads.
        parameters: All names in the equation, those that a fit may hold fixed included.
        output: Unit of the prediction.
        predict: (columns, parameters) → prediction; also right for complex parameters, from which derivatives come.
    """

    name: str
    equation: str
    inputs: Mapping[str, str]
    parameters: tuple[str, ...]
    output: str
    predict: Callable[[Mapping[str, Any], Mapping[str, Any]], Any]


LAWS: dict[str, Law] = {}
"""Every law by name."""


def register(law: Law) -> Law:
    """`law`, now found by name in `LAWS`."""
    LAWS[law.name] = law
    return law


@dataclass(frozen=True)
class Parameter:
    """One estimate.

    Args:
        name: As in the equation.
        value: The estimate.
        standard_error: One regression standard error; None where the data leave none (as many points as parameters,
            or a value on a bound).
        interval: Bootstrap interval at the fit's level; None without bootstrap.
        bound: "lower" or "upper" where the value lies on one.
    """

    name: str
    value: float
    standard_error: float | None = None
    interval: Interval | None = None
    bound: str | None = None


class Saved:
    """What is kept in a file of JSON, at full precision."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, from which `from_dict` makes the same again."""
        raise NotImplementedError

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """What `to_dict` gave."""
        raise NotImplementedError

    def save(self, path: str | Path) -> None:
        """Writes JSON at full precision."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads what `save` wrote.

        Raises:
            InputError: There is no such file, or it holds something else; names it.
        """
        require(Path(path).is_file(), "path", str(path), "there is no such file")
        try:
            plain = json.loads(Path(path).read_text())
            require(isinstance(plain, dict), "content", type(plain).__name__, "must be a JSON object")
            return cls.from_dict(plain)
        except (ValueError, KeyError, AttributeError) as error:  # of which InputError and JSON's own are the first
            raise InputError(f"path = {str(path)!r}: holds no such fit ({error})") from None


@dataclass(frozen=True)
class Fit(Saved):
    """A fitted law. Rows are in canonical order (sorted by column, then by observation), whatever the input's order.

    Args:
        law: Name in `LAWS`.
        parameters: The fitted ones.
        fixed: Parameters and reference scales that were held.
        columns: What was read, by name.
        observed: What was fitted.
        residuals: Observed minus predicted, both in `space`.
        labels: Name of each row.
        units: Of every column, and of the prediction under "output".
        space: Where residuals are taken, a key of `SPACES`.
        huber_scale: Residuals beyond it count linearly; None for plain least squares. In units of `space`.
        converged: Whether the optimizer reached its tolerance.
        condition_number: Of the Jacobian with columns of unit length: how close parameters come to trading for one
            another.
        covariance: Of the fitted parameters, zero for those on a bound; empty where no standard error exists.
        derived: Quantities that follow from the parameters (a vertex, a p-value, R²).
        warnings: What a reader must know, a sentence each.
        draws: Bootstrap values by parameter, a fixed one included where it was refitted with the rest.
        level: Coverage of the intervals.
    """

    law: str
    parameters: tuple[Parameter, ...]
    fixed: Mapping[str, float]
    columns: Mapping[str, tuple[float, ...]]
    observed: tuple[float, ...]
    residuals: tuple[float, ...]
    labels: tuple[str, ...]
    units: Mapping[str, str]
    space: str
    huber_scale: float | None
    converged: bool
    condition_number: float
    covariance: tuple[tuple[float, ...], ...] = ()
    derived: tuple[Parameter, ...] = ()
    warnings: tuple[str, ...] = ()
    draws: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    level: float = LEVEL

    @property
    def freedom(self) -> int:
        """Points minus fitted parameters."""
        return len(self.observed) - len(self.parameters)

    def parameter(self, name: str) -> Parameter:
        """The fitted or derived quantity called `name`.

        Raises:
            InputError: There is none.
        """
        for parameter in (*self.parameters, *self.derived):
            if parameter.name == name:
                return parameter
        known = ", ".join(parameter.name for parameter in (*self.parameters, *self.derived))
        raise InputError(f"name = {name!r}: the fit of {self.law!r} has {known}")

    def __getitem__(self, name: str) -> float:
        """Value of a fitted, derived or fixed quantity."""
        return self.fixed[name] if name in self.fixed else self.parameter(name).value

    def values(self) -> dict[str, float]:
        """Every parameter of the law, fitted and fixed."""
        return dict(self.fixed) | {parameter.name: parameter.value for parameter in self.parameters}

    def predict(self, **columns: ArrayLike) -> Array:
        """The law's prediction in the unit of the observation.

        Args:
            **columns: One array or number per input of the law.

        Raises:
            InputError: A column is missing or unknown.
        """
        law = LAWS[self.law]
        require(set(columns) == set(law.inputs), "columns", sorted(columns), f"must be {sorted(law.inputs)}")
        arrays = {name: np.asarray(column, float) for name, column in columns.items()}
        return np.asarray(law.predict(arrays, self.values()), float)

    def predict_draws(self, **columns: ArrayLike) -> Array:
        """The prediction under every bootstrap draw, along a new last axis.

        Raises:
            InputError: The fit was made without bootstrap.
        """
        require(bool(self.draws), "draws", "none", "the fit needs bootstrap > 0 to give an interval of a prediction")
        arrays = {name: np.asarray(column, float)[..., None] for name, column in columns.items()}
        return np.asarray(LAWS[self.law].predict(arrays, self.draw_values()), float)

    def draw_values(self) -> dict[str, Any]:
        """Every parameter of the law: bootstrap draws as an array, what was held as a number."""
        return self.values() | {name: np.asarray(draw) for name, draw in self.draws.items()}

    def interval(self, **columns: ArrayLike) -> tuple[Array, Array]:
        """Lower and upper end of the bootstrap interval of the prediction (of the curve, not of a new run).

        Raises:
            InputError: The fit was made without bootstrap.
        """
        return percentile_interval(self.predict_draws(**columns), self.level, self.freedom)

    def to_dict(self, draws: bool = True) -> dict[str, Any]:
        """A JSON-ready form with the equation in words; `draws=False` leaves the bootstrap values out."""
        plain = asdict(self)
        if not draws:
            del plain["draws"]
        return {"equation": LAWS[self.law].equation} | plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """The fit that `to_dict` wrote; it predicts bit for bit as before.

        Raises:
            InputError: It is none, or of a law that is not known.
        """
        fields = {name: _tupled(value) for name, value in plain.items() if name != "equation"}
        law = fields.get("law")
        require(law in LAWS, "law", law, f"must be one of {', '.join(LAWS)}")
        try:
            for group in ("parameters", "derived"):
                fields[group] = tuple(Parameter(**entry) for entry in fields[group])
            return cls(**fields)
        except (KeyError, TypeError) as error:
            raise InputError(f"fit = {law!r}: is not a whole fit ({error})") from None


def percentile_interval(draws: ArrayLike, level: float, freedom: int) -> tuple[Array, Array]:
    """Expanded percentile interval of bootstrap draws along their last axis (Hesterberg 2015, section 5.3).

    Percentiles of few points are too narrow, as normal quantiles are beside Student's; the tails are therefore taken
    at Φ(t) with t the quantile of `freedom` degrees: 2.2 % in place of 5 % for eight points and three parameters.
    """
    tail = float(ndtr(stdtrit(max(freedom, 1), (1 - level) / 2)))
    low, high = np.quantile(np.asarray(draws, float), (tail, 1 - tail), axis=-1)
    return np.asarray(low), np.asarray(high)


def _tupled(value: Any) -> Any:
    """Lists of JSON as the tuples they were."""
    if isinstance(value, list):
        return tuple(_tupled(item) for item in value)
    if isinstance(value, dict):
        return {name: _tupled(item) for name, item in value.items()}
    return value
