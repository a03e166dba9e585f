"""The command line on two processes: the large run's configuration, shrunk, a signal, and a lost node."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import looplit
from looplit.__main__ import main


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpus")


def shrunken(root: Path, corpus: Path, **settings: Any) -> list[str]:
    """`configs/untied_grow_d26.yaml` on two processes of this machine: strategy, precision and growth as they are."""
    changed = {
        "model.init_args.depth": 3, "model.init_args.width": 32, "model.init_args.heads": 1,
        "model.init_args.vocabulary": 257, "model.init_args.context": 32, "model.init_args.compile": "false",
        "data": "StandardLibraryText", "data.init_args.folder": corpus, "data.init_args.context": 32,
        "data.init_args.val_tokens": 2000, "data.init_args.workers": 0, "trainer.accelerator": "cpu",
        "trainer.devices": 2, "trainer.num_nodes": 1, "trainer.max_steps": 13, "trainer.enable_progress_bar": "false",
        **settings,
    }  # fmt: skip
    config = ["--config", str(root / "configs" / "untied_grow_d26.yaml")]
    return ["fit", *config, *(f"--{name}={value}" for name, value in changed.items())]


@contextlib.contextmanager
def started(args: list[str], cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """A Python command with the processes it starts, of which none is left behind."""
    cwd.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, *args], cwd=cwd, env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def finished(args: list[str], cwd: Path, version: int = 0) -> dict[str, Any]:
    """The result of a run of `untied_grow_d26`."""
    with started(["-m", "looplit", *args], cwd) as process:
        _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    result = cwd / "runs" / "untied_grow_d26" / f"version_{version}" / "result.json"
    return dict(json.loads(result.read_text()))


def test_the_large_runs_configuration_runs_through(tmp_path: Path, root: Path, corpus: Path) -> None:
    planned = {"model.init_args.steps": 15}
    result = finished(shrunken(root, corpus, **planned), tmp_path)
    assert (result["steps"], result["growth_step"], result["passes"], result["device_count"]) == (13, 11, [2, 4], 2)
    assert result["tokens"] == 13 * 8 * 2 * 2 * 32
    (saved,) = (tmp_path / "runs").rglob("last.ckpt")
    assert main(["consolidate", str(saved), str(tmp_path / "whole.ckpt")]) == 0
    assert looplit.load(tmp_path / "whole.ckpt").backbone.passes == 4
    alone = {
        **planned, "trainer.devices": 1, "trainer.strategy.init_args.replicas": 1,
        "trainer.accumulate_grad_batches": 16, "trainer.max_steps": 15, "ckpt_path": saved,
    }  # fmt: skip
    with started(["-m", "looplit", *shrunken(root, corpus, **alone)], tmp_path) as process:
        _, errors = process.communicate(timeout=240)
    assert process.returncode == 2, errors
    assert "looplit: error: world_size = 1: the checkpoint's place in the data was saved with 2; data.redeal" in errors
    result = finished(shrunken(root, corpus, **alone, **{"data.init_args.redeal": "true"}), tmp_path, version=2)
    assert (result["steps"], result["device_count"], result["tokens"]) == (15, 1, 15 * 8 * 2 * 2 * 32)


def test_a_signal_to_one_of_two_processes_stops_both_and_the_run_goes_on(
    tmp_path: Path, root: Path, corpus: Path
) -> None:
    every = {"trainer.max_steps": 150, "trainer.accumulate_grad_batches": 1, "trainer.val_check_interval": 20}
    run = shrunken(root, corpus, **every)
    straight = finished(run, tmp_path / "straight")
    stopped = tmp_path / "stopped"
    with started(["-m", "looplit", *run], stopped) as process:
        deadline = time.monotonic() + 120
        while not list(stopped.rglob("last.ckpt")) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)  # until the first validation is over
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)  # to the end of both: they share the pipe
        assert process.returncode == 128 + signal.SIGTERM, errors
    assert "Traceback" not in errors
    assert "stopped by SIGTERM after step" in errors
    (saved,) = stopped.rglob("interrupted.ckpt")
    assert len(list(saved.glob("*.distcp"))) == 2  # a file of each process
    assert (saved / "meta.pt").is_file()
    resumed = finished([*run, f"--ckpt_path={saved}"], stopped, version=1)
    for name in ("final_val_loss", "tokens", "training_flops", "growth_step"):
        assert resumed[name] == straight[name], name


def test_a_killed_agent_takes_both_nodes_down(tmp_path: Path, root: Path, corpus: Path) -> None:
    """Two agents of torchrun on this machine; the process of the killed one must not train on as an orphan."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nodes = {"trainer.num_nodes": 2, "trainer.devices": 1, "trainer.accumulate_grad_batches": 1}
    run = shrunken(root, corpus, **nodes, **{"trainer.max_steps": 100_000, "trainer.val_check_interval": 20})
    options = ["--nnodes=2", "--nproc_per_node=1", "--master_addr=127.0.0.1", f"--master_port={port}"]
    with contextlib.ExitStack() as stack:
        lost, survivor = (
            stack.enter_context(
                started(
                    ["-m", "torch.distributed.run", *options, f"--node_rank={node}", "-m", "looplit", *run], tmp_path
                )
            )
            for node in (1, 0)
        )
        deadline = time.monotonic() + 120
        while not list(tmp_path.rglob("last.ckpt")) and survivor.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)  # until the first validation is over
        lost.kill()
        _, errors = survivor.communicate(timeout=60)
        _, orphan = lost.communicate(timeout=60)  # to the end of its process, which has the pipe too
    assert survivor.returncode == 1, errors
    assert "looplit: process 1 ends: its torchrun agent is gone\n" in orphan
    assert "looplit: process 0 of 2 lost the connection to another process" in errors
