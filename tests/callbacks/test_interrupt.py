"""A signal at an awkward moment. That processes end as they should is tested with the command line."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

import looplit
from looplit.callbacks import CheckpointOnSignal, RunReport
from looplit.errors import RunStopped


class SignalAt(Callback):
    """Sends this process a signal once: in a validation batch, or inside an accumulation window."""

    def __init__(self, moment: str, step: int) -> None:
        self.moment, self.step, self.sent = moment, step, False

    def _send(self, moment: str, step: int) -> None:
        if (moment, step) == (self.moment, self.step) and not self.sent:
            self.sent = True
            os.kill(os.getpid(), signal.SIGTERM)

    def on_validation_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        self._send("validation", trainer.global_step)

    def on_before_backward(self, trainer: L.Trainer, *_: Any) -> None:
        self._send("window", trainer.global_step)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpora")


def run(folder: Path, corpora: Path, *callbacks: Callback, checkpoint: str | None = None) -> tuple[Any, RunReport]:
    L.seed_everything(1, verbose=False)
    model = looplit.Loop(depth=3, width=32, heads=1, vocabulary=257, context=32, learning_rate=0.05)
    data = looplit.StandardLibraryText(folder=str(corpora), context=32, batch_size=2, val_tokens=400)
    report = RunReport()
    saving = ModelCheckpoint(dirpath=folder / "checkpoints")
    trainer = L.Trainer(
        accelerator="cpu", max_steps=12, accumulate_grad_batches=2, val_check_interval=8, check_val_every_n_epoch=None,
        logger=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
        num_sanity_val_steps=0, callbacks=[*callbacks, report, CheckpointOnSignal(), saving],
    )  # fmt: skip
    trainer.fit(model, data, ckpt_path=checkpoint, weights_only=True)
    return model, report


@pytest.mark.parametrize(("moment", "step"), [("validation", 4), ("window", 6)])
def test_the_run_goes_on_as_if_nothing_had_happened(tmp_path: Path, corpora: Path, moment: str, step: int) -> None:
    straight, straight_report = run(tmp_path / "straight", corpora)
    with pytest.raises(RunStopped, match="stopped by SIGTERM after step") as stopped:
        run(tmp_path / "stopped", corpora, SignalAt(moment, step))
    assert stopped.value.exit_code == 128 + signal.SIGTERM
    saved = tmp_path / "stopped" / "checkpoints" / "interrupted.ckpt"
    assert torch.load(saved, weights_only=True)["global_step"] == (4 if moment == "validation" else 7)  # whole steps
    resumed, resumed_report = run(tmp_path / "stopped", corpora, checkpoint=str(saved))
    for (name, a), b in zip(straight.named_parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b), name
    assert resumed.meter.tokens == straight.meter.tokens
    assert resumed_report.validations[-1] == straight_report.validations[-1]
    # of a validation that was cut short nothing is reported
    expected = [entry for entry in straight_report.validations if (moment, entry[0]) != ("validation", 4)]
    assert resumed_report.validations == expected


def test_handlers_are_given_back(tmp_path: Path, corpora: Path) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    run(tmp_path, corpora)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
