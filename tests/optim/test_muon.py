"""Muon against a slow reference written one matrix at a time in float64, straight from the study's steps."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from looplit.errors import InputError
from looplit.optim import MuonAdamW, muon_momentum, orthogonalize
from looplit.optim.polar import POLAR_EXPRESS

SHAPES = ((8, 8), (8, 8), (24, 8), (8, 24), (33, 16))
LR, DECAY = 0.05, 0.3


class SlowMuon:
    """The update of a single matrix; rows are output features."""

    def __init__(self, weight: Tensor) -> None:
        self.w = weight.double().clone()
        self.m = torch.zeros_like(self.w)
        rows, columns = weight.shape
        self.tall = rows >= columns
        self.v = torch.zeros(rows if self.tall else columns, dtype=torch.float64)
        self.t = 0

    def step(self, gradient: Tensor) -> None:
        g, rows, columns = gradient.double(), *gradient.shape
        mu = 0.85 + 0.10 * min(self.t / 300, 1)
        self.m = mu * self.m + (1 - mu) * g
        u = (1 - mu) * g + mu * self.m
        for row in u:
            row /= max(float(row.norm()), 1e-7)
        x = self.polar(u)
        v = x.square().mean(dim=1 if self.tall else 0)
        self.v = 0.95 * self.v + 0.05 * v
        scale = self.v.clamp(min=1e-10) ** -0.5
        scaled = x * (scale[:, None] if self.tall else scale[None, :])
        norm = float(scaled.norm())
        x = scaled * (float(x.norm()) / norm if norm else 0.0)
        lr = LR * math.sqrt(max(1, rows / columns))
        self.w = self.w - lr * x - lr * DECAY * self.w * (x * self.w >= 0)
        self.t += 1

    @staticmethod
    def polar(u: Tensor) -> Tensor:
        x = u / (1.02 * u.norm() + 1e-6)
        wide = x.shape[0] <= x.shape[1]
        x = x if wide else x.T
        for a, b, c in POLAR_EXPRESS:
            gram = x @ x.T
            x = a * x + (b * gram + c * gram @ gram) @ x
        return x if wide else x.T


def parameters(dtype: torch.dtype = torch.float64) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)) for shape in SHAPES]


def muon(params: list[nn.Parameter]) -> MuonAdamW:
    return MuonAdamW([{"params": params, "algorithm": "muon", "lr": LR, "weight_decay": DECAY}])


def run(params: list[nn.Parameter], optimizer: MuonAdamW, steps: int, start: int = 0) -> list[list[Tensor]]:
    """Sets gradients drawn by the number of the step and takes the steps; returns the gradients."""
    history = []
    for t in range(start, start + steps):
        generator = torch.Generator().manual_seed(t)
        gradients = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in params]
        for parameter, gradient in zip(params, gradients, strict=True):
            parameter.grad = gradient.to(parameter.dtype)
        optimizer.step()
        history.append(gradients)
    return history


# The reference runs in float64 throughout. In float64 ours orthogonalises in fp32 (the CPU's precision): five
# iterations amplify its 6e-8 to about 1e-5 of a unit update, times lr 0.05 and 12 steps.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 2e-5), (torch.float32, 5e-5)])
def test_twelve_steps_equal_the_reference(dtype: torch.dtype, tolerance: float) -> None:
    params = parameters(dtype)
    slow = [SlowMuon(p.detach()) for p in params]
    for gradients in run(params, muon(params), 12):
        for reference, gradient in zip(slow, gradients, strict=True):
            reference.step(gradient)
    for parameter, reference in zip(params, slow, strict=True):
        assert (parameter.detach().double() - reference.w).abs().max() < tolerance


def test_a_batch_of_matrices_equals_one_at_a_time() -> None:
    together, alone = parameters(), parameters()
    run(together, muon(together), 3)
    optimizers = [muon([parameter]) for parameter in alone]
    for t in range(3):
        generator = torch.Generator().manual_seed(t)
        for parameter, optimizer in zip(alone, optimizers, strict=True):
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            optimizer.step()
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)  # fp32 products of another batch size


def test_orthogonalised_matrices_have_singular_values_near_one() -> None:
    generator = torch.Generator().manual_seed(0)
    for shape in SHAPES:
        singular = torch.linalg.svdvals(orthogonalize(torch.randn(1, *shape, generator=generator))[0])
        assert singular.min() > 0.6  # five iterations of a bounded-degree polynomial: not exact by design
        assert singular.max() < 1.3


def test_momentum_warms_up_over_300_steps() -> None:
    assert [muon_momentum(t) for t in (0, 150, 300, 5000)] == pytest.approx([0.85, 0.90, 0.95, 0.95])


def test_a_zero_gradient_moves_nothing_but_the_decay_and_makes_no_nan() -> None:
    start_at_zero, other = nn.Parameter(torch.zeros(8, 4)), nn.Parameter(torch.randn(8, 4))
    before = other.detach().clone()
    optimizer = muon([start_at_zero, other])
    for parameter in (start_at_zero, other):
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert not start_at_zero.any()
    # a zero update agrees in sign with every weight, so that all of it decays: lr·sqrt(rows/columns)·WD
    torch.testing.assert_close(other.detach(), before * (1 - LR * 2**0.5 * DECAY))


def test_decay_only_where_update_and_weight_agree() -> None:
    weight = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    with_decay, without = nn.Parameter(weight.clone()), nn.Parameter(weight.clone())
    gradient = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    for parameter, decay in ((with_decay, DECAY), (without, 0.0)):
        parameter.grad = gradient.clone()
        MuonAdamW([{"params": [parameter], "algorithm": "muon", "lr": LR, "weight_decay": decay}]).step()
    decayed = (without - with_decay).detach()
    agree = gradient * weight > 0
    torch.testing.assert_close(decayed[agree], LR * DECAY * weight[agree])
    assert not decayed[~agree].any()


def test_parameters_without_gradient_are_left_alone() -> None:
    params = parameters()
    asleep, awake = params[0], params[1:]
    before = asleep.detach().clone()
    optimizer = muon(params)
    for t in range(3):
        for parameter in awake:
            parameter.grad = torch.full_like(parameter, t + 1.0)
        optimizer.step()
    assert torch.equal(asleep, before)
    assert set(optimizer.state[asleep]) == {"momentum", "variance"}
    assert not any(value.any() for value in optimizer.state[asleep].values())


def test_adamw_groups_equal_torch() -> None:
    ours, theirs = parameters(), parameters()
    kwargs = {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-10, "weight_decay": 0.1}
    optimizer = MuonAdamW([{"params": ours, "algorithm": "adamw", **kwargs}])
    run(ours, optimizer, 5)
    reference = torch.optim.AdamW(theirs, **kwargs)  # type: ignore[arg-type]
    run(theirs, reference, 5)  # type: ignore[arg-type]
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=0)


def test_resuming_from_a_state_dict_changes_nothing() -> None:
    straight, stopped = parameters(), parameters()
    run(straight, muon(straight), 8)
    first = muon(stopped)
    run(stopped, first, 4)
    second = muon(stopped)
    second.load_state_dict(first.state_dict())
    run(stopped, second, 4, start=4)
    for a, b in zip(straight, stopped, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("group", "named"),
    [
        ({"algorithm": "sgd"}, "algorithm = 'sgd'"),
        ({"algorithm": "muon", "lr": -1.0}, "lr = -1.0"),
        ({"algorithm": "muon", "params": [nn.Parameter(torch.zeros(3))]}, r"shape = \(3,\): Muon takes matrices only"),
    ],
)
def test_wrong_groups_are_refused(group: dict[str, object], named: str) -> None:
    with pytest.raises(InputError, match=named):
        MuonAdamW([{"params": parameters(), "lr": LR, **group}])
