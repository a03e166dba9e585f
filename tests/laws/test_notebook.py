"""The notebook runs from top to bottom, and its published losses are the reference table's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from looplit.laws.results import column, grouped, read_results


def test_scaling_laws_notebook(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((root / "notebooks" / "scaling_laws.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    names: dict = {}
    for cell in cells:
        exec(compile(cell, "notebook", "exec"), names)
    runs = grouped(read_results("published"))
    assert names["PUBLISHED"] == {family: column(members, "final_val_loss") for family, members in runs.items()}
    for family, members in runs.items():
        # The table has seven digits.
        assert names["ladders"][family][0] == pytest.approx(column(members, "training_flops"), rel=5e-7)
    assert "E = 1.7064" in capsys.readouterr().out
