"""Update rules of Muon and MuonH on stacks of whole matrices, without an optimizer.

Shape suffixes: S matrices of one shape, R rows (output features), C columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from looplit.optim.exchange import local
from looplit.optim.polar import orthogonalize

MUONH_MOMENTUM = 0.95
_ROW_FLOOR = 1e-7
_VARIANCE_FLOOR = 1e-10
_VARIANCE_DECAY = 0.95


def muon_momentum(t: int) -> float:
    """μ of Muon at optimizer step t (from 0): 0.85 + 0.10·min(t/300, 1)."""
    return 0.85 + 0.10 * min(t / 300, 1)


def nesterov_momentum(parameters: list[Tensor], states: list[dict[str, Tensor]], mu: float) -> Tensor:
    """U of a stack, after M ← μM + (1-μ)G: this process's rows, (matrices, rows, columns)."""
    ahead = []
    for parameter, state in zip(parameters, states, strict=True):
        momentum = local(state["momentum"])
        gradient = local(parameter.grad).to(momentum.dtype)
        momentum.lerp_(gradient, 1 - mu)
        ahead.append(gradient.lerp(momentum, mu))
    return torch.stack(ahead)


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


def inner_products(weight: Tensor, x: Tensor) -> Tensor:
    """⟨W, W⟩, ⟨W, X⟩ and ⟨X, X⟩ of one matrix, or what its shard adds to them.

    In float64, so that their sums over the shards, in whatever order, give the same weights after rounding to fp32.
    """
    return torch.stack([(a * b).sum(dtype=torch.float64) for a, b in ((weight, weight), (weight, x), (x, x))])


def sphere_step(products_S3: Tensor, norm_S: Tensor, lr: float) -> tuple[Tensor, Tensor]:
    """(s, z) of every matrix, for a step and the way back to the sphere ‖W‖ = N: W ← z·(W - s·X).

    s = lr·N/‖X‖ makes the update lr times as long as the weights, and z = N/‖W - s·X‖, from the `inner_products` alone.

    Args:
        products_S3: `inner_products` of the whole matrices.
        norm_S: N, their Frobenius norms at the start.
        lr: Learning rate.
    """
    ww, wx, xx = products_S3.unbind(-1)
    step = torch.where(xx > 0, lr * norm_S / xx.sqrt(), 0.0)  # a zero gradient gives a zero update
    return step, norm_S / (ww - 2 * step * wx + step.square() * xx).sqrt()
