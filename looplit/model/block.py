"""The transformer block: pre-norm, rotary causal attention with QK norm, MLP (growth study, appendix A).

Shape suffixes: B batch, T tokens, D width, H heads, C dimensions per head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from looplit.model.config import BackboneConfig, MLPKind
from looplit.model.precision import compute_dtype, rms_norm

ROTARY_BASE = 10_000.0


class RMSNorm(nn.Module):
    """`rms_norm`, times learned gains where the config has them."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.empty(config.width)) if config.gains else None

    def forward(self, x_BTD: Tensor) -> Tensor:
        normed_BTD = rms_norm(x_BTD)
        return normed_BTD if self.gain is None else normed_BTD * self.gain


def rotary_tables(head_dim: int, context: int, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary embedding, each (context, head_dim / 2), fp32."""
    pairs_C = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device)
    frequency_C = ROTARY_BASE ** (-pairs_C / head_dim)
    angle_TC = torch.outer(torch.arange(context, dtype=torch.float32, device=device), frequency_C)
    return angle_TC.cos(), angle_TC.sin()


def rotate(x_BTHC: Tensor, cos_TC: Tensor, sin_TC: Tensor) -> Tensor:
    """Rotates dimension i against i + C/2 by minus the position's angle, as the released checkpoints do."""
    first, second = x_BTHC.chunk(2, dim=-1)
    cos, sin = cos_TC[..., None, :], sin_TC[..., None, :]
    return torch.cat((first * cos + second * sin, second * cos - first * sin), dim=-1)


class Attention(nn.Module):
    """Causal self-attention; q and k are normalised after the rotary embedding, softmax scale C^-0.5.

    A mask (batch, 1, T, T), true where a token sees another, takes the place of the causal rule.
    """

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.q = nn.Linear(config.width, config.width, bias=False)
        self.k = nn.Linear(config.width, config.width, bias=False)
        self.v = nn.Linear(config.width, config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x_BTD: Tensor, cos_TC: Tensor, sin_TC: Tensor, mask_B1TT: Tensor | None = None) -> Tensor:
        B, T, D = x_BTD.shape
        q, k, v = (project(x_BTD).view(B, T, self.heads, -1) for project in (self.q, self.k, self.v))
        q = rms_norm(rotate(q, cos_TC, sin_TC)).to(v.dtype)
        k = rms_norm(rotate(k, cos_TC, sin_TC)).to(v.dtype)
        q_BHTC, k_BHTC, v_BHTC = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        y_BHTC = F.scaled_dot_product_attention(
            q_BHTC, k_BHTC, v_BHTC, attn_mask=mask_B1TT, is_causal=mask_B1TT is None
        )
        return self.out(y_BHTC.transpose(1, 2).reshape(B, T, D))


class SwiGLU(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.hidden, bias=False)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x_BTD)) * self.up(x_BTD))


class SquaredReLU(nn.Module):
    """down(relu(up(x))²)."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x_BTD)).square())


_MLPS: dict[MLPKind, type[SwiGLU | SquaredReLU]] = {"swiglu": SwiGLU, "squared_relu": SquaredReLU}


class Block(nn.Module):
    """x = x + RM·attention(norm(x)); x = x + RM·mlp(norm(x)), with RM the residual multiplier.

    The residual stream keeps its precision (fp32 under mixed precision); branches run in the precision of the weights.
    """

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config)
        self.attention = Attention(config)
        self.mlp_norm = RMSNorm(config)
        self.mlp = _MLPS[config.mlp](config)
        self.residual_multiplier = config.residual_multiplier

    def forward(self, x_BTD: Tensor, cos_TC: Tensor, sin_TC: Tensor, mask_B1TT: Tensor | None = None) -> Tensor:
        dtype = compute_dtype(self.mlp.up.weight)
        attended = self.attention(self.attention_norm(x_BTD).to(dtype), cos_TC, sin_TC, mask_B1TT)
        x_BTD = torch.add(x_BTD, attended, alpha=self.residual_multiplier)
        return torch.add(x_BTD, self.mlp(self.mlp_norm(x_BTD).to(dtype)), alpha=self.residual_multiplier)
