"""Muon, MuonH and AdamW on sharded matrices against one process: every bit, for any shape and number of processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

SCRIPT = Path(__file__).with_name("muon_run.py")


@pytest.fixture(scope="module")
def script(load_script: Callable[[Path], ModuleType]) -> ModuleType:
    return load_script(SCRIPT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("muon")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    parent = subprocess.Popen([sys.executable, str(SCRIPT), str(folder)], env=environment, start_new_session=True)
    try:
        assert parent.wait(timeout=120) == 0
    finally:
        with suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)  # whatever it has forked
    return folder


@pytest.fixture(params=[2, 4])
def sharded(request: pytest.FixtureRequest, folder: Path) -> dict[str, Any]:
    """What the processes hold after the steps, put together, and what each says of itself."""
    world = request.param
    said = [json.loads((folder / f"{world}_{rank}.json").read_text()) for rank in range(world)]
    return {"world": world, "tensors": torch.load(folder / f"{world}.pt"), "said": said}


def test_weights_and_state_equal_those_of_one_process(sharded: dict[str, Any], script: ModuleType) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the processes: another split of a product would round differently
    parameters, optimizer, _ = script.train(None)
    torch.set_num_threads(threads)
    expected: dict[str, Tensor] = {f"w{i}": parameter.detach() for i, parameter in enumerate(parameters)}
    for i, parameter in enumerate(parameters):
        expected |= {f"{name}{i}": value for name, value in optimizer.state[parameter].items()}
    assert sharded["tensors"].keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(sharded["tensors"][name], value), name


def test_matrices_are_split_and_some_processes_hold_no_row(sharded: dict[str, Any], script: ModuleType) -> None:
    held = [said["held"] for said in sharded["said"]]
    assert sum(rows["w6"] for rows in held) == 33
    assert max(rows["w6"] for rows in held) == -(-33 // sharded["world"])
    assert [rows["w8"] for rows in held] == [1] + [0] * (sharded["world"] - 1)
    assert [rows["momentum6"] for rows in held] == [rows["w6"] for rows in held]


def test_each_stack_is_exchanged_there_and_back_and_nothing_else(sharded: dict[str, Any], script: ModuleType) -> None:
    """Two exchanges per shape, and Muon's variances gathered, MuonH's norms summed; none inside the iterations."""
    muon, muonh = len(set(script.MUON)), len(set(script.MUONH))
    for said in sharded["said"]:
        assert sum(said["counts"].values()) == 3 * (muon + muonh)
        assert said["counts"]["c10d_functional.all_reduce"] == muonh
