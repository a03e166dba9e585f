"""Where text comes from: FineWeb, FineWeb-Edu, datasets on the hub, local files, the embedded corpus."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from looplit.data.files import LocalFiles, find_files
from looplit.data.hub import HubDataset
from looplit.data.shards import Shard, as_documents, kind_of, text_shards
from looplit.data.stdlib import is_validation, standard_library_documents, standard_library_settings
from looplit.errors import require

FINEWEB = "HuggingFaceFW/fineweb"
FINEWEB_REVISION = "9bb295ddab0e05d785b879661af7260fed5140fc"
FINEWEB_EDU = "HuggingFaceFW/fineweb-edu"
FINEWEB_EDU_REVISION = "87f09149ef4734204d70ed1d046ddc9ca3f2b8f9"
FINEWEB_TOKENS = 10_000_000
FINEWEB_EDU_TOKENS = 10_200_000
SIGNATURE_TOKENS = 64
VALIDATION_PER_MILLE = 10  # of other sources, until there are enough validation tokens
ENOUGH_DOCUMENTS = 1000  # for a sample of them: with fewer, none may be drawn (e^-10 at 1000, a third at 100)
LAST_SHARE = 0.05  # of every text, where there are too few to sample


@dataclass(frozen=True)
class Shards:
    """The shards of both splits, in reading order."""

    training: Sequence[Shard]
    validation: Sequence[Shard]


@dataclass(frozen=True)
class Source:
    """Text, and the rule that makes its validation split.

    Args:
        settings: What decides the text: name, revision, validation rule. They are kept in the manifest.
        shards: Finds the shards. Asked only when a corpus is to be prepared.
        val_tokens: Tokens of the validation split at most; None for all.
        signature_tokens: A training document is left out if its first so many tokens, `<|endoftext|>` aside, equal
            those of a validation document. None for whole documents, 0 to leave none out.
        left_out: Files that lie with the text and are of no kind that is read, counted by suffix.
    """

    settings: Mapping[str, Any]
    shards: Callable[[], Shards] = field(repr=False)
    val_tokens: int | None = None
    signature_tokens: int | None = 0
    left_out: Mapping[str, int] = field(default_factory=dict)


def fineweb(folder: Path, offline: bool = False) -> Source:
    """FineWeb as the growth study reads it (SPEC section 7): its files are kept in `folder`.

    Validation is the first 10M tokens of `sample/10BT`, training `sample/100BT` without the documents whose first 64
    tokens are those of a validation document.
    """
    files = HubDataset(FINEWEB, FINEWEB_REVISION, folder, offline)
    rule = f"first {FINEWEB_TOKENS} tokens of sample/10BT; {SIGNATURE_TOKENS}-token signatures left out of training"
    return Source(
        settings={"source": FINEWEB, "revision": FINEWEB_REVISION, "training": "sample/100BT", "validation": rule},
        shards=lambda: Shards(_hub_shards(files, "sample/100BT/"), _hub_shards(files, "sample/10BT/")),
        val_tokens=FINEWEB_TOKENS,
        signature_tokens=SIGNATURE_TOKENS,
    )


def fineweb_edu(folder: Path, offline: bool = False) -> Source:
    """FineWeb-Edu as the growth study reads it: `sample/100BT`, whose first shard is validation only."""
    files = HubDataset(FINEWEB_EDU, FINEWEB_EDU_REVISION, folder, offline)

    def shards() -> Shards:
        first, *others = _hub_shards(files, "sample/100BT/")
        return Shards(others, [first])

    rule = f"first {FINEWEB_EDU_TOKENS} tokens of the first shard, which is left out of training"
    return Source(
        settings={
            "source": FINEWEB_EDU, "revision": FINEWEB_EDU_REVISION, "training": "sample/100BT", "validation": rule,
        },
        shards=shards,
        val_tokens=FINEWEB_EDU_TOKENS,
    )  # fmt: skip


def hub_dataset(
    address: str,
    folder: Path,
    *,
    revision: str = "main",
    column: str = "text",
    validation: str | None = None,
    val_tokens: int = FINEWEB_TOKENS,
    offline: bool = False,
) -> Source:
    """A dataset on the hub: "owner/name", or "owner/name/data/train-" for the files whose paths begin so.

    Args:
        address: As above.
        folder: Where its files are kept.
        revision: Commit, tag or branch.
        column: Name of the text.
        validation: Beginning of the paths of separate validation files in the same dataset.
        val_tokens: Tokens of the validation split at most.
        offline: Take the files that lie in the folder.
    """
    owner, _, rest = address.partition("/")
    name, _, prefix = rest.partition("/")
    require(bool(owner and name), "source", address, "a dataset on the hub is called owner/name")
    dataset = f"{owner}/{name}"
    files = HubDataset(dataset, revision, folder, offline)
    settings = {"source": dataset, "revision": revision, "training": prefix, "column": column}
    return _with_validation(
        settings,
        lambda: _hub_shards(files, prefix, column),
        None if validation is None else lambda: _hub_shards(files, validation, column),
        validation,
        val_tokens,
    )


def local_files(
    path: Path, *, column: str = "text", validation: Path | None = None, val_tokens: int = FINEWEB_TOKENS
) -> Source:
    """A file, or all files below a folder: parquet, JSON lines (also .gz, .zst, .bz2) or text (a document per file).

    Which files of a folder are read: `find_files`. Validation is, if no separate files are given, a sample of the
    documents by their hash. Fewer than 1000 text files and nothing else would give too few: there it is the end of
    every text, 5 % or what has `val_tokens` bytes in all.

    Args:
        path: File or folder.
        column: Name of the text in parquet and JSON lines.
        validation: File or folder of separate validation text.
        val_tokens: Tokens of the validation split at most.
    """
    found = find_files(path)
    settings = {"source": path.resolve().name, "training": found.inventory(), "column": column}
    if validation is not None:
        held_out = find_files(validation, "validation")
        source = _with_validation(
            settings,
            lambda: _local_shards(found, column),
            lambda: _local_shards(held_out, column),
            held_out.inventory(),
            val_tokens,
        )
    elif len(found.files) < ENOUGH_DOCUMENTS and all(kind_of(name) == "text" for name in found.files):
        source = _with_ends(settings, found, val_tokens)
    else:
        source = _with_validation(settings, lambda: _local_shards(found, column), None, None, val_tokens)
    return replace(source, left_out=found.left_out)


def standard_library() -> Source:
    """The embedded corpus, split by the names of its documents."""

    def shards() -> Shards:
        documents = list(standard_library_documents())
        held_out = [is_validation(document.name) for document in documents]
        training = [document.text for document, out in zip(documents, held_out, strict=True) if not out]
        validation = [document.text for document, out in zip(documents, held_out, strict=True) if out]
        return Shards([texts_shard("training", training)], [texts_shard("validation", validation)])

    return Source(standard_library_settings(), shards)


def texts_shard(name: str, texts: Sequence[str]) -> Shard:
    """A shard of texts in memory."""
    return Shard(name, lambda: as_documents(texts))


def _with_validation(
    settings: Mapping[str, Any],
    training: Callable[[], list[Shard]],
    validation: Callable[[], list[Shard]] | None,
    rule: str | None,
    val_tokens: int,
) -> Source:
    """Validation from separate files, which `rule` names, or from a sample of the training documents; none in both."""
    rule = rule or f"documents whose SHA-256 mod 1000 is below {VALIDATION_PER_MILLE}"

    def shards() -> Shards:
        found = training()
        return Shards(found, [_sample(shard) for shard in found] if validation is None else validation())

    return Source({**settings, "validation": rule}, shards, val_tokens, signature_tokens=None)


def _with_ends(settings: Mapping[str, Any], found: LocalFiles, val_tokens: int) -> Source:
    """Validation from the ends of the texts, training from the rest.

    The share is counted in bytes, of which there are at least as many as tokens: the budget cuts off no more than the
    `<|endoftext|>` of the ends add (of compressed texts, whose bytes are fewer, some of the ends).
    """
    text_bytes = sum(path.stat().st_size for path in found.files.values())
    share = min(LAST_SHARE, val_tokens / max(1, text_bytes))

    def parts(of_validation: bool) -> list[Shard]:
        shards = _local_shards(found, "")
        return [Shard(shard.name, partial(_parts, shard, share, of_validation)) for shard in shards]

    rule = f"the last {share:.4%} of every text"
    return Source(
        {**settings, "validation": rule}, lambda: Shards(parts(False), parts(True)), val_tokens, signature_tokens=None
    )


def _parts(shard: Shard, share: float, of_validation: bool) -> pa.LargeStringArray:
    """The end of every text, where there is one, or all before it."""
    texts = [text.as_py() for text in shard.documents()]
    cuts = [len(text) - int(share * len(text)) for text in texts]
    if of_validation:
        return as_documents(text[cut:] for text, cut in zip(texts, cuts, strict=True) if cut < len(text))
    return as_documents(text[:cut] for text, cut in zip(texts, cuts, strict=True))


def _sample(shard: Shard) -> Shard:
    """The part of a shard's documents that is drawn by their content, so that equal documents go together."""

    def documents() -> pa.LargeStringArray:
        texts = shard.documents()
        drawn = [is_validation(text.as_py() or "", VALIDATION_PER_MILLE) for text in texts]
        return texts.filter(pa.array(np.array(drawn, dtype=bool)))

    return Shard(shard.name, documents)


def _hub_shards(files: HubDataset, prefix: str, column: str = "text") -> list[Shard]:
    return text_shards(files.names(prefix), files.path, column)


def _local_shards(found: LocalFiles, column: str) -> list[Shard]:
    return text_shards(list(found.files), found.files.__getitem__, column)
