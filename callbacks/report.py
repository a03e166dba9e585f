"""What a run says of itself: two lines at its start; `result.json` and a table at its end."""

from __future__ import annotations

import json
import platform
import resource
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from looplit.accounting.recurrence import REWARM_STEPS, Recurrence, as_list
from looplit.callbacks.last_step import at_last_step
from looplit.modules.base import LoopedLM
from looplit.recipes.run import Run, run_of
from looplit.wording import columns

_REPORTED_VERSIONS = ("looplit", "torch", "lightning", "litdata")


class RunReport(Callback):
    """Says what the run will do, and when it ends writes `result.json` into its folder and prints a short table.

    A run whose last step is not one of its validation steps is validated once more, so that the final validation loss
    is that of the final weights. Only for LoopLit's own modules; others train without a report.

    Args:
        filename: Name of the JSON file in the run's folder. Its keys are those of `looplit.results`, with `tokens` and
            `training_flops` as processed.
    """

    def __init__(self, filename: str = "result.json") -> None:
        super().__init__()
        self.filename = filename
        self.validations: list[tuple[int, int, float]] = []  # (step, passes, loss)
        self._earlier_s = 0.0
        self._started = time.perf_counter()
        self._bits_per_byte: float | None = None
        self._finished = False

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._started = time.perf_counter()
        self._finished = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        folder = _folder(trainer)
        if isinstance(pl_module, LoopedLM) and trainer.is_global_zero and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            print(f"{self.opening(planned_run(trainer, pl_module).to_dict())}\nrun: {folder}")

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        if at_last_step(trainer):
            trainer.should_stop = True  # a validation is due at the last step, whatever the interval

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        loss = trainer.callback_metrics.get("loss/val")
        if trainer.sanity_checking or not isinstance(pl_module, LoopedLM) or loss is None:
            return
        self.validations.append((trainer.global_step, pl_module.backbone.passes, float(loss)))
        bits = trainer.callback_metrics.get("loss/val_bits_per_byte")
        self._bits_per_byte = None if bits is None else float(bits)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._finished = True

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if self._finished and isinstance(pl_module, LoopedLM) and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            self._finished = False
            self._write(trainer, pl_module, _folder(trainer))

    def state_dict(self) -> dict[str, Any]:
        return {
            "validations": [list(entry) for entry in self.validations],
            "wall_s": self._wall_s(),
            "bits_per_byte": self._bits_per_byte,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.validations = [(int(s), int(k), float(loss)) for s, k, loss in state_dict["validations"]]
        self._earlier_s, self._bits_per_byte = state_dict["wall_s"], state_dict["bits_per_byte"]

    def _wall_s(self) -> float:
        return self._earlier_s + time.perf_counter() - self._started

    @rank_zero_only
    def _write(self, trainer: L.Trainer, pl_module: LoopedLM, folder: Path) -> None:
        result = self.result(trainer, pl_module, folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / self.filename).write_text(json.dumps(result, indent=2) + "\n")
        print(f"\n{self.table(result)}\n\nrun: {folder}\nTensorBoard: tensorboard --logdir {folder.parent}")

    def result(self, trainer: L.Trainer, pl_module: LoopedLM, folder: Path) -> dict[str, Any]:
        """The content of `result.json`; keys that do not apply are absent, and so is what was not done."""
        losses = [loss for _, _, loss in self.validations]
        checkpoints = [
            getattr(c, "last_model_path", "") or getattr(c, "best_model_path", "") for c in trainer.checkpoint_callbacks
        ]
        meter = pl_module.meter
        answer = {
            **planned_run(trainer, pl_module, trainer.global_step).to_dict(),
            "tokens": meter.tokens,
            "epochs": meter.tokens / epoch_tokens if (epoch_tokens := _epoch_tokens(trainer, pl_module)) else None,
            "training_flops": meter.flops,
            **trainer_settings(trainer),
            **text_record(trainer),
            "final_val_loss": losses[-1] if losses else None,
            "best_val_loss": min(losses, default=None),
            "final_val_bpb": self._bits_per_byte,
            "validations": self.validations or None,
            "tokens_per_second": meter.tokens_per_second(),
            "train_seconds": meter.seconds(),
            "wall_s": self._wall_s(),
            "peak_gib": _peak_gib(),
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine() + " CPU",
            "device_count": trainer.world_size,
            "seed": torch.initial_seed(),
            "initial_weights_seed": pl_module.hparams["seed"],
            "versions": {**{name: version(name) for name in _REPORTED_VERSIONS}, "python": platform.python_version()},
            "config_path": str(folder / "config.yaml") if (folder / "config.yaml").exists() else None,
            "checkpoint_path": next((path for path in checkpoints if path), None),
        }
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            answer |= getattr(callback, "run_results", {})
        return {name: value for name, value in answer.items() if value is not None}

    @staticmethod
    def opening(planned: dict[str, Any]) -> str:
        """The line at the start of a run."""
        depths = " → ".join(map(_either, planned["executed_depth"]))
        growth = f", growth at step {planned['growth_step']}" if "growth_step" in planned else ""
        return (
            f"{planned['family']}: {planned['stored_parameters']:,} parameters stored, "
            f"{planned['initial_parameters']:,} active at the start; executed depth {depths}; "
            f"{planned['steps']:,} steps of {planned['batch_tokens']:,} tokens{growth}"
        )

    @staticmethod
    def table(result: dict[str, Any]) -> str:
        """The few lines on screen, one column per phase between growths."""
        phases = range(len(result["passes"]))
        before_growth = [*as_list(result.get("growth_step")), result["steps"]]
        named = (("passes", "passes"), ("executed depth", "executed_depth"))
        rows = [(name, *map(_either, result[key])) for name, key in named]
        rows.append(("validation loss at its end", *(_loss_until(result, before_growth[phase]) for phase in phases)))
        lines = [columns(rows, "<")]
        lines.append(
            f"stored parameters  {result['stored_parameters']:,} ({result['initial_parameters']:,} active at the start)"
        )
        lines.append(f"trained            {result['tokens']:,} tokens, {result['training_flops']:.3e} FLOPs")
        if "tokens_per_second" in result:
            lines.append(f"speed              {result['tokens_per_second']:,.0f} tokens/s")
        if "final_val_bpb" in result:
            lines.append(
                f"final              {result['final_val_loss']:.4f} nats/token, {result['final_val_bpb']:.4f} bits/byte"
            )
        return "\n".join(lines)


def _folder(trainer: L.Trainer) -> Path:
    """The run's folder. All processes must ask for it together: Lightning agrees on it among them."""
    return Path(trainer.log_dir or trainer.default_root_dir)


def planned_run(trainer: L.Trainer, pl_module: LoopedLM, steps: int | None = None) -> Run:
    """The run that a Trainer is set to make of a module, in plain numbers; `steps`: only its beginning."""
    planned = pl_module.planned_steps
    steps = planned if steps is None else steps
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    growths = tuple(
        growth for callback in callbacks for growth in getattr(callback, "growth_events", ()) if growth.step < steps
    )
    drawn = (callback.random_passes for callback in callbacks if hasattr(callback, "random_passes"))
    rewarm = (getattr(callback, "rewarm_steps", REWARM_STEPS) for callback in callbacks
              if hasattr(callback, "growth_events"))  # fmt: skip
    return run_of(
        pl_module.recipe,
        planned,
        context=_context(trainer, pl_module),
        recurrence=Recurrence(pl_module.config.passes, growths, next(drawn, None), next(rewarm, REWARM_STEPS)),
        steps=steps,
        batch_tokens=_batch_tokens(trainer, pl_module),
    )


def trainer_settings(trainer: L.Trainer) -> dict[str, Any]:
    """What a Trainer itself decides of the training and of what is validated on; limits where they leave some out."""
    limits = {"validation_limit": trainer.limit_val_batches, "training_limit": trainer.limit_train_batches}
    return {
        "precision": str(trainer.precision),
        "gradient_clip_val": trainer.gradient_clip_val,
        "gradient_clip_algorithm": trainer.gradient_clip_algorithm and str(trainer.gradient_clip_algorithm),
    } | {name: None if limit == 1.0 and isinstance(limit, float) else limit for name, limit in limits.items()}


def text_record(trainer: L.Trainer) -> dict[str, Any]:
    """What is known of the text: the `record()` of the data module, or the class of what gives the batches."""
    data = trainer.datamodule  # type: ignore[attr-defined]
    if callable(getattr(data, "record", None)):
        return dict(data.record())
    source = data or getattr(trainer.train_dataloader, "dataset", trainer.train_dataloader)
    return {"corpus": f"{type(source).__module__}.{type(source).__qualname__}"}


def _context(trainer: L.Trainer, pl_module: LoopedLM) -> int:
    """Tokens of the windows trained on, which may be shorter than the model's context."""
    return getattr(trainer.datamodule, "context", pl_module.config.context)  # type: ignore[attr-defined]


def _batch_tokens(trainer: L.Trainer, pl_module: LoopedLM) -> int:
    """Tokens per optimizer step: the mean of what was processed, before the first step what the loader promises."""
    if pl_module.meter.tokens and trainer.global_step:
        return round(pl_module.meter.tokens / trainer.global_step)
    batch_size = getattr(trainer.train_dataloader, "batch_size", None) or 0
    return batch_size * _context(trainer, pl_module) * trainer.accumulate_grad_batches * trainer.world_size


def _epoch_tokens(trainer: L.Trainer, pl_module: LoopedLM) -> float | None:
    batches = trainer.num_training_batches
    tokens = _batch_tokens(trainer, pl_module) / trainer.accumulate_grad_batches * batches
    return tokens if 0 < tokens < float("inf") else None


def _loss_until(result: dict[str, Any], step: int) -> str:
    """The last validation loss at or before a step. One on a growth step runs before growth."""
    losses = [loss for at, _, loss in result.get("validations", []) if at <= step]
    return f"{losses[-1]:.4f}" if losses else "–"


def _either(value: int | list[int]) -> str:
    """A phase's one value, or all that it draws from."""
    return "/".join(map(str, value)) if isinstance(value, list) else str(value)


def _peak_gib() -> float:
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
