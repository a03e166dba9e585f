"""The published bundle: found locally, or downloaded once into a cache and verified."""

from __future__ import annotations

import os
import shutil
import tempfile
import urllib.request
import zipfile
from http.client import HTTPException
from pathlib import Path
from typing import IO

from looplit.data.remote import user_cache_folder
from looplit.errors import InputError, require
from looplit.eval.core.bundle import PUBLISHED_FINGERPRINT, Bundle, fingerprint, open_bundle
from looplit.eval.core.processes import from_first, rank_and_world

BUNDLE_URL = "https://karpathy-public.s3.us-west-2.amazonaws.com/eval_bundle.zip"
_CHUNK_BYTES = 2**20
_TIMEOUT_S = 30


def find_bundle(folder: str | Path | None = None) -> Bundle:
    """The bundle in `folder`; without one the published bundle, from the cache or else from its public address.

    Args:
        folder: A bundle of one's own or a copy of the published one.

    Raises:
        InputError: No bundle there; or no download possible, then the line says what to place where.
    """
    if folder is not None:
        return open_bundle(folder)
    cached = user_cache_folder() / "eval_bundle"
    failure = None
    if rank_and_world()[0] == 0 and not cached.exists():
        try:
            download_bundle(cached)
        except InputError as error:
            failure = error
    failure = from_first(failure)  # the other processes wait for the download, and stop with the first
    if failure is not None:
        raise failure
    bundle = open_bundle(cached)
    require(bundle.published, "bundle", str(cached), "differs from the published bundle; delete the folder and rerun")
    return bundle


def download_bundle(folder: Path, url: str = BUNDLE_URL, expected: str = PUBLISHED_FINGERPRINT) -> None:
    """Downloads a bundle into `folder`, which appears only when the whole of it has been verified.

    Args:
        folder: Where the folder that holds `core.yaml` is to lie.
        url: Address of the zip file.
        expected: Fingerprint of the content.

    Raises:
        InputError: No connection, not a bundle, a path in the archive that leaves it, or another fingerprint.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".eval_bundle-", dir=folder.parent) as scratch:
        archive = Path(scratch) / "eval_bundle.zip"
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response, archive.open("wb") as file:
                _copy(response, file, int(response.headers.get("Content-Length") or 0))
        except (OSError, HTTPException) as error:
            raise InputError(
                f"bundle: {url} could not be downloaded ({error}); unpack eval_bundle.zip so that "
                f"{folder / 'core.yaml'} exists, or give its folder with --bundle"
            ) from error
        root = _unpack(archive, Path(scratch) / "unpacked")
        found = fingerprint(root)
        require(found == expected, "bundle", found, f"the content of {url} must have the fingerprint {expected}")
        try:
            os.replace(root, folder)
        except OSError:
            if not folder.exists():  # else another process was first, with the same content
                raise


def _copy(source: IO[bytes], target: IO[bytes], n_bytes: int) -> None:
    from tqdm import tqdm

    received = 0
    with tqdm(total=n_bytes or None, unit="B", unit_scale=True, desc="eval_bundle.zip", disable=None) as bar:
        while chunk := source.read(_CHUNK_BYTES):
            target.write(chunk)
            received += len(chunk)
            bar.update(len(chunk))
    if received < n_bytes:
        raise ConnectionError(f"ended after {received} of {n_bytes} bytes")


def _unpack(archive: Path, into: Path) -> Path:
    """The folder with `core.yaml` among the files of a zip archive."""
    try:
        with zipfile.ZipFile(archive) as packed:
            for member in packed.infolist():
                inside = (into / member.filename).resolve().is_relative_to(into.resolve())
                require(inside, "bundle", member.filename, "this path in the archive leaves the bundle")
            for member in packed.infolist():
                target = into / member.filename
                if member.is_dir():
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                with packed.open(member) as source, target.open("wb") as file:
                    shutil.copyfileobj(source, file)
    except zipfile.BadZipFile as error:
        raise InputError(f"bundle: what was downloaded is not a zip archive ({error})") from error
    found = next((path for path in sorted(into.rglob("core.yaml"))), None)
    if found is None:
        raise InputError("bundle: the downloaded archive holds no core.yaml")
    return found.parent
