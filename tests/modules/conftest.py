"""A corpus of windows that carry their own number."""

from __future__ import annotations

import pytest

from looplit.data import Source, load_tokenizer, prepare_corpus
from looplit.data.sources import Shards, texts_shard


@pytest.fixture(scope="session")
def corpus_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """101 windows for training, `<|endoftext|>` and four digits each, and 3 for validation."""
    shards = [
        [texts_shard(f"{split}-{n}", [f"{n:04}"]) for n in range(count)]
        for split, count in (("train", 101), ("validation", 3))
    ]
    source = Source({"source": "memory"}, lambda: Shards(*shards), None, 0)
    folder = tmp_path_factory.mktemp("numbered") / "corpus"
    prepare_corpus(folder, source, load_tokenizer("bytes"), 5, chunk_tokens=80)
    return str(folder)
