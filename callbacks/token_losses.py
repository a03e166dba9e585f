"""What `predict` leaves behind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import BasePredictionWriter


class TokenLossWriter(BasePredictionWriter):
    """Writes the loss of every predicted token, in nats, as one array (windows, tokens) into the run's folder.

    Args:
        filename: Name of the file; with several processes the rank is added, and each writes its own windows.
    """

    def __init__(self, filename: str = "token_losses.npy") -> None:
        super().__init__(write_interval="epoch")
        self.filename = filename

    def write_on_epoch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        predictions: Sequence[Any],
        batch_indices: Sequence[Any],
    ) -> None:
        path = Path(trainer.log_dir or trainer.default_root_dir) / self.filename
        if trainer.world_size > 1:
            path = path.with_stem(f"{path.stem}_{trainer.global_rank}")
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, torch.cat(list(predictions)).float().cpu().numpy())
        print(f"losses of {sum(len(batch) for batch in predictions):,} windows: {path}")
