"""Tokenizers by name, and the UTF-8 length of every token."""

from __future__ import annotations

from typing import Any

import numpy as np
import tiktoken
from numpy.typing import NDArray

from looplit.errors import InputError

END_OF_TEXT = "<|endoftext|>"

Tokens = NDArray[np.unsignedinteger[Any]]  # uint16 or uint32, by `token_dtype`


def load_tokenizer(name: str) -> tiktoken.Encoding:
    """Returns the tokenizer called `name`.

    Args:
        name: "bytes" (256 bytes and `<|endoftext|>` = 256; needs no download) or any encoding of tiktoken that has
            `<|endoftext|>`, "gpt2" for one. tiktoken reads those from the folder TIKTOKEN_CACHE_DIR or downloads them.

    Raises:
        InputError: No encoding of that name, or its files are neither in the cache nor reachable.

    >>> load_tokenizer("bytes").encode_ordinary("añ")
    [97, 195, 177]
    """
    if name == "bytes":
        # One character per piece: no token spans two, and the pattern never backtracks.
        ranks = {bytes([byte]): byte for byte in range(256)}
        return tiktoken.Encoding("bytes", pat_str=r"(?s:.)", mergeable_ranks=ranks, special_tokens={END_OF_TEXT: 256})
    names = tiktoken.list_encoding_names()
    if name not in names:
        raise InputError(f"tokenizer = {name!r}: must be one of bytes, {', '.join(names)}")
    try:
        encoding = tiktoken.get_encoding(name)
    except OSError as error:
        raise InputError(
            f"tokenizer = {name!r}: its files could not be downloaded ({type(error).__name__}); connect once, set "
            "TIKTOKEN_CACHE_DIR to a folder that holds them, or take the tokenizer bytes"
        ) from error
    if END_OF_TEXT not in encoding.special_tokens_set:
        raise InputError(f"tokenizer = {name!r}: has no {END_OF_TEXT}, which must precede every document")
    return encoding


def token_dtype(vocabulary: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Smallest unsigned type that holds every token id of the vocabulary and that LitData can store.

    >>> token_dtype(65536), token_dtype(65537)
    (dtype('uint16'), dtype('uint32'))
    """
    return np.dtype(np.uint16) if vocabulary <= 2**16 else np.dtype(np.uint32)


def encode_document(tokenizer: tiktoken.Encoding, text: str) -> Tokens:
    """Token ids of one document, `<|endoftext|>` first. Special tokens spelled out in `text` are ordinary text.

    >>> encode_document(load_tokenizer("bytes"), "hi").tolist()
    [256, 104, 105]
    """
    return np.array([tokenizer.eot_token, *tokenizer.encode_ordinary(text)], dtype=token_dtype(tokenizer.n_vocab))


def token_byte_counts(tokenizer: tiktoken.Encoding) -> NDArray[np.int64]:
    """UTF-8 bytes per token id, 0 for special tokens and for ids without a token. Shape (vocabulary,).

    Bits per byte is the sum of nats over the targets, over ln 2 times the sum of these counts (SPEC: special target
    tokens are left out of both).

    >>> token_byte_counts(load_tokenizer("bytes"))[[97, 255, 256]].tolist()
    [1, 1, 0]
    """
    counts = np.zeros(tokenizer.n_vocab, dtype=np.int64)
    special = {tokenizer.encode_single_token(token) for token in tokenizer.special_tokens_set}
    for token in range(tokenizer.n_vocab):
        if token not in special:
            try:
                counts[token] = len(tokenizer.decode_single_token_bytes(token))
            except KeyError:  # some encodings skip ids
                continue
    return counts
