"""Muon or MuonH for the block matrices and AdamW for the rest, as one optimizer (growth study, appendix A).

One `torch.optim.Optimizer` keeps Lightning's automatic optimization: accumulation, clipping, one step per global_step.

Shape suffixes: S matrices of one shape, R rows (output features), C columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from looplit.errors import require
from looplit.optim.directions import MUONH_MOMENTUM, inner_products, muon_direction, muon_momentum, sphere_step
from looplit.optim.exchange import Exchange, local, same_shape
from looplit.optim.polar import orthogonalize

ALGORITHMS = ("muon", "muonh", "adamw")
_ADAMW_DEFAULTS = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8}


class MuonAdamW(torch.optim.Optimizer):
    """Each parameter group names its `algorithm`: "muon" or "muonh" (2-D matrices), or "adamw".

    Muon of a matrix W with gradient G, t counted from 0: M ← μM + (1-μ)G; U = (1-μ)G + μM; rows of U divided by their
    norm; X = orthogonalised U; X scaled by V^-1/2 (V the running mean square over the longer side) with its Frobenius
    norm kept; W ← W - lr'·X - lr'·WD·W·[X·W ≥ 0], lr' = lr·sqrt(max(1, R/C)).

    MuonH (truncation study; arXiv 2603.28743) keeps W on the sphere of its first norm N = ‖W_0‖_F: U as above with
    μ = 0.95; X = orthogonalised U; W ← W - lr·N·X/‖X‖_F; W ← W·N/‖W‖_F. There is no decay and no factor of the shape.
    W_0 is what the matrix is when it gets its first gradient, so that a core which growth fills keeps the norm of its
    copy.

    State exists from the start for every parameter, also for those that get no gradient yet: a parameter whose `grad`
    is None is not touched (no update, no decay) and its state stays zero, which is what growth needs.

    Sharded parameters (`DTensor`, as FSDP2 makes them) get the update of a single process, bit for bit: matrices of one
    shape are stacked, exchanged once so that each process holds whole matrices of its own, and exchanged back.

    Args:
        params: Parameter groups with the keys `params`, `algorithm`, `lr` and optionally `weight_decay`, `betas`,
            `eps` (the last two for AdamW). Messages name parameters that are given as (name, parameter).

    Raises:
        InputError: An unknown algorithm, Muon for a tensor that is not a matrix, MuonH with weight decay or for a
            matrix of zeros.
    """

    def __init__(self, params: Iterable[dict[str, Any]]) -> None:
        super().__init__(params, {"algorithm": "adamw", "weight_decay": 0.0, **_ADAMW_DEFAULTS, "steps_taken": 0})
        for group in self.param_groups:
            _check(group)
            for parameter in group["params"]:
                self.state[parameter] = _initial_state(parameter, group["algorithm"])

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            live = [parameter for parameter in group["params"] if parameter.grad is not None]
            if group["algorithm"] == "adamw":
                self._adamw(live, group)
            else:
                update = self._muon if group["algorithm"] == "muon" else self._muonh
                for stack in same_shape(live):
                    update(stack, group)
            group["steps_taken"] += 1
        return loss

    def _muon(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        states, exchange = [self.state[parameter] for parameter in parameters], Exchange(parameters)
        u_SRC = self._nesterov_momentum(parameters, muon_momentum(group["steps_taken"]))
        own_variance = exchange.own(torch.stack([state["variance"] for state in states]))
        x_SRC = exchange.to_shards(muon_direction(exchange.to_matrices(u_SRC), own_variance))
        rows, columns = parameters[0].shape
        lr = group["lr"] * max(1, rows / columns) ** 0.5
        for parameter, state, x, variance in zip(parameters, states, x_SRC, exchange.all(own_variance), strict=True):
            state["variance"].copy_(variance)
            weight = local(parameter)
            decayed = weight * (x * weight >= 0)
            weight.sub_(x.add(decayed, alpha=group["weight_decay"]), alpha=lr)

    def _muonh(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        states, exchange = [self.state[parameter] for parameter in parameters], Exchange(parameters)
        u_SRC = self._nesterov_momentum(parameters, MUONH_MOMENTUM)
        x_SRC = exchange.to_shards(orthogonalize(exchange.to_matrices(u_SRC)))
        weights = [local(parameter) for parameter in parameters]
        products_S3 = exchange.total(
            torch.stack([inner_products(weight.to(x.dtype), x) for weight, x in zip(weights, x_SRC, strict=True)])
        )
        norm_S = torch.stack([state["norm"] for state in states])
        norm_S = torch.where(norm_S > 0, norm_S, products_S3[:, 0].sqrt().to(norm_S.dtype))  # zero: the first gradient
        steps_and_scales = zip(*sphere_step(products_S3, norm_S, group["lr"]), strict=True)
        for weight, state, x, norm, (step, scale) in zip(weights, states, x_SRC, norm_S, steps_and_scales, strict=True):
            state["norm"].copy_(norm)
            weight.copy_(scale * (weight - step * x))

    def _nesterov_momentum(self, parameters: list[Tensor], mu: float) -> Tensor:
        """U of a stack, after M ← μM + (1-μ)G: this process's rows, (matrices, rows, columns)."""
        ahead = []
        for parameter in parameters:
            momentum = local(self.state[parameter]["momentum"])
            gradient = local(parameter.grad).to(momentum.dtype)
            momentum.lerp_(gradient, 1 - mu)
            ahead.append(gradient.lerp(momentum, mu))
        return torch.stack(ahead)

    def _adamw(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        if not parameters:
            return
        states = [self.state[parameter] for parameter in parameters]
        beta1, beta2 = group["betas"]
        adamw(
            [local(parameter) for parameter in parameters],
            [local(parameter.grad) for parameter in parameters],
            [local(state["mean"]) for state in states],
            [local(state["mean_square"]) for state in states],
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


def _check(group: dict[str, Any]) -> None:
    algorithm = group["algorithm"]
    require(algorithm in ALGORITHMS, "algorithm", algorithm, f"must be one of {', '.join(ALGORITHMS)}")
    for name in ("lr", "weight_decay", "eps"):
        require(group[name] >= 0, name, group[name], "must be at least 0")
    for parameter in group["params"] if algorithm != "adamw" else ():
        require(parameter.ndim == 2, "shape", tuple(parameter.shape), "Muon takes matrices only")
    if algorithm == "muonh":
        decay = group["weight_decay"]
        require(decay == 0, "weight_decay", decay, "MuonH keeps the norm of every matrix and takes no decay")
        _check_norms(group)


@torch.no_grad()
def _check_norms(group: dict[str, Any]) -> None:
    """MuonH cannot move a matrix of zeros: its sphere is a point. Matrices on the meta device have no norm yet."""
    names = group.get("param_names", range(len(group["params"])))
    name_of = {id(parameter): name for parameter, name in zip(group["params"], names, strict=True)}
    for stack in same_shape(parameter for parameter in group["params"] if not parameter.is_meta):
        squares = torch.stack([inner_products(local(parameter), local(parameter))[0] for parameter in stack])
        for parameter, total in zip(stack, Exchange(stack).total(squares).tolist(), strict=True):
            rule = "it is zero, and MuonH keeps every matrix at the norm it starts with"
            require(total > 0, "parameter", name_of[id(parameter)], rule)


def _initial_state(parameter: Tensor, algorithm: str) -> dict[str, Tensor]:
    precise = torch.promote_types(parameter.dtype, torch.float32)
    if algorithm == "muonh":
        return {
            "momentum": torch.zeros_like(parameter, dtype=precise),
            "norm": torch.zeros((), dtype=precise, device=parameter.device),
        }
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
