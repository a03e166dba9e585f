"""Checkpoints that would run something when they are read: nothing runs, and one line says what was asked for."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

import looplit
from looplit.__main__ import main
from looplit.checkpoints.consolidation import consolidate
from looplit.checkpoints.index import read_index
from looplit.checkpoints.reading import read_file, read_folder, read_tensors
from looplit.errors import InputError

TRAINING = ("fit", "validate", "test", "predict")
MEASURING = ("evaluate", "lens", "passes")


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.marker,)


class Honest(NamedTuple):
    """A run of four steps: its options, its sharded checkpoint, and one file of that."""

    options: list[str]
    folder: Path
    file: Path


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Honest:
    folder = tmp_path_factory.mktemp("run")
    (folder / "small.yaml").write_text(
        f"""\
model: {{class_path: Loop, init_args: {{depth: 3, width: 32, heads: 1, vocabulary: 257, context: 32, steps: 6}}}}
data:
  class_path: StandardLibraryText
  init_args: {{folder: {folder / "corpus"}, context: 32, batch_size: 2, val_tokens: 2000}}
trainer:
  accelerator: cpu
  devices: 1
  max_steps: 4
  limit_val_batches: 1
  limit_predict_batches: 1
  logger: false
  enable_progress_bar: false
"""
    )
    options = ["--config", str(folder / "small.yaml")]
    assert main(["fit", *options, "--trainer.strategy=looplit_fsdp", f"--trainer.default_root_dir={folder}"]) == 0
    (saved,) = folder.glob("**/last.ckpt")
    assert main(["consolidate", str(saved), str(folder / "whole.ckpt")]) == 0
    return Honest(options, saved, folder / "whole.ckpt")


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "marker"


Refused = Callable[..., str]


@pytest.fixture
def refused(
    marker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Refused:
    """Runs a command, which must end with exit code 2 and one line, and run nothing of what it was given."""

    def run(*args: object) -> str:
        monkeypatch.chdir(tmp_path)
        assert main([str(arg) for arg in args]) == 2
        (line,) = (line for line in capfd.readouterr().err.splitlines() if line.startswith("looplit: error:"))
        assert not marker.exists()
        return line

    return run


# --- what is planted


def in_file(honest: Honest, marker: Path) -> Path:
    path = marker.with_name("evil.ckpt")
    torch.save({**torch.load(honest.file), "extra": Payload(marker)}, path)
    return path


def copied(honest: Honest, marker: Path) -> Path:
    return Path(shutil.copytree(honest.folder, marker.with_name("evil")))


def in_index(honest: Honest, marker: Path) -> Path:
    folder = copied(honest, marker)
    index = read_index(folder)
    index.planner_data["extra"] = Payload(marker)
    (folder / ".metadata").write_bytes(pickle.dumps(index))
    return folder


def in_meta(honest: Honest, marker: Path) -> Path:
    folder = copied(honest, marker)
    torch.save({**torch.load(folder / "meta.pt"), "extra": Payload(marker)}, folder / "meta.pt")
    return folder


def in_shard(honest: Honest, marker: Path, prefix: str = "state_dict.", value: bool = True) -> Path:
    """In place of the first tensor or value of some name; as a value, or as a tensor."""
    folder = copied(honest, marker)
    index = read_index(folder)
    name = next(name for name in index.state_dict_metadata if name.startswith(prefix))
    (key,) = (key for key in index.storage_data if key.fqn == name)
    place = index.storage_data.pop(key)
    written = io.BytesIO()
    torch.save(Payload(marker), written)
    with (folder / place.relative_path).open("ab") as file:
        place.offset, place.length = file.tell(), file.write(written.getvalue())
    if value:
        index.state_dict_metadata[name] = BytesStorageMetadata()
        key = MetadataIndex(name)
    index.storage_data[key] = place
    (folder / ".metadata").write_bytes(pickle.dumps(index))
    return folder


def in_setting(honest: Honest, marker: Path) -> Path:
    return in_shard(honest, marker, "optimizer_0.param_groups.0.role")


def in_tensor(honest: Honest, marker: Path) -> Path:
    return in_shard(honest, marker, value=False)


Plant = Callable[[Honest, Path], Path]


@pytest.mark.parametrize("plant", [in_file, in_index, in_meta, in_shard, in_setting])
def test_what_is_planted_runs_under_other_readers(honest: Honest, marker: Path, plant: Plant) -> None:
    """Otherwise the tests below would pass whatever LoopLit does. A tensor's data alone is safe in torch's reader."""
    path = plant(honest, marker)
    if plant in (in_file, in_meta):
        torch.load(path if path.is_file() else path / "meta.pt", weights_only=False)
    else:
        by_torch(path)
    assert marker.is_dir()


def by_torch(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = {}
    planner = _EmptyStateDictLoadPlanner()
    _load_state_dict(state, storage_reader=FileSystemReader(folder), planner=planner, no_dist=True)
    return state


# --- what is refused

ASKED = "not a readable checkpoint (it asks for posix.mkdir; only data is read)"


@pytest.mark.parametrize("command", TRAINING)
@pytest.mark.parametrize("plant", [in_file, in_index, in_meta, in_shard, in_tensor])
def test_training_commands_run_nothing(
    refused: Refused, honest: Honest, marker: Path, command: str, plant: Plant
) -> None:
    path = plant(honest, marker)
    sharded = [] if path.is_file() else ["--trainer.strategy=looplit_fsdp"]
    said = refused(command, *honest.options, *sharded, f"--ckpt_path={path}")
    assert said == f"looplit: error: ckpt_path = '{path}': {ASKED}"


def test_a_setting_of_the_optimizer_runs_nothing(refused: Refused, honest: Honest, marker: Path) -> None:
    path = in_setting(honest, marker)
    said = refused("fit", *honest.options, "--trainer.strategy=looplit_fsdp", f"--ckpt_path={path}")
    assert said == f"looplit: error: ckpt_path = '{path}': {ASKED}"


@pytest.mark.parametrize("plant", [in_index, in_meta, in_shard, in_setting, in_tensor])
def test_consolidate_runs_nothing(refused: Refused, honest: Honest, marker: Path, plant: Plant) -> None:
    path = plant(honest, marker)
    assert refused("consolidate", path, "out.ckpt") == f"looplit: error: ckpt_path = '{path}': {ASKED}"
    assert not marker.with_name("out.ckpt").exists()


@pytest.mark.parametrize("command", MEASURING)
def test_measuring_commands_run_nothing(refused: Refused, honest: Honest, marker: Path, command: str) -> None:
    options = {"evaluate": ["--bundle", marker], "lens": [], "passes": ["--passes", 1]}[command]
    path = in_file(honest, marker)
    assert refused(command, "--ckpt_path", path, *options) == f"looplit: error: ckpt_path = '{path}': {ASKED}"
    path = in_index(honest, marker)
    assert "a folder; make one file of a sharded checkpoint" in refused(command, "--ckpt_path", path, *options)


def test_what_torch_does_not_name_is_refused_in_one_line(honest: Honest, marker: Path) -> None:
    path = marker.with_name("evil.ckpt")
    torch.save({"extra": Payload(marker)}, path, pickle_protocol=4)
    with pytest.raises(InputError, match=r"not a readable checkpoint \(it holds more than data\)$"):
        read_file(path)
    assert not marker.exists()


def test_load_runs_nothing(honest: Honest, marker: Path) -> None:
    for plant, said in ((in_file, "asks for posix.mkdir; only data is read"), (in_index, "a folder")):
        with pytest.raises(InputError, match=said):
            looplit.load(plant(honest, marker))
    assert not marker.exists()


CLASS = b"ctorch.distributed.checkpoint.metadata\nMetadata\n"


@pytest.mark.parametrize(
    ("index", "said"),
    [
        (b"cbuiltins\neval\n(X\x01\x00\x00\x001tR.", "it asks for builtins.eval; only data is read"),
        (b"ctorch\nload\n(X\x01\x00\x00\x001tR.", "it asks for torch.load; only data is read"),
        (b"ctorch\nserialization.os.mkdir\n)R.", "it asks for torch.serialization.os.mkdir; only data is read"),
        (b"\x80\x02" + CLASS + b"(N}X\x06\x00\x00\x00markedK\x01stb.", ".metadata is no index"),
        (b"\x80\x02" + CLASS + b")\x81.", "not a readable checkpoint"),
        (b"\x80\x02}.", ".metadata is no index"),
        (b"0.", "not a readable checkpoint"),
        (b"", "not a readable checkpoint"),
    ],
)
def test_an_index_is_nothing_else(honest: Honest, marker: Path, index: bytes, said: str) -> None:
    folder = copied(honest, marker)
    (folder / ".metadata").write_bytes(index)
    with pytest.raises(InputError, match=said) as error:
        read_folder(folder)
    assert "\n" not in str(error.value)
    assert not hasattr(Metadata, "marked")  # an attribute set on a class would outlive the checkpoint


def test_an_index_names_files_of_its_folder(honest: Honest, marker: Path) -> None:
    folder = copied(honest, marker)
    index = read_index(folder)
    next(iter(index.storage_data.values())).relative_path = "../run/whole.ckpt"
    (folder / ".metadata").write_bytes(pickle.dumps(index))
    with pytest.raises(InputError, match=r"\.metadata is no index of tensors in files beside it"):
        read_folder(folder)


def test_the_index_of_one_process_is_not_read(honest: Honest, marker: Path) -> None:
    """torch reads it where the first one fails; this one fails after it was checked."""
    folder = copied(honest, marker)
    (folder / ".metadata").unlink()
    (folder / "__0.metadata").write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises(BaseException, match="read failed"):
        read_tensors(folder, {}, alone=True)
    assert not marker.exists()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """An address that serves the files of `tmp_path`."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            """Nothing: the tests read what is said."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(params=["file", "http"])
def address(request: pytest.FixtureRequest, tmp_path: Path, server: str) -> Callable[[Path], str]:
    """The address of a file in `tmp_path`."""
    base = server if request.param == "http" else f"file://{tmp_path}"
    return lambda path: f"{base}/{path.name}"


Address = Callable[[Path], str]


@pytest.mark.parametrize("command", TRAINING)
def test_addresses_run_nothing(refused: Refused, honest: Honest, marker: Path, address: Address, command: str) -> None:
    where = address(in_file(honest, marker))
    said = refused(command, *honest.options, f"--ckpt_path={where}")
    assert said == f"looplit: error: ckpt_path = '{where}': {ASKED}"


@pytest.mark.parametrize("command", [*MEASURING, "consolidate"])
def test_other_commands_read_no_addresses(
    refused: Refused, honest: Honest, marker: Path, address: Address, command: str
) -> None:
    where = address(in_file(honest, marker))
    options = {"evaluate": ["--bundle", marker], "passes": ["--passes", 1], "consolidate": ["out.ckpt"]}
    named = [] if command == "consolidate" else ["--ckpt_path"]
    assert "there is no " in refused(command, *named, where, *options.get(command, []))
    with pytest.raises(InputError, match="there is no such checkpoint"):
        looplit.load(where)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ckpt_path=simplecache::{}/evil.ckpt"], "an address must begin with one of file, "),
        (["--ckpt_path=zip://evil.ckpt::{}/evil.zip"], "an address must begin with one of file, "),
        (["--ckpt_path=reference://?fo={}/evil.ckpt"], "an address must begin with one of file, "),
        (["--ckpt_path=nowhere://evil.ckpt"], "an address must begin with one of file, "),
        (["--ckpt_path=file:///evil.ckpt"], "there is no such checkpoint"),
        (["--ckpt_path={}/none.ckpt"], "there is no such checkpoint"),
        (["--ckpt_path=http://127.0.0.1:1/none.ckpt"], "there is no such checkpoint"),
        (["--ckpt_path={}/evil.ckpt", "--weights_only=false"], "weights_only = False: a checkpoint is read as data"),
        (["--ckpt_path={}/evil.ckpt", "--trainer.strategy=looplit_fsdp"], "looplit_fsdp reads no addresses"),
        (
            ["--ckpt_path={}/evil.ckpt", "--trainer.plugins=AsyncCheckpointIO"],
            "is not read by another checkpoint plugin",
        ),
    ],
)
def test_other_addresses_are_refused(
    refused: Refused, honest: Honest, marker: Path, server: str, options: list[str], said: str
) -> None:
    in_file(honest, marker)
    assert said in refused("validate", *honest.options, *(option.format(server) for option in options))


# --- a Trainer of one's own


def own_trainer(folder: Path, **settings: Any) -> L.Trainer:
    return L.Trainer(
        accelerator="cpu", devices=1, max_steps=6, limit_val_batches=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, default_root_dir=folder, **settings,
    )  # fmt: skip


def own_model() -> looplit.Loop:
    return looplit.Loop(depth=3, width=32, heads=1, vocabulary=257, context=32, steps=6)


def own_data(honest: Honest) -> looplit.StandardLibraryText:
    folder = Path(honest.options[-1]).parent / "corpus"
    return looplit.StandardLibraryText(folder=folder, context=32, batch_size=2, val_tokens=2000)


@pytest.mark.parametrize("method", TRAINING)
def test_a_trainer_of_ones_own_runs_nothing(honest: Honest, marker: Path, address: Address, method: str) -> None:
    where, trainer = address(in_file(honest, marker)), own_trainer(marker.parent)
    with pytest.raises(InputError, match="asks for posix.mkdir; only data is read"):
        getattr(trainer, method)(own_model(), datamodule=own_data(honest), ckpt_path=where)
    with pytest.raises(pickle.UnpicklingError, match="posix.mkdir"):
        looplit.Loop.load_from_checkpoint(where)
    assert not marker.exists()


@pytest.mark.parametrize("plant", [in_file, in_index, in_meta, in_shard])
def test_our_strategy_in_a_trainer_of_ones_own_runs_nothing(honest: Honest, marker: Path, plant: Plant) -> None:
    trainer = own_trainer(marker.parent, strategy="looplit_fsdp")
    with pytest.raises(InputError, match="asks for posix.mkdir; only data is read"):
        trainer.fit(own_model(), datamodule=own_data(honest), ckpt_path=plant(honest, marker), weights_only=False)
    assert not marker.exists()


# --- what is honest


def test_honest_addresses_are_read_and_resumed(
    honest: Honest, tmp_path: Path, address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    where = address(Path(shutil.copy(honest.file, tmp_path / "honest.ckpt")))
    there, here = read_file(where), torch.load(honest.file)
    assert there.keys() == here.keys()
    assert all(torch.equal(there["state_dict"][name], tensor) for name, tensor in here["state_dict"].items())
    loaded = looplit.Loop.load_from_checkpoint(where)
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in here["state_dict"].items())
    resumed = []
    for path in (where, honest.file):
        options = ["--trainer.max_steps=6", f"--trainer.default_root_dir={tmp_path / str(len(resumed))}"]
        assert main(["fit", *honest.options, *options, f"--ckpt_path={path}"]) == 0
        (last,) = (tmp_path / str(len(resumed))).glob("**/last.ckpt")
        resumed.append(torch.load(last)["state_dict"])
    assert all(torch.equal(resumed[0][name], tensor) for name, tensor in resumed[1].items())
    trainer = own_trainer(tmp_path)
    trainer.fit(own_model(), datamodule=own_data(honest), ckpt_path=where)
    assert all(torch.equal(trainer.model.state_dict()[name], tensor) for name, tensor in resumed[1].items())


def test_honest_folders_give_what_torch_reads(honest: Honest) -> None:
    whole, by_name = consolidate(honest.folder), by_torch(honest.folder)
    assert whole["state_dict"].keys() == by_name["state_dict"].keys()
    assert all(torch.equal(whole["state_dict"][name], tensor) for name, tensor in by_name["state_dict"].items())
    groups = by_name["optimizer_0"]["param_groups"]
    assert [{**group, "params": None} for group in whole["optimizer_states"][0]["param_groups"]] == [
        {**group, "params": None} for group in groups
    ]
    theirs = [entry for group in groups for name in group["params"] for entry in
              by_name["optimizer_0"]["state"][name].values()]  # fmt: skip
    ours = [entry for state in whole["optimizer_states"][0]["state"].values() for entry in state.values()]
    assert len(ours) == len(theirs) > 0
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    index, own = FileSystemReader(honest.folder).read_metadata(), read_index(honest.folder)
    index.storage_meta = own.storage_meta = None  # a path, and a number of the reader
    assert own == index


def test_honest_checkpoints_go_on(honest: Honest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved = []
    for strategy, path in (("looplit_fsdp", honest.folder), ("looplit_fsdp", honest.file), ("auto", honest.file)):
        root = tmp_path / str(len(saved))
        options = [*honest.options, f"--trainer.strategy={strategy}", f"--ckpt_path={path}"]
        assert main(["fit", *options, "--trainer.max_steps=6", f"--trainer.default_root_dir={root}"]) == 0
        assert main(["validate", *options]) == 0
        (last,) = root.glob("**/last.ckpt")
        saved.append(consolidate(last) if last.is_dir() else torch.load(last))
    assert [checkpoint["global_step"] for checkpoint in saved] == [6, 6, 6]
    for name, tensor in saved[0]["state_dict"].items():
        assert torch.equal(tensor, saved[1]["state_dict"][name]), name
