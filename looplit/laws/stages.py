"""The stage fits behind a recipe: vertices of sweeps, their drift, growth timing (growth study, A.3 and A.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from looplit.errors import require
from looplit.laws.curves import fit_line, fit_parabola, is_curved, is_significant, optimum
from looplit.laws.fit import Array, Fit
from looplit.laws.rows import Rows, average_replicates, check_rows


def sweep_rows(x: ArrayLike, loss: ArrayLike, labels: Sequence[str] | None = None, x_space: str = "log") -> Rows:
    """One sweep at a fixed budget: the swept value and the loss."""
    return check_rows({"x": x}, loss, labels, positive=("x", "loss") if x_space == "log" else ("loss",))


def drift(
    sizes: ArrayLike,
    optima: ArrayLike,
    labels: Sequence[str] | None = None,
    size_unit: str = "N",
    unit: str = "unit of the swept value",
) -> Fit:
    """log x* = a + b·log size: the drift exponent b (Eq. 13, negative where x* falls), its error, and p of b = 0.

    With compute as size it is the scale-shift test of Table 7.
    """
    rows = check_rows({"x": sizes}, optima, labels, positive=("x", "optimum"), what="optimum", distinct=False)
    return fit_line(rows, "log", "log", {"x": size_unit, "output": f"optimum, {unit}"})


def affine_growth(fixed: ArrayLike, grown: ArrayLike, labels: Sequence[str] | None = None) -> Fit:
    """TPP_Kρ* = a + b·TPP_K2 (Eq. 5; the paper's a is the slope, here b, and its b the intercept, here a).

    Args:
        fixed: Tokens per initial stored parameter without growth, at the same compute.
        grown: The same at the fitted transition.
        labels: Name of each row.
    """
    rows = check_rows({"x": fixed}, grown, labels, positive=("x", "TPP"), what="TPP", distinct=False)
    unit = "tokens per initial stored parameter"
    return fit_line(rows, units={"x": unit + " without growth", "output": unit + " at the fitted transition"})


def growth_expansion(fit: Fit, fixed: ArrayLike) -> Array:
    """E_Kρ*/E_2 = TPP_K2/TPP_Kρ*, the compute expansion that an affine growth law implies (Eq. 12)."""
    return np.asarray(fixed, float) / fit.predict(x=fixed)


@dataclass(frozen=True)
class Sensitivity:
    """One row of Table 8: how a knob drifts with size, and what a wrong value costs.

    Args:
        drift: From `drift`, over the sizes whose optimum the data bracket beyond noise; None with fewer than two.
        significant: Whether the exponent is at least three standard errors from zero.
        regret: Mean loss at ×1/2 and ×2 minus the centre's, in 1e-3 nats; None where one was not run.
        loss_range: Span of the whole slice, in 1e-3 nats.
        size: Size of the slice they are read from, the largest that has ×1/2, ×1 and ×2 (else the largest).
    """

    drift: Fit | None
    significant: bool
    regret: float | None
    loss_range: float
    size: float


def sensitivity(slices: Mapping[float, tuple[ArrayLike, ArrayLike]]) -> tuple[Sensitivity, dict[float, Fit]]:
    """Drift and sensitivity of one knob of one recipe.

    Under a recipe that already scales the knob, multipliers are of the scaled value, and the drift is what the rule
    leaves.

    Args:
        slices: Stored parameters N → (multipliers of the recipe's value, losses).

    Returns:
        The table row, and the parabola of each size.
    """
    require(bool(slices), "slices", "none", "at least one size must have been swept")
    fits = {size: fit_parabola(sweep_rows(*pair)) for size, pair in sorted(slices.items())}
    optima = {size: found.value for size, fit in fits.items() if (found := optimum(fit)) and is_curved(fit)}
    exponent = drift(list(optima), list(optima.values()), size_unit="stored parameters N") if len(optima) > 1 else None
    regrets = {size: _regret(*pair) for size, pair in slices.items()}
    full = [size for size, regret in regrets.items() if regret is not None]
    size = max(full or slices)
    losses = np.asarray(slices[size][1], float)
    significant = exponent is not None and is_significant(exponent)
    return Sensitivity(exponent, significant, regrets[size], 1e3 * float(np.ptp(losses)), size), fits


def _regret(multipliers: ArrayLike, losses: ArrayLike) -> float | None:
    values, means = average_replicates(multipliers, losses)
    by_multiplier = {round(float(np.log2(value)), 6): float(mean) for value, mean in zip(values, means, strict=True)}
    if not {-1.0, 0.0, 1.0} <= by_multiplier.keys():
        return None
    return 1e3 * ((by_multiplier[-1.0] + by_multiplier[1.0]) / 2 - by_multiplier[0.0])


def growth_allocation(fractions: ArrayLike, tokens_per_parameter: ArrayLike, best: float) -> tuple[float, float]:
    """(TPP_K2, TPP_Kρ*) of one budget: tokens per initial parameter without growth, and at the fitted transition.

    At fixed compute 1/TPP is linear in ρ (Eq. 11), so both are read off one line through the sweep.

    Args:
        fractions: ρ of each run.
        tokens_per_parameter: Tokens per initial stored parameter of each run.
        best: The fitted ρ*.
    """
    slope, start = np.polyfit(np.asarray(fractions, float), 1 / np.asarray(tokens_per_parameter, float), 1)
    return float(1 / start), float(1 / (start + slope * best))
