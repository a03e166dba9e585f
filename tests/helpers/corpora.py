"""A corpus whose blocks carry their own number, so that a test can follow each block; and small sources of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch import Tensor

from looplit.data import Corpus, Source, load_tokenizer, prepare_corpus
from looplit.data.sources import Shards, texts_shard

BLOCK = 5  # `<|endoftext|>` and four digits


def source_of(
    train: Sequence[Sequence[str]],
    validation: Sequence[Sequence[str]],
    signature_tokens: int | None = 0,
    val_tokens: int | None = None,
) -> Source:
    """A source of texts in memory: shards of documents."""

    def shards() -> Shards:
        return Shards(
            [texts_shard(f"train-{number}", texts) for number, texts in enumerate(train)],
            [texts_shard(f"validation-{number}", texts) for number, texts in enumerate(validation)],
        )

    return Source({"source": "memory"}, shards, val_tokens, signature_tokens)


@pytest.fixture(scope="session")
def memory_source() -> Callable[..., Source]:
    """Makes a source of texts in memory, as `source_of`."""
    return source_of


@pytest.fixture(scope="session")
def parquet_file() -> Callable[..., None]:
    """Writes a parquet file, as `write_parquet`."""
    return write_parquet


@pytest.fixture(scope="session")
def numbered_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Corpus]:
    """As `numbered`, but each corpus is made once for all tests: only for tests that leave it as it is."""
    made: dict[tuple[int, int, int], Corpus] = {}

    def make(train: int = 100, validation: int = 11, chunk_blocks: int = 16) -> Corpus:
        key = (train, validation, chunk_blocks)
        if key not in made:
            made[key] = make_numbered(tmp_path_factory.mktemp("numbered") / "corpus", *key)
        return made[key]

    return make


@pytest.fixture
def numbered(tmp_path: Path) -> Callable[..., Corpus]:
    """Makes a corpus of numbered blocks, `chunk_blocks` to a file, in order of the numbers."""

    def make(train: int = 100, validation: int = 11, chunk_blocks: int = 16, name: str = "numbered") -> Corpus:
        return make_numbered(tmp_path / name, train, validation, chunk_blocks)

    return make


def make_numbered(folder: Path, train: int, validation: int, chunk_blocks: int) -> Corpus:
    # A document to a shard: documents are shuffled within their shard only.
    source = source_of(
        [[f"{number:04}"] for number in range(train)], [[f"{5000 + number:04}"] for number in range(validation)]
    )  # fmt: skip
    return prepare_corpus(folder, source, load_tokenizer("bytes"), BLOCK, chunk_tokens=chunk_blocks * BLOCK)


@pytest.fixture
def numbers() -> Callable[[Tensor], list[int]]:
    """Reads the numbers of the blocks in a batch of the numbered corpus."""

    def read(batch: Tensor) -> list[int]:
        blocks = batch.cpu().numpy()
        assert (blocks[:, 0] == 256).all()
        return [int(bytes(block[1:].astype(np.uint8))) for block in blocks]

    return read


def write_parquet(path: Path, texts: Sequence[str | None], column: str = "text") -> None:
    """A file with the columns of the hub's FineWeb, in row groups of 100 documents."""
    count = range(len(texts))
    table = pa.table({
        column: pa.array(texts, pa.string()),
        "id": [f"<urn:uuid:{number}>" for number in count],
        "dump": ["CC-MAIN-2024-10"] * len(texts),
        "url": [f"https://example.org/{number}" for number in count],
        "language_score": [0.9] * len(texts),
        "token_count": [len(text or "") // 4 for text in texts],
    })  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=100)


@pytest.fixture(scope="session")
def library_texts() -> list[str]:
    """Some real text: 300 documents of the embedded corpus, long ones cut."""
    from looplit.data.stdlib import standard_library_documents

    def short() -> Iterator[str]:
        for document in standard_library_documents():
            if len(document.text) > 200:
                yield document.text[:3000]

    return [text for text, _ in zip(short(), range(300), strict=False)]
