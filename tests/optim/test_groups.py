"""Roles of parameters."""

from __future__ import annotations

import pytest
from torch import nn

from looplit.errors import InputError
from looplit.model.backbone import Backbone
from looplit.optim import parameters_by_role
from looplit.recipes.families import FAMILIES
from looplit.recipes.truncation_study import truncated_backbone


@pytest.mark.parametrize("name", FAMILIES)
def test_every_parameter_is_in_exactly_one_group_by_its_role(name: str) -> None:
    model = Backbone(FAMILIES[name].backbone(6, width=64, heads=1, vocabulary=64))  # a head of 64 × 64, like q
    roles = parameters_by_role(model)
    ids = [id(parameter) for named in roles.values() for _, parameter in named]
    assert sorted(ids) == sorted(id(parameter) for parameter in model.parameters())
    assert [name for name, _ in roles["embedding"]] == ["embedding.weight"]
    assert [name for name, _ in roles["head"]] == ["head.weight"]
    assert len(roles["matrix"]) == 7 * model.config.stored_blocks


def test_gains_and_the_boundary_have_roles_of_their_own() -> None:
    model = Backbone(truncated_backbone(64, 2, vocabulary=64))
    roles = parameters_by_role(model)
    assert [name for name, _ in roles["boundary"]] == ["boundary.weight"]
    assert {name.rpartition(".")[2] for name, _ in roles["gain"]} == {"gain"}
    assert (len(roles["matrix"]), len(roles["gain"])) == (6 * 8, 2 * 8 + 3)
    assert sum(map(len, roles.values())) == len(list(model.parameters()))


def test_groups_follow_the_order_of_named_parameters() -> None:
    """Lightning maps the optimizer's numbers to names by that order."""
    model = Backbone(FAMILIES["untied_grow"].backbone(3, width=64, heads=1, vocabulary=64))
    in_groups = [name for named in parameters_by_role(model).values() for name, _ in named]
    assert in_groups == [name for name, _ in model.named_parameters()]


def test_a_parameter_of_no_role_is_refused_by_name() -> None:
    model = Backbone(FAMILIES["vanilla"].backbone(3, width=64, heads=1, vocabulary=64))
    model.extra = nn.Linear(2, 2)
    with pytest.raises(InputError, match=r"parameter = 'extra.weight'"):
        parameters_by_role(model)
