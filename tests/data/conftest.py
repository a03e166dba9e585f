"""A corpus whose blocks carry their own number, so that a test can follow each block."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from looplit.data import Corpus, load_tokenizer, prepare_corpus


@pytest.fixture
def numbered(tmp_path: Path) -> Callable[..., Corpus]:
    """Makes a corpus of numbered blocks, `chunk_blocks` to a file. `<|endoftext|>` and four digits are one block."""

    def make(train: int = 100, validation: int = 11, chunk_blocks: int = 16, name: str = "numbered") -> Corpus:
        def splits() -> dict[str, list[str]]:
            return {
                "train": [f"{number:04}" for number in range(train)],
                "validation": [f"{5000 + number:04}" for number in range(validation)],
            }

        settings = {"train": train, "validation": validation, "chunk_blocks": chunk_blocks}
        tokenizer = load_tokenizer("bytes")
        return prepare_corpus(tmp_path / name, splits, tokenizer, 5, settings, chunk_tokens=chunk_blocks * 5)

    return make


@pytest.fixture
def numbers() -> Callable[[Tensor], list[int]]:
    """Reads the numbers of the blocks in a batch of the numbered corpus."""

    def read(batch: Tensor) -> list[int]:
        blocks = batch.cpu().numpy()
        assert (blocks[:, 0] == 256).all()
        return [int(bytes(block[1:].astype(np.uint8))) for block in blocks]

    return read
