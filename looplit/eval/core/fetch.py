"""The published bundle: found locally, or downloaded once into a cache and verified."""

from __future__ import annotations

import os
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from looplit.data.remote import user_cache_folder
from looplit.errors import InputError, require
from looplit.eval.core.bundle import PUBLISHED_FINGERPRINT, Bundle, fingerprint, open_bundle
from looplit.eval.core.processes import from_first, rank_and_world

BUNDLE_URL = "https://karpathy-public.s3.us-west-2.amazonaws.com/eval_bundle.zip"
ARCHIVE = "eval_bundle.zip"
RETRIES = 3
MOST_BYTES = 2**31  # unpacked; the published bundle has a fraction of that
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
    import pooch

    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".eval_bundle-", dir=folder.parent) as scratch:
        archives = pooch.create(scratch, "", registry={ARCHIVE: None}, urls={ARCHIVE: url}, retry_if_failed=RETRIES)
        try:
            archive = archives.fetch(ARCHIVE, downloader=_downloader())
        except OSError as error:  # of the HTTP library, too
            raise InputError(
                f"bundle: {url} could not be downloaded ({error}); unpack {ARCHIVE} so that "
                f"{folder / 'core.yaml'} exists, or give its folder with --bundle"
            ) from error
        root = _unpack(Path(archive), Path(scratch) / "unpacked")
        found = fingerprint(root)
        require(found == expected, "bundle", found, f"the content of {url} must have the fingerprint {expected}")
        try:
            os.replace(root, folder)
        except OSError:
            if not folder.exists():  # else another process was first, with the same content
                raise


def _downloader() -> Callable[..., None]:
    from pooch import HTTPDownloader, get_logger
    from tqdm import tqdm

    get_logger().setLevel("WARNING")
    bar = tqdm(total=0, unit="B", unit_scale=True, desc=ARCHIVE, disable=None, leave=False)
    downloader: Callable[..., None] = HTTPDownloader(progressbar=bar, chunk_size=_CHUNK_BYTES, timeout=_TIMEOUT_S)
    return downloader


def _unpack(archive: Path, into: Path) -> Path:
    """The folder with `core.yaml` among the files of a zip archive."""
    try:
        with zipfile.ZipFile(archive) as packed:
            members = packed.infolist()
            for member in members:
                path = PurePosixPath(member.filename)
                inside = (
                    not path.is_absolute() and ".." not in path.parts and not stat.S_ISLNK(member.external_attr >> 16)
                )
                require(inside, "bundle", member.filename, "this path in the archive leaves the bundle")
            n_bytes = sum(member.file_size for member in members)
            require(n_bytes <= MOST_BYTES, "bundle", n_bytes, f"an archive must hold at most {MOST_BYTES} bytes")
            packed.extractall(into)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise InputError(f"bundle: what was downloaded is not a zip archive ({error})") from error
    found = next((path for path in sorted(into.rglob("core.yaml"))), None)
    if found is None:
        raise InputError("bundle: the downloaded archive holds no core.yaml")
    return found.parent
