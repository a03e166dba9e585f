"""Two processes, with whole and with sharded weights, give what one example at a time gives."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
import torch
import torch.multiprocessing as mp
from helpers.core_bundle import CONTEXT, make_model
from helpers.core_reference import assert_same
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import init_device_mesh

from looplit.errors import InputError
from looplit.eval.core import Outcome, evaluate, find_bundle, open_bundle, plan_evaluation
from looplit.eval.core.processes import launched
from looplit.model import Backbone

Setting = tuple[int, bool]  # token budget, prefix sharing
EVERY = [(budget, share) for budget in (512, 4096, 32768) for share in (True, False)]
Answer = tuple[dict[str, Any], dict[tuple[str, int, int], Outcome]]


def whole() -> Backbone:
    return make_model()


def sharded() -> Backbone:
    model = make_model()
    mesh = init_device_mesh("cpu", (2,))
    for block in model.blocks():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _work(rank: int, port: int, folder: str, make: Callable[[], Backbone], settings: list[Setting], out: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": str(port)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1"}
    with launched():
        plan, model = plan_evaluation(open_bundle(folder), "bytes", context=CONTEXT), make()
        answers: list[Answer] = []
        for budget, share in settings:
            told: dict[tuple[str, int, int], Outcome] = {}

            def keep(label: str, _: Any, outcomes: list[Outcome], told: Any = told) -> None:
                told.update({(label, o.seed, o.example): o for o in outcomes})

            summary = evaluate(model, plan, token_budget=budget, share_prefixes=share, on_task=keep)
            answers.append((summary, told))
        torch.save(answers, Path(out, f"{rank}.pt"))


def in_two_processes(work: Callable[..., None], *arguments: Any) -> None:
    """Runs `work(rank, port, *arguments)` in two processes, and ends them whatever happens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = mp.start_processes(work, (port, *arguments), nprocs=2, join=False, start_method="fork")
    try:
        deadline = time.monotonic() + 240  # processes that wait for each other would do so for ever
        while not running.join(timeout=5):
            assert time.monotonic() < deadline, "the processes wait for each other"
    finally:
        for process in running.processes:
            process.kill()


@pytest.mark.parametrize(("make", "settings"), [(whole, EVERY), (sharded, [(600, True)])])
def test_two_processes_give_what_one_example_at_a_time_gives(
    make: Callable[[], Backbone],
    settings: list[Setting],
    bundle_folder: Path,
    reference: dict[str, Any],
    tmp_path: Path,
) -> None:
    in_two_processes(_work, str(bundle_folder), make, settings, str(tmp_path))
    shares: list[list[Answer]] = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in (0, 1)]
    for (summary, first), (other, second) in zip(*shares, strict=True):
        assert summary == other
        assert first
        assert second
        assert not first.keys() & second.keys()
        assert_same(summary, first | second, reference)


def _find(rank: int, port: int, out: str) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": str(port)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "XDG_CACHE_HOME": out}

    def no_route(*args: object, **settings: object) -> None:
        raise OSError("no route")

    requests.get = no_route  # type: ignore[assignment]
    with launched(), pytest.raises(InputError, match="no route") as caught:
        find_bundle()
    Path(out, f"{rank}.txt").write_text(str(caught.value))


def test_a_download_that_fails_stops_all_processes(tmp_path: Path) -> None:
    in_two_processes(_find, str(tmp_path))
    first, second = ((tmp_path / f"{rank}.txt").read_text() for rank in (0, 1))
    assert first == second
