"""Datasets on the Hugging Face hub, fetched file by file into a folder, with retries."""

from __future__ import annotations

import importlib
import itertools
import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from looplit.data.shards import kind_of
from looplit.errors import InputError

Answer = TypeVar("Answer")

# Two minutes in all without an answer. The hub's client retries by itself: without a network an attempt takes some 23
# seconds. One that takes much longer got somewhere, say into a large file, and is not held against the hub.
PATIENCE_S = 95.0
ATTEMPT_S = 25.0
FIRST_WAIT_S = 1.0  # doubled after every failure
LISTING = "listing.json"
CARD = "README.md"
RETRIED = (408, 425, 429)  # of the statuses that say that the request itself is wrong


class Hub(Protocol):
    """What is asked of the hub."""

    def list_files(self, dataset: str, revision: str, folder: str) -> dict[str, int]:
        """Sizes in bytes of all files below a folder of a dataset, by path within the dataset."""

    def download(self, dataset: str, revision: str, name: str, folder: Path) -> None:
        """Puts a file of a dataset at folder/name."""


class HuggingFaceHub:
    """The hub itself, through huggingface_hub."""

    def list_files(self, dataset: str, revision: str, folder: str) -> dict[str, int]:
        api = _huggingface_hub().HfApi()
        entries = api.list_repo_tree(
            dataset, folder or None, recursive=True, revision=revision, repo_type="dataset"
        )  # fmt: skip
        return {entry.path: entry.size for entry in entries if hasattr(entry, "size")}

    def download(self, dataset: str, revision: str, name: str, folder: Path) -> None:
        _huggingface_hub().hf_hub_download(dataset, name, repo_type="dataset", revision=revision, local_dir=folder)


def _huggingface_hub() -> Any:
    try:
        library = importlib.import_module("huggingface_hub")
    except ModuleNotFoundError as error:
        raise InputError("source: a dataset on the hub needs huggingface_hub (pip install huggingface_hub)") from error
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it warns at each of its own retries
    return library


@dataclass(frozen=True)
class HubDataset:
    """Files of a dataset at one revision, kept in a folder.

    What is in the folder is not asked for again: with the listing and the files there, nothing touches the network.

    Args:
        dataset: "owner/name".
        revision: Commit, tag or branch.
        folder: Where its files are kept, under their paths in the dataset.
        hub: Where they come from.
        offline: Take the files that lie in the folder for the whole dataset.
        wait: Sleeps between attempts.
        clock: Seconds, to time the attempts.
    """

    dataset: str
    revision: str
    folder: Path
    hub: Hub
    offline: bool = False
    wait: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def names(self, prefix: str) -> list[str]:
        """Sorted paths of the text files whose path in the dataset begins with `prefix`.

        Raises:
            InputError: There are none, or the hub cannot be reached.
        """
        names = self._present() if self.offline else self._listing(prefix)
        found = sorted(name for name in names if name.startswith(prefix) and kind_of(name) and not _is_apart(name))
        if not found:
            place = f"in {self.folder} (offline)" if self.offline else f"at revision {self.revision}"
            raise InputError(
                f"source = {'/'.join(filter(None, (self.dataset, prefix)))!r}: no parquet, JSON lines or text {place}"
            )
        return found

    def path(self, name: str) -> Path:
        """Where the file lies; fetches it unless it is there with its size."""
        path = self.folder / name
        if self.offline:
            return path
        size = self._listing(name)[name]
        if not _has_size(path, size):
            self._retry(lambda: self.hub.download(self.dataset, self.revision, name, self.folder))
            if not _has_size(path, size):
                raise InputError(f"{str(path)!r}: the hub gave another size than {size} bytes; delete it and run again")
        return path

    def _present(self) -> list[str]:
        return [path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file()]

    def _listing(self, prefix: str) -> dict[str, int]:
        """Sizes of the files below the prefix' folder, from the folder's own record if the hub was asked before."""
        parent = prefix.rpartition("/")[0]
        record = self.folder / LISTING
        known: dict[str, dict[str, int]] = {}
        if record.is_file():
            known = json.loads(record.read_text(encoding="utf-8"))
        for folder, sizes in known.items():
            if folder in ("", parent) or parent.startswith(f"{folder}/"):
                return sizes
        known[parent] = self._retry(lambda: self.hub.list_files(self.dataset, self.revision, parent))
        self.folder.mkdir(parents=True, exist_ok=True)
        fresh = record.with_name(f"{LISTING}.{os.getpid()}")
        fresh.write_text(json.dumps(known, indent=1), encoding="utf-8")
        fresh.replace(record)
        return known[parent]

    def _retry(self, ask: Callable[[], Answer]) -> Answer:
        spent = 0.0
        for attempt in itertools.count():
            started = self.clock()
            try:
                return ask()
            except InputError:
                raise
            except Exception as error:  # the hub's client raises errors of several libraries
                wait = FIRST_WAIT_S * 2**attempt
                spent += min(self.clock() - started, ATTEMPT_S) + wait
                status = getattr(getattr(error, "response", None), "status_code", None)
                refused = status is not None and 400 <= status < 500 and status not in RETRIED
                if refused or spent > PATIENCE_S:
                    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                    raise InputError(f"source = {self.dataset!r} at {self.revision}: {reason}") from error
                self.wait(wait)
        raise AssertionError("unreachable")


def _is_apart(name: str) -> bool:
    """Whether the file is not text of the dataset: its card, the listing kept here, hidden ones of the hub's client."""
    return name in (CARD, LISTING) or any(part.startswith(".") for part in name.split("/"))


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size
