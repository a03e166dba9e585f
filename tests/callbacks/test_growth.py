"""ModelGrowth: when it grows, what it does to learning rates, what it refuses, and foreign modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.small import TINY, quiet_trainer, windows
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

import looplit
from looplit.callbacks import ModelGrowth
from looplit.errors import InputError


class Seen(Callback):
    """What is in force in every forward and at every optimizer step."""

    def __init__(self) -> None:
        self.passes: list[int] = []
        self.rates: list[float] = []
        self.validated: list[tuple[int, int]] = []

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        self.passes.append(pl_module.backbone.passes)  # type: ignore[union-attr, arg-type]

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.validated.append((trainer.global_step, pl_module.backbone.passes))  # type: ignore[union-attr, arg-type]


def fit(model: L.LightningModule, growth: ModelGrowth, folder: Path, **settings: Any) -> tuple[Seen, L.Trainer]:
    seen = Seen()
    settings = {"max_steps": 10, "num_sanity_val_steps": 0, **settings}
    trainer = quiet_trainer(folder, callbacks=[seen, growth], **settings)
    trainer.fit(model, windows(), windows() if settings.get("val_check_interval") else None)
    return seen, trainer


@pytest.mark.parametrize("accumulation", [1, 2])
def test_it_grows_before_the_forward_of_step_g(tmp_path: Path, accumulation: int) -> None:
    seen, _ = fit(
        looplit.UntiedGrow(**TINY), ModelGrowth(passes=4, step=6), tmp_path, accumulate_grad_batches=accumulation
    )
    assert seen.passes == [2] * 6 * accumulation + [4] * 4 * accumulation


def test_the_share_after_growth_decides_the_step(tmp_path: Path) -> None:
    growth = ModelGrowth(passes=4, fraction=0.3)
    seen, _ = fit(looplit.LoopGrow(**TINY), growth, tmp_path)
    assert growth.growth_events[0].step == 7
    assert seen.passes.count(4) == 3


def test_without_arguments_it_takes_the_familys_plan(tmp_path: Path) -> None:
    growth = ModelGrowth()
    fit(looplit.UntiedGrow(**TINY), growth, tmp_path)
    (event,) = growth.growth_events
    assert (event.passes, event.step) == (4, 6)  # the ladder's ρ = 0.40 of d6, the nearest published depth


def test_a_validation_that_falls_on_g_runs_before_growth(tmp_path: Path) -> None:
    seen, _ = fit(looplit.LoopGrow(**TINY), ModelGrowth(passes=4, step=5), tmp_path, val_check_interval=5)
    assert seen.validated == [(5, 2), (10, 4)]


def test_the_learning_rate_rewarms_and_the_schedule_is_untouched(tmp_path: Path) -> None:
    plain, _ = fit(looplit.Loop(**TINY, steps=10, warmup_steps=0), _no_growth(), tmp_path)
    seen, trainer = fit(
        looplit.LoopGrow(**TINY, steps=10, warmup_steps=0), ModelGrowth(passes=4, step=3, rewarm_steps=4), tmp_path
    )
    base_ratio = seen.rates[0] / plain.rates[0]
    expected = [base_ratio * rate * min(1, max(0, t - 3) / 4 if t >= 3 else 1) for t, rate in enumerate(plain.rates)]
    assert seen.rates == pytest.approx(expected)
    assert seen.rates[3] == 0
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0)  # the schedule's own end, restored


def _no_growth() -> Any:
    return Callback()


def test_several_growths_in_one_run_multiply_their_rewarms(tmp_path: Path) -> None:
    model = looplit.UntiedGrow(**TINY, stored_cores=6, warmup_steps=0, warmdown_ratio=0.0)
    growth = ModelGrowth(passes=[4, 6], step=[4, 6], rewarm_steps=4, any_target=True)
    seen, _ = fit(model, growth, tmp_path)
    assert seen.passes == [2] * 4 + [4] * 2 + [6] * 4
    factors = [rate / seen.rates[0] for rate in seen.rates]
    assert factors == pytest.approx([1, 1, 1, 1, 0, 1 / 4, 0, 3 / 4 * 1 / 4, 2 / 4, 3 / 4])


def test_a_step_with_rate_zero_moves_no_weight(tmp_path: Path) -> None:
    model = looplit.UntiedGrow(**TINY)
    fit(model, ModelGrowth(passes=4, step=9), tmp_path)  # step 9 is the last: its rate is zero
    for source, filled in ((0, 2), (1, 3)):
        for a, b in zip(
            model.backbone.cores[source].parameters(), model.backbone.cores[filled].parameters(), strict=True
        ):
            assert torch.equal(a, b)


class ForeignBackbone(nn.Module):
    """Someone else's looped model: an MLP whose core runs several times, with names of its own."""

    tied = False

    def __init__(self) -> None:
        super().__init__()
        self.passes = 2
        self.read, self.write = nn.Embedding(64, 8), nn.Linear(8, 64)
        self.cores = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def set_passes(self, passes: int) -> None:
        self.passes = passes

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.read(tokens)
        for core in self.cores[: self.passes]:
            x = x + torch.tanh(core(x))
        logits: Tensor = self.write(x)
        return logits


class ForeignModule(L.LightningModule):
    """A LightningModule that knows nothing of LoopLit, with SGD and a scheduler that works on the rate in place."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = ForeignBackbone()

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.backbone(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def test_it_works_on_a_foreign_module_and_scheduler(tmp_path: Path) -> None:
    model = ForeignModule()
    start = [parameter.detach().clone() for parameter in model.backbone.cores[2].parameters()]
    growth = ModelGrowth(passes=4, step=5, rewarm_steps=2)
    seen, trainer = fit(model, growth, tmp_path)
    assert seen.passes == [2] * 5 + [4] * 5
    assert seen.rates == pytest.approx([0.1 * 0.9**t * {5: 0.0, 6: 0.5}.get(t, 1.0) for t in range(10)])
    assert any(not torch.equal(a, b) for a, b in zip(start, model.backbone.cores[2].parameters(), strict=True))
    trainer.save_checkpoint(tmp_path / "foreign.ckpt")
    resumed = ForeignModule()
    again = L.Trainer(
        accelerator="cpu", max_steps=12, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[ModelGrowth(passes=4, step=5, rewarm_steps=2)],
    )  # fmt: skip
    again.fit(resumed, windows(), ckpt_path=tmp_path / "foreign.ckpt", weights_only=True)
    assert resumed.backbone.passes == 4


@pytest.mark.parametrize(
    ("model", "arguments", "named"),
    [
        (looplit.UntiedGrow, {"passes": 4, "step": 10}, "step = 10: growth must fall inside the run of 10 steps"),
        (looplit.UntiedGrow, {"passes": 4, "step": 0}, "step = 0: growth must fall inside"),
        (looplit.UntiedGrow, {"passes": 3, "step": 5}, "passes = 3: .*multiple"),
        (looplit.UntiedGrow, {"passes": 6, "step": 5}, "passes = 6: the model stores 4 cores"),
        (looplit.LoopGrow, {"passes": 2, "step": 5}, "passes = 2: growth must lead above"),
        (looplit.LoopGrow, {"passes": [4, 6], "step": [5, 5]}, "two growths fall on one step"),
        (looplit.Loop, {}, "Loop has no growth plan"),
    ],
)
def test_impossible_growth_is_refused_before_training(
    tmp_path: Path, model: type[L.LightningModule], arguments: dict[str, Any], named: str
) -> None:
    with pytest.raises(InputError, match=named):
        fit(model(**TINY), ModelGrowth(**arguments), tmp_path)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"passes": 4}, "growth needs its step or its fraction"),
        ({"step": 4}, "step or fraction needs the passes"),
        ({"passes": 4, "step": 4, "fraction": 0.5}, "give step or fraction, not both"),
        ({"passes": [4, 6], "step": 4}, "one entry for each"),
        ({"passes": 4, "step": 4, "rewarm_steps": -1}, "rewarm_steps = -1"),
    ],
)
def test_contradictory_arguments_are_refused(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        ModelGrowth(**arguments)


def test_a_growth_that_a_resumed_run_has_missed_is_refused(tmp_path: Path) -> None:
    model = looplit.LoopGrow(**TINY, steps=20)
    _, trainer = fit(model, ModelGrowth(passes=4, step=15), tmp_path)
    trainer.save_checkpoint(tmp_path / "at10.ckpt")
    late = L.Trainer(
        accelerator="cpu", max_steps=12, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[ModelGrowth(passes=4, step=5)],
    )  # fmt: skip
    with pytest.raises(InputError, match="step = 5: the run resumes at step 10 without having grown"):
        late.fit(looplit.LoopGrow(**TINY, steps=20), windows(), ckpt_path=tmp_path / "at10.ckpt", weights_only=True)
