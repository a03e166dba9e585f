"""How long a run is, known before its loader: one built to be asked takes its place before a checkpoint says which."""

from __future__ import annotations

import math

import lightning as L
from lightning.pytorch.utilities.seed import isolate_rng

from looplit.errors import require


def optimizer_steps(max_steps: int, max_epochs: int | None, batches: float, accumulation: int) -> float:
    """Optimizer steps of a run; inf if nothing ends it, nan if its epochs end nobody knows when.

    Args:
        max_steps: Of the Trainer; -1 for no bound.
        max_epochs: Of the Trainer; -1 or None for no bound.
        batches: That the Trainer takes from an epoch on one process; inf if the loader has no length.
        accumulation: Batches per optimizer step; an epoch's last step may have fewer.

    >>> optimizer_steps(-1, 3, batches=25, accumulation=2), optimizer_steps(30, 3, batches=25, accumulation=2)
    (39, 30)
    """
    in_steps = math.inf if max_steps == -1 else max_steps
    if max_epochs is None or max_epochs == -1:
        return in_steps
    if math.isinf(batches):
        return math.nan if max_steps == -1 else max_steps
    return min(in_steps, math.ceil(batches / accumulation) * max(max_epochs, 1))


def trainer_steps(trainer: L.Trainer) -> float:
    """Optimizer steps that a Trainer will take in all, those before a checkpoint included; as `optimizer_steps`.

    What `trainer.estimated_stepping_batches` says, without a loader built before the checkpoint is read.

    Raises:
        InputError: The loader has other batches than its data module promised.
    """
    batches = math.inf if trainer.max_epochs in (None, -1) else _epoch_batches(trainer)
    return optimizer_steps(trainer.max_steps, trainer.max_epochs, batches, trainer.accumulate_grad_batches)


def _epoch_batches(trainer: L.Trainer) -> float:
    promised: int | None = getattr(trainer.datamodule, "train_batches", None)  # type: ignore[attr-defined]
    if trainer.train_dataloader is None:
        return _asked_batches(trainer) if promised is None else promised
    given = trainer.num_training_batches
    require(promised in (None, given), "train_batches", promised, f"the training loader gives {given} of an epoch")
    return given


def _asked_batches(trainer: L.Trainer) -> float:
    """What a loader says. In a run that may resume it is built again afterwards, as if it had not been asked."""
    loop = trainer.fit_loop
    if trainer.ckpt_path is None and not trainer.strategy.restore_checkpoint_after_setup:
        loop.setup_data()
        return trainer.num_training_batches
    with isolate_rng():
        loop.setup_data()
        batches = trainer.num_training_batches
        loop.teardown()
    loop._combined_loader = None
    return batches
