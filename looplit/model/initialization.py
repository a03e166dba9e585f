"""Initial weights, parameter by parameter, so that no process needs more of the model than it keeps."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from looplit.model.config import BackboneConfig

_STARTS_AT_ZERO = ("attention.out.weight", "mlp.down.weight", "head.weight")


def initial_value(name: str, shape: Sequence[int], config: BackboneConfig, seed: int) -> Tensor:
    """Start of the backbone's parameter `name`, whole, fp32, on the CPU (growth study, appendix A).

    Zero for out, down and head, normal(WTE) for the embedding, uniform in ±UIS·width^-0.5 for q, k, v, gate and up.
    Drawn from a generator seeded by `seed` and the name: the same in every family, for any number of stored cores and
    on any number of devices.
    """
    start = torch.zeros(*shape, dtype=torch.float32, device="cpu")
    if name.endswith(_STARTS_AT_ZERO):
        return start
    generator = torch.Generator().manual_seed(_seed_of(name, seed))
    if name == "embedding.weight":
        return start.normal_(0.0, config.embedding_std, generator=generator)
    bound = config.uniform_init_scale * config.width**-0.5
    return start.uniform_(-bound, bound, generator=generator)


def assign(parameter: Tensor, value: Tensor) -> None:
    """Sets a parameter to its whole value; of a sharded one, a process keeps its part. Nothing is communicated."""
    if isinstance(parameter, DTensor):
        value = distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
    parameter.copy_(value)


def _seed_of(name: str, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "little") >> 1
