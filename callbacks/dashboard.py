"""TensorBoard at a glance: layout, plan, hyperparameters with final metrics, curves against tokens and FLOPs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lightning as L
from lightning.pytorch.callbacks import Callback

from looplit.callbacks.report import planned_run
from looplit.callbacks.tensorboard import add_figure, log_step, writers
from looplit.model.config import BackboneConfig
from looplit.modules.base import LoopedLM
from looplit.planning.card import run_card
from looplit.recipes.run import backbone_settings

if TYPE_CHECKING:
    from looplit.plots.training import Point

FINAL = {"val_loss": "loss/val", "val_bits_per_byte": "loss/val_bits_per_byte"}
"""Final metric of the HParams view → tag whose last value it is."""

Layout = dict[str, dict[str, list[Any]]]


def layout(config: BackboneConfig | None = None) -> Layout:
    """Category → chart → tags, for TensorBoard's Custom Scalars.

    A chart has one tag where it can: TensorBoard colours by run, so that curves of one run look alike.

    Args:
        config: Of the model, so that the KL is shown where the prelude and each pass end, not after every block.
    """
    ends = "" if config is None else rf"(1_prelude_{config.prelude}|2_core_\d+\.{config.core})$"
    charts = {
        "loss": {
            "training, nats per token": "^loss/train$",
            "validation, nats per token": "^loss/val$",
            "validation, bits per byte": "^loss/val_bits_per_byte$",
        },
        "compute": {
            "tokens": "^compute/tokens$",
            "training FLOPs": "^compute/training_flops$",
            "tokens per second": "^compute/tokens_per_second$",
        },
        "growth": {
            "passes": "^growth/passes$",
            "executed depth": "^growth/executed_depth$",
            "learning rate of the block matrices": "^learning_rate/matrix$",
        },
        "depth": {
            "KL effective depth, blocks": "^depth/effective_depth$",
            "KL from the end, after prelude and passes": f"^depth_kl/{ends}",
            "loss at other passes, minus the trained": "^passes_excess/",
        },
        "residual": {
            "RMS of what the prelude adds": "^residual/prelude$",
            "RMS of what each pass adds": "^residual/core",
            "RMS of what the coda adds": "^residual/coda$",
        },
        "CORE": {
            "mean centered accuracy": "^core/metric$",
            "the same, 17 filtered tasks": "^core/metric_filtered$",
            "answer loss, nats per token": "^core/loss$",
        },
    }
    return {
        category: {title: ["Multiline", [tag]] for title, tag in titles.items()} for category, titles in charts.items()
    }


class Dashboard(Callback):
    """Arranges a run in TensorBoard.

    At the start: the layout of Custom Scalars by loss, compute, growth, depth, residual and CORE, and the run's plan as
    text. At the end: hyperparameters, settled ones too, with final metrics (HParams view), and the loss against steps,
    tokens and FLOPs (the figure `curves/loss`). A run that resumes in the folder it had cuts off what its predecessor
    logged after the checkpoint, so that no step is shown twice.

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
            writer.add_custom_scalars(layout(pl_module.config if isinstance(pl_module, LoopedLM) else None))
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

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        from torch.utils.tensorboard.summary import hparams

        if not isinstance(pl_module, LoopedLM):
            return
        metrics, chosen = _final_metrics(trainer, pl_module), _hyperparameters(pl_module)
        for writer in writers(trainer):
            for summary in hparams(chosen, metrics):
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


def _final_metrics(trainer: L.Trainer, pl_module: LoopedLM) -> dict[str, float]:
    """What the run ended with; other callbacks are asked after all of them have ended, whatever their order."""
    reported: dict[str, Any] = {}
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        reported |= getattr(callback, "run_results", {})
    results = {
        **{name: trainer.callback_metrics.get(tag) for name, tag in FINAL.items()},
        "effective_depth": reported.get("effective_depth"),
        "core": reported.get("core", {}).get("core_metric"),
        "tokens": pl_module.meter.tokens,
        "training_flops": pl_module.meter.flops,
    }
    return {f"final/{name}": float(value) for name, value in results.items() if value is not None}


def _hyperparameters(pl_module: LoopedLM) -> dict[str, bool | float | str]:
    """What was given, and what followed from it."""
    config = pl_module.config
    settled = {
        "family": pl_module.recipe.name,
        "width": config.width,
        "heads": config.heads,
        "split": (config.prelude, config.core, config.coda),
        **backbone_settings(config),
        **pl_module.recipe.settings(pl_module.planned_steps).to_dict(),
    }
    chosen = {**pl_module.hparams, **settled}
    return {
        name: value if isinstance(value, bool | int | float | str) else str(value)
        for name, value in chosen.items()
        if value is not None
    }
