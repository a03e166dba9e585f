"""Where a run ends, whatever bounds it."""

from __future__ import annotations

import lightning as L


def at_last_step(trainer: L.Trainer) -> bool:
    """Whether the optimizer step that ends the run is done: that of `max_steps`, or the last of `max_epochs`."""
    return 0 < trainer.estimated_stepping_batches <= trainer.global_step
