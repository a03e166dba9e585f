"""RMSNorm without gains, and the precision that products run in: what blocks and boundaries share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

NORM_EPS = 2.0**-23  # fp32 machine epsilon; embeddings start near 0.007, where a larger eps changes the result


def rms_norm(x: Tensor) -> Tensor:
    """RMSNorm over the last dimension, without gains, in at least fp32 whatever the precision of `x`."""
    return F.rms_norm(x.to(torch.promote_types(x.dtype, torch.float32)), x.shape[-1:], eps=NORM_EPS)


def compute_dtype(weight: Tensor) -> torch.dtype:
    """The dtype a matrix product with `weight` runs in: autocast's where it is on, else the weight's own."""
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
