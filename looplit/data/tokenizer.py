"""Tokenizers by name, and the UTF-8 length of every token."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import numpy as np
import tiktoken
from numpy.typing import NDArray

from looplit.errors import InputError

# White space as the patterns of tiktoken know it: Python's, but for four control characters.
LONG_WHITE_SPACE = re.compile(r"[^\S\x1c-\x1f]{1000,}+(?!\Z)")
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
    body = _encode_ordinary(tokenizer, text)
    tokens: Tokens = np.empty(1 + len(body), dtype=token_dtype(tokenizer.n_vocab))
    tokens[0] = tokenizer.eot_token
    tokens[1:] = body
    return tokens


def _encode_ordinary(tokenizer: tiktoken.Encoding, text: str) -> NDArray[np.uint32]:
    """`encode_ordinary` without the detour through a list of Python numbers."""
    try:
        return tokenizer.encode_to_numpy(text, disallowed_special=())
    except UnicodeEncodeError:  # a lone surrogate, which that function does not mend
        return np.array(tokenizer.encode_ordinary(text), dtype=np.uint32)
    except ValueError:  # the pattern's search gives up
        parts = split_white_space(text)
        if len(parts) == 1:
            raise
        return np.concatenate([_encode_ordinary(tokenizer, part) for part in parts])


def split_white_space(text: str) -> list[str]:
    r"""Cuts the text before the last character of every very long run of white space that does not end it.

    The pattern of GPT-2 ends in `\s+(?!\S)|\s+`: it takes a run but for the last character, which goes with what
    follows. It searches that place backwards, and gives up in a run of some hundred thousand characters. Cut here, the
    tokens stay as they are (with the patterns of later encodings, save where such a run ends in a newline).

    >>> [len(part) for part in split_white_space("a" + " " * 5000 + "b")]
    [5000, 2]
    """
    cuts = [0, *(run.end() - 1 for run in LONG_WHITE_SPACE.finditer(text)), len(text)]
    return [text[start:end] for start, end in pairwise(cuts)]


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
