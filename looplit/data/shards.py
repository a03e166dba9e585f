"""Input files as shards: their documents in file order, from parquet, JSON lines or plain text."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from looplit.errors import InputError

COMPRESSIONS = (".gz", ".zst", ".bz2")  # of JSON lines and text; parquet compresses by itself
JSON_SUFFIXES = (".jsonl", ".json", ".ndjson")
TEXT_SUFFIXES = (".txt", ".text", ".md")
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
    read = _read_parquet if kind_of(name) == "parquet" else _read_json
    return lambda: read(path_of(name), column)


def _text_reader(names: Sequence[str], path_of: Callable[[str], Path]) -> Callable[[], pa.LargeStringArray]:
    return lambda: as_documents(_read_text(path_of(name)) for name in names)


def _read_parquet(path: Path, column: str) -> pa.LargeStringArray:
    try:
        file = pq.ParquetFile(path)
        names = file.schema_arrow.names
        if column not in names:
            raise InputError(f"column = {column!r}: {path} has the columns {', '.join(names)}")
        texts = file.read([column]).column(0)
        if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
            raise InputError(f"column = {column!r}: holds {texts.type} in {path}, not text")
        texts = texts.cast(pa.large_string()).combine_chunks()
    except pa.ArrowInvalid as error:
        raise InputError(f"{str(path)!r}: no whole parquet file ({_first_line(error)})") from error
    return texts


def _read_json(path: Path, column: str) -> pa.LargeStringArray:
    def texts() -> Iterator[str | None]:
        for number, line in enumerate(_lines(path), 1):
            try:
                text = json.loads(line)[column] if line.strip() else False
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(f"{str(path)!r}, line {number}: no JSON object with the key {column!r}") from error
            if text is not False:
                if not isinstance(text, str | None):
                    raise InputError(f"{str(path)!r}, line {number}: {column!r} is no text")
                yield text

    return as_documents(texts())


def _lines(path: Path) -> Iterator[str]:
    with pa.input_stream(str(path), compression="detect") as stream, io.TextIOWrapper(stream, "utf-8") as lines:
        try:
            yield from lines
        except (UnicodeDecodeError, OSError) as error:
            raise InputError(f"{str(path)!r}: cannot be read as UTF-8 text ({_first_line(error)})") from error


def _read_text(path: Path) -> str:
    with pa.input_stream(str(path), compression="detect") as stream:
        try:
            text: str = stream.read().decode("utf-8")
        except (UnicodeDecodeError, OSError) as error:
            raise InputError(f"{str(path)!r}: cannot be read as UTF-8 text ({_first_line(error)})") from error
        return text


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _well_formed(text: str) -> str:
    """The text, with a lone surrogate (which JSON can spell and UTF-8 cannot) replaced as tiktoken replaces it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
