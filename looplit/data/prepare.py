"""From documents to a prepared corpus: tokens, pre-cut blocks, manifest, published by one rename."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tiktoken
from numpy.typing import NDArray
from tqdm import tqdm

from looplit.data.corpus import FORMAT, LARGEST_CONTEXT, LARGEST_SEED, TOKEN_BYTES, Corpus, StoredFile, open_corpus
from looplit.data.encode import EncodedBatch, Encoder
from looplit.data.settings import first_difference
from looplit.data.shards import Shard
from looplit.data.sources import Source
from looplit.data.tokenizer import token_byte_counts, token_dtype
from looplit.data.staging import CORPUS, STATE, publish, staging_folder
from looplit.data.writer import SplitWriter
from looplit.errors import InputError, require, require_between

# Windows are mixed within a chunk and chunks among one another, so a chunk is large: 32 global batches of 2^19 tokens,
# 32 MiB in uint16.
CHUNK_TOKENS = 2**24
BATCH_BYTES = 400_000  # of text to a tokenizing process at a time: some 130 web pages, 10 ms of GPT-2 tokens
# Of the order of the documents. Apart from a run's seed, so that runs of several seeds read one corpus and one pool.
DOCUMENT_SEED = 0
PACKAGES = ("looplit", "litdata", "tiktoken", "numpy", "pyarrow")


def corpus_key(settings: Mapping[str, Any]) -> str:
    """Twelve hex digits that stand for the settings and for the way blocks are made.

    >>> corpus_key({"a": 1, "b": 2}) == corpus_key({"b": 2, "a": 1})
    True
    """
    text = json.dumps({"format": FORMAT, **settings}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def corpus_settings(
    source: Source, tokenizer: str, block: int, tokens: int | None = None, seed: int = DOCUMENT_SEED
) -> dict[str, Any]:
    """Everything that decides the content of a corpus."""
    return {
        **source.settings,
        "val_tokens": source.val_tokens,
        "signature_tokens": source.signature_tokens,
        "tokenizer": tokenizer,
        "block": block,
        "train_tokens": tokens,
        "document_seed": seed,
    }


def prepare_corpus(
    folder: Path,
    source: Source,
    tokenizer: tiktoken.Encoding,
    block: int,
    *,
    tokens: int | None = None,
    seed: int = DOCUMENT_SEED,
    workers: int = 1,
    resume: bool = False,
    progress: bool = False,
    chunk_tokens: int = CHUNK_TOKENS,
) -> Corpus:
    """Writes a corpus to `folder`, or opens it if a corpus of the same settings lies there already.

    Training documents are shuffled within each shard, validation documents are not; all are concatenated and cut into
    blocks, whatever the number of workers (SPEC section 7). A shard's text is held in memory.

    Everything is written to a working folder beside it and published by one rename: a folder of that name is whole or
    absent, also when the process dies. Of two processes that prepare the same corpus at once the first to end
    publishes, the other discards its copy and opens the first's.

    Args:
        folder: Where the corpus will lie.
        source: The text and its validation rule.
        tokenizer: Puts `<|endoftext|>` before every document.
        block: Tokens per block, context + 1.
        tokens: Training tokens at most, in whole blocks.
        seed: Of the order of the documents.
        workers: Processes that tokenize.
        resume: Continue an interrupted preparation of the same settings, from its last finished shard.
        progress: Show a bar of tokens, tokens/s and documents.
        chunk_tokens: Tokens per file, rounded down to whole blocks (at least one).

    Raises:
        InputError: `folder` exists but is not a prepared corpus or one of other settings; what is to be resumed has
            other settings; a split has less than a block; the text cannot be read; or the folder cannot be written.
        RunStopped: A tokenizing process was killed.
    """
    require_between("context", block - 1, 1, LARGEST_CONTEXT)
    require_between("workers", workers, 1)
    require_between("seed", seed, 0, LARGEST_SEED)
    for name, budget in (("tokens", tokens), ("val_tokens", source.val_tokens)):
        require(budget is None or budget >= block, name, budget, f"must be at least one block, context + 1 = {block}")
    settings = corpus_settings(source, tokenizer.name, block, tokens, seed)
    written = {**settings, "chunk_tokens": chunk_tokens}  # decides the files, not the blocks
    try:
        if folder.exists():
            return _open_same(folder, settings)
        with staging_folder(folder, written, resume) as working, Encoder(tokenizer, workers) as encoder:
            job = _Preparation(working, encoder, source, block, chunk_tokens, tokens, seed, progress)
            job.run(settings)
            publish(working, folder)
    except OSError as error:
        raise InputError(f"folder = {str(folder)!r}: {error}") from error
    return _open_same(folder, settings)


def _open_same(folder: Path, settings: Mapping[str, Any]) -> Corpus:
    corpus = open_corpus(folder)
    difference = first_difference(settings, corpus.settings)
    if difference is not None:
        raise InputError(f"folder = {str(folder)!r}: holds a corpus of {difference}; take another folder or remove it")
    return corpus


class _Preparation:
    """One preparation in its working folder."""

    def __init__(
        self,
        working: Path,
        encoder: Encoder,
        source: Source,
        block: int,
        chunk_tokens: int,
        tokens: int | None,
        seed: int,
        progress: bool,
    ) -> None:
        self.working = working
        self.folder = working / CORPUS
        self.encoder = encoder
        self.source = source
        self.block = block
        self.seed = seed
        self.progress = progress
        self.dtype = token_dtype(encoder.tokenizer.n_vocab)
        self.signatures: set[bytes] = set()
        self.saved_chunks = 0
        chunk_blocks = max(1, chunk_tokens // block)
        self.splits = {
            name: SplitWriter(self.folder, name, block, chunk_blocks, self.dtype, budget)
            for name, budget in (("validation", source.val_tokens), ("train", tokens))
        }

    def run(self, settings: Mapping[str, Any]) -> None:
        """Writes both splits and the manifest, from the last saved state on."""
        self._load()
        shards = self.source.shards()
        # Validation first: its signatures decide which training documents are left out.
        self._write_split("validation", shards.validation)
        self._write_split("train", shards.training)
        tokenizer = self.encoder.tokenizer
        np.save(self.folder / TOKEN_BYTES, token_byte_counts(tokenizer))
        Corpus(
            folder=self.folder,
            settings={**settings, "left_out": dict(self.source.left_out)},
            vocabulary=tokenizer.n_vocab,
            block=self.block,
            dtype=self.dtype.name,
            token_bytes=StoredFile.describe(self.folder, self.folder / TOKEN_BYTES),
            splits={name: writer.split() for name, writer in self.splits.items()},
            versions={"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        ).write_manifest()

    def _write_split(self, name: str, shards: Sequence[Shard]) -> None:
        writer = self.splits[name]
        if writer.finished:
            return
        done = len(writer.counts.shards)
        seed = None if name == "validation" else self.seed
        with tqdm(
            desc=name, total=writer.limit, initial=writer.counts.tokens, unit="token", unit_scale=True,
            disable=not self.progress,
        ) as bar:  # fmt: skip
            # One stream over all shards: the next is read while the last one's batches are still being encoded.
            batches = _batches(shards, done, seed) if not writer.full else ()
            for batch, ends_shard in self.encoder.encode(batches):
                self._write_batch(name, batch, bar)
                if ends_shard or writer.full:
                    self._end_shard(name, shards, bar)
                if writer.full:
                    break
        writer.finish()
        self._save()

    def _end_shard(self, name: str, shards: Sequence[Shard], bar: tqdm[Any]) -> None:
        writer = self.splits[name]
        done = len(writer.counts.shards) + 1
        writer.counts.shards.append(shards[done - 1].name)
        bar.set_description(f"{name} {done}/{len(shards)}")
        if writer.chunks_written > self.saved_chunks:  # small shards are done again sooner than saved
            self._save()

    def _write_batch(self, name: str, batch: EncodedBatch, bar: tqdm[Any]) -> None:
        writer = self.splits[name]
        before = writer.counts.tokens
        if name == "train" and self.signatures:
            batch = self._without_validation(batch)
        added = writer.add(batch)
        if name == "validation":
            self.signatures.update(islice(self._signatures(batch), added))
        bar.update(writer.counts.tokens - before)
        bar.set_postfix(documents=writer.counts.documents, refresh=False)

    def _without_validation(self, batch: EncodedBatch) -> EncodedBatch:
        kept = np.array([signature not in self.signatures for signature in self._signatures(batch)], dtype=bool)
        self.splits["train"].counts.excluded_documents += int((~kept).sum())
        tokens = batch.tokens[np.repeat(kept, batch.lengths)]
        return replace(batch, tokens=tokens, lengths=batch.lengths[kept], text_bytes=batch.text_bytes[kept])

    def _signatures(self, batch: EncodedBatch) -> Iterator[bytes]:
        """SHA-1 of the first tokens of each document, `<|endoftext|>` aside; none if the source wants none."""
        longest = self.source.signature_tokens
        if longest == 0:
            return
        ends = np.cumsum(batch.lengths)
        for start, end in zip(ends - batch.lengths + 1, ends, strict=True):
            body = batch.tokens[start : end if longest is None else min(end, start + longest)]
            yield hashlib.sha1(body.data, usedforsecurity=False).digest()

    def _save(self) -> None:
        """Keeps the state of both splits as of the last finished shard, in one file that is replaced at once."""
        states = {name: writer.state() for name, writer in self.splits.items()}
        text = json.dumps({name: values for name, (values, _) in states.items()})
        fresh = self.working / f"new-{STATE}"
        arrays: dict[str, Any] = {name: waiting for name, (_, waiting) in states.items()}
        arrays["text"] = np.frombuffer(text.encode(), np.uint8)
        arrays["signatures"] = np.frombuffer(b"".join(sorted(self.signatures)), np.uint8).reshape(-1, 20)
        np.savez(fresh, **arrays)
        fresh.replace(self.working / STATE)
        self.saved_chunks = self.splits["train"].chunks_written

    def _load(self) -> None:
        path = self.working / STATE
        if path.exists():
            with np.load(path) as saved:
                states = json.loads(saved["text"].tobytes())
                self.signatures = {row.tobytes() for row in saved["signatures"]}
                for name, writer in self.splits.items():
                    writer.load_state(states[name], saved[name])
            self.saved_chunks = self.splits["train"].chunks_written


def _batches(shards: Sequence[Shard], done: int, seed: int | None) -> Iterator[tuple[pa.LargeStringArray, bool]]:
    """Documents of the shards from number `done` on, some `BATCH_BYTES` at a time, and whether they end their shard.

    In file order, or shuffled within each shard by a seed. A shard without documents comes as one empty batch.
    """
    for number, shard in enumerate(shards[done:], start=done):
        texts = shard.documents()
        order: NDArray[np.int64] = np.arange(len(texts))
        if seed is not None:
            order = np.random.RandomState([seed, number]).permutation(len(texts))  # a stream that numpy keeps as it is
        sizes = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
        batch = sizes[order].cumsum() // BATCH_BYTES
        starts = np.flatnonzero(np.diff(batch, prepend=-1))
        ends = [*starts[1:].tolist(), len(order)]
        for start, end in zip(starts.tolist() or [0], ends, strict=True):
            yield texts.take(order[start:end]), end == len(order)
        del texts  # before the next shard is read: a shard of FineWeb is 4 GB


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
