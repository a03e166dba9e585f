"""The smallest model that a test trains, its data, and a Trainer that says nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader

TINY: dict[str, Any] = {"depth": 3, "width": 32, "heads": 1, "vocabulary": 64, "context": 16}
"""Arguments of a family's module."""


def tokens(rows: int = 48) -> Tensor:
    """Windows of `TINY`'s context and vocabulary, (rows, 17)."""
    return torch.randint(0, 64, (rows, 17), generator=torch.Generator().manual_seed(0))


def windows(rows: int = 48) -> DataLoader[Tensor]:
    """The same in batches of four."""
    return DataLoader(tokens(rows), batch_size=4)  # type: ignore[arg-type]


def quiet_trainer(folder: Path | None = None, **settings: Any) -> L.Trainer:
    """A Trainer on the CPU that writes and shows nothing but what `settings` ask for."""
    quiet = {
        "accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
        "enable_model_summary": False, "default_root_dir": folder,
    }  # fmt: skip
    return L.Trainer(**{**quiet, **settings})
