"""TestTimePasses: what it logs, and which passes it refuses or leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor
from torch.utils.data import DataLoader

import looplit
from looplit.callbacks import ModelGrowth, TestTimePasses
from looplit.errors import InputError

TINY: dict[str, Any] = {"depth": 3, "width": 32, "heads": 1, "vocabulary": 64, "context": 16}


def windows() -> DataLoader[Tensor]:
    return DataLoader(torch.randint(0, 64, (16, 17), generator=torch.Generator().manual_seed(0)), batch_size=4)  # type: ignore[arg-type]


def fit(model: L.LightningModule, folder: Path, callbacks: list[Any], **settings: Any) -> EventAccumulator:
    trainer = L.Trainer(
        accelerator="cpu", callbacks=callbacks, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, logger=TensorBoardLogger(str(folder), name="", version="run"),
        **{"max_steps": 4, "val_check_interval": 2, **settings},
    )  # fmt: skip
    trainer.fit(model, windows(), windows())
    return EventAccumulator(str(folder / "run")).Reload()


def test_it_logs_loss_and_excess_at_each_number_of_passes(tmp_path: Path) -> None:
    model, passes = looplit.Loop(**TINY), TestTimePasses([1, 2, 4, 16])
    logged = fit(model, tmp_path, [passes])
    assert passes.result is not None
    assert model.backbone.passes == passes.result.trained == 2
    for k in (1, 2, 4, 16):
        assert [event.step for event in logged.Scalars(f"passes_loss/{k:02d}")] == [1, 3]
        assert logged.Scalars(f"passes_loss/{k:02d}")[-1].value == pytest.approx(passes.result.losses[k])
        assert logged.Scalars(f"passes_excess/{k:02d}")[-1].value == pytest.approx(passes.result.excess(k), abs=1e-6)
    # All validation tokens fit, so that the loss at the trained passes is the validation loss.
    assert passes.result.losses[2] == pytest.approx(logged.Scalars("loss/val")[-1].value, rel=1e-6)


def test_dormant_cores_are_left_out(tmp_path: Path) -> None:
    passes = TestTimePasses([1, 2, 3, 4], tokens=64)
    logged = fit(looplit.UntiedGrow(**TINY), tmp_path, [ModelGrowth(passes=4, step=2), passes])
    assert [event.step for event in logged.Scalars("passes_loss/02")] == [1, 3]
    assert [event.step for event in logged.Scalars("passes_loss/03")] == [3]


def test_an_untied_model_above_its_stored_cores_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="passes = 3: an untied model can run at most its 2 stored cores"):
        fit(looplit.Untied(**TINY), tmp_path, [TestTimePasses([1, 3])])
