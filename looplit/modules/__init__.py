"""One LightningModule per architecture family, and the way back from a checkpoint."""

from looplit.modules.base import LoopedLM
from looplit.modules.checkpoint import load
from looplit.modules.families import (
    DeepVanilla,
    DeepVanillaGrow,
    GrowthStudyLM,
    Loop,
    LoopGrow,
    Operator1,
    Untied,
    UntiedGrow,
    Vanilla,
)
from looplit.modules.truncated import TruncatedLoop

__all__ = [
    "DeepVanilla",
    "DeepVanillaGrow",
    "GrowthStudyLM",
    "Loop",
    "LoopGrow",
    "LoopedLM",
    "Operator1",
    "TruncatedLoop",
    "Untied",
    "UntiedGrow",
    "Vanilla",
    "load",
]
