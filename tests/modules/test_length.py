"""How long a run is, asked before a checkpoint is read: nothing that asks for it moves the run in its data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader

import looplit
from looplit.data.module import TokenData
from looplit.errors import InputError
from looplit.modules.length import optimizer_steps, trainer_steps

EPOCH = 12  # batches


class LateReading(SingleDeviceStrategy):
    """Reads a checkpoint after the optimizers are made, as sharding strategies do."""

    restore_checkpoint_after_setup = True  # type: ignore[assignment]


class Stateful:
    """A loader of one's own that knows its place: batches of windows, each filled with its number."""

    def __init__(self) -> None:
        self.given = 0

    def __len__(self) -> int:
        return EPOCH

    def __iter__(self) -> Iterator[Tensor]:
        self.given %= EPOCH
        while self.given < EPOCH:
            self.given += 1
            yield torch.full((2, 5), self.given)

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]


def shuffled() -> DataLoader[Tensor]:
    return DataLoader(torch.arange(24).repeat_interleave(5).view(24, 5), batch_size=2, shuffle=True)  # type: ignore[arg-type]


class Noted(looplit.Loop):
    """Notes the first token of every batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.seen = [*getattr(self, "seen", []), int(batch[0, 0])]
        return super().training_step(batch, batch_idx)


class Asking(L.LightningModule):
    """A module that is not one of LoopLit's, and asks the Trainer how long it will train."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.seen: list[list[int]] = []

    def training_step(self, batch: Tensor) -> Tensor:
        self.seen.append(batch.flatten().tolist())
        return self.weight * batch.float().mean()

    def configure_optimizers(self) -> Any:
        steps = self.trainer.estimated_stepping_batches
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=int(steps))]


def fit(module: L.LightningModule, data: Any, folder: Path, stop: int | None = None, **settings: Any) -> Any:
    """Trains three epochs, from the beginning or from the checkpoint after batch `stop`."""
    L.seed_everything(1, verbose=False)
    settings = {"max_epochs": 3, **settings}
    saver = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    L.Trainer(
        accelerator="cpu", logger=False, callbacks=[] if stop else [saver], enable_checkpointing=stop is None,
        enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0, **settings,
    ).fit(module, data, ckpt_path=folder / f"step={stop}.ckpt" if stop else None)  # fmt: skip
    return module


def noted() -> Noted:
    return Noted(depth=3, width=32, heads=1, vocabulary=257, context=4)


def test_the_length_of_a_run_is_a_matter_of_numbers() -> None:
    inf = float("inf")
    assert optimizer_steps(-1, 3, 25, 2) == 39
    assert optimizer_steps(30, 3, 25, 2) == 30
    assert optimizer_steps(30, None, inf, 2) == optimizer_steps(30, -1, 25, 2) == optimizer_steps(30, 3, inf, 2) == 30
    assert optimizer_steps(-1, -1, 25, 2) == inf
    assert optimizer_steps(-1, 3, inf, 2) != optimizer_steps(-1, 3, inf, 2)  # nan: nobody knows


@pytest.mark.parametrize("settings", [{}, {"limit_train_batches": 7}, {"limit_train_batches": 0.5}, {"max_steps": 9}])
@pytest.mark.parametrize("accumulation", [1, 4])
def test_it_is_what_lightning_finds_with_a_loader(
    corpus_folder: str, tmp_path: Path, accumulation: int, settings: dict[str, Any]
) -> None:
    class Compared(Asking):
        def configure_optimizers(self) -> Any:
            before = trainer_steps(self.trainer), self.trainer.train_dataloader
            answer = super().configure_optimizers()
            assert before == (self.trainer.estimated_stepping_batches, None)
            assert trainer_steps(self.trainer) == before[0]
            return answer

    data = TokenData(corpus_folder, context=4, batch_size=4)
    module = fit(Compared(), data, tmp_path, accumulate_grad_batches=accumulation, **settings)
    assert module.global_step == trainer_steps(module.trainer)


@pytest.mark.parametrize("stop", [5, 24, 25, 48, 55])
def test_a_module_of_ones_own_may_ask_before_the_checkpoint_is_read(
    corpus_folder: str, tmp_path: Path, stop: int
) -> None:
    straight = fit(Asking(), TokenData(corpus_folder, context=4, batch_size=4), tmp_path)
    resumed = fit(Asking(), TokenData(corpus_folder, context=4, batch_size=4), tmp_path, stop)
    assert len(straight.seen) == 75
    assert resumed.seen == straight.seen[stop:]


def test_where_that_loses_the_place_the_run_is_refused(corpus_folder: str, tmp_path: Path) -> None:
    straight = fit(Asking(), TokenData(corpus_folder, context=4, batch_size=4), tmp_path, strategy=LateReading("cpu"))
    assert len(straight.seen) == 75
    resumed, data = Asking(), TokenData(corpus_folder, context=4, batch_size=4)
    with pytest.raises(InputError, match="estimated_stepping_batches: was asked for before"):
        fit(resumed, data, tmp_path, 30, strategy=LateReading("cpu"))
    assert not resumed.seen


@pytest.mark.parametrize("strategy", [SingleDeviceStrategy, LateReading])
@pytest.mark.parametrize("stop", [5, 17])
def test_a_stateful_loader_of_ones_own_keeps_its_place(tmp_path: Path, stop: int, strategy: Any) -> None:
    straight = fit(noted(), Stateful(), tmp_path, strategy=strategy("cpu"))
    resumed = fit(noted(), Stateful(), tmp_path, stop, strategy=strategy("cpu"))
    assert straight.seen == 3 * list(range(1, EPOCH + 1))
    assert resumed.seen == straight.seen[stop:]


def test_asking_a_shuffled_loader_draws_no_numbers(tmp_path: Path) -> None:
    fit(noted(), shuffled(), tmp_path)
    asked = fit(noted(), shuffled(), tmp_path, EPOCH)
    unasked = fit(noted(), shuffled(), tmp_path, EPOCH, max_epochs=-1, max_steps=3 * EPOCH)
    assert len(asked.seen) == 2 * EPOCH
    assert asked.seen[:EPOCH] == unasked.seen[:EPOCH]


def test_a_promise_that_the_loader_breaks_is_named(corpus_folder: str, tmp_path: Path) -> None:
    class Other(TokenData):
        def train_dataloader(self) -> Any:
            return Stateful()

    with pytest.raises(InputError, match="train_batches = 25: the training loader gives 12 of an epoch"):
        fit(noted(), Other(corpus_folder, context=4, batch_size=4), tmp_path)
