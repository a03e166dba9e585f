"""Questions as batches of rows: sorted by length, filled up to a number of tokens, choices sharing their beginning.

Shape suffixes: B rows, T tokens, N scored tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from looplit.eval.core.prompts import Question

LEAST_SAVING = 0.1
"""Share of the tokens that one row for all choices must save: what it saves in tokens it partly pays in attention."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of tokens, and which of the model's predictions are scored.

    Args:
        questions: What is asked, in order.
        tokens_BT: Right-padded rows.
        branches_BT: Branch of every token, as `Backbone.forward` takes it; None where every row is one sequence.
        reads_N: Places in the flattened rows of the states that predict the scored tokens: question by question,
            choice by choice, each choice from `Question.first_read` to its end.
        targets_N: The scored tokens.
    """

    questions: Sequence[Question]
    tokens_BT: Tensor
    branches_BT: Tensor | None
    reads_N: Tensor
    targets_N: Tensor


def shares(question: Question, allowed: bool = True) -> bool:
    """Whether the choices go into one row behind their common beginning."""
    repeated = len(question.prefix) * (len(question.branches) - 1)
    return allowed and repeated > LEAST_SAVING * (repeated + _packed_length(question))


def row_lengths(question: Question, share: bool = True) -> list[int]:
    """Tokens of the rows that a question takes."""
    if shares(question, share):
        return [_packed_length(question)]
    return [len(question.prefix) + len(branch) for branch in question.branches]


def groups(questions: Sequence[Question], token_budget: int, share: bool = True) -> list[list[Question]]:
    """The questions in groups for `collate`, longest rows first, each of at most `token_budget` tokens with padding.

    A question is never split, so that one larger than the budget makes a group by itself.
    """
    answer: list[list[Question]] = []
    n_rows = longest = 0
    lengths = [row_lengths(question, share) for question in questions]
    for q in sorted(range(len(questions)), key=lambda q: -max(lengths[q])):
        if not answer or (n_rows + len(lengths[q])) * longest > token_budget:
            answer.append([])
            n_rows, longest = 0, max(lengths[q])
        answer[-1].append(questions[q])
        n_rows += len(lengths[q])
    return answer


def collate(questions: Sequence[Question], share: bool = True) -> Batch:
    """One batch of the questions."""
    lengths = [row_lengths(question, share) for question in questions]
    shape = sum(map(len, lengths)), max(max(rows) for rows in lengths)
    tokens_BT = np.zeros(shape, np.int64)
    branches_BT = np.broadcast_to(-1 - np.arange(shape[1]), shape).copy()  # padding: a branch for every token
    reads, targets, row = [], [], 0
    for question in questions:
        places = _fill(tokens_BT, branches_BT, row, question, share)
        for c, branch in enumerate(question.branch_of):
            span = slice(question.first_read(c), question.length(c))
            reads.append(places[branch][span.start - 1 : span.stop - 1])
            targets.append(question.sequence(branch)[span])
        row += 1 if shares(question, share) else len(question.branches)
    branched = any(shares(question, share) for question in questions)
    return Batch(
        questions,
        torch.from_numpy(tokens_BT),
        torch.from_numpy(branches_BT) if branched else None,
        torch.from_numpy(np.concatenate(reads)),
        torch.from_numpy(np.concatenate(targets).astype(np.int64)),
    )


def _fill(
    tokens_BT: np.ndarray, branches_BT: np.ndarray, row: int, question: Question, share: bool
) -> list[np.ndarray]:
    """Writes a question from `row` on; for every branch the places of its tokens in the flattened rows."""
    shared, T = len(question.prefix), tokens_BT.shape[1]
    if not shares(question, share):
        places = []
        for b in range(len(question.branches)):
            sequence = question.sequence(b)
            tokens_BT[row + b, : len(sequence)] = sequence
            branches_BT[row + b, : len(sequence)] = 0
            places.append((row + b) * T + np.arange(len(sequence)))
        return places
    tokens_BT[row, :shared] = question.prefix
    branches_BT[row, :shared] = 0
    beginning, at, places = row * T + np.arange(shared), shared, []
    for number, branch in enumerate(question.branches, start=1):
        end = at + len(branch)
        tokens_BT[row, at:end] = branch
        branches_BT[row, at:end] = number
        places.append(np.concatenate((beginning, row * T + np.arange(at, end))))
        at = end
    return places


def _packed_length(question: Question) -> int:
    return len(question.prefix) + sum(map(len, question.branches))
