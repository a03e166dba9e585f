"""Tokenizers, preparation and streaming of text."""

from looplit.data.corpus import Corpus, Split, open_corpus
from looplit.data.module import StandardLibraryText, TokenData
from looplit.data.prepare import prepare_corpus
from looplit.data.tokenizer import load_tokenizer

__all__ = ["Corpus", "Split", "StandardLibraryText", "TokenData", "load_tokenizer", "open_corpus", "prepare_corpus"]
