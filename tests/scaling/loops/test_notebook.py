"""The notebook's code runs from top to bottom and prints the study's numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def test_truncate_or_not_notebook(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((root / "notebooks" / "truncate_or_not.ipynb").read_text())
    names: dict = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "notebook", "exec"), names)
    printed = capsys.readouterr().out
    for number in ("1.76 times", "(8, 2) needs 34% less", "C^0.238", "1.031 times the compute", "31.6% fewer"):
        assert number in printed
    assert names["best_trained_passes"](8, law=names["mine"]) == 2
