"""A prepared corpus on disk: its manifest `corpus.json`, which alone makes a folder readable.

A folder holds `corpus.json`, `token_bytes.npy` and, for each split, a LitData folder of pre-cut blocks:

    corpus.json  token_bytes.npy  train/{index.json, chunk-0-0.bin, …}  validation/{index.json, chunk-0-0.bin, …}
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from looplit.errors import InputError, require

MANIFEST = "corpus.json"
TOKEN_BYTES = "token_bytes.npy"
FORMAT = 1  # of the manifest and of the way documents become blocks; raise it when either changes


@dataclass(frozen=True)
class StoredFile:
    """A file of the corpus: path within its folder, size in bytes, SHA-256."""

    path: str
    size: int
    sha256: str

    @classmethod
    def describe(cls, folder: Path, path: Path) -> StoredFile:
        """Describes the file as it lies on disk."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(path.relative_to(folder).as_posix(), path.stat().st_size, digest)

    def check_size(self, folder: Path) -> None:
        """Raises `InputError` if the file is missing or has another size."""
        path = folder / self.path
        if not path.is_file():
            raise InputError(f"folder = {str(folder)!r}: {self.path} is missing; prepare the corpus again")
        size = path.stat().st_size
        if size != self.size:
            raise InputError(
                f"folder = {str(folder)!r}: {self.path} has {size} bytes instead of {self.size}; prepare it again"
            )

    def check_content(self, folder: Path) -> None:
        """Raises `InputError` if the file's content is not what was written."""
        self.check_size(folder)
        if self.describe(folder, folder / self.path) != self:
            raise InputError(
                f"folder = {str(folder)!r}: the content of {self.path} has changed; prepare the corpus again"
            )


@dataclass(frozen=True)
class Split:
    """What one split holds. `tokens` = `blocks` · block + `dropped_tokens`.

    Args:
        documents: Documents read, empty ones included.
        empty_documents: Those without text; each still gives its `<|endoftext|>`.
        text_bytes: UTF-8 bytes of the documents.
        tokens: Tokens of the documents, `<|endoftext|>` included.
        blocks: Whole blocks written.
        dropped_tokens: Tokens of the last block, which was not full.
        largest_token: Largest token id written.
        index: LitData's index.
        chunks: LitData's chunks, in reading order.
    """

    documents: int
    empty_documents: int
    text_bytes: int
    tokens: int
    blocks: int
    dropped_tokens: int
    largest_token: int
    index: StoredFile
    chunks: tuple[StoredFile, ...]

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the chunks' hashes: equal for equal blocks in equal order."""
        return hashlib.sha256("".join(chunk.sha256 for chunk in self.chunks).encode()).hexdigest()


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus, as its manifest describes it.

    Args:
        folder: Where it lies.
        settings: What decided its content: source, tokenizer, block, seed, …
        vocabulary: Token ids of the tokenizer.
        block: Tokens per block: context + 1.
        dtype: Stored type of a token, "uint16" or "uint32".
        token_bytes: The file of UTF-8 bytes per token id.
        splits: "train" and "validation".
        versions: Packages that wrote it.
    """

    folder: Path
    settings: dict[str, Any]
    vocabulary: int
    block: int
    dtype: str
    token_bytes: StoredFile
    splits: dict[str, Split]
    versions: dict[str, str]

    def write_manifest(self) -> None:
        """Writes `corpus.json`, which makes the folder valid; so it comes last."""
        content = {"format": FORMAT, **dataclasses.asdict(self)}
        del content["folder"]
        (self.folder / MANIFEST).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    def load_token_bytes(self) -> NDArray[np.int64]:
        """UTF-8 bytes per token id, shape (vocabulary,)."""
        counts: NDArray[np.int64] = np.load(self.folder / self.token_bytes.path)
        return counts

    def verify(self) -> None:
        """Reads every file and raises `InputError` at the first whose content has changed."""
        for file in self.files():
            file.check_content(self.folder)

    def files(self) -> list[StoredFile]:
        """Every file but the manifest."""
        return [self.token_bytes, *(file for split in self.splits.values() for file in (split.index, *split.chunks))]


def open_corpus(folder: Path) -> Corpus:
    """Reads the manifest and checks that every file is there with its size.

    Raises:
        InputError: No manifest (not a corpus, or a preparation that never ended), one of another format, or a file
            that is missing or has another size.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise InputError(f"folder = {str(folder)!r}: has no {MANIFEST}, so it is not a prepared corpus")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise InputError(f"folder = {str(folder)!r}: has format {content['format']}, this version reads {FORMAT}")
        corpus = _from_manifest(folder, content)
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"folder = {str(folder)!r}: its {MANIFEST} cannot be read; prepare the corpus again"
        ) from error
    for file in corpus.files():
        file.check_size(folder)
    # LitData trusts its index: a changed one would be read as a smaller or other corpus.
    for split in corpus.splits.values():
        split.index.check_content(folder)
    return corpus


def _from_manifest(folder: Path, content: dict[str, Any]) -> Corpus:
    fields = {name: content[name] for name in ("settings", "vocabulary", "block", "dtype", "versions")}
    splits = {name: _split_from_manifest(split) for name, split in content["splits"].items()}
    return Corpus(folder=folder, token_bytes=StoredFile(**content["token_bytes"]), splits=splits, **fields)


def _split_from_manifest(content: dict[str, Any]) -> Split:
    chunks = tuple(StoredFile(**chunk) for chunk in content["chunks"])
    return Split(**{**content, "index": StoredFile(**content["index"]), "chunks": chunks})


def require_block(corpus: Corpus, context: int) -> None:
    """Raises `InputError` unless the corpus was cut for `context`: LitData would silently cut it anew."""
    require(
        corpus.block == context + 1, "context", context,
        f"the corpus in {corpus.folder} was cut for a context of {corpus.block - 1}",
    )  # fmt: skip
