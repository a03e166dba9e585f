"""Branches of one row get what rows of their own would get."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.core_bundle import make_model
from torch import Tensor

from looplit.model import Backbone, BackboneConfig


def perturbed(**changes: Any) -> Backbone:
    config = BackboneConfig(
        width=32, heads=2, prelude=1, core=1, coda=1, passes=3, vocabulary=257, context=24, **changes
    )
    model = Backbone(config)
    model.load_state_dict({
        name: value + 0.2 * torch.randn(value.shape, generator=torch.Generator().manual_seed(len(name)))
        for name, value in model.state_dict().items()
    })  # fmt: skip
    return model


MODELS = {
    "tied": make_model(context=24),
    "untied": perturbed(tied=False),
    "truncation study": perturbed(
        mlp="squared_relu", gains=True, pass_norm=True, soft_cap=3.0, boundary="linear", coda_boundary="identity"
    ),
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@torch.no_grad()
def test_a_branch_is_a_row(model: Backbone) -> None:
    generator = torch.Generator().manual_seed(0)
    prefix, *branches = (torch.randint(0, 257, (n,), generator=generator) for n in (10, 6, 1, 14, 3))
    padding = torch.zeros(40, dtype=torch.long)  # longer than the context: its positions must not run out of it
    row = torch.cat([prefix, *branches, padding])
    ids = torch.cat([torch.full((len(part),), b) for b, part in enumerate([prefix, *branches])])
    ids = torch.cat([ids, -1 - torch.arange(len(padding))])
    packed = model(row[None], branches_BT=ids[None])[0]
    for b, branch in enumerate(branches, start=1):
        alone = model(torch.cat([prefix, branch])[None])[0]
        # fp32 rounding of attention over other lengths; logits are of order 1
        torch.testing.assert_close(packed[ids == b], alone[len(prefix) :], atol=2e-5, rtol=0)
        torch.testing.assert_close(packed[: len(prefix)], alone[: len(prefix)], atol=2e-5, rtol=0)
    assert packed.isfinite().all()


@torch.no_grad()
def test_readout_takes_the_place_of_decoding() -> None:
    model = make_model()
    tokens = torch.arange(12).view(2, 6)
    read: list[Tensor] = []

    def readout(y_BTD: Tensor) -> Tensor:
        read.append(y_BTD)
        return y_BTD.sum()

    total = model(tokens, readout=readout)
    assert total == read[0].sum()
    assert torch.equal(model.decode_normed(read[0]), model(tokens))
