"""Muon for the block matrices and AdamW for embedding and head, as one optimizer (growth study, appendix A).

One `torch.optim.Optimizer` keeps Lightning's automatic optimization: accumulation, clipping, one step per global_step.

Shape suffixes: S matrices of one shape, R rows (output features), C columns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.optim.adamw import adamw

from looplit.errors import require
from looplit.optim.polar import orthogonalize

_ADAMW_DEFAULTS = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8}
_ROW_FLOOR = 1e-7
_VARIANCE_FLOOR = 1e-10
_VARIANCE_DECAY = 0.95
STACK_ELEMENTS = 2**26  # largest stack: 256 MiB of fp32, so that a 7B model is never stacked whole


def muon_momentum(t: int) -> float:
    """μ of optimizer step t (from 0): 0.85 + 0.10·min(t/300, 1)."""
    return 0.85 + 0.10 * min(t / 300, 1)


class MuonAdamW(torch.optim.Optimizer):
    """Each parameter group names its `algorithm`: "muon" (2-D matrices) or "adamw".

    Muon of a matrix W with gradient G, t counted from 0: M ← μM + (1-μ)G; U = (1-μ)G + μM; rows of U divided by their
    norm; X = orthogonalised U; X scaled by V^-1/2 (V the running mean square over the longer side) with its Frobenius
    norm kept; W ← W - lr'·X - lr'·WD·W·[X·W ≥ 0], lr' = lr·sqrt(max(1, R/C)).

    State exists from the start for every parameter, also for those that get no gradient yet: a parameter whose `grad`
    is None is not touched (no update, no decay) and its state stays zero, which is what growth needs.

    Sharded parameters (`DTensor`, as FSDP2 makes them) get the update of a single process, bit for bit: matrices of one
    shape are stacked, exchanged once so that each process holds whole matrices of its own, and exchanged back.

    Args:
        params: Parameter groups with the keys `params`, `algorithm`, `lr` and optionally `weight_decay`, `betas`,
            `eps` (the last two for AdamW).

    Raises:
        InputError: An unknown algorithm, or Muon for a tensor that is not a matrix.
    """

    def __init__(self, params: Iterable[dict[str, Any]]) -> None:
        super().__init__(params, {"algorithm": "adamw", "weight_decay": 0.0, **_ADAMW_DEFAULTS, "steps_taken": 0})
        for group in self.param_groups:
            self._check(group)
            for parameter in group["params"]:
                self.state[parameter] = _initial_state(parameter, group["algorithm"])

    @staticmethod
    def _check(group: dict[str, Any]) -> None:
        algorithm = group["algorithm"]
        require(algorithm in ("muon", "adamw"), "algorithm", algorithm, "must be muon or adamw")
        for name in ("lr", "weight_decay", "eps"):
            require(group[name] >= 0, name, group[name], "must be at least 0")
        for parameter in group["params"] if algorithm == "muon" else ():
            require(parameter.ndim == 2, "shape", tuple(parameter.shape), "Muon takes matrices only")

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            live = [parameter for parameter in group["params"] if parameter.grad is not None]
            if group["algorithm"] == "muon":
                for stack in _same_shape(live):
                    self._muon(stack, group)
            elif live:
                self._adamw(live, group)
            group["steps_taken"] += 1
        return loss

    def _muon(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        mu = muon_momentum(group["steps_taken"])
        states = [self.state[parameter] for parameter in parameters]
        ahead = []
        for parameter, state in zip(parameters, states, strict=True):
            momentum = _local(state["momentum"])
            gradient = _local(parameter.grad).to(momentum.dtype)
            momentum.lerp_(gradient, 1 - mu)
            ahead.append(gradient.lerp(momentum, mu))
        variance = torch.stack([state["variance"] for state in states])
        x_SRC = _direction(torch.stack(ahead), variance, parameters[0])
        rows, columns = parameters[0].shape
        lr = group["lr"] * max(1, rows / columns) ** 0.5
        for parameter, state, x, v in zip(parameters, states, x_SRC, variance, strict=True):
            state["variance"].copy_(v)
            weight = _local(parameter)
            decayed = weight * (x * weight >= 0)
            weight.sub_(x.add(decayed, alpha=group["weight_decay"]), alpha=lr)

    def _adamw(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        states = [self.state[parameter] for parameter in parameters]
        beta1, beta2 = group["betas"]
        adamw(
            [_local(parameter) for parameter in parameters],
            [_local(parameter.grad) for parameter in parameters],
            [_local(state["mean"]) for state in states],
            [_local(state["mean_square"]) for state in states],
            [],
            [state["step"] for state in states],
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def muon_direction(u_SRC: Tensor, variance: Tensor) -> Tensor:
    """The update X of a stack: rows normalised, orthogonalised, scaled by the running variance; updates `variance`.

    Args:
        u_SRC: Nesterov momentum, (matrices, rows, columns).
        variance: V, (matrices, rows) if rows ≥ columns, else (matrices, columns); updated in place.
    """
    u_SRC = u_SRC / torch.linalg.vector_norm(u_SRC, dim=-1, keepdim=True).clamp(min=_ROW_FLOOR)
    x_SRC = orthogonalize(u_SRC)
    over = -1 if x_SRC.shape[-2] >= x_SRC.shape[-1] else -2
    variance.lerp_(x_SRC.square().mean(over), 1 - _VARIANCE_DECAY)
    scaled = x_SRC * variance.clamp(min=_VARIANCE_FLOOR).rsqrt().unsqueeze(over)
    norm, scaled_norm = (torch.linalg.matrix_norm(m, keepdim=True) for m in (x_SRC, scaled))
    return scaled * torch.where(scaled_norm > 0, norm / scaled_norm, 0.0)  # a zero gradient gives a zero update


def _initial_state(parameter: Tensor, algorithm: str) -> dict[str, Tensor]:
    precise = torch.promote_types(parameter.dtype, torch.float32)
    if algorithm == "muon":
        side = 0 if parameter.shape[0] >= parameter.shape[1] else 1
        return {
            "momentum": torch.zeros_like(parameter, dtype=precise),
            "variance": torch.zeros(parameter.shape[side], dtype=precise, device=parameter.device),
        }
    return {
        "step": torch.zeros((), dtype=torch.float32),
        "mean": torch.zeros_like(parameter),
        "mean_square": torch.zeros_like(parameter),
    }


def _same_shape(parameters: list[Tensor]) -> Iterator[list[Tensor]]:
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


def _local(tensor: Tensor | None) -> Tensor:
    """The part of a tensor that this process holds; a plain tensor is all of it."""
    assert tensor is not None
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _direction(u_SRC: Tensor, variance: Tensor, like: Tensor) -> Tensor:
    """`muon_direction`; of a stack of shards where `like` is sharded, each process working on matrices of its own.

    Two exchanges of the stack and one of the variances; the iterations communicate nothing.
    """
    if not isinstance(like, DTensor):
        return muon_direction(u_SRC, variance)
    mesh, shape = like.device_mesh, torch.Size((len(u_SRC), *like.shape))
    by_shard = [Shard(p.dim + 1) if isinstance(p, Shard) else p for p in like.placements]
    by_matrix = [Shard(0) if isinstance(p, Shard) else p for p in like.placements]

    def spread(local: Tensor, placements: list[Placement], shape: torch.Size) -> DTensor:
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(local.contiguous(), mesh, placements, run_check=False, shape=shape, stride=stride)

    own_SRC = spread(u_SRC, by_shard, shape).redistribute(mesh, by_matrix).to_local()
    own_variance = spread(variance, [Replicate()] * mesh.ndim, variance.shape).redistribute(mesh, by_matrix).to_local()
    x_SRC = muon_direction(own_SRC, own_variance)
    variance.copy_(spread(own_variance, by_matrix, variance.shape).full_tensor())
    return spread(x_SRC, by_matrix, shape).redistribute(mesh, by_shard).to_local()
