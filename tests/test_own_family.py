"""Families from a user's own module: every command takes them by import path, and the package is not touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers.own_family import GrowsToSix, NoModel, ThreePasses
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import looplit
from looplit.__main__ import main
from looplit.accounting.flops import flops_per_token
from looplit.errors import InputError
from looplit.planning.config_files import parse_value
from looplit.planning.plan import plan_config
from looplit.recipes.families import FAMILIES, Family
from looplit.recipes.growth_study import recipe
from looplit.recipes.lookup import module_arguments, recipe_of

GROWING, TIED = "helpers.own_family.GrowsToSix", "helpers.own_family.ThreePasses"
SMALL = {"depth": 3, "width": 32, "heads": 1, "vocabulary": 257, "context": 32, "steps": 12, "seed": 5}


def config(folder: Path, class_path: str = GROWING, **trainer: Any) -> dict[str, Any]:
    """A small run; its family grows at step 9 of 12."""
    return {
        "model": {"class_path": class_path, "init_args": SMALL},
        "data": {
            "class_path": "StandardLibraryText",
            "init_args": {"folder": str(folder / "corpus"), "context": 32, "batch_size": 4, "workers": 0},
        },
        "trainer": {
            "accelerator": "cpu", "devices": 1, "max_steps": 12, "val_check_interval": 4, "limit_val_batches": 2,
            "check_val_every_n_epoch": None, "enable_progress_bar": False, "num_sanity_val_steps": 0,
            "callbacks": [{"class_path": "ModelGrowth"}] if class_path == GROWING else [], **trainer,
        },
    }  # fmt: skip


def fit(folder: Path, name: str, settings: dict[str, Any], *options: str) -> Path:
    """The folder of a run from its YAML file, in this process."""
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(settings))
    root = f"--trainer.default_root_dir={folder / 'runs'}"
    assert main(["fit", "--config", str(folder / f"{name}.yaml"), root, *options]) == 0
    return folder / "runs" / name / "version_0"


def saved(run: Path) -> Path:
    (path,) = run.rglob("last.ckpt")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def grown(folder: Path) -> Path:
    """A run that has grown."""
    return fit(folder, "grown", config(folder))


@pytest.mark.parametrize(("path", "cls"), [(GROWING, GrowsToSix), (TIED, ThreePasses)])
def test_parameters_and_flops_are_those_of_the_built_model(path: str, cls: type[looplit.GrowthStudyLM]) -> None:
    run = recipe(path, 3, vocabulary=128, context=32, batch_tokens=64)
    model = cls(**module_arguments(run))
    assert model.config == run.backbone
    assert model.recipe.settings(1) == run.hyperparameters
    assert sum(parameter.numel() for parameter in model.parameters()) == run.to_dict()["stored_parameters"]
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(torch.randint(0, 128, (2, 32))).sum().backward()
    assert counter.get_total_flops() == 64 * flops_per_token(run.backbone, attention="full")


def test_the_recipe_is_the_familys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", GROWING, "8"]) == 0
    card = capsys.readouterr().out
    assert "grows_to_six d8" in card
    assert "fraction after it 0.25" in card
    assert main(["recipe", GROWING, "12", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    run = recipe(GROWING, 12)
    ratio = recipe(GROWING, 8).to_dict()["initial_parameters"] / answer["initial_parameters"]
    assert answer["learning_rate"] == pytest.approx(0.03 * ratio**0.7)
    assert (answer["family"], answer["passes"], answer["steps"]) == ("grows_to_six", [3, 6], run.steps)
    assert recipe(TIED, 8).tokens_per_parameter == pytest.approx(9.0, rel=1e-3)
    assert recipe(GROWING, 8, mode="simple") == recipe(GROWING, 8)
    assert recipe("loop_2", 8).hyperparameters != recipe(TIED, 8).hyperparameters


@pytest.mark.parametrize(
    "options",
    [
        [GROWING, "8"],
        [TIED, "9", "--growth", "5:0.4"],
        [TIED, "--flops", "1e18"],
        ["helpers.own_family.OwnTruncatedLoop", "--passes", "4", "--set", "gain_lr=0.1"],
    ],
)
def test_the_config_file_plans_what_the_recipe_says(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", *options, "--yaml"]) == 0
    made = parse_value(capsys.readouterr().out)
    assert made["model"]["class_path"] == options[0]
    assert main(["recipe", *options, "--json"]) == 0
    assert json.loads(json.dumps(plan_config(made).run.to_dict())) == json.loads(capsys.readouterr().out)


def test_a_run_is_planned_trained_and_reported(folder: Path, grown: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--config", str(folder / "grown.yaml"), "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    result = json.loads((grown / "result.json").read_text())
    for name in ("family", "passes", "growth_step", "stored_parameters", "steps", "tokens", "training_flops",
                 "hyperparameters"):  # fmt: skip
        assert result[name] == planned[name], name
    assert (result["family"], result["passes"], result["growth_step"]) == ("grows_to_six", [3, 6], 9)


def test_its_checkpoint_is_loaded_and_measured(
    grown: Path, bundle_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = looplit.load(saved(grown))
    assert type(model) is GrowsToSix
    assert model.backbone.passes == 6
    path = ["--ckpt_path", str(saved(grown))]
    common = [*path, "--device", "cpu", "--tokens", "256", "--json", str(tmp_path / "out.json")]
    for command in (["lens", *common], ["passes", *common, "--passes", "3,6"]):
        assert main(command) == 0
        assert json.loads((tmp_path / "out.json").read_text())["family"] == "grows_to_six"
    evaluate = ["evaluate", *path, "--bundle", str(bundle_folder), "--device", "cpu", "--limit", "2"]
    assert main([*evaluate, "--out", str(tmp_path / "eval.json"), "--tokenizer", "bytes"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize("stop", [5, 11])
def test_it_resumes_bit_for_bit(folder: Path, grown: Path, stop: int) -> None:
    """Stopped before and after its growth."""
    first = fit(folder, f"first{stop}", config(folder, max_steps=stop))
    second = fit(folder, f"second{stop}", config(folder), f"--ckpt_path={saved(first)}")
    straight, resumed = looplit.load(saved(grown)), looplit.load(saved(second))
    for (name, one), other in zip(straight.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(one, other), name
    assert resumed.meter.flops == straight.meter.flops
    copied = [straight.get_parameter(f"backbone.cores.{core}.0.mlp.up.weight") for core in (0, 3)]
    assert not torch.equal(*copied)  # trained after growth, each by itself


def test_it_shards_over_two_processes(folder: Path, grown: Path, root: Path, tmp_path: Path) -> None:
    settings = config(folder, devices=2, strategy="looplit_fsdp")
    settings["data"]["init_args"]["batch_size"] = 2
    (tmp_path / "sharded.yaml").write_text(yaml.safe_dump(settings))
    paths = os.pathsep.join(map(str, (root / "tests", root)))
    subprocess.run(
        [sys.executable, "-m", "looplit", "fit", "--config", "sharded.yaml"], cwd=tmp_path, check=True, timeout=240,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}, capture_output=True,
    )  # fmt: skip
    run = tmp_path / "runs" / "sharded" / "version_0"
    result, alone = (json.loads((folder / "result.json").read_text()) for folder in (run, grown))
    assert (result["family"], result["passes"], result["device_count"]) == ("grows_to_six", [3, 6], 2)
    assert all(result[name] == alone[name] for name in ("steps", "growth_step", "tokens", "training_flops"))
    assert result["final_val_loss"] < result["validations"][0][2]  # its rows come in another order than in one process
    assert main(["consolidate", str(saved(run)), str(tmp_path / "whole.ckpt")]) == 0
    assert type(looplit.load(tmp_path / "whole.ckpt")) is GrowsToSix


# --- what is refused


def renamed(grown: Path, out: Path, **names: Any) -> Path:
    checkpoint = torch.load(saved(grown), weights_only=True)
    for name, value in names.items():
        checkpoint.pop(name) if value is None else checkpoint.update({name: value})
    torch.save(checkpoint, out)
    return out


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("helpers.own_family.NoModel", "is not a LoopedLM with a family, so it is not called"),
        ("looplit.GrowthStudyLM", "is not a LoopedLM with a family"),
        ("os.system", "is not a LoopedLM with a family"),
        ("helpers.own_family.Gone", "cannot be imported (module 'helpers.own_family' has no attribute 'Gone'"),
        ("no_such_module.Family", "name the folder of no_such_module in PYTHONPATH, or run python -m looplit there"),
        ("helpers.own_family.f.<locals>.Inner", "must be the import path of a class"),
        ("Transformer", "not a checkpoint of one of LoopLit's families"),
        (7, "not a checkpoint of one of LoopLit's families"),
    ],
)
def test_a_checkpoint_that_names_no_model_is_refused(grown: Path, tmp_path: Path, path: Any, said: str) -> None:
    file = renamed(grown, tmp_path / "other.ckpt", looplit_class_path=path)
    with pytest.raises(InputError) as error:
        looplit.load(file)
    assert said in str(error.value)
    assert str(error.value).splitlines() == [str(error.value)]
    assert not NoModel.called


def test_checkpoints_without_a_path_are_read(folder: Path, grown: Path, tmp_path: Path) -> None:
    run = fit(folder, "loop", config(folder, "Loop"))
    old = renamed(run, tmp_path / "old.ckpt", looplit_class_path=None)
    assert type(looplit.load(old)) is looplit.Loop
    with pytest.raises(InputError, match="not a checkpoint of one of LoopLit's families"):
        looplit.load(renamed(grown, tmp_path / "foreign.ckpt", looplit_class_path=None))


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("no_such_module.Family", "model.class_path = 'no_such_module.Family': cannot be imported"),
        ("helpers.own_family.NoModel", "must be a module class with a study and a family"),
        ("Transformer", "must be one of Vanilla, .*, or the import path of a class of your own"),
    ],
)
def test_a_plan_of_no_family_gets_one_line(path: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        recipe_of(path, {"depth": 8})


def test_a_class_without_a_family_is_refused() -> None:
    with pytest.raises(InputError, match="class_path = 'GrowthStudyLM': has no family; say one in a subclass"):
        looplit.GrowthStudyLM(depth=3)
    with pytest.raises(InputError, match="family = 'helpers.own_family.ThreePasses': is of another study"):
        looplit.TruncatedLoop.study.family(TIED)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"passes": 0}, "passes = 0"),
        ({"grow_to": 2}, "grow_to = 2: growth must lead above the 2 passes"),
        ({"grow_to": 4}, "growth_fraction = None: a family that grows has a share"),
        ({"grow_to": 4, "growth_fraction": 1.5}, "growth_fraction = 1.5"),
        ({"tokens_per_parameter": 0}, "tokens_per_parameter = 0"),
        ({"learning_rate_exponent": "0.5"}, "learning_rate_exponent = '0.5'"),
    ],
)
def test_a_wrong_family_gets_one_clear_line(changes: dict[str, Any], said: str) -> None:
    base = {name: getattr(FAMILIES["loop_2"], name) for name in (
        "name", "tied", "passes", "grow_to", "boundary", "hyperparameters", "tokens_per_parameter",
        "learning_rate_exponent",
    )}  # fmt: skip
    with pytest.raises(InputError, match=said):
        Family(**{**base, **changes})


def test_a_family_that_python_cannot_name_trains_all_the_same() -> None:
    class Inner(looplit.Loop):
        family = ThreePasses.family

    model = Inner(**SMALL)
    assert (model.recipe.name, model.backbone.passes) == ("three_passes", 3)
