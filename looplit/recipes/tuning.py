"""Hyperparameters of a run: a family's base-tuned values, scaled to its size, or as an ablation sets them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from looplit.accounting.flops import initial_parameters
from looplit.errors import require
from looplit.model.config import BackboneConfig
from looplit.optim.algorithms import Algorithm, algorithm_name, algorithm_of
from looplit.recipes.families import FAMILIES, Family
from looplit.recipes.hyperparameters import Hyperparameters
from looplit.recipes.training import Optimizer, is_number
from looplit.recipes.variants import family_named

BASE_DEPTH = 8  # every family was tuned at d8, with the GPT-2 vocabulary
LEAST_DEPTH = 3  # one block per stage
SCALED = ("learning_rate", "output_multiplier", "weight_decay")


def size_ratio(family: Family, config: BackboneConfig) -> float:
    """N_d8/N of the scaling rules: initial parameters of the family's d8 at `config`'s K, over those of `config`.

    d8 has the GPT-2 vocabulary and the standard shape, whatever `config` has. Below the smallest nominal depth (toy
    widths, a byte vocabulary) N is held at that depth's: extrapolated further, the rules make such models diverge.
    """
    base, smallest = (initial_parameters(family.backbone(d, passes=config.passes)) for d in (BASE_DEPTH, LEAST_DEPTH))
    return base / max(initial_parameters(config), smallest)


def matrix_learning_rate(family: Family, config: BackboneConfig) -> float:
    """GLR = GLR_d8·(N_d8/N)^b, N the initial parameters of `config` (growth study, Eq. 13, where β = -b).

    >>> untied_grow = family_named("untied_grow")
    >>> round(matrix_learning_rate(untied_grow, untied_grow.backbone(26)), 11)
    0.00652527533
    """
    return float(family.hyperparameters.learning_rate * size_ratio(family, config) ** family.learning_rate_exponent)


@dataclass(frozen=True)
class Tuning:
    """How a recipe departs from the family's own hyperparameters and scaling rule.

    Args:
        hyperparameters_of: A family whose base-tuned values to take instead. α stays at its default 1 where that
            family has none; the learning-rate exponent stays the family's own.
        exponents: Of value(d) = value_d8·(N_d8/N)^exponent for `learning_rate`, `output_multiplier` and
            `weight_decay`. By default the family's b and 0, 0; all 0 is the constant recipe.
        mup_output: Whether the output multiplier also falls as 1/width from d8.
        optimizer: Of the block matrices. They take its `learning_rate_share` of Muon's learning rate, 0.05 (our choice)
            with "adamw"; without a share `learning_rate` must be among the overrides. Embedding and head keep theirs.
        overrides: Fields of `Hyperparameters` to set outright, after all scaling.
    """

    hyperparameters_of: str | None = None
    exponents: Mapping[str, float] = field(default_factory=dict)
    mup_output: bool = False
    optimizer: Optimizer = "muon"
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "optimizer", algorithm_name("optimizer", self.optimizer))
        require(
            not self._algorithm.keeps_norm, "optimizer", self.optimizer,
            "keeps every matrix at the norm it starts with, and some of the growth study's start at zero; must be muon "
            "or adamw, or the import path of another Algorithm",
        )  # fmt: skip
        for name in self.exponents:
            require(name in SCALED, "exponents", name, f"must be one of {', '.join(SCALED)}")
        known = Hyperparameters.__dataclass_fields__
        for name in self.overrides:
            require(name in known, "overrides", name, f"must be one of {', '.join(known)}")

    def apply(self, family: Family, config: BackboneConfig) -> Hyperparameters:
        """The hyperparameters of a run of `family` with the shape and boundaries of `config`.

        A family with the boundary operator that is run at K = 1 instead of its own K takes Operator-1's.
        """
        one_pass = family.boundary == "norm_inject" and config.passes == 1 != family.passes
        own = FAMILIES["operator_1"] if one_pass else family
        tuned = (family_named(self.hyperparameters_of) if self.hyperparameters_of else own).hyperparameters
        exponents = {"learning_rate": own.learning_rate_exponent, **self.exponents}
        ratio = size_ratio(family, config)
        tuned = with_share(tuned, self._share(tuned.learning_rate * ratio ** exponents["learning_rate"]))
        changes: dict[str, Any] = {name: getattr(tuned, name) * ratio**power for name, power in exponents.items()}
        if self.mup_output:
            multiplier = changes.get("output_multiplier", tuned.output_multiplier)
            changes["output_multiplier"] = multiplier * family.backbone(BASE_DEPTH).width / config.width
        changes["injection_scale"] = injection_scale(tuned, config)
        return replace(tuned, **{**changes, **self.overrides})

    @property
    def _algorithm(self) -> Algorithm:
        return algorithm_of("optimizer", self.optimizer)

    def _share(self, muon_rate: float) -> float:
        """The matrix learning rate as a share of Muon's, which is `muon_rate` at this size."""
        if self._algorithm.learning_rate_share is not None:
            return self._algorithm.learning_rate_share
        rate = self.overrides.get("learning_rate")
        rule = f"say that of {self.optimizer}, which has no learning_rate_share of Muon's; a number, at least 0"
        require(is_number(rate) and rate >= 0, "learning_rate", rate, rule)  # type: ignore[operator]
        return rate / muon_rate if rate and muon_rate else 1.0


def injection_scale(tuned: Hyperparameters, config: BackboneConfig) -> float | None:
    """α where a boundary of `config` injects (1 if it was never tuned), None elsewhere."""
    if not config.injects:
        return None
    return 1.0 if tuned.injection_scale is None else tuned.injection_scale


def with_share(tuned: Hyperparameters, share: float) -> Hyperparameters:
    """`tuned` with a share of its matrix learning rate, and multipliers that leave embedding and head as they were."""
    return replace(
        tuned,
        learning_rate=tuned.learning_rate * share,
        embedding_lr_multiplier=tuned.embedding_lr_multiplier / share,
        head_lr_multiplier=tuned.head_lr_multiplier / share,
    )
