"""The notebook's code runs from top to bottom and prints the study's numbers; its stored copy has its outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from looplit.data import Source
from looplit.data.sources import Shards, texts_shard

TEXT = "The core is applied again and again, and what it reads is what it wrote. " * 200


@pytest.fixture
def notebook(root: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((root / "notebooks" / "truncate_or_not.ipynb").read_text())
    return content


def test_truncate_or_not_notebook(
    notebook: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")

    def shards() -> Shards:
        return Shards([texts_shard("train", ["Look: " + TEXT, TEXT.upper()])], [texts_shard("validation", [TEXT])])

    monkeypatch.setattr("looplit.data.module.standard_library", lambda: Source({"source": "memory"}, shards))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            code = "".join(cell["source"]).replace("STEPS, TOKENS = 300, 65_536", "STEPS, TOKENS = 2, 1_024")
            exec(compile(code, "notebook", "exec"), names)
    printed = capsys.readouterr().out
    for number in ("1.76 times", "(8, 2) needs 34% less", "C^0.238", "1.031 times the compute", "31.6% fewer"):
        assert number in printed
    assert names["best_trained_passes"](8, law=names["mine"]) == 2
    assert names["STEPS"] == 2
    tokens = names["STEPS"] * names["ROWS"] * names["CONTEXT"]
    for family in names["FAMILIES"]:
        flops = {model.meter.flops for setting in names["PAIR"] for model in names["trained"][family, setting]}
        assert flops == {tokens * names["flops_per_token"](names["trained"][family, (8, 2)][0].config)}


def test_the_stored_notebook_has_its_outputs(notebook: dict[str, Any]) -> None:
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    pictures = [output for cell in code for output in cell["outputs"] if "image/png" in output.get("data", {})]
    assert len(pictures) == 6
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
