"""The notebook runs from top to bottom, on a little text and for a few steps; its stored copy has its outputs."""

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
    content: dict[str, Any] = json.loads((root / "notebooks" / "logit_lens.ipynb").read_text())
    return content


def test_the_lens_notebook_runs(
    notebook: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")

    def shards() -> Shards:
        return Shards([texts_shard("train", ["Look: " + TEXT, TEXT.upper()])], [texts_shard("validation", [TEXT])])

    monkeypatch.setattr("looplit.data.module.standard_library", lambda: Source({"source": "memory"}, shards))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {}
    for cell in cells:
        exec(compile(cell.replace("STEPS, TOKENS = 400, 8_192", "STEPS, TOKENS = 10, 512"), "notebook", "exec"), names)
    assert names["STEPS"] == 10
    depths = {name: result.executed_depth for name, result in names["results"].items()}
    assert depths == {f"{name}, {when} growth": depth for name in ("tied", "untied")
                      for when, depth in (("before", 4), ("after", 6))}  # fmt: skip
    assert list(names["curves"]["untied, after growth"].losses) == [1, 2, 3, 4]
    assert "effective depth 1 of 4" in capsys.readouterr().out


def test_the_stored_notebook_has_its_outputs(notebook: dict[str, Any]) -> None:
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    pictures = [output for cell in code for output in cell["outputs"] if "image/png" in output.get("data", {})]
    assert len(pictures) == 4
    assert all(cell["execution_count"] for cell in code)
