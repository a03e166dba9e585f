"""The GPU check itself, in its tiny mode on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch


@pytest.fixture(scope="module")
def script(root: Path, load_script: Callable[[Path], ModuleType]) -> ModuleType:
    return load_script(root / "benchmarks" / "gpu_check.py")


def rows(path: Path) -> list[list[str]]:
    table = [line for line in path.read_text().splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in table if "---" not in line]


def test_it_measures_everything(script: ModuleType, tmp_path: Path) -> None:
    assert script.main(["--tiny", "--out", str(tmp_path / "table.md")]) == 0
    text = (tmp_path / "table.md").read_text()
    assert text.startswith("Hardware: ")
    assert f"torch {torch.__version__}" in text
    found = {row[0]: row[-1] for row in rows(tmp_path / "table.md")}
    assert found["fp32"] == found["bf16 autocast"] == found["Muon's update"] == "ok"
    (speed,) = (row for row in rows(tmp_path / "table.md") if row[0] == "d3")
    assert float(speed[4].replace(",", "")) > 0


def test_a_row_that_fails_is_named_and_a_smaller_micro_batch_follows_the_end_of_memory(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []

    def fail(depth: int, compile: bool, micro_batch: int, *_: object) -> tuple[str, ...]:
        sizes.append(micro_batch)
        raise torch.OutOfMemoryError("no memory") if micro_batch > 8 else ZeroDivisionError("wrong\nmore")

    monkeypatch.setattr(script, "speed", fail)
    assert script.main(["--tiny", "--out", str(tmp_path / "table.md")]) == 1
    assert sizes == [32, 16, 8]
    assert [row[-1] for row in rows(tmp_path / "table.md") if row[0] == "d3"] == [
        "OutOfMemoryError: no memory", "OutOfMemoryError: no memory", "ZeroDivisionError: wrong"
    ]  # fmt: skip


def test_time_that_runs_out_and_a_missing_gpu_are_said(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(["--tiny", "--minutes", "0", "--out", str(tmp_path / "table.md")]) == 1
    assert rows(tmp_path / "table.md")[-1][-1] == "no time left"
    if not torch.cuda.is_available():
        assert script.main([]) == 2
        assert "there is no GPU" in capsys.readouterr().err
