"""Writing to TensorBoard beside what `self.log` does: figures, texts, layouts."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def writers(trainer: L.Trainer) -> list[Any]:
    """TensorBoard's SummaryWriters of a run; none on processes other than the first."""
    if not trainer.is_global_zero:
        return []
    return [logger.experiment for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]


def log_step(trainer: L.Trainer) -> int:
    """The step that `self.log` gives to a validation; outside of one, the last finished optimizer step, from 0."""
    if trainer.validating:
        return trainer.fit_loop.epoch_loop._batches_that_stepped
    return max(0, trainer.global_step - 1)


def add_figure(trainer: L.Trainer, tag: str, draw: Callable[[], Figure]) -> None:
    """Draws and writes a figure, if the run logs to TensorBoard and matplotlib is installed."""
    if find_spec("matplotlib") is None:
        return
    for writer in writers(trainer):
        writer.add_figure(tag, draw(), log_step(trainer))
