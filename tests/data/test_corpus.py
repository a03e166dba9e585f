"""A corpus that was changed after its preparation is refused, when it is opened or when a chunk is first read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from looplit.data import Corpus, FineWeb, TokenData, open_corpus
from looplit.errors import InputError

Numbered = Callable[..., Corpus]
Numbers = Callable[[Tensor], list[int]]


def data_of(folder: Path | str, **arguments: Any) -> TokenData:
    data = TokenData(str(folder), **{"context": 4, "batch_size": 4, **arguments})
    data.setup("fit")
    return data


def test_a_folder_without_manifest_is_refused(numbered: Numbered, tmp_path: Path) -> None:
    corpus = numbered()
    (corpus.folder / "corpus.json").unlink()  # LitData would read the rest
    with pytest.raises(InputError, match=r"has no corpus\.json"):
        open_corpus(corpus.folder)
    with pytest.raises(InputError, match=r"has no corpus\.json"):
        numbered()
    with pytest.raises(InputError, match=r"has no corpus\.json"):
        open_corpus(tmp_path / "nowhere")
    with pytest.raises(InputError, match="python -m looplit prepare fineweb --folder"):
        FineWeb(str(tmp_path / "nowhere")).setup()


def test_a_corpus_of_another_source_is_refused(numbered_once: Numbered) -> None:
    with pytest.raises(InputError, match="was prepared from memory, not HuggingFaceFW/fineweb"):
        FineWeb(str(numbered_once().folder), context=4).setup()


@pytest.mark.parametrize(
    "change",
    [
        {"block": "x"}, {"block": 0}, {"dtype": "float32"}, {"vocabulary": None}, {"settings": []}, {"splits": {}},
        {"splits": []}, {"token_bytes": {"path": 3, "size": 1, "sha256": ""}},
    ],
    ids=str,
)  # fmt: skip
def test_a_changed_manifest_is_refused(numbered: Numbered, change: dict[str, Any]) -> None:
    path = numbered().folder / "corpus.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError, match=r"its corpus\.json cannot be read; prepare the corpus again"):
        open_corpus(path.parent)


def test_a_changed_number_of_a_split_is_refused(numbered: Numbered) -> None:
    path = numbered().folder / "corpus.json"
    content = json.loads(path.read_text())
    content["splits"]["train"]["blocks"] = "100"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"its corpus\.json cannot be read"):
        open_corpus(path.parent)


def test_changed_token_bytes_are_refused(numbered: Numbered) -> None:
    corpus = numbered()
    path = corpus.folder / "token_bytes.npy"
    content = path.read_bytes()
    for changed in (bytes(len(content)), content[:-1] + b"\1"):
        path.write_bytes(changed)
        with pytest.raises(InputError, match=r"the content of token_bytes\.npy has changed") as caught:
            data_of(corpus.folder)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"format": 2}', '{"format": 0}', '{"format": 2, "splits": 3}'])
def test_a_broken_manifest_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "corpus.json").write_text(content)
    with pytest.raises(InputError) as caught:
        open_corpus(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_chunk_of_another_size_is_refused_when_opened(numbered: Numbered) -> None:
    folder = numbered().folder
    chunk = folder / "train" / "chunk-0-1.bin"
    content = chunk.read_bytes()
    for changed in (content[:-1], content + b"\0"):
        chunk.write_bytes(changed)
        with pytest.raises(InputError, match=r"chunk-0-1.bin has \d+ bytes instead of"):
            open_corpus(folder)
    chunk.unlink()
    with pytest.raises(InputError, match=r"chunk-0-1\.bin is missing"):
        open_corpus(folder)


def zero(chunk: Path) -> None:
    chunk.write_bytes(bytes(chunk.stat().st_size))


def shorten(chunk: Path) -> None:
    chunk.write_bytes(chunk.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("change", "workers", "line"),
    [
        (zero, 0, r"the content of train/chunk-0-3\.bin has changed"),
        (zero, 2, r"the content of train/chunk-0-3\.bin has changed"),
        (shorten, 0, r"train/chunk-0-3\.bin has \d+ bytes instead of"),
        (Path.unlink, 2, r"train/chunk-0-3\.bin is missing"),
    ],
)
def test_a_changed_chunk_is_refused_when_first_read(
    numbered: Numbered, numbers: Numbers, change: Callable[[Path], None], workers: int, line: str
) -> None:
    corpus = numbered()
    data = data_of(corpus.folder, workers=workers)
    change(corpus.folder / "train" / "chunk-0-3.bin")
    given: list[int] = []

    def train() -> None:
        for batch in data.train_dataloader():
            given.extend(numbers(batch))

    with pytest.raises(InputError, match=line) as caught:
        train()
    assert "\n" not in str(caught.value)
    assert not {*given} & {*range(48, 64)}  # no batch of the chunk's blocks


def test_verify_false_reads_what_is_there(numbered: Numbered) -> None:
    corpus = numbered()
    data = data_of(corpus.folder, verify=False)
    zero(corpus.folder / "train" / "chunk-0-3.bin")
    assert sum(int((batch == 0).all(dim=1).sum()) for batch in data.train_dataloader()) == 16
    with pytest.raises(InputError, match=r"content of train/chunk-0-3\.bin has changed"):
        corpus.verify()


def test_validation_chunks_are_checked_too(numbered: Numbered) -> None:
    corpus = numbered()
    data = data_of(corpus.folder)
    zero(corpus.folder / "validation" / "chunk-0-0.bin")
    with pytest.raises(InputError, match=r"content of validation/chunk-0-0\.bin has changed"):
        list(data.val_dataloader())


def test_a_folder_that_is_prepared_anew_is_not_read_as_the_old_one(numbered: Numbered) -> None:
    corpus = numbered()
    data = data_of(corpus.folder)
    loader = data.train_dataloader()
    state = loader.state_dict()
    shutil.rmtree(corpus.folder)
    numbered(train=116, validation=12)
    with pytest.raises(InputError, match="has changed|bytes instead of"):
        list(data.train_dataloader())
    with pytest.raises(InputError, match="(corpus|blocks) = .*: the checkpoint's place in the data"):
        data_of(corpus.folder).train_dataloader().load_state_dict(state)


def test_an_index_that_was_cut_short_is_refused(numbered: Numbered) -> None:
    folder = numbered().folder
    path = folder / "train" / "index.json"
    text = path.read_text()
    index = json.loads(text)
    index["chunks"] = index["chunks"][:-1]
    for changed in (json.dumps(index).ljust(len(text)), text[:-10]):
        path.write_text(changed)
        with pytest.raises(InputError, match=r"train/index.json"):
            open_corpus(folder)


def test_ids_above_the_vocabulary_are_known_at_setup(numbered_once: Numbered) -> None:
    """A model compares its vocabulary with `largest_token` before it trains: no id may be larger than that."""
    corpus = numbered_once()
    data = data_of(corpus.folder)
    largest = max(int(batch.int().max()) for batch in data.train_dataloader())
    assert largest == data.largest_token == 256


class TestObjectStore:
    """LitData's "local:" address goes the way of s3:// and the others, without a network."""

    @pytest.fixture
    def cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        return tmp_path / "cache" / "looplit" / "streaming"

    @pytest.mark.parametrize("workers", [0, 2])
    def test_it_reads_as_a_local_folder_does(
        self, numbered: Numbered, numbers: Numbers, cache: Path, workers: int
    ) -> None:
        corpus = numbered()
        before = {path: path.stat().st_mtime_ns for path in corpus.folder.rglob("*")}
        here, there = (data_of(f"{kind}{corpus.folder}", workers=workers) for kind in ("", "local:"))
        assert [numbers(batch) for batch in there.train_dataloader()] == [
            numbers(batch) for batch in here.train_dataloader()
        ]
        assert [numbers(batch) for batch in there.val_dataloader()] == [
            numbers(batch) for batch in here.val_dataloader()
        ]
        there.train_dataloader().load_state_dict(here.train_dataloader().state_dict())
        assert {path: path.stat().st_mtime_ns for path in corpus.folder.rglob("*")} == before
        (kept,) = cache.iterdir()
        assert (kept / "train" / "chunk-0-0.bin").is_file()

    def test_a_changed_chunk_is_refused(self, numbered: Numbered, cache: Path) -> None:
        corpus = numbered()
        zero(corpus.folder / "train" / "chunk-0-3.bin")
        with pytest.raises(InputError, match=r"content of train/chunk-0-3\.bin has changed"):
            list(data_of(f"local:{corpus.folder}").train_dataloader())

    def test_a_corpus_that_is_prepared_anew_is_fetched_anew(
        self, numbered: Numbered, numbers: Numbers, cache: Path
    ) -> None:
        corpus = numbered()
        list(data_of(f"local:{corpus.folder}").train_dataloader())
        shutil.rmtree(corpus.folder)
        numbered(train=40)
        batches = list(data_of(f"local:{corpus.folder}").train_dataloader())
        assert sorted(number for batch in batches for number in numbers(batch)) == list(range(40))

    def test_nothing_there_is_one_line(self, tmp_path: Path, cache: Path) -> None:
        with pytest.raises(InputError, match=r"corpus\.json cannot be fetched") as caught:
            open_corpus(f"local:{tmp_path}/nowhere")
        assert "\n" not in str(caught.value)
