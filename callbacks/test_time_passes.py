"""Loss at other numbers of passes than trained, during a run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import lightning as L
from torch import Tensor

from looplit.callbacks.sampled import SampledValidation, sum_over_processes
from looplit.callbacks.tensorboard import add_figure
from looplit.eval.passes import PassesResult, awake_passes, check_numbers, check_passes, loss_at_passes
from looplit.model.growth import growable_backbone


class TestTimePasses(SampledValidation):
    """Evaluates the model at several numbers of passes on validation.

    Logs `passes_loss/K` and `passes_excess/K`, the loss minus that at the K in force, and the figure `depth/passes`.
    Cores of an untied model that are still dormant are left out.

    Works on any LightningModule whose `forward` goes from tokens (B, T) to logits (B, T, vocabulary) and whose
    `backbone` has `passes`, `tied`, `cores` and `set_passes` (`looplit.model.growth.Growable`); batches are windows or
    pairs, as LoopLit's modules take them.

    Args:
        passes: K's to evaluate; of an untied model at most its stored cores.
        every_n_validations: 1 for every validation. One after the run's last step is always evaluated.
        tokens: Most tokens to evaluate, from the beginning of the validation data.

    Example:
        >>> from looplit.callbacks import TestTimePasses
        >>> callback = TestTimePasses([1, 2, 4, 8, 16], every_n_validations=4)
    """

    __test__ = False  # not a test, whatever its name

    def __init__(self, passes: list[int], every_n_validations: int = 1, tokens: int = 65_536) -> None:
        super().__init__(tokens, every_n_validations)
        check_numbers(passes)
        self.passes = passes
        self.result: PassesResult | None = None
        """The last evaluation."""

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        check_passes(growable_backbone(pl_module), self.passes)

    def measure(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batches: Sequence[tuple[Tensor, Tensor]]
    ) -> None:
        most = awake_passes(pl_module)
        awake = [k for k in self.passes if most is None or k <= most] or [growable_backbone(pl_module).passes]
        result = loss_at_passes(pl_module, batches, awake, reduce=partial(sum_over_processes, trainer))
        self.result = result
        for k, loss in result.losses.items():
            pl_module.log(f"passes_loss/{k:02d}", loss)
            pl_module.log(f"passes_excess/{k:02d}", result.excess(k))
        add_figure(trainer, "depth/passes", lambda: _figure(pl_module, result))


def _figure(pl_module: L.LightningModule, result: PassesResult) -> Any:
    from looplit.plots.lens import passes_figure

    family = getattr(pl_module, "family", None)
    return passes_figure({getattr(family, "name", type(pl_module).__name__): result})
