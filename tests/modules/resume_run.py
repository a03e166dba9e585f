"""Trains a tiny growing model and writes down every bit of it: run by test_resume.py in processes of its own.

Usage: resume_run.py FOLDER NAME GROWTH_STEP STOP_AFTER [CHECKPOINT]
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback

from looplit import StandardLibraryText, UntiedGrow
from looplit.callbacks import ModelGrowth

STEPS = 20


class Record(Callback):
    """Losses, learning rates and K of every optimizer step, exactly."""

    def __init__(self) -> None:
        self.lines: list[list[str]] = []

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any) -> None:
        losses = [float(loss).hex() for loss in pl_module._losses]  # type: ignore[union-attr]
        rates = [float(group["lr"]).hex() for group in optimizer.param_groups]
        self.lines.append([str(trainer.global_step), str(pl_module.backbone.passes), *losses, *rates])  # type: ignore[union-attr]


def digest(tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    return {name: hashlib.sha256(value.numpy().tobytes()).hexdigest() for name, value in tensors.items()}


def main(folder: Path, name: str, growth_step: int, stop_after: int, checkpoint: str | None) -> None:
    L.seed_everything(3, verbose=False)
    model = UntiedGrow(depth=3, width=32, heads=1, vocabulary=257, context=32, steps=STEPS, warmup_steps=3)
    data = StandardLibraryText(folder=str(folder / "corpora"), context=32, batch_size=2)
    record, growth = Record(), ModelGrowth(passes=4, step=growth_step, rewarm_steps=4)
    trainer = L.Trainer(
        accelerator="cpu", max_steps=stop_after, accumulate_grad_batches=2, callbacks=[growth, record], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0,
    )  # fmt: skip
    trainer.fit(model, data, ckpt_path=checkpoint, weights_only=True)
    trainer.save_checkpoint(folder / f"{name}.ckpt")
    optimizer = trainer.optimizers[0]
    names = {id(parameter): key for key, parameter in model.named_parameters()}
    state = {
        f"{names[id(parameter)]}/{key}": value
        for parameter, entries in optimizer.state.items()
        for key, value in entries.items()
    }
    result = {
        "steps": record.lines,
        "weights": digest(model.state_dict()),
        "state": digest(state),
        "counts": [model.meter.tokens, model.meter.flops, model.backbone.passes],
    }
    (folder / f"{name}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5] if len(sys.argv) > 5 else None)
