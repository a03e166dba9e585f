"""Tokenizers: round trips, special tokens as text, bytes per token, errors."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import tiktoken

from looplit.data.tokenizer import encode_document, load_tokenizer, split_white_space, token_byte_counts, token_dtype
from looplit.errors import InputError

TEXT = "Grüße, 世界! 🙂\n\ttabs  and <|endoftext|> spelled out\x00"


def test_bytes_are_the_text_itself() -> None:
    tokens = encode_document(load_tokenizer("bytes"), TEXT)
    assert tokens[0] == 256
    assert bytes(tokens[1:].astype(np.uint8)) == TEXT.encode()
    assert tokens.dtype == np.uint16


def test_bytes_survive_a_pickle() -> None:
    tokenizer = pickle.loads(pickle.dumps(load_tokenizer("bytes")))
    assert tokenizer.decode(tokenizer.encode_ordinary(TEXT)) == TEXT


@pytest.mark.parametrize("name", ["bytes", "gpt2"])
def test_bytes_per_token_sum_to_the_text(name: str, request: pytest.FixtureRequest) -> None:
    if name == "gpt2":
        _use_shared_files(request)
    tokenizer = load_tokenizer(name)
    counts = token_byte_counts(tokenizer)
    text = TEXT + Path(__file__).read_text(encoding="utf-8")
    tokens = encode_document(tokenizer, text)
    assert counts.shape == (tokenizer.n_vocab,)
    assert tokens[0] == tokenizer.eot_token
    assert counts[tokenizer.eot_token] == 0
    assert (tokens[1:] != tokenizer.eot_token).all()
    assert counts[tokens].sum() == len(text.encode())


def _use_shared_files(request: pytest.FixtureRequest) -> None:
    shared: Path = request.getfixturevalue("shared")
    request.getfixturevalue("monkeypatch").setenv("TIKTOKEN_CACHE_DIR", str(shared / "tiktoken_cache"))


def test_gpt2_is_the_published_vocabulary(request: pytest.FixtureRequest) -> None:
    _use_shared_files(request)
    tokenizer = load_tokenizer("gpt2")
    assert (tokenizer.n_vocab, tokenizer.eot_token) == (50257, 50256)
    assert encode_document(tokenizer, "Hello world").tolist() == [50256, 15496, 995]


@pytest.mark.parametrize("name", ["bytes", "gpt2"])
@pytest.mark.parametrize("run", ["a", " ", "\n", "=", "é", " a"])
def test_a_very_long_run_of_one_character(name: str, run: str, request: pytest.FixtureRequest) -> None:
    """A merge that is quadratic in the length of a run would take hours for a million."""
    if name == "gpt2":
        _use_shared_files(request)
    tokenizer = load_tokenizer(name)
    text = run * 1_000_000 + "b"
    tokens = encode_document(tokenizer, text)
    assert tokenizer.decode_bytes(tokens[1:].tolist()).decode() == text


@pytest.mark.parametrize("run", [" ", "\n", "\t", " \n", "\u3000"])
def test_cuts_in_white_space_change_no_token(run: str, request: pytest.FixtureRequest) -> None:
    _use_shared_files(request)
    tokenizer = load_tokenizer("gpt2")
    for before in ("", "word", "'", "\n \n"):
        for after in ("b", " b", "1", "!", "\x1c", "", "\nb"):
            text = before + run * 3000 + after + run * 2000 + "end"  # short enough to be encoded whole
            parts = split_white_space(text)
            assert len(parts) == 3 - (after == "")
            assert [token for part in parts for token in tokenizer.encode_ordinary(part)] == (
                tokenizer.encode_ordinary(text)
            )


def test_a_run_that_ends_the_text_is_not_cut() -> None:
    assert split_white_space("a" + " " * 3000) == ["a" + " " * 3000]
    assert split_white_space("a" + " " * 900 + "b") == ["a" + " " * 900 + "b"]


def test_type_follows_the_vocabulary() -> None:
    assert token_dtype(50257) == np.uint16
    assert token_dtype(100_277) == np.uint32


def test_unknown_name_is_refused() -> None:
    with pytest.raises(InputError, match="tokenizer = 'gtp2': must be one of bytes, "):
        load_tokenizer("gtp2")


def test_no_files_and_no_connection_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(name: str) -> tiktoken.Encoding:
        raise ConnectionError("a long story")

    monkeypatch.setattr(tiktoken, "get_encoding", unreachable)
    with pytest.raises(InputError, match="TIKTOKEN_CACHE_DIR") as caught:
        load_tokenizer("gpt2")
    assert "\n" not in str(caught.value)
