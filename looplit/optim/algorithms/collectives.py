"""Number and bytes of what an algorithm exchanges, by formula."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

STACK_ELEMENTS = 2**26  # largest stack: 256 MiB of fp32, so that a 7B model is never stacked whole
MASTER_BYTES = 4  # of an fp32 value


@dataclass(frozen=True)
class Collective:
    """Collectives of one kind in one optimizer step.

    Args:
        kind: What is exchanged.
        number: How many.
        sent: Bytes that each process sends in all of them, as rings do it: an all-gather or reduce-scatter of S bytes
            over n processes sends S·(n-1)/n, an all-reduce twice that, an all-to-all S·(n-1)/n².
    """

    kind: str
    number: int
    sent: float


class Matrices(NamedTuple):
    """Matrices of one shape that get a gradient in a step."""

    number: int
    rows: int
    columns: int


def stacks(matrices: Sequence[Matrices], processes: int) -> int:
    """Stacks of whole matrices that `looplit.optim.exchange.same_shape` makes of them."""
    total = 0
    for number, rows, columns in matrices:
        together = max(1, STACK_ELEMENTS * processes // (rows * columns))
        if together > processes:
            together -= together % processes
        total += -(-number // together)
    return total


def exchange_of_matrices(matrices: Sequence[Matrices], processes: int) -> Collective:
    """Each stack to whole matrices and back to shards."""
    exchanged = sum(number * rows * columns for number, rows, columns in matrices) * MASTER_BYTES
    share = (processes - 1) / processes
    return Collective("exchange matrices", 2 * stacks(matrices, processes), 2 * exchanged * share / processes)
