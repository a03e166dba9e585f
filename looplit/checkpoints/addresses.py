"""Files of checkpoints at addresses (s3://, https://, …)."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning.fabric.utilities.cloud_io import get_filesystem

from looplit.errors import require

SCHEMES = (
    "file", "local", "memory", "http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci",
    "hdfs", "webhdfs", "ftp", "sftp", "ssh", "smb", "dbfs", "hf",
)  # fmt: skip
"""Whose files are taken as they stand there: no others, which unpack, template or cache them in ways of their own."""


def is_address(path: Any) -> bool:
    """Whether it is an address, not a path or an open file.

    >>> is_address("s3://bucket/last.ckpt"), is_address("runs/demo/last.ckpt")
    (True, False)
    """
    return isinstance(path, str | os.PathLike) and "://" in str(path)


def require_scheme(argument: str, address: Any) -> None:
    """Refuses an address of another kind than `SCHEMES`, or one made of several.

    Raises:
        InputError: It is such an address.
    """
    plain = str(address).partition("://")[0] in SCHEMES and "::" not in str(address)
    require(plain, argument, str(address), f"an address must begin with one of {', '.join(SCHEMES)} and ://")


@contextmanager
def opened(path: Any, argument: str) -> Iterator[Any]:
    """The file at an address; a path or an open file as it is.

    Raises:
        InputError: The address is of a kind that is not read.
    """
    if not is_address(path):
        yield path
        return
    require_scheme(argument, path)
    with get_filesystem(path).open(str(path), "rb") as remote:
        if not str(path).startswith(("http://", "https://")):
            yield remote
            return
        with tempfile.TemporaryFile() as copy:  # not every web server sends parts of a file
            shutil.copyfileobj(remote, copy)
            copy.seek(0)
            yield copy
