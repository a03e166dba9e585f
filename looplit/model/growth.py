"""Growth of a running model from K0 to more passes (growth study, Algorithm 1), without a Trainer."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from looplit.errors import InputError
from looplit.model.config import check_growth

PASSES_KEY = "looplit_passes"  # where a checkpoint keeps the current K


@runtime_checkable
class Growable(Protocol):
    """What a backbone needs so that it can grow. `looplit.model.Backbone` has it; so can anyone's.

    Attributes:
        passes: Current number of passes, K.
        tied: Whether all passes share one core.
        cores: The stored cores in the order of the passes, all of the same shape; dormant ones included.
    """

    passes: int

    @property
    def tied(self) -> bool: ...

    @property
    def cores(self) -> nn.ModuleList: ...

    def set_passes(self, passes: int) -> None:
        """Makes the following forwards run `passes` passes."""


def growable_backbone(model: Any) -> Growable:
    """The model itself, or its `backbone`, whose passes can be set.

    Raises:
        InputError: It has none.
    """
    backbone = model if isinstance(model, Growable) else getattr(model, "backbone", None)
    if not isinstance(backbone, Growable):
        raise InputError(f"model = {type(model).__name__}: needs a `backbone` with passes, tied, cores and set_passes")
    return backbone


@torch.no_grad()
def grow(backbone: Growable, passes: int, *, any_target: bool = False) -> list[tuple[int, int]]:
    """Grows `backbone` to `passes` passes in place.

    Untied: core j (j ≥ K0) becomes a copy of core j mod K0, in storage of its own. Tied: the one core is applied more
    often. The optimizer needs no change: trained cores keep their state, and dormant ones have had no update, so
    theirs is still zero.

    Args:
        backbone: The model.
        passes: K after growth.
        any_target: Whether an untied model may grow to a K that is not a multiple of its present one.

    Returns:
        The copies made, as (source core, filled core), counted from 0; none for a tied core.

    Raises:
        InputError: See `check_growth`; nothing was changed then.
    """
    before, stored = backbone.passes, len(backbone.cores)
    check_growth(before, passes, tied=backbone.tied, stored_cores=stored, any_target=any_target)
    copies = [] if backbone.tied else [(j % before, j) for j in range(before, passes)]
    for source, filled in copies:
        for value, into in zip(_tensors(backbone.cores[source]), _tensors(backbone.cores[filled]), strict=True):
            into.copy_(value)
    backbone.set_passes(passes)
    return copies


def save_passes(backbone: Growable, checkpoint: dict[str, Any]) -> None:
    """Puts the current K into a checkpoint, unless a callback has put another one there."""
    checkpoint.setdefault(PASSES_KEY, backbone.passes)


def restore_passes(backbone: Growable, checkpoint: dict[str, Any]) -> None:
    """Sets K to what the checkpoint was saved at; a checkpoint without the entry changes nothing."""
    if PASSES_KEY in checkpoint:
        backbone.set_passes(checkpoint[PASSES_KEY])


def _tensors(core: nn.Module) -> list[torch.Tensor]:
    return [*core.parameters(), *core.buffers()]
