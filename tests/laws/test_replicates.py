"""Replicates and off-recipe runs: averaged, refused, and never mixed, whatever the command."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from looplit.commands.laws.command import laws_main
from looplit.errors import InputError
from looplit.laws.matched import Cell, average_cells, shared_budgets, strategies, tuned_weight_decay
from looplit.laws.replicates import averaged
from looplit.laws.results import Result
from looplit.recipes.growth_study import data_constrained, recipe

Row = Mapping[str, Any]


def answer(capsys: pytest.CaptureFixture[str], tmp_path: Path, rows: Sequence[Row], *argv: str) -> dict[str, Any]:
    """JSON of one command on a table of `rows`."""
    table = tmp_path / "runs.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)
    assert laws_main([argv[0], str(table), *argv[1:], "--json"]) == 0
    payload: dict[str, Any] = json.loads(capsys.readouterr().out)
    return payload


def ladder(**settings: Any) -> list[dict[str, Any]]:
    """Seven rungs of an exact power law."""
    spends = np.geomspace(3e17, 1e20, 7)
    return [
        {"family": "vanilla", "depth": depth, "training_flops": spend, "train_seconds": spend / 1e14,
         "final_val_loss": 1.7 + 1.6 * (spend / 1e18) ** -0.11} | settings
        for depth, spend in zip(range(6, 20, 2), spends, strict=True)
    ]  # fmt: skip


def grid() -> list[dict[str, Any]]:
    """Depth × passes, whose loss loops lower."""
    return [
        {"family": "loop", "depth": depth, "passes": passes, "weight_decay": 0.8,
         "training_flops": 1e17 * (depth / 4) ** 4 * (0.3 + 0.7 * passes),
         "final_val_loss": 3.9 - 0.05 * depth - 0.1 * np.log(passes) + 0.02 * np.log(passes) ** 2}
        for depth in (4, 6, 8, 10, 12, 14)
        for passes in (1, 2, 4, 8)
    ]  # fmt: skip


@pytest.mark.parametrize("against", ["training_flops", "train_seconds"])
def test_seeds_of_unequal_compute_are_one_rung(
    against: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seeds 1 % apart in time and 0.01 % in FLOPs, 0.01 nats apart: without averages the ladder zigzags."""
    rows = [
        row | {"seed": seed, "training_flops": row["training_flops"] * (1 + 1e-4 * seed),
               "train_seconds": row["train_seconds"] * (1 + 0.01 * seed),
               "final_val_loss": row["final_val_loss"] + 0.01 * seed}
        for row in ladder() for seed in (-1, 0, 1)
    ]  # fmt: skip
    seeds = answer(capsys, tmp_path, rows, "ladder", "--against", against)["families"]["vanilla"]
    alone = answer(capsys, tmp_path, ladder(), "ladder", "--against", against)["families"]["vanilla"]
    assert len(seeds["fit"]["observed"]) == 7
    assert [point["value"] for point in seeds["multipliers"]] == pytest.approx([1.0] * 7)
    for ours, theirs in zip(seeds["fit"]["parameters"], alone["fit"]["parameters"], strict=True):
        assert ours["value"] == pytest.approx(theirs["value"], rel=1e-6)


@pytest.mark.parametrize(
    ("setting", "change", "message"),
    [
        ({"tokens_per_parameter": 6.0}, {"tokens_per_parameter": 18.0, "training_flops": 9e17}, "tokens_per_parameter"),
        ({"learning_rate": 0.02}, {"learning_rate": 0.08}, r"learning_rate = 0.02 and 0.08 in vanilla d6 \(line 2\)"),
        ({"corpus": "web"}, {"corpus": "edu"}, "corpus = web and edu .*choose runs, with --where corpus=web"),
        ({}, {"training_flops": 9e17}, "training_flops = 3e.17 and 9e.17 .* differs at equal depth"),
    ],
)
def test_runs_off_the_recipe_are_refused(
    setting: Row, change: Row, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ladder(**setting)
    rows.append(rows[0] | change | {"final_val_loss": 3.5})
    with pytest.raises(InputError, match=message):
        answer(capsys, tmp_path, rows, "ladder")


def test_recipes_that_follow_depth_are_ladders() -> None:
    """Learning rate, growth fraction and tokens change with depth in honest recipes, and from seed to seed nothing."""
    runs = []
    for family in ("untied_grow", "vanilla"):
        for depth in (6, 8, 10):
            plan = recipe(family, depth).to_dict()
            numbers = {key: float(value) for key, value in plan.items() if isinstance(value, int | float)}
            runs += [Result(f"{family} {depth} {seed}", {"family": family}, numbers | {"seed": seed})
                     for seed in (1.0, 2.0)]  # fmt: skip
    assert [run.values["depth"] for run in averaged(runs[:6])] == [6, 8, 10]
    assert averaged(runs[6:])[0].name == "vanilla 6 1.0 and 1 replicate"


def test_another_weight_decay_in_a_sweep_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"family": "vanilla", "depth": 8, "weight_decay": decay, "learning_rate": rate,
         "final_val_loss": 3 + decay + np.log(rate / 0.02 / decay) ** 2}
        for decay in (0.5, 2.0) for rate in (0.005, 0.01, 0.02, 0.04, 0.08)
    ]  # fmt: skip
    with pytest.raises(InputError, match="weight_decay = 0.5 and 2 .* differs at equal learning_rate; .*--where"):
        answer(capsys, tmp_path, rows, "vertex", "--x", "learning_rate")


def test_another_width_in_a_grid_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row | {"width": width} for row in grid() for width in (512, 1024)]
    with pytest.raises(InputError, match="width = 512 and 1024 .* differs at equal depth, passes, weight_decay"):
        answer(capsys, tmp_path, [row | {"final_val_loss": 3 + i / 100} for i, row in enumerate(rows)], "recurrence")


def test_recurrence_averages_seeds_before_anything_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Seeds whose mean is the loss without them change nothing; the best of them would favour loops."""
    rows = [row | {"seed": seed, "final_val_loss": row["final_val_loss"] + 0.02 * seed}
            for row in grid() for seed in (-1, 0, 1)]  # fmt: skip
    ours, alone = (answer(capsys, tmp_path, each, "recurrence")["strategy_multipliers"] for each in (rows, grid()))
    assert ours[0]["multiplier"] == pytest.approx(alone[0]["multiplier"], rel=1e-9)
    lucky = [Cell(8, 1, 0.4, 1e18, loss) for loss in (3.0, 3.4)] + [Cell(8, 1, 0.8, 1e18, 3.1)]
    assert tuned_weight_decay(lucky) == {8: 0.8}
    assert strategies(lucky, 0.4)["loops, fixed weight decay"][1].tolist() == [pytest.approx(3.2)]
    assert len(average_cells(lucky)) == 2


def test_recurrence_reads_one_series(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """operator_1, loop_2 and loop_4 are one series; another family beside it, grown or untied, is not."""
    named = [row | {"family": f"loop_{row['passes']}" if row["passes"] > 1 else "operator_1"} for row in grid()]
    assert {row["family"] for row in named} >= {data_constrained("operator_1", 8).family, "loop_2"}
    ours, theirs = (answer(capsys, tmp_path, rows, "recurrence") for rows in (named, grid()))
    assert ours["strategy_multipliers"] == theirs["strategy_multipliers"]
    for other in ("untied_2", "loop_grow"):
        more = [row | {"family": other, "final_val_loss": 3.0} for row in grid() if row["passes"] == 2]
        with pytest.raises(InputError, match=f"{other}': are not one series .* choose with --where family=operator_1"):
            answer(capsys, tmp_path, named + more, "recurrence")


@pytest.mark.parametrize(
    ("column", "value", "rule"),
    [
        ("training_flops", "nan", "must be finite"),
        ("training_flops", "inf", "must be finite"),
        ("training_flops", 0, "must be above 0"),
        ("weight_decay", "nan", "must be finite"),
        ("weight_decay", -1, "must be at least 0"),
        ("passes", 2.5, "must be a whole number"),
        ("passes", 0, "must be a whole number"),
        ("depth", "nan", "must be finite"),
        ("final_val_loss", -3, "must be above 0"),
    ],
)
def test_recurrence_refuses_what_no_run_can_have(
    column: str, value: Any, rule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = grid()
    rows[4][column] = value
    with pytest.raises(InputError, match=rf"{column} in loop d.* \(line 6\) = {float(value)}: {rule}"):
        answer(capsys, tmp_path, rows, "recurrence")


def test_budgets_in_a_gap_between_ladders_are_left_out() -> None:
    low, high = np.array([1e18, 2e18]), np.array([1e20, 2e20])
    ladders = {k: (spends * (1 + 0.01 * k), np.array([3.0, 2.9])) for k, spends in enumerate([low] * 3 + [high] * 3)}
    found = shared_budgets(ladders)
    assert found[0] == pytest.approx(1.02e18)
    assert found[-1] == pytest.approx(2.06e20)
    assert all(budget < 2.1e18 or budget > 1e20 for budget in found)


def test_the_direction_of_a_tasks_accuracy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second family at twice the efficiency is ahead by accuracy as it is by loss."""
    rows = []
    for family, gain in (("vanilla", 1), ("mine", 2)):
        for row in ladder():
            loss = 1.7 + 1.6 * (gain * row["training_flops"] / 1e18) ** -0.11
            rows.append(row | {"family": family, "final_val_loss": loss, "centered:copa": 1 - loss / 4,
                               "core_loss": loss})  # fmt: skip
    found = answer(capsys, tmp_path, rows, "ladder", "--score", "centered:copa")["families"]["mine"]["multipliers"]
    assert [point["value"] for point in found[2:]] == pytest.approx([2] * 5, rel=0.05)
    table = tmp_path / "runs.csv"
    assert laws_main(["residuals", str(table), "--score", "centered:copa"]) == 0
    assert "positive is better" in capsys.readouterr().out
    rows[2]["centered:copa"] = 7.3
    with pytest.raises(InputError, match=r"centered:copa in vanilla d10 \(line 4\) = 7.3: must be at most 1"):
        answer(capsys, tmp_path, rows, "residuals", "--score", "centered:copa")


def test_a_noisy_sweep_gives_no_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noise = 0.002 * np.random.default_rng(1).standard_normal((20, 5))
    rows = [
        {"family": f"f{j}", "depth": 8, "learning_rate": rate, "final_val_loss": 3 + noise[j, i]}
        for j in range(20) for i, rate in enumerate((0.01, 0.02, 0.04, 0.08, 0.16))
    ]  # fmt: skip
    families = answer(capsys, tmp_path, rows, "vertex", "--x", "learning_rate")["families"]
    sweeps = [sweep for family in families.values() for sweep in family["sweeps"].values()]
    assert sum(sweep["bracketed"] for sweep in sweeps) > 8
    # The test lets one noise sweep in twenty pass; of those, about half are also bracketed.
    assert sum(sweep["clear"] for sweep in sweeps) <= 2
    assert sum(family["mean"] is not None for family in families.values()) <= 2
    assert any("may be noise" in sweep["fit"]["warnings"][0] for sweep in sweeps if not sweep["clear"])
