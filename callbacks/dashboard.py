"""TensorBoard at a glance: layout, plan, hyperparameters with final metrics, curves against tokens and FLOPs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lightning as L
from lightning.pytorch.callbacks import Callback

from looplit.callbacks.report import planned_run
from looplit.callbacks.tensorboard import add_figure, log_step, writers
from looplit.modules.base import LoopedLM
from looplit.scaling.card import run_card

if TYPE_CHECKING:
    from looplit.plots.training import Point

LAYOUT = {
    "loss": {
        "nats per token": ["Multiline", ["^loss/train$", "^loss/val$"]],
        "bits per byte": ["Multiline", ["^loss/val_bits_per_byte$"]],
    },
    "compute": {
        "tokens": ["Multiline", ["^compute/tokens$"]],
        "training FLOPs": ["Multiline", ["^compute/training_flops$"]],
        "tokens per second": ["Multiline", ["^compute/tokens_per_second$"]],
    },
    "growth": {
        "passes": ["Multiline", ["^growth/passes$"]],
        "executed depth": ["Multiline", ["^growth/executed_depth$"]],
        "learning rates": ["Multiline", ["^learning_rate/"]],
    },
    "depth": {
        "executed and effective depth": ["Multiline", ["^growth/executed_depth$", "^depth/effective_depth$"]],
        "KL of each block's prediction from the final one": ["Multiline", ["^depth_kl/"]],
        "loss at other passes, minus the trained": ["Multiline", ["^passes_excess/"]],
    },
    "residual": {"RMS of what each stage adds": ["Multiline", ["^residual/"]]},
    "CORE": {
        "mean centered accuracy": ["Multiline", ["^core/metric"]],
        "answer loss": ["Multiline", ["^core/loss$"]],
        "tasks, centered accuracy": ["Multiline", ["^core_centered/"]],
    },
}
"""Category → chart → tags, for TensorBoard's Custom Scalars."""

FINAL = {
    "val_loss": "loss/val",
    "val_bits_per_byte": "loss/val_bits_per_byte",
    "effective_depth": "depth/effective_depth",
    "core": "core/metric",
}
"""Final metric of the HParams view → tag whose last value it is."""


class Dashboard(Callback):
    """Arranges a run in TensorBoard.

    At the start: the layout of Custom Scalars by loss, compute, growth, depth, residual and CORE, and the run's plan as
    text. At the end: hyperparameters with final metrics (HParams view), and the loss against steps, tokens and FLOPs
    (the figure `curves/loss`). A run that resumes in the folder it had cuts off what its predecessor logged after the
    checkpoint, so that no step is shown twice.

    Plan, final metrics and curves are for LoopLit's own modules; figures need matplotlib.

    Example:
        >>> from looplit.callbacks import Dashboard
        >>> callback = Dashboard()
    """

    def __init__(self) -> None:
        super().__init__()
        self.train: list[Point] = []
        self.validation: list[Point] = []

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]

        for writer in writers(trainer):
            writer.add_custom_scalars(LAYOUT)
            if trainer.global_step:
                start = Event(session_log=SessionLog(status=SessionLog.START))
                writer.file_writer.add_event(start, trainer.global_step)
            if isinstance(pl_module, LoopedLM) and _batch_size_known(trainer):
                card = run_card(planned_run(trainer, pl_module))
                writer.add_text("plan", "\n".join(f"    {line}" for line in card.splitlines()), trainer.global_step)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        metrics = trainer.callback_metrics
        if "loss/train" not in metrics or "compute/tokens" not in metrics:
            return
        tokens, flops = (int(metrics[f"compute/{name}"]) for name in ("tokens", "training_flops"))
        if not self.train or tokens > self.train[-1][1]:
            self.train.append((trainer.global_step, tokens, flops, float(metrics["loss/train"])))

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        loss = trainer.callback_metrics.get("loss/val")
        if trainer.sanity_checking or loss is None or not isinstance(pl_module, LoopedLM):
            return
        meter = pl_module.meter
        self.validation.append((trainer.global_step, meter.tokens, meter.flops, float(loss)))

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        from torch.utils.tensorboard.summary import hparams

        if not isinstance(pl_module, LoopedLM):
            return
        metrics = {
            f"final/{name}": float(trainer.callback_metrics[tag])
            for name, tag in FINAL.items()
            if tag in trainer.callback_metrics
        }
        metrics |= {"final/tokens": float(pl_module.meter.tokens), "final/training_flops": float(pl_module.meter.flops)}
        chosen = {"family": pl_module.recipe.name, **pl_module.hparams}
        given = {name: _plain(value) for name, value in chosen.items() if value is not None}
        for writer in writers(trainer):
            for summary in hparams(given, metrics):
                writer.file_writer.add_summary(summary)
            for tag, value in metrics.items():
                writer.add_scalar(tag, value, log_step(trainer))
        add_figure(trainer, "curves/loss", self._figure)

    def state_dict(self) -> dict[str, Any]:
        return {name: [list(point) for point in getattr(self, name)] for name in ("train", "validation")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.train, self.validation = (
            [(step, tokens, flops, loss) for step, tokens, flops, loss in state_dict[name]]
            for name in ("train", "validation")
        )

    def _figure(self) -> Any:
        from looplit.plots.training import training_curves

        return training_curves(self.train, self.validation)


def _batch_size_known(trainer: L.Trainer) -> bool:
    return getattr(trainer.datamodule, "batch_size", None) is not None  # type: ignore[attr-defined]


def _plain(value: Any) -> bool | float | str:
    return value if isinstance(value, bool | int | float | str) else str(value)
