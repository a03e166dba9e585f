"""The place of a run in its epochs, where Lightning's own account of it loses one.

Lightning (2.6) takes a checkpoint from the end of an epoch for one from its middle. Resumed under `max_steps`, it
trains one batch of the next epoch and calls that epoch over; under `max_epochs`, it does not give the loader its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import lightning as L
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.loops.progress import _ProcessedTracker, _ReadyCompletedTracker
from lightning.pytorch.trainer.states import TrainerFn

from looplit.errors import InputError

if TYPE_CHECKING:
    from looplit.data.loader import ResumableLoader


def set_place(loader: ResumableLoader, loop: _FitLoop, redeal: bool = False) -> None:
    """Puts a new loader after the epochs that are over, and the loop of a run that resumes there at the next one.

    To be called while the loop asks for its loader, so before it reads its own counts.

    Args:
        loader: Of the training batches.
        loop: Of the Trainer.
        redeal: Whether an epoch is over too that was dealt to other processes or in other batches.
    """
    _restore_early(loop.trainer)
    states = loop._combined_loader_states_to_load  # given to the loader afterwards, if Lightning finds that it resumes
    finished = _processed(loop.epoch_progress.current).processed
    if finished:
        loader.begin_after(finished)
    if len(states) != 1 or "batches_done" not in states[0]:
        return
    if redeal and loader.dealt_otherwise(states[0]):
        loader.begin_after(states[0]["epoch"])  # which LitData counts from 1
    elif states[0]["batches_done"] >= loader.taken:
        loader.load_state_dict(states[0])
    else:
        return
    loop._combined_loader_states_to_load = []
    _end_epoch(loop)


def _restore_early(trainer: L.Trainer) -> None:
    """A module that asks `trainer.estimated_stepping_batches` has the loader built before its loop is restored.

    Lightning restores it later, and never tells a loader that is there already. So it is restored here, once.
    """
    connector = trainer._checkpoint_connector
    if trainer.state.fn == TrainerFn.FITTING and "loops" in connector._loaded_checkpoint:
        connector.restore_loops()
        del connector._loaded_checkpoint["loops"]


def check_place(loop: _FitLoop, resumed: bool) -> None:
    """Of a loader that begins to give batches.

    Args:
        loop: Of the Trainer.
        resumed: Whether the loop resumed already when the loader was built.

    Raises:
        InputError: The loader was built before the loop was restored, where the strategy reads checkpoints late.
    """
    if loop.is_resuming and not resumed:
        raise InputError(
            "trainer.estimated_stepping_batches: was asked for before this strategy reads the checkpoint, so the "
            "resumed run would begin its data anew; count its steps from the data module's train_batches instead"
        )


def _end_epoch(loop: _FitLoop) -> None:
    this_epoch = _processed(loop.epoch_progress.current)
    if this_epoch.processed < this_epoch.started:  # saved before the epoch's last step was counted
        loop.epoch_loop._batches_that_stepped += 1
    for progress in (loop.epoch_progress, loop.epoch_loop.batch_progress):
        for counts in (_processed(progress.current), _processed(progress.total)):
            counts.ready = counts.processed = counts.completed = counts.started
    _Loop.restarting.fset(loop, False)  # type: ignore[attr-defined]  # of the loop and all within it


def _processed(counts: _ReadyCompletedTracker) -> _ProcessedTracker:
    assert isinstance(counts, _ProcessedTracker)
    return counts
