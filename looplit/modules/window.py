"""Checkpoints, validations and stops at the ends of optimizer steps, whoever asks for them and when."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.rank_zero import rank_zero_info


class Place(NamedTuple):
    """A place in a run, at the end of an optimizer step.

    Args:
        step: Optimizer steps taken.
        loop: State of the Trainer's fit loop, the loader's place in it.
        meter: State of the run's meter.
    """

    step: int
    loop: dict[str, Any]
    meter: dict[str, Any]

    @property
    def batches(self) -> int:
        """Micro-batches begun."""
        count: int = self.loop["epoch_loop.batch_progress"]["total"]["ready"]
        return count


class Window:
    """The micro-batches of an optimizer step, none of which a checkpoint may leave out.

    A checkpoint has no gradients. Weights, optimizer and schedule are the same throughout a window, so that one saved
    inside it (after an exception, by the clock, by hand) is made one of the end of the step before: the resumed run
    takes the window from its beginning. Validations and stops that fall inside a window wait for its end, since what
    they leave behind (a metric, a count of validations) cannot be taken back.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forgets an earlier run."""
        self.place: Place | None = None
        self._validate = False
        self._stop = False
        self._interval: float | None = None

    def keep(self, trainer: L.Trainer, meter: dict[str, Any]) -> None:
        """Notes the place where the run is."""
        self.place = Place(trainer.global_step, copy.deepcopy(trainer.fit_loop.state_dict()), meter)

    def left_open(self, trainer: L.Trainer) -> Place | None:
        """The place before the window, if micro-batches have been taken whose step has not."""
        if self.place is None or trainer.global_step != self.place.step:
            return None
        begun = trainer.fit_loop.epoch_loop.batch_progress.total.ready
        return self.place if begun > self.place.batches else None

    def batch_started(self, trainer: L.Trainer) -> None:
        """Lets validations fall where they did."""
        if self._interval is not None:
            trainer.val_check_batch, self._interval = self._interval, None

    def batch_ended(self, trainer: L.Trainer, meter: dict[str, Any]) -> None:
        """Holds back what does not belong inside a window; at its end lets it go, and notes the place."""
        loop = trainer.fit_loop.epoch_loop
        if self.left_open(trainer):
            assert trainer.fit_loop._data_fetcher is not None
            self._validate |= loop._should_check_val_fx(trainer.fit_loop._data_fetcher)
            loop._skip_next_val = True
            self._stop |= trainer.should_stop
            trainer.should_stop = False
            return
        self.keep(trainer, meter)
        trainer.should_stop |= self._stop
        if self._validate:
            self._interval, trainer.val_check_batch = trainer.val_check_batch, 1  # Lightning asks next
        self._validate = self._stop = False


def begin_whole_steps(trainer: L.Trainer) -> None:
    """Says what waits for the end of a step, and keeps callbacks from saving a resumed step again inside the next."""
    accumulation, interval = trainer.accumulate_grad_batches, trainer.val_check_interval
    if trainer.enable_validation and isinstance(interval, int) and interval % accumulation:
        rank_zero_info(
            f"warning: trainer.val_check_interval = {interval}: is no multiple of accumulate_grad_batches = "
            f"{accumulation}; a validation inside an optimizer step waits for its end, and so does its checkpoint"
        )
    epoch = trainer.fit_loop.epoch_loop
    done = epoch.batch_progress.current.ready
    if epoch.restarting and done % accumulation and not epoch.batch_progress.is_last_batch:
        rank_zero_info(
            f"warning: accumulate_grad_batches = {accumulation}: the checkpoint was saved after {done} batches of its "
            "epoch, inside an optimizer step; the first step here has only the rest of its batches"
        )
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint):
            callback._last_global_step_saved = max(callback._last_global_step_saved, trainer.global_step)
