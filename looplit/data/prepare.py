"""From documents to a prepared corpus: tokens, pre-cut blocks, manifest, published by one rename."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tiktoken
from litdata import TokensLoader
from litdata.streaming import Cache

from looplit.data.corpus import FORMAT, TOKEN_BYTES, Corpus, Split, StoredFile, open_corpus
from looplit.data.tokenizer import Tokens, encode_document, token_byte_counts, token_dtype
from looplit.errors import InputError, require

# Windows are mixed within a chunk and chunks among one another, so a chunk is large: 32 global batches of 2^19 tokens,
# 32 MiB in uint16.
CHUNK_TOKENS = 2**24


def corpus_key(settings: Mapping[str, Any]) -> str:
    """Twelve hex digits that stand for the settings and for the way blocks are made.

    >>> corpus_key({"a": 1, "b": 2}) == corpus_key({"b": 2, "a": 1})
    True
    """
    text = json.dumps({"format": FORMAT, **settings}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def shuffled(documents: Iterable[str], seed: int) -> list[str]:
    """The documents in an order that depends on the seed alone (`random.Random(seed).shuffle`)."""
    order = list(documents)
    random.Random(seed).shuffle(order)
    return order


def prepare_corpus(
    folder: Path,
    splits: Callable[[], Mapping[str, Iterable[str]]],
    tokenizer: tiktoken.Encoding,
    block: int,
    settings: Mapping[str, Any],
    chunk_tokens: int = CHUNK_TOKENS,
) -> Corpus:
    """Writes a corpus to `folder`, or opens it if a corpus of the same settings lies there already.

    Everything is written to a working folder beside it, the manifest last, and published by one rename: a folder of
    that name is whole or absent, also when the process dies. Of two processes that prepare the same corpus at once
    the first to end publishes, the other discards its copy and opens the first's.

    Args:
        folder: Where the corpus will lie.
        splits: Gives the documents of each split, in order. Not called if the corpus exists.
        tokenizer: Puts `<|endoftext|>` before every document.
        block: Tokens per block, context + 1.
        settings: What decides the content; compared with those of a corpus that is already there.
        chunk_tokens: Tokens per file, rounded down to whole blocks (at least one).

    Raises:
        InputError: `folder` exists but is no prepared corpus or one of other settings; or a split has less than
            a block.
    """
    require(block >= 2, "context", block - 1, "must be at least 1")
    if folder.exists():
        return _open_same(folder, settings)
    folder.parent.mkdir(parents=True, exist_ok=True)
    working = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _write_corpus(working, splits(), tokenizer, block, settings, chunk_tokens)
        working.chmod(0o755)  # mkdtemp's folders are closed to other users
        try:
            working.rename(folder)
        except OSError:
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(working, ignore_errors=True)
    return _open_same(folder, settings)


def _open_same(folder: Path, settings: Mapping[str, Any]) -> Corpus:
    corpus = open_corpus(folder)
    for name, value in settings.items():
        found = corpus.settings.get(name)
        if found != value:
            raise InputError(f"folder = {str(folder)!r}: holds a corpus of {name} {found!r}, not {value!r}")
    return corpus


def _write_corpus(
    folder: Path,
    splits: Mapping[str, Iterable[str]],
    tokenizer: tiktoken.Encoding,
    block: int,
    settings: Mapping[str, Any],
    chunk_tokens: int,
) -> None:
    np.save(folder / TOKEN_BYTES, token_byte_counts(tokenizer))
    chunk_size = block * max(1, chunk_tokens // block)
    written = {
        name: _write_split(folder, name, documents, tokenizer, block, chunk_size) for name, documents in splits.items()
    }
    packages = ("looplit", "litdata", "tiktoken", "numpy")
    Corpus(
        folder=folder,
        settings=dict(settings),
        vocabulary=tokenizer.n_vocab,
        block=block,
        dtype=token_dtype(tokenizer.n_vocab).name,
        token_bytes=StoredFile.describe(folder, folder / TOKEN_BYTES),
        splits=written,
        versions={"python": platform.python_version(), **{name: _version(name) for name in packages}},
    ).write_manifest()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _write_split(
    folder: Path, name: str, documents: Iterable[str], tokenizer: tiktoken.Encoding, block: int, chunk_size: int
) -> Split:
    counts = dict.fromkeys(
        ("documents", "empty_documents", "text_bytes", "tokens", "blocks", "dropped_tokens", "largest_token"), 0
    )

    def encoded() -> Iterator[Tokens]:
        for text in documents:
            counts["documents"] += 1
            counts["empty_documents"] += not text
            counts["text_bytes"] += len(text.encode("utf-8", "surrogatepass"))
            yield encode_document(tokenizer, text)

    # LitData's writer in this process, not `optimize`: that starts processes, clears folders outside of the corpus,
    # and leaves an index behind when a worker fails. An item is one chunk, so no token is lost at a chunk's end.
    cache = Cache(str(folder / name), chunk_size=chunk_size, item_loader=TokensLoader(block_size=block))
    for number, tokens in enumerate(_pieces(encoded(), chunk_size, token_dtype(tokenizer.n_vocab))):
        whole = len(tokens) // block * block
        counts["tokens"] += len(tokens)
        counts["blocks"] += whole // block
        counts["dropped_tokens"] += len(tokens) - whole
        if whole:
            counts["largest_token"] = max(counts["largest_token"], int(tokens[:whole].max()))
            cache[number] = tokens[:whole]
    require(counts["blocks"] > 0, f"{name} tokens", counts["tokens"], f"fewer than one block of {block}")
    cache.done()
    cache._merge_no_wait()  # `merge` waits for rank 0, and the preparing process need not have that rank
    index = folder / name / "index.json"
    chunks = [folder / name / chunk["filename"] for chunk in json.loads(index.read_text())["chunks"]]
    return Split(
        **counts,
        index=StoredFile.describe(folder, index),
        chunks=tuple(StoredFile.describe(folder, chunk) for chunk in chunks),
    )


def _pieces(documents: Iterable[Tokens], size: int, dtype: np.dtype[Any]) -> Iterator[Tokens]:
    """The documents one after another, cut into arrays of exactly `size` tokens, and one last shorter array."""
    piece = np.empty(size, dtype=dtype)
    filled = 0
    for tokens in documents:
        while len(tokens):
            taken = tokens[: size - filled]
            piece[filled : filled + len(taken)] = taken
            filled += len(taken)
            tokens = tokens[len(taken) :]
            if filled == size:
                yield piece
                filled = 0
    yield piece[:filled]


def user_cache_folder() -> Path:
    """Where prepared corpora are kept by default: $XDG_CACHE_HOME/looplit or ~/.cache/looplit."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "looplit"
