"""Preparation: nothing lost, nothing half published, faults refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiktoken

from looplit.data import Corpus, load_tokenizer, open_corpus, prepare_corpus
from looplit.data.dataset import BlockDataset
from looplit.data.tokenizer import encode_document
from looplit.errors import InputError

Numbered = Callable[..., Corpus]

TOKENIZER = load_tokenizer("bytes")
DOCUMENTS = [f"document {number}: " + "x" * (7 * number % 41) for number in range(60)] + ["", "end"]
BLOCK = 9


def prepare(folder: Path, chunk_tokens: int = 8 * BLOCK, settings: dict[str, int] | None = None) -> Corpus:
    return prepare_corpus(
        folder,
        lambda: {"train": DOCUMENTS, "validation": DOCUMENTS[:9]},
        TOKENIZER,
        BLOCK,
        settings or {},
        chunk_tokens,
    )


def read(corpus: Corpus, split: str) -> np.ndarray:
    return np.array(list(BlockDataset(corpus, split, shuffle=False)))


@pytest.mark.parametrize("chunk_tokens", [1, 8 * BLOCK, 8 * BLOCK + 5, 10**6])
def test_every_token_comes_back_but_the_counted_tail(tmp_path: Path, chunk_tokens: int) -> None:
    corpus = prepare(tmp_path / "corpus", chunk_tokens)
    for name, documents in (("train", DOCUMENTS), ("validation", DOCUMENTS[:9])):
        expected = np.concatenate([encode_document(TOKENIZER, text) for text in documents])
        split = corpus.splits[name]
        blocks = read(corpus, name)
        assert blocks.dtype == np.uint16
        assert np.array_equal(blocks.ravel(), expected[: split.blocks * BLOCK])
        assert split.dropped_tokens == len(expected) - split.blocks * BLOCK < BLOCK


def test_manifest_counts_equal_a_recount(tmp_path: Path) -> None:
    split = prepare(tmp_path / "corpus").splits["train"]
    tokens = np.concatenate([encode_document(TOKENIZER, text) for text in DOCUMENTS])
    assert (split.documents, split.empty_documents) == (len(DOCUMENTS), 1)
    assert split.text_bytes == sum(len(text.encode()) for text in DOCUMENTS)
    assert (split.tokens, split.blocks) == (len(tokens), len(tokens) // BLOCK)
    assert split.largest_token == tokens[: split.blocks * BLOCK].max()
    assert sum(chunk.size for chunk in split.chunks) > 2 * split.blocks * BLOCK


def test_manifest_survives_the_disk(tmp_path: Path) -> None:
    corpus = prepare(tmp_path / "corpus", settings={"seed": 3})
    assert open_corpus(tmp_path / "corpus") == corpus
    corpus.verify()


def test_two_preparations_are_equal(tmp_path: Path) -> None:
    one, two = prepare(tmp_path / "one"), prepare(tmp_path / "two")
    for name in ("train", "validation"):
        assert one.splits[name].chunks == two.splits[name].chunks
        assert one.splits[name].fingerprint == two.splits[name].fingerprint


def test_ids_above_16_bits_survive(tmp_path: Path) -> None:
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"ab": 65535, b"cd": 65536}
    wide = tiktoken.Encoding(
        "wide", pat_str=r"(?s:..)", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 100256}
    )
    corpus = prepare_corpus(tmp_path / "wide", lambda: {"train": ["ab", "cd"]}, wide, 4, {})
    blocks = read(corpus, "train")
    assert blocks.dtype == np.uint32
    assert blocks.tolist() == [[100256, 65535, 100256, 65536]]
    assert (corpus.vocabulary, corpus.splits["train"].largest_token) == (100257, 100256)


def test_a_prepared_corpus_is_not_prepared_again(tmp_path: Path) -> None:
    corpus = prepare(tmp_path / "corpus")

    def never() -> dict[str, list[str]]:
        raise AssertionError("read again")

    assert prepare_corpus(tmp_path / "corpus", never, TOKENIZER, BLOCK, {}) == corpus


def test_other_settings_in_the_same_folder_are_refused(tmp_path: Path) -> None:
    prepare(tmp_path / "corpus", settings={"document_seed": 1})
    with pytest.raises(InputError, match="holds a corpus of document_seed 1, not 2"):
        prepare(tmp_path / "corpus", settings={"document_seed": 2})


def test_a_failed_preparation_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> dict[str, object]:
        return {"train": (text if text else 1 / 0 for text in DOCUMENTS)}

    with pytest.raises(ZeroDivisionError):
        prepare_corpus(tmp_path / "corpus", failing, TOKENIZER, BLOCK, {}, 8 * BLOCK)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_the_first_of_two_simultaneous_preparations_wins(tmp_path: Path) -> None:
    def overtaken() -> dict[str, list[str]]:
        prepare(tmp_path / "corpus")
        return {"train": DOCUMENTS, "validation": DOCUMENTS[:9]}

    late = prepare_corpus(tmp_path / "corpus", overtaken, TOKENIZER, BLOCK, {}, 8 * BLOCK)
    assert late == open_corpus(tmp_path / "corpus")
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


def test_less_than_a_block_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="validation tokens = 2: fewer than one block of 9"):
        prepare_corpus(tmp_path / "c", lambda: {"train": DOCUMENTS, "validation": ["a"]}, TOKENIZER, BLOCK, {})


def test_a_folder_without_manifest_is_refused(numbered: Numbered, tmp_path: Path) -> None:
    corpus = numbered()
    (corpus.folder / "corpus.json").unlink()
    with pytest.raises(InputError, match=r"has no corpus\.json"):
        open_corpus(corpus.folder)
    with pytest.raises(InputError, match=r"has no corpus\.json"):
        numbered()
    with pytest.raises(InputError, match=r"has no corpus\.json"):
        open_corpus(tmp_path / "nowhere")


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"format": 1}', '{"format": 0}', '{"format": 1, "splits": 3}'])
def test_a_broken_manifest_is_refused(numbered: Numbered, content: str) -> None:
    corpus = numbered()
    (corpus.folder / "corpus.json").write_text(content)
    with pytest.raises(InputError) as caught:
        open_corpus(corpus.folder)
    assert "\n" not in str(caught.value)


def test_changed_files_are_refused(numbered: Numbered) -> None:
    folder = numbered().folder
    chunk = folder / "train" / "chunk-0-1.bin"
    content = chunk.read_bytes()
    for changed in (content[:-1], content + b"\0"):
        chunk.write_bytes(changed)
        with pytest.raises(InputError, match=r"chunk-0-1.bin has \d+ bytes instead of"):
            open_corpus(folder)
    chunk.write_bytes(bytes(len(content)))
    with pytest.raises(InputError, match=r"content of train/chunk-0-1\.bin has changed"):
        open_corpus(folder).verify()
    chunk.unlink()
    with pytest.raises(InputError, match=r"chunk-0-1\.bin is missing"):
        open_corpus(folder)


def test_an_index_that_was_cut_short_is_refused(numbered: Numbered) -> None:
    folder = numbered().folder
    path = folder / "train" / "index.json"
    text = path.read_text()
    index = json.loads(text)
    index["chunks"] = index["chunks"][:-1]
    path.write_text(json.dumps(index).ljust(len(text)))
    with pytest.raises(InputError, match=r"train/index.json has"):
        open_corpus(folder)
