"""The command line as a user meets it: processes of its own, a tiny model on the embedded corpus."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

import looplit
from looplit.__main__ import main
from looplit.cli import one_line

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpora")


@pytest.fixture
def tiny(corpora: Path, root: Path) -> list[str]:
    return tiny_options(corpora, root)


def tiny_options(corpora: Path, root: Path) -> list[str]:
    """The demo, shrunk to a second of training."""
    settings = {
        "model.init_args.width": "32", "model.init_args.heads": "1", "model.init_args.split": "[1,1,1]",
        "model.init_args.context": "32", "data.init_args.context": "32", "data.init_args.batch_size": "4",
        "data.init_args.val_tokens": "2000", "data.init_args.folder": str(corpora), "trainer.max_steps": "20",
        "trainer.val_check_interval": "7", "trainer.log_every_n_steps": "5", "trainer.enable_progress_bar": "false",
    }  # fmt: skip
    options = [f"--{name}={value}" for name, value in settings.items()]
    return ["--config", str(root / "configs" / "demo.yaml"), *options]


def command(*args: str, cwd: Path, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "looplit", *args],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        env=ENVIRONMENT,
    )


Refused = Callable[..., str]


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command in this process, which must refuse it with exit code 2; gives the one line that it says."""

    def run(*args: str) -> str:
        monkeypatch.chdir(tmp_path)
        try:
            code = main(list(args))
        except SystemExit as end:  # the parser's own way to stop
            code = int(end.code or 0)
        errors = capsys.readouterr().err.splitlines()
        lines = [line for line in errors if line.startswith("looplit: error: ")]
        assert code == 2
        assert len(lines) == 1
        return lines[0]

    return run


def run_folder(cwd: Path, version: int = 0) -> Path:
    return cwd / "runs" / "demo" / f"version_{version}"


def test_fit_leaves_everything_in_one_folder_and_a_second_run_spares_it(tmp_path: Path, tiny: list[str]) -> None:
    first = command("fit", *tiny, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "grew from 2 to 4 passes" in first.stderr + first.stdout
    for words in ("executed depth", "validation loss at its end", "stored parameters", "FLOPs", "tensorboard --logdir"):
        assert words in first.stdout
    folder = run_folder(tmp_path)
    names = {path.name for path in folder.iterdir()}
    assert {"config.yaml", "result.json", "checkpoints"} <= names
    assert any(name.startswith("events.out.tfevents") for name in names)

    result = json.loads((folder / "result.json").read_text())
    assert (result["steps"], result["growth_step"], result["passes"], result["executed_depth"]) == (
        20,
        14,
        [2, 4],
        [4, 6],
    )
    assert result["tokens"] == 20 * 4 * 32 == result["steps"] * result["batch_tokens"]
    assert result["training_flops"] == 4 * 32 * sum(
        steps * cost for steps, cost in zip((14, 6), result["flops_per_token"], strict=True)
    )
    assert [step for step, _, _ in result["validations"]] == [7, 14, 20]  # the last one falls on no interval
    assert result["final_val_loss"] == result["validations"][-1][2] >= result["best_val_loss"]
    assert (result["seed"], result["device_count"]) == (1, 1)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    # the saved configuration alone repeats the run, into a folder of its own
    again = command("fit", "--config", str(folder / "config.yaml"), cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    repeated = json.loads((tmp_path / "runs" / "demo" / "version_1" / "result.json").read_text())
    assert repeated["final_val_loss"] == result["final_val_loss"]
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    checkpoint = folder / "checkpoints" / "last.ckpt"
    torch.load(checkpoint, weights_only=True)
    assert looplit.load(checkpoint).backbone.passes == 4
    checked = command("validate", *tiny, "--ckpt_path", str(checkpoint), cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    said = re.search(r"loss/val\s+(\d+\.\d+)", checked.stdout)
    assert said
    assert float(said.group(1)) == pytest.approx(result["final_val_loss"], rel=1e-6)

    predicted = command("predict", *tiny, "--ckpt_path", str(checkpoint), cwd=tmp_path)
    assert predicted.returncode == 0, predicted.stderr
    losses = np.load(run_folder(tmp_path, 3) / "token_losses.npy")
    assert losses.shape[1] == 32
    assert losses.mean() == pytest.approx(result["final_val_loss"], rel=1e-5)


@pytest.mark.parametrize("strategy", ["looplit_fsdp", "ddp_find_unused_parameters_true"])
def test_two_processes_train_and_report_as_one_run(tmp_path: Path, tiny: list[str], strategy: str) -> None:
    """Whatever processes must agree on has to be asked by both: a report that asks on one of them hangs here."""
    two = ["--trainer.devices=2", f"--trainer.strategy={strategy}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "looplit", "fit", *tiny, *two], cwd=tmp_path, env=ENVIRONMENT, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        _, errors = process.communicate(timeout=180)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors
    result = json.loads((run_folder(tmp_path) / "result.json").read_text())
    assert (result["device_count"], result["passes"]) == (2, [2, 4])
    assert result["tokens"] == 20 * 2 * 4 * 32
    saved = run_folder(tmp_path) / "checkpoints" / "last.ckpt"
    if strategy == "looplit_fsdp":
        assert saved.is_dir()
        assert main(["consolidate", str(saved), str(tmp_path / "whole.ckpt")]) == 0
        saved = tmp_path / "whole.ckpt"
    assert looplit.load(saved).backbone.passes == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_checkpoint_that_goes_on(tmp_path: Path, tiny: list[str], number: signal.Signals) -> None:
    straight_folder, stopped_folder = tmp_path / "straight", tmp_path / "stopped"
    straight_folder.mkdir()
    stopped_folder.mkdir()
    longer = ["--trainer.max_steps=300", "--trainer.val_check_interval=40", "--trainer.enable_progress_bar=true"]
    process = subprocess.Popen(
        [sys.executable, "-m", "looplit", "fit", *tiny, *longer], cwd=stopped_folder, env=ENVIRONMENT,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        events = stopped_folder / "runs"
        deadline = time.monotonic() + 120
        while not list(events.rglob("last.ckpt")) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)  # until the first validation is over
        process.send_signal(number)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 128 + number
    assert "Traceback" not in errors
    last_line = errors.strip().splitlines()[-1]
    assert f"stopped by {number.name} after step" in errors
    saved = run_folder(stopped_folder) / "checkpoints" / "interrupted.ckpt"
    assert saved.is_file()
    step = torch.load(saved, weights_only=True)["global_step"]
    assert 40 <= step < 300, last_line

    resumed = command("fit", *tiny, *longer[:2], "--ckpt_path", str(saved), cwd=stopped_folder)
    assert resumed.returncode == 0, resumed.stderr
    straight = command("fit", *tiny, *longer[:2], cwd=straight_folder)
    results = [
        json.loads((folder / "result.json").read_text())
        for folder in (run_folder(stopped_folder, 1), run_folder(straight_folder))
    ]
    assert straight.returncode == 0
    assert results[0]["tokens"] == results[1]["tokens"]
    assert results[0]["training_flops"] == results[1]["training_flops"]
    assert results[0]["final_val_loss"] == results[1]["final_val_loss"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model.init_args.dept=3"], "looplit.UntiedGrow has no option 'dept'"),
        (["--trainer.max_step=3"], "--trainer.max_step"),
        (["--data.init_args.tokeniser=bytes"], "looplit.StandardLibraryText has no option 'tokeniser'"),
        (["--model.init_args.depth=abc"], "depth: Expected a <class 'int'>. Got value: abc"),
        (["--model.init_args.heads=3"], "heads = 3: must divide the width 32"),
        (["--model.init_args.vocabulary=200"], "vocabulary = 200: the data holds token ids up to 256"),
        (["--model.init_args.passes=5", "--model.init_args.stored_cores=4"], "passes = 5"),
        (
            ["--model.init_args.boundary=identity", "--model.init_args.coda_boundary=norm",
             "--model.init_args.injection_scale=0.5"],
            "injection_scale = 0.5: nothing is injected",
        ),
        (["--trainer.callbacks.init_args.passes=3"], "passes = 3"),
        (["--trainer.callbacks.init_args.passes=8"], "passes = 8: the model stores 4 cores"),
        (["--config=no_such_file.yaml"], "no_such_file.yaml"),
        (["--model.init_args.steps=3"], "trainer.max_steps = 20: goes beyond the 3 planned steps"),
        (["--ckpt_path=no_such.ckpt"], "ckpt_path = 'no_such.ckpt'"),
        (["--ckpt_path=last"], "ckpt_path = 'last': each run has a folder of its own"),
        (["--model.init_args.width=abc"], "width: Expected a <class 'int'>. Got value: abc"),
        (["--trainer.accumulate_grad_batches=0"], "trainer.accumulate_grad_batches = 0"),
        (["--trainer.callbacks+=ModelGrowth"], "trainer.callbacks = 2: give several growths to one ModelGrowth"),
    ],
)  # fmt: skip
def test_wrong_input_is_one_clear_line(refused: Refused, tiny: list[str], options: list[str], said: str) -> None:
    assert said in refused("fit", *tiny, *options)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"model": {"class_path": "UntiedGrow", "init_args": {"depth": 6, "learning_rat": 0.1}}},
            "no option 'learning_rat'",
        ),
        (
            {"model": {"class_path": "UntiedGro", "init_args": {"depth": 6}}},
            "class_path = 'UntiedGro': there is no such class",
        ),
        ({"trainer": {"max_stesp": 3}}, "trainer.max_stesp"),
    ],
)
def test_a_typo_in_a_file_is_one_clear_line(
    refused: Refused, tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    (tmp_path / "typo.yaml").write_text(yaml.safe_dump(changes))
    assert said in refused("fit", "--config", "typo.yaml")


def test_a_growth_step_outside_the_run_is_refused(refused: Refused, tmp_path: Path, tiny: list[str]) -> None:
    growth = {"class_path": "ModelGrowth", "init_args": {"passes": 4, "step": 20, "fraction": None}}
    (tmp_path / "late.yaml").write_text(yaml.safe_dump({"trainer": {"callbacks": [growth]}}))
    said = refused("fit", *tiny, "--config", "late.yaml")
    assert "step = 20: growth must fall inside the run of 20 steps" in said


def test_a_number_in_scientific_notation_is_a_number(tmp_path: Path, tiny: list[str]) -> None:
    (tmp_path / "rate.yaml").write_text("model:\n  init_args:\n    learning_rate: 3e-4\n")
    done = command("fit", *tiny, "--config", "rate.yaml", "--print_config", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["model"]["init_args"]["learning_rate"] == 0.0003


def test_smoke_runs_of_one_step_grow_too(tmp_path: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fit", *tiny, "--trainer.fast_dev_run=true"]) == 0


def test_a_run_of_drawn_passes_says_what_it_draws_from(
    tmp_path: Path, root: Path, corpora: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The random-recurrence configuration, its model, data and length shrunk."""
    monkeypatch.chdir(tmp_path)
    config = yaml.safe_load((root / "configs" / "random_recurrence" / "random_recurrence_d06.yaml").read_text())
    small = {"width": 32, "heads": 1, "split": [1, 1, 1], "vocabulary": 257, "context": 32, "compile": False}
    config["model"]["init_args"] |= small
    arguments = {"folder": str(corpora), "tokenizer": "bytes", "context": 32, "batch_size": 4, "val_tokens": 2000}
    config["data"] = {"class_path": "StandardLibraryText", "init_args": arguments}
    config["trainer"] |= {"accelerator": "cpu", "devices": 1, "strategy": "auto", "precision": "32-true"}
    config["trainer"] |= {"max_steps": 8, "val_check_interval": 4, "enable_progress_bar": False}
    (tmp_path / "demo.yaml").write_text(yaml.safe_dump(config))
    assert main(["fit", "--config", "demo.yaml"]) == 0
    assert json.loads((run_folder(tmp_path) / "result.json").read_text())["passes"] == [2, [2, 3, 4, 5, 6]]
    said = capsys.readouterr().out
    assert "executed depth 4 → 4/5/6/7/8;" in said
    assert ["passes", "2", "2/3/4/5/6"] in [line.split() for line in said.splitlines()]


def test_without_logger_and_checkpoints_a_run_still_has_its_folder(
    tmp_path: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        quiet = ["--trainer.max_steps=2", "--trainer.logger=false", "--trainer.enable_checkpointing=false"]
        assert main(["fit", *tiny, *quiet]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert (run_folder(tmp_path, 1) / "result.json").is_file()


def test_a_run_goes_where_it_is_told(tmp_path: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    quick = [
        "--trainer.max_steps=2",
        "--trainer.val_check_interval=2",
        f"--trainer.default_root_dir={tmp_path / 'mine'}",
    ]
    assert main(["fit", *tiny, *quick]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    folder = tmp_path / "mine" / "demo" / "version_0"
    assert (folder / "result.json").is_file()
    assert (folder / "checkpoints" / "last.ckpt").is_file()
    assert main(["fit", "--config", str(folder / "config.yaml")]) == 0  # the saved configuration goes there too
    assert (folder.parent / "version_1" / "result.json").is_file()


def test_light_commands_load_neither_torch_nor_lightning(tmp_path: Path) -> None:
    for args in (["--version"], ["--help"], [], ["recipe", "untied_grow", "26"]):
        code = f"import sys; from looplit.__main__ import main; main({args!r}); print(*sys.modules, file=sys.stderr)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60)
        assert done.returncode == 0, done.stderr
        assert not {"torch", "lightning", "jsonargparse"} & set(done.stderr.split())


def test_hyphens_in_names_of_options_are_underscores(refused: Refused, tiny: list[str], tmp_path: Path) -> None:
    (tmp_path / "a-b.yaml").write_text("trainer:\n  max-steps: 3\n")
    assert "max-steps" in refused("fit", *tiny, "--config", "a-b.yaml")  # a file says what it says
    assert "heads = 3: must divide" in refused("fit", *tiny, "--model.init-args.heads=3")
    assert "no-such.ckpt" in refused("fit", *tiny, "--ckpt-path", "no-such.ckpt")
    assert "no-such.ckpt" in refused("evaluate", "--ckpt-path", "no-such.ckpt")


@pytest.mark.parametrize("args", [["recipe"], ["recipe", "truncated_loop"], ["plan"], ["prepare"], ["evaluate"],
                                  ["lens"], ["passes"], ["consolidate"], ["laws", "ladder"], ["laws", "vertex"],
                                  ["laws", "forecast"], ["laws", "recurrence"], ["laws", "residuals"],
                                  ["loops", "worth"], ["loops", "optimum"], ["loops", "frontier"],
                                  ["loops", "fit"]])  # fmt: skip
def test_every_command_has_help_of_one_layout(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([*args, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    usage = text.splitlines()[0]
    assert usage.startswith(f"usage: python -m looplit {args[0]} ")
    assert usage.endswith(" [options]")
    assert len(usage) < 90
    assert re.search(r"\n\S[^:\n]+:\n  --\w", text)  # a group under its title
    assert not re.search(r"^  --[a-z_]+-[a-z]", text, re.MULTILINE)


def test_an_unknown_command_is_refused(refused: Refused) -> None:
    said = refused("fitt")
    assert said.startswith("looplit: error: command = 'fitt': must be one of recipe, plan, laws, ")
    assert said.endswith("fit, validate, test, predict")


def test_a_refusal_ends_the_process_with_code_2_and_no_traceback(tmp_path: Path, tiny: list[str]) -> None:
    done = command("fit", *tiny, "--model.init_args.heads=3", cwd=tmp_path)
    assert done.returncode == 2
    assert "heads = 3" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_line_is_written_in_one_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of a run write to one place, each at its time."""
    written: list[str] = []
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=written.append, flush=lambda: None))
    assert main(["consolidate", str(tmp_path), str(tmp_path / "out.ckpt")]) == 2
    assert [line.partition(" = ")[0] for line in written if line.startswith("looplit")] == ["looplit: error: ckpt_path"]
    assert written[-1].endswith("checkpoint\n")


def test_one_line_keeps_the_innermost_reason() -> None:
    message = """Parser key "model":
  Does not validate against any of the Union subtypes
  Subtypes: [<class 'X'>, <class 'NoneType'>]
  Errors:
    - Problem with given class_path 'looplit.Loop':
        Parser key "depth":
          Expected a <class 'int'>. Got value: abc
    - Expected a <class 'NoneType'>
  Given value type: <class 'str'>
  Given value: abc"""
    assert one_line(message).endswith("depth: Expected a <class 'int'>. Got value: abc")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, corpora: Path, root: Path) -> tuple[list[str], Path]:
    """A finished run that stopped at step 10 of 20, before growth at step 14: its options and its checkpoint."""
    folder = tmp_path_factory.mktemp("finished")
    options = [*tiny_options(corpora, root), "--model.init_args.steps=20"]
    done = command("fit", *options, "--trainer.max_steps=10", cwd=folder)
    assert done.returncode == 0, done.stderr
    return options, run_folder(folder) / "checkpoints" / "last.ckpt"


def test_one_line_takes_the_reason_that_says_more_than_a_type() -> None:
    """As jsonargparse words what a constructor refused, and a value that no type of several takes."""
    refused = """Does not validate against any of the Union subtypes
Subtypes: [<class 'str'>, <class 'Strategy'>]
Errors:
  - Expected a <class 'str'>
  - minutes = 0: must be above 0
Given value type: <class 'Namespace'>
Given value: Namespace(minutes=0)"""
    assert one_line(refused) == "minutes = 0: must be above 0"
    untaken = """Parser key "unit":
  Does not validate against any of the Union subtypes
  Subtypes: [<class 'bool'>, typing.Literal['block', 'pass'], <class 'NoneType'>]
  Errors:
    - Expected a <class 'bool'>
    - Expected a typing.Literal['block', 'pass']
    - Expected a <class 'NoneType'>
  Given value type: <class 'str'>
  Given value: foo"""
    assert one_line(untaken) == "unit: Expected a <class 'bool'> or typing.Literal['block', 'pass']. Got value: foo"


def test_a_run_that_ends_before_its_growth_reports_none(finished: tuple[list[str], Path]) -> None:
    result = json.loads((finished[1].parents[1] / "result.json").read_text())
    assert (result["steps"], result["passes"], result["executed_depth"]) == (10, [2], [4])
    assert "growth_step" not in result


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--model.init_args.learning_rate=0.5"],
            "learning_rate = 0.25: the checkpoint trains its embedding with 0.01",
        ),
        (["--model.init_args.weight_decay=0.5"], "weight_decay = 0.5: the checkpoint trains"),
        (
            ["--trainer.accumulate_grad_batches=2"],
            "accumulate_grad_batches = 2: an optimizer step takes 256 tokens; the checkpoint's run took 128",
        ),
        (["--model.init_args.width=64"], "ckpt_path: the checkpoint is of another model"),
        (["--data.init_args.seed=5"], "seed"),
    ],
)
def test_a_resumed_run_keeps_its_settings(
    refused: Refused, finished: tuple[list[str], Path], options: list[str], said: str
) -> None:
    assert said in refused("fit", *finished[0], *options, f"--ckpt_path={finished[1]}")


@pytest.mark.parametrize("content", [b"", b"text", "truncated", "foreign"])
def test_what_is_no_checkpoint_is_refused(
    refused: Refused, tmp_path: Path, finished: tuple[list[str], Path], content: bytes | str
) -> None:
    path = tmp_path / "bad.ckpt"
    if content == "foreign":
        torch.save({"weights": torch.zeros(2)}, path)
    else:
        path.write_bytes(finished[1].read_bytes()[:2000] if content == "truncated" else content)  # type: ignore[arg-type]
    said = refused("fit", *finished[0], f"--ckpt_path={path}")
    assert "not a readable checkpoint" in said or "not a checkpoint of a run" in said
