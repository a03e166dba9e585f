"""`python -m looplit evaluate`: what it writes, that it goes on where it stopped, and how it refuses."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from core_bundle import CONTEXT
from core_reference import slow_core

from looplit.__main__ import main
from looplit.data.tokenizer import load_tokenizer
from looplit.errors import InputError
from looplit.eval.commands import evaluate_main
from looplit.modules import Vanilla, load

TASKS = ["copa", "piqa", "jeopardy"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint as a run leaves it."""
    model = Vanilla(depth=3, width=32, heads=2, vocabulary=257, context=CONTEXT, seed=0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    trainer = L.Trainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False)
    trainer.strategy.connect(model)
    path = tmp_path_factory.mktemp("run") / "last.ckpt"
    trainer.save_checkpoint(path)
    return path


def command(checkpoint: Path, bundle_folder: Path, *options: Any) -> list[str]:
    return ["--ckpt_path", str(checkpoint), "--bundle", str(bundle_folder), "--device", "cpu", *map(str, options)]


def test_json_and_lines_are_the_reference(
    checkpoint: Path, bundle_folder: Path, tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, lines = tmp_path / "new folder" / "eval.json", tmp_path / "examples.jsonl"
    assert evaluate_main(command(checkpoint, bundle_folder, "--out", out, "--examples", lines)) == 0
    result = json.loads(out.read_text())
    with torch.no_grad():
        expected = slow_core(bundle_folder, load(checkpoint), load_tokenizer("bytes"), context=CONTEXT)
    for name in ("core_metric", "core_metric_std", "core_loss", "core_bpb", "results", "centered_results", "losses"):
        assert result[name] == pytest.approx(expected[name], abs=1e-5), name  # rounding of fp32, as in test_protocol
    assert result["checkpoint"] == str(checkpoint)
    assert (result["seeds"], result["passes"], result["published_suite"]) == ([0, 1, 2], 1, False)
    assert set(result["per_seed"]) == {"0", "1", "2"}
    assert set(result["baselines"]) == set(result["task_counts"]) == set(result["results"])
    documented = (root / "docs" / "evaluation.md").read_text()
    assert [key for key in result if f"`{key}`" not in documented] == []
    told = [json.loads(line) for line in lines.read_text().splitlines()]
    for line in told:
        e = expected["examples"][line["task"], line["seed"], line["example"]]
        assert (line["prediction"], line["correct"]) == (e["prediction"], e["correct"])
    assert {p.name for p in out.parent.iterdir()} == {"eval.json"}
    shown = capsys.readouterr().out
    assert "mean (not the published suite)" in shown
    assert "filtered (17 tasks)" in shown


def test_an_interrupted_evaluation_goes_on(
    checkpoint: Path, bundle_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from looplit.eval.core import evaluation

    plainly, out, lines = tmp_path / "plain.json", tmp_path / "eval.json", tmp_path / "lines.jsonl"
    options = ["--tasks", *TASKS, "--out"]
    evaluate_main(command(checkpoint, bundle_folder, *options, plainly, "--examples", tmp_path / "plain.jsonl"))
    inner, asked = evaluation._evaluate_task, []

    def stops_at_the_third(plan: Any, *rest: Any) -> Any:
        asked.append(plan.task.label)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return inner(plan, *rest)

    monkeypatch.setattr(evaluation, "_evaluate_task", stops_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        evaluate_main(command(checkpoint, bundle_folder, *options, out, "--examples", lines))
    assert not out.exists()
    with lines.open("a") as file:  # as if it had been interrupted while writing the third
        file.write(json.dumps({"checkpoint": str(checkpoint), "task": "jeopardy", "seed": 0, "example": 0}) + "\n")
    evaluate_main(command(checkpoint, bundle_folder, *options, out, "--examples", lines))
    assert asked == [*TASKS, "jeopardy"]
    assert json.loads(out.read_text()) == json.loads(plainly.read_text())
    assert lines.read_text() == (tmp_path / "plain.jsonl").read_text()
    assert "2 tasks are done" in capsys.readouterr().out

    asked.clear()
    with pytest.raises(KeyboardInterrupt):
        evaluate_main(command(checkpoint, bundle_folder, *options, out))
    asked.clear()
    with pytest.raises(KeyboardInterrupt):  # other settings: nothing is taken up
        evaluate_main(command(checkpoint, bundle_folder, "--limit", 1, *options, out))
    assert asked == TASKS


def test_several_checkpoints_make_a_list_or_a_file_each(checkpoint: Path, bundle_folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.ckpt"
    other.write_bytes(checkpoint.read_bytes())
    arguments = ["--ckpt_path", str(checkpoint), str(other), "--bundle", str(bundle_folder), "--tasks", "copa"]
    evaluate_main([*arguments, "--device", "cpu", "--out", str(tmp_path / "both.json")])
    first, second = json.loads((tmp_path / "both.json").read_text())
    assert (first["checkpoint"], second["checkpoint"]) == (str(checkpoint), str(other))
    assert first["losses"] == second["losses"]
    evaluate_main([*arguments, "--device", "cpu"])
    assert json.loads((tmp_path / "other.ckpt.core.json").read_text()) == second
    assert {path.name for path in tmp_path.iterdir()} == {"both.json", "other.ckpt", "other.ckpt.core.json"}


def test_dry_run_says_what_it_would_take(
    checkpoint: Path, bundle_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate_main(command(checkpoint, bundle_folder, "--dry_run", "--tokens_per_second", 1000))
    shown = capsys.readouterr().out.splitlines()
    name, questions, whole, shared = shown[-2].split()
    assert name == "all"
    assert int(questions.replace(",", "")) > 22
    assert int(whole.replace(",", "")) > int(shared.replace(",", ""))
    minutes = int(shared.replace(",", "")) / 1000 / 60
    assert f"{minutes:.1f} minutes" in shown[-1]


def test_an_interrupt_ends_in_one_line(
    checkpoint: Path, bundle_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*args: Any, **settings: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("looplit.eval.core.evaluation._evaluate_task", interrupted)
    assert main(["evaluate", *command(checkpoint, bundle_folder)]) == 130  # as a shell says it of SIGINT
    assert capsys.readouterr().err.splitlines()[-1] == "looplit: interrupted"


def test_lines_that_are_missing_are_asked_again(checkpoint: Path, bundle_folder: Path, tmp_path: Path) -> None:
    """A run without lines is stopped after two tasks; with lines it goes on, and all three tasks have theirs."""
    out, lines = tmp_path / "eval.json", tmp_path / "lines.jsonl"
    options = ["--tasks", *TASKS, "--seeds", 0, "--out", out]
    evaluate_main(command(checkpoint, bundle_folder, *options, "--examples", tmp_path / "plain.jsonl"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("looplit.eval.core.record.FinishedTasks.remove", lambda self: None)
        evaluate_main(command(checkpoint, bundle_folder, *options))
    assert Path(f"{out}.part").exists()
    lines.write_text('{"checkpoint": "other", "task": "copa", "prediction": 1}\n{"checkpoint": "cut')
    evaluate_main(command(checkpoint, bundle_folder, *options, "--examples", lines))
    first, *rest = lines.read_text().splitlines(keepends=True)
    assert json.loads(first)["checkpoint"] == "other"
    assert "".join(rest) == (tmp_path / "plain.jsonl").read_text()


@pytest.mark.parametrize("content", ['{"mine": 1}\n', '{"mine": 1}', "notes"])
def test_a_foreign_file_of_lines_is_spared(checkpoint: Path, bundle_folder: Path, tmp_path: Path, content: str) -> None:
    lines = tmp_path / "notes.jsonl"
    lines.write_text(content)
    with pytest.raises(InputError, match="notes.jsonl': line 1 is not an example"):
        evaluate_main(command(checkpoint, bundle_folder, "--examples", lines))
    assert lines.read_text() == content


def test_a_broken_record_is_not_taken_up(checkpoint: Path, bundle_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "eval.json"
    Path(f"{out}.part").write_text('{"key":')
    evaluate_main(command(checkpoint, bundle_folder, "--tasks", "copa", "--out", out))
    assert json.loads(out.read_text())["task_counts"].keys() == {"copa"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "ckpt_path = None"),
        (["--ckpt_path", "none.ckpt"], "ckpt_path = 'none.ckpt': there is no such"),
        (["--ckpt_path", "CKPT", "--bundle", "nowhere"], "bundle = 'nowhere': holds no core.yaml"),
        (["--ckpt_path", "CKPT", "--bundle", "BUNDLE", "--tasks", "nope"], "tasks = "),
        (["--ckpt_path", "CKPT", "--bundle", "BUNDLE", "--passes", "0"], "--passes: '0' is not a positive number"),
        (["--ckpt_path", "CKPT", "--limit", "x"], "argument --limit: 'x' is not a positive number"),
        (["--ckpt_path", "CKPT", "--seeds", "x"], "argument --seeds: 'x' is not a whole number from 0 up"),
        (["--ckpt_path", "CKPT", "--out", "/proc/foo/x.json"], "out = '/proc/foo/x.json': its folder cannot be made"),
        (["--dry_run", "--tokens_per_second", "0"], "argument --tokens_per_second: '0' is not a positive number"),
        (["--ckpt_path", "CKPT", "--bundle", "BUNDLE", "--limit", "0"], "--limit: '0' is not a positive number"),
        (["--ckpt_path", "CKPT", "--bundle", "BUNDLE", "--seeds", "1", "1"], "seeds = [1, 1]"),
        (["--ckpt_path", "FOLDER"], "a folder; make one file of a sharded checkpoint"),
        (["--ckpt_path", "CKPT", "--out", "FOLDER"], "a folder; name a file"),
        (["--ckpt_path", "CKPT", "--out", "CKPT/eval.json"], "out = 'CKPT/eval.json': CKPT is a file"),
        (["--ckpt_path", "CKPT", "--bundle", "BUNDLE", "--device", "abacus"], "device = 'abacus'"),
        (["--ckpt_path", "CKPT", "--bundle", "BUNDLE", "--device", "meta"], "device = 'meta'"),
    ],
)
def test_wrong_input_is_one_line(options: list[str], message: str, checkpoint: Path, bundle_folder: Path) -> None:
    def placed(text: str) -> str:
        places = {"CKPT": checkpoint, "BUNDLE": bundle_folder, "FOLDER": bundle_folder}
        return functools.reduce(lambda done, name: done.replace(name, str(places[name])), places, text)

    with pytest.raises(InputError) as caught:
        evaluate_main([placed(option) for option in options])
    assert placed(message) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_last_of_several_checkpoints_is_refused_before_the_first_is_evaluated(
    checkpoint: Path, bundle_folder: Path, tmp_path: Path
) -> None:
    good, bad = tmp_path / "good.ckpt", tmp_path / "bad.ckpt"
    good.write_bytes(checkpoint.read_bytes())
    bad.write_text("no checkpoint")
    with pytest.raises(InputError, match="ckpt_path = .*bad.ckpt': not a readable checkpoint"):
        evaluate_main(["--ckpt_path", str(good), str(bad), "--bundle", str(bundle_folder), "--device", "cpu"])
    assert {path.name for path in tmp_path.iterdir()} == {"good.ckpt", "bad.ckpt"}


def test_arguments_are_refused_before_torch_is_imported() -> None:
    code = "import sys; from looplit.eval.commands import evaluate_parser; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
