"""Matrices that are split over processes by rows, put together so that each process holds some of them whole.

Shape suffixes: S matrices of one shape, R rows, C columns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from looplit.optim.algorithms.collectives import STACK_ELEMENTS


def local(tensor: Tensor | None) -> Tensor:
    """The part of a tensor that this process holds; a plain tensor is all of it."""
    assert tensor is not None
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def same_shape(parameters: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Stacks of parameters that share shape, dtype, device and sharding; a process holds at most `STACK_ELEMENTS`."""
    alike: dict[Any, list[Tensor]] = defaultdict(list)
    for parameter in parameters:
        sharding = (parameter.device_mesh, parameter.placements) if isinstance(parameter, DTensor) else None
        alike[parameter.shape, parameter.dtype, parameter.device, sharding].append(parameter)
    for group in alike.values():
        processes = group[0].device_mesh.size() if isinstance(group[0], DTensor) else 1
        n = max(1, STACK_ELEMENTS * processes // group[0].numel())
        if n > processes:
            n -= n % processes  # so that no process idles
        yield from (group[start : start + n] for start in range(0, len(group), n))


class Exchange:
    """The way of a stack from shards to whole matrices and back. Plain tensors are whole, and nothing happens to them.

    Args:
        stack: Parameters that share shape and sharding, see `same_shape`.
    """

    def __init__(self, stack: list[Tensor]) -> None:
        self._matrices, self._like = len(stack), stack[0]
        placements = self._like.placements if isinstance(self._like, DTensor) else ()
        self._by_rows = [Shard(p.dim + 1) if isinstance(p, Shard) else p for p in placements]
        self._by_matrix = [Shard(0) if isinstance(p, Shard) else p for p in placements]
        self._partial = [Partial() if isinstance(p, Shard) else p for p in placements]

    def to_matrices(self, shards_SRC: Tensor) -> Tensor:
        """From this process's rows of all matrices to its own matrices, whole."""
        return self._move(shards_SRC, self._by_rows, self._by_matrix, self._like.shape)

    def to_shards(self, own_SRC: Tensor) -> Tensor:
        """From this process's own matrices, whole, to its rows of all of them."""
        return self._move(own_SRC, self._by_matrix, self._by_rows, self._like.shape)

    def own(self, values: Tensor) -> Tensor:
        """Of values per matrix, (matrices, …) and the same everywhere, those of this process's own; no exchange."""
        return self._move(values, self._everywhere, self._by_matrix, values.shape[1:])

    def all(self, own_values: Tensor) -> Tensor:
        """Values of all matrices, from those that each process holds of its own."""
        return self._move(own_values, self._by_matrix, self._everywhere, own_values.shape[1:])

    def total(self, values: Tensor) -> Tensor:
        """Values per matrix, (matrices, …), summed over the shards."""
        return self._move(values, self._partial, self._everywhere, values.shape[1:])

    @property
    def _everywhere(self) -> list[Placement]:
        return [Replicate()] * len(self._by_rows)

    def _move(self, part: Tensor, source: list[Placement], target: list[Placement], shape: torch.Size) -> Tensor:
        if not isinstance(self._like, DTensor):
            return part
        mesh, whole = self._like.device_mesh, torch.Size((self._matrices, *shape))
        stride = torch.empty(whole, device="meta").stride()
        spread = DTensor.from_local(part.contiguous(), mesh, source, run_check=False, shape=whole, stride=stride)
        return spread.redistribute(mesh, target).to_local()
