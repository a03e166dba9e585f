"""The schema of a run's record: what is written is in it, and the docs are printed from it."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import get_args

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader

import looplit
from looplit.accounting.recurrence import RandomPasses
from looplit.callbacks import ModelGrowth, RandomRecurrence, RunReport
from looplit.commands.plan import plan_main
from looplit.commands.recipe import recipe_main
from looplit.data import StandardLibraryText
from looplit.model.config import BackboneConfig
from looplit.recipes.families import Hyperparameters
from looplit.recipes.growth_study import data_constrained, recipe
from looplit.recipes.hyperp import HyperPSettings
from looplit.recipes.run import Run, backbone_settings
from looplit.recipes.truncation_study import truncated_run
from looplit.results import FIELDS, KINDS, Kind, field_of, is_known, may_vary, table

RUNS = (
    recipe("untied_grow", 8),
    recipe("loop_grow", 8, random_passes=RandomPasses((2, 3, 4), 4)),
    data_constrained("loop_3", 8),
    truncated_run(8, 2),
)


def unknown(record: dict[str, object]) -> list[str]:
    """Keys that the schema lacks, those of the hyperparameters among them."""
    nested = record.get("hyperparameters", {})
    return [key for key in (*record, *nested) if not is_known(key)]  # type: ignore[misc]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.title)
def test_every_key_of_a_run_is_in_the_schema(run: Run) -> None:
    assert unknown(run.to_dict()) == []


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.title)
def test_the_whole_backbone_is_in_the_record(run: Run) -> None:
    record = run.to_dict()
    record |= record["hyperparameters"]
    wanted = backbone_settings(run.backbone)
    assert {*wanted} | {"width", "heads", "prelude", "core", "coda"} == {each.name for each in fields(BackboneConfig)}
    assert {name: record[name] for name, value in wanted.items() if value is not None and name != "passes"} == {
        name: value for name, value in wanted.items() if value is not None and name != "passes"
    }


def test_every_hyperparameter_is_a_setting() -> None:
    for kind in (Hyperparameters, HyperPSettings):
        for each in fields(kind):
            assert is_known(each.name)
            assert field_of(each.name).kind == "setting"


def test_every_key_that_commands_print_is_in_the_schema(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert recipe_main(["loop_2", "8", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert recipe_main(["loop_2", "8", "--coda-boundary", "norm", "--json"]) == 0
    other = json.loads(capsys.readouterr().out)
    assert {name for name in plain if plain[name] != other[name]} == {"coda_boundary"}
    assert plan_main(["--config", str(root / "configs" / "demo.yaml"), "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert unknown(plain) == unknown(planned) == []
    assert planned["precision"]


def test_a_report_says_what_was_trained_on(tmp_path: Path) -> None:
    data = StandardLibraryText(str(tmp_path / "corpus"), context=16, batch_size=4, val_tokens=1000, seed=3)
    model = looplit.LoopGrow(depth=3, width=32, heads=1, vocabulary=257, context=16, seed=5)
    callbacks = [ModelGrowth(passes=4, step=2, rewarm_steps=7), RandomRecurrence([2, 4], evaluate_at=4), RunReport()]
    trainer = L.Trainer(
        accelerator="cpu", max_steps=3, limit_val_batches=2, gradient_clip_val=0.5, logger=False, callbacks=callbacks,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(model, data)
    result = json.loads((tmp_path / "result.json").read_text())
    assert unknown(result) == []
    said = {
        "corpus": "standard-library", "tokenizer": "bytes", "data_seed": 3, "initial_weights_seed": 5, "recut": False,
        "precision": "32-true", "gradient_clip_val": 0.5, "validation_limit": 2, "growth_rewarm_steps": 7,
        "drawn_passes": [2, 4], "evaluate_at": 4, "planned_steps": 3, "boundary": "norm_inject",
    }  # fmt: skip
    assert {name: result[name] for name in said} == said
    assert len(result["corpus_hash"]) == len(result["validation_hash"]) == 16
    always = {each.name for each in FIELDS if each.kind == "setting" and not each.optional}
    assert always <= {*result, *result["hyperparameters"]}


def test_a_foreign_loader_gives_its_class(tmp_path: Path) -> None:
    windows = DataLoader(torch.randint(0, 64, (8, 17)), batch_size=4)  # type: ignore[arg-type]
    model = looplit.Vanilla(depth=3, width=32, heads=1, vocabulary=64, context=16)
    trainer = L.Trainer(
        accelerator="cpu", max_steps=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path, callbacks=[RunReport()],
    )  # fmt: skip
    trainer.fit(model, windows)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["corpus"] == "torch.Tensor"
    assert "tokenizer" not in result


def test_fields_are_named_once_and_explained() -> None:
    names = [name for each in FIELDS for name in (each.name, *each.aliases)]
    assert len(names) == len(set(names))
    assert {each.kind for each in FIELDS} == {*KINDS} == {*get_args(Kind)}
    causes = {"size", "extent", *names}
    assert all(each.meaning and causes.issuperset(each.follows) for each in FIELDS)
    assert not any(each.unit == "" and each.kind == "measurement" for each in FIELDS)


def test_what_follows_the_size_may_vary_along_a_ladder() -> None:
    varying = {each.name for each in FIELDS if each.kind == "setting" and may_vary(each.name, ["depth"])}
    assert {"learning_rate", "weight_decay", "steps", "tokens", "growth_step", "batch_tokens"} <= varying
    assert varying.isdisjoint({"boundary", "corpus", "precision", "optimizer", "passes", "mlp", "warmth"})


def test_the_docs_have_the_table(root: Path) -> None:
    assert table() in (root / "docs" / "results.md").read_text()
