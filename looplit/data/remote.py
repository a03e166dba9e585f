"""Corpora in an object store: addresses that LitData can read, and where their files are kept here."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from looplit.errors import InputError

# "local:" is a folder treated as an object store: its chunks are copied to the cache, as is wise for a slow disk.
PREFIXES = ("s3://", "gs://", "azure://", "r2://", "local:")


def is_remote(folder: Path | str) -> bool:
    """Whether `folder` is an address in an object store.

    >>> is_remote("s3://bucket/fineweb"), is_remote("data/fineweb")
    (True, False)
    """
    return str(folder).startswith(PREFIXES)


def user_cache_folder() -> Path:
    """Where LoopLit keeps what it can make again: $XDG_CACHE_HOME/looplit or ~/.cache/looplit."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "looplit"


def cache_folder(address: str, manifest: bytes) -> Path:
    """The folder of this address and content; LitData deletes chunks there, and nowhere else, when space is short."""
    key = hashlib.sha256(address.encode() + b"\0" + manifest).hexdigest()[:16]
    folder = user_cache_folder() / "streaming" / key
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def fetched(address: str, name: str) -> Iterator[Path]:
    """A copy of a file below the address, for the time of the block; it may be moved away.

    Raises:
        InputError: It is not there, or the store cannot be reached.
    """
    from litdata.streaming.downloader import get_downloader

    root = user_cache_folder() / "streaming"
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root) as folder:
        path = Path(folder) / Path(name).name
        try:
            get_downloader(address, folder, []).download_file(f"{address.rstrip('/')}/{name}", str(path))
        except Exception as error:  # the stores' clients raise errors of several libraries
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(f"folder = {address!r}: {name} cannot be fetched ({reason})") from error
        if not path.is_file():
            raise InputError(f"folder = {address!r}: {name} cannot be fetched")
        yield path
