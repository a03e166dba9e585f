"""TestTimePasses: what it logs, and which passes it refuses or leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
from helpers.small import TINY, quiet_trainer, windows
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import looplit
from looplit.callbacks import ModelGrowth, TestTimePasses
from looplit.errors import InputError


def fit(model: L.LightningModule, folder: Path, callbacks: list[Any], **settings: Any) -> EventAccumulator:
    logger = TensorBoardLogger(str(folder), name="", version="run")
    settings = {"max_steps": 4, "val_check_interval": 2, "logger": logger, **settings}
    trainer = quiet_trainer(callbacks=callbacks, **settings)
    trainer.fit(model, windows(16), windows(16))
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
