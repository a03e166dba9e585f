"""The data modules: whole steps, pools, validation shares, the Trainer, the embedded corpus."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonargparse
import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn

from looplit.data import Corpus, StandardLibraryText, TokenData
from looplit.data.stdlib import is_validation, standard_library_documents
from looplit.errors import InputError

Numbered = Callable[..., Corpus]
Numbers = Callable[[Tensor], list[int]]


def make_data(corpus: Corpus, **arguments: Any) -> TokenData:
    data = TokenData(str(corpus.folder), **{"context": 4, "batch_size": 4, **arguments})
    data.setup("fit")
    return data


class Recorder(pl.LightningModule):
    """Notes the blocks it sees in training and validation."""

    def __init__(self, numbers: Numbers) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.numbers = numbers
        self.seen: list[list[int]] = []
        self.validated: list[int] = []
        self.steps_at_epoch_end: list[int] = []

    def training_step(self, batch: Tensor) -> Tensor:
        self.seen.append(self.numbers(batch))
        return self.weight * batch.float().mean()

    def on_train_epoch_end(self) -> None:
        self.steps_at_epoch_end.append(self.global_step)

    def validation_step(self, batch: Tensor) -> None:
        self.validated.extend(self.numbers(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(
    model: Recorder, data: TokenData, folder: Path, steps: int, checkpoint: str | None = None, **trainer: Any
) -> str:
    saver = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    pl.Trainer(
        max_steps=steps, accelerator="cpu", devices=1, logger=False, callbacks=[saver], num_sanity_val_steps=0,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder, **trainer,
    ).fit(model, data, ckpt_path=checkpoint, weights_only=True)  # fmt: skip
    return str(folder / f"step={steps}.ckpt")


def test_attributes_that_a_model_reads(numbered_once: Numbered) -> None:
    data = make_data(numbered_once())
    assert (data.vocabulary, data.largest_token) == (257, 256)
    assert data.token_bytes.tolist() == [1] * 256 + [0]
    assert data.token_bytes.dtype == torch.int64


def test_a_batch(numbered_once: Numbered) -> None:
    data = make_data(numbered_once())
    batch = next(iter(data.train_dataloader()))
    assert batch.shape == (4, 5)
    assert batch.dtype == torch.uint16


@pytest.mark.parametrize(("pool_tokens", "blocks"), [(None, 101), (505, 101), (504, 100), (204, 40)])
def test_a_pool_is_an_exact_prefix(
    numbered_once: Numbered, numbers: Numbers, pool_tokens: int | None, blocks: int
) -> None:
    data = make_data(numbered_once(101), pool_tokens=pool_tokens, batch_size=1)
    for _ in range(2):
        assert sorted(number for batch in data.train_dataloader() for number in numbers(batch)) == list(range(blocks))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("val_tokens", [55, 1000, 39])
def test_validation_in_file_order(numbered_once: Numbered, numbers: Numbers, workers: int, val_tokens: int) -> None:
    data = make_data(numbered_once(), workers=workers, val_tokens=val_tokens)
    loader = data.val_dataloader()
    blocks = min(11, val_tokens // 5)
    for _ in range(2):
        batches = [numbers(batch) for batch in loader]
        assert [number for batch in batches for number in batch] == list(range(5000, 5000 + blocks))
        assert len(batches) == len(loader) == -(-blocks // 4)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("blocks", [8, 9, 11, 12, 13, 26])
def test_processes_share_validation(
    numbered_once: Numbered, numbers: Numbers, monkeypatch: pytest.MonkeyPatch, world_size: int, blocks: int
) -> None:
    corpus = numbered_once(validation=blocks)
    monkeypatch.setenv("WORLD_SIZE", str(world_size))
    seen: list[int] = []
    lengths = []
    for rank in range(world_size):
        monkeypatch.setenv("GLOBAL_RANK", str(rank))
        loader = make_data(corpus).val_dataloader()
        batches = [numbers(batch) for batch in loader]
        lengths.append(len(batches))
        assert len(loader) == len(batches)
        seen.extend(number for batch in batches for number in batch)
    assert len(set(lengths)) == 1
    assert seen == list(range(5000, 5000 + len(seen)))
    assert blocks - len(seen) < world_size
    if blocks // world_size % 4:
        assert len(seen) == blocks


def test_fewer_validation_blocks_than_processes_are_refused(
    numbered_once: Numbered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "12")
    with pytest.raises(InputError, match="val_tokens = 10000000: 11 blocks cannot be shared by 12 processes"):
        make_data(numbered_once()).val_dataloader()


def test_wrong_input_is_one_line(numbered_once: Numbered) -> None:
    corpus = numbered_once()
    for arguments, line in (
        ({"context": 8}, "context = 8: the corpus in .* was cut for a context of 4"),
        ({"context": 0}, "context = 0: must be at least 1"),
        ({"workers": -1}, "workers = -1: must be at least 0"),
        ({"seed": -1}, "seed = -1: must be at least 0"),
        ({"seed": 2**32}, "seed = 4294967296: must be at most 4294967295"),
        ({"pool_tokens": 4}, "pool_tokens = 4: must be at least 5"),
        ({"pool_tokens": 505}, "pool_tokens = 505: the corpus has 500 tokens in whole blocks"),
    ):
        with pytest.raises(InputError, match=line):
            make_data(corpus, **arguments)
    with pytest.raises(InputError, match=r"batch_size = 101: an optimizer step takes 101 blocks .* has 100"):
        make_data(corpus, batch_size=101).train_dataloader()
    with pytest.raises(InputError, match=r"has no corpus\.json"):
        TokenData(str(corpus.folder / "train"), context=4).setup("fit")


@pytest.mark.parametrize(("accumulation", "steps"), [(1, 25), (4, 6), (7, 3)])
def test_epochs_are_whole_steps(
    numbered_once: Numbered, numbers: Numbers, tmp_path: Path, accumulation: int, steps: int
) -> None:
    data = TokenData(str(numbered_once(101).folder), context=4, batch_size=4)
    model = Recorder(numbers)
    fit(model, data, tmp_path, 2 * steps, accumulate_grad_batches=accumulation)
    assert model.steps_at_epoch_end == [steps, 2 * steps]
    assert len(model.seen) == 2 * steps * accumulation
    assert model.validated == 2 * list(range(5000, 5011))


@pytest.mark.parametrize(
    ("workers", "stops"),
    [*((0, stops) for stops in [(5,), (12,), (5, 8), (12, 24), (13, 20)]), (2, (13, 20))],
    ids=str,
)
def test_lightning_resumes_exactly(
    numbered_once: Numbered, numbers: Numbers, tmp_path: Path, workers: int, stops: tuple[int, ...]
) -> None:
    """30 steps of two batches, 12 steps to an epoch; validation in the middle of epochs too."""
    corpus = numbered_once(101)
    options = {"accumulate_grad_batches": 2, "val_check_interval": 10}

    def data() -> TokenData:
        return TokenData(str(corpus.folder), context=4, batch_size=4, workers=workers)

    straight = Recorder(numbers)
    fit(straight, data(), tmp_path / "straight", 30, **options)
    seen: list[list[int]] = []
    checkpoint = None
    for stop in (*stops, 30):
        model = Recorder(numbers)
        checkpoint = fit(model, data(), tmp_path / f"to{stop}", stop, checkpoint, **options)
        seen.extend(model.seen)
    assert seen == straight.seen


@pytest.mark.parametrize(("stop", "begun"), [(5, 1), (12, 1), (15, 2)])
def test_a_run_goes_on_in_other_batches_with_a_new_epoch(
    numbered_once: Numbered, numbers: Numbers, tmp_path: Path, stop: int, begun: int
) -> None:
    """Epochs of 12 steps, of two batches of four before the stop, four of two after it; later resumes are exact."""
    folder = str(numbered_once(101).folder)

    def resumed(steps: int, checkpoint: str | None, redeal: bool, name: str = "other") -> tuple[Recorder, str]:
        model, data = Recorder(numbers), TokenData(folder, context=4, batch_size=2, redeal=redeal)
        return model, fit(model, data, tmp_path / name, steps, checkpoint, accumulate_grad_batches=4)

    first = TokenData(folder, context=4, batch_size=4)
    checkpoint = fit(Recorder(numbers), first, tmp_path / "first", stop, accumulate_grad_batches=2)
    with pytest.raises(InputError, match=r"batch_size = 2: .* saved with 4; data\.redeal begins a new epoch"):
        resumed(stop + 4, checkpoint, False)
    straight, _ = resumed(12 * begun + 20, None, False, "straight")
    model, checkpoint = resumed(stop + 4, checkpoint, True)
    last, _ = resumed(stop + 20, checkpoint, True, "last")
    assert model.seen + last.seen == straight.seen[4 * 12 * begun :]


@pytest.mark.parametrize("limit", [10, 0.4])
@pytest.mark.parametrize("stop", [5, 7])
def test_epochs_that_the_trainer_shortens_resume_exactly(
    numbered_once: Numbered, numbers: Numbers, tmp_path: Path, limit: float, stop: int
) -> None:
    """Epochs of 10 of 25 batches, 5 steps: the next one begins where the Trainer begins it."""
    folder = str(numbered_once(101).folder)
    options = {"accumulate_grad_batches": 2, "limit_train_batches": limit, "limit_val_batches": 0}
    straight, before, after = (Recorder(numbers) for _ in range(3))
    fit(straight, TokenData(folder, context=4, batch_size=4), tmp_path / "straight", 12, **options)
    checkpoint = fit(before, TokenData(folder, context=4, batch_size=4), tmp_path / "before", stop, **options)
    fit(after, TokenData(folder, context=4, batch_size=4), tmp_path / "after", 12, checkpoint, **options)
    assert before.seen + after.seen == straight.seen
    assert straight.steps_at_epoch_end[:2] == [5, 10]


EVERY_EPOCH = {"every_n_epochs": 1, "save_on_train_epoch_end": True}
AFTER_VALIDATION = {"every_n_epochs": 1, "save_on_train_epoch_end": False}


class Clock(Recorder):
    """Notes with each batch the epoch, and the step at which a logger would write."""

    def on_train_batch_start(self, batch: Tensor, batch_idx: int) -> None:
        logged_at = self.trainer.fit_loop.epoch_loop._batches_that_stepped
        self.times = [*getattr(self, "times", []), (self.current_epoch, batch_idx, self.global_step, logged_at)]


@pytest.mark.parametrize("length", [{"max_steps": 60}, {"max_epochs": 3}], ids=str)
@pytest.mark.parametrize(
    ("saves", "validation_batches"),
    [(EVERY_EPOCH, 0), (EVERY_EPOCH, 1), (AFTER_VALIDATION, 1), ({"every_n_train_steps": 25}, 0), (None, 0), (None, 1)],
    ids=str,
)
@pytest.mark.parametrize("epochs", [1, 2])
def test_a_run_saved_at_the_end_of_an_epoch_goes_on_with_the_next(
    numbered_once: Numbered,
    numbers: Numbers,
    tmp_path: Path,
    length: dict[str, int],
    saves: dict[str, Any] | None,
    validation_batches: int,
    epochs: int,
) -> None:
    """25 steps an epoch. Resumed twice: at the end of an epoch, and in the middle of the one that follows."""
    folder = str(numbered_once(101).folder)

    def run(checkpoint: str | None, saver: ModelCheckpoint | None, save: str = "", **length: int) -> Clock:
        model, data = Clock(numbers), TokenData(folder, context=4, batch_size=4)
        trainer = pl.Trainer(
            accelerator="cpu", devices=1, logger=False, callbacks=[saver] if saver else None, num_sanity_val_steps=0,
            enable_checkpointing=saver is not None, enable_progress_bar=False, enable_model_summary=False,
            default_root_dir=tmp_path, limit_val_batches=validation_batches, **length,
        )  # fmt: skip
        trainer.fit(model, data, ckpt_path=checkpoint, weights_only=True)
        if save:
            trainer.save_checkpoint(tmp_path / save)
        return model

    straight = run(None, None, **length)
    saver = None if saves is None else ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, **saves)
    first = {"max_steps": 25 * epochs} if "max_steps" in length else {"max_epochs": epochs}
    run(None, saver, "" if saver else f"step={25 * epochs}.ckpt", **first)
    middle = ModelCheckpoint(tmp_path, filename="middle-{step}", every_n_train_steps=25 * epochs + 7, save_top_k=-1)
    resumed = run(str(tmp_path / f"step={25 * epochs}.ckpt"), middle, **length)
    again = run(str(tmp_path / f"middle-step={25 * epochs + 7}.ckpt"), None, **length)
    assert resumed.seen == straight.seen[25 * epochs :]
    assert resumed.times == straight.times[25 * epochs :]
    assert resumed.steps_at_epoch_end == straight.steps_at_epoch_end[epochs:]
    assert again.seen == straight.seen[25 * epochs + 7 :]
    assert again.times == straight.times[25 * epochs + 7 :]


def test_a_loader_that_is_made_anew_goes_on_with_the_next_epoch(
    numbered_once: Numbered, numbers: Numbers, tmp_path: Path
) -> None:
    folder = str(numbered_once(101).folder)
    straight, renewed = Recorder(numbers), Recorder(numbers)
    fit(straight, TokenData(folder, context=4, batch_size=4), tmp_path / "straight", 60)
    options = {"reload_dataloaders_every_n_epochs": 1}
    fit(renewed, TokenData(folder, context=4, batch_size=4), tmp_path / "renewed", 60, **options)
    assert renewed.seen == straight.seen


def test_standard_library_prepares_once_and_trains(tmp_path: Path) -> None:
    data = StandardLibraryText(str(tmp_path), context=64, batch_size=2)
    data.prepare_data()
    data.setup("fit")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    again = StandardLibraryText(str(tmp_path), context=64, batch_size=2)
    again.prepare_data()
    again.setup("fit")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert torch.equal(next(iter(data.train_dataloader())), next(iter(again.train_dataloader())))
    train, validation = data.corpus.splits["train"], data.corpus.splits["validation"]
    assert train.text_bytes + train.documents == train.tokens
    assert train.tokens > 4_000_000
    assert validation.tokens > 200_000  # 720,000 with a whole standard library; distributions leave parts out
    names = [document.name for document in standard_library_documents()]
    assert train.documents + validation.documents == len(names)
    assert StandardLibraryText(str(tmp_path), context=32).corpus_folder != data.corpus_folder


def test_standard_library_splits_share_no_document() -> None:
    documents = list(standard_library_documents())
    names = [document.name for document in documents]
    assert len(set(names)) == len(names)
    assert names == [document.name for document in standard_library_documents()]
    validation = {document.text for document in documents if is_validation(document.name)}
    training = {document.text for document in documents if not is_validation(document.name)}
    # Distinct names with the same text: the empty __init__.py files, and files that are installed twice.
    assert all(len(text) < 200 for text in validation & training)


def test_the_command_line_reads_its_arguments(tmp_path: Path) -> None:
    parser = jsonargparse.ArgumentParser()
    parser.add_subclass_arguments(TokenData, "data")
    values = parser.parse_args(
        ["--data=looplit.data.StandardLibraryText", f"--data.folder={tmp_path}", "--data.tokenizer=gpt2"]
    )
    data = parser.instantiate(values).data
    assert isinstance(data, StandardLibraryText)
    assert (data.folder, data.tokenizer, data.pool_tokens) == (str(tmp_path), "gpt2", None)


def test_the_default_folder_is_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert StandardLibraryText().folder == str(tmp_path / "looplit")
