"""Passes drawn at random at every optimizer step."""

from __future__ import annotations

from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn

from looplit.accounting.recurrence import RandomPasses, draw_passes
from looplit.callbacks.growth import ModelGrowth
from looplit.errors import InputError, require, require_whole
from looplit.model.growth import PASSES_KEY, growable_backbone


class RandomRecurrence(Callback):
    """Draws K uniformly from `passes` at every optimizer step after growth, or from the start without growth.

    K of step t is `draw_passes(seed, t, passes)`: the same on all processes, in every micro-batch of a step, and in a
    resumed run. Validation, tests and checkpoints take `evaluate_at`, from the first drawn step on. FLOPs are counted
    at the K that is run.

    Note:
        Name it after `ModelGrowth` among the callbacks. Under DDP, an untied model needs
        `find_unused_parameters=True`.

    Args:
        passes: K's to draw from.
        evaluate_at: K of every evaluation.
        seed: Of the draws.

    Example:
        >>> from looplit.callbacks import RandomRecurrence
        >>> callback = RandomRecurrence([2, 3, 4, 5, 6], evaluate_at=4)
    """

    def __init__(self, passes: list[int], evaluate_at: int, seed: int = 0) -> None:
        super().__init__()
        require_whole("evaluate_at", evaluate_at)
        require(isinstance(passes, list | tuple), "passes", passes, "must be a list to draw from")
        self.random_passes = RandomPasses(tuple(passes), evaluate_at, seed)
        """What a plan can replay."""
        self._growth: ModelGrowth | None = None

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        self._growth = next((callback for callback in callbacks if isinstance(callback, ModelGrowth)), None)
        if self._growth is not None and callbacks.index(self._growth) > callbacks.index(self):
            raise InputError("callbacks: name RandomRecurrence after ModelGrowth, which must act first")
        backbone = growable_backbone(pl_module)
        drawn = self.random_passes
        for name, most in (("passes", max(drawn.choices)), ("evaluate_at", drawn.evaluate_at)):
            stored = len(backbone.cores)
            require(backbone.tied or most <= stored, name, most, f"the model stores {stored} cores")

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._grown:
            drawn = self.random_passes
            growable_backbone(pl_module).set_passes(draw_passes(drawn.seed, trainer.global_step, drawn.choices))

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._evaluate(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._evaluate(trainer, pl_module)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._grown:
            checkpoint[PASSES_KEY] = self.random_passes.evaluate_at

    def _evaluate(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn == TrainerFn.FITTING and self._grown:
            growable_backbone(pl_module).set_passes(self.random_passes.evaluate_at)

    @property
    def _grown(self) -> bool:
        return self._growth is None or self._growth.finished
