"""A batch of training or evaluation: windows of token ids, or inputs and targets.

Shape suffixes: B batch, T tokens.
"""

from __future__ import annotations

from torch import Tensor

from looplit.errors import require

Batch = Tensor | tuple[Tensor, Tensor] | list[Tensor]


def inputs_and_targets(batch: Batch) -> tuple[Tensor, Tensor]:
    """Splits windows (batch, tokens + 1) into inputs and shifted targets; a pair is taken as it is.

    Raises:
        InputError: Neither windows nor a pair of tensors of one shape.
    """
    if isinstance(batch, Tensor):
        require(batch.dim() == 2, "batch", list(batch.shape), "windows of token ids are (batch, tokens + 1)")
        windows = batch.long()
        return windows[:, :-1], windows[:, 1:]
    pair = isinstance(batch, tuple | list) and [isinstance(part, Tensor) for part in batch] == [True, True]
    require(pair, "batch", type(batch).__name__, "must be windows (batch, tokens + 1) or a pair (inputs, targets)")
    inputs_BT, targets_BT = batch
    shapes = [list(inputs_BT.shape), list(targets_BT.shape)]
    require(shapes[0] == shapes[1], "batch", shapes, "inputs and targets must have the same shape")
    return inputs_BT, targets_BT
