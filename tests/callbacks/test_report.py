"""The report of a run, without a process of its own. The whole of it is tested with the command line."""

from __future__ import annotations

import json
from pathlib import Path

import lightning as L
import pytest
from helpers.small import windows

import looplit
from looplit.callbacks import ModelGrowth, RunReport


def test_a_foreign_loader_is_reported_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = looplit.LoopGrow(depth=3, width=32, heads=1, vocabulary=64, context=16)
    trainer = L.Trainer(
        accelerator="cpu", max_steps=7, accumulate_grad_batches=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
        callbacks=[ModelGrowth(passes=4, step=5), RunReport()],
    )  # fmt: skip
    trainer.fit(model, windows(40), windows(40))
    said = capsys.readouterr().out
    assert "executed depth 3 → 5" not in said  # 1 + 2·1 + 1 blocks, not those of a nominal d3 with one pass
    assert "executed depth 4 → 6; 7 steps of 128 tokens, growth at step 5" in said
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["tokens"], result["batch_tokens"], result["epochs"]) == (7 * 128, 128, 7 / 5)
    assert result["growth_step"] == 5
    # 10 batches an epoch: one validation at the epoch's end, after step 5 and before growth, and one at the end
    assert [(step, passes) for step, passes, _ in result["validations"]] == [(5, 2), (7, 4)]
    assert "final_val_bpb" not in result  # nobody said how many bytes the tokens have


def test_the_table_has_a_column_per_phase() -> None:
    table = RunReport.table(
        {
            "passes": [2, 4], "executed_depth": [8, 12], "growth_step": 70, "steps": 100, "stored_parameters": 3_000,
            "initial_parameters": 2_000, "tokens": 12_345, "training_flops": 1.5e9, "tokens_per_second": 1234.5,
            "validations": [(50, 2, 3.0), (70, 2, 2.5), (100, 4, 2.0)], "final_val_loss": 2.0, "final_val_bpb": 2.885,
        }
    )  # fmt: skip
    lines = table.splitlines()
    assert lines[0].split() == ["passes", "2", "4"]
    assert lines[1].split() == ["executed", "depth", "8", "12"]
    assert lines[2].split()[-2:] == ["2.5000", "2.0000"]
    assert "12,345 tokens, 1.500e+09 FLOPs" in table


def test_drawn_passes_stand_in_one_column() -> None:
    table = RunReport.table(
        {"passes": [1, [2, 3]], "executed_depth": [3, [4, 5]], "growth_step": 1, "steps": 2, "stored_parameters": 3,
         "initial_parameters": 3, "tokens": 9, "training_flops": 1.0}
    )  # fmt: skip
    passes, depth = table.splitlines()[:2]
    assert passes.split() == ["passes", "1", "2/3"]
    assert depth.split() == ["executed", "depth", "3", "4/5"]


def test_without_a_validation_loader_nothing_is_made_up(tmp_path: Path) -> None:
    model = looplit.Vanilla(depth=3, width=32, heads=1, vocabulary=64, context=16)
    trainer = L.Trainer(
        accelerator="cpu", max_steps=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path, callbacks=[RunReport()],
    )  # fmt: skip
    trainer.fit(model, windows(40))
    result = json.loads((tmp_path / "result.json").read_text())
    assert not {"final_val_loss", "best_val_loss", "validations", "tokens_per_second"} & set(result)
