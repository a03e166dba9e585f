"""Boundary operators between the stages (growth study, Eq. 3): BO(h, e) = RMSNorm(h) + α·e and its parts."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from looplit.model.block import rms_norm
from looplit.model.config import Boundary, InitialState

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
