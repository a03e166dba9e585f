"""The families as LightningModules: their shapes, recipes, training step and refusals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.small import TINY
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import looplit
from looplit.accounting.flops import flops_per_token, stored_parameters
from looplit.callbacks import ModelGrowth
from looplit.errors import InputError, RunStopped
from looplit.modules import GrowthStudyLM

CLASSES = {
    "vanilla": looplit.Vanilla,
    "deep_vanilla": looplit.DeepVanilla,
    "deep_vanilla_grow": looplit.DeepVanillaGrow,
    "operator_1": looplit.Operator1,
    "loop_2": looplit.Loop,
    "loop_grow": looplit.LoopGrow,
    "untied_2": looplit.Untied,
    "untied_grow": looplit.UntiedGrow,
}
TABLE_2 = {  # millions, as rounded in the paper, d6 to d26
    ("vanilla", "loop_grow"): (120, 210, 330, 490, 730, 1000, 1400, 1800, 2400, 3000, 3800),
    ("untied_2",): (130, 240, 410, 610, 920, 1300, 1800, 2400, 3200, 3900, 5000),
    ("untied_grow",): (160, 320, 580, 830, 1300, 2000, 2500, 3500, 4700, 5700, 7400),
}


class Windows(Dataset[Tensor]):
    """Fixed random windows of 16 + 1 tokens."""

    def __init__(self, windows: int = 64) -> None:
        self.tokens = torch.randint(0, 64, (windows, 17), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> Tensor:
        return self.tokens[index]


def loader(windows: int = 64, batch_size: int = 4) -> DataLoader[Tensor]:
    return DataLoader(Windows(windows), batch_size=batch_size)


def trainer(folder: Path, **settings: Any) -> L.Trainer:
    defaults = {
        "accelerator": "cpu", "max_steps": 8, "logger": False, "enable_checkpointing": False,
        "enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": folder,
    }  # fmt: skip
    return L.Trainer(**{**defaults, **settings})


def tokens_of(named: int) -> float:
    """The precision of a rounded figure in millions: 10 below a thousand, 100 above."""
    return 5e6 if named < 1000 else 5e7


@pytest.mark.parametrize("depth", range(6, 27, 2))
def test_stored_parameters_are_those_of_the_paper(depth: int) -> None:
    for names, row in TABLE_2.items():
        for name in names:
            with torch.device("meta"):
                model = CLASSES[name](depth=depth)
            stored = sum(parameter.numel() for parameter in model.parameters())
            assert stored == stored_parameters(model.config)
            figure = row[(depth - 6) // 2]
            assert abs(stored - figure * 1e6) <= tokens_of(figure)


@pytest.mark.parametrize("name", CLASSES)
def test_every_family_at_every_depth_equals_the_formula(name: str) -> None:
    for depth in range(6, 27, 2):
        with torch.device("meta"):
            model = CLASSES[name](depth=depth)
        assert sum(parameter.numel() for parameter in model.parameters()) == stored_parameters(model.config)


def test_exact_parameter_counts() -> None:
    for name, depth, count in (
        ("vanilla", 6, 119_734_272),
        ("untied_2", 8, 244_318_208),
        ("untied_grow", 26, 7_424_049_152),
    ):
        with torch.device("meta"):
            assert sum(p.numel() for p in CLASSES[name](depth=depth).parameters()) == count


def test_untied_grow_d26_is_complete_by_its_depth() -> None:
    with torch.device("meta"):
        model = looplit.UntiedGrow(depth=26)
    assert model.hyperparameters.learning_rate == pytest.approx(0.00652527533, rel=1e-9)
    assert model.growth_plan == (4, 0.23)
    assert (model.config.width, model.config.heads, model.config.executed_depth()) == (3328, 26, 35)


def test_every_value_can_be_overridden() -> None:
    model = looplit.Untied(
        **TINY, passes=3, split=(1, 2, 1), learning_rate=0.1, weight_decay=0.2, residual_multiplier=0.7
    )
    assert (model.config.prelude, model.config.core, model.config.coda) == (1, 2, 1)
    assert model.config.stored_cores == 3
    assert model.backbone.coda[0].residual_multiplier == 0.7
    assert (model.hyperparameters.learning_rate, model.hyperparameters.weight_decay) == (0.1, 0.2)


def test_one_pass_takes_operator_1s_hyperparameters() -> None:
    one, operator = looplit.Loop(depth=3, passes=1), looplit.Operator1(depth=3)
    assert one.hyperparameters == operator.hyperparameters


@pytest.mark.parametrize("name", CLASSES)
def test_every_family_trains(name: str, tmp_path: Path) -> None:
    model = CLASSES[name](**TINY)
    callbacks = [ModelGrowth(passes=4, step=4)] if model.family.grow_to else []
    run = trainer(tmp_path, max_steps=30, callbacks=callbacks)
    with torch.no_grad():
        first = float(model.backbone(*split(Windows().tokens)))
    run.fit(model, loader())
    with torch.no_grad():
        last = float(model.backbone(*split(Windows().tokens)))
    assert first == pytest.approx(math.log(64), abs=1e-5)
    assert last < first - 0.02  # random tokens: the unigram frequencies of 1,024 tokens and some memorising


def split(windows: Tensor) -> tuple[Tensor, Tensor]:
    return windows[:, :-1], windows[:, 1:]


class OneBatch(GrowthStudyLM):
    """Keeps the gradient of the first optimizer step."""

    family = looplit.Vanilla.family
    gradient: Tensor

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        super().on_before_optimizer_step(optimizer)
        self.gradient = torch.cat([p.grad.flatten() for p in self.parameters() if p.grad is not None])


def perturbed() -> OneBatch:
    model = OneBatch(**TINY, seed=1)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    return model


@pytest.mark.parametrize(("accumulation", "windows"), [(4, 16), (4, 12), (2, 16)])
def test_accumulation_gives_the_gradient_of_one_big_batch(tmp_path: Path, accumulation: int, windows: int) -> None:
    """12 windows in batches of 4 at accumulation 4: a shorter window of three batches, which Lightning divides by 4."""
    many, big = perturbed(), perturbed()
    trainer(tmp_path, max_steps=1, accumulate_grad_batches=accumulation).fit(many, loader(windows, 4))
    trainer(tmp_path, max_steps=1).fit(big, loader(windows, min(windows, 4 * accumulation)))
    assert (many.gradient - big.gradient).norm() < 1e-5 * big.gradient.norm()


def test_a_pair_of_inputs_and_targets_is_the_same_as_windows() -> None:
    model = perturbed()
    windows = Windows().tokens
    assert torch.equal(model.predict_step(windows, 0), model.predict_step(split(windows), 0))


def test_what_was_processed_is_counted_across_growth(tmp_path: Path) -> None:
    model = looplit.LoopGrow(**TINY)
    trainer(tmp_path, callbacks=[ModelGrowth(passes=4, step=5)], accumulate_grad_batches=2).fit(model, loader())
    per_step = 2 * 4 * 16
    assert model.meter.tokens == 8 * per_step
    costs = (flops_per_token(model.config, passes) for passes in (2, 4))
    assert model.meter.flops == sum(steps * per_step * cost for steps, cost in zip((5, 3), costs, strict=True))


def test_a_loss_that_is_not_finite_stops_before_the_update(tmp_path: Path) -> None:
    model = looplit.Vanilla(**TINY, steps=8)
    run = trainer(tmp_path, enable_checkpointing=True, max_steps=3)
    run.fit(model, loader())
    checkpoint = run.checkpoint_callback.best_model_path  # type: ignore[union-attr]
    with torch.no_grad():
        model.backbone.embedding.weight[0] = math.inf
    before = [parameter.clone() for parameter in model.parameters()]
    again = trainer(tmp_path, enable_checkpointing=True)
    again.checkpoint_callback.best_model_path = checkpoint  # type: ignore[union-attr]
    with pytest.raises(RunStopped, match=rf"step 0: the loss \(nan\).*not updated.*{Path(checkpoint).name}"):
        again.fit(model, loader())
    assert all(torch.equal(a, b) or a.isinf().any() for a, b in zip(before, model.parameters(), strict=True))


def test_a_notebook_gets_the_model_back_at_its_passes(tmp_path: Path) -> None:
    model = looplit.UntiedGrow(**TINY)
    run = trainer(tmp_path, callbacks=[ModelGrowth(passes=4, step=5)])
    run.fit(model, loader())
    run.save_checkpoint(tmp_path / "grown.ckpt")
    for loaded in (
        looplit.UntiedGrow.load_from_checkpoint(tmp_path / "grown.ckpt", weights_only=True),
        looplit.load(tmp_path / "grown.ckpt"),
    ):
        assert loaded.backbone.passes == 4
        tokens = Windows().tokens[:4, :-1]
        assert torch.equal(loaded(tokens), model(tokens))


def test_compiled_and_uncompiled_checkpoints_exchange(tmp_path: Path) -> None:
    compiled, plain = looplit.Loop(**TINY, compile=True, steps=3, seed=2), looplit.Loop(**TINY, steps=3, seed=2)
    for name, model in (("compiled", compiled), ("plain", plain)):
        run = trainer(tmp_path, max_steps=2)
        run.fit(model, loader())
        run.save_checkpoint(tmp_path / f"{name}.ckpt")
    for name, model, into in (
        ("compiled", compiled, looplit.Loop(**TINY, steps=3)),
        ("plain", plain, looplit.Loop(**TINY, steps=3, compile=True)),
    ):
        trainer(tmp_path, max_steps=3).fit(into, loader(), ckpt_path=tmp_path / f"{name}.ckpt", weights_only=True)
        assert model.state_dict().keys() == into.state_dict().keys()


@pytest.mark.parametrize(
    "changed",
    [
        {"residual_multiplier": 0.5},
        {"output_multiplier": 0.5},
        {"injection_scale": 0.25},
        {"initial_state": "prelude"},
        {"boundary": "norm"},
        {"coda_boundary": "norm"},
        {"heads": 1},
        {"trained_passes": 1},
        {"embedding_std": 0.5},
        {"passes": 3},
        {"warmup_steps": 2},
        {"warmdown_ratio": 0.9},
    ],
    ids=str,
)
def test_a_resumed_run_keeps_what_no_shape_shows(changed: dict[str, Any], tmp_path: Path) -> None:
    given: dict[str, Any] = {**TINY, "heads": 2, "steps": 6, "warmup_steps": 1, "warmdown_ratio": 0.5}
    run = trainer(tmp_path, max_steps=4)
    run.fit(looplit.Loop(**given), loader())
    run.save_checkpoint(tmp_path / "half.ckpt")
    ((name, value),) = changed.items()
    with pytest.raises(InputError, match=f"{name} = {value!r}: the checkpoint's"):
        trainer(tmp_path, max_steps=6).fit(
            looplit.Loop(**{**given, **changed}), loader(), ckpt_path=tmp_path / "half.ckpt", weights_only=True
        )


def test_a_run_may_be_made_longer_before_its_rate_falls(tmp_path: Path) -> None:
    given: dict[str, Any] = {**TINY, "warmup_steps": 1, "warmdown_ratio": 0.75}
    run = trainer(tmp_path, max_steps=3)
    run.fit(looplit.Loop(**given, steps=8), loader())
    run.save_checkpoint(tmp_path / "early.ckpt")
    into = looplit.Loop(**given, steps=12)
    trainer(tmp_path, max_steps=4).fit(into, loader(), ckpt_path=tmp_path / "early.ckpt", weights_only=True)
    into, run = looplit.Loop(**given, steps=4), trainer(tmp_path, max_steps=4)
    with pytest.raises(InputError, match="steps = 4: the checkpoint's run was planned with 8"):
        run.fit(into, loader(), ckpt_path=tmp_path / "early.ckpt", weights_only=True)


class TestLoad:
    def test_of_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="there is no such checkpoint"):
            looplit.load(tmp_path / "no.ckpt")

    def test_of_something_else(self, tmp_path: Path) -> None:
        (tmp_path / "text.ckpt").write_text("hello")
        with pytest.raises(InputError, match="not a readable checkpoint"):
            looplit.load(tmp_path / "text.ckpt")
        torch.save({"state_dict": {}}, tmp_path / "weights.ckpt")
        with pytest.raises(InputError, match="not a checkpoint of a run"):
            looplit.load(tmp_path / "weights.ckpt")
        torch.save({"state_dict": {}, "pytorch-lightning_version": "2.6.6"}, tmp_path / "other.ckpt")
        with pytest.raises(InputError, match="not a checkpoint of one of LoopLit's families"):
            looplit.load(tmp_path / "other.ckpt")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"depth": 2}, "depth = 2"),
        ({"depth": 3, "heads": 5}, "heads = 5"),
        ({"depth": 3, "split": (1, 1)}, "split"),
        ({"depth": 3, "learning_rate": -1.0}, "learning_rate = -1.0"),
        ({"depth": 3, "warmdown_ratio": 1.5}, "warmdown_ratio = 1.5"),
        ({"depth": 3, "betas": (0.9, 1.0)}, "betas"),
        ({"depth": 3, "steps": 0}, "steps = 0"),
        ({"depth": 3, "passes": 5, "stored_cores": 4}, "passes = 5"),
    ],
)
def test_wrong_arguments_are_refused_by_name(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        looplit.UntiedGrow(**arguments)


def test_a_run_longer_than_its_schedule_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"trainer.max_steps = 8: goes beyond the 5 planned steps"):
        trainer(tmp_path).fit(looplit.Vanilla(**TINY, steps=5), loader())


def test_growth_without_its_callback_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="add looplit.callbacks.ModelGrowth"):
        trainer(tmp_path).fit(looplit.UntiedGrow(**TINY), loader())


def test_token_ids_beyond_the_vocabulary_are_refused_for_any_loader(tmp_path: Path) -> None:
    model = looplit.Vanilla(**{**TINY, "vocabulary": 50})
    with pytest.raises(InputError, match="vocabulary = 50: the data holds token ids up to 63"):
        trainer(tmp_path).fit(model, loader())
