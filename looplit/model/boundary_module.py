"""The parameters of a boundary operator within a backbone.

Shape suffixes: B batch, T tokens, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from looplit.model.boundary import BoundaryOperator


class Boundary(nn.Module):
    """Holds what an operator learns, under the names that it gives, and applies it.

    Args:
        operator: φ or ρ of a backbone.
    """

    def __init__(self, operator: BoundaryOperator) -> None:
        super().__init__()
        self.operator = operator
        for name, shape in operator.shapes().items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))

    def first(self, e_BTD: Tensor) -> Tensor:
        """What the first pass reads."""
        return self.operator.first(e_BTD, **dict(self.named_parameters(recurse=False)))

    def forward(self, h_BTD: Tensor, e_BTD: Tensor) -> Tensor:
        return self.operator.apply(h_BTD, e_BTD, **dict(self.named_parameters(recurse=False)))

    def extra_repr(self) -> str:
        operator = self.operator
        kind, scale, state = type(operator).__name__, operator.injection_scale, operator.initial_state
        return f"{kind}, injection_scale={scale}, initial_state={state}"
