"""Every checkpoint on the way resumes bit for bit, whoever asked for it: none leaves micro-batches of a step out."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor, nn

from looplit import LoopGrow, TokenData
from looplit.callbacks import CheckpointOnSignal, ModelGrowth
from looplit.errors import InputError, RunStopped

STEPS, ACCUMULATION = 15, 3  # epochs of 8 steps


class Record(Callback):
    """What a run does, exactly."""

    def __init__(self) -> None:
        self.losses: dict[tuple[int, int], str] = {}
        self.rates: dict[int, list[str]] = {}
        self.validations: list[tuple[int, str]] = []
        self.stopped_at = -1

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        key = trainer.global_step, len(pl_module._losses)  # type: ignore[arg-type]
        assert key not in self.losses
        self.losses[key] = float(loss.detach()).hex()

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any) -> None:
        self.rates[trainer.global_step] = [float(group["lr"]).hex() for group in optimizer.param_groups]

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert not trainer.fit_loop._should_accumulate()
        self.validations.append((trainer.global_step, float(trainer.callback_metrics["loss/val"]).hex()))

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.stopped_at = trainer.global_step


class Saves(Callback):
    """Saves by hand: in the micro-batch that `moments` name, at its start, before its gradient, and at its end."""

    def __init__(self, folder: Path, moments: list[int]) -> None:
        self.folder, self.moments = folder, moments

    def _save(self, trainer: L.Trainer, moment: str) -> None:
        number = trainer.fit_loop.total_batch_idx
        if number in self.moments:
            trainer.save_checkpoint(self.folder / f"{number}-{moment}.ckpt")

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        self._save(trainer, "a")

    def on_before_backward(self, trainer: L.Trainer, *_: Any) -> None:
        self._save(trainer, "b")

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self._save(trainer, "c")


def run(corpus: str, folder: Path, *callbacks: Callback, checkpoint: Path | None = None, **settings: Any) -> Any:
    """(module, record) of a run of 15 steps of 3 micro-batches, 8 steps to an epoch; it grows at step 6."""
    L.seed_everything(3, verbose=False)
    record = Record()
    trainer = L.Trainer(
        accelerator="cpu", callbacks=[ModelGrowth(passes=4, step=6, rewarm_steps=2), record, *callbacks], logger=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder, num_sanity_val_steps=0,
        enable_checkpointing=any(isinstance(callback, ModelCheckpoint) for callback in callbacks),
        **{"accumulate_grad_batches": ACCUMULATION, "max_steps": STEPS, "limit_val_batches": 0, **settings},
    )  # fmt: skip
    module = LoopGrow(depth=3, width=32, heads=1, vocabulary=257, context=4, warmup_steps=2, steps=STEPS)
    trainer.fit(module, TokenData(corpus, context=4, batch_size=4), ckpt_path=checkpoint, weights_only=True)
    return module, record


def check(
    corpus: str, folder: Path, saved: list[Path], straight: Any, saver: Callable[[Path], Callback] | None = None,
    **settings: Any,
) -> None:  # fmt: skip
    """Resumes from each checkpoint: no micro-batch is left out, none comes twice, and all end in the same weights.

    Validations, and what a new `saver` saves into its folder, are those of the straight run.
    """
    module, record = straight
    for path in saved:
        step = torch.load(path, weights_only=True)["global_step"]
        at = folder / f"from-{path.stem}"
        resumed, seen = run(corpus, at, *([saver(at)] if saver else []), checkpoint=path, **settings)
        assert seen.losses == {key: loss for key, loss in record.losses.items() if key[0] >= step}, path
        assert seen.rates == {key: rates for key, rates in record.rates.items() if key >= step}, path
        assert seen.validations == [entry for entry in record.validations if entry[0] > step]
        assert (resumed.meter.tokens, resumed.meter.flops) == (module.meter.tokens, module.meter.flops)
        for (name, weight), again in zip(module.named_parameters(), resumed.parameters(), strict=True):
            assert torch.equal(weight, again), (path, name)
        if saver:
            later = {other.name for other in saved if torch.load(other, weights_only=True)["global_step"] > step}
            assert {file.name for file in at.glob("*")} == later


def validating(interval: Any) -> dict[str, Any]:
    return {"limit_val_batches": 1, "val_check_interval": interval}


@pytest.mark.parametrize(
    ("length", "moments"),
    [({}, [0, 10, 18, 23]), ({"max_steps": STEPS, "max_epochs": 2, "limit_train_batches": 24}, [24])],
    ids=["steps", "epochs"],
)
def test_by_hand_at_any_moment(corpus_folder: str, tmp_path: Path, length: dict[str, int], moments: list[int]) -> None:
    """In the first window, at growth in micro-batch 18, in the re-warmed step that ends the epoch, after its end."""
    straight = run(corpus_folder, tmp_path, Saves(tmp_path / "saved", moments), **length)
    saved = sorted((tmp_path / "saved").iterdir())
    assert len(saved) == 3 * len(moments)
    check(corpus_folder, tmp_path, saved, straight, **length)


@pytest.mark.parametrize(("interval", "validated"), [(4, [2, 3, 4, 6, 7, 8]), (0.3, [3, 5, 7])])
def test_after_a_validation_that_falls_inside_a_step(
    corpus_folder: str, tmp_path: Path, interval: float, validated: list[int]
) -> None:
    """It waits for the step's end: metric, weights and place of its checkpoints are those of one moment."""

    def saver(folder: Path) -> ModelCheckpoint:
        return ModelCheckpoint(folder, filename="{step}", monitor="loss/val", save_top_k=-1)

    straight = run(corpus_folder, tmp_path, saver(tmp_path / "saved"), **validating(interval))
    losses = dict(straight[1].validations)
    assert [step for step in losses if step <= 8] == validated
    saved = sorted((tmp_path / "saved").iterdir())
    assert {path.name for path in saved} == {f"step={step}.ckpt" for step in losses}
    check(corpus_folder, tmp_path, saved, straight, saver, **validating(interval))
    for path in saved:
        state = torch.load(path, weights_only=True)
        (kept,) = (value for key, value in state["callbacks"].items() if key.startswith("ModelCheckpoint"))
        assert float(kept["current_score"]).hex() == losses[state["global_step"]]


def test_no_step_is_saved_again_inside_the_next(corpus_folder: str, tmp_path: Path) -> None:
    def saver(folder: Path) -> ModelCheckpoint:
        return ModelCheckpoint(folder, filename="{step}", every_n_train_steps=4, save_top_k=-1)

    straight = run(corpus_folder, tmp_path, saver(tmp_path / "saved"))
    saved = sorted((tmp_path / "saved").iterdir())
    assert {path.name for path in saved} == {f"step={step}.ckpt" for step in (4, 8, 12)}
    check(corpus_folder, tmp_path, saved, straight, saver)


def test_by_the_clock(corpus_folder: str, tmp_path: Path) -> None:
    class Always(ModelCheckpoint):
        """Is due after every micro-batch, the first one of a step among them."""

        def _should_skip_saving_checkpoint(self, trainer: L.Trainer) -> bool:
            return trainer.fit_loop.total_batch_idx not in (9, 19, 23)

    saver = Always(tmp_path / "saved", train_time_interval=timedelta(0), save_top_k=-1)
    straight = run(corpus_folder, tmp_path, saver)
    saved = sorted((tmp_path / "saved").iterdir())
    assert sorted(torch.load(path, weights_only=True)["global_step"] for path in saved) == [3, 6, 8]
    check(corpus_folder, tmp_path, saved, straight)


@pytest.mark.parametrize("accumulation", [1, 3])
def test_after_an_exception(corpus_folder: str, tmp_path: Path, accumulation: int) -> None:
    class Fails(Callback):
        def on_before_backward(self, trainer: L.Trainer, *_: Any) -> None:
            if trainer.fit_loop.total_batch_idx == 13:
                raise MemoryError

    straight = run(corpus_folder, tmp_path / "straight", accumulate_grad_batches=accumulation)
    saver = ModelCheckpoint(tmp_path / "saved", filename="failed", save_on_exception=True)
    with pytest.raises(MemoryError):
        run(corpus_folder, tmp_path, Fails(), saver, accumulate_grad_batches=accumulation)
    (path,) = (tmp_path / "saved").iterdir()
    assert torch.load(path, weights_only=True)["global_step"] == 13 // accumulation
    check(corpus_folder, tmp_path, [path], straight, accumulate_grad_batches=accumulation)


def test_a_stop_inside_a_step_waits_for_its_end(corpus_folder: str, tmp_path: Path) -> None:
    class Stops(Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
            trainer.should_stop |= trainer.fit_loop.total_batch_idx == 12

    settings = validating(24)
    straight = run(corpus_folder, tmp_path / "straight", **settings)
    saver = ModelCheckpoint(tmp_path / "saved", filename="{step}", save_top_k=-1)
    _, record = run(corpus_folder, tmp_path, Stops(), saver, **settings)
    assert record.stopped_at == 5
    assert [step for step, _ in record.validations] == [5]
    (path,) = (tmp_path / "saved").iterdir()
    check(corpus_folder, tmp_path, [path], straight, **settings)


def test_a_setting_that_asks_for_the_inside_of_a_step_is_named(
    corpus_folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    line = (
        "warning: trainer.val_check_interval = 4: is no multiple of accumulate_grad_batches = 3; a validation inside "
        "an optimizer step waits for its end, and so does its checkpoint"
    )
    for settings, said in ((validating(4), True), (validating(3), False), ({"val_check_interval": 4}, False)):
        caplog.clear()
        run(corpus_folder, tmp_path, **{**settings, "max_steps": 1})
        assert (line in caplog.messages) is said


def test_a_place_inside_a_step_of_this_run_is_named_and_its_tokens_are_checked(
    corpus_folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saver = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=2)
    run(corpus_folder, tmp_path, saver, max_steps=2)
    with pytest.raises(InputError, match="accumulate_grad_batches = 4: an optimizer step takes 64 tokens; .* took 48"):
        run(corpus_folder, tmp_path, checkpoint=tmp_path / "step=2.ckpt", accumulate_grad_batches=4)
    assert (
        "warning: accumulate_grad_batches = 4: the checkpoint was saved after 6 batches of its epoch, inside an "
        "optimizer step; the first step here has only the rest of its batches"
    ) in caplog.messages


def test_a_signal_in_the_validation_of_another_module_waits_too(corpus_folder: str, tmp_path: Path) -> None:
    class Other(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(()))

        def training_step(self, batch: Tensor) -> Tensor:
            return self.weight * batch.float().mean()

        def validation_step(self, batch: Tensor) -> None:
            signals._received = signals._received or signal.SIGTERM

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    signals = CheckpointOnSignal()
    trainer = L.Trainer(
        accelerator="cpu", max_steps=9, accumulate_grad_batches=3, val_check_interval=4, logger=False,
        callbacks=[signals], enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        num_sanity_val_steps=0, default_root_dir=tmp_path,
    )  # fmt: skip
    with pytest.raises(RunStopped, match="stopped by SIGTERM after step 2"):
        trainer.fit(Other(), TokenData(corpus_folder, context=4, batch_size=4))
    saved = torch.load(tmp_path / "checkpoints" / "interrupted.ckpt", weights_only=True)
    assert saved["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]["ready"] == 6
