"""Trains a small growing model of whole epochs, straight and stopped, on one process or more: run by test_epochs.py.

Usage: epochs_run.py CORPUS FOLDER DEVICES STRATEGY. Each process writes what it saw to FOLDER/RANK.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor

import looplit.strategies  # noqa: F401  so that looplit_fsdp is known
from looplit import LoopGrow, TokenData
from looplit.callbacks import ModelGrowth

EPOCH = 6  # steps, on each of one or two processes
LENGTHS = {
    "max_epochs": {"max_epochs": 3},
    "max_steps": {"max_steps": 3 * EPOCH},
    "both": {"max_epochs": 3, "max_steps": 3 * EPOCH - 2},
}
STOPS = (4, EPOCH, EPOCH + 3, 2 * EPOCH)


class Record(Callback):
    """Windows, losses and learning rates of every optimizer step, exactly."""

    def __init__(self) -> None:
        self.windows: list[list[int]] = []
        self.steps: list[list[Any]] = []

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Tensor, batch_idx: int
    ) -> None:
        self.windows.append([int(bytes(window[1:].tolist())) for window in batch.int()])

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any) -> None:
        losses = [float(loss).hex() for loss in pl_module._losses]  # type: ignore[union-attr]
        rates = [float(group["lr"]).hex() for group in optimizer.param_groups]
        self.steps.append([trainer.current_epoch, trainer.global_step, pl_module.backbone.passes, *losses, *rates])  # type: ignore[union-attr]


def run(
    corpus: str, folder: Path, devices: int, strategy: str, length: dict[str, int], checkpoint: Path | None = None
) -> dict[str, Any]:
    L.seed_everything(3, verbose=False)
    model = LoopGrow(depth=3, width=32, heads=1, vocabulary=257, context=4, warmup_steps=2)
    data = TokenData(corpus, context=4, batch_size=8 // devices)
    record = Record()
    saver = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    callbacks = [ModelGrowth(passes=4, fraction=0.5, rewarm_steps=2), record, *([] if checkpoint else [saver])]
    trainer = L.Trainer(
        accelerator="cpu", devices=devices, strategy=strategy, accumulate_grad_batches=2, callbacks=callbacks,
        enable_checkpointing=checkpoint is None, logger=False, enable_progress_bar=False, enable_model_summary=False,
        limit_val_batches=0, **length,  # type: ignore[arg-type]
    )  # fmt: skip
    late = isinstance(trainer.strategy, ModelParallelStrategy)  # which takes no weights_only
    trainer.fit(model, data, ckpt_path=checkpoint, weights_only=None if late else True)
    weights = sum(float(parameter.full_tensor().sum() if late else parameter.sum()) for parameter in model.parameters())  # type: ignore[operator]
    return {"windows": record.windows, "steps": record.steps, "final": weights.hex(), "rank": trainer.global_rank}


def main(corpus: str, folder: Path, devices: int, strategy: str) -> None:
    seen: dict[str, Any] = {}
    for name, length in LENGTHS.items():
        saved = folder / name
        seen[name] = {"straight": run(corpus, saved, devices, strategy, length)}
        for stop in STOPS:
            seen[name][str(stop)] = run(corpus, saved, devices, strategy, length, saved / f"step={stop}.ckpt")
    (folder / f"{seen['max_steps']['straight']['rank']}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
