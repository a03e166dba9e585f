"""The truncation study's law: loss over model size, tokens, passes T and trained passes B (arXiv 2610.26030).

Light on purpose: numpy only, so that the command line answers at once. Every function takes arrays that broadcast.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from looplit.errors import require

Array = NDArray[np.float64]

NREC = 0.507
"""N_rec/N, the core's share of the non-embedding parameters, of the study's 240M model."""

EQUATION = "L = E + [A·(N_eff/N0)^-alpha + H·(D/D0)^-beta]^kappa, N_eff = N_once + N_rec·g, g = exp(c·(1 - T^-p·B^-q))"
"""The law as a person would write it."""

COMPUTE_UNIT = "training FLOPs, 6·N_comp·D (no attention, no vocabulary matrix)"

UNITS = {
    "loss": "nats per token",
    "n": "non-embedding parameters N",
    "tokens": "training tokens D",
    "compute": COMPUTE_UNIT,
    "units": "forward passes of the core, T + 2B",
    "g": "untied copies of the core",
    "compute_per_token": "relative to no looping, N_comp/N",
    "compute_per_effective": "relative to no looping at equal loss, N_comp/N_eff",
}
"""Unit of every quantity in the answers of the law."""


def cost_units(passes: ArrayLike, trained_passes: ArrayLike) -> Array:
    """T + 2B: a forward pass of the core costs 1, a backward pass 2.

    >>> float(cost_units(8, 2)), float(cost_units(4, 4))
    (12.0, 12.0)
    """
    t, b = _setting(passes, trained_passes)
    return np.asarray(t + 2 * b)


def compute_ratio(passes: ArrayLike, trained_passes: ArrayLike, nrec: ArrayLike = NREC) -> Array:
    """N_comp/N = 1 - r + (T + 2B)/3·r: training compute per token relative to no looping."""
    return _mixed(nrec, cost_units(passes, trained_passes) / 3)


def training_compute(
    size: ArrayLike, tokens: ArrayLike, passes: ArrayLike, trained_passes: ArrayLike, nrec: ArrayLike = NREC
) -> Array:
    """C = 6·N_comp·D, the leading-order training FLOPs: no attention, no vocabulary matrix.

    Args:
        size: N, non-embedding parameters.
        tokens: D.
        passes: T.
        trained_passes: B.
        nrec: N_rec/N.
    """
    product = np.asarray(size, float) * np.asarray(tokens, float)
    return np.asarray(6 * product * compute_ratio(passes, trained_passes, nrec))


@dataclass(frozen=True)
class LoopLaw:
    """L = E + [A·(N_eff/N0)^-α + H·(D/D0)^-β]^κ with N_eff = N_once + g·N_rec and g = exp(c·(1 - T^-p·B^-q)).

    N counts non-embedding parameters: N_once those of prelude and coda, N_rec those of the core; r = N_rec/N.

    Args:
        E: Loss of an endless model on endless data, nats per token.
        A: Height of the size term at N0.
        H: Height of the data term at D0.
        alpha: Exponent of the size term.
        beta: Exponent of the data term.
        kappa: Exponent of their sum.
        c: Logarithm of the ceiling of g.
        p: Exponent of the passes.
        q: Exponent of the trained passes.
        n0: N0, non-embedding parameters.
        d0: D0, tokens.
        untold: What the runs behind a fitted law could not tell of c, p and q, a sentence each.
    """

    E: float
    A: float
    H: float
    alpha: float
    beta: float
    kappa: float
    c: float
    p: float
    q: float
    n0: float = 2.4e8
    d0: float = 2.0**30
    untold: tuple[str, ...] = field(default=(), compare=False)

    @property
    def coefficients(self) -> dict[str, float]:
        """The numbers of the law by name."""
        return {name: value for name, value in asdict(self).items() if name != "untold"}

    @property
    def ceiling(self) -> float:
        """e^c, which g approaches as passes and trained passes grow."""
        return float(np.exp(self.c))

    @property
    def criterion(self) -> float:
        """q - 2p. Above zero one backward pass is worth more than the two forward passes that cost the same."""
        return self.q - 2 * self.p

    def g(self, passes: ArrayLike, trained_passes: ArrayLike) -> Array:
        """How many untied copies of the core the loops are worth: 1 at (1, 1), 0 if nothing is trained, below e^c.

        >>> [round(float(PUBLISHED.g(t, b)), 3) for t, b in ((1, 1), (2, 2), (4, 4), (4, 0))]
        [1.0, 1.91, 2.504, 0.0]
        """
        t, b = _setting(passes, trained_passes)
        with np.errstate(divide="ignore"):
            return np.asarray(np.exp(self.c * (1 - t**-self.p * b**-self.q)))

    def effective_ratio(self, passes: ArrayLike, trained_passes: ArrayLike, nrec: ArrayLike = NREC) -> Array:
        """N_eff/N = 1 - r + g·r: size of the model without loops that is as good on the same tokens."""
        return _mixed(nrec, self.g(passes, trained_passes))

    def compute_per_effective(self, passes: ArrayLike, trained_passes: ArrayLike, nrec: ArrayLike = NREC) -> Array:
        """N_comp/N_eff. At equal loss, with the size free, training compute is proportional to it.

        >>> ratio = PUBLISHED.compute_per_effective(8, [2, 8])
        >>> f"(8, 2) needs {1 - float(ratio[0] / ratio[1]):.0%} less than (8, 8)"
        '(8, 2) needs 34% less than (8, 8)'
        """
        return compute_ratio(passes, trained_passes, nrec) / self.effective_ratio(passes, trained_passes, nrec)

    def size_term(self, effective_size: ArrayLike) -> Array:
        """A·(N_eff/N0)^-α."""
        return np.asarray(self.A * (np.asarray(effective_size, float) / self.n0) ** -self.alpha)

    def data_term(self, tokens: ArrayLike) -> Array:
        """H·(D/D0)^-β."""
        return np.asarray(self.H * (np.asarray(tokens, float) / self.d0) ** -self.beta)

    def loss_at(self, effective_size: ArrayLike, tokens: ArrayLike) -> Array:
        """Loss of N_eff effective parameters on D tokens, nats per token."""
        return np.asarray(self.E + (self.size_term(effective_size) + self.data_term(tokens)) ** self.kappa)

    def loss(
        self,
        size: ArrayLike,
        tokens: ArrayLike,
        passes: ArrayLike = 1,
        trained_passes: ArrayLike = 1,
        nrec: ArrayLike = NREC,
    ) -> Array:
        """Loss of N parameters on D tokens at (T, B), nats per token.

        Args:
            size: N, non-embedding parameters.
            tokens: D.
            passes: T.
            trained_passes: B.
            nrec: N_rec/N.
        """
        effective = np.asarray(size, float) * self.effective_ratio(passes, trained_passes, nrec)
        return self.loss_at(effective, tokens)

    def effective_size(self, loss: ArrayLike, tokens: ArrayLike) -> Array:
        """N_eff with which D tokens give `loss`; NaN where the data term alone exceeds what the loss leaves."""
        with np.errstate(invalid="ignore"):
            left = (np.asarray(loss, float) - self.E) ** (1 / self.kappa) - self.data_term(tokens)
            return np.asarray(self.n0 * (np.where(left > 0, left, np.nan) / self.A) ** (-1 / self.alpha))


PUBLISHED = LoopLaw(E=0.2986, A=6.4870, H=7.6334, alpha=0.3057, beta=0.3928, kappa=0.3251, c=1.1120, p=0.2368, q=1.0218)
"""The study's nine coefficients, fitted jointly on 230 configurations of 58M to 919M non-embedding parameters."""


def _setting(passes: ArrayLike, trained_passes: ArrayLike) -> tuple[Array, Array]:
    """T and B as arrays, checked."""
    t, b = np.asarray(passes, float), np.asarray(trained_passes, float)
    require(bool(np.all(t >= 1)), "passes", passes, "T must be at least 1")
    require(bool(np.all((b >= 0) & (b <= t))), "trained_passes", trained_passes, "B must be from 0 to T, the passes")
    return t, b


def _mixed(nrec: ArrayLike, core: Array) -> Array:
    """1 - r + r·core: prelude and coda count once, the core as often as `core` says."""
    share = np.asarray(nrec, float)
    require(bool(np.all((share > 0) & (share <= 1))), "nrec", nrec, "N_rec/N must be above 0 and at most 1")
    return np.asarray(1 - share + share * core)
