"""A run of whole epochs that was stopped goes on as if it had not: the same windows, losses and rates, bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("epochs_run.py")


@pytest.fixture(scope="module")
def recorded(
    corpus_folder: str, tmp_path_factory: pytest.TempPathFactory, root: Path
) -> Callable[[int, str], list[Any]]:
    """What each process of so many saw in all runs of the script."""
    made: dict[tuple[int, str], list[Any]] = {}

    def record(devices: int, strategy: str) -> list[Any]:
        if (devices, strategy) not in made:
            folder = tmp_path_factory.mktemp("runs")
            arguments = [sys.executable, "-W", "ignore", str(SCRIPT), corpus_folder, str(folder)]
            environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
            arguments += [str(devices), strategy]
            done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False, timeout=400)
            assert done.returncode == 0, done.stderr[-2000:]
            made[devices, strategy] = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(devices)]
        return made[devices, strategy]

    return record


@pytest.mark.parametrize("stop", [4, 6, 9, 12])
@pytest.mark.parametrize("length", ["max_steps", "max_epochs", "both"])
@pytest.mark.parametrize(("devices", "strategy"), [(1, "auto"), (2, "ddp"), (2, "looplit_fsdp")])
def test_a_stopped_run_of_epochs_goes_on(
    recorded: Callable[[int, str], list[Any]],
    load_script: Callable[[Path], ModuleType],
    devices: int,
    strategy: str,
    length: str,
    stop: int,
) -> None:
    """Epochs of 6 steps of 2 micro-batches of 8 windows of 101, in the middle of one and at the end."""
    script = load_script(SCRIPT)
    assert stop in script.STOPS
    for seen in recorded(devices, strategy):
        straight, resumed = seen[length]["straight"], seen[length][str(stop)]
        assert len(straight["steps"]) == (16 if length == "both" else 18)
        assert straight["windows"][:12] != straight["windows"][12:24]
        assert resumed["windows"] == straight["windows"][2 * stop :]
        assert resumed["steps"] == straight["steps"][stop:]
        assert resumed["final"] == straight["final"]
