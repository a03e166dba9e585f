"""Laws in model size N and training tokens D: the sum of two power laws, and the truncation study's coupled law."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import nnls

from looplit.errors import InputError
from looplit.laws.fit import Array, Fit, Law, register
from looplit.laws.rows import Rows, check_rows
from looplit.laws.solve import Huber, fit_law

INPUTS = {"N": "parameters", "D": "training tokens"}
THICKNESS = 0.05
"""A design whose log N and log D scatter less than this (5 %) about one line counts as one-dimensional."""

ROBUST = Huber(rounds=30)
"""Scale repeated until it settles, so that a gross outlier among good runs neither sets it nor moves the fit."""


def _two_powers(columns: Mapping[str, Any], p: Mapping[str, Any]) -> Any:
    return p["E"] + np.exp(p["log_A"] - p["alpha"] * np.log(columns["N"])) \
        + np.exp(p["log_B"] - p["beta"] * np.log(columns["D"]))  # fmt: skip


def _coupled(columns: Mapping[str, Any], p: Mapping[str, Any]) -> Any:
    size = np.exp(p["log_A"] - p["alpha"] * np.log(columns["N"] / p["N0"]))
    data = np.exp(p["log_H"] - p["beta"] * np.log(columns["D"] / p["D0"]))
    return p["E"] + (size + data) ** p["kappa"]


TWO_POWERS = register(
    Law(
        name="two powers",
        equation="L(N, D) = E + exp(log_A)·N^-alpha + exp(log_B)·D^-beta",
        inputs=INPUTS,
        parameters=("E", "log_A", "alpha", "log_B", "beta"),
        output="nats per token",
        predict=_two_powers,
    )
)
COUPLED = register(
    Law(
        name="coupled",
        equation="L(N, D) = E + [exp(log_A)·(N/N0)^-alpha + exp(log_H)·(D/D0)^-beta]^kappa",
        inputs=INPUTS,
        parameters=("E", "log_A", "alpha", "log_H", "beta", "kappa", "N0", "D0"),
        output="nats per token",
        predict=_coupled,
    )
)


def size_data_rows(sizes: ArrayLike, tokens: ArrayLike, loss: ArrayLike, labels: Sequence[str] | None = None) -> Rows:
    """Checked runs over N and D.

    Raises:
        InputError: A value is not positive and finite; N and D lie on one line in logs (D ∝ N, one N, or one D), in
            which case the two terms cannot be told apart.
    """
    rows = check_rows({"N": sizes, "D": tokens}, loss, labels, positive=("N", "D", "loss"))
    logs = np.log(np.stack([rows.columns["N"], rows.columns["D"]], axis=1))
    spread = np.linalg.svd(logs - logs.mean(axis=0), compute_uv=False) / np.sqrt(max(len(rows), 1))
    if len(rows) < 3 or spread[-1] < THICKNESS:
        raise InputError(
            f"design = {len(rows)} runs on one line of log N and log D (scatter {float(spread[-1]):.2g}): not "
            "identified; vary tokens at fixed size, or size at fixed tokens"
        )
    return rows


def fit_two_powers(
    rows: Rows, *, huber: Huber | None = ROBUST, bootstrap: int = 0, seed: int = 0, progress: bool = False
) -> Fit:
    """L = E + A/N^α + B/D^β, with residuals in log loss (Hoffmann et al. 2022).

    Given α and β the law is linear, so each start is a non-negative least-squares solve at one pair of a grid of
    exponents.

    Args:
        rows: From `size_data_rows`.
        huber: The robust refit.
        bootstrap: Residual resamples behind the intervals.
        seed: Of the resampling.
        progress: Whether to show a bar.

    Raises:
        InputError: There are fewer than five runs.
    """
    n, d = np.log(rows.columns["N"]), np.log(rows.columns["D"])
    bounds = {"E": (0.0, np.inf), "log_A": (-np.inf, np.inf), "alpha": (0.0, 3.0), "log_B": (-np.inf, np.inf),
              "beta": (0.0, 3.0)}  # fmt: skip
    starts = []
    for alpha, beta in itertools.product(np.geomspace(0.05, 1.5, 12), repeat=2):
        size, data = np.exp(-alpha * (n - n.mean())), np.exp(-beta * (d - d.mean()))
        floor, a, b = _amplitudes(rows.observed, np.ones_like(n), size, data)
        starts.append({"E": floor, "log_A": np.log(a) + alpha * n.mean(), "alpha": alpha,
                       "log_B": np.log(b) + beta * d.mean(), "beta": beta})  # fmt: skip
    return fit_law(TWO_POWERS, rows, starts, bounds, space="log", huber=huber,
                   bootstrap=bootstrap, seed=seed, progress=progress)  # fmt: skip


def _amplitudes(target: Array, *terms: Array) -> Array:
    """Factors of the terms whose sum is nearest the target in relative size; those that vanish become small."""
    design = np.stack(terms, axis=1) / target[:, None]
    return np.asarray(np.maximum(nnls(design, np.ones_like(target))[0], 1e-3 * float(target.mean())))


def fit_coupled(
    rows: Rows,
    n0: float = 2.4e8,
    d0: float = 2.0**30,
    *,
    huber: Huber | None = ROBUST,
    bootstrap: int = 0,
    seed: int = 0,
    progress: bool = False,
) -> Fit:
    """L = E + [A·(N/N0)^-α + H·(D/D0)^-β]^κ, with residuals in log loss.

    Starts: a grid of floors, κ and exponents; at each, (L - E)^(1/κ) is linear in A and H.

    Args:
        rows: From `size_data_rows`; N is the effective size where there are loops.
        n0: N0, a reference scale held fixed; the study's is 2.4e8.
        d0: D0; the study's is 2^30.
        huber: The robust refit.
        bootstrap: Residual resamples behind the intervals.
        seed: Of the resampling.
        progress: Whether to show a bar.

    Raises:
        InputError: There are fewer than six runs.
    """
    n, d = np.log(rows.columns["N"] / n0), np.log(rows.columns["D"] / d0)
    bounds = {"E": (0.0, float(rows.observed.min()) * (1 - 1e-9)), "log_A": (-np.inf, np.inf), "alpha": (0.0, 3.0),
              "log_H": (-np.inf, np.inf), "beta": (0.0, 3.0), "kappa": (0.01, 5.0)}  # fmt: skip
    starts = []
    for share, kappa, alpha, beta in itertools.product(
        (0.0, 0.25, 0.5, 0.75), (0.2, 0.35, 0.6, 1.0), (0.15, 0.3, 0.6), (0.15, 0.3, 0.6)
    ):
        floor = share * float(rows.observed.min())
        a, h = _amplitudes((rows.observed - floor) ** (1 / kappa), np.exp(-alpha * n), np.exp(-beta * d))
        starts.append({"E": floor, "log_A": np.log(a), "alpha": alpha, "log_H": np.log(h), "beta": beta,
                       "kappa": kappa})  # fmt: skip
    return fit_law(COUPLED, rows, starts, bounds, fixed={"N0": n0, "D0": d0}, space="log", huber=huber,
                   bootstrap=bootstrap, seed=seed, progress=progress)  # fmt: skip
