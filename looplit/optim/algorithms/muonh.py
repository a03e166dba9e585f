"""MuonH (truncation study; arXiv 2603.28743)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from looplit.errors import require
from looplit.optim.algorithms.base import Algorithm, Group, check_matrices
from looplit.optim.algorithms.collectives import MASTER_BYTES, Collective, Matrices, exchange_of_matrices, stacks

if TYPE_CHECKING:
    from torch import Tensor

_PRODUCT_BYTES = 8  # of a value in float64


class MuonH(Algorithm):
    """Keeps W on the sphere of its first norm N = ‖W_0‖_F: U as Muon's with μ = 0.95; X = orthogonalised U.

    W ← W - lr·N·X/‖X‖_F; W ← W·N/‖W‖_F. There is no decay and no factor of the shape. W_0 is what the matrix is when it
    gets its first gradient, so that a core which growth fills keeps the norm of its copy.
    """

    keeps_norm = True

    def check(self, group: Group) -> None:
        super().check(group)
        check_matrices(group)
        decay = group["weight_decay"]
        require(decay == 0, "weight_decay", decay, "MuonH keeps the norm of every matrix and takes no decay")
        _check_norms(group)

    def initial_state(self, parameter: Tensor) -> dict[str, Tensor]:
        import torch

        precise = torch.promote_types(parameter.dtype, torch.float32)
        return {
            "momentum": torch.zeros_like(parameter, dtype=precise),
            "norm": torch.zeros((), dtype=precise, device=parameter.device),
        }

    def update(self, parameters: list[Tensor], state: Mapping[Tensor, dict[str, Tensor]], group: Group) -> None:
        from looplit.optim.exchange import same_shape

        for stack in same_shape(parameters):
            _update(stack, [state[parameter] for parameter in stack], group)

    def bytes_per_entry(self, parameter_bytes: int) -> int:
        """The momentum, always fp32."""
        return MASTER_BYTES

    def collectives(self, matrices: Sequence[Matrices], processes: int) -> list[Collective]:
        """Each stack there and back; then three float64 products per matrix are summed."""
        products = sum(number for number, *_ in matrices) * 3 * _PRODUCT_BYTES
        share = (processes - 1) / processes
        summed = Collective("sum MuonH's products", stacks(matrices, processes), 2 * products * share)
        return [exchange_of_matrices(matrices, processes), summed]


def _update(parameters: list[Tensor], states: list[dict[str, Tensor]], group: Group) -> None:
    import torch

    from looplit.optim.directions import MUONH_MOMENTUM, inner_products, nesterov_momentum, sphere_step
    from looplit.optim.exchange import Exchange, local
    from looplit.optim.polar import orthogonalize

    exchange = Exchange(parameters)
    u_SRC = nesterov_momentum(parameters, states, MUONH_MOMENTUM)
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


def _check_norms(group: Group) -> None:
    """MuonH cannot move a matrix of zeros: its sphere is a point. Matrices on the meta device have no norm yet."""
    import torch

    from looplit.optim.directions import inner_products
    from looplit.optim.exchange import Exchange, local, same_shape

    names = group.get("param_names", range(len(group["params"])))
    name_of = {id(parameter): name for parameter, name in zip(group["params"], names, strict=True)}
    with torch.no_grad():
        for stack in same_shape(parameter for parameter in group["params"] if not parameter.is_meta):
            squares = torch.stack([inner_products(local(parameter), local(parameter))[0] for parameter in stack])
            for parameter, total in zip(stack, Exchange(stack).total(squares).tolist(), strict=True):
                rule = "it is zero, and MuonH keeps every matrix at the norm it starts with"
                require(total > 0, "parameter", name_of[id(parameter)], rule)
