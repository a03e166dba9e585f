"""The folder in which a corpus is prepared, until one rename publishes it."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from looplit.data.settings import first_difference
from looplit.errors import InputError

LOCK = "lock"
SETTINGS = "settings.json"
STATE = "state.npz"
CORPUS = "corpus"


@contextmanager
def staging_folder(folder: Path, settings: Mapping[str, Any], resume: bool) -> Iterator[Path]:
    """A folder beside `folder` for this process alone: CORPUS in it is what `publish` renames, STATE allows a resume.

    A lock that ends with its process tells a folder in use from one that was left behind by a process that was killed.
    `resume` continues what was left behind with equal settings; work of other settings is refused, or left where it
    is. Without `resume` it is removed, and a line on standard error says so. Only what this machine made is ever
    removed: of another machine's lock, network file systems may know nothing. If the block fails, the folder stays if
    it has a STATE.

    Raises:
        InputError: There is work to resume, but of other settings only.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    found = _from_left_behind(folder, settings, resume)
    working, lock = found or _create(folder, json.dumps(settings, sort_keys=True))
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


def _from_left_behind(folder: Path, settings: Mapping[str, Any], resume: bool) -> tuple[Path, int] | None:
    """The folder to continue and its lock, if there is one; removes what is not to be kept of the others."""
    left = dict(_left_behind(folder))
    try:
        kept = _to_continue(folder, settings, left) if resume else None
        for path in left:
            if not (resume and _has_work(path)) and path.name.startswith(_prefix(folder, platform.node())):
                if _has_work(path):
                    line = f"removed an interrupted preparation, {path} (--resume continues one of the same settings)"
                    print(f"looplit: {line}", file=sys.stderr)
                shutil.rmtree(path, ignore_errors=True)
        return None if kept is None else (kept, left.pop(kept))
    finally:
        for lock in left.values():
            os.close(lock)


def _to_continue(folder: Path, settings: Mapping[str, Any], left: Iterable[Path]) -> Path | None:
    differences = {path: first_difference(settings, _settings(path)) for path in left if _has_work(path)}
    for path, difference in differences.items():
        if difference is None:
            return path
    for path, difference in differences.items():
        raise InputError(
            f"folder = {str(folder)!r}: the interrupted preparation {path.name} is one of {difference}; resume it with "
            "its own settings, or prepare without --resume, which removes it"
        )
    return None


def _has_work(path: Path) -> bool:
    return (path / STATE).exists()


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


def _settings(path: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((path / SETTINGS).read_text(encoding="utf-8"))
    return settings
