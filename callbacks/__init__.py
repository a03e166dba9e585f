"""Lightning callbacks for looped and growing models: imported as `looplit.callbacks`.

A callback says when; what it does is a pure function that works without a Trainer.
"""

from looplit.callbacks.core import CoreEvaluation
from looplit.callbacks.dashboard import Dashboard
from looplit.callbacks.effective_depth import EffectiveDepth
from looplit.callbacks.growth import ModelGrowth
from looplit.callbacks.interrupt import CheckpointOnSignal
from looplit.callbacks.random_recurrence import RandomRecurrence
from looplit.callbacks.report import RunReport
from looplit.callbacks.test_time_passes import TestTimePasses
from looplit.callbacks.token_losses import TokenLossWriter

__all__ = [
    "CheckpointOnSignal",
    "CoreEvaluation",
    "Dashboard",
    "EffectiveDepth",
    "ModelGrowth",
    "RandomRecurrence",
    "RunReport",
    "TestTimePasses",
    "TokenLossWriter",
]
