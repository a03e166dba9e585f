"""The eight architecture families and their base-tuned hyperparameters (growth study, section 3 and Table 5)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from looplit.errors import InputError, require
from looplit.model.boundary import boundary_class
from looplit.model.config import HEAD_DIM, BackboneConfig, Role, split_depth
from looplit.recipes.training import GroupSettings, Optimizer, Schedule, check_betas, is_number


@dataclass(frozen=True)
class Hyperparameters:
    """Settings of one training recipe, tuned at d8 (growth study, Table 5). Symbols of the paper in brackets.

    Args:
        learning_rate: [GLR] Muon's learning rate at d8.
        embedding_lr_multiplier: [ELRM] embedding learning rate as a multiple of the matrix learning rate.
        head_lr_multiplier: [HLRM] the same for the head.
        residual_multiplier: [RM]
        output_multiplier: [OM]
        injection_scale: [α] None where no boundary injects.
        weight_decay: [WD] for every group, decoupled, times that group's current learning rate.
        embedding_std: [WTE]
        uniform_init_scale: [UIS]
        warmup_steps: [WU]
        warmdown_ratio: [WDR] share of the run over which the learning rate falls to zero.
        betas: [β1, β2] of AdamW on embedding and head.
        eps: [ε] of the same.
    """

    learning_rate: float
    embedding_lr_multiplier: float
    head_lr_multiplier: float
    residual_multiplier: float
    output_multiplier: float
    injection_scale: float | None
    weight_decay: float
    embedding_std: float
    uniform_init_scale: float
    warmup_steps: int
    warmdown_ratio: float
    betas: tuple[float, float]
    eps: float

    def __post_init__(self) -> None:
        for name in (
            "learning_rate",
            "embedding_lr_multiplier",
            "head_lr_multiplier",
            "weight_decay",
            "eps",
            "warmup_steps",
        ):
            value = getattr(self, name)
            require(is_number(value) and value >= 0, name, value, "must be a finite number, at least 0")
        share = self.warmdown_ratio
        require(is_number(share) and 0 <= share <= 1, "warmdown_ratio", share, "must be a share, from 0 to 1")
        check_betas(self.betas)

    @property
    def schedule(self) -> Schedule:
        """Warmup, then flat, then linear to zero."""
        return Schedule(self.warmup_steps, self.warmdown_ratio)

    def groups(self, optimizer: Optimizer) -> dict[Role, GroupSettings]:
        """Settings by role; embedding and head train with AdamW, the matrices with `optimizer`.

        What a boundary learns, which none of the study's does, trains so: a matrix as those of the blocks, a vector
        with AdamW at the head's rate and without decay (our choice).
        """
        rate, rest = self.learning_rate, (self.weight_decay, (self.betas[0], self.betas[1]), self.eps)
        return {
            "embedding": GroupSettings("adamw", rate * self.embedding_lr_multiplier, *rest),
            "matrix": GroupSettings(optimizer, rate, *rest),
            "head": GroupSettings("adamw", rate * self.head_lr_multiplier, *rest),
            "boundary": GroupSettings(optimizer, rate, *rest),
            "gain": GroupSettings("adamw", rate * self.head_lr_multiplier, 0.0, *rest[1:]),
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name."""
        return asdict(self)


@dataclass(frozen=True)
class Family:
    """One architecture family: what it stores, how often its core runs, and how it was tuned.

    Args:
        name: Name in commands, JSON and file names, e.g. "untied_grow".
        tied: Whether all passes share one core.
        passes: K at the start of training.
        grow_to: K after growth; None for families of fixed K.
        boundary: φ and ρ.
        hyperparameters: Base-tuned at d8.
        tokens_per_parameter: TPP at the compute optimum, per stored parameter of the initial model.
        learning_rate_exponent: b of GLR(d) = GLR_d8·(N_d8/N_d)^b.
    """

    name: str
    tied: bool
    passes: int
    grow_to: int | None
    boundary: str
    hyperparameters: Hyperparameters
    tokens_per_parameter: float
    learning_rate_exponent: float

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

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        #      name                 tied   K  grow  boundary       tuned at d8        TPP  b
        Family("vanilla",           True,  1, None, "identity",    _VANILLA,          5.0, 0.8),
        Family("deep_vanilla",      False, 2, None, "identity",    _DEEP_VANILLA,     6.0, 0.7),
        Family("deep_vanilla_grow", False, 2, 4,    "identity",    _DEEP_VANILLA_GROW, 6.0, 0.8),
        Family("operator_1",        True,  1, None, "norm_inject", _OPERATOR_1,       6.0, 0.6),
        Family("loop_2",            True,  2, None, "norm_inject", _LOOP_2,           6.0, 0.6),
        Family("untied_2",          False, 2, None, "norm_inject", _UNTIED_2,         6.0, 0.6),
        Family("loop_grow",         True,  2, 4,    "norm_inject", _LOOP_2,           7.0, 0.5),
        Family("untied_grow",       False, 2, 4,    "norm_inject", _UNTIED_2,         8.0, 0.6),
    )
}
# fmt: on


def family(name: str) -> Family:
    """The family called `name`.

    Raises:
        InputError: There is none; the line lists those there are.
    """
    if name not in FAMILIES:
        raise InputError(f"family = {name!r}: must be one of {', '.join(FAMILIES)}")
    return FAMILIES[name]
