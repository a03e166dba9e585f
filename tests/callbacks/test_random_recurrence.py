"""RandomRecurrence: which K every step takes, what is counted, evaluated and saved, and that a resumed run agrees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import yaml
from helpers.small import TINY
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.cli import LightningArgumentParser
from torch import Tensor
from torch.utils.data import DataLoader

import looplit
from looplit.accounting.flops import flops_per_token
from looplit.accounting.recurrence import draw_passes
from looplit.callbacks import ModelGrowth, RandomRecurrence, RunReport
from looplit.errors import InputError

CHOICES = [2, 3, 4, 5, 6]
STEPS, GROWTH = 12, 4


def expected_passes() -> list[int]:
    """K of every step of a run that grows and then draws."""
    return [2] * GROWTH + [draw_passes(7, step, CHOICES) for step in range(GROWTH, STEPS)]


def realised_flops(accumulation: int = 1) -> int:
    """FLOPs of those steps, micro-batches of two rows of 16 tokens."""
    config = looplit.LoopGrow(**TINY).config
    return sum(accumulation * 2 * 16 * flops_per_token(config, k, 16) for k in expected_passes())


def windows(batches: int = 24) -> DataLoader[Tensor]:
    """One batch again and again, so that a resumed run needs no place in the data."""
    batch = torch.randint(0, 64, (2, 17), generator=torch.Generator().manual_seed(0))
    return DataLoader(batch.repeat(batches, 1), batch_size=2)  # type: ignore[arg-type]


class Seen(Callback):
    """K of every forward of training and of every validation."""

    def __init__(self) -> None:
        self.trained: list[int] = []
        self.validated: list[tuple[int, int]] = []

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        self.trained.append(pl_module.backbone.passes)  # type: ignore[union-attr, arg-type]

    def on_validation_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        self.validated.append((trainer.global_step, pl_module.backbone.passes))  # type: ignore[union-attr, arg-type]


def run(
    model: L.LightningModule, folder: Path, callbacks: list[Callback], ckpt: Path | None = None, **settings: Any
) -> tuple[Seen, L.Trainer]:
    seen = Seen()
    trainer = L.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder, num_sanity_val_steps=0, limit_val_batches=1,
        callbacks=[*callbacks, seen], **{"max_steps": STEPS, **settings},
    )  # fmt: skip
    validation = windows(1) if "val_check_interval" in settings else None
    trainer.fit(model, windows(), validation, ckpt_path=ckpt, weights_only=True)
    return seen, trainer


def both() -> list[Callback]:
    return [ModelGrowth(passes=4, step=GROWTH), RandomRecurrence(CHOICES, evaluate_at=4, seed=7)]


@pytest.mark.parametrize("accumulation", [1, 2])
def test_passes_are_drawn_after_growth_once_for_every_optimizer_step(tmp_path: Path, accumulation: int) -> None:
    model = looplit.LoopGrow(**TINY)
    seen, _ = run(model, tmp_path, both(), accumulate_grad_batches=accumulation)
    assert len(set(expected_passes()[GROWTH:])) > 2
    assert seen.trained == [k for k in expected_passes() for _ in range(accumulation)]
    assert model.meter.flops == realised_flops(accumulation)
    assert model.backbone.passes == 4  # what evaluations after the run take


def test_without_growth_they_are_drawn_from_the_start(tmp_path: Path) -> None:
    seen, _ = run(looplit.Loop(**TINY), tmp_path, [RandomRecurrence(CHOICES, evaluate_at=3)])
    assert seen.trained == [draw_passes(0, step, CHOICES) for step in range(STEPS)]


def test_an_untied_model_draws_among_its_cores(tmp_path: Path) -> None:
    seen, _ = run(looplit.Untied(**TINY, passes=4), tmp_path, [RandomRecurrence([2, 3, 4], evaluate_at=4, seed=1)])
    assert seen.trained == [draw_passes(1, step, [2, 3, 4]) for step in range(STEPS)]


def test_evaluation_takes_its_own_passes_from_growth_on(tmp_path: Path) -> None:
    seen, _ = run(looplit.LoopGrow(**TINY), tmp_path, both(), val_check_interval=2)
    assert seen.validated == [(2, 2), (4, 2), (6, 4), (8, 4), (10, 4), (12, 4)]  # the one at step 4 is before growth
    assert seen.trained == expected_passes()


@pytest.mark.parametrize("stop", [3, 8])
def test_a_resumed_run_draws_what_an_uninterrupted_one_draws(tmp_path: Path, stop: int) -> None:
    settings = {**TINY, "steps": STEPS, "seed": 1}
    whole = looplit.LoopGrow(**settings)
    straight, _ = run(whole, tmp_path, both())
    half = looplit.LoopGrow(**settings)
    first, trainer = run(half, tmp_path, both(), max_steps=stop)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    rest = looplit.LoopGrow(**settings)
    second, _ = run(rest, tmp_path, both(), tmp_path / "half.ckpt")
    assert first.trained + second.trained == straight.trained
    assert rest.meter.flops == whole.meter.flops
    for a, b in zip(whole.parameters(), rest.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_checkpoint_is_at_the_evaluated_passes(tmp_path: Path) -> None:
    class Save(Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
            trainer.save_checkpoint(tmp_path / f"{trainer.global_step}.ckpt")

    model = looplit.LoopGrow(**TINY)
    run(model, tmp_path, [*both(), Save()])
    loaded = {step: looplit.load(tmp_path / f"{step}.ckpt").backbone.passes for step in (GROWTH, GROWTH + 1, STEPS)}
    assert loaded == {GROWTH: 2, GROWTH + 1: 4, STEPS: 4}
    assert model.meter.flops == realised_flops()  # saving changes no count


def test_the_report_replays_the_draws(tmp_path: Path) -> None:
    run(looplit.LoopGrow(**TINY), tmp_path, [*both(), RunReport()])
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["passes"] == [2, CHOICES]
    assert result["training_flops"] == realised_flops()


def test_the_order_of_the_callbacks_matters_and_is_checked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name RandomRecurrence after ModelGrowth"):
        run(looplit.LoopGrow(**TINY), tmp_path, both()[::-1])


@pytest.mark.parametrize(
    ("model", "arguments", "named"),
    [
        (looplit.Untied, {"passes": [2, 3], "evaluate_at": 2}, "passes = 3: the model stores 2 cores"),
        (looplit.Untied, {"passes": [1, 2], "evaluate_at": 3}, "evaluate_at = 3: the model stores 2 cores"),
        (looplit.Loop, {"passes": [], "evaluate_at": 2}, r"passes = \[\]"),
        (looplit.Loop, {"passes": [0, 2], "evaluate_at": 2}, r"passes = \[0, 2\]"),
        (looplit.Loop, {"passes": [2], "evaluate_at": 0}, "evaluate_at = 0"),
        (looplit.Loop, {"passes": 4, "evaluate_at": 4}, "passes = 4: must be a list to draw from"),
        (looplit.Loop, {"passes": [2, "x"], "evaluate_at": 4}, r"passes = \[2, 'x'\]: must be whole numbers"),
    ],
)
def test_impossible_passes_are_refused(
    tmp_path: Path, model: type[L.LightningModule], arguments: dict[str, Any], named: str
) -> None:
    with pytest.raises(InputError, match=named):
        run(model(**TINY), tmp_path, [RandomRecurrence(**arguments)])


def test_the_generated_configs_build(root: Path) -> None:
    """Every callback of every file that draws passes, through the parser that the command line uses."""
    files = sorted((root / "configs").glob("random_recurrence/*.yaml"))
    assert files
    parser = LightningArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Callback, "callback")
    for file in files:
        entries = yaml.safe_load(file.read_text())["trainer"]["callbacks"]
        built = [parser.instantiate_classes(parser.parse_object({"callback": entry})).callback for entry in entries]
        growth, random = built
        assert isinstance(growth, ModelGrowth)
        assert isinstance(random, RandomRecurrence)
        assert random.random_passes.evaluate_at == growth.request.passes == 4
        assert random.random_passes.choices == (2, 3, 4, 5, 6)
