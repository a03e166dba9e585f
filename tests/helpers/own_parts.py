"""A boundary operator and an optimizer algorithm as a user would write them, named in configurations by import path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from looplit.model import BoundaryOperator
from looplit.model.precision import compute_dtype, rms_norm
from looplit.optim import Algorithm
from looplit.optim.exchange import local


class GatedInjection(BoundaryOperator):
    """RMSNorm(h) + g ⊙ We, with a learned matrix W, which starts as half the identity, and a learned vector g of 1."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"weight": (self.width, self.width), "gate": (self.width,)}

    def start(self, name: str, zeros: Tensor, generator: Generator) -> Tensor:
        return zeros.fill_diagonal_(0.5) if name == "weight" else zeros.fill_(1.0)

    def apply(self, h_BTD: Tensor, e_BTD: Tensor, **parameters: Tensor) -> Tensor:
        weight, gate = parameters["weight"], parameters["gate"]
        return rms_norm(h_BTD) + gate * F.linear(e_BTD.to(compute_dtype(weight)), weight).to(h_BTD.dtype)


class LaterInjection(GatedInjection):
    """The same from the second pass on, with a matrix and a vector drawn at random; nothing flows back into e."""

    mixes_first = False

    def start(self, name: str, zeros: Tensor, generator: Generator) -> Tensor:
        return BoundaryOperator.start(self, name, zeros, generator)

    def apply(self, h_BTD: Tensor, e_BTD: Tensor, **parameters: Tensor) -> Tensor:
        return super().apply(h_BTD, e_BTD.detach(), **parameters)

    @property
    def trains_prelude(self) -> bool:
        return False


class ScaledInjection(BoundaryOperator):
    """h + α·tanh(e): injects by α and learns nothing."""

    injects = True

    def apply(self, h_BTD: Tensor, e_BTD: Tensor, **parameters: Tensor) -> Tensor:
        return h_BTD + self.injection_scale * e_BTD.tanh()


class Tensor3D(BoundaryOperator):
    """Learns what is neither a matrix nor a vector."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"weight": (2, self.width, self.width)}

    def apply(self, h_BTD: Tensor, e_BTD: Tensor, **parameters: Tensor) -> Tensor:
        return h_BTD


class Lion(Algorithm):
    """Lion (arXiv 2302.06675): W ← W - lr·(sign(β1·M + (1-β1)·G) + WD·W); M ← β2·M + (1-β2)·G."""

    def initial_state(self, parameter: Tensor) -> dict[str, Tensor]:
        return {"momentum": torch.zeros_like(parameter)}

    def update(
        self, parameters: list[Tensor], state: Mapping[Tensor, dict[str, Tensor]], group: dict[str, Any]
    ) -> None:
        beta1, beta2 = group["betas"]
        for parameter in parameters:
            momentum, gradient = local(state[parameter]["momentum"]), local(parameter.grad)
            weight = local(parameter)
            step = momentum.lerp(gradient, 1 - beta1).sign()
            weight.sub_(step.add(weight, alpha=group["weight_decay"]), alpha=group["lr"])
            momentum.lerp_(gradient, 1 - beta2)

    def bytes_per_entry(self, parameter_bytes: int) -> int:
        return parameter_bytes


class LionAgain(Lion):
    """The same by another name."""


class SharedLion(Lion):
    """The same with a learning rate that follows Muon's."""

    learning_rate_share = 0.01


class Unfinished(Algorithm):
    """Says nothing."""


class NoEquation(BoundaryOperator):
    """Says nothing."""
