"""The base of callbacks that measure something on a part of the validation data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from looplit.callbacks.last_step import at_last_step
from looplit.errors import require_whole
from looplit.eval.sample import TokenSample, split_sample


class SampledValidation(Callback):
    """Keeps the first tokens of every n-th validation, and of one after the run's last step, and measures on them.

    The tokens are those that the first process validates on, shared by rows over all processes: one process and many
    measure the same.

    Args:
        tokens: Most tokens to measure on.
        every_n_validations: 1 for every validation.
    """

    def __init__(self, tokens: int, every_n_validations: int) -> None:
        super().__init__()
        require_whole("tokens", tokens)
        require_whole("every_n_validations", every_n_validations)
        self.tokens = tokens
        self.every_n_validations = every_n_validations
        self._validations = 0
        self._sample: TokenSample | None = None

    def measure(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batches: Sequence[tuple[Tensor, Tensor]]
    ) -> None:
        """Measures on this process' batches (inputs, targets), as many as the other processes have."""
        raise NotImplementedError

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._sample = None
        if trainer.sanity_checking:
            return
        self._validations += 1
        last = trainer.state.fn != TrainerFn.FITTING or trainer.should_stop or at_last_step(trainer)
        if last or self._validations % self.every_n_validations == 0:
            self._sample = TokenSample(self.tokens)

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if self._sample is not None and dataloader_idx == 0:
            self._sample.add(batch)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._sample is None:
            return
        sample, self._sample = self._sample, None
        kept: Any = trainer.strategy.broadcast(sample.stacked() if trainer.is_global_zero else None)
        place: Any = {"rank": trainer.global_rank, "world_size": trainer.world_size, "device": pl_module.device}
        batches = split_sample(*kept, **place)
        with torch.no_grad(), trainer.precision_plugin.val_step_context():
            self.measure(trainer, pl_module, batches)

    def state_dict(self) -> dict[str, Any]:
        return {"validations": self._validations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._validations = state_dict["validations"]


def sum_over_processes(trainer: L.Trainer, sums: Tensor) -> Tensor:
    """The sum of a tensor over the run's processes."""
    total = trainer.strategy.reduce(sums, reduce_op="sum")
    assert isinstance(total, Tensor)
    return total
