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
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from looplit.data.remote import cache_folder, fetched, is_remote
from looplit.errors import InputError, require

MANIFEST = "corpus.json"
TOKEN_BYTES = "token_bytes.npy"
SPLITS = ("validation", "train")
LARGEST_SEED = 2**32 - 1  # that numpy's generator takes
LARGEST_CONTEXT = 2**24 - 1  # a block fits into a chunk of 32 MiB
NOT_OF_THE_TEXT = ("block", "train_tokens", "tokenizer", "stdlib")  # settings that leave its training text as it is
FORMAT = 2  # of the manifest and of the way documents become blocks; raise it when either changes


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
        documents: Documents in it, empty ones included; a budget of tokens may have cut the last one.
        empty_documents: Those without text; each still gives its `<|endoftext|>`.
        excluded_documents: Documents that were read and left out, since the validation split has their like.
        text_bytes: UTF-8 bytes of the documents.
        tokens: Tokens of the documents, `<|endoftext|>` included.
        blocks: Whole blocks written.
        dropped_tokens: Tokens of the last block, which was not full.
        largest_token: Largest token id written.
        index: LitData's index.
        chunks: LitData's chunks, in reading order.
        shards: Input files, in reading order.
    """

    documents: int
    empty_documents: int
    excluded_documents: int
    text_bytes: int
    tokens: int
    blocks: int
    dropped_tokens: int
    largest_token: int
    index: StoredFile
    chunks: tuple[StoredFile, ...]
    shards: tuple[str, ...]

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the chunks' hashes: equal for equal blocks in equal order."""
        return hashlib.sha256("".join(chunk.sha256 for chunk in self.chunks).encode()).hexdigest()


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus, as its manifest describes it.

    Args:
        folder: Where it lies; of one in an object store, where its manifest, index and current chunks are kept.
        settings: What decided its content: source, tokenizer, block, seed, …
        vocabulary: Token ids of the tokenizer.
        block: Tokens per block: context + 1.
        dtype: Stored type of a token, "uint16" or "uint32".
        token_bytes: The file of UTF-8 bytes per token id.
        splits: "train" and "validation".
        versions: Packages that wrote it.
        address: Where it lies in an object store; None for a local one.
    """

    folder: Path
    settings: dict[str, Any]
    vocabulary: int
    block: int
    dtype: str
    token_bytes: StoredFile
    splits: dict[str, Split]
    versions: dict[str, str]
    address: str | None = None

    def record(self) -> dict[str, Any]:
        """What the record of a run says of its text, see `looplit.results`.

        The hash is of every setting that decides the text, so that corpora are equal only if all of them are; not of
        those that say how much of it was prepared and how it was cut, nor of the place of the standard library.
        """
        kept = {name: value for name, value in sorted(self.settings.items()) if name not in NOT_OF_THE_TEXT}
        return {
            "corpus": self.settings.get("source"),
            "corpus_revision": self.settings.get("revision", self.settings.get("python")),
            "corpus_hash": hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:16],
            "tokenizer": self.settings.get("tokenizer"),
            "validation_hash": self.splits["validation"].fingerprint[:16],
        }

    def write_manifest(self) -> None:
        """Writes `corpus.json`, which makes the folder valid; so it comes last."""
        content = {"format": FORMAT, **dataclasses.asdict(self)}
        del content["folder"], content["address"]
        (self.folder / MANIFEST).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    def load_token_bytes(self) -> NDArray[np.int64]:
        """UTF-8 bytes per token id, shape (vocabulary,).

        Raises:
            InputError: The file has changed.
        """
        self.token_bytes.check_content(self.folder)
        counts: NDArray[np.int64] = np.load(self.folder / self.token_bytes.path)
        return counts

    def verify(self) -> None:
        """Reads every file and raises `InputError` at the first whose content has changed."""
        for file in self.files():
            file.check_content(self.folder)

    def files(self) -> list[StoredFile]:
        """Every file but the manifest."""
        return [self.token_bytes, *(file for split in self.splits.values() for file in (split.index, *split.chunks))]


Described = TypeVar("Described", StoredFile, Split, Corpus)


def open_corpus(folder: Path | str) -> Corpus:
    """Reads the manifest and checks that every file is there with its size.

    Args:
        folder: A local folder or the address of one in an object store, whose chunks are checked when they are read.

    Raises:
        InputError: No manifest (not a corpus, or a preparation that never ended), one of another format, or a file
            that is missing or has another size.
    """
    if is_remote(folder):
        return _open_remote(str(folder))
    corpus = _read_manifest(Path(folder))
    for file in corpus.files():
        file.check_size(corpus.folder)
    _check_indices(corpus)
    return corpus


def _open_remote(address: str) -> Corpus:
    with fetched(address, MANIFEST) as manifest:
        kept = cache_folder(address, manifest.read_bytes())
        if not (kept / MANIFEST).is_file():
            manifest.replace(kept / MANIFEST)
    corpus = dataclasses.replace(_read_manifest(kept), address=address)
    for file in (corpus.token_bytes, *(split.index for split in corpus.splits.values())):
        if not (kept / file.path).is_file():
            with fetched(address, file.path) as path:
                (kept / file.path).parent.mkdir(exist_ok=True)
                path.replace(kept / file.path)
    _check_indices(corpus)
    return corpus


def _check_indices(corpus: Corpus) -> None:
    # LitData trusts its index: a changed one would be read as a smaller or other corpus.
    for split in corpus.splits.values():
        split.index.check_content(corpus.folder)


def _read_manifest(folder: Path) -> Corpus:
    path = folder / MANIFEST
    if not path.is_file():
        raise InputError(f"folder = {str(folder)!r}: has no {MANIFEST}, so it is not a prepared corpus")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise InputError(f"folder = {str(folder)!r}: has format {content['format']}, this version reads {FORMAT}")
        return _from_manifest(folder, content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"folder = {str(folder)!r}: its {MANIFEST} cannot be read; prepare the corpus again"
        ) from error


def _from_manifest(folder: Path, content: dict[str, Any]) -> Corpus:
    fields = {name: content[name] for name in ("settings", "vocabulary", "block", "dtype", "versions")}
    splits = {name: _split_from_manifest(content["splits"][name]) for name in SPLITS}
    corpus = _typed(Corpus(folder=folder, token_bytes=_file(content["token_bytes"]), splits=splits, **fields))
    if corpus.block < 2 or corpus.dtype not in ("uint16", "uint32"):
        raise ValueError("no block, or no type of tokens")
    return corpus


def _split_from_manifest(content: dict[str, Any]) -> Split:
    chunks = tuple(_file(chunk) for chunk in content["chunks"])
    fields = {**content, "index": _file(content["index"]), "chunks": chunks, "shards": tuple(content["shards"])}
    return _typed(Split(**fields))


def _file(content: dict[str, Any]) -> StoredFile:
    return _typed(StoredFile(**content))


def _typed(value: Described) -> Described:
    """Raises `TypeError` where a number, a text or a mapping of the manifest is none."""
    for field in dataclasses.fields(value):
        kind = {"int": int, "str": str, "dict": dict}.get(str(field.type).partition("[")[0])
        if kind is not None and not isinstance(getattr(value, field.name), kind):
            raise TypeError(f"{field.name} is no {kind.__name__}")
    return value


def require_block(corpus: Corpus, context: int) -> None:
    """Raises `InputError` unless the corpus was cut for `context`: LitData would silently cut it anew."""
    require(
        corpus.block == context + 1, "context", context,
        f"the corpus in {corpus.folder} was cut for a context of {corpus.block - 1}",
    )  # fmt: skip
