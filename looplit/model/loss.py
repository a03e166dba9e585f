"""Cross-entropy straight from the residual stream, in chunks of tokens.

Shape suffixes: N tokens, D width, V rows of the head (the padded vocabulary).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from looplit.model.config import loss_chunk_tokens
from looplit.model.precision import compute_dtype

Reduction = Literal["mean", "sum", "none"]

IGNORED = -100  # torch's own convention for targets that do not count


def linear_cross_entropy(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    targets_N: Tensor,
    *,
    vocabulary: int,
    multiplier: float = 1.0,
    soft_cap: float | None = None,
    reduction: Reduction = "mean",
    chunk_tokens: int | None = None,
) -> Tensor:
    """Cross-entropy of the logits z = `multiplier · hidden @ weight[:vocabulary].T` against the targets, in nats.

    With a soft cap c the logits are c·tanh(z/c).

    Equal to the plain loss, but the fp32 logits of only one chunk of tokens exist at a time, in the forward and in
    the backward. For "mean" and "sum" the gradients are formed in the forward, chunk by chunk, so that no product is
    computed twice; "none" recomputes its logits in the backward.

    Args:
        hidden_ND: Normalised residual stream, (tokens, width).
        weight_VD: Head matrix, (padded vocabulary, width); rows from `vocabulary` on are left out.
        targets_N: Token ids below `vocabulary`, int64; -100 marks a target that does not count.
        vocabulary: Real columns.
        multiplier: OM, scales the logits.
        soft_cap: c, which bounds the logits; none by default.
        reduction: "mean" over the targets that count, "sum", or "none" for one loss per token.
        chunk_tokens: Tokens per chunk; default so that a chunk's fp32 logits take 512 MiB.

    Returns:
        A scalar, or (tokens,) for "none"; fp32 (float64 if the inputs are).
    """
    chunk = chunk_tokens or loss_chunk_tokens(vocabulary)
    needs_grad = torch.is_grad_enabled() and (hidden_ND.requires_grad or weight_VD.requires_grad)
    if reduction != "none" and needs_grad:
        total = _SummedLoss.apply(hidden_ND, weight_VD, targets_N, vocabulary, multiplier, soft_cap, chunk)
    else:
        losses = []
        for hidden, targets in zip(hidden_ND.split(chunk), targets_N.split(chunk), strict=True):
            if needs_grad:
                part = checkpoint(
                    _token_losses, hidden, weight_VD, targets, vocabulary, multiplier, soft_cap, use_reentrant=False
                )
            else:
                part = _token_losses(hidden, weight_VD, targets, vocabulary, multiplier, soft_cap)
            losses.append(part)
        per_token_N = torch.cat(losses)
        if reduction == "none":
            return per_token_N
        total = per_token_N.sum()
    return total if reduction == "sum" else total / (targets_N != IGNORED).sum()


def scaled_logits(
    hidden: Tensor, weight_VD: Tensor, vocabulary: int, multiplier: float, soft_cap: float | None = None
) -> Tensor:
    """z = `multiplier · hidden @ weight[:vocabulary].T` in at least fp32, the product in the weights' precision.

    With a soft cap c it is c·tanh(z/c).
    """
    dtype = compute_dtype(weight_VD)
    product = F.linear(hidden.to(dtype), weight_VD[:vocabulary].to(dtype))
    logits = multiplier * product.to(torch.promote_types(dtype, torch.float32))
    return logits if soft_cap is None else soft_cap * (logits / soft_cap).tanh()


def _token_losses(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    targets_N: Tensor,
    vocabulary: int,
    multiplier: float,
    soft_cap: float | None,
) -> Tensor:
    logits_NV = scaled_logits(hidden_ND, weight_VD, vocabulary, multiplier, soft_cap)
    return F.cross_entropy(logits_NV, targets_N, reduction="none", ignore_index=IGNORED)


class _SummedLoss(torch.autograd.Function):
    """Sum of the token losses; the forward keeps the gradients instead of the logits."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        targets_N: Tensor,
        vocabulary: int,
        multiplier: float,
        soft_cap: float | None,
        chunk: int,
    ) -> Tensor:
        dtype = compute_dtype(weight_VD)
        precise = torch.promote_types(dtype, torch.float32)
        with torch.autocast(hidden_ND.device.type, enabled=False):
            weight = weight_VD[:vocabulary].to(dtype)
            total = torch.zeros((), dtype=precise, device=hidden_ND.device)
            grad_hidden_ND = torch.empty_like(hidden_ND)
            grad_weight_VD = torch.zeros_like(weight_VD, dtype=precise)
            for start in range(0, len(hidden_ND), chunk):
                hidden = hidden_ND[start : start + chunk].to(dtype)
                targets = targets_N[start : start + chunk]
                logits_NV = scaled_logits(hidden, weight, vocabulary, multiplier, soft_cap)
                grad_NV = logits_NV.log_softmax(-1)
                total += F.nll_loss(grad_NV, targets, reduction="sum", ignore_index=IGNORED)
                counts_N1 = (targets != IGNORED)[:, None]
                grad_NV.exp_()  # d(loss)/d(logits) = softmax - one-hot, zero where the target does not count
                grad_NV.scatter_add_(1, targets.clamp(min=0)[:, None], -counts_N1.to(precise))
                if soft_cap is not None:  # the slope of c·tanh(z/c) is 1 - tanh²
                    grad_NV.mul_(logits_NV.div_(soft_cap).square_().neg_().add_(1))
                grad_NV = (grad_NV * (multiplier * counts_N1)).to(dtype)
                grad_hidden_ND[start : start + chunk] = grad_NV @ weight
                grad_weight_VD[:vocabulary] += grad_NV.T @ hidden
        ctx.save_for_backward(grad_hidden_ND, grad_weight_VD.to(weight_VD.dtype))
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden_ND, grad_weight_VD = ctx.saved_tensors
        return grad_hidden_ND * grad_total, grad_weight_VD * grad_total, None, None, None, None, None
