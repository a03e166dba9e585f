"""The chunked loss against the plain one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from looplit.model.loss import linear_cross_entropy

N, D, V, ROWS = 37, 16, 50, 64


@pytest.fixture
def inputs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(N, D, generator=generator).requires_grad_()
    weight = torch.randn(ROWS, D, generator=generator).requires_grad_()
    targets = torch.randint(0, V, (N,), generator=generator)
    targets[3] = targets[20] = -100
    return hidden, weight, targets


def plain(hidden: Tensor, weight: Tensor, targets: Tensor, reduction: str, soft_cap: float | None = None) -> Tensor:
    logits = 0.7 * hidden @ weight[:V].T
    if soft_cap is not None:
        logits = soft_cap * torch.tanh(logits / soft_cap)
    return F.cross_entropy(logits, targets, reduction=reduction)


@pytest.mark.parametrize("soft_cap", [None, 1.5])  # logits reach ±10, so that the cap bends them
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("chunk", [1, 8, 37, 100])
def test_value_and_gradients_equal_the_plain_loss(
    inputs: tuple[Tensor, Tensor, Tensor], reduction: str, chunk: int, soft_cap: float | None
) -> None:
    hidden, weight, targets = inputs
    ours = linear_cross_entropy(
        hidden, weight, targets, vocabulary=V, multiplier=0.7, soft_cap=soft_cap, reduction=reduction,  # type: ignore[arg-type]
        chunk_tokens=chunk,
    )  # fmt: skip
    theirs = plain(hidden, weight, targets, reduction, soft_cap)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    pull = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(1))
    for a, b in zip(
        torch.autograd.grad(ours, (hidden, weight), pull, retain_graph=True),
        torch.autograd.grad(theirs, (hidden, weight), pull),
        strict=True,
    ):
        # fp32 sums of 37 to 50 terms in another order
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert not torch.autograd.grad(ours, weight, pull)[0][V:].any()  # padding rows get no gradient


@pytest.mark.parametrize("soft_cap", [None, 1.5])
def test_without_gradients_it_is_the_same(inputs: tuple[Tensor, Tensor, Tensor], soft_cap: float | None) -> None:
    hidden, weight, targets = inputs
    with torch.no_grad():
        ours = linear_cross_entropy(
            hidden, weight, targets, vocabulary=V, multiplier=0.7, soft_cap=soft_cap, chunk_tokens=5
        )
    torch.testing.assert_close(ours, plain(hidden, weight, targets, "mean", soft_cap).detach(), rtol=1e-6, atol=0)


class LargestTensor(TorchDispatchMode):
    """Largest number of elements that any operation returned."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else (out,):
            if isinstance(value, Tensor):
                self.elements = max(self.elements, value.numel())
        return out


def test_the_logits_of_the_batch_are_never_in_memory_at_once() -> None:
    hidden, weight = torch.randn(512, 4, requires_grad=True), torch.randn(1024, 4, requires_grad=True)
    targets = torch.randint(0, 1000, (512,))
    with LargestTensor() as seen:
        linear_cross_entropy(hidden, weight, targets, vocabulary=1000, soft_cap=15.0, chunk_tokens=32).backward()
    assert seen.elements <= 32 * 1000


def test_under_autocast_the_loss_is_fp32(inputs: tuple[Tensor, Tensor, Tensor]) -> None:
    hidden, weight, targets = inputs
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(hidden, weight, targets, vocabulary=V, chunk_tokens=8)
    loss.backward()
    assert loss.dtype == hidden.grad.dtype == weight.grad.dtype == torch.float32  # type: ignore[union-attr]
    exact = torch.autograd.grad(linear_cross_entropy(hidden, weight, targets, vocabulary=V), weight)[0]
    assert (weight.grad - exact).norm() < 0.02 * exact.norm()  # type: ignore[operator]  # bf16 products: 3 digits
