"""Datasets on the Hugging Face hub, fetched file by file into a folder by the hub's own client."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from looplit.data.shards import kind_of
from looplit.errors import InputError, require

Answer = TypeVar("Answer")

# Between attempts. The client retries by itself, too: without a network each of its attempts takes some 23 seconds, so
# that there is an answer within two minutes.
WAITS_S = (1.0, 4.0, 16.0)
LISTING = "listing.json"
CARD = "README.md"
RETRIED = (408, 425, 429)  # of the statuses that say that the request itself is wrong


@dataclass(frozen=True)
class HubDataset:
    """Files of a dataset at one revision, kept in a folder.

    What is in the folder is not asked for again: with the listing and the files there, nothing touches the network. A
    file lies there only when it is whole.

    Args:
        dataset: "owner/name".
        revision: Commit, tag or branch.
        folder: Where its files are kept, under their paths in the dataset.
        offline: Take the files that lie in the folder for the whole dataset.
    """

    dataset: str
    revision: str
    folder: Path
    offline: bool = False

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
            self._ask(lambda: self._download(name))
            rule = f"the hub gave another size than {size} bytes; delete it and {LISTING} and run again"
            require(_has_size(path, size), "source", str(path), rule)
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
        known[parent] = self._ask(lambda: self._sizes(parent))
        self.folder.mkdir(parents=True, exist_ok=True)
        fresh = record.with_name(f"{LISTING}.{os.getpid()}")
        fresh.write_text(json.dumps(known, indent=1), encoding="utf-8")
        fresh.replace(record)
        return known[parent]

    def _sizes(self, folder: str) -> dict[str, int]:
        from huggingface_hub import HfApi
        from huggingface_hub.hf_api import RepoFile

        tree = HfApi().list_repo_tree(
            self.dataset, folder or None, recursive=True, revision=self.revision, repo_type="dataset"
        )  # fmt: skip
        return {entry.path: entry.size for entry in tree if isinstance(entry, RepoFile)}

    def _download(self, name: str) -> None:
        from huggingface_hub import hf_hub_download

        (self.folder / name).unlink(missing_ok=True)  # of another size: damaged, but the client would leave it
        hf_hub_download(self.dataset, name, repo_type="dataset", revision=self.revision, local_dir=self.folder)

    def _ask(self, question: Callable[[], Answer]) -> Answer:
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # the client warns at each of its own retries
        for wait in (*WAITS_S, None):
            try:
                return question()
            except Exception as error:  # of the client, its HTTP library and the system
                reason, is_final = _reason(error.__cause__ if isinstance(error, FileNotFoundError) else error)
                if wait is None or is_final:
                    raise InputError(f"source = {self.dataset!r} at {self.revision}: {reason}") from error
            time.sleep(wait)
        raise AssertionError("unreachable")


def _reason(error: BaseException | None) -> tuple[str, bool]:
    """One line on what is wrong, and whether to ask again would change nothing."""
    from huggingface_hub import errors

    for kind, line in (
        (errors.OfflineModeIsEnabled, "HF_HUB_OFFLINE is set, and its files are not all there (--offline: take those)"),
        (errors.GatedRepoError, "its terms must be accepted on the hub, and you be logged in (hf auth login)"),
        (errors.RepositoryNotFoundError, "no such dataset, or one that you must be logged in for (hf auth login)"),
        (errors.RevisionNotFoundError, "no such revision"),
        (errors.EntryNotFoundError, "no such folder"),
    ):
        if isinstance(error, kind):
            return line, True
    status = getattr(getattr(error, "response", None), "status_code", None)
    refused = status is not None and 400 <= status < 500 and status not in RETRIED
    return (str(error).strip() or type(error).__name__).splitlines()[0], refused or isinstance(
        error, errors.HFValidationError
    )


def _is_apart(name: str) -> bool:
    """Whether the file is not text of the dataset: its card, the listing kept here, hidden ones of the hub's client."""
    return name in (CARD, LISTING) or any(part.startswith(".") for part in name.split("/"))


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size
