"""Lightning callbacks for looped and growing models: imported as `looplit.callbacks`.

A callback says when; what it does is a pure function that works without a Trainer.
"""

from looplit.callbacks.growth import ModelGrowth
from looplit.callbacks.interrupt import CheckpointOnSignal
from looplit.callbacks.report import RunReport

__all__ = ["CheckpointOnSignal", "ModelGrowth", "RunReport"]
