"""The first tokens of an evaluation, kept so that they can be read several times and shared by processes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.functional import pad

from looplit.data.batches import Batch, inputs_and_targets
from looplit.errors import InputError, require_whole
from looplit.model.loss import IGNORED


class TokenSample:
    """Rows of token ids up to a number of tokens, whole rows, at least one.

    Args:
        tokens: Most tokens to keep.
    """

    def __init__(self, tokens: int) -> None:
        require_whole("tokens", tokens)
        self.tokens = tokens
        self._batch_size = 0
        self._rows: list[tuple[Tensor, Tensor]] = []

    @property
    def full(self) -> bool:
        """Whether further batches would be left out."""
        return bool(self._rows) and self._kept + self._rows[-1][0].shape[1] > self.tokens

    @property
    def _kept(self) -> int:
        return sum(inputs.numel() for inputs, _ in self._rows)

    def add(self, batch: Batch) -> None:
        """Takes the rows of a batch that still fit."""
        if self.full:
            return
        inputs_BT, targets_BT = inputs_and_targets(batch)
        self._batch_size = max(self._batch_size, len(inputs_BT))
        fit = max((self.tokens - self._kept) // inputs_BT.shape[1], not self._rows)
        self._rows.append((inputs_BT[:fit].cpu(), targets_BT[:fit].cpu()))

    def fill(self, batches: Iterable[Batch]) -> TokenSample:
        """Takes batches until it is full; gives itself back."""
        for batch in batches:
            self.add(batch)
            if self.full:
                break
        return self

    def stacked(self) -> tuple[Tensor, Tensor, int]:
        """Inputs and targets (rows, tokens), and rows per batch; shorter rows end in targets that do not count.

        Raises:
            InputError: There was no batch.
        """
        if not self._rows:
            raise InputError("batches = 0 tokens: nothing to score")
        longest = max(inputs.shape[1] for inputs, _ in self._rows)
        inputs = torch.cat([pad(inputs, (0, longest - inputs.shape[1])) for inputs, _ in self._rows])
        targets = torch.cat([pad(targets, (0, longest - targets.shape[1]), value=IGNORED) for _, targets in self._rows])
        return inputs, targets, self._batch_size

    def batches(self, device: torch.device | str = "cpu") -> list[tuple[Tensor, Tensor]]:
        """The sample in batches (inputs, targets) on a device."""
        return split_sample(*self.stacked(), device=device)


def split_sample(
    inputs_NT: Tensor,
    targets_NT: Tensor,
    batch_size: int,
    *,
    rank: int = 0,
    world_size: int = 1,
    device: torch.device | str = "cpu",
) -> list[tuple[Tensor, Tensor]]:
    """The batches of one process: every `world_size`-th row from `rank` on.

    Processes get equally many rows, as sharded models need; rows that fill up have no target that counts.
    """
    missing = -len(inputs_NT) % world_size
    if missing:
        inputs_NT = torch.cat([inputs_NT, inputs_NT[:1].expand(missing, -1)])
        targets_NT = torch.cat([targets_NT, torch.full_like(targets_NT[:1], IGNORED).expand(missing, -1)])
    inputs, targets = inputs_NT[rank::world_size].to(device), targets_NT[rank::world_size].to(device)
    return list(zip(inputs.split(batch_size), targets.split(batch_size), strict=True))
