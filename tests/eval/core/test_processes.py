"""Two processes, with whole and with sharded weights, give what one gives."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from core_bundle import CONTEXT, make_model
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import init_device_mesh

from looplit.eval.core import evaluate, open_bundle, plan_evaluation
from looplit.eval.core.processes import launched
from looplit.model import Backbone

LABELS = ("jeopardy", "arc_easy", "copa", "piqa")  # 3 to 6 examples each: the two processes get unequal shares


def whole() -> Backbone:
    return make_model()


def sharded() -> Backbone:
    model = make_model()
    mesh = init_device_mesh("cpu", (2,))
    for block in model.blocks():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _work(rank: int, port: int, folder: str, make: Callable[[], Backbone], out: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": str(port)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1"}
    with launched():
        summary = run(make(), folder)
    Path(out, f"{rank}.json").write_text(json.dumps(summary))


def run(model: Backbone, folder: str | Path) -> dict[str, Any]:
    plan = plan_evaluation(open_bundle(folder), "bytes", context=CONTEXT, tasks=LABELS)
    return evaluate(model, plan, token_budget=600)


@pytest.mark.parametrize("make", [whole, sharded])
def test_two_processes_give_what_one_gives(make: Callable[[], Backbone], bundle_folder: Path, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = (port, str(bundle_folder), make, str(tmp_path))
    running = mp.start_processes(_work, arguments, nprocs=2, join=False, start_method="fork")
    try:
        deadline = time.monotonic() + 120  # processes that wait for each other would do so for ever
        while not running.join(timeout=5):
            assert time.monotonic() < deadline, "the processes wait for each other"
    finally:
        for process in running.processes:
            process.kill()
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    expected = json.loads(json.dumps(run(make_model(), bundle_folder)))
    assert first == second
    # Sums of float64 in another order; each loss is that of one process but for rounding in batches of other shapes.
    assert_close(first, expected)


def assert_close(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_close(found[key], expected[key])
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=1e-5)
    else:
        assert found == expected
