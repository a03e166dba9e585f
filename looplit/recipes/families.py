"""The eight architecture families and their base-tuned hyperparameters (growth study, section 3 and Table 5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from looplit.errors import require, require_whole
from looplit.model.boundary import boundary_class
from looplit.model.config import HEAD_DIM, BackboneConfig, split_depth
from looplit.recipes.hyperparameters import Hyperparameters
from looplit.recipes.study import StudyFamily
from looplit.recipes.training import is_number

Mode = Literal["published", "simple"]


@dataclass(frozen=True)
class Family(StudyFamily):
    """One architecture family: what it stores, how often its core runs, and how it was tuned.

    One of your own goes into a module class: `class MyFamily(GrowthStudyLM): family = Family("my_family", …)`.

    Args:
        name: Name in commands, JSON and file names, e.g. "untied_grow".
        tied: Whether all passes share one core.
        passes: K at the start of training.
        grow_to: K after growth; None for families of fixed K.
        boundary: φ and ρ.
        hyperparameters: Base-tuned at d8.
        tokens_per_parameter: TPP at the compute optimum, per stored parameter of the initial model.
        learning_rate_exponent: b of GLR(d) = GLR_d8·(N_d8/N_d)^b.
        growth_fraction: ρ, the share of training tokens after growth, for new ladders.
        published_fractions: ρ by depth, as a ladder was run.
        simple_tokens_per_parameter: TPP that goes with `growth_fraction`; default the family's.
        class_path: See `StudyFamily`.

    Raises:
        InputError: A value that breaks a rule, or growth without a fraction.
    """

    tied: bool
    passes: int
    grow_to: int | None
    boundary: str
    hyperparameters: Hyperparameters
    tokens_per_parameter: float
    learning_rate_exponent: float
    growth_fraction: float | None = None
    published_fractions: Mapping[int, float] = field(default_factory=dict, hash=False)
    simple_tokens_per_parameter: float | None = None

    def __post_init__(self) -> None:
        require_whole("passes", self.passes, 1)
        require(
            self.grow_to is None or self.grow_to > self.passes, "grow_to", self.grow_to,
            f"growth must lead above the {self.passes} passes of the start",
        )  # fmt: skip
        shares = [self.growth_fraction, *self.published_fractions.values()]
        for share in shares if self.grow_to is not None else []:
            inside = is_number(share) and 0 < share < 1  # type: ignore[operator]
            require(inside, "growth_fraction", share, "a family that grows has a share of the run after growth")
        tokens = self.tokens_per_parameter
        require(is_number(tokens) and tokens > 0, "tokens_per_parameter", tokens, "must be a finite number above 0")
        exponent = self.learning_rate_exponent
        require(is_number(exponent), "learning_rate_exponent", exponent, "must be a finite number")

    def fraction(self, depth: int, mode: Mode = "published") -> float | None:
        """ρ, the share of training tokens after growth; None for a family that does not grow.

        Args:
            depth: Nominal depth.
            mode: "published" is the ladder's own value, at other depths that of the nearest published depth (of two
                equally near the deeper, which is nearer in log depth); "simple" is the study's recommendation for new
                ladders (A.4.3), one value per family.

        >>> FAMILIES["untied_grow"].fraction(26), FAMILIES["untied_grow"].fraction(26, "simple")
        (0.23, 0.3)
        """
        require(mode in get_args(Mode), "mode", mode, "must be published or simple")
        known = self.published_fractions
        if mode == "simple" or not known or self.grow_to is None:
            return None if self.grow_to is None else self.growth_fraction
        return known[min(known, key=lambda other: (abs(other - depth), -other))]

    def growth_plan(self, depth: int, mode: Mode = "published") -> tuple[int, float] | None:
        """(K after growth, ρ); None for a family that does not grow."""
        fraction = self.fraction(depth, mode)
        return None if fraction is None or self.grow_to is None else (self.grow_to, fraction)

    @property
    def stored_cores(self) -> int:
        """Cores allocated from the start, those that wait for growth included."""
        return 1 if self.tied else (self.grow_to or self.passes)

    def backbone(self, depth: int, **changes: Any) -> BackboneConfig:
        """The backbone at nominal depth `depth`: width 128·depth, one head per 128, thirds; `changes` override.

        Args:
            depth: Nominal depth ℓ of dℓ, at least 3.
            **changes: Fields of `BackboneConfig` to set otherwise; None leaves a field as it is.

        >>> FAMILIES["untied_grow"].backbone(26).stored_blocks
        53
        """
        prelude, core, coda = split_depth(depth)
        tuned = self.hyperparameters
        fields: dict[str, Any] = {
            "width": HEAD_DIM * depth,
            "heads": depth,
            "prelude": prelude,
            "core": core,
            "coda": coda,
            "passes": self.passes,
            "tied": self.tied,
            "boundary": self.boundary,
            "coda_boundary": self.boundary,
            "residual_multiplier": tuned.residual_multiplier,
            "output_multiplier": tuned.output_multiplier,
            "embedding_std": tuned.embedding_std,
            "uniform_init_scale": tuned.uniform_init_scale,
        }
        fields.update({name: value for name, value in changes.items() if value is not None})
        if not fields["tied"] and "stored_cores" not in fields:
            fields["stored_cores"] = max(self.stored_cores, fields["passes"])
        injects = any(boundary_class(name, fields[name]).injects for name in ("boundary", "coda_boundary"))
        if "injection_scale" not in fields and injects:
            fields["injection_scale"] = tuned.injection_scale
        return BackboneConfig(**fields)


# fmt: off
_VANILLA = Hyperparameters(
    0.04, 0.4525483, 0.1131371, 0.25, 0.5, None, 0.0707107, 0.00707107, 0.0625, 40, 0.6, (0.8, 0.95), 1e-10)
_DEEP_VANILLA = Hyperparameters(
    0.04, 0.16, 0.0565685, 0.5, 1.0, None, 0.1, 0.005, 0.5, 5, 0.8, (0.8, 0.99), 1e-8)
_DEEP_VANILLA_GROW = replace(_DEEP_VANILLA, learning_rate=0.036)
_OPERATOR_1 = Hyperparameters(
    0.04, 0.9050967, 0.08, 0.5, 1.0, 1.0, 0.05, 0.1131371, 0.3535534, 0, 0.8, (0.8, 0.98), 1e-10)
_LOOP_2 = Hyperparameters(
    0.04, 0.32, 0.1131371, 0.25, 1.0, 0.7071068, 0.05, 0.02, 0.0441942, 40, 1.0, (0.8, 0.95), 1e-10)
_UNTIED_2 = Hyperparameters(
    0.04, 0.16, 0.16, 0.25, 1.0, 1.0, 0.0707107, 0.01, 0.3535534, 40, 1.0, (0.8, 0.99), 1e-8)

# ρ as each ladder was run; what follows is the study's recommendation, with the TPP of the family it grows from.
_LOOP_FRACTIONS = {6: 0.25, 8: 0.18, 10: 0.14, 12: 0.15, 14: 0.14, 16: 0.12, 18: 0.13}
_UNTIED_FRACTIONS = {6: 0.40, 8: 0.29, 10: 0.25, 12: 0.27, 14: 0.24, 16: 0.23, 18: 0.25, 26: 0.23}

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        #      name                 tied   K  grow  boundary       tuned at d8         TPP  b    ρ    published ρ
        Family("vanilla",           True,  1, None, "identity",    _VANILLA,           5.0, 0.8, class_path="Vanilla"),
        Family("deep_vanilla",      False, 2, None, "identity",    _DEEP_VANILLA,      6.0, 0.7,
               class_path="DeepVanilla"),
        Family("deep_vanilla_grow", False, 2, 4,    "identity",    _DEEP_VANILLA_GROW, 6.0, 0.8, 0.5, {8: 0.5}, 6.0,
               class_path="DeepVanillaGrow"),
        Family("operator_1",        True,  1, None, "norm_inject", _OPERATOR_1,        6.0, 0.6,
               class_path="Operator1"),
        Family("loop_2",            True,  2, None, "norm_inject", _LOOP_2,            6.0, 0.6, class_path="Loop"),
        Family("untied_2",          False, 2, None, "norm_inject", _UNTIED_2,          6.0, 0.6, class_path="Untied"),
        Family("loop_grow",         True,  2, 4,    "norm_inject", _LOOP_2,            7.0, 0.5, 0.2, _LOOP_FRACTIONS,
               6.0, class_path="LoopGrow"),
        Family("untied_grow",       False, 2, 4,    "norm_inject", _UNTIED_2,          8.0, 0.6, 0.3, _UNTIED_FRACTIONS,
               6.0, class_path="UntiedGrow"),
    )
}
# fmt: on
