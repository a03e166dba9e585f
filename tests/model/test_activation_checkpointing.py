"""Blocks and passes that run again in the backward pass: the same gradients from less memory."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

import looplit
from looplit.errors import InputError
from looplit.model.backbone import Backbone, Site
from looplit.model.config import BackboneConfig, Unit

TOKENS = torch.randint(0, 61, (2, 16), generator=torch.Generator().manual_seed(1))
UNITS: tuple[Unit, ...] = ("block", "pass")


def build(unit: Unit | None, **settings: Any) -> Backbone:
    """Every matrix random: where matrices start at zero, most gradients are zero too."""
    shape = {"width": 32, "heads": 2, "prelude": 2, "core": 2, "coda": 1, "vocabulary": 61, "context": 16, "passes": 3}
    model = Backbone(BackboneConfig(**{**shape, **settings}))
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5)
    model.activation_checkpointing = unit
    return model


def gradients(model: Backbone) -> dict[str, Tensor]:
    model(TOKENS, TOKENS).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("settings", [{}, {"tied": False}, {"trained_passes": 1}, {"trained_passes": 2}], ids=str)
def test_gradients_are_the_same_bit_for_bit(unit: Unit, settings: dict[str, Any]) -> None:
    kept, again = gradients(build(None, **settings)), gradients(build(unit, **settings))
    assert kept.keys() == again.keys()
    for name, gradient in kept.items():
        assert torch.equal(gradient, again[name]), name


@pytest.mark.parametrize("unit", UNITS)
def test_mixed_precision_is_kept_in_the_second_run(unit: Unit) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        kept, again = gradients(build(None)), gradients(build(unit))
    assert all(torch.equal(gradient, again[name]) for name, gradient in kept.items())


@pytest.mark.parametrize("unit", UNITS)
def test_an_observer_sees_every_state_once(unit: Unit) -> None:
    seen: Counter[Site] = Counter()
    model = build(unit)
    model(TOKENS, TOKENS, observe=lambda site, state: seen.update([site])).backward()
    assert len(seen) == (2 + 3 * 2 + 1) + 5
    assert set(seen.values()) == {1}


@pytest.mark.parametrize("unit", UNITS)
def test_nothing_is_kept_but_what_units_read(unit: Unit) -> None:
    """Tensors of the size of a state that the forward saves, beside the tables, the loss and the boundaries' norms."""

    def saved(unit: Unit | None) -> int:
        model, storages = build(unit), set()
        own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
        alive = []

        def keep(tensor: Tensor) -> Tensor:
            alive.append(tensor)  # so that no address is used twice
            if tensor.numel() >= TOKENS.numel() * 32:
                storages.add(tensor.untyped_storage().data_ptr())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(TOKENS, TOKENS)
        return len(storages - own)

    assert saved(unit) <= {"block": 9, "pass": 5}[unit] + 12 < saved(None) / 5


def test_a_run_takes_it_under_any_strategy() -> None:
    model = looplit.Loop(depth=3, width=32, heads=1, vocabulary=61, context=16)
    model.checkpoint_activations("pass")
    assert model.backbone.activation_checkpointing == "pass"
    with pytest.raises(InputError, match="unit = 'layer': must be block or pass"):
        model.checkpoint_activations("layer")  # type: ignore[arg-type]
