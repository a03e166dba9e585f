"""Reading runs from a table and from folders of result.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from looplit.errors import InputError
from looplit.laws.results import column, grouped, having, read_results, split_held_out, without_repeats

RESULT = {
    "family": "untied_grow",
    "depth": 8,
    "passes": [2, 4],
    "executed_depth": [11, 17],
    "training_flops": 2.5e18,
    "final_val_loss": 3.13,
    "effective_depth": 16,
    "hyperparameters": {"weight_decay": 0.07, "betas": [0.8, 0.99]},
    "core": {
        "core_metric": 0.12,
        "core_loss": 2.0,
        "passes": 9,
        "losses": {"boolq": 0.7},
        "centered_results": {"boolq": -0.1},
        "seeds": [0, 1, 2],
    },
    "versions": {"torch": "2.14"},
}


def test_published_table() -> None:
    runs = read_results("published")
    assert len(runs) == 58
    assert runs[0].name == "vanilla d6 (line 2)"
    assert runs[0].family == "vanilla"
    assert runs[0].values == {"depth": 6, "training_flops": 3.252671e17, "final_val_loss": 3.560862}


def test_folder_of_runs(tmp_path: Path) -> None:
    for name in ("b/run", "a/run"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "result.json").write_text(json.dumps(RESULT))
    (tmp_path / "unfinished").mkdir()
    runs = read_results(tmp_path)
    assert [run.name for run in runs] == ["untied_grow d8 (a/run)", "untied_grow d8 (b/run)"]
    values = runs[0].values
    assert (values["passes"], values["initial_passes"]) == (4, 2)  # not the evaluation's 9
    assert values["weight_decay"] == 0.07
    assert (values["core_metric"], values["loss:boolq"], values["centered:boolq"]) == (0.12, 0.7, -0.1)
    assert read_results(tmp_path / "a" / "run" / "result.json")[0].values == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("family,val_loss\n", "at least one run"),
        ("family,val_loss\nvanilla,3.0,9\n", "line 2 = 3: must have 2 cells"),
        ("family,val_loss\nvanilla,3,0\n", "line 2 = 3: must have 2 cells.*a decimal comma splits a number in two"),
        ('family,val_loss\nvanilla,"3,0"\n', "line 2 = '3,0': must be a number with a decimal point, not a comma"),
        ("family;val_loss\nvanilla;3,0\n", "is separated by semicolons; save it with commas, and decimal points"),
        ("family\tval_loss\nvanilla\t3.0\n", "is separated by tabs"),
        ("family,val_loss,final_val_loss\nvanilla,3.0,3.1\n", "has more than one column 'final_val_loss'"),
        ("family,val_loss\n\nvanilla,3.0\n\nvanilla,three\n", "line 5 = 'three'"),
        ("family,val_loss\nvanilla,3.0\nvanilla,three\n", "final_val_loss in t.csv line 3 = 'three': must be a number"),
    ],
)
def test_bad_tables(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        read_results(tmp_path / "t.csv")


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arm,val_loss\nvanilla,3.0\n", encoding="utf-8-sig")
    run = read_results(tmp_path / "t.csv")[0]
    assert (run.family, run.values) == ("vanilla", {"final_val_loss": 3.0})


def test_other_encodings_and_text_for_numbers(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("arm,val_loss\nvanilla,3.0\n", encoding="utf-16")
    with pytest.raises(InputError, match=r"t.csv': must be UTF-8 text \(invalid start byte at byte 0"):
        read_results(table)
    table.write_text("arm,val_loss\nvanilla,30 %\n")
    with pytest.raises(InputError, match=r"final_val_loss = '30 %': must be a number, in vanilla \(line 2\)"):
        having(read_results(table), "final_val_loss")


def test_repeats(tmp_path: Path) -> None:
    """Equal settings and results are one run, wherever and however fast it ran; another seed or loss is another."""
    first = {"family": "vanilla", "depth": 8, "seed": 1, "final_val_loss": 3.0, "wall_s": 9.0, "device": "cpu"}
    results = [first, first | {"wall_s": 8.0, "device": "H100"}, first | {"seed": 2}, first | {"final_val_loss": 3.1}]
    for n, result in enumerate(results):
        (tmp_path / str(n)).mkdir()
        (tmp_path / str(n) / "result.json").write_text(json.dumps(result))
    kept, repeats = without_repeats(read_results(tmp_path))
    assert [run.name for run in kept] == ["vanilla d8 (0)", "vanilla d8 (2)", "vanilla d8 (3)"]
    assert [run.name for run in repeats] == ["vanilla d8 (1)"]


def test_other_refusals(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_results(tmp_path / "absent")
    with pytest.raises(InputError, match=r"holds no result\.json"):
        read_results(tmp_path)
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(InputError, match="not valid JSON"):
        read_results(tmp_path)


def test_selecting(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "arm,corpus,depth,val_loss,core_metric\nx,web,6,3.0,0.1\nx,edu,8,2.9,\ny,edu,6,2.8,\n"
    )
    runs = read_results(tmp_path / "t.csv")
    assert list(grouped(runs)) == ["x", "y"]
    assert list(grouped(runs, "corpus")) == ["web", "edu"]
    assert list(grouped(runs, "depth")) == ["6", "8"]
    assert len(having(runs, "core_metric")) == 1
    with pytest.raises(InputError, match="column = 'train_seconds': no run has it; runs have core_metric, depth"):
        having(runs, "train_seconds")
    with pytest.raises(InputError, match="missing in x d8"):
        column(runs, "core_metric")
    inside, out = split_held_out(runs, ["x:8"])
    assert [run.name for run in out] == ["x d8 (line 3)"]
    assert len(inside) == 2
    with pytest.raises(InputError, match="held_out = 'x:10'"):
        split_held_out(runs, ["x:10"])
