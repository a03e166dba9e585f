"""Local text files: which of a folder's files are read, what is left out, and a digest that tells when they change."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from looplit.data.settings import FILES
from looplit.data.shards import kind_of
from looplit.errors import InputError, require


@dataclass(frozen=True)
class LocalFiles:
    """The files of a folder, or a file by itself.

    Args:
        files: Paths of those that are read, by their name within the folder, in order of name.
        left_out: How many files of other kinds there are, by suffix.
    """

    files: dict[str, Path]
    left_out: dict[str, int]

    def inventory(self) -> str:
        """A digest of the files' names, sizes and times of modification, so that changed text is not taken for old.

        The contents are not read: they may be terabytes. So a copy that sets new times (cp, git clone) counts as
        changed, one that keeps them (cp -p, rsync -a) and a folder that was moved do not.
        """
        digest = hashlib.sha256()
        for name, path in self.files.items():
            status = path.stat()
            digest.update(os.fsencode(f"{name} {status.st_size} {status.st_mtime_ns}\n"))
        return f"{len(self.files)} files, {FILES}{digest.hexdigest()[:16]}"


def find_files(path: Path, argument: str = "source") -> LocalFiles:
    """Finds the text files in a folder and its subfolders, or takes the file itself.

    Links are followed; each folder is read once, also where links lead to it again. Hidden files and folders, whose
    names begin with a dot, are not text.

    Args:
        path: File or folder.
        argument: What the path was given as.

    Raises:
        InputError: There is no such path, nothing in it that can be read, or a text file that is a broken link.
        OSError: A folder cannot be read.
    """
    require(path.exists(), argument, str(path), "there is no such file or folder")
    found = {path.name: path} if path.is_file() else {_name(file, path): file for file in _walk(path)}
    readable = {name: found[name] for name in sorted(found) if kind_of(name)}
    left_out = dict(Counter(Path(name).suffix for name in sorted(found) if not kind_of(name)))
    if not readable:
        line = f"; {describe_left_out(left_out)}" if left_out else ""
        raise InputError(f"{argument} = {str(path)!r}: holds no parquet, JSON lines or text file{line}")
    for file in readable.values():
        require(file.is_file(), argument, str(file), "is not a file, or a link that leads nowhere")
    return LocalFiles(readable, left_out)


def describe_left_out(left_out: dict[str, int]) -> str:
    """What was not read, in a phrase.

    >>> describe_left_out({".csv": 2, "": 1})
    'left out: 3 files (2 .csv, 1 without suffix)'
    """
    kinds = ", ".join(f"{count} {suffix or 'without suffix'}" for suffix, count in left_out.items())
    total = sum(left_out.values())
    return f"left out: {total} file{'s' * (total != 1)} ({kinds})"


def _name(file: Path, folder: Path) -> str:
    return file.relative_to(folder).as_posix()


def _walk(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise error  # which os.walk would pass over

    seen: set[tuple[int, int]] = set()
    for root, folders, names in os.walk(folder, followlinks=True, onerror=refuse):
        status = os.stat(root)
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(root, name) for name in names if not name.startswith("."))
