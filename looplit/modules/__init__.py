"""One LightningModule per architecture family, and the way back from a checkpoint."""

from looplit.modules.base import LoopedLM
from looplit.modules.checkpoint import load
from looplit.modules.families import (
    DeepVanilla,
    DeepVanillaGrow,
    Loop,
    LoopGrow,
    Operator1,
    Untied,
    UntiedGrow,
    Vanilla,
)

__all__ = [
    "DeepVanilla",
    "DeepVanillaGrow",
    "Loop",
    "LoopGrow",
    "LoopedLM",
    "Operator1",
    "Untied",
    "UntiedGrow",
    "Vanilla",
    "load",
]
