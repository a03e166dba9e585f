"""Tokenizing in parallel processes, results in order."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import resource_tracker
from types import TracebackType
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tiktoken
from numpy.typing import NDArray

from looplit.data.tokenizer import Tokens, encode_document, token_dtype
from looplit.errors import RunStopped

Tag = TypeVar("Tag")


@dataclass(frozen=True)
class EncodedBatch:
    """Documents as tokens.

    Args:
        tokens: All tokens, each document's `<|endoftext|>` first; shape (total,).
        lengths: Tokens of each document, shape (documents,).
        text_bytes: UTF-8 bytes of each document, shape (documents,).
    """

    tokens: Tokens
    lengths: NDArray[np.int64]
    text_bytes: NDArray[np.int64]


def encode_batch(tokenizer: tiktoken.Encoding, documents: pa.LargeStringArray) -> EncodedBatch:
    """Encodes documents one after another. Null is an empty document.

    >>> from looplit.data.tokenizer import load_tokenizer
    >>> encode_batch(load_tokenizer("bytes"), pa.array(["hi", None], pa.large_string())).tokens.tolist()
    [256, 104, 105, 256]
    """
    encoded = [_encode_one(tokenizer, text or "") for text in documents.to_pylist()]
    return EncodedBatch(
        tokens=np.concatenate(encoded) if encoded else np.empty(0, token_dtype(tokenizer.n_vocab)),
        lengths=np.array([len(tokens) for tokens in encoded], dtype=np.int64),
        text_bytes=pc.fill_null(pc.binary_length(documents), 0).to_numpy(zero_copy_only=False),
    )


def _encode_one(tokenizer: tiktoken.Encoding, text: str) -> Tokens:
    try:
        return encode_document(tokenizer, text)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # tiktoken's panic is not an Exception, and cannot be sent between processes
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise RunStopped(f"{tokenizer.name} cannot encode the document that begins {text[:40]!r} ({reason})") from None


class Encoder:
    """Encodes batches of documents in `workers` processes, in this one if there is but one.

    A context manager: its processes end with it, and with this process however that dies. They are spawned, not
    forked, since this process may have threads.

    Args:
        tokenizer: Encodes; must survive pickling if there are several processes.
        workers: Processes.
    """

    def __init__(self, tokenizer: tiktoken.Encoding, workers: int) -> None:
        self.tokenizer = tokenizer
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Encoder:
        if self.workers > 1:
            self._pool = ProcessPoolExecutor(
                self.workers,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_start_process,
                initargs=(self.tokenizer,),
            )
            resource_tracker.ensure_running()  # when it starts, it unblocks what `_submit` blocks
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def encode(self, batches: Iterable[tuple[pa.LargeStringArray, Tag]]) -> Iterator[tuple[EncodedBatch, Tag]]:
        """Yields the encoded batches in the order of `batches`, each with what came with it, reading a few ahead.

        Raises:
            RunStopped: A process was killed, or a document cannot be encoded.
        """
        if self._pool is None:
            for documents, tag in batches:
                yield encode_batch(self.tokenizer, documents), tag
            return
        waiting: deque[tuple[Future[EncodedBatch], Tag]] = deque()
        try:
            for documents, tag in batches:
                waiting.append((_submit(self._pool, documents), tag))
                if len(waiting) > 4 * self.workers:  # enough that no process waits for this one
                    yield _result(waiting.popleft())
            while waiting:
                yield _result(waiting.popleft())
        except BrokenProcessPool as error:
            raise RunStopped(
                "a tokenizing process was killed (out of memory?); run again with --resume and fewer --workers"
            ) from error
        finally:
            for future, _ in waiting:
                future.cancel()


def _submit(pool: ProcessPoolExecutor, documents: pa.LargeStringArray) -> Future[EncodedBatch]:
    # It may start a process, which inherits what is blocked: Ctrl-C is this process's business, which then ends those.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(_encode, documents)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _result(job: tuple[Future[EncodedBatch], Tag]) -> tuple[EncodedBatch, Tag]:
    return job[0].result(), job[1]


_tokenizer: tiktoken.Encoding | None = None  # of this process, if it is one of an Encoder's


def _start_process(tokenizer: tiktoken.Encoding) -> None:
    global _tokenizer
    _tokenizer = tokenizer
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Ends this process when its parent is gone, which a parent that was killed cannot do (and a pool would wait)."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()  # the end of a pipe that the parent holds open: also on macOS, also after SIGKILL
    os._exit(1)


def _encode(documents: pa.LargeStringArray) -> EncodedBatch:
    assert _tokenizer is not None
    return encode_batch(_tokenizer, documents)
