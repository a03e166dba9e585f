"""Loss at other numbers of passes than trained (growth study: test-time passes)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from looplit.errors import InputError, require
from looplit.model.backbone import Backbone


@dataclass(frozen=True)
class PassesResult:
    """Loss in nats per token by number of passes.

    Args:
        trained: K that the losses are compared with.
        losses: K → loss; `trained` is among them.
        tokens: Tokens scored.
    """

    trained: int
    losses: dict[int, float]
    tokens: int

    def excess(self, passes: int) -> float:
        """Loss at `passes` minus loss at the trained K: above zero is worse.

        >>> round(PassesResult(2, {1: 3.5, 2: 3.0}, 10).excess(1), 3)
        0.5
        """
        return self.losses[passes] - self.losses[self.trained]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        rows = [{"passes": k, "loss": loss, "excess": self.excess(k)} for k, loss in self.losses.items()]
        return {"trained_passes": self.trained, "tokens": self.tokens, "losses": rows}


def check_passes(backbone: Backbone, passes: Sequence[int]) -> None:
    """Says whether a model can run each of `passes`.

    Raises:
        InputError: None given, one below 1, or one above the stored cores of an untied model.
    """
    most = backbone.max_passes
    require(len(passes) > 0, "passes", list(passes), "must name at least one number")
    for k in passes:
        require(k >= 1, "passes", k, "must be at least 1")
        require(most is None or k <= most, "passes", k, f"an untied model can run at most its {most} stored cores")


@torch.no_grad()
def loss_at_passes(
    backbone: Backbone,
    batches: Sequence[tuple[Tensor, Tensor]],
    passes: Iterable[int],
    *,
    reduce: Callable[[Tensor], Tensor] = lambda sums: sums,
) -> PassesResult:
    """Mean loss at each of `passes` and at the present K, which stays what it is.

    Args:
        backbone: The model.
        batches: Pairs (inputs, targets) of token ids (B, T); negative targets do not count.
        passes: K's to evaluate.
        reduce: Sums a tensor over processes, each of which has batches of its own, as many as the others.

    Raises:
        InputError: See `check_passes`; or nothing to score.
    """
    wanted, trained = sorted(set(passes)), backbone.passes
    check_passes(backbone, wanted)
    losses: dict[int, float] = {}
    tokens = 0
    try:
        for k in sorted({*wanted, trained}):
            backbone.set_passes(k)
            sums = reduce(_sums(backbone, batches))
            tokens = round(float(sums[1]))
            if tokens == 0:
                raise InputError("batches = 0 tokens: nothing to score")
            losses[k] = float(sums[0] / sums[1])
    finally:
        backbone.set_passes(trained)
    return PassesResult(trained, losses, tokens)


def _sums(backbone: Backbone, batches: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Summed loss and number of targets that count."""
    sums = torch.zeros(2, dtype=torch.float64, device=backbone.head.weight.device)
    for inputs_BT, targets_BT in batches:
        ignored = targets_BT.masked_fill(targets_BT < 0, -100)
        losses_BT = backbone(inputs_BT, ignored, reduction="none")
        counts_BT = targets_BT >= 0
        sums += torch.stack([losses_BT[counts_BT].double().sum(), counts_BT.sum().double()])
    return sums
