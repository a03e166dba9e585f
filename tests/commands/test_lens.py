"""`lens` and `passes` on the checkpoints of runs started from the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import tiktoken
import yaml

import looplit
from looplit.__main__ import main
from looplit.callbacks import ModelGrowth
from looplit.commands.evaluate import evaluate_main
from looplit.commands.lens import lens_main
from looplit.commands.passes import passes_main
from looplit.data import Source, load_tokenizer, prepare_corpus
from looplit.data.sources import Shards, texts_shard
from looplit.errors import InputError

TEXT = "The core is applied again and again, and what it reads is what it wrote. " * 40
MODEL = {"depth": 3, "width": 32, "heads": 1, "vocabulary": 257, "context": 32}
Run = dict[str, Any]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tied and an untied run of six steps, through the command line: family → checkpoint."""
    folder = tmp_path_factory.mktemp("runs")

    def shards() -> Shards:
        return Shards([texts_shard("train", ["Look: " + TEXT, TEXT.upper()])], [texts_shard("validation", [TEXT])])

    source = Source({"source": "memory"}, shards, signature_tokens=0, val_tokens=None)
    prepare_corpus(folder / "corpus", source, load_tokenizer("bytes"), MODEL["context"] + 1)
    prepare_corpus(folder / "other", source, two_letters(), MODEL["context"] + 1)
    paths, here = {}, Path.cwd()
    os.chdir(folder)  # runs/ is made where the command is given
    try:
        for family, callbacks in (("LoopGrow", [growth()]), ("Untied", [])):
            config = {
                "model": {"class_path": family, "init_args": MODEL},
                "data": {
                    "class_path": "looplit.data.TextFolder",
                    "init_args": {"folder": str(folder / "corpus"), "context": 32, "batch_size": 4},
                },
                "trainer": {
                    "accelerator": "cpu", "max_steps": 6, "val_check_interval": 3, "check_val_every_n_epoch": None,
                    "enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0,
                    "callbacks": callbacks,
                },
            }  # fmt: skip
            (folder / f"{family}.yaml").write_text(yaml.safe_dump(config))
            assert main(["fit", "--config", f"{family}.yaml"]) == 0
            (paths[family],) = (folder / "runs" / family).rglob("last.ckpt")
    finally:
        os.chdir(here)
    return {
        **paths, "LoopGrow.yaml": folder / "LoopGrow.yaml", "corpus": folder / "corpus", "other": folder / "other",
    }  # fmt: skip


def two_letters() -> tiktoken.Encoding:
    """Bytes and one pair of them: its 258 ids are not those of a model of 257."""
    ranks = {bytes([b]): b for b in range(256)} | {b"th": 256}
    return tiktoken.Encoding("two", pat_str=r"[\s\S]+", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 257})


def growth() -> Run:
    return {"class_path": "ModelGrowth", "init_args": {"passes": 4, "step": 3}}


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    def run(command: Callable[[list[str]], int], *args: object) -> list[str]:
        assert command([str(arg) for arg in args]) == 0
        return capsys.readouterr().out.splitlines()

    return run


def test_the_lens_of_a_run_on_its_own_data(runs: dict[str, Path], tmp_path: Path, said: Any) -> None:
    pytest.importorskip("matplotlib")
    out, plot = tmp_path / "lens.json", tmp_path / "lens.png"
    lines = said(lens_main, "--ckpt_path", runs["LoopGrow"], "--tokens", 300, "--json", out, "--plot", plot)
    result = json.loads(out.read_text())
    assert result["executed_depth"] == 6  # grown to 1 + 4·1 + 1
    assert result["tokens"] == 288  # whole rows of 32
    assert (result["family"], result["passes"]) == ("loop_grow", 4)
    assert result["training_flops"] > 0
    assert result["blocks"][-1]["kl"] == 0
    assert f"* effective depth {result['effective_depth']} of 6 executed blocks" in lines
    assert "KL(final ‖ decoded) over 288 tokens; threshold of effective depth 2 nats" in lines
    assert plot.stat().st_size > 1000


def test_a_ladder_of_checkpoints(runs: dict[str, Path], tmp_path: Path, said: Any) -> None:
    pytest.importorskip("matplotlib")
    out, plot = tmp_path / "ladder.json", tmp_path / "ladder.svg"
    lines = said(lens_main, "--ckpt_path", runs["LoopGrow"], runs["Untied"], "--folder", runs["corpus"], "--tokens", 64,
                 "--threshold", 0.5, "--json", out, "--plot", plot)  # fmt: skip
    rows = json.loads(out.read_text())
    assert [row["family"] for row in rows] == ["loop_grow", "untied_2"]
    assert [row["threshold_nats"] for row in rows] == [0.5, 0.5]
    assert "effective" in lines[0]
    assert len(lines) == 1 + 2 + 1
    assert "KL effective depth" in plot.read_text()


def test_loss_at_other_passes(runs: dict[str, Path], tmp_path: Path, said: Any) -> None:
    out = tmp_path / "passes.json"
    options = ["--ckpt-path", runs["LoopGrow"], "--passes", "1,8", "--tokens", 300, "--out", out]
    lines = said(passes_main, *options)
    result = json.loads(out.read_text())
    assert json.loads("\n".join(said(passes_main, *options, "--json"))) == result
    assert [row["passes"] for row in result["losses"]] == [1, 4, 8]
    assert result["losses"][1]["excess"] == 0
    assert lines[0].endswith("loop_grow trained at 4 passes, 288 tokens")
    assert lines[-1].split()[0] == "8"


@pytest.mark.parametrize(
    ("command", "args", "named"),
    [
        (lens_main, [], "lens: the following arguments are required: --ckpt_path"),
        (lens_main, ["--ckpt_path", "none.ckpt"], "ckpt_path = 'none.ckpt': there is no such checkpoint file"),
        (lens_main, ["--ckpt_path", "LoopGrow", "--threshold", "-1"], "--threshold: '-1' is not a number from 0 up"),
        (lens_main, ["--ckpt_path", "LoopGrow", "--threshold", "x"], "--threshold: 'x' is not a number from 0 up"),
        (lens_main, ["--ckpt_path", "LoopGrow", "--out", "/proc/foo/x.json"], "out = '/proc/foo/x.json': its folder"),
        (lens_main, ["--ckpt_path", "LoopGrow.yaml"], "ckpt_path = .*LoopGrow.yaml': not a readable checkpoint"),
        (lens_main, ["--ckpt_path", "LoopGrow", "--direction", "up"], "direction: invalid choice: 'up'"),
        (lens_main, ["--ckpt_path", "LoopGrow", "--tokens", "0"], "--tokens: '0' is not a positive number"),
        (lens_main, ["--ckpt_path", "LoopGrow", "--plot", "a.gif"], r"plot = 'a.gif': must end in"),
        (lens_main, ["--ckpt_path", "LoopGrow", "--data", "nowhere"], "folder = 'nowhere': has no corpus.json"),
        (
            lens_main,
            ["--ckpt_path", "LoopGrow", "--data", "other"],
            "holds ids of a tokenizer with 258; .* bytes, has 257",
        ),
        (lens_main, ["--ckpt_path", "LoopGrow", "--device", "abacus"], "device = 'abacus'"),
        (lens_main, ["--ckpt_path", "LoopGrow", "--out", "corpus"], "out = .*: a folder; name a file"),
        (lens_main, ["--ckpt_path", "corpus"], "a folder; make one file of a sharded checkpoint"),
        (
            passes_main,
            ["--ckpt_path", "Untied", "--passes", "1,3"],
            "passes = 3: an untied model can run at most its 2",
        ),
        (passes_main, ["--ckpt_path", "Untied", "--passes", "1,x"], "'1,x' is not a list of whole numbers"),
        (passes_main, ["--ckpt_path", "Untied"], "required: --passes"),
    ],
)
def test_wrong_input_is_said_in_one_line(
    runs: dict[str, Path], command: Callable[[list[str]], int], args: list[str], named: str
) -> None:
    with pytest.raises(InputError, match=named) as refusal:
        command([str(runs.get(arg, arg)) for arg in args])
    assert len(str(refusal.value).splitlines()) == 1


def test_cores_that_were_never_trained_are_not_scored(runs: dict[str, Path], tmp_path: Path, said: Any) -> None:
    """An untied model stores four cores; before its growth two of them are as they were made."""
    model, saved = looplit.UntiedGrow(**MODEL, steps=4), tmp_path / "before.ckpt"
    data = looplit.data.TokenData(str(runs["corpus"]), context=32, batch_size=4)
    trainer = L.Trainer(
        accelerator="cpu", max_steps=2, callbacks=[ModelGrowth(passes=4, step=3)], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, data)
    trainer.save_checkpoint(saved)
    (tmp_path / "eval_data").mkdir()
    task = "{label: a, dataset_uri: a.jsonl, num_fewshot: [0], icl_task_type: language_modeling}"
    (tmp_path / "core.yaml").write_text(f"icl_tasks: [{task}]")
    (tmp_path / "eval_meta_data.csv").write_text("Eval Task,Random baseline\na,0\n")
    (tmp_path / "eval_data" / "a.jsonl").write_text('{"context": "x", "continuation": "y"}\n')
    common = ["--ckpt_path", str(saved)]
    said(passes_main, *common, "--data", runs["corpus"], "--passes", "1,2")
    with pytest.raises(InputError, match="passes = 4: only 2 of the 4 stored cores were trained"):
        passes_main([*common, "--data", str(runs["corpus"]), "--passes", "1,4"])
    with pytest.raises(InputError, match="passes = 3: only 2 of the 4 stored cores were trained"):
        evaluate_main([*common, "--bundle", str(tmp_path), "--passes", "3"])


def test_a_checkpoint_without_its_run_needs_data(runs: dict[str, Path], tmp_path: Path) -> None:
    alone = tmp_path / "a" / "b" / "alone.ckpt"
    alone.parent.mkdir(parents=True)
    alone.write_bytes(runs["Untied"].read_bytes())
    with pytest.raises(InputError, match=r"folder = None: there is no config.yaml of its run"):
        lens_main(["--ckpt_path", str(alone)])
    (tmp_path / "a" / "config.yaml").write_text("data:\n  class_path: NoSuchData\n")
    with pytest.raises(InputError, match="data = 'NoSuchData' in .*: cannot be built"):
        lens_main(["--ckpt_path", str(alone)])
    (tmp_path / "a" / "config.yaml").write_text("data: [1,\n")
    with pytest.raises(InputError, match="config.yaml does not say the data of a run"):
        lens_main(["--ckpt_path", str(alone)])
    (tmp_path / "a" / "config.yaml").write_text("data:\n  class_path: pathlib.Path\n")
    with pytest.raises(InputError, match="data = 'pathlib.Path'.*no data module"):
        lens_main(["--ckpt_path", str(alone)])
    ran = tmp_path / "ran"
    (tmp_path / "a" / "config.yaml").write_text(f"data:\n  class_path: os.mkdir\n  init_args: {{path: {ran}}}\n")
    with pytest.raises(InputError, match="data = 'os.mkdir'.*no data module"):
        lens_main(["--ckpt_path", str(alone)])
    assert not ran.exists()


def test_help_and_refusals_need_no_torch() -> None:
    script = (
        "import sys\n"
        "from looplit.commands.lens import lens_main\n"
        "try:\n    lens_main(['--ckpt_path', 'none.ckpt'])\n"
        "except ValueError:\n    sys.exit(7 if 'torch' in sys.modules else 0)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0
