"""How far each stage moves the residual stream, measured while a model runs."""

from __future__ import annotations

from torch import Tensor

from looplit.model.backbone import Observer, Site


class ResidualMovement:
    """RMS of (out - in) of the prelude, of every pass, and of the coda.

    Attributes:
        moved: Of the stages seen since `observer` was last called, as "prelude", "core_1", …, "coda".
    """

    def __init__(self) -> None:
        self.moved: dict[str, Tensor] = {}

    def observer(self) -> Observer:
        """Begins anew, and gives what a backbone is to call at every site."""
        self.moved = {}
        read: dict[str, Tensor] = {}

        def observe(site: Site, state_BTD: Tensor) -> None:
            stage = f"{site.stage}_{site.pass_}" if site.pass_ else site.stage
            state = state_BTD.detach()
            if site.block == 0:
                read[stage] = state
            self.moved[stage] = (state - read[stage]).square().mean().sqrt()

        return observe
