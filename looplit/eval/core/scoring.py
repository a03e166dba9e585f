"""Losses of the scored tokens of a batch, and what they make of each question.

Shape suffixes: B rows, T tokens, D width, N scored tokens, V vocabulary.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from looplit.errors import require
from looplit.eval.core.batches import Batch
from looplit.eval.passes import check_passes
from looplit.model.backbone import Backbone
from looplit.model.growth import Growable

_LOGITS_AT_ONCE = 2**26  # 256 MiB of fp32


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a model made of one question.

    Args:
        example: Index in the shuffled task.
        seed: Of the demonstrations.
        prediction: The choice with the lowest loss; in language modelling 0 if every token was right; else -1.
        correct: Whether that is the gold choice.
        losses: Mean token loss of every choice in nats; infinite where a choice has no scored tokens or its loss is
            not a number, so that it cannot win.
        answer_nats: Summed loss of the gold answer's tokens.
        answer_tokens: How many those are; 0 for an empty answer, which has no NLL.
        answer_bytes: Their UTF-8 length.
        splits_token: See `Question`.
    """

    example: int
    seed: int
    prediction: int
    correct: bool
    losses: tuple[float, ...]
    answer_nats: float
    answer_tokens: int
    answer_bytes: int
    splits_token: bool


class Scorer:
    """Scores batches with a model: a `Backbone`, a module that has one as `backbone`, or any tokens → logits.

    A backbone decodes the scored positions only, and serves all choices of a question in one row. Anything else is
    called with right-padded tokens (batch, tokens), must be causal, and return logits (batch, tokens, vocabulary).

    Args:
        model: The model, on its device and in evaluation mode.
        device: Where a plain callable wants its tokens; a module is asked for its own.
        passes: K to run at; the model's own by default.
    """

    def __init__(
        self, model: Callable[[Tensor], Tensor], device: str | torch.device = "cpu", passes: int | None = None
    ) -> None:
        backbone = model if isinstance(model, Backbone) else getattr(model, "backbone", None)
        self.model = model
        self.backbone = backbone if isinstance(backbone, Backbone) else None
        self.looped: Any = backbone if hasattr(backbone, "set_passes") else None
        require(passes is None or self.looped is not None, "passes", passes, "the model has no passes to set")
        if passes is not None and isinstance(self.looped, Growable):
            check_passes(self.looped, [passes])
        self.passes = passes
        first = next(model.parameters(), None) if isinstance(model, nn.Module) else None
        self.device = torch.device(device) if first is None else first.device

    @property
    def context(self) -> int | None:
        """Most tokens that the model takes, where it is known."""
        return getattr(getattr(self.looped, "config", None), "context", None)

    @property
    def vocabulary(self) -> int | None:
        """Token ids that the model knows, where that is known."""
        return getattr(getattr(self.looped, "config", None), "vocabulary", None)

    @property
    def shares_prefixes(self) -> bool:
        """Whether choices can go into one row."""
        return self.backbone is not None

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        """Evaluation mode, the asked-for K, no gradients and no compilation; everything is as before afterwards."""
        modes = (
            {module: module.training for module in self.model.modules()} if isinstance(self.model, nn.Module) else {}
        )
        before = self.looped.passes if self.passes is not None else None
        try:
            if isinstance(self.model, nn.Module):
                self.model.eval()
            if self.passes is not None:
                self.looped.set_passes(self.passes)
            # Rows come in many shapes: compiled blocks would recompile for each.
            with torch.no_grad(), torch.compiler.set_stance("force_eager"):
                yield
        finally:
            if before is not None:
                self.looped.set_passes(before)
            for module, training in modes.items():
                module.training = training

    def __call__(self, batch: Batch) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Loss in nats of every scored token, and whether it was the most probable one."""
        tokens_BT, reads_N, targets_N = (
            t.to(self.device, non_blocking=True) for t in (batch.tokens_BT, batch.reads_N, batch.targets_N)
        )
        if self.backbone is not None:
            backbone = self.backbone
            branches_BT = None if batch.branches_BT is None else batch.branches_BT.to(self.device)
            scored_2N = backbone(
                tokens_BT,
                branches_BT=branches_BT,
                readout=lambda y_BTD: _score(y_BTD.flatten(0, 1)[reads_N], targets_N, backbone.decode_normed),
            )
        else:
            logits_BTV = self.model(tokens_BT)
            scored_2N = _score(logits_BTV.flatten(0, 1)[reads_N], targets_N, lambda logits_NV: logits_NV)
        loss_N, hit_N = scored_2N.cpu().double().numpy()
        return loss_N, hit_N > 0

    def idle(self) -> Tensor:
        """One forward of one token: sharded models need every process to take part in each."""
        return self.model(torch.zeros(1, 1, dtype=torch.long, device=self.device))


def outcomes(
    batch: Batch, loss_N: NDArray[np.float64], hit_N: NDArray[np.bool_], token_bytes: NDArray[np.int64]
) -> Iterator[Outcome]:
    """What the scored tokens of a batch say about its questions."""
    targets_N = batch.targets_N.numpy()
    at = 0
    for question in batch.questions:
        losses, answer = [], slice(0, 0)
        every_hit = False
        for c, start in enumerate(question.starts):
            begin = at - question.first_read(c)  # where the sequence's token 0 would stand
            end = begin + question.length(c)
            losses.append(_mean(loss_N[begin + start : end]))
            if c == question.gold:
                answer = slice(begin + question.answer_start, end)
                every_hit = end > begin + start and bool(hit_N[begin + start : end].all())
            at = end
        if question.by_argmax:
            prediction = 0 if every_hit else -1
        else:
            prediction = losses.index(min(losses)) if min(losses) < math.inf else -1
        yield Outcome(
            example=question.example,
            seed=question.seed,
            prediction=prediction,
            correct=prediction == question.gold,
            losses=tuple(losses),
            answer_nats=float(loss_N[answer].sum()),
            answer_tokens=answer.stop - answer.start,
            answer_bytes=int(token_bytes[targets_N[answer]].sum()),
            splits_token=question.splits_token,
        )


def _score(state_ND: Tensor, targets_N: Tensor, decode: Callable[[Tensor], Tensor]) -> Tensor:
    """Loss and hit of every target, (2, N), with the logits of a limited number of tokens in memory at a time."""
    if not len(targets_N):
        return torch.zeros(2, 0)
    chunk = max(1, _LOGITS_AT_ONCE // decode(state_ND[:1]).shape[-1])
    parts = []
    for state, targets in zip(state_ND.split(chunk), targets_N.split(chunk), strict=True):
        logits_NV = decode(state).float()
        loss_N = F.cross_entropy(logits_NV, targets, reduction="none")
        hit_N = (logits_NV.argmax(-1) == targets) & ~loss_N.isnan()
        parts.append(torch.stack((loss_N, hit_N.float())))
    return torch.cat(parts, dim=1)


def _mean(losses: NDArray[np.float64]) -> float:
    mean = float(losses.mean()) if len(losses) else math.inf
    return math.inf if math.isnan(mean) else mean
