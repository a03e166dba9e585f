"""`TruncatedLoop`: its parameter groups, schedule and norms in training, batch and resume, growth, the way back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.utils.data import DataLoader

import looplit
from looplit.accounting.flops import flops_per_token
from looplit.callbacks import ModelGrowth, RandomRecurrence, RunReport
from looplit.callbacks.report import planned_run
from looplit.errors import InputError
from looplit.recipes.hyperp import transfer
from looplit.recipes.run import Run
from looplit.recipes.truncation_study import SETTINGS

TOKENS = torch.randint(0, 64, (64, 17), generator=torch.Generator().manual_seed(0))
TINY: dict[str, Any] = {
    "passes": 3, "trained_passes": 1, "width": 32, "split": (1, 1, 1), "vocabulary": 64, "context": 16,
    "batch_tokens": 64, "seed": 1,
}  # fmt: skip


def loader(batch_size: int = 4) -> DataLoader[Tensor]:
    return DataLoader(TOKENS, batch_size=batch_size)  # type: ignore[arg-type]


def fit(model: L.LightningModule, folder: Path, batch_size: int = 4, **settings: Any) -> L.Trainer:
    resume = settings.pop("ckpt_path", None)
    defaults = {
        "accelerator": "cpu", "max_steps": 8, "logger": False, "enable_checkpointing": False,
        "enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": folder,
    }  # fmt: skip
    trainer = L.Trainer(**{**defaults, **settings})
    trainer.fit(model, loader(batch_size), ckpt_path=resume, weights_only=True)
    return trainer


class Record(Callback):
    """Learning rates of every step by role, and the gradients' reach."""

    def __init__(self) -> None:
        self.rates: list[dict[str, float]] = []

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any) -> None:
        self.rates.append({group["role"]: group["lr"] for group in optimizer.param_groups})


def test_it_trains_as_hyperp_says_and_keeps_the_norms(tmp_path: Path) -> None:
    model, record = looplit.TruncatedLoop(**TINY, head_lr=0.004), Record()  # HyperP's is tiny at 64 tokens a step
    matrices = {n: p for n, p in model.backbone.named_parameters() if p.ndim == 2 and n[:4] not in ("embe", "head")}
    norms = {name: float(parameter.detach().norm()) for name, parameter in matrices.items()}
    with torch.no_grad():
        first = float(model.backbone(TOKENS[:, :-1], TOKENS[:, 1:]))
    trainer = fit(model, tmp_path, max_steps=30, callbacks=[record])
    with torch.no_grad():
        last = float(model.backbone(TOKENS[:, :-1], TOKENS[:, 1:]))
    assert last < first - 0.02  # random tokens: their frequencies and some memorising
    groups = {group["role"]: group for group in trainer.optimizers[0].param_groups}
    assert {role: group["algorithm"] for role, group in groups.items()} == {
        "embedding": "adamw", "matrix": "muonh", "head": "adamw", "boundary": "muonh", "gain": "adamw"
    }  # fmt: skip
    settings = transfer(32, 64, 64 * 30)
    assert record.rates[0]["matrix"] == record.rates[0]["boundary"] == settings.learning_rate
    assert record.rates[0]["gain"] == settings.gain_lr
    shares = [rates["head"] / 0.004 for rates in record.rates]
    assert shares == pytest.approx([1 - 0.9 * t / 29 for t in range(30)])  # from 1 at the first step to 0.1 at the last
    for name, parameter in matrices.items():
        # fp32: a projection leaves some units of 6e-8
        assert float(parameter.detach().norm()) == pytest.approx(norms[name], rel=1e-5), name
    assert model.backbone.boundary.weight[:, 32:].any()


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_takes_a_step(setting: tuple[int, int], tmp_path: Path) -> None:
    passes, trained = setting
    model = looplit.TruncatedLoop(**{**TINY, "passes": passes, "trained_passes": trained})
    before = {name: parameter.detach().clone() for name, parameter in model.backbone.named_parameters()}
    fit(model, tmp_path, max_steps=1)
    unmoved = {name for name, parameter in model.backbone.named_parameters() if torch.equal(parameter, before[name])}
    assert unmoved == set()
    assert ("boundary.weight" in before) is (passes > 1)


def test_what_is_counted_is_what_the_law_costs(tmp_path: Path) -> None:
    model, report = looplit.TruncatedLoop(**TINY), RunReport()
    trainer = fit(model, tmp_path, callbacks=[report])
    run = planned_run(trainer, model)
    assert isinstance(run, Run)
    assert model.meter.flops == 8 * 64 * flops_per_token(model.config) == run.training_flops
    result = report.result(trainer, model, tmp_path)
    assert (result["family"], result["passes"], result["trained_passes"]) == ("truncated_loop", [3], 1)
    assert result["learning_rate"] == transfer(32, 64, 8 * 64).learning_rate
    assert "depth" not in result


def test_the_defaults_are_the_studys() -> None:
    with torch.device("meta"):
        model = looplit.TruncatedLoop(passes=4)
    config = model.config
    assert (config.width, config.heads, config.trained_passes) == (768, 12, None)
    assert (config.prelude, config.core, config.coda, config.mlp) == (2, 4, 2, "squared_relu")
    assert (config.boundary, config.coda_boundary, config.initial_state) == ("linear", "identity", "prelude")
    assert (config.gains, config.pass_norm, config.soft_cap) == (True, True, 15.0)


def test_a_batch_that_the_rates_are_not_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="batch_tokens = 64: an optimizer step takes 128 tokens"):
        fit(looplit.TruncatedLoop(**TINY), tmp_path, batch_size=8)
    fit(looplit.TruncatedLoop(**{**TINY, "batch_tokens": 128}), tmp_path, accumulate_grad_batches=2)


def test_a_resumed_run_keeps_its_budget(tmp_path: Path) -> None:
    """Another length is another learning rate: HyperP's depends on the tokens."""
    half = looplit.TruncatedLoop(**TINY, steps=8)
    fit(half, tmp_path, max_steps=4, limit_train_batches=1).save_checkpoint(tmp_path / "half.ckpt")
    straight, resumed = (looplit.TruncatedLoop(**TINY, steps=8) for _ in range(2))
    fit(straight, tmp_path, limit_train_batches=1)  # one batch again and again: this loader cannot be resumed
    fit(resumed, tmp_path, limit_train_batches=1, ckpt_path=tmp_path / "half.ckpt")
    for name, value in straight.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    with pytest.raises(InputError, match="learning_rate = .*: the checkpoint trains its matrix"):
        fit(looplit.TruncatedLoop(**TINY, steps=16), tmp_path, ckpt_path=tmp_path / "half.ckpt")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"passes": 8}, "passes = 8: the checkpoint's model has 3"),
        ({"trained_passes": 2}, "trained_passes = 2: the checkpoint's model has 1"),
        ({"heads": 2}, "heads = 2: the checkpoint's model has 1"),
        ({"final_factor": 0.9}, "final_factor = 0.9: the checkpoint's run was planned with 0.1"),
        ({"steps": 16}, "steps = 16: the checkpoint's run was planned with 8"),
    ],
)
def test_a_resumed_run_keeps_what_no_shape_shows(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    """The rates are said outright, so that HyperP's own do not give another length away."""
    rates = dict.fromkeys(("learning_rate", "embedding_lr", "head_lr", "gain_lr"), 0.01)
    given = {**TINY, **rates, "steps": 8}
    fit(looplit.TruncatedLoop(**given), tmp_path, max_steps=4).save_checkpoint(tmp_path / "half.ckpt")
    with pytest.raises(InputError, match=said) as caught:
        fit(looplit.TruncatedLoop(**{**given, **changed}), tmp_path, ckpt_path=tmp_path / "half.ckpt")
    assert "\n" not in str(caught.value)


def test_an_evaluation_reads_the_function_alone(tmp_path: Path) -> None:
    """Trained passes play no part in a validation, heads do."""
    trainer = fit(looplit.TruncatedLoop(**TINY), tmp_path, max_steps=2)
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    other = looplit.TruncatedLoop(**{**TINY, "trained_passes": 3})
    trainer.validate(other, loader(), ckpt_path=tmp_path / "run.ckpt", weights_only=True)
    other = looplit.TruncatedLoop(**{**TINY, "heads": 2})
    with pytest.raises(InputError, match="heads = 2: the checkpoint's model has 1"):
        trainer.validate(other, loader(), ckpt_path=tmp_path / "run.ckpt", weights_only=True)


def test_a_checkpoint_becomes_the_model_again(tmp_path: Path) -> None:
    model = looplit.TruncatedLoop(**TINY)
    with torch.no_grad():
        model.backbone.boundary.weight.add_(0.1)
    fit(model, tmp_path, max_steps=2).save_checkpoint(tmp_path / "run.ckpt")
    loaded = looplit.load(tmp_path / "run.ckpt")
    assert isinstance(loaded, looplit.TruncatedLoop)
    assert loaded.config == model.config
    assert torch.equal(loaded(TOKENS[:, :-1]), model(TOKENS[:, :-1]))


@pytest.mark.parametrize(
    "callback",
    [ModelGrowth(passes=4, step=4), RandomRecurrence(passes=[1, 2, 4], evaluate_at=4)],
    ids=["growing", "random"],
)
def test_the_window_stays_where_passes_change(callback: Callback, tmp_path: Path) -> None:
    """K over the run is what the callback says, and B stays: FLOPs are those of min(B, K) trained passes."""
    model = looplit.TruncatedLoop(**{**TINY, "passes": 2, "trained_passes": 2})
    trainer = fit(model, tmp_path, callbacks=[callback])
    assert model.meter.flops == planned_run(trainer, model).training_flops
    assert model.config.trained_passes == 2


@pytest.mark.parametrize(
    ("arguments", "callbacks", "warned"),
    [
        ({"boundary": "identity"}, [], True),
        ({"boundary": "norm"}, [], True),
        ({"boundary": "identity", "trained_passes": 3}, [], False),
        ({"boundary": "identity", "trained_passes": 3}, [ModelGrowth(passes=4, step=1)], True),
        ({"boundary": "inject"}, [], False),
        ({}, [], False),
    ],
)
def test_a_prelude_that_no_boundary_reads_is_said_to_stay(
    arguments: dict[str, Any], callbacks: list[Callback], warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = looplit.TruncatedLoop(**{**TINY, **arguments})
    before = model.backbone.embedding.weight.detach().clone()
    with caplog.at_level("INFO"):
        fit(model, tmp_path, max_steps=2, callbacks=callbacks)
    said = [record.message for record in caplog.records if "without gradient" in record.message]
    assert len(said) == warned
    assert not any("\n" in line for line in said)
    assert torch.equal(model.backbone.embedding.weight, before) is (warned and not callbacks)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"passes": 0}, "passes = 0"),
        ({"passes": 2, "trained_passes": 3}, "trained_passes = 3"),
        ({"passes": 2, "trained_passes": 0}, "trained_passes = 0"),
        ({"passes": 2, "width": 96, "heads": 5}, "heads = 5"),
        ({"passes": 2, "batch_tokens": 0}, "batch_tokens = 0"),
        ({"passes": 2, "learning_rate": -1.0}, "learning_rate = -1.0"),
        ({"passes": 2, "split": (1, 1)}, "split"),
        ({"passes": 2, "split": 3}, "split = 3"),
        ({"passes": 2, "steps": 0}, "steps = 0"),
        ({"passes": 2, "steps": 2.5}, "steps = 2.5: must be a whole number"),
        ({"passes": 2.5}, "passes = 2.5: must be a whole number"),
        ({"passes": True}, "passes = True: must be a whole number"),
        ({"passes": "8"}, "passes = '8': must be a whole number"),
        ({"passes": 8, "trained_passes": 2.5}, "trained_passes = 2.5: must be a whole number"),
        ({"passes": 2, "heads": 0}, "heads = 0: must be at least 1"),
        ({"passes": 2, "betas": 0.9}, "betas = 0.9: must be two numbers"),
        ({"passes": 2, "learning_rate": True}, "learning_rate = True: must be a finite number"),
    ],
)
def test_wrong_arguments_are_refused_by_name(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        looplit.TruncatedLoop(**{**TINY, "trained_passes": None, **arguments})
