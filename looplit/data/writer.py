"""Tokens to chunks of whole blocks, with a state from which an interrupted preparation continues."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from litdata import TokensLoader
from litdata.streaming import Cache
from numpy.typing import NDArray

from looplit.data.corpus import Split, StoredFile
from looplit.data.encode import EncodedBatch
from looplit.data.tokenizer import Tokens
from looplit.errors import require

INDEX = "index.json"
REMEDIES = {
    "validation": "give separate text with --validation, more text, or a smaller --context",
    "train": "give more or other text, or a smaller --context",
}


@dataclass
class Counts:
    """What was read for a split; the fields of `Split` of these names."""

    documents: int = 0
    empty_documents: int = 0
    excluded_documents: int = 0
    text_bytes: int = 0
    tokens: int = 0
    largest_token: int = 0
    shards: list[str] = field(default_factory=list)


class SplitWriter:
    """Writes a split's tokens one after another, in chunks of `chunk_blocks` blocks, the last one shorter.

    Args:
        folder: Of the corpus.
        name: "train" or "validation", the folder within it.
        block: Tokens per block.
        chunk_blocks: Blocks per file.
        dtype: Stored type of a token.
        budget: Tokens at most, in whole blocks; None for all.
    """

    def __init__(
        self, folder: Path, name: str, block: int, chunk_blocks: int, dtype: np.dtype[Any], budget: int | None
    ) -> None:
        self.folder = folder
        self.name = name
        self.block = block
        self.limit = None if budget is None else budget // block * block
        self.counts = Counts()
        self.finished = False
        self._chunk = np.empty(chunk_blocks * block, dtype)
        self._filled = 0
        self._files: list[StoredFile] = []
        self._entries: list[dict[str, Any]] = []  # of the files, in LitData's index
        self._config: dict[str, Any] = {}
        (folder / name).mkdir(exist_ok=True)

    @property
    def full(self) -> bool:
        """Whether the budget is used up."""
        return self.limit is not None and self.counts.tokens >= self.limit

    @property
    def chunks_written(self) -> int:
        """Chunks on disk."""
        return len(self._files)

    def add(self, batch: EncodedBatch) -> int:
        """Appends documents up to the budget, which may cut the last one, and returns their number."""
        tokens, documents = batch.tokens, len(batch.lengths)
        if self.limit is not None and len(tokens) > self.limit - self.counts.tokens:
            tokens = tokens[: self.limit - self.counts.tokens]
            starts = np.cumsum(batch.lengths) - batch.lengths
            documents = int(np.searchsorted(starts, len(tokens)))
        text_bytes = batch.text_bytes[:documents]
        self.counts.documents += documents
        self.counts.empty_documents += int((text_bytes == 0).sum())
        self.counts.text_bytes += int(text_bytes.sum())
        self.counts.tokens += len(tokens)
        while len(tokens):
            taken = tokens[: len(self._chunk) - self._filled]
            self._chunk[self._filled : self._filled + len(taken)] = taken
            self._filled += len(taken)
            tokens = tokens[len(taken) :]
            if self._filled == len(self._chunk):
                self._write(self._filled)
                self._filled = 0
        return documents

    def finish(self) -> None:
        """Writes the last whole blocks and the index. The tail, less than a block, is dropped.

        Raises:
            InputError: There was less than a block.
        """
        counts = self.counts
        left_out = f", {counts.excluded_documents} left out as validation has them too" * bool(
            counts.excluded_documents
        )
        require(
            counts.tokens >= self.block, f"{self.name} tokens", counts.tokens,
            f"fewer than one block of {self.block} (documents: {counts.documents}{left_out}); {REMEDIES[self.name]}",
        )  # fmt: skip
        whole = self._filled // self.block * self.block
        if whole:
            self._write(whole)
        self._filled = 0
        # The time at which LitData would mark its index would make equal corpora differ.
        index = {"chunks": self._entries, "config": self._config, "updated_at": "0"}
        (self.folder / self.name / INDEX).write_text(json.dumps(index), encoding="utf-8")
        self.finished = True

    def split(self) -> Split:
        """What the finished split holds."""
        blocks = self.counts.tokens // self.block
        return Split(
            **{**asdict(self.counts), "shards": tuple(self.counts.shards)},
            blocks=blocks,
            dropped_tokens=self.counts.tokens - blocks * self.block,
            index=StoredFile.describe(self.folder, self.folder / self.name / INDEX),
            chunks=tuple(self._files),
        )

    def state(self) -> tuple[dict[str, Any], Tokens]:
        """Everything but the settings and the files: plain values, and the tokens that wait for a full chunk."""
        values = {
            "counts": asdict(self.counts),
            "finished": self.finished,
            "files": [asdict(file) for file in self._files],
            "entries": self._entries,
            "config": self._config,
        }
        return values, self._chunk[: self._filled]

    def load_state(self, values: dict[str, Any], waiting: NDArray[Any]) -> None:
        """Continues from a state. Files written after it are overwritten."""
        self.counts = Counts(**values["counts"])
        self.finished = values["finished"]
        self._files = [StoredFile(**file) for file in values["files"]]
        self._entries, self._config = values["entries"], values["config"]
        self._filled = len(waiting)
        self._chunk[: self._filled] = waiting

    def _write(self, size: int) -> None:
        """Writes the first `size` tokens of the chunk as a file.

        By LitData's writer in this process, not `optimize`: that starts processes, clears folders outside of the
        corpus, and leaves an index behind when a worker fails. The chunk is one item, so no token is lost at its end.
        """
        target = self.folder / self.name / f"chunk-0-{len(self._files)}.bin"
        # Beside the corpus: what a killed process leaves there is not published.
        with tempfile.TemporaryDirectory(dir=self.folder.parent) as folder:
            cache = Cache(folder, chunk_size=len(self._chunk), item_loader=TokensLoader(block_size=self.block))
            cache[0] = self._chunk[:size]
            cache.done()
            cache._merge_no_wait()  # `merge` waits for rank 0, and the preparing process need not have that rank
            index = json.loads((Path(folder) / INDEX).read_text(encoding="utf-8"))
            (entry,) = index["chunks"]
            (Path(folder) / entry["filename"]).replace(target)
        self._config = index["config"]
        self._entries.append({**entry, "filename": target.name})
        self._files.append(StoredFile.describe(self.folder, target))
        self.counts.largest_token = max(self.counts.largest_token, int(self._chunk[:size].max()))
