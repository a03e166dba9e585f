"""MuonH against a slow reference written one matrix at a time in float64, straight from the study's steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from looplit.errors import InputError
from looplit.model import Backbone, BackboneConfig
from looplit.model.growth import grow
from looplit.optim import MuonAdamW
from looplit.optim.polar import POLAR_EXPRESS

SHAPES = ((8, 8), (8, 8), (24, 8), (8, 24), (33, 16))
LR = 0.05


class SlowMuonH:
    """The update of a single matrix."""

    def __init__(self, weight: Tensor) -> None:
        self.w = weight.double().clone()
        self.norm = self.w.norm()
        self.m = torch.zeros_like(self.w)

    def step(self, gradient: Tensor) -> None:
        g = gradient.double()
        self.m = 0.95 * self.m + 0.05 * g
        u = 0.05 * g + 0.95 * self.m
        x = u / (1.02 * u.norm() + 1e-6)
        for a, b, c in POLAR_EXPRESS:  # on either side: (X Xᵀ) X = X (Xᵀ X)
            gram = x @ x.T
            x = a * x + (b * gram + c * gram @ gram) @ x
        update = x * self.norm / x.norm()
        self.w = self.w - LR * update
        self.w = self.w * self.norm / self.w.norm()


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]


def muonh(params: list[nn.Parameter]) -> MuonAdamW:
    return MuonAdamW([{"params": params, "algorithm": "muonh", "lr": LR}])


def run(params: list[nn.Parameter], optimizer: MuonAdamW, steps: int, start: int = 0) -> list[list[Tensor]]:
    """Sets gradients drawn by the number of the step and takes the steps; returns the gradients."""
    history = []
    for t in range(start, start + steps):
        generator = torch.Generator().manual_seed(t)
        for parameter in params:
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
        optimizer.step()
        history.append([parameter.grad for parameter in params if parameter.grad is not None])
    return history


# Iterations in fp32, the CPU's precision: see the tolerances of test_muon.py; entries are of the order of one here too.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 2e-5), (torch.float32, 5e-5)])
def test_twelve_steps_equal_the_reference(dtype: torch.dtype, tolerance: float) -> None:
    params = parameters(dtype)
    slow = [SlowMuonH(p.detach()) for p in params]
    for gradients in run(params, muonh(params), 12):
        for reference, gradient in zip(slow, gradients, strict=True):
            reference.step(gradient)
    for parameter, reference in zip(params, slow, strict=True):
        assert (parameter.detach().double() - reference.w).abs().max() < tolerance


def test_every_norm_is_kept_over_fifty_steps() -> None:
    params = parameters()
    before = [p.detach().double().norm() for p in params]
    start = [p.detach().clone() for p in params]
    run(params, muonh(params), 50)
    for parameter, norm, first in zip(params, before, start, strict=True):
        assert abs(parameter.detach().double().norm() / norm - 1) < 1e-6  # a rounding of each entry at the last step
        assert torch.cosine_similarity(parameter.detach().flatten(), first.flatten(), dim=0) < 0.9  # and it has moved


def test_a_step_is_as_long_as_the_learning_rate_says() -> None:
    """Against a weight orthogonal to its update: lr·‖W_0‖ away, then back to the sphere, an angle of arctan(lr)."""
    weight = torch.tensor([[3.0, 0.0], [0.0, 3.0]])
    parameter = nn.Parameter(weight.clone())
    parameter.grad = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    muonh([parameter]).step()
    moved = torch.tensor([[3.0, -3.0 * LR], [3.0 * LR, 3.0]]) / (1 + LR**2) ** 0.5
    torch.testing.assert_close(parameter.detach(), moved)


def test_a_zero_gradient_moves_nothing_and_makes_no_nan() -> None:
    parameter = nn.Parameter(torch.randn(8, 4))
    before = parameter.detach().clone()
    parameter.grad = torch.zeros_like(parameter)
    muonh([parameter]).step()
    torch.testing.assert_close(parameter.detach(), before)


def test_resuming_from_a_state_dict_changes_nothing() -> None:
    straight, stopped = parameters(), parameters()
    run(straight, muonh(straight), 8)
    first = muonh(stopped)
    run(stopped, first, 4)
    second = muonh(stopped)  # of weights that are no longer at their start
    second.load_state_dict(first.state_dict())
    run(stopped, second, 4, start=4)
    for a, b in zip(straight, stopped, strict=True):
        assert torch.equal(a, b)


def test_parameters_without_gradient_are_left_alone_and_get_their_norm_when_they_wake() -> None:
    params = parameters()
    asleep, awake = params[0], params[1:]
    optimizer = muonh(params)
    before = asleep.detach().clone()
    run(awake, optimizer, 2)
    assert torch.equal(asleep, before)
    assert set(optimizer.state[asleep]) == {"momentum", "norm"}
    assert not any(value.any() for value in optimizer.state[asleep].values())
    with torch.no_grad():
        asleep.mul_(3)
    run(params, optimizer, 1, start=2)
    torch.testing.assert_close(optimizer.state[asleep]["norm"], 3 * before.norm())
    torch.testing.assert_close(asleep.detach().norm(), 3 * before.norm())


def test_a_core_that_growth_fills_keeps_the_norms_of_its_copy() -> None:
    config = BackboneConfig(
        width=16, heads=2, prelude=0, core=1, coda=0, vocabulary=64, context=8, passes=1, tied=False, stored_cores=2
    )
    model = Backbone(config)
    matrices = [p for block in model.blocks() for p in block.parameters()]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.1, generator=generator)
    optimizer = muonh(matrices)  # type: ignore[arg-type]
    tokens = torch.arange(16).view(2, 8)

    def step() -> None:
        optimizer.zero_grad()
        model(tokens, tokens).backward()
        optimizer.step()

    step()
    trained = [p.detach().norm() for p in model.cores[0].parameters()]
    grow(model, 2)
    for _ in range(2):
        step()
    for core in model.cores:
        torch.testing.assert_close([p.detach().norm() for p in core.parameters()], trained)
        torch.testing.assert_close([optimizer.state[p]["norm"] for p in core.parameters()], trained)


@pytest.mark.parametrize("named", [True, False])
def test_a_matrix_of_zeros_is_refused_by_its_name(named: bool) -> None:
    params = {"core.up": nn.Parameter(torch.ones(3, 2)), "core.down": nn.Parameter(torch.zeros(2, 3))}
    name = "'core.down'" if named else 1
    with pytest.raises(InputError, match=f"parameter = {name}: it is zero, and MuonH keeps every matrix at the norm"):
        muonh(list(params.items()) if named else list(params.values()))  # type: ignore[arg-type]


def test_weight_decay_is_refused() -> None:
    with pytest.raises(InputError, match="weight_decay = 0.1: MuonH keeps the norm"):
        MuonAdamW([{"params": parameters(), "algorithm": "muonh", "lr": LR, "weight_decay": 0.1}])
