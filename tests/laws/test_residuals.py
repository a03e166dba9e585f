"""Downstream residuals from made-up evaluations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from looplit.errors import InputError
from looplit.laws.residuals import pooled_residuals, task_categories, task_residuals
from looplit.laws.results import Result

SHIFT = {"vanilla": 0.0, "untied_grow": -0.05}


def runs() -> list[Result]:
    made = []
    for family, shift in SHIFT.items():
        for depth, loss in zip((6, 8, 10, 12), (3.4, 3.2, 3.0, 2.8), strict=True):
            better = loss - (0.1 if family == "untied_grow" else 0)
            values = {
                "depth": depth,
                "final_val_loss": better,
                "core_loss": 1 + 0.5 * better + shift,
                "loss:easy": 0.3 + 0.4 * better + shift,
                "loss:hard": 2 + 0.1 * better,
            }
            made.append(Result(f"{family} d{depth}", {"family": family}, values))
    return made


def test_task_lines_are_the_references_own() -> None:
    found = task_residuals(runs(), categories={"easy": "reading", "hard": "symbols"})
    assert list(found) == ["easy", "hard"]
    assert found["easy"].category == "reading"
    assert found["easy"].line["b"] == pytest.approx(0.4)
    for which in ("all", "lower half"):
        assert found["easy"].means[which] == pytest.approx({"vanilla": 0, "untied_grow": -0.05}, abs=1e-12)
        assert found["hard"].means[which] == pytest.approx({"vanilla": 0, "untied_grow": 0}, abs=1e-12)
    assert found["easy"].beyond == ("untied_grow d12",)


def test_lower_half_is_of_the_pooled_range() -> None:
    made = runs()
    low = [run for run in made if run.values["final_val_loss"] <= (3.4 + 2.7) / 2]
    made = [
        Result(run.name, run.labels, run.values | {"loss:easy": run.values["loss:easy"] + (0.1 if run in low else 0)})
        if run.family == "untied_grow"
        else run
        for run in made
    ]
    found = task_residuals(made)["easy"].means
    assert found["lower half"]["untied_grow"] == pytest.approx(0.05)
    # Of its four runs the two below 3.05 are shifted.
    assert found["all"]["untied_grow"] == pytest.approx(0.0, abs=1e-12)


def test_pooled_line_weighs_every_run_alike() -> None:
    found = pooled_residuals(runs())
    assert np.mean(list(found.by_run.values())) == pytest.approx(0, abs=1e-12)
    assert found.by_family["untied_grow"] < 0 < found.by_family["vanilla"]


def test_categories_come_from_the_bundles_table(tmp_path: Path) -> None:
    path = tmp_path / "eval_meta_data.csv"
    path.write_text("Eval Task,Task Category,Random baseline\neasy,reading comprehension,25\n")
    assert task_categories(path) == {"easy": "reading comprehension"}
    path.write_text("Eval Task,Random baseline\neasy,25\n")
    with pytest.raises(InputError, match="Task Category"):
        task_categories(path)


def test_refusals() -> None:
    with pytest.raises(InputError, match="core_loss"):
        pooled_residuals([Result("a", {"family": "vanilla"}, {"final_val_loss": 3.0})])
    with pytest.raises(InputError, match="needs two runs evaluated on easy, as vanilla, untied_grow has"):
        task_residuals(runs(), reference="loop_2")
