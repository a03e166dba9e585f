"""What the README says holds: its commands exist, its links lead somewhere, its Python runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning as L
import pytest

from looplit.__main__ import HELP, LIGHT
from looplit.commands.laws.command import laws_main
from looplit.planning.config_files import read_configs
from looplit.planning.plan import plan_config


@pytest.fixture(scope="module")
def readme(root: Path) -> str:
    return (root / "README.md").read_text()


def test_every_command_of_the_readme_is_in_the_help(readme: str) -> None:
    commands = set(re.findall(r"python -m looplit ([a-z]+)", readme))
    assert commands >= {"fit", "recipe", "plan", "prepare", "evaluate", "lens", "passes", "laws", "loops"}
    for name in commands | set(LIGHT):
        assert re.search(rf"^  {name}\b", HELP, re.MULTILINE), name


def test_the_help_names_only_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    from looplit.cli import LoopLitCLI

    known = set(LIGHT) | set(LoopLitCLI.subcommands())
    assert set(re.findall(r"^  ([a-z]+)\b", HELP, re.MULTILINE)) == known


def test_the_first_table_of_the_readme_is_what_its_command_gives(
    readme: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "`python -m looplit laws ladder published`" in readme
    assert laws_main(["ladder", "published", "--json"]) == 0
    families = json.loads(capsys.readouterr().out)["families"]
    rows = re.findall(r"^\| ([A-Z][\w-]+) \| (0\.\d+) \| ([\d.]+)× \| \**([\d.]+)×", readme, re.MULTILINE)
    assert len(rows) == 4
    for title, *numbers in rows:
        found = families[title.lower().replace("-", "_")]
        gamma = {parameter["name"]: parameter["value"] for parameter in found["fit"]["parameters"]}["gamma"]
        d8, d20 = found["multipliers"][1], found["multipliers"][-1]
        assert (round(d8["compute"] / 1e18), round(d20["compute"] / 1e20)) == (1, 1)
        assert numbers == [f"{gamma:.4f}", f"{d8['value']:.2f}", f"{d20['value']:.2f}"]


def test_links_lead_to_files(readme: str, root: Path) -> None:
    for document in (root / "README.md", root / "configs" / "README.md", *(root / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), target
    for config in re.findall(r"configs/[\w/]+\.yaml", readme):
        assert (root / config).is_file(), config


def test_pictures_are_small(root: Path) -> None:
    pictures = list((root / "docs").glob("*.png"))
    assert pictures
    assert all(picture.stat().st_size < 300_000 for picture in pictures)


def test_the_traffic_of_the_docs_is_what_the_benchmark_prints(root: Path) -> None:
    printed = subprocess.run(
        [sys.executable, str(root / "benchmarks" / "communication.py")], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    text = (root / "docs" / "sharding.md").read_text()
    rows = [line for line in text.splitlines() if re.match(r"\| [24] \| ", line)]
    assert len(rows) == 12
    assert set(rows) <= set(printed)


def test_the_memory_of_the_docs_is_what_the_plan_says(root: Path) -> None:
    config = [root / "configs" / "untied_grow_d26.yaml"]
    text = (root / "docs" / "sharding.md").read_text()
    rows = re.findall(r"^\| \**(`.*?)\** \| \**(\d+) × (\d+)\** \| \**([\d.]+) → ([\d.]+)", text, re.MULTILINE)
    assert len(rows) == 5
    for settings, windows, accumulation, before, after in rows:
        given = {
            "replicas": 2 if "replicas" in settings else 1,
            "activation_checkpointing": "block" if "block" in settings else "false",
            "reduce_every_micro_batch": "true",
        }
        overrides = [f"--trainer.strategy.init_args.{name}={value}" for name, value in given.items()]
        overrides += [f"--data.batch_size={windows}", f"--trainer.accumulate_grad_batches={accumulation}"]
        plan = plan_config(read_configs(config, overrides))
        assert plan.run.batch_tokens == 524_288
        planned = [f"{size / 2**30:.1f}" for size in plan.to_dict()["phase_memory_bytes"]]
        assert planned == [before, after], settings


def test_the_python_of_the_readme_runs(readme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training example as printed, but for two steps of a narrower model."""
    code = next(block for block in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "L.Trainer" in block)
    for printed, smaller in (
        ("max_steps=100", f"max_steps=4, default_root_dir={str(tmp_path)!r}, logger=False, enable_progress_bar=False"),
        ("width=128, heads=4", "width=32, heads=1, split=(1, 1, 1)"),
        ("batch_size=8", f"batch_size=2, val_tokens=600, folder={str(tmp_path)!r}"),
    ):
        assert printed in code
        code = code.replace(printed, smaller)
    names: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path)
    L.seed_everything(1, verbose=False)
    exec(code, names)
    assert names["model"].backbone.passes == 4
