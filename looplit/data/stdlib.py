"""The embedded corpus: text of the running Python installation, so that a first run needs no download."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
import tokenize
from collections.abc import Iterator
from pathlib import Path
from pydoc_data import topics
from typing import NamedTuple

# Left out: installed packages; tests, which outweigh everything else (17 of 30 MB in Python 3.11) and hold much
# generated data; the character tables of `encodings`; the topics' own source file, whose text comes as documents.
EXCLUDED_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "pydoc_data", "__pycache__"}
)
VALIDATION_PER_MILLE = 50  # 0.7 of 10 MB: enough for a steady loss


class Document(NamedTuple):
    """A text and the name that decides its order and its split."""

    name: str
    text: str


def standard_library_documents() -> Iterator[Document]:
    """Yields the standard library's source files and pydoc's topics, sorted by name.

    What is in it depends on the installation (distributions leave parts out): the Python version is not enough to
    make two corpora equal, their manifests' hashes are.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        relative = path.relative_to(root)
        # _sysconfigdata holds the paths of the machine on which this Python was built.
        if EXCLUDED_FOLDERS.isdisjoint(relative.parts) and not relative.name.startswith("_sysconfigdata"):
            yield Document(relative.as_posix(), _read_source(path))
    for topic in sorted(topics.topics):
        yield Document(f"topics/{topic}", topics.topics[topic])


def _read_source(path: Path) -> str:
    try:
        with tokenize.open(path) as file:  # honours a coding line
            return file.read()
    except (SyntaxError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8", errors="replace")


def is_validation(name: str, per_mille: int = VALIDATION_PER_MILLE) -> bool:
    """Whether the document of that name belongs to the validation split: SHA-256(name) mod 1000 < `per_mille`.

    >>> is_validation("abc.py", per_mille=1000), is_validation("abc.py", per_mille=0)
    (True, False)
    """
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % 1000 < per_mille


def standard_library_settings() -> dict[str, str | int]:
    """What decides the corpus: the part of a prepared folder's key that belongs to this source."""
    return {
        "source": "standard-library",
        "python": sys.version,
        "stdlib": sysconfig.get_paths()["stdlib"],
        "validation_per_mille": VALIDATION_PER_MILLE,
    }
