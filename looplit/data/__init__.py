"""Tokenizers, preparation and streaming of text.

Public names load on first use: the processes that tokenize must start quickly and need neither torch nor Lightning.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOME = {
    "Corpus": "looplit.data.corpus",
    "FineWeb": "looplit.data.module",
    "FineWebEdu": "looplit.data.module",
    "Source": "looplit.data.sources",
    "Split": "looplit.data.corpus",
    "StandardLibraryText": "looplit.data.module",
    "TextFolder": "looplit.data.module",
    "TokenData": "looplit.data.module",
    "load_tokenizer": "looplit.data.tokenizer",
    "open_corpus": "looplit.data.corpus",
    "prepare_corpus": "looplit.data.prepare",
}

__all__ = [
    "Corpus",
    "FineWeb",
    "FineWebEdu",
    "Source",
    "Split",
    "StandardLibraryText",
    "TextFolder",
    "TokenData",
    "load_tokenizer",
    "open_corpus",
    "prepare_corpus",
]

if TYPE_CHECKING:
    from looplit.data.corpus import Corpus as Corpus
    from looplit.data.corpus import Split as Split
    from looplit.data.corpus import open_corpus as open_corpus
    from looplit.data.module import FineWeb as FineWeb
    from looplit.data.module import FineWebEdu as FineWebEdu
    from looplit.data.module import StandardLibraryText as StandardLibraryText
    from looplit.data.module import TextFolder as TextFolder
    from looplit.data.module import TokenData as TokenData
    from looplit.data.prepare import prepare_corpus as prepare_corpus
    from looplit.data.sources import Source as Source
    from looplit.data.tokenizer import load_tokenizer as load_tokenizer


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'looplit.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
