"""AdamW, as torch's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from looplit.optim.algorithms.base import Algorithm, Group

if TYPE_CHECKING:
    from torch import Tensor


class AdamW(Algorithm):
    """AdamW with bias correction and decoupled decay (arXiv 1711.05101), torch's own; for parameters of any shape."""

    # The study prints no learning rate for AdamW on the matrices. This share of Muon's (0.002 at d8) is our choice.
    learning_rate_share = 0.05

    def initial_state(self, parameter: Tensor) -> dict[str, Tensor]:
        import torch

        return {
            "step": torch.zeros((), dtype=torch.float32),
            "mean": torch.zeros_like(parameter),
            "mean_square": torch.zeros_like(parameter),
        }

    def update(self, parameters: list[Tensor], state: Mapping[Tensor, dict[str, Tensor]], group: Group) -> None:
        from torch.optim.adamw import adamw

        from looplit.optim.exchange import local

        states = [state[parameter] for parameter in parameters]
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

    def bytes_per_entry(self, parameter_bytes: int) -> int:
        """Two moments in the parameter's own precision."""
        return 2 * parameter_bytes
