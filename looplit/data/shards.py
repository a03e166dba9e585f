"""Input files as shards: their documents in file order, from parquet, JSON lines or plain text."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from looplit.errors import InputError

# Of JSON lines and text (parquet compresses by itself), as Arrow calls them.
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
JSON_SUFFIXES = (".jsonl", ".json", ".ndjson")
TEXT_SUFFIXES = (".txt", ".text", ".md")
BYTE_ORDER_MARK = "\ufeff"  # as some editors begin a file
TEXTS_PER_SHARD = 10_000  # text files hold one document each; a shard is what is mixed and read at once


@dataclass(frozen=True)
class Shard:
    """A part of a source that is read at once.

    Args:
        name: What it is called in the manifest.
        documents: Reads its documents, in file order. Null is an empty document.
    """

    name: str
    documents: Callable[[], pa.LargeStringArray]


def kind_of(path: Path | str) -> str | None:
    """ "parquet", "json" or "text" by the file name, None for any other file.

    >>> kind_of("000_00000.parquet"), kind_of("a.jsonl.gz"), kind_of("b.TXT"), kind_of("c.bin")
    ('parquet', 'json', 'text', None)
    """
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes[-1:] == [".parquet"]:
        return "parquet"
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    last = suffixes[-1] if suffixes else ""
    return "json" if last in JSON_SUFFIXES else "text" if last in TEXT_SUFFIXES else None


def as_documents(texts: Iterable[str | None]) -> pa.LargeStringArray:
    """The texts as an Arrow array, a fraction of the size of Python strings."""
    return pa.array((None if text is None else _well_formed(text) for text in texts), type=pa.large_string())


def text_shards(names: Sequence[str], path_of: Callable[[str], Path], column: str) -> list[Shard]:
    """Shards of files, in order of name; text files, one document each, come together in shards of 10,000 at most.

    Args:
        names: File names, sorted.
        path_of: Gives the path of a name, when its shard is read (and fetches the file then, if need be).
        column: Name of the text in parquet and JSON lines.
    """
    texts = [name for name in names if kind_of(name) == "text"]
    shards = [
        Shard(name, _reader(name, path_of, column)) for name in names if kind_of(name) in ("parquet", "json")
    ]  # fmt: skip
    for start in range(0, len(texts), TEXTS_PER_SHARD):
        group = texts[start : start + TEXTS_PER_SHARD]
        shards.append(Shard(f"{group[0]} … {group[-1]}" if len(group) > 1 else group[0], _text_reader(group, path_of)))
    return shards


def _reader(name: str, path_of: Callable[[str], Path], column: str) -> Callable[[], pa.LargeStringArray]:
    def documents() -> pa.LargeStringArray:
        path = path_of(name)
        with _errors_name(path):
            return _read_parquet(path, column) if kind_of(name) == "parquet" else as_documents(_read_json(path, column))

    return documents


def _text_reader(names: Sequence[str], path_of: Callable[[str], Path]) -> Callable[[], pa.LargeStringArray]:
    return lambda: as_documents(_read_text(path_of(name)) for name in names)


@contextmanager
def _errors_name(path: Path) -> Iterator[None]:
    """What Arrow and the disk have against a file, in one line with its name."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise InputError(f"{str(path)!r}: cannot be read as UTF-8 text ({error})") from error
    except (pa.ArrowException, OSError) as error:
        kind = "parquet" if kind_of(path) == "parquet" else "text"
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"{str(path)!r}: no whole {kind} file ({reason})") from error


def _read_parquet(path: Path, column: str) -> pa.LargeStringArray:
    file = pq.ParquetFile(path)
    names = file.schema_arrow.names
    if names.count(column) != 1:
        has = (
            f"has the columns {', '.join(names)}" if column not in names else f"has {names.count(column)} of that name"
        )
        raise InputError(f"column = {column!r}: {path} {has}")
    texts = file.read([column]).column(0)
    if not _is_text(texts.type):
        raise InputError(f"column = {column!r}: holds {texts.type} in {path}, not text")
    texts = texts.cast(pa.large_string()).combine_chunks()
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InputError(f"{str(path)!r}: column {column!r} cannot be read as UTF-8 text ({error})") from error
    return texts


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    return any(test(kind) for test in tests)


def _read_json(path: Path, column: str) -> Iterator[str | None]:
    with _stream(path) as stream, io.TextIOWrapper(stream, "utf-8") as lines:
        for number, line in enumerate(lines, 1):
            text = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
            if text.strip():
                yield _text_of(text, column, f"{str(path)!r}, line {number}")


def _text_of(line: str, column: str, place: str) -> str | None:
    try:
        text = json.loads(line)[column]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{place}: no JSON object with the key {column!r}") from error
    if not isinstance(text, str | None):
        raise InputError(f"{place}: {column!r} is not text")
    return text


def _read_text(path: Path) -> str:
    with _errors_name(path), _stream(path) as stream:
        text: str = stream.read().decode("utf-8")
        return text.removeprefix(BYTE_ORDER_MARK)


def _stream(path: Path) -> Any:
    return pa.input_stream(str(path), compression=COMPRESSIONS.get(path.suffix.lower()))


def _well_formed(text: str) -> str:
    """The text, with a lone surrogate (which JSON can spell and UTF-8 cannot) replaced as tiktoken replaces it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
