"""Boundary operators between the stages: BO(h, e) = RMSNorm(h) + α·e and its parts (growth study, Eq. 3), and W[e; h].

Shape suffixes: B batch, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from looplit.model.block import compute_dtype, rms_norm
from looplit.model.config import BackboneConfig, Boundary, InitialState

_OPERATORS: dict[Boundary, Callable[[Tensor, Tensor, float], Tensor]] = {
    "identity": lambda h, e, alpha: h,
    "norm": lambda h, e, alpha: rms_norm(h),
    "inject": lambda h, e, alpha: h + alpha * e,
    "norm_inject": lambda h, e, alpha: rms_norm(h) + alpha * e,
}


class BoundaryOperator(nn.Module):
    """Mixes the state with the prelude's output before a pass (φ) or before the coda (ρ).

    Args:
        kind: Which operator.
        injection_scale: α.
        initial_state: What the first pass reads under an injecting operator, see `BackboneConfig`.
    """

    def __init__(self, kind: Boundary, injection_scale: float, initial_state: InitialState = "zero") -> None:
        super().__init__()
        self.kind = kind
        self.injection_scale = injection_scale
        self.initial_state = initial_state

    def first(self, e_BTD: Tensor) -> Tensor:
        """What the first pass reads. With h_0 = 0 every injecting operator gives α·e, since RMSNorm(0) = 0.

        An operator that does not inject is not applied here: the first pass then reads e as it is.
        """
        reads_alpha_e = "inject" in self.kind and self.initial_state == "zero"
        return self.injection_scale * e_BTD if reads_alpha_e else e_BTD

    def forward(self, h_BTD: Tensor, e_BTD: Tensor) -> Tensor:
        return _OPERATORS[self.kind](h_BTD, e_BTD, self.injection_scale)

    def extra_repr(self) -> str:
        return f"{self.kind}, injection_scale={self.injection_scale}, initial_state={self.initial_state}"


class LinearBoundary(nn.Module):
    """h ← W[e; h] before every pass, W of shape (D, 2·D) and the same for all passes (truncation study, after Huginn).

    The product runs in the precision of the weights, as a branch does; its result joins the residual stream in the
    precision of that.

    Args:
        width: D.
        initial_state: h_0, the state that is mixed before the first pass: zero, or "prelude" for e.
    """

    def __init__(self, width: int, initial_state: InitialState) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, 2 * width))
        self.initial_state = initial_state

    def first(self, e_BTD: Tensor) -> Tensor:
        """What the first pass reads: W[e; h_0]."""
        return self(e_BTD if self.initial_state == "prelude" else torch.zeros_like(e_BTD), e_BTD)

    def forward(self, h_BTD: Tensor, e_BTD: Tensor) -> Tensor:
        both = torch.cat((e_BTD, h_BTD), dim=-1).to(compute_dtype(self.weight))
        return F.linear(both, self.weight).to(h_BTD.dtype)

    def extra_repr(self) -> str:
        return f"linear, initial_state={self.initial_state}"


def pass_boundary(config: BackboneConfig) -> BoundaryOperator | LinearBoundary:
    """φ of a backbone."""
    if config.boundary == "linear":
        return LinearBoundary(config.width, config.initial_state)
    return BoundaryOperator(config.boundary, config.injection_scale or 0.0, config.initial_state)
