"""Where text comes from: FineWeb, FineWeb-Edu, datasets on the hub, local files, the embedded corpus."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from looplit.data.hub import Hub, HubDataset, HuggingFaceHub
from looplit.data.shards import Shard, as_documents, kind_of, text_shards
from looplit.data.stdlib import is_validation, standard_library_documents, standard_library_settings
from looplit.errors import InputError, require

FINEWEB = "HuggingFaceFW/fineweb"
FINEWEB_REVISION = "9bb295ddab0e05d785b879661af7260fed5140fc"
FINEWEB_EDU = "HuggingFaceFW/fineweb-edu"
FINEWEB_EDU_REVISION = "87f09149ef4734204d70ed1d046ddc9ca3f2b8f9"
FINEWEB_TOKENS = 10_000_000
FINEWEB_EDU_TOKENS = 10_200_000
SIGNATURE_TOKENS = 64
VALIDATION_PER_MILLE = 10  # of other sources, until there are enough validation tokens


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
    """

    settings: Mapping[str, Any]
    shards: Callable[[], Shards] = field(repr=False)
    val_tokens: int | None = None
    signature_tokens: int | None = 0


def fineweb(folder: Path, hub: Hub | None = None, offline: bool = False) -> Source:
    """FineWeb as the growth study reads it (SPEC section 7): its files are kept in `folder`.

    Validation is the first 10M tokens of `sample/10BT`, training `sample/100BT` without the documents whose first 64
    tokens are those of a validation document.
    """
    files = HubDataset(FINEWEB, FINEWEB_REVISION, folder, hub or HuggingFaceHub(), offline)
    rule = f"first {FINEWEB_TOKENS} tokens of sample/10BT; {SIGNATURE_TOKENS}-token signatures left out of training"
    return Source(
        settings={"source": FINEWEB, "revision": FINEWEB_REVISION, "training": "sample/100BT", "validation": rule},
        shards=lambda: Shards(_hub_shards(files, "sample/100BT/"), _hub_shards(files, "sample/10BT/")),
        val_tokens=FINEWEB_TOKENS,
        signature_tokens=SIGNATURE_TOKENS,
    )


def fineweb_edu(folder: Path, hub: Hub | None = None, offline: bool = False) -> Source:
    """FineWeb-Edu as the growth study reads it: `sample/100BT`, whose first shard is validation only."""
    files = HubDataset(FINEWEB_EDU, FINEWEB_EDU_REVISION, folder, hub or HuggingFaceHub(), offline)

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
    hub: Hub | None = None,
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
        hub: Where it comes from.
        offline: Take the files that lie in the folder.
    """
    owner, _, rest = address.partition("/")
    name, _, prefix = rest.partition("/")
    require(bool(owner and name), "source", address, "a dataset on the hub is called owner/name")
    dataset = f"{owner}/{name}"
    files = HubDataset(dataset, revision, folder, hub or HuggingFaceHub(), offline)
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

    Args:
        path: File or folder.
        column: Name of the text in parquet and JSON lines.
        validation: File or folder of separate validation text.
        val_tokens: Tokens of the validation split at most.
    """
    settings = {"source": path.resolve().name, "training": _inventory(path), "column": column}
    return _with_validation(
        settings,
        lambda: _local_shards(path, column),
        None if validation is None else lambda: _local_shards(validation, column),
        None if validation is None else _inventory(validation),
        val_tokens,
    )


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


def _sample(shard: Shard) -> Shard:
    """The part of a shard's documents that is drawn by their content, so that equal documents go together."""

    def documents() -> pa.LargeStringArray:
        texts = shard.documents()
        drawn = [is_validation(text.as_py() or "", VALIDATION_PER_MILLE) for text in texts]
        return texts.filter(pa.array(np.array(drawn, dtype=bool)))

    return Shard(shard.name, documents)


def _hub_shards(files: HubDataset, prefix: str, column: str = "text") -> list[Shard]:
    return text_shards(files.names(prefix), files.path, column)


def _local_shards(path: Path, column: str) -> list[Shard]:
    files = _files(path)
    return text_shards(list(files), files.__getitem__, column)


def _files(path: Path) -> dict[str, Path]:
    """The text files of a folder, or the file itself, by relative name in order.

    Raises:
        InputError: There is no such path, or nothing in it that can be read.
    """
    require(path.exists(), "source", str(path), "there is no such file or folder")
    if path.is_file():
        files = {path.name: path}
    else:
        files = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()}
    readable = {name: files[name] for name in sorted(files) if kind_of(name)}
    if not readable:
        raise InputError(f"source = {str(path)!r}: holds no parquet, JSON lines or text file")
    return readable


def _inventory(path: Path) -> str:
    """A digest of the names and sizes of the files, so that a changed folder is not taken for the same."""
    lines = [f"{name} {file.stat().st_size}" for name, file in _files(path).items()]
    return f"{len(lines)} files, names and sizes {hashlib.sha256(chr(10).join(lines).encode()).hexdigest()[:16]}"
