"""Polar-Express orthogonalisation of stacks of matrices (growth study, appendix on Muon).

Shape suffixes: S matrices of one shape, R rows (output features), C columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)


def iteration_dtype(device: torch.device) -> torch.dtype:
    """bf16 where matrix units make it fast, fp32 on the CPU, where bf16 is 3 to 4 times slower."""
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def orthogonalize(u_SRC: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Five Polar-Express steps, X ← aX + (bA + cA²)X with A = X Xᵀ on the smaller side.

    Args:
        u_SRC: Matrices, (matrices, rows, columns); all-zero ones stay zero.
        dtype: Precision of the iterations; default bf16, fp32 on the CPU.

    Returns:
        Nearly semi-orthogonal matrices of the same shape, fp32 (or `u_SRC`'s own, if wider).
    """
    x = u_SRC.to(dtype or iteration_dtype(u_SRC.device))
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (1.02 * torch.linalg.matrix_norm(x, keepdim=True) + 1e-6)
    for a, b, c in POLAR_EXPRESS:
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(torch.promote_types(u_SRC.dtype, torch.float32))
