"""The few things that processes tell each other during an evaluation; all do nothing in a single process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


def rank_and_world() -> tuple[int, int]:
    """This process's number and how many there are."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def largest(count: int, device: torch.device) -> int:
    """The largest count of any process."""
    if rank_and_world()[1] == 1:
        return count
    count_tensor = torch.tensor(count, device=device)
    dist.all_reduce(count_tensor, dist.ReduceOp.MAX)
    return int(count_tensor)


def gathered(items: list[T]) -> list[T]:
    """The items of all processes."""
    world = rank_and_world()[1]
    if world == 1:
        return items
    shares: list[list[T]] = [[] for _ in range(world)]
    dist.all_gather_object(shares, items)
    return [item for share in shares for item in share]


def from_first(value: T) -> T:
    """What the first process has as `value`."""
    box = [value]
    if rank_and_world()[1] > 1:
        dist.broadcast_object_list(box)
    return box[0]


@contextlib.contextmanager
def launched() -> Iterator[None]:
    """Joins the processes that torchrun has started, if it has, each with its own device."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1 or dist.is_initialized():
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()
