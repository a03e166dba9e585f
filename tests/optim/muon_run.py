"""A sharded optimizer on 2 and on 4 processes, forks of this one: run by test_distributed_muon.py.

Usage: muon_run.py FOLDER
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

from looplit.optim import MuonAdamW

SHAPES = ((8, 8), (8, 8), (8, 8), (24, 8), (24, 8), (8, 24), (33, 16), (3, 8), (1, 8), (16, 33))
MUON, MUONH, ADAMW = SHAPES, SHAPES, ((5, 8), (40, 8))
ASLEEP = (2, len(MUON) + 2)  # parameters that get their first gradient at step 2
STEPS = 5


def whole(shape: tuple[int, int], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def train(mesh: DeviceMesh | None) -> tuple[list[nn.Parameter], MuonAdamW, dict[str, int]]:
    """Takes the steps with gradients drawn by step and parameter; sharded over the mesh where there is one."""

    def place(tensor: Tensor) -> Tensor:
        return tensor if mesh is None else distribute_tensor(tensor, mesh, [Shard(0)])

    parameters = [nn.Parameter(place(whole(shape, i))) for i, shape in enumerate(MUON + MUONH + ADAMW)]
    rest = iter(parameters)
    optimizer = MuonAdamW(
        [
            {"params": list(islice(rest, len(MUON))), "algorithm": "muon", "lr": 0.02, "weight_decay": 0.1},
            {"params": list(islice(rest, len(MUONH))), "algorithm": "muonh", "lr": 0.02},
            {"params": list(rest), "algorithm": "adamw", "lr": 0.01, "weight_decay": 0.1},
        ]
    )
    counts = {}
    for t in range(STEPS):
        for i, parameter in enumerate(parameters):
            asleep = i in ASLEEP and t < 2
            parameter.grad = None if asleep else place(whole(tuple(parameter.shape), 100 * t + i + 50))
        with CommDebugMode() as communication:
            optimizer.step()
        counts = {str(name): count for name, count in communication.get_comm_counts().items()}
    return parameters, optimizer, counts


def work(folder: Path, rank: int, world: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store{world}", rank=rank, world_size=world)
    parameters, optimizer, counts = train(init_device_mesh("cpu", (world,)))
    tensors = {f"w{i}": parameter.detach() for i, parameter in enumerate(parameters)}
    for i, parameter in enumerate(parameters):
        tensors |= {f"{name}{i}": value for name, value in optimizer.state[parameter].items()}
    held = {name: value.to_local().shape[0] for name, value in tensors.items() if isinstance(value, DTensor)}
    full = {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in tensors.items()}
    if rank == 0:
        torch.save(full, folder / f"{world}.pt")
    (folder / f"{world}_{rank}.json").write_text(json.dumps({"counts": counts, "held": held}))
    dist.destroy_process_group()


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    for world in (2, 4):
        children = []
        for rank in range(world):
            child = os.fork()
            if child == 0:
                try:
                    work(folder, rank, world)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            children.append(child)
        if any(os.waitpid(child, 0)[1] for child in children):
            sys.exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
