"""Loss at other numbers of passes than trained (growth study: test-time passes)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from looplit.data.batches import Batch, inputs_and_targets
from looplit.errors import InputError, require, require_whole
from looplit.model.backbone import Backbone
from looplit.model.growth import Growable, growable_backbone
from looplit.model.loss import IGNORED


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


def check_passes(backbone: Growable, passes: Sequence[int], awake: int | None = None) -> None:
    """Says whether a model can run each of `passes`.

    Args:
        backbone: The model.
        passes: K's to run.
        awake: Of an untied model, cores that were trained, see `awake_passes`: to run more is refused, too.

    Raises:
        InputError: None given, one below 1, or one above the stored, or awake, cores of an untied model.
    """
    check_numbers(passes)
    stored = len(backbone.cores)
    for k in [] if backbone.tied else passes:
        require(k <= stored, "passes", k, f"an untied model can run at most its {stored} stored cores")
        require(awake is None or k <= awake, "passes", k, f"only {awake} of the {stored} stored cores were trained")


def check_numbers(passes: Any) -> None:
    """Refuses what are not K's.

    Raises:
        InputError: No list of whole numbers from 1 up, at least one.
    """
    listed = isinstance(passes, Sequence) and not isinstance(passes, str)
    require(listed and len(passes) > 0, "passes", passes, "must list at least one whole number")
    for k in passes:
        require_whole("passes", k)


def awake_passes(model: Any) -> int | None:
    """Most passes that run trained cores only, of a module with a `backbone`; None if it is tied, so without a limit.

    An untied model that has not grown yet has cores that were never trained. After growth, and where K is drawn, the
    limit is the largest K that was trained.
    """
    backbone = getattr(model, "backbone", None)
    if not isinstance(backbone, Growable) or backbone.tied:
        return None
    trained: int = getattr(getattr(model, "meter", None), "most_passes", 0)
    return max(backbone.passes, trained)


@torch.no_grad()
def loss_at_passes(
    model: Any,
    batches: Sequence[Batch],
    passes: Iterable[int],
    *,
    reduce: Callable[[Tensor], Tensor] = lambda sums: sums,
) -> PassesResult:
    """Mean loss at each of `passes` and at the present K, which stays what it is.

    Cores of an untied model that were never trained are run as they are: see `awake_passes`.

    Args:
        model: A `Backbone`; or a module that gives logits (B, T, vocabulary) for tokens (B, T), and has a `backbone`
            with `passes`, `tied`, `cores` and `set_passes`.
        batches: Windows of token ids (B, T + 1), or pairs (inputs, targets) (B, T); negative targets do not count.
        passes: K's to evaluate.
        reduce: Sums a tensor over processes, each of which has batches of its own, as many as the others.

    Raises:
        InputError: See `check_passes`; or nothing to score.
    """
    backbone = growable_backbone(model)
    wanted, trained = sorted(set(passes)), backbone.passes
    check_passes(backbone, wanted)
    losses: dict[int, float] = {}
    tokens = 0
    try:
        for k in sorted({*wanted, trained}):
            backbone.set_passes(k)
            sums = reduce(_sums(model, batches))
            tokens = round(float(sums[1]))
            if tokens == 0:
                raise InputError("batches = 0 tokens: nothing to score")
            losses[k] = float(sums[0] / sums[1])
    finally:
        backbone.set_passes(trained)
    return PassesResult(trained, losses, tokens)


def _losses(model: Any, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
    """Loss of every target, (B, T); 0 where it does not count."""
    targets = targets_BT.long().masked_fill(targets_BT < 0, IGNORED)
    backbone = growable_backbone(model)
    if isinstance(backbone, Backbone):
        return backbone(inputs_BT, targets, reduction="none")
    logits_BTV = model(inputs_BT)
    return cross_entropy(logits_BTV.float().mT, targets, ignore_index=IGNORED, reduction="none")


def _sums(model: Any, batches: Sequence[Batch]) -> Tensor:
    """Summed loss and number of targets that count."""
    sums = torch.zeros(2, dtype=torch.float64, device=next(growable_backbone(model).cores.parameters()).device)
    for batch in batches:
        inputs_BT, targets_BT = inputs_and_targets(batch)
        losses_BT = _losses(model, inputs_BT, targets_BT)
        counts_BT = targets_BT >= 0
        sums += torch.stack([losses_BT[counts_BT].double().sum(), counts_BT.sum().double()])
    return sums
