"""Tokenizing in parallel processes, results in order."""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import tiktoken
from numpy.typing import NDArray

from looplit.data.tokenizer import Tokens, encode_document, token_dtype
from looplit.errors import RunStopped


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


def encode_batch(tokenizer: tiktoken.Encoding, texts: list[str]) -> EncodedBatch:
    """Encodes documents one after another.

    >>> from looplit.data.tokenizer import load_tokenizer
    >>> encode_batch(load_tokenizer("bytes"), ["hi", ""]).tokens.tolist()
    [256, 104, 105, 256]
    """
    encoded = [_encode_one(tokenizer, text) for text in texts]
    return EncodedBatch(
        tokens=np.concatenate(encoded) if encoded else np.empty(0, token_dtype(tokenizer.n_vocab)),
        lengths=np.array([len(tokens) for tokens in encoded], dtype=np.int64),
        text_bytes=np.array([len(text.encode("utf-8", "surrogatepass")) for text in texts], dtype=np.int64),
    )


def _encode_one(tokenizer: tiktoken.Encoding, text: str) -> Tokens:
    try:
        return encode_document(tokenizer, text)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # tiktoken's panic is no Exception, and cannot be sent between processes
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise RunStopped(f"{tokenizer.name} cannot encode the document that begins {text[:40]!r} ({reason})") from None


class Encoder:
    """Encodes batches of documents in `workers` processes, in this one if there is but one.

    A context manager: its processes end with it. They are spawned, not forked, since this process may have threads.

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
                initializer=_set_tokenizer,
                initargs=(self.tokenizer,),
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def encode(self, batches: Iterable[list[str]]) -> Iterator[EncodedBatch]:
        """Yields the encoded batches in the order of `batches`, reading a few ahead.

        Raises:
            RunStopped: A process was killed, or a document cannot be encoded.
        """
        if self._pool is None:
            for batch in batches:
                yield encode_batch(self.tokenizer, batch)
            return
        waiting: deque[Future[EncodedBatch]] = deque()
        try:
            for batch in batches:
                waiting.append(self._pool.submit(_encode, batch))
                if len(waiting) > 4 * self.workers:  # enough that no process waits for this one
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise RunStopped(
                "a tokenizing process was killed (out of memory?); run again with --resume and fewer --workers"
            ) from error
        finally:
            for future in waiting:
                future.cancel()


_tokenizer: tiktoken.Encoding | None = None  # of this process, if it is one of an Encoder's


def _set_tokenizer(tokenizer: tiktoken.Encoding) -> None:
    global _tokenizer
    _tokenizer = tokenizer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business, which then ends this process


def _encode(texts: list[str]) -> EncodedBatch:
    assert _tokenizer is not None
    return encode_batch(_tokenizer, texts)
