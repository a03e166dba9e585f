"""Dashboard: what a run's event files hold, and that a resumed run shows no step twice."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback, Checkpoint
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import plugin_data_pb2
from torch import Tensor
from torch.utils.data import DataLoader

import looplit
from looplit.callbacks import Dashboard, EffectiveDepth, ModelGrowth, RunReport, TestTimePasses
from looplit.callbacks.dashboard import FINAL, layout

TINY: dict[str, Any] = {"depth": 3, "width": 32, "heads": 1, "vocabulary": 64, "context": 16, "steps": 12, "seed": 1}
GROUPS = {
    "loss": {"train", "val"},
    "compute": {"tokens", "training_flops"},
    "growth": {"passes", "executed_depth"},
    "depth": {"effective_depth"},
    "residual": {"prelude", "core_1", "core_2", "core_3", "core_4", "coda"},
    "learning_rate": {"embedding", "matrix", "head"},
    "final": {"val_loss", "effective_depth", "tokens", "training_flops"},
}


class Data(L.LightningDataModule):
    """One batch again and again: a resumed run needs no place in it."""

    batch_size, context = 2, 16

    def loader(self, batches: int) -> DataLoader[Tensor]:
        batch = torch.randint(0, 64, (2, 17), generator=torch.Generator().manual_seed(0))
        return DataLoader(batch.repeat(batches, 1), batch_size=2)  # type: ignore[arg-type]

    def train_dataloader(self) -> DataLoader[Tensor]:
        return self.loader(24)

    def val_dataloader(self) -> DataLoader[Tensor]:
        return self.loader(2)


def run(folder: Path, stop: int, ckpt: Path | None = None, *others: Callback) -> tuple[L.Trainer, Dashboard]:
    dashboard = Dashboard()
    growth = ModelGrowth(passes=4, step=6)
    trainer = L.Trainer(
        accelerator="cpu", max_steps=stop, val_check_interval=2, log_every_n_steps=2,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
        logger=TensorBoardLogger(str(folder), name="", version="run", default_hp_metric=False),
        enable_checkpointing=any(isinstance(other, Checkpoint) for other in others),
        callbacks=[growth, EffectiveDepth(tokens=32), TestTimePasses([1, 2, 4], tokens=32), *others, dashboard],
    )  # fmt: skip
    trainer.fit(looplit.LoopGrow(**TINY), datamodule=Data(), ckpt_path=ckpt, weights_only=True)
    return trainer, dashboard


def events(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder / "run"), size_guidance={"scalars": 0, "tensors": 0, "images": 0}).Reload()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Dashboard]:
    folder = tmp_path_factory.mktemp("dashboard")
    _, dashboard = run(folder, 12, None, RunReport())
    return folder, dashboard


def test_the_promised_tags_are_there(finished: tuple[Path, Dashboard]) -> None:
    logged = events(finished[0])
    tags = logged.Tags()["scalars"]
    for group, names in GROUPS.items():
        assert {f"{group}/{name}" for name in names} <= set(tags), group
    assert {"curves/loss", "depth/lens", "depth/passes"} <= set(logged.Tags()["images"])


def test_the_layout_names_charts_that_have_data(finished: tuple[Path, Dashboard]) -> None:
    logged = events(finished[0])
    (entry,) = logged.Tensors("custom_scalars__config__")
    written = layout_pb2.Layout()
    written.ParseFromString(entry.tensor_proto.string_val[0])
    config = looplit.LoopGrow(**TINY).config
    shown = {
        category.title: {chart.title: ["Multiline", list(chart.multiline.tag)] for chart in category.chart}
        for category in written.category
    }
    assert shown == layout(config)
    assert list(shown) == ["loss", "compute", "growth", "depth", "residual", "CORE"]
    tags = logged.Tags()["scalars"]
    drawn = {
        title: [tag for tag in tags if any(re.match(pattern, tag) for pattern in patterns)]
        for category, charts in shown.items()
        for title, (_, patterns) in charts.items()
        if category != "CORE" and "bits" not in title and "per second" not in title
    }  # those need a bundle, a tokenizer, and more steps than are timed here
    assert all(drawn.values()), drawn
    ends = ["depth_kl/1_prelude_1", *(f"depth_kl/2_core_{k}.1" for k in range(1, 5))]
    assert sorted(drawn["KL from the end, after prelude and passes"]) == ends


def test_the_layout_of_any_model_shows_every_block() -> None:
    (pattern,) = layout()["depth"]["KL from the end, after prelude and passes"][1]
    assert re.match(pattern, "depth_kl/3_coda_2")


def test_the_plan_is_a_text(finished: tuple[Path, Dashboard]) -> None:
    (entry,) = events(finished[0]).Tensors("plan/text_summary")
    text = entry.tensor_proto.string_val[0].decode()
    assert "loop_grow d3" in text
    assert "12 of 32 tokens" in text
    assert all(line.startswith("    ") for line in text.splitlines())  # preformatted


def test_hyperparameters_come_with_final_metrics(finished: tuple[Path, Dashboard]) -> None:
    logged = events(finished[0])
    data = logged.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    start = plugin_data_pb2.HParamsPluginData.FromString(data).session_start_info
    assert start.hparams["family"].string_value == "loop_grow"
    assert start.hparams["width"].number_value == 32
    tuned = looplit.LoopGrow(**TINY).hyperparameters
    assert start.hparams["learning_rate"].number_value == pytest.approx(tuned.learning_rate)  # not given: the recipe's
    experiment = plugin_data_pb2.HParamsPluginData.FromString(
        logged.summary_metadata["_hparams_/experiment"].plugin_data.content
    ).experiment
    metrics = {info.name.tag for info in experiment.metric_infos}
    assert metrics == {"final/val_loss", "final/effective_depth", "final/tokens", "final/training_flops"}
    for name, tag in {"val_loss": FINAL["val_loss"], "effective_depth": "depth/effective_depth"}.items():
        assert logged.Scalars(f"final/{name}")[-1].value == logged.Scalars(tag)[-1].value
    assert logged.Scalars("final/tokens")[0].value == 12 * 32


def test_curves_run_against_steps_tokens_and_flops(finished: tuple[Path, Dashboard]) -> None:
    _, dashboard = finished
    assert [(step, tokens) for step, tokens, _, _ in dashboard.validation] == [(s, 32 * s) for s in range(2, 13, 2)]
    assert [step for step, *_ in dashboard.train] == list(range(2, 13, 2))
    flops = [point[2] for point in dashboard.validation]
    per_step = [b - a for a, b in zip([0, *flops], flops, strict=False)]
    assert per_step[3] == per_step[4] > per_step[0] == per_step[2]  # grown at step 6


class SaveAt(Checkpoint):
    """Saves in one hook of one step. Lightning calls it last, as it does ModelCheckpoint."""

    def __init__(self, path: Path, hook: str, step: int) -> None:
        setattr(self, hook, lambda trainer, *_: trainer.global_step == step and trainer.save_checkpoint(path))


@pytest.mark.parametrize(
    ("hook", "step"),
    [
        ("on_validation_end", 4),
        ("on_train_batch_end", 5),
        ("on_train_end", 8),
        ("on_train_end", 7),
        ("on_validation_end", 8),
        ("on_validation_end", 7),  # which is not one of the intervals: RunReport validates at the end
    ],
)
def test_a_resumed_run_shows_no_step_twice(
    tmp_path: Path, finished: tuple[Path, Dashboard], hook: str, step: int
) -> None:
    """A run saves somewhere, may go on to step 8, and is resumed in the same folder, to another end."""
    saved = tmp_path / "saved.ckpt"
    run(tmp_path, max(step, 7), None, RunReport(), SaveAt(saved, hook, step))
    _, dashboard = run(tmp_path, 12, saved, RunReport())
    straight, resumed = events(finished[0]), events(tmp_path)
    assert set(straight.Tags()["scalars"]) == set(resumed.Tags()["scalars"])
    for tag in straight.Tags()["scalars"]:
        if tag.startswith("final/") or tag in ("compute/tokens_per_second", "epoch"):  # a loader without a place
            continue
        expected = [(event.step, event.value) for event in straight.Scalars(tag)]
        steps = {at for at, _ in expected}
        found = [(event.step, event.value) for event in resumed.Scalars(tag) if event.step in steps]
        assert found == expected, tag
    assert [point for point in dashboard.validation if point[0] != 7] == finished[1].validation
    assert dashboard.train == finished[1].train
