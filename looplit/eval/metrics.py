"""Token losses accumulated over an evaluation, right across processes."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torchmetrics import Metric


class TokenLoss(Metric):
    """Mean cross-entropy in nats per token, and bits per byte of the target text, as sums over sums.

    Nats per token counts every target. Bits per byte leaves special target tokens (zero bytes) out of both the nats
    and the bytes.

    Args:
        token_bytes: UTF-8 bytes of every token id, (vocabulary,), 0 for special tokens; None where the bytes are not
            known, then there are no bits per byte.
    """

    full_state_update = False
    nats: Tensor
    tokens: Tensor
    text_nats: Tensor
    text_bytes: Tensor
    token_bytes: Tensor | None

    def __init__(self, token_bytes: Tensor | None = None) -> None:
        super().__init__()
        for name in ("nats", "tokens", "text_nats", "text_bytes"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.register_buffer("token_bytes", token_bytes, persistent=False)

    def update(self, losses_BT: Tensor, targets_BT: Tensor) -> None:
        """Adds the losses (batch, tokens) of the targets (batch, tokens); targets below 0 do not count."""
        losses, targets = losses_BT.double(), targets_BT.long()
        counts = targets >= 0
        self.nats += losses[counts].sum()
        self.tokens += counts.sum()
        if self.token_bytes is not None:
            n_bytes = self.token_bytes[targets.clamp(min=0)] * counts
            self.text_nats += losses[n_bytes > 0].sum()
            self.text_bytes += n_bytes.sum()

    def compute(self) -> dict[str, Tensor]:
        """`nats_per_token` and, where bytes are known, `bits_per_byte`; NaN where nothing was counted."""
        result = {"nats_per_token": self.nats / self.tokens}
        if self.token_bytes is not None:
            result["bits_per_byte"] = self.text_nats / self.text_bytes / math.log(2)
        return result
