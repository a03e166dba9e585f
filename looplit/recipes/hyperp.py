"""Learning rates of the truncation study's recipe, carried from one size and budget to another by HyperP.

HyperP is arXiv 2603.28743. The numbers are those of Schwethelm et al. (arXiv 2604.21106), on which the truncation study
(arXiv 2610.26030) says it builds; it prints none itself.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from looplit.errors import require
from looplit.model.config import Role
from looplit.recipes.training import GroupSettings, Optimizer, Schedule, check_betas, is_number

REFERENCE_WIDTH = 640
REFERENCE_BATCH_TOKENS = 2**18
# Ten tokens per applied parameter of the reference models at width 640: 2-4-2 blocks with four passes, and 20 blocks.
REFERENCE_TOKENS = {"looped": 1_016_083_200, "plain": 983_315_200}

MATRIX_RATE, EMBEDDING_RATE, HEAD_RATE, GAIN_RATE = 0.014, 0.3, 0.004, 0.005
BATCH_EXPONENT, TOKENS_EXPONENT, WIDTH_EXPONENT = 0.558, -0.32, -0.5


@dataclass(frozen=True)
class HyperPSettings:
    """Settings of one run of the truncation study: no warmup, no weight decay, no clipping.

    Args:
        learning_rate: Of the matrices, the linear boundary's included.
        embedding_lr: Of AdamW on the embedding.
        head_lr: The same on the head.
        gain_lr: The same on the norms' gains.
        betas: Of AdamW.
        eps: Of AdamW.
        final_factor: Where the linear decay over the whole run ends, as a share of its start.
    """

    learning_rate: float
    embedding_lr: float
    head_lr: float
    gain_lr: float
    betas: tuple[float, float] = (0.8, 0.95)
    eps: float = 1e-10
    final_factor: float = 0.1

    def __post_init__(self) -> None:
        for name in ("learning_rate", "embedding_lr", "head_lr", "gain_lr", "eps"):
            value = getattr(self, name)
            require(is_number(value) and value >= 0, name, value, "must be a finite number, at least 0")
        check_betas(self.betas)
        object.__setattr__(self, "betas", tuple(self.betas))  # a list in YAML
        share = self.final_factor
        require(is_number(share) and 0 <= share <= 1, "final_factor", share, "must be a share, from 0 to 1")

    @property
    def schedule(self) -> Schedule:
        """Linear from 1 to `final_factor` over the whole run."""
        return Schedule(0, 1.0, self.final_factor)

    def groups(self, optimizer: Optimizer) -> dict[Role, GroupSettings]:
        """Settings by role; blocks and boundary train with `optimizer`, the rest with AdamW."""
        rest = (0.0, self.betas, self.eps)
        return {
            "embedding": GroupSettings("adamw", self.embedding_lr, *rest),
            "matrix": GroupSettings(optimizer, self.learning_rate, *rest),
            "head": GroupSettings("adamw", self.head_lr, *rest),
            "boundary": GroupSettings(optimizer, self.learning_rate, *rest),
            "gain": GroupSettings("adamw", self.gain_lr, *rest),
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name."""
        return asdict(self)


def transfer(width: int, batch_tokens: int, tokens: int, *, looped: bool = True) -> HyperPSettings:
    """The settings at a width, batch and budget.

    b = (batch/2^18)^0.558 and w = (width/640)^-0.5: matrices 0.014·b·(tokens/D_ref)^-0.32 at any width, embedding
    0.3·b·w, head 0.004·b·w, gains 0.005·w.

    Args:
        width: Of the model.
        batch_tokens: Tokens per optimizer step.
        tokens: Of the whole run.
        looped: Whether D_ref is the looped reference's or that of the model without loops.

    >>> transfer(640, 2**18, 1_016_083_200).learning_rate
    0.014
    """
    batch = (batch_tokens / REFERENCE_BATCH_TOKENS) ** BATCH_EXPONENT
    wide = (width / REFERENCE_WIDTH) ** WIDTH_EXPONENT
    budget = tokens / REFERENCE_TOKENS["looped" if looped else "plain"]
    return HyperPSettings(
        learning_rate=MATRIX_RATE * batch * budget**TOKENS_EXPONENT,
        embedding_lr=EMBEDDING_RATE * batch * wide,
        head_lr=HEAD_RATE * batch * wide,
        gain_lr=GAIN_RATE * wide,
    )
