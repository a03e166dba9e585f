"""Relations between recurrence, compute and token allocation (growth study, A.3).

E is compute expansion, S storage expansion, TPP training tokens per stored parameter, ρ the share of training tokens
after growth. N_c,K is the compute-active count of `looplit.accounting.flops.compute_parameters`.

>>> from looplit.recipes.growth_study import recipe
>>> loop = recipe("loop_2", 8).backbone
>>> round(compute_expansion(loop, 2), 3), storage_expansion(loop, 2), round(tokens_per_parameter(10, loop, 2), 3)
(1.25, 1.0, 8.001)
>>> round(optimal_growth_fraction(7, loop), 3), round(growth_expansion(loop, 0.18), 3)
(0.18, 1.072)
"""

from __future__ import annotations

from dataclasses import replace

from looplit.accounting.flops import compute_parameters, initial_parameters
from looplit.errors import require
from looplit.model.config import BackboneConfig

# E_K* = a·TPP^p and TPP_K* = c·TPP^q of the one-pass TPP, and TPP_Kρ* = a·TPP_2 + b: fits of A.3, (tied, untied).
EXPANSION_FIT = {True: (0.82, 0.15), False: (0.83, 0.15)}
TOKENS_FIT = {True: (1.19, 0.85), False: (1.34, 0.74)}
GROWTH_TOKENS_FIT = {True: (0.902, 0.216), False: (0.883, 0.103)}


def compute_expansion(config: BackboneConfig, passes: int) -> float:
    """E_K = N_c,K / N_c,1, how much more a token costs at `passes` than at one pass.

    >>> from looplit.recipes.families import FAMILIES
    >>> round(compute_expansion(FAMILIES["loop_2"].backbone(12), 2), 3)
    1.272
    """
    return compute_parameters(config, passes) / compute_parameters(config, 1)


def storage_expansion(config: BackboneConfig, passes: int) -> float:
    """S_K = N_s,K / N_s,1, how much more is stored for `passes` than for one pass; 1 if the core is tied."""

    def stored(count: int) -> int:
        return initial_parameters(replace(config, passes=count, stored_cores=1 if config.tied else count))

    return stored(passes) / stored(1)


def tokens_per_parameter(one_pass: float, config: BackboneConfig, passes: int) -> float:
    """TPP_K = TPP_K1/(E_K·S_K), which keeps the compute of the one-pass allocation."""
    return one_pass / (compute_expansion(config, passes) * storage_expansion(config, passes))


def optimal_compute_expansion(one_pass: float, *, tied: bool) -> float:
    """E_K*, the best compute expansion at a one-pass TPP: 0.82·TPP^0.15 tied, 0.83·TPP^0.15 untied.

    >>> round(optimal_compute_expansion(10, tied=True), 3)
    1.158
    """
    factor, exponent = EXPANSION_FIT[tied]
    return float(factor * one_pass**exponent)


def optimal_tokens_per_parameter(one_pass: float, *, tied: bool) -> float:
    """TPP_K* at a one-pass TPP: 1.19·TPP^0.85 tied, 1.34·TPP^0.74 untied.

    >>> round(optimal_tokens_per_parameter(10, tied=True), 3)
    8.425
    """
    factor, exponent = TOKENS_FIT[tied]
    return float(factor * one_pass**exponent)


def mean_passes(fraction: float, before: int = 2, after: int = 4) -> float:
    """K_ρ = K_0·(1-ρ) + K_f·ρ, the mean recurrence over a growing run.

    >>> round(mean_passes(0.25), 9)
    2.5
    """
    return before * (1 - fraction) + after * fraction


def grown_compute_parameters(config: BackboneConfig, fraction: float, before: int = 2, after: int = 4) -> float:
    """N_c,Kρ = (1-ρ)·N_c,2 + ρ·N_c,4, the mean compute-active count over a growing run."""
    return (1 - fraction) * compute_parameters(config, before) + fraction * compute_parameters(config, after)


def growth_expansion(config: BackboneConfig, fraction: float, before: int = 2, after: int = 4) -> float:
    """E_Kρ/E_2 = 1 + ρ·(E_4/E_2 - 1), the cost of a growing run's mean token relative to its start."""
    return 1 + fraction * (compute_parameters(config, after) / compute_parameters(config, before) - 1)


def optimal_growth_tokens(before_growth: float, *, tied: bool) -> float:
    """TPP_Kρ* = a·TPP_K2 + b, the best TPP with growth at the compute of a fixed-recurrence TPP.

    >>> round(optimal_growth_tokens(7, tied=True), 3)
    6.53
    """
    slope, offset = GROWTH_TOKENS_FIT[tied]
    return slope * before_growth + offset


def optimal_growth_fraction(before_growth: float, config: BackboneConfig, before: int = 2, after: int = 4) -> float:
    """ρ* = (E_Kρ*/E_2 - 1)/(E_4/E_2 - 1), where E_Kρ*/E_2 = TPP_K2/TPP_Kρ* keeps the compute.

    As TPP grows it tends to (1/a - 1)/(E_4/E_2 - 1), which is 2·(1/a - 1) where E_4/E_2 = 3/2.

    Args:
        before_growth: TPP_K2, tokens per stored parameter of the run without growth.
        config: Gives N_c,K, and whether the core is tied.
        before: K at the start.
        after: K after growth.

    >>> from looplit.recipes.families import FAMILIES
    >>> round(optimal_growth_fraction(6.0, FAMILIES["untied_grow"].backbone(12)), 3)
    0.26
    """
    require(before_growth > 0, "before_growth", before_growth, "tokens per parameter must be above 0")
    expansion = before_growth / optimal_growth_tokens(before_growth, tied=config.tied)
    return (expansion - 1) / (growth_expansion(config, 1.0, before, after) - 1)
