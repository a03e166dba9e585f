"""Accuracy and answer NLL of one task over an evaluation, right across processes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torchmetrics import Metric

from looplit.eval.core.scoring import Outcome

_SUMS = ("examples", "skipped", "correct", "split_tokens", "answers", "answer_nll", "answer_nats", "answer_bytes")


class TaskScores(Metric):
    """Scores of one task for every seed, as sums that processes add up.

    Accuracy is correct over examples. The answer NLL is the mean over examples of each answer's mean token loss, in
    nats per token; bits per byte is a sum over a sum: all nats over ln 2 times all bytes.

    Args:
        seeds: Of the demonstrations.

    Example:
        >>> scores = TaskScores(seeds=[0])
        >>> scores.update([Outcome(0, 0, 1, True, (2.0, 1.0), 20.0, 10, 40, False)])
        >>> scores.update([Outcome(1, 0, 1, False, (2.0, 1.0), 6.0, 2, 2, False)])
        >>> values = scores.compute()
        >>> [round(float(values[name]), 4) for name in ("accuracy", "loss", "bits_per_byte")]
        [0.5, 2.5, 0.8931]
    """

    full_state_update = False
    examples: Tensor
    skipped: Tensor
    correct: Tensor
    split_tokens: Tensor
    answers: Tensor
    answer_nll: Tensor
    answer_nats: Tensor
    answer_bytes: Tensor

    def __init__(self, seeds: Sequence[int]) -> None:
        super().__init__()
        self.seeds = list(seeds)
        for name in _SUMS:
            self.add_state(name, torch.zeros(len(self.seeds), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, outcomes: Iterable[Outcome], skipped: Iterable[int] = ()) -> None:
        """Adds the outcomes of questions, and counts examples that do not fit into the context, by their seed."""
        for seed in skipped:
            self.skipped[self.seeds.index(seed)] += 1
        for seed, group in _by_seed(outcomes):
            s = self.seeds.index(seed)
            answered = [o for o in group if o.answer_tokens]
            self.examples[s] += len(group)
            self.correct[s] += sum(o.correct for o in group)
            self.split_tokens[s] += sum(o.splits_token for o in group)
            self.answers[s] += len(answered)
            self.answer_nll[s] += math.fsum(o.answer_nats / o.answer_tokens for o in answered)
            self.answer_nats[s] += math.fsum(o.answer_nats for o in answered)
            self.answer_bytes[s] += sum(o.answer_bytes for o in answered)

    def compute(self) -> dict[str, Tensor]:
        """`accuracy`, `loss` and `bits_per_byte`, and the counts `examples`, `skipped` and `split_tokens`.

        Each has one entry per seed (torchmetrics makes one entry a scalar); NaN where nothing was counted.
        """
        return {
            "accuracy": self.correct / self.examples,
            "loss": self.answer_nll / self.answers,
            "bits_per_byte": self.answer_nats / self.answer_bytes / math.log(2),
            "examples": self.examples,
            "skipped": self.skipped,
            "split_tokens": self.split_tokens,
        }


def _by_seed(outcomes: Iterable[Outcome]) -> Iterable[tuple[int, list[Outcome]]]:
    groups: dict[int, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.seed, []).append(outcome)
    return groups.items()
