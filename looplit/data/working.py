"""The folder in which a corpus is prepared, until one rename publishes it."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LOCK = "lock"
SETTINGS = "settings.json"
STATE = "state.npz"
CORPUS = "corpus"


@contextmanager
def working_folder(folder: Path, settings: Mapping[str, Any], resume: bool) -> Iterator[Path]:
    """A folder beside `folder` for this process alone: CORPUS in it is what `publish` renames, STATE allows a resume.

    A lock that ends with its process tells a folder in use from one that was left behind by a process that was killed.
    What was left behind is continued (`resume`, equal settings); otherwise it is removed if this machine made it: of
    another machine's lock, network file systems may know nothing. If the block fails, the folder stays if it has a
    STATE.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(settings, sort_keys=True)
    working: Path | None = None
    lock = -1
    for path, descriptor in _left_behind(folder):
        if resume and working is None and _read(path / SETTINGS) == text:
            working, lock = path, descriptor
        else:
            if path.name.startswith(_prefix(folder, platform.node())):
                shutil.rmtree(path, ignore_errors=True)
            os.close(descriptor)
    if working is None:
        working, lock = _create(folder, text)
    try:
        yield working
    except BaseException:
        if not (working / STATE).exists():
            shutil.rmtree(working, ignore_errors=True)
        raise
    else:
        shutil.rmtree(working, ignore_errors=True)
    finally:
        os.close(lock)


def publish(working: Path, folder: Path) -> None:
    """Renames the finished corpus to `folder`; if another process was first, its corpus stays."""
    try:
        (working / CORPUS).rename(folder)
    except OSError:
        if not folder.exists():
            raise


def _create(folder: Path, settings: str) -> tuple[Path, int]:
    working = Path(tempfile.mkdtemp(prefix=_prefix(folder, platform.node()), dir=folder.parent))
    (working / CORPUS).mkdir()
    (working / SETTINGS).write_text(settings, encoding="utf-8")
    # Locked before it has its name: no other process can take a folder that is just being made for a forgotten one.
    unnamed = working / f"{LOCK}.new"
    descriptor = os.open(unnamed, os.O_CREAT | os.O_RDWR)
    with suppress(OSError):  # a file system without locks: nobody else can lock it either
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    unnamed.rename(working / LOCK)
    return working, descriptor


def _left_behind(folder: Path) -> Iterator[tuple[Path, int]]:
    """Working folders of `folder` whose process is gone, each with its lock, now ours."""
    for path in sorted(folder.parent.iterdir()):
        if path.name.startswith(_prefix(folder)) and (path / LOCK).is_file():
            descriptor = os.open(path / LOCK, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                continue
            yield path, descriptor


def _prefix(folder: Path, machine: str | None = None) -> str:
    return f".{folder.name}.preparing-" + (f"{machine}-" if machine is not None else "")


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None
