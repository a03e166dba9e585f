"""Hyperparameters of one recipe of the growth study, as its families are tuned and its runs use them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from looplit.errors import require
from looplit.model.config import Role
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
        object.__setattr__(self, "betas", tuple(self.betas))  # a list in YAML

    @property
    def schedule(self) -> Schedule:
        """Warmup, then flat, then linear to zero."""
        return Schedule(self.warmup_steps, self.warmdown_ratio)

    def groups(self, optimizer: Optimizer) -> dict[Role, GroupSettings]:
        """Settings by role; embedding and head train with AdamW, the matrices with `optimizer`.

        What a boundary learns, which none of the study's does, trains so: a matrix as those of the blocks, a vector
        with AdamW at the head's rate and without decay (our choice).
        """
        rate, rest = self.learning_rate, (self.weight_decay, self.betas, self.eps)
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
