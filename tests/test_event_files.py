"""Event files of the shrunk demo, through the command line: all that the dashboards promise, also after a resume."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import plugin_data_pb2

from looplit.__main__ import main
from looplit.eval.core import LABELS

STEPS, HALF = 24, 9  # the half ends between two validations
GROUPS = {
    "loss": {"train", "val", "val_bits_per_byte"},
    "compute": {"tokens", "training_flops", "tokens_per_second"},
    "growth": {"passes", "executed_depth"},
    "learning_rate": {"embedding", "matrix", "head"},
    "optimizer": {"gradient_norm"},
    "depth": {"effective_depth"},
    "depth_kl": {"1_prelude_1", "2_core_4.1", "3_coda_1"},
    "depth_agreement": {"1_prelude_1", "2_core_4.1", "3_coda_1"},
    "passes_excess": {"01", "02", "04"},
    "residual": {"prelude", "core_1", "core_4", "coda"},
    "core": {"metric", "metric_filtered", "loss", "bits_per_byte"},
    "core_centered": set(LABELS),
    "final": {"val_loss", "val_bits_per_byte", "effective_depth", "core", "tokens", "training_flops"},
}


def write_settings(folder: Path, root: Path, samples: ModuleType) -> None:
    """`demo.yaml` in the folder: the demo in small, with every callback that draws, and a bundle of the 22 labels."""
    samples.write_bundle(
        folder / "bundle", [samples.Made(label, "multiple_choice", [0], 1, (1, 1)) for label in LABELS]
    )

    config: dict[str, Any] = yaml.safe_load((root / "configs" / "demo.yaml").read_text())
    config["model"]["init_args"] |= {"width": 32, "heads": 1, "split": [1, 1, 1], "context": 64, "steps": STEPS}
    config["data"]["init_args"] |= {"context": 64, "batch_size": 4, "val_tokens": 2000, "folder": str(folder)}
    config["trainer"] |= {"max_steps": STEPS, "val_check_interval": 6, "log_every_n_steps": 2}
    config["trainer"] |= {"enable_progress_bar": False}
    config["trainer"]["callbacks"] += [
        {"class_path": "RandomRecurrence", "init_args": {"passes": [2, 3, 4], "evaluate_at": 4}},
        {"class_path": "TestTimePasses", "init_args": {"passes": [1, 2, 4], "tokens": 256}},
        {"class_path": "CoreEvaluation", "init_args": {"bundle": str(folder / "bundle"), "seeds": [0]}},
    ]
    (folder / "demo.yaml").write_text(yaml.safe_dump(config))


@pytest.fixture(scope="module")
def runs(root: Path, load_script: Callable[[Path], ModuleType], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of three runs: one straight, one that ends halfway, and one that goes on from there."""
    folder = tmp_path_factory.mktemp("demo")
    write_settings(folder, root, load_script(root / "tests/helpers/core_bundle.py"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        fit = ["fit", "--config", "demo.yaml"]
        assert main(fit) == 0
        assert main([*fit, f"--trainer.max_steps={HALF}"]) == 0
        assert main([*fit, "--ckpt_path", "runs/demo/version_1/checkpoints/last.ckpt"]) == 0
    return folder / "runs" / "demo"


def events(run: Path) -> EventAccumulator:
    return EventAccumulator(str(run), size_guidance={"scalars": 0, "tensors": 0, "images": 0}).Reload()


@pytest.mark.parametrize("version", [0, 2])
def test_every_promised_tag_is_there(runs: Path, version: int) -> None:
    logged = events(runs / f"version_{version}")
    tags = set(logged.Tags()["scalars"])
    assert {f"{group}/{name}" for group, names in GROUPS.items() for name in names} <= tags
    assert {"curves/loss", "depth/lens", "depth/passes"} == set(logged.Tags()["images"])
    assert [image.step for image in logged.Images("curves/loss")] == [STEPS - 1]
    (plan,) = logged.Tensors("plan/text_summary")
    assert f"growth at step {int(0.7 * STEPS)}," in " ".join(plan.tensor_proto.string_val[0].decode().split())


def test_no_chart_is_empty(runs: Path) -> None:
    logged = events(runs / "version_0")
    (entry,) = logged.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout()
    layout.ParseFromString(entry.tensor_proto.string_val[0])
    assert [category.title for category in layout.category] == [
        "loss",
        "compute",
        "growth",
        "depth",
        "residual",
        "CORE",
    ]
    for chart in (chart for category in layout.category for chart in category.chart):
        (pattern,) = chart.multiline.tag
        assert any(re.match(pattern, tag) for tag in logged.Tags()["scalars"]), chart.title


def test_final_metrics_are_those_of_the_result(runs: Path) -> None:
    logged, result = events(runs / "version_0"), json.loads((runs / "version_0" / "result.json").read_text())
    start = plugin_data_pb2.HParamsPluginData.FromString(
        logged.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    ).session_start_info
    assert (start.hparams["family"].string_value, start.hparams["width"].number_value) == ("untied_grow", 32)
    expected = {
        "val_loss": result["final_val_loss"], "val_bits_per_byte": result["final_val_bpb"],
        "effective_depth": result["effective_depth"], "core": result["core"]["core_metric"],
        "tokens": result["tokens"], "training_flops": result["training_flops"],
    }  # fmt: skip
    for name, value in expected.items():
        assert logged.Scalars(f"final/{name}")[-1].value == pytest.approx(value, rel=1e-6), name  # fp32 in event files


def points(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Step and value of every scalar, timing and what stands at a run's end aside."""
    logged = events(run)
    kept = (tag for tag in logged.Tags()["scalars"] if tag != "compute/tokens_per_second" and "final/" not in tag)
    return {tag: [(event.step, event.value) for event in logged.Scalars(tag)] for tag in kept}


def test_a_resumed_run_goes_on_where_the_other_ended(runs: Path) -> None:
    straight, first, second = (points(runs / f"version_{version}") for version in range(3))
    assert {step for step, _ in straight["loss/val"]} == {5, 11, 17, 23}
    assert {step for step, _ in first["loss/val"]} == {5, 8}  # the last step of a run is validated too
    assert straight.keys() == first.keys() | second.keys()
    for tag, expected in straight.items():
        before, after = first.get(tag, []), second.get(tag, [])
        assert all(step < HALF for step, _ in before), tag
        steps = {step for step, _ in expected}
        assert [point for point in before if point[0] in steps] + after == expected, tag


def test_all_points_of_a_validation_stand_at_its_step(runs: Path) -> None:
    for version in range(3):
        logged = points(runs / f"version_{version}")
        validated = {step for step, _ in logged["loss/val"]}
        for tag, rows in logged.items():
            if tag.startswith(("core", "depth", "passes_")):
                assert {step for step, _ in rows} <= validated, tag
