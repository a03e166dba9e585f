"""Loss at other numbers of passes, and the sample of tokens that it and the lens are read on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from looplit.errors import InputError
from looplit.eval.passes import PassesResult, loss_at_passes
from looplit.eval.sample import TokenSample, split_sample
from looplit.model.backbone import Backbone
from looplit.model.config import BackboneConfig


def backbone(**settings: Any) -> Backbone:
    shape: dict[str, Any] = {
        "width": 32,
        "heads": 2,
        "prelude": 1,
        "core": 1,
        "coda": 1,
        "vocabulary": 61,
        "context": 16,
    }
    model = Backbone(BackboneConfig(**{**shape, **settings}), seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def windows(rows: int = 5) -> Tensor:
    return torch.randint(0, 61, (rows, 17), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("tied", [True, False])
def test_each_loss_is_that_of_a_model_set_to_those_passes(tied: bool) -> None:
    model = backbone(passes=2, tied=tied, stored_cores=1 if tied else 3)
    batches = split_sample(windows()[:, :-1], windows()[:, 1:], 2)
    result = loss_at_passes(model, batches, [3, 1])
    assert model.passes == result.trained == 2
    assert list(result.losses) == [1, 2, 3]
    for k, loss in result.losses.items():
        model.set_passes(k)
        with torch.no_grad():
            expected = float(model(windows()[:, :-1], windows()[:, 1:]))
        assert loss == pytest.approx(expected, abs=1e-6)
    assert result.excess(2) == 0
    assert result.excess(3) == result.losses[3] - result.losses[2]
    assert result.tokens == 5 * 16


def test_an_untied_model_above_its_cores_is_refused() -> None:
    model = backbone(passes=2, tied=False, stored_cores=3)
    with pytest.raises(InputError, match="passes = 4: an untied model can run at most its 3 stored cores"):
        loss_at_passes(model, [], [1, 4])
    with pytest.raises(InputError, match="passes = 0: must be at least 1"):
        loss_at_passes(model, [], [0])
    with pytest.raises(InputError, match="nothing to score"):
        loss_at_passes(model, [], [1])
    assert model.passes == 2


def test_plain_values() -> None:
    result = PassesResult(2, {1: 3.5, 2: 3.0}, 10)
    assert result.to_dict()["losses"][0] == {"passes": 1, "loss": 3.5, "excess": 0.5}


def test_a_sample_holds_whole_rows_up_to_its_tokens() -> None:
    rows = windows(7)
    sample = TokenSample(5 * 16 + 15).fill([rows[:3], (rows[3:6, :-1], rows[3:6, 1:]), rows[6:]])
    inputs, targets, batch_size = sample.stacked()
    assert torch.equal(inputs, rows[:5, :-1])
    assert torch.equal(targets, rows[:5, 1:])
    assert batch_size == 3
    assert [len(part) for part, _ in sample.batches()] == [3, 2]


def test_rows_of_different_lengths_are_scored_as_they_are() -> None:
    rows, model = windows(4), backbone(passes=2)
    short = rows[2:, :9]
    batches = TokenSample(1000).fill([rows[:2], short]).batches()
    result = loss_at_passes(model, batches, [2])
    apart = [loss_at_passes(model, [part], [2]) for part in (rows[:2], short)]
    assert result.tokens == 2 * 16 + 2 * 8
    expected = sum(one.losses[2] * one.tokens for one in apart) / result.tokens
    assert result.losses[2] == pytest.approx(expected, rel=1e-6)  # fp32, in other batches


def test_a_sample_smaller_than_a_row_takes_one_and_an_empty_one_is_refused() -> None:
    assert TokenSample(3).fill([windows()]).stacked()[0].shape == (1, 16)
    with pytest.raises(InputError, match="nothing to score"):
        TokenSample(3).stacked()
    with pytest.raises(InputError, match="tokens = 0"):
        TokenSample(0)


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_processes_share_the_rows_and_have_equally_many(world_size: int) -> None:
    rows = windows(5)
    shares = [
        split_sample(rows[:, :-1], rows[:, 1:], 2, rank=rank, world_size=world_size) for rank in range(world_size)
    ]
    assert len({tuple(part.shape for part, _ in share) for share in shares}) == 1
    scored = [row for share in shares for inputs, targets in share for row in inputs[targets[:, 0] >= 0].tolist()]
    assert sorted(scored) == sorted(rows[:, :-1].tolist())
