"""A third study is one file of its user: `recipe my_module.MyModel …`, and plan, fit and load by the same path."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from helpers.own_study import WideLoop

import looplit
from looplit.__main__ import main
from looplit.commands.recipe import config_of, parse_recipe, recipe_main, run_of_args
from looplit.errors import InputError
from looplit.planning.config_files import parse_value
from looplit.planning.plan import plan_config
from looplit.recipes.lookup import module_arguments

PATH = "helpers.own_study.WideLoop"
study = WideLoop.study


def test_card_json_and_title_are_the_studys(capsys: pytest.CaptureFixture[str]) -> None:
    assert recipe_main([PATH, "--width", "64"]) == 0
    card = capsys.readouterr().out
    assert "wide_loop at width 64" in card
    assert "one set of hyperparameters" in card
    assert recipe_main([PATH, "--width", "64", "--passes", "3", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == json.loads(json.dumps(study.run(PATH, width=64, passes=3).to_dict()))
    assert (answer["family"], answer["steps"], answer["learning_rate"]) == ("wide_loop", 16, 0.02)


def test_its_help_has_its_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        recipe_main([PATH, "--help"])
    text = capsys.readouterr().out
    assert "Width alone, at a fixed number of tokens." in text
    assert "--width" in text
    assert "--tokens_per_parameter" not in text


def test_the_config_file_plans_the_run() -> None:
    options = [PATH, "--width", "64", "--passes", "3", "--devices", "1", "--micro-batch", "4"]
    text = config_of(options)
    assert "fit --config configs/wide_loop_w64.yaml" in text
    plan = plan_config(parse_value(text))
    assert plan.run == run_of_args(parse_recipe(options))
    assert plan.run.study is study
    assert plan.notes == []


def test_module_arguments_are_those_that_change_something() -> None:
    assert module_arguments(study.run(PATH, width=64)) == {"width": 64}
    changed = {"width": 64, "passes": 3, "learning_rate": 0.01}
    assert module_arguments(study.run(PATH, **changed)) == changed


def test_it_trains_and_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse_value(config_of([PATH, "--width", "64", "--devices", "1", "--micro-batch", "8"]))
    config["model"]["init_args"]["compile"] = False
    data = {"folder": str(tmp_path / "corpus"), "context": 32, "batch_size": 8, "workers": 0}
    config["data"] = {"class_path": "StandardLibraryText", "init_args": data}
    config["trainer"] |= {"accelerator": "cpu", "precision": "32-true", "limit_val_batches": 1}
    (tmp_path / "wide.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "--config", "wide.yaml"]) == 0
    (result,) = tmp_path.rglob("result.json")
    assert json.loads(result.read_text())["family"] == "wide_loop"
    (saved,) = tmp_path.rglob("last.ckpt")
    assert type(looplit.load(saved)) is WideLoop


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ([PATH], "required: --width"),
        ([PATH, "--width", "63"], "heads = 2: must divide the width 63"),
        ([PATH, "8", "--width", "64"], "unrecognized arguments: 8"),
        (["helpers.own_study.study", "--width", "64"], "family = 'helpers.own_study.study': cannot be imported"),
        (["helpers.own_study.TUNED"], "must be a module class with a study and a family"),
    ],
)
def test_wrong_input_gets_one_clear_line(argv: list[str], line: str) -> None:
    with pytest.raises(InputError, match=line) as error:
        recipe_main(argv)
    assert str(error.value).splitlines() == [str(error.value)]
