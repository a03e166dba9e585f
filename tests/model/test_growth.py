"""Growth without a Trainer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from looplit.errors import InputError
from looplit.model.backbone import Backbone
from looplit.model.config import BackboneConfig
from looplit.model.growth import Growable, grow, restore_passes, save_passes


def build(passes: int = 2, stored: int | None = 4, tied: bool = False) -> Backbone:
    shape = {"width": 32, "heads": 1, "prelude": 1, "core": 2, "coda": 1, "vocabulary": 9, "context": 8}
    return Backbone(BackboneConfig(**shape, passes=passes, tied=tied, stored_cores=None if tied else stored))  # type: ignore[arg-type]


def weights(core: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in core.parameters()])


def test_copies_are_equal_but_do_not_share_storage() -> None:
    model = build()
    assert grow(model, 4) == [(0, 2), (1, 3)]
    assert model.passes == 4
    for source, filled in ((0, 2), (1, 3)):
        assert torch.equal(weights(model.cores[source]), weights(model.cores[filled]))
    with torch.no_grad():
        for parameter in model.cores[0].parameters():
            parameter.add_(1)
    assert not torch.equal(weights(model.cores[0]), weights(model.cores[2]))
    pointers = [parameter.data_ptr() for parameter in model.parameters()]
    assert len(set(pointers)) == len(pointers)


def test_staged_growth_copies_the_cores_in_turn() -> None:
    model = build(stored=6)
    grow(model, 4)
    with torch.no_grad():
        for j, core in enumerate(model.cores):
            for parameter in core.parameters():
                parameter.fill_(j)
    assert grow(model, 6, any_target=True) == [(0, 4), (1, 5)]
    assert [float(weights(core)[0]) for core in model.cores] == [0, 1, 2, 3, 0, 1]


def test_an_untied_model_takes_other_targets_on_request_only() -> None:
    model = build(stored=3)
    with pytest.raises(InputError, match="passes = 3: .*multiple of its 2 passes"):
        grow(model, 3)
    assert model.passes == 2
    assert grow(model, 3, any_target=True) == [(0, 2)]


@pytest.mark.parametrize("target", [2, 1])
def test_growth_must_lead_upwards(target: int) -> None:
    with pytest.raises(InputError, match=f"passes = {target}: growth must lead above"):
        grow(build(), target)


def test_growth_beyond_the_stored_cores_is_refused_and_changes_nothing() -> None:
    model = build()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(InputError, match="passes = 6: the model stores 4 cores"):
        grow(model, 6)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_tied_core_is_applied_more_often() -> None:
    model = build(tied=True)
    assert grow(model, 5) == []
    assert model.passes == 5
    assert model.executed_depth == 12


def test_passes_travel_in_a_checkpoint() -> None:
    grown, fresh, checkpoint = build(), build(), {}
    grow(grown, 4)
    save_passes(grown, checkpoint)
    restore_passes(fresh, checkpoint)
    assert fresh.passes == 4
    restore_passes(fresh, {})  # a checkpoint of other software
    assert fresh.passes == 4


def test_dormant_cores_get_no_gradient() -> None:
    model = build()
    tokens = torch.zeros(1, 8, dtype=torch.long)
    model(tokens, tokens).backward()
    assert all(parameter.grad is None for core in model.cores[2:] for parameter in core.parameters())
    assert all(parameter.grad is not None for core in model.cores[:2] for parameter in core.parameters())


def test_the_protocol_names_what_a_foreign_backbone_needs() -> None:
    assert isinstance(build(), Growable)
    assert not isinstance(nn.Linear(2, 2), Growable)
