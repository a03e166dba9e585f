"""20 steps straight equal 10 steps, exit, a new process, and 10 more: bit for bit, whenever the model grows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("resume_run.py")


def train(folder: Path, name: str, *args: str) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), name, *args], check=True, env=environment, timeout=240,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    result: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return result


@pytest.mark.parametrize("growth_step", [5, 10, 15])
def test_a_stopped_run_goes_on_as_if_it_had_not(tmp_path_factory: pytest.TempPathFactory, growth_step: int) -> None:
    folder = tmp_path_factory.getbasetemp() / "resume"
    folder.mkdir(exist_ok=True)
    grow_at = str(growth_step)
    straight = train(folder, f"straight{grow_at}", grow_at, "20")
    first = train(folder, f"first{grow_at}", grow_at, "10")
    second = train(folder, f"second{grow_at}", grow_at, "20", str(folder / f"first{grow_at}.ckpt"))

    assert first["steps"] + second["steps"] == straight["steps"]
    assert second["weights"] == straight["weights"]
    assert second["state"] == straight["state"]
    assert second["counts"] == straight["counts"]
    assert [int(passes) for _, passes, *_ in straight["steps"]] == [2] * growth_step + [4] * (20 - growth_step)
    assert first["counts"][2] == (4 if growth_step < 10 else 2)  # a growth that falls on step 10 is still to come


def test_trained_cores_keep_their_momentum_and_copies_start_at_zero(tmp_path: Path) -> None:
    """Stopped right before growth at step 10, the optimizer state of dormant cores is zero and stays in the file."""
    import torch

    train(tmp_path, "before", "10", "10")
    checkpoint = torch.load(tmp_path / "before.ckpt", weights_only=True)
    states = checkpoint["optimizer_states"][0]["state"]
    names = [name.removeprefix("backbone.") for name in checkpoint["state_dict"]]
    momenta = {names[number]: state["momentum"] for number, state in states.items() if "momentum" in state}
    for name, momentum in momenta.items():
        dormant = name.startswith(("cores.2.", "cores.3."))
        assert bool(momentum.any()) is not dormant, name
