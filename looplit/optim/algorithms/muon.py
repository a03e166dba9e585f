"""Muon (growth study, appendix A)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from looplit.optim.algorithms.base import Algorithm, Group, check_matrices
from looplit.optim.algorithms.collectives import MASTER_BYTES, Collective, Matrices, exchange_of_matrices, stacks

if TYPE_CHECKING:
    from torch import Tensor


class Muon(Algorithm):
    """Muon of a matrix W with gradient G, t counted from 0.

    M ← μM + (1-μ)G; U = (1-μ)G + μM; rows of U divided by their norm; X = orthogonalised U; X scaled by V^-1/2 (V the
    running mean square over the longer side) with its Frobenius norm kept; W ← W - lr'·X - lr'·WD·W·[X·W ≥ 0],
    lr' = lr·sqrt(max(1, R/C)).
    """

    learning_rate_share = 1.0

    def check(self, group: Group) -> None:
        super().check(group)
        check_matrices(group)

    def initial_state(self, parameter: Tensor) -> dict[str, Tensor]:
        import torch

        precise = torch.promote_types(parameter.dtype, torch.float32)
        side = 0 if parameter.shape[0] >= parameter.shape[1] else 1
        return {
            "momentum": torch.zeros_like(parameter, dtype=precise),
            "variance": torch.zeros(parameter.shape[side], dtype=precise, device=parameter.device),
        }

    def update(self, parameters: list[Tensor], state: Mapping[Tensor, dict[str, Tensor]], group: Group) -> None:
        from looplit.optim.exchange import same_shape

        for stack in same_shape(parameters):
            _update(stack, [state[parameter] for parameter in stack], group)

    def bytes_per_entry(self, parameter_bytes: int) -> int:
        """The momentum, always fp32."""
        return MASTER_BYTES

    def collectives(self, matrices: Sequence[Matrices], processes: int) -> list[Collective]:
        """Each stack there and back; then its variances, a value per row or column of the longer side."""
        variances = sum(number * max(rows, columns) for number, rows, columns in matrices) * MASTER_BYTES
        share = (processes - 1) / processes
        gathered = Collective("gather Muon's variances", stacks(matrices, processes), variances * share)
        return [exchange_of_matrices(matrices, processes), gathered]


def _update(parameters: list[Tensor], states: list[dict[str, Tensor]], group: Group) -> None:
    import torch

    from looplit.optim.directions import muon_direction, muon_momentum, nesterov_momentum
    from looplit.optim.exchange import Exchange, local

    exchange = Exchange(parameters)
    u_SRC = nesterov_momentum(parameters, states, muon_momentum(group["steps_taken"]))
    own_variance = exchange.own(torch.stack([state["variance"] for state in states]))
    x_SRC = exchange.to_shards(muon_direction(exchange.to_matrices(u_SRC), own_variance))
    rows, columns = parameters[0].shape
    lr = group["lr"] * max(1, rows / columns) ** 0.5
    for parameter, state, x, variance in zip(parameters, states, x_SRC, exchange.all(own_variance), strict=True):
        state["variance"].copy_(variance)
        weight = local(parameter)
        decayed = weight * (x * weight >= 0)
        weight.sub_(x.add(decayed, alpha=group["weight_decay"]), alpha=lr)
