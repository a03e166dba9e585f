"""Preparation: nothing lost, nothing half published, interruptions continued or cleaned up, faults refused."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tiktoken

import looplit.data.prepare
import looplit.data.writer
from looplit.data import Corpus, Source, load_tokenizer, open_corpus, prepare_corpus
from looplit.data.corpus import StoredFile
from looplit.data.dataset import BlockDataset
from looplit.data.encode import Encoder
from looplit.data.sources import Shards, texts_shard
from looplit.data.tokenizer import encode_document
from looplit.errors import InputError, RunStopped

Sources = Callable[..., Source]

TOKENIZER = load_tokenizer("bytes")
TRAIN = [
    [f"document {number} of {shard}: " + "x" * (7 * number % 41) for number in range(20)] + [""] for shard in range(5)
]
VALIDATION = [["held out " + "y" * number for number in range(9)], ["more of it"]]
BLOCK = 9


@pytest.fixture
def prepare(memory_source: Sources) -> Callable[..., Corpus]:
    def run(folder: Path, chunk_tokens: int = 8 * BLOCK, source: Source | None = None, **options: Any) -> Corpus:
        text = source or memory_source(TRAIN, VALIDATION)
        return prepare_corpus(folder, text, TOKENIZER, BLOCK, chunk_tokens=chunk_tokens, **options)

    return run


Prepare = Callable[..., Corpus]


def in_order(seed: int = 0) -> list[str]:
    """Training shards one after another, the documents of each as the seed and its number shuffle them."""
    return [
        texts[place]
        for number, texts in enumerate(TRAIN)
        for place in np.random.RandomState([seed, number]).permutation(len(texts))
    ]


def tokens_of(texts: list[str]) -> np.ndarray:
    return np.concatenate([encode_document(TOKENIZER, text) for text in texts])


def read(corpus: Corpus, split: str = "train") -> np.ndarray:
    return np.array(list(BlockDataset(corpus, split, shuffle=False)))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("chunk_tokens", [1, 8 * BLOCK, 8 * BLOCK + 5, 10**6])
def test_every_token_comes_back_but_the_counted_tail(prepare: Prepare, tmp_path: Path, chunk_tokens: int) -> None:
    corpus = prepare(tmp_path / "corpus", chunk_tokens)
    for name, texts in (("train", in_order()), ("validation", [text for shard in VALIDATION for text in shard])):
        expected = tokens_of(texts)
        split = corpus.splits[name]
        blocks = read(corpus, name)
        assert blocks.dtype == np.uint16
        assert np.array_equal(blocks.ravel(), expected[: split.blocks * BLOCK])
        assert split.dropped_tokens == len(expected) - split.blocks * BLOCK < BLOCK


def test_manifest_counts_equal_a_recount(prepare: Prepare, tmp_path: Path) -> None:
    split = prepare(tmp_path / "corpus").splits["train"]
    texts = in_order()
    tokens = tokens_of(texts)
    assert (split.documents, split.empty_documents, split.excluded_documents) == (len(texts), 5, 0)
    assert split.text_bytes == sum(len(text.encode()) for text in texts)
    assert (split.tokens, split.blocks) == (len(tokens), len(tokens) // BLOCK)
    assert split.largest_token == tokens[: split.blocks * BLOCK].max()
    assert sum(chunk.size for chunk in split.chunks) > 2 * split.blocks * BLOCK
    assert split.shards == tuple(f"train-{number}" for number in range(5))


def test_a_shard_without_documents_and_batches_within_a_shard(
    memory_source: Sources, prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looplit.data.prepare, "BATCH_BYTES", 100)
    one, shards = prepare(tmp_path / "one"), [TRAIN[0], [], *TRAIN[1:], []]
    several = prepare(tmp_path / "several", source=memory_source(shards, VALIDATION), workers=2)
    assert several.splits["train"].shards == tuple(f"train-{number}" for number in range(len(shards)))
    assert several.splits["train"].tokens == one.splits["train"].tokens
    first = len(tokens_of(TRAIN[0])) // BLOCK  # the number of a later shard, and with it its shuffle, has changed
    assert np.array_equal(read(several)[:first], read(one)[:first])


def test_manifest_survives_the_disk(prepare: Prepare, tmp_path: Path) -> None:
    corpus = prepare(tmp_path / "corpus", seed=3)
    assert open_corpus(tmp_path / "corpus") == corpus
    corpus.verify()
    assert corpus.settings["document_seed"] == 3
    assert corpus.versions.keys() == {"python", "looplit", "litdata", "tiktoken", "numpy", "pyarrow"}
    assert names(tmp_path / "corpus") == ["corpus.json", "token_bytes.npy", "train", "validation"]
    assert all(path.name == "index.json" or path.suffix == ".bin" for path in (tmp_path / "corpus/train").iterdir())


def test_two_processes_write_the_same_corpus(prepare: Prepare, tmp_path: Path) -> None:
    one, two = (prepare(tmp_path / str(workers), workers=workers) for workers in (1, 2))
    assert one.splits == two.splits  # with every size and hash, of the indices too
    assert one.settings == two.settings


def test_another_seed_is_another_order_of_the_same_documents(prepare: Prepare, tmp_path: Path) -> None:
    one, two = (read(prepare(tmp_path / str(seed), 10**6, seed=seed)).ravel() for seed in (0, 1))
    assert not np.array_equal(one, two)
    assert np.array_equal(two, tokens_of(in_order(seed=1))[: len(two)])


@pytest.mark.parametrize("budget", [BLOCK, 100, 1000, 1500, 10**6])
def test_a_budget_is_a_prefix(prepare: Prepare, tmp_path: Path, budget: int) -> None:
    whole = tokens_of(in_order())
    corpus = prepare(tmp_path / "corpus", tokens=budget)
    blocks = min(budget, len(whole)) // BLOCK
    assert np.array_equal(read(corpus).ravel(), whole[: blocks * BLOCK])
    split = corpus.splits["train"]
    assert split.blocks == blocks
    if budget < len(whole):
        starts = np.cumsum([0, *(len(text.encode()) + 1 for text in in_order())])
        assert split.documents == (starts < blocks * BLOCK).sum()
        assert split.dropped_tokens == 0


def test_ids_above_16_bits_survive(memory_source: Sources, tmp_path: Path) -> None:
    ranks = {bytes([byte]): byte for byte in range(1, 256)} | {b"\0": 256, b"ab": 65535, b"cd": 65536, b"ef": 0}
    wide = tiktoken.Encoding(
        "wide", pat_str=r"(?s:..)", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 100256}
    )
    corpus = prepare_corpus(tmp_path / "wide", memory_source([["efab"], ["cd"]], [["abcdefab"]]), wide, 5)
    blocks = read(corpus)
    assert blocks.dtype == np.uint32
    assert blocks.tolist() == [[100256, 0, 65535, 100256, 65536]]
    assert (corpus.vocabulary, corpus.dtype, corpus.splits["train"].largest_token) == (100257, "uint32", 100256)


def test_what_validation_has_is_left_out_of_training(memory_source: Sources, tmp_path: Path) -> None:
    same_start = "held out document".ljust(64, "-")
    train = [["a training document", same_start + "1", "held out"], ["", "held out document", same_start + "2"]]
    validation = [[same_start + "3", "held out"], ["never read: the budget is used up", "a training document"]]
    for length, kept in ((64, 3), (None, 5), (0, 6)):
        source = memory_source(train, validation, length, val_tokens=75)
        corpus = prepare_corpus(tmp_path / str(length), source, TOKENIZER, BLOCK)
        split = corpus.splits["train"]
        assert (split.documents, split.excluded_documents) == (kept, 6 - kept)
        text = bytes(read(corpus).ravel()[:].astype(np.uint16)[read(corpus).ravel() < 256].astype(np.uint8)).decode()
        assert (same_start in text) == (length != 64)
        assert corpus.splits["validation"].shards == ("validation-0",)
        assert corpus.splits["validation"].documents == 2


def test_a_prepared_corpus_is_not_prepared_again(prepare: Prepare, tmp_path: Path) -> None:
    def never() -> Shards:
        raise AssertionError("read again")

    corpus = prepare(tmp_path / "corpus")
    assert prepare(tmp_path / "corpus", source=Source({"source": "memory"}, never)) == corpus


def test_other_settings_in_the_same_folder_are_refused(prepare: Prepare, tmp_path: Path) -> None:
    prepare(tmp_path / "corpus", seed=1)
    with pytest.raises(InputError, match="holds a corpus of seed 1, not 2; take another"):
        prepare(tmp_path / "corpus", seed=2)
    with pytest.raises(InputError, match="holds a corpus of tokens None, not 90"):
        prepare(tmp_path / "corpus", seed=1, tokens=90)


def test_the_first_of_two_simultaneous_preparations_wins(prepare: Prepare, tmp_path: Path) -> None:
    def overtaken() -> Shards:
        prepare(tmp_path / "corpus")
        return Shards([texts_shard("train-0", ["late"] * 9)], [texts_shard("validation-0", ["late"] * 9)])

    late = prepare(tmp_path / "corpus", source=Source({"source": "memory"}, overtaken))
    assert late == open_corpus(tmp_path / "corpus")
    assert late.splits["train"].documents == sum(map(len, TRAIN))
    assert names(tmp_path) == ["corpus"]


def test_less_than_a_block_is_refused(memory_source: Sources, prepare: Prepare, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="validation tokens = 2: fewer than one block of 9"):
        prepare(tmp_path / "corpus", source=memory_source(TRAIN, [["a"]]))
    assert names(tmp_path) == []


def test_a_folder_of_another_machine_is_continued_but_not_removed(
    prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Network file systems may not show the lock of a process on another machine."""
    with monkeypatch.context() as patch:
        patch.setattr("platform.node", lambda: "elsewhere")
        with pytest.raises(Interrupted):
            prepare(tmp_path / "corpus", source=interrupted_source([], "train-3"))
    (left,) = names(tmp_path)
    prepare(tmp_path / "corpus", seed=1)
    assert names(tmp_path) == [left, "corpus"]
    (tmp_path / "corpus").rename(tmp_path / "seed 1")
    reads: list[str] = []
    prepare(tmp_path / "corpus", source=interrupted_source(reads), resume=True)
    assert reads == ["train-3", "train-4"]
    assert names(tmp_path) == ["corpus", "seed 1"]


class Interrupted(Exception):
    pass


def interrupted_source(reads: list[str], stop_at: str | None = None) -> Source:
    """The texts, noting each shard that is read; reading `stop_at` fails in its middle."""

    def documents(name: str, texts: list[str]) -> Any:
        reads.append(name)
        if name == stop_at:
            raise Interrupted
        return texts_shard(name, texts).documents()

    def shards() -> Shards:
        def make(split: str, parts: list[list[str]]) -> Iterator[Any]:
            for number, texts in enumerate(parts):
                shard = texts_shard(f"{split}-{number}", texts)
                yield type(shard)(shard.name, lambda name=shard.name, texts=texts: documents(name, texts))

        return Shards(list(make("train", TRAIN)), list(make("validation", VALIDATION)))

    return Source({"source": "memory"}, shards)


def test_a_failed_preparation_leaves_nothing_that_can_be_read(prepare: Prepare, tmp_path: Path) -> None:
    for stop_at in ("validation-0", "train-3"):
        with pytest.raises(Interrupted):
            prepare(tmp_path / "corpus", source=interrupted_source([], stop_at))
        assert not (tmp_path / "corpus").exists()
    prepare(tmp_path / "corpus")
    assert names(tmp_path) == ["corpus"]


@pytest.mark.parametrize("chunk_tokens", [8 * BLOCK, 10**6])
@pytest.mark.parametrize("stops", [("train-0",), ("train-3",), ("train-1", "train-2", "train-4")], ids=str)
def test_resume_continues_shard_by_shard(
    prepare: Prepare, tmp_path: Path, chunk_tokens: int, stops: tuple[str, ...]
) -> None:
    straight = prepare(tmp_path / "straight", chunk_tokens)
    reads: list[str] = []
    for stop_at in stops:
        with pytest.raises(Interrupted):
            prepare(
                tmp_path / "corpus", chunk_tokens, source=interrupted_source(reads, stop_at), resume=True
            )  # fmt: skip
    resumed = prepare(tmp_path / "corpus", chunk_tokens, source=interrupted_source(reads), resume=True)
    assert resumed.splits == straight.splits
    assert names(tmp_path) == ["corpus", "straight"]
    if chunk_tokens < 10**6:  # what has not filled a file is read again sooner than it is saved
        finished = [name for name in reads if name not in stops]
        assert sorted(finished) == sorted({*finished})
    assert reads.count("validation-0") == 1


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"seed": 1}, "is one of seed 0, not 1"),
        ({"tokens": 1000}, "is one of tokens None, not 1000"),
        ({"chunk_tokens": 90}, "is one of chunk_tokens 72, not 90"),
    ],
)
def test_resume_with_another_setting_loses_nothing(
    prepare: Prepare, tmp_path: Path, options: dict[str, int], line: str
) -> None:
    with pytest.raises(Interrupted):
        prepare(tmp_path / "corpus", source=interrupted_source([], "train-3"))
    with pytest.raises(InputError, match=f"the interrupted preparation .* {line}; resume it with its own") as caught:
        prepare(tmp_path / "corpus", source=interrupted_source([]), resume=True, **options)
    assert "\n" not in str(caught.value)
    reads: list[str] = []
    prepare(tmp_path / "corpus", source=interrupted_source(reads), resume=True)
    assert reads == ["train-3", "train-4"]


def test_without_resume_an_interrupted_preparation_is_removed_aloud(
    prepare: Prepare, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Interrupted):
        prepare(tmp_path / "corpus", source=interrupted_source([], "train-3"))
    assert capsys.readouterr().err == ""
    prepare(tmp_path / "corpus", seed=1)
    assert "removed an interrupted preparation, " in capsys.readouterr().err
    assert names(tmp_path) == ["corpus"]


def test_resume_leaves_the_work_of_other_settings(prepare: Prepare, tmp_path: Path) -> None:
    def meanwhile() -> Shards:  # of another process, in the same folder
        with pytest.raises(Interrupted):
            prepare(tmp_path / "corpus", source=interrupted_source([], "train-2"), seed=1)
        return interrupted_source([], "train-3").shards()

    with pytest.raises(Interrupted):
        prepare(tmp_path / "corpus", source=Source({"source": "memory"}, meanwhile))
    for seed in (0, 1):
        reads: list[str] = []
        prepare(tmp_path / "corpus", source=interrupted_source(reads), resume=True, seed=seed)
        assert reads == [f"train-{number}" for number in range(3 - seed, 5)]
        (tmp_path / "corpus").rename(tmp_path / f"seed {seed}")
    assert names(tmp_path) == ["seed 0", "seed 1"]


@pytest.mark.parametrize("resume", [False, True])
def test_killed_while_writing(prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: bool) -> None:
    straight = prepare(tmp_path / "straight")
    describe = StoredFile.describe
    calls: list[Path] = []

    def killed(folder: Path, path: Path) -> StoredFile:
        calls.append(path)
        if len(calls) == 20:
            path.write_bytes(b"half a chunk")
            os.kill(os.getpid(), signal.SIGKILL)
        return describe(folder, path)

    with monkeypatch.context() as patch:
        patch.setattr(looplit.data.writer.StoredFile, "describe", killed)
        child = multiprocessing.get_context("fork").Process(target=prepare, args=(tmp_path / "corpus",))
        child.start()
        child.join()
    assert child.exitcode == -signal.SIGKILL
    assert len(names(tmp_path)) == 2  # the straight one, and what was left behind
    reads: list[str] = []
    corpus = prepare(tmp_path / "corpus", source=interrupted_source(reads), resume=resume)
    assert corpus.splits == straight.splits
    assert names(tmp_path) == ["corpus", "straight"]
    assert ("train-0" in reads) == (not resume)
    corpus.verify()


def test_what_another_process_prepares_is_left_alone(prepare: Prepare, tmp_path: Path) -> None:
    def meanwhile() -> Shards:
        prepare(tmp_path / "other")
        with pytest.raises(Interrupted):
            prepare(tmp_path / "corpus", source=interrupted_source([], "train-3"))
        return Shards([texts_shard("train-0", ["one"] * 9)], [texts_shard("validation-0", ["one"] * 9)])

    corpus = prepare(tmp_path / "corpus", source=Source({"source": "memory"}, meanwhile))
    assert corpus.splits["train"].documents == 9


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failing_worker_is_one_line(memory_source: Sources, tmp_path: Path, workers: int) -> None:
    # There is no token for the byte of x: tiktoken panics, which is not an Exception.
    ranks = {bytes([byte]): byte for byte in range(256) if byte != ord("x")}
    tokenizer = tiktoken.Encoding(
        "x-less", pat_str=r"(?s:.)", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 256}
    )  # fmt: skip
    source = memory_source(TRAIN, [["held out"] * 9])
    with pytest.raises(RunStopped, match="x-less cannot encode the document that begins 'document") as caught:
        prepare_corpus(tmp_path / "corpus", source, tokenizer, BLOCK, workers=workers)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "corpus").exists()


def test_a_killed_worker_is_one_line() -> None:
    with Encoder(TOKENIZER, 2) as encoder:
        batches = encoder.encode((pa.array([str(number)], pa.large_string()), number) for number in range(100))
        next(batches)
        assert encoder._pool is not None
        for process in list(encoder._pool._processes.values()):
            process.kill()
        with pytest.raises(RunStopped, match="was killed .* --resume") as caught:
            list(batches)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_disk_full_and_read_only_are_one_line(
    prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Injected: the superuser, as whom tests may run, writes anywhere."""
    written = 0

    def full(self: object) -> None:
        nonlocal written
        written += 1
        if written > 10:
            raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(looplit.data.writer.Cache, "done", lambda self: (full(self), self._writer.done()))
        with pytest.raises(InputError, match=f"folder = .*{os.strerror(code)}") as caught:
            prepare(tmp_path / "corpus")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "corpus").exists()
    assert prepare(tmp_path / "corpus", resume=True).splits == prepare(tmp_path / "straight").splits


def test_nothing_is_written_or_deleted_elsewhere(tmp_path_factory: pytest.TempPathFactory, root: Path) -> None:
    """LitData's own preparation would clear folders of these names, and its reader would keep a cache at home."""
    tmp_path = tmp_path_factory.mktemp("n")  # short: a worker's socket lies below it, with 107 characters at most
    for name in ("home", "temp/chunks", "temp/data", "corpora"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "mine").write_text("mine")
    code = """if True:
        import sys
        from looplit.data import StandardLibraryText
        data = StandardLibraryText(sys.argv[1], context=64, batch_size=4, workers=1)
        data.prepare_data()
        data.setup()
        next(iter(data.train_dataloader()))
        next(iter(data.val_dataloader()))
    """
    places = {"HOME": "home", "TMPDIR": "temp", "MPLCONFIGDIR": "matplotlib"}  # Lightning imports matplotlib
    environment = {**os.environ, **{name: str(tmp_path / place) for name, place in places.items()}}
    command = [sys.executable, "-c", code, str(tmp_path / "corpora")]
    subprocess.run(command, cwd=root, env=environment, check=True, timeout=120)
    for name in ("home", "temp/chunks", "temp/data"):
        assert names(tmp_path / name) == ["mine"]
    corpora = names(tmp_path / "corpora")
    assert len(corpora) == 2
    assert "mine" in corpora
    (corpus,) = [name for name in corpora if name != "mine"]
    assert names(tmp_path / "corpora" / corpus / "train") == ["chunk-0-0.bin", "index.json"]


def test_a_folder_that_cannot_be_made_is_one_line(prepare: Prepare, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="folder = .*"):
        prepare(tmp_path / "file" / "corpus")
