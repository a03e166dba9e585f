"""Initial weights, parameter by parameter, so that no process needs more of the model than it keeps."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from looplit.model.config import BackboneConfig

_ENDS_A_BRANCH = ("attention.out.weight", "mlp.down.weight")


def initial_value(name: str, shape: Sequence[int], config: BackboneConfig, seed: int) -> Tensor:
    """Start of the backbone's parameter `name`, whole, fp32, on the CPU (growth study, appendix A).

    Normal for the embedding (WTE) and the head, uniform in ±UIS·width^-0.5 for q, k, v, gate and up, in
    ±scale·inputs^-0.5 for out and down; the head's and the last scale are zero in the growth study. Gains are 1, and a
    boundary says its own start. Drawn from a generator seeded by `seed` and the name: the same in
    every family, for any number of stored cores and on any number of devices.
    """
    start = torch.zeros(*shape, dtype=torch.float32, device="cpu")
    generator = torch.Generator().manual_seed(_seed_of(name, seed))
    stage, _, rest = name.partition(".")
    if stage in config.operators:
        return config.operators[stage].start(rest, start, generator)
    if name.endswith("gain"):
        return start.fill_(1.0)
    std = {"embedding.weight": config.embedding_std, "head.weight": config.head_std}.get(name)
    if std is not None:
        return start.normal_(0.0, std, generator=generator)
    scale = config.branch_init_scale if name.endswith(_ENDS_A_BRANCH) else config.uniform_init_scale
    bound = scale * shape[-1] ** -0.5
    return start.uniform_(-bound, bound, generator=generator) if bound else start  # else -0.0


def assign(parameter: Tensor, value: Tensor) -> None:
    """Sets a parameter to its whole value; of a sharded one, a process keeps its part. Nothing is communicated."""
    if isinstance(parameter, DTensor):
        value = distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
    parameter.copy_(value)


def _seed_of(name: str, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "little") >> 1
