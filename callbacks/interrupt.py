"""A checkpoint on Ctrl-C and SIGTERM."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from looplit.errors import RunStopped


class CheckpointOnSignal(Callback):
    """Ends a run cleanly on Ctrl-C (SIGINT) and SIGTERM: finishes the optimizer step, saves, stops.

    A signal during validation is acted on after the validation batch, unless an optimizer step is half done; the run
    then goes on from the checkpoint without the rest of that validation. A second Ctrl-C stops at once, without saving.
    A signal on one process stops all of them.

    Args:
        filename: Name of the checkpoint, in the folder of the run's other checkpoints.

    Raises:
        RunStopped: On a signal, after saving; exit code 128 + the signal's number.
    """

    def __init__(self, filename: str = "interrupted.ckpt") -> None:
        super().__init__()
        self.filename = filename
        self._received: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self._steps_seen = 0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._received = None
        self._steps_seen = trainer.global_step
        if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._received = signal.Signals(number)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        if trainer.global_step > self._steps_seen:  # never inside an accumulation window
            self._steps_seen = trainer.global_step
            self._stop_if_asked(trainer)

    def on_validation_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        inside_step = trainer.fit_loop._should_accumulate()  # other modules than LoopLit's may be validated there
        if (trainer.training or (trainer.validating and not trainer.sanity_checking)) and not inside_step:
            self._stop_if_asked(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._give_back()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._give_back()

    def _give_back(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def _stop_if_asked(self, trainer: L.Trainer) -> None:
        if not trainer.strategy.reduce_boolean_decision(self._received is not None, all=False):
            return
        path = Path(_checkpoint_folder(trainer)) / self.filename
        rank_zero_info(f"Saving {path}")
        trainer.save_checkpoint(path)
        number = self._received or signal.SIGTERM
        raise RunStopped(
            f"stopped by {number.name} after step {trainer.global_step}; go on with --ckpt_path {path}", 128 + number
        )


def _checkpoint_folder(trainer: L.Trainer) -> str:
    for callback in trainer.checkpoint_callbacks:
        if getattr(callback, "dirpath", None):
            return str(callback.dirpath)  # type: ignore[attr-defined]
    return str(Path(trainer.log_dir or trainer.default_root_dir) / "checkpoints")
