"""Checkpoints that a kill interrupts, and folders of which something is missing."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint as dcp

from looplit.checkpoints.consolidation import consolidate
from looplit.checkpoints.reading import read_folder
from looplit.checkpoints.saving import WholeFileIO, discard, put_in_place
from looplit.errors import InputError


class Killed(BaseException):
    """A SIGKILL, as far as files can tell."""


def killed_at(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The n-th change of the file system does not happen any more; of a folder to remove one file is gone then."""
    count = itertools.count()

    def until_killed(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(path: Path, *args: Any) -> Any:
            if next(count) == n:
                if change is rmtree:
                    next(iter(sorted(path.iterdir()))).unlink()
                raise Killed
            return change(path, *args)

        return changed

    rmtree = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", until_killed(rmtree))
    monkeypatch.setattr(Path, "rename", until_killed(Path.rename))


def a_folder(path: Path, value: int) -> Path:
    path.mkdir()
    for name in ("a", "b"):
        (path / name).write_text(str(value))
    return path


def whole(path: Path) -> int:
    """What a checkpoint of `a_folder` holds."""
    a, b = ((path / name).read_text() for name in ("a", "b"))
    assert a == b
    return int(a)


@pytest.mark.parametrize("n", range(4))
def test_a_kill_while_a_checkpoint_is_replaced_leaves_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    last = a_folder(tmp_path / "last.ckpt", 1)
    with monkeypatch.context() as patch:
        killed_at(n, patch)
        part = a_folder(tmp_path / "last.ckpt.part", 2)
        with pytest.raises(Killed):
            put_in_place(part, last)
    found = [whole(path) for path in tmp_path.glob("*.ckpt")]  # as the sbatch script searches
    newest = max(tmp_path.glob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns)
    assert whole(newest) == max(found)

    shutil.rmtree(tmp_path / "last.ckpt.part", ignore_errors=True)  # as the next save does
    put_in_place(a_folder(tmp_path / "last.ckpt.part", 3), last)
    assert [whole(path) for path in tmp_path.iterdir()] == [3]


def test_half_of_a_removed_checkpoint_is_taken_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last = a_folder(tmp_path / "last.ckpt", 1)
    killed_at(1, monkeypatch)
    with pytest.raises(Killed):
        discard(last)
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt.part"]


def test_a_file_is_replaced_in_one_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's folder for temporary files may be on another file system, from where a file is copied in time."""
    last = tmp_path / "last.ckpt"
    WholeFileIO().save_checkpoint({"step": 1}, last)
    move = shutil.move

    def half(source: str, target: str) -> None:
        Path(target).write_bytes(Path(source).read_bytes()[:100])
        raise Killed

    monkeypatch.setattr(shutil, "move", half)
    with pytest.raises(Killed):
        WholeFileIO().save_checkpoint({"step": 2}, last)
    assert torch.load(last) == {"step": 1}
    monkeypatch.setattr(shutil, "move", move)
    WholeFileIO().save_checkpoint({"step": 3}, last)
    assert torch.load(last) == {"step": 3}
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    folder = tmp_path / "sharded"
    dcp.save({"state_dict": {"weight": torch.randn(64, 8)}}, checkpoint_id=folder, no_dist=True)
    torch.save({"loops": {}, "global_step": 3}, folder / "meta.pt")
    return folder


def test_a_whole_folder_is_read(sharded: Path) -> None:
    assert read_folder(sharded) == {"loops": {}, "global_step": 3}
    assert consolidate(sharded)["state_dict"]["weight"].shape == (64, 8)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


@pytest.mark.parametrize(
    ("name", "broken", "said"),
    [
        ("*.distcp", Path.unlink, r"broken: its file \S+\.distcp is missing"),
        ("*.distcp", truncated, r"broken: its file \S+\.distcp has \d+ of \d+ bytes"),
        ("meta.pt", truncated, "not a readable checkpoint"),
        ("meta.pt", Path.unlink, "there is no complete sharded checkpoint"),
        (".metadata", truncated, "not a readable checkpoint"),
        (".metadata", Path.unlink, "there is no complete sharded checkpoint"),
    ],
)
def test_a_broken_folder_is_named(sharded: Path, name: str, broken: Callable[[Path], None], said: str) -> None:
    (file,) = sharded.glob(name)
    broken(file)
    with pytest.raises(InputError, match=rf"^ckpt_path = '.*sharded': {said}") as error:
        consolidate(sharded)
    assert "\n" not in str(error.value)
