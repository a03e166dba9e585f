"""`laws` from the command line: every subcommand on made-up runs, as a table, as JSON and as a figure."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import looplit.laws
from looplit.commands.laws.command import laws_main
from looplit.errors import InputError


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def answer(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[dict[str, Any], str]:
    """JSON and table of one command."""
    assert laws_main([*argv, "--json"]) == 0
    payload = json.loads(capsys.readouterr().out)
    assert laws_main(argv) == 0
    return payload, capsys.readouterr().out


@pytest.fixture
def evaluated(tmp_path: Path) -> str:
    """Two ladders with CORE on three tasks; the second is twice as efficient, and one run lies far beyond."""
    rows = []
    for family, gain in (("vanilla", 1.0), ("untied_grow", 2.0)):
        depths = [6, 8, 10, 12, 14, 16] + ([26] if family == "untied_grow" else [])
        for depth in depths:
            compute = 3e17 * (depth / 6) ** 5.5
            loss = 1.7 + 1.6 * (gain * compute / 1e18) ** -0.11
            nll = {task: 0.2 + rate * loss for task, rate in (("a", 0.5), ("b", 0.7), ("c", 0.9))}
            accuracy = {task: 1 / (1 + np.exp(4 * value - 6)) for task, value in nll.items()}
            rows.append(
                {"family": family, "depth": depth, "training_flops": compute, "final_val_loss": loss,
                 "train_seconds": compute / 1e15, "core_metric": 0.9 * np.mean(list(accuracy.values())),
                 "core_loss": np.mean(list(nll.values()))}
                | {f"loss:{task}": value for task, value in nll.items()}
                | {f"centered:{task}": value for task, value in accuracy.items()}
            )  # fmt: skip
    return write(tmp_path / "runs.csv", rows)


def test_ladder(evaluated: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    figure = tmp_path / "ladder.svg"
    payload, text = answer(capsys, "ladder", evaluated, "--held_out", "untied_grow:26", "--at", "1e25",
                           "--bootstrap", "5", "--plot", str(figure))  # fmt: skip
    grow = payload["families"]["untied_grow"]
    assert payload["floor"]["parameters"][0]["value"] == pytest.approx(1.7, abs=1e-6)
    # Rungs 2.3 times apart in compute, and a curve read along chords.
    assert grow["multipliers"][3]["value"] == pytest.approx(2, rel=0.02)
    assert grow["law_multipliers"][0]["value"] == pytest.approx(2, rel=1e-6)
    assert grow["law_multipliers"][0]["extrapolated"]
    assert payload["held_out"][0]["error"] == pytest.approx(0, abs=1e-6)
    for key in ("space", "huber_scale", "units", "fixed", "condition_number", "converged"):
        assert key in payload["floor"]
    assert "residuals: raw, Huber, scale" in text
    assert "nats per token" in text
    assert figure.read_text().startswith("<?xml")


@pytest.mark.parametrize("score", ["core_metric", "core_loss"])
def test_ladder_at_matched_scores_and_by_the_clock(
    evaluated: str, score: str, capsys: pytest.CaptureFixture[str]
) -> None:
    payload, _ = answer(capsys, "ladder", evaluated, "--score", score, "--against", "train_seconds")
    values = [point["value"] for point in payload["families"]["untied_grow"]["multipliers"]]
    # Scores curve between rungs, so interpolation misses the factor of 2 by a little.
    assert [value for value in values if value] == pytest.approx([2] * sum(map(bool, values)), rel=0.05)
    assert payload["floor"]["fixed"]["E"] == pytest.approx(1.7, abs=1e-6)
    assert payload["floor"]["units"]["compute"] == "seconds of optimization"
    assert payload["floor"]["fixed"]["C0"] == 3600


def test_forecast(evaluated: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    payload, text = answer(capsys, "forecast", evaluated, "--held_out", "untied_grow:26", "--target", "0.3",
                           "--at", "1e21", "--plot", str(tmp_path / "core.png"))  # fmt: skip
    needed = payload["needed"]["target 0.3"]["compute"]
    assert needed["vanilla"] / needed["untied_grow"] == pytest.approx(2, rel=1e-3)
    assert payload["held_out"][0]["error"] == pytest.approx(0, abs=1e-4)
    assert payload["fits"]["conversion"]["parameters"][0]["value"] == pytest.approx(0.9)
    assert "vanilla / untied_grow" in text
    assert payload["needed"]["GPT-3 175B"]["extrapolated"] == {"vanilla": True, "untied_grow": True}
    assert f"{payload['needed']['GPT-3 175B']['compute']['vanilla']:.3g}*" in text
    assert (tmp_path / "core.png").stat().st_size > 1000


def test_residuals(evaluated: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    payload, text = answer(capsys, "residuals", evaluated, "--plot", str(tmp_path / "residuals.svg"))
    assert payload["pooled"]["by_family"]["untied_grow"] == pytest.approx(0, abs=1e-9)
    assert set(payload["tasks"]) == {"a", "b", "c"}
    assert "extended beyond vanilla's own losses for untied_grow d16 (line 13), untied_grow d26 (line 14)" in text


def test_vertex_of_tokens_per_parameter(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [
        {"family": family, "depth": 8, "stored_parameters": int(1e9 / tpp**0.5), "tokens": int(1e9 / tpp**0.5) * tpp,
         "training_flops": budget * (1 + 0.001 * tpp), "final_val_loss": 3 * np.exp(0.02 * np.log(tpp / best) ** 2)}
        for family, best in (("vanilla", 5.0), ("loop_2", 6.0))
        for budget in (1e18, 2e18, 4e18)
        for tpp in (2, 3, 5, 8, 13)
    ]  # fmt: skip
    payload, text = answer(capsys, "vertex", write(tmp_path / "t.csv", rows), "--plot", str(tmp_path / "v.svg"))
    assert payload["families"]["vanilla"]["mean"] == pytest.approx(5.0, rel=1e-3)
    assert payload["families"]["loop_2"]["mean"] == pytest.approx(6.0, rel=1e-3)
    assert len(payload["families"]["vanilla"]["sweeps"]) == 3
    assert payload["families"]["vanilla"]["drift"]["parameters"][1]["value"] == pytest.approx(0, abs=1e-4)
    assert "drift exponent" in text


def test_vertex_of_growth_fraction_gives_the_affine_law(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [
        {"family": "untied_grow", "depth": depth, "growth_fraction": rho, "training_flops": depth * 1e17 * tpp,
         "tokens_per_parameter": tpp / (1 + 0.45 * rho),
         "final_val_loss": 3 * np.exp(0.05 * (rho - (tpp / (0.883 * tpp + 0.103) - 1) / 0.45) ** 2)}
        for depth in (8, 9)
        for tpp in (depth / 2, float(depth), 2.0 * depth)
        for rho in (0.0, 0.1, 0.2, 0.3, 0.5)
    ]  # fmt: skip
    payload, text = answer(capsys, "vertex", write(tmp_path / "t.csv", rows), "--x", "growth_fraction")
    intercept, slope = payload["families"]["untied_grow"]["affine_growth"]["parameters"]
    assert (slope["value"], intercept["value"]) == pytest.approx((0.883, 0.103), rel=1e-4)
    assert "TPP at the transition = 0.883" in text


def test_vertex_of_a_knob_and_an_unbracketed_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [
        {"family": family, "depth": depth, "stored_parameters": depth**3 * 4e5, "learning_rate": 0.04 * factor,
         "final_val_loss": 3 * np.exp(0.02 * np.log(factor / (depth / 8) ** drift / shift) ** 2)}
        for family, drift, shift in (("vanilla", -2.4, 1.0), ("loop_2", 0.0, 40.0))
        for depth in (8, 9, 10)
        for factor in (0.25, 0.5, 1, 2, 4)
    ]  # fmt: skip
    payload, text = answer(
        capsys, "vertex", write(tmp_path / "t.csv", rows), "--x", "learning_rate", "--center", "0.04"
    )
    vanilla, loop = payload["families"]["vanilla"], payload["families"]["loop_2"]
    assert vanilla["drift"]["parameters"][1]["value"] == pytest.approx(-0.8, rel=1e-6)
    assert vanilla["sensitivity"]["significant"]
    assert vanilla["sensitivity"]["regret"] > 0
    assert loop["mean"] is None
    assert all(not sweep["bracketed"] and sweep["best_measured"] == 4 for sweep in loop["sweeps"].values())
    assert "monotone" in text


def test_recurrence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [
        {"family": "loop", "depth": depth, "passes": passes, "weight_decay": decay,
         "training_flops": 1e16 * depth**2.5 * (passes + 2),
         "final_val_loss": 3.6 - 0.02 * depth - 0.1 * np.log(passes) + 0.02 * np.log(passes) ** 2
         + 0.05 * np.log(decay / (0.1 * depth)) ** 2}
        for depth in (6, 8, 10, 12, 14)
        for passes in (1, 2, 4, 8)
        for decay in (0.4, 0.8, 0.8001, 1.6)
        if decay != 0.8001 or (depth, passes) == (6, 1)
    ]  # fmt: skip
    payload, text = answer(capsys, "recurrence", write(tmp_path / "t.csv", rows), "--weight_decay", "0.8",
                           "--plot", str(tmp_path / "r.svg"))  # fmt: skip
    assert len(payload["cuts"]) == 5
    assert payload["held"]["weight_decay"] == 0.8
    assert payload["held"]["in"] == ["cuts", "marginal_gain"]
    assert payload["held_tuned"]["weight_decay"] == {"6": 0.8, "8": 0.8, "10": 0.8, "12": 1.6, "14": 1.6}
    assert set(payload["marginal_gain"]["8"]) == {"1", "2", "4", "8"}
    pair = next(entry for entry in payload["strategy_multipliers"]
                if entry["slow"].startswith("size, tuned") and entry["fast"].startswith("loops, fixed"))  # fmt: skip
    assert pair["multiplier"] > 1
    assert any(entry["bracketed"] for entry in payload["weight_decay_optima"])
    assert "training FLOPs" in text


def test_where_selects_by_text_and_number(evaluated: str, capsys: pytest.CaptureFixture[str]) -> None:
    payload, _ = answer(capsys, "ladder", evaluated, "--where", "family=vanilla", "depth=6,8,10,12")
    assert list(payload["families"]) == ["vanilla"]
    assert len(payload["floor"]["observed"]) == 4


def test_wrong_input_is_one_line(evaluated: str, tmp_path: Path) -> None:
    for argv, message in (
        (["ladder", evaluated, "--reference", "loop_2"], "reference = 'loop_2'"),
        (["ladder", evaluated, "--where", "family=nobody"], "where = 'family=nobody': no run has family nobody"),
        (["ladder", evaluated, "--plot", "figure.bmp"], "plot = 'figure.bmp'"),
        (["ladder", str(tmp_path / "absent.csv")], "no such file"),
        (["recurrence", evaluated], "passes"),
        (["ladder", evaluated, "--loss", "best_val_loss"], "loss = 'best_val_loss': no run has it"),
        (["ladder", evaluated, "--loss", "depth"], "loss = 'depth': no loss or score"),
        (["residuals", evaluated, "--score", "depth"], "score = 'depth': no loss or score"),
        (["vertex", evaluated, "--x", "warmth"], "x = 'warmth': no run has it"),
        (["ladder", evaluated, "--seed", "-1"], "argument --seed: '-1' is not a whole number from 0 up"),
        (["ladder", evaluated, "--plot", "png"], "plot = 'png': must end in .svg, .png, .pdf"),
        (["ladder", evaluated, "--plot", evaluated + "/x.png"], "x.png': .*runs.csv is a file"),
        (["ladders"], "laws = 'ladders': must be one of ladder, vertex, forecast, recurrence, residuals"),
        (["ladder", evaluated, "--c0", "many"], "laws ladder: argument --c0: 'many' is not a positive number"),
        (["ladder", evaluated, "--ref", "vanilla"], "unrecognized arguments"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            laws_main(argv)
        assert "\n" not in str(caught.value)


def test_laws_import_neither_torch_nor_matplotlib() -> None:
    code = "import sys, looplit.commands.laws.command; print([m for m in ('torch', 'matplotlib') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_compute_that_is_none_names_its_run(tmp_path: Path) -> None:
    table = tmp_path / "sweep.csv"
    rows = [f"untied_2,8,{t},{1e18 if t > 2 else -1},{3.3 + 0.01 * (t - 6) ** 2}" for t in (2, 4, 6, 8, 12)]
    table.write_text("\n".join(["family,depth,tokens_per_parameter,training_flops,final_val_loss", *rows]))
    with pytest.raises(InputError, match=r"training_flops = -1.0: must be a finite number above 0 \(.*line 2"):
        laws_main(["vertex", str(table)])


def test_a_ladder_of_single_runs_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "one.csv"
    table.write_text("family,depth,training_flops,final_val_loss\nvanilla,8,1e18,3.3\n")
    with pytest.raises(InputError, match="no family has two rungs"):
        laws_main(["ladder", str(table)])


def test_an_affine_law_that_is_not_identified_leaves_the_optima(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = [
        {"family": "untied_grow", "depth": depth, "growth_fraction": rho, "training_flops": 1e18 * depth,
         "tokens_per_parameter": 5 / (1 + 0.45 * rho), "final_val_loss": 3 * np.exp(0.05 * (rho - 0.25) ** 2)}
        for depth in (8, 9)
        for rho in (0.0, 0.1, 0.2, 0.3, 0.5)
    ]  # fmt: skip
    payload, text = answer(capsys, "vertex", write(tmp_path / "t.csv", rows), "--x", "growth_fraction")
    family = payload["families"]["untied_grow"]
    assert family["mean"] == pytest.approx(0.25, rel=1e-6)
    assert family["affine_growth"] is None
    assert "2 parameters" in family["not_identified"]["affine_growth"]
    assert "affine growth: not identified" in text


def test_vertex_says_units_robustness_and_what_was_held(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [
        {"family": "vanilla", "depth": 8, "learning_rate": rate, "final_val_bpb": 1 + np.log(rate / 0.04) ** 2}
        for rate in (0.01, 0.02, 0.04, 0.08)
    ]
    argv = ("vertex", write(tmp_path / "t.csv", rows), "--x", "learning_rate", "--loss", "final_val_bpb")
    payload, text = answer(capsys, *argv)
    assert payload["x"] == {
        "column": "learning_rate", "unit": "matrix learning rate per step", "space": "log", "center": None
    }  # fmt: skip
    assert payload["loss"]["unit"] == "bits per byte"
    held = np.log([0.01, 0.02, 0.04, 0.08]).mean()
    assert f"residuals: log, least squares, no Huber; held: x0 = {held:.6g}" in text
    assert "x in matrix learning rate per step, output in bits per byte" in text
    assert f"{held:.4g}" in next(line for line in text.splitlines() if line.startswith("vanilla, depth 8"))
    _, text = answer(capsys, *argv, "--center", "0.04")
    assert "x in multiple of learning_rate = 0.04" in text


def test_recurrence_says_how_optima_were_fitted_and_what_they_lack(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = [
        {"family": "loop", "depth": depth, "passes": passes, "weight_decay": decay,
         "training_flops": 1e16 * depth**2.5 * (passes + 2),
         "final_val_loss": 3.6 - 0.02 * depth + 0.1 * np.log(passes / 2) ** 2 + 0.05 * np.log(decay / 0.8) ** 2}
        for depth in (6, 8, 10, 12)
        for passes in (1, 2, 4)
        for decay in (0.4, 0.8, 1.6)
    ]  # fmt: skip
    argv = ("recurrence", write(tmp_path / "t.csv", rows), "--budgets", "0.008T", "1.3e19")
    with pytest.raises(InputError, match="budget = 8000000000.0: no ladder has measurements on both sides of it"):
        laws_main(argv)
    _, text = answer(capsys, *argv[:3], "1.3e19")
    assert "warning: 1.3e+19: 3 points for 3 parameters: no standard error" in text
    assert "x in passes K, output in nats per token" in text
    assert "x in weight decay per step and learning rate, output in nats per token" in text
    assert text.count("held: x0 = ") == 3  # cuts, cuts at tuned weight decay, weight decay
    assert "warning: d6 K = 1, d6 K = 2" in text
    assert len(answer(capsys, *argv[:3], "1.3e19", "1.3001e19")[0]["cuts"]) == 2  # alike to three digits


def test_a_loss_in_bits_per_byte_is_called_so_everywhere(evaluated: str, capsys: pytest.CaptureFixture[str]) -> None:
    table = Path(evaluated)
    table.write_text(table.read_text().replace("final_val_loss", "final_val_bpb"))
    for command in ("ladder", "residuals"):
        payload, text = answer(capsys, command, evaluated, "--loss", "final_val_bpb")
        assert "bits per byte" in text
        assert "nats per token," not in text
    assert payload["loss"]["unit"] == "bits per byte"


def runs_folder(tmp_path: Path, seeds: Sequence[int], losses: Sequence[float]) -> str:
    """A ladder of five, and one rung run again with each of the seeds."""
    results = [(6 + 2 * i, 0, 1.7 + 1.6 * (1e18 * 3**i / 1e18) ** -0.11) for i in range(5)]
    results += [(6, seed, loss) for seed, loss in zip(seeds, losses, strict=True)]
    for n, (depth, seed, loss) in enumerate(results):
        folder = tmp_path / "runs" / f"version_{n}"
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps({
            "family": "vanilla", "depth": depth, "passes": [1], "training_flops": 1e18 * 3 ** ((depth - 6) / 2),
            "final_val_loss": loss, "hyperparameters": {"weight_decay": 0.07}, "seed": seed, "wall_s": 10.0 + n,
            "tokens_per_second": 100.0 + n, "config_path": str(folder / "config.yaml"), "versions": {"torch": str(n)},
        }))  # fmt: skip
    return str(tmp_path / "runs")


def test_a_run_made_twice_is_read_once_and_another_seed_is_a_replicate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    folder = runs_folder(tmp_path, seeds=(0, 1), losses=(3.3, 3.31))
    assert laws_main(["ladder", folder, "--json"]) == 0
    payload = json.loads(capsys.readouterr().out)
    assert "left out, the same run and result as one before: vanilla d6 (version_5)" in caplog.messages
    assert "averaged: vanilla d6 (version_0) and 1 replicate" in caplog.messages
    assert payload["floor"]["observed"][0] == pytest.approx((1.7 + 1.6 + 3.31) / 2)


def test_a_notebook_gets_the_same_answer_as_the_command(
    tmp_path: Path, evaluated: str, capsys: pytest.CaptureFixture[str]
) -> None:
    payload, text = answer(capsys, "ladder", evaluated, "--held_out", "untied_grow:26", "--score", "core_metric")
    found = looplit.laws.ladder_answer(
        looplit.laws.read_results(evaluated), held_out=["untied_grow:26"], score="core_metric"
    )
    assert json.loads(json.dumps(found.to_dict())) == payload
    assert f"{found}\n" == text
    assert found.held_out[0][0] == "untied_grow"


def test_what_is_left_out_is_said_on_stderr(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "looplit", "laws", "ladder", runs_folder(tmp_path, seeds=(0,), losses=(3.3,)), "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["reference"] == "vanilla"
    said = done.stderr.splitlines()
    assert said[0] == "left out, the same run and result as one before: vanilla d6 (version_5)"
    assert [line.partition(":")[0] for line in said[1:]] == ["recorded in no run, and taken as equal"]


def test_replicates_do_not_make_up_for_rungs(tmp_path: Path) -> None:
    table = tmp_path / "two.csv"
    table.write_text(
        "family,depth,training_flops,final_val_loss\nvanilla,8,1e18,3.3\nvanilla,8,1e18,3.31\nvanilla,10,1e19,3.0\n"
    )
    with pytest.raises(InputError, match=r"points = 2: .* 3 parameters .* d8 \(line 2\) and 1 replicate"):
        laws_main(["ladder", str(table)])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["forecast", "--at", "a lot"], "'a lot' is not a positive number such as 240M"),
        (["recurrence", "--budgets", "-1"], "'-1' is not a positive number|expected at least one argument"),
        (["recurrence", "--at", "nan"], "'nan' is not a positive number"),
        (["forecast", "--target", "nan"], "'nan' is not a positive number"),
        (["forecast", "--series", "corpus"], "column = 'corpus': vanilla d6 .* it has core_loss, core_metric, depth"),
        (["ladder", "--where", "family"], "where = 'family': must be COLUMN=VALUE with one of the columns core_loss"),
        (["ladder", "--where", "corpus=web"], "where = 'corpus=web': must be COLUMN=VALUE"),
        (["ladder", "--held_out", "vanilla"], "there are vanilla:6, vanilla:8, vanilla:10"),
        (["residuals", "--reference", "loop_2"], "needs two runs evaluated on a, as vanilla, untied_grow has"),
        (["forecast", "--tasks", "d"], "tasks = 'd': vanilla was evaluated on a, b, c"),
        (["ladder", "--score", "warmth"], "score = 'warmth': no run of vanilla has it; there are centered:a"),
    ],
)
def test_messages_say_what_there_is(evaluated: str, argv: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        laws_main([argv[0], evaluated, *argv[1:]])


def test_two_pass_counts_have_no_cut_but_the_rest(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [
        {"family": "loop", "depth": depth, "passes": passes, "weight_decay": 0.8,
         "training_flops": 1e17 * depth * passes, "final_val_loss": 3.6 - 0.02 * depth - 0.1 * np.log(passes)}
        for depth in (6, 8, 10)
        for passes in (1, 4)
    ]  # fmt: skip
    payload, text = answer(capsys, "recurrence", write(tmp_path / "t.csv", rows), "--plot", str(tmp_path / "r.svg"))
    assert payload["cuts"] == []
    assert "at least three must share a range of compute" in payload["not_identified"]["cuts"]
    assert payload["marginal_gain"]["6"]["4"] == pytest.approx(-0.1 * np.log(4))
    assert "cuts: not identified (ladders = 2" in text


def test_one_pass_count_tells_nothing(tmp_path: Path) -> None:
    rows = [{"family": "loop", "depth": depth, "passes": 2, "weight_decay": 0.8, "training_flops": 1e17 * depth,
             "final_val_loss": 3.6 - 0.02 * depth} for depth in (6, 8, 10)]  # fmt: skip
    with pytest.raises(InputError, match="neither passes nor weight decay vary"):
        laws_main(["recurrence", write(tmp_path / "t.csv", rows)])


def test_sweeps_are_told_apart_by_any_column_and_leave_zero_out(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    rows = [
        {"family": "loop", "depth": 8, "passes": passes, "weight_decay": decay,
         "final_val_loss": 3 + np.log((decay or 0.01) / 0.1 / passes) ** 2}
        for passes in (1, 2)
        for decay in (0, 0.05, 0.1, 0.2, 0.4)
    ]  # fmt: skip
    argv = ["vertex", write(tmp_path / "t.csv", rows), "--x", "weight_decay", "--group", "depth", "passes", "--json"]
    assert laws_main(argv) == 0
    sweeps = json.loads(capsys.readouterr().out)["families"]["loop"]["sweeps"]
    assert [sweep["optimum"] for sweep in sweeps.values()] == pytest.approx([0.1, 0.2], rel=0.1)
    assert list(sweeps) == ["depth 8 passes 1", "depth 8 passes 2"]
    assert "left out, weight_decay is 0, and read in logs: loop d8 (line 2), loop d8 (line 7)" in caplog.messages


def test_forecast_gives_intervals_of_the_compute_for_a_score(
    evaluated: str, capsys: pytest.CaptureFixture[str]
) -> None:
    payload, text = answer(capsys, "forecast", evaluated, "--bootstrap", "5", "--target", "0.2", "0.99")
    found = payload["needed"]["target 0.2"]
    low, high = found["interval"]["vanilla"]
    assert low <= found["compute"]["vanilla"] * 1.01  # noise-free: the interval is a point, but for the grid
    assert high >= found["compute"]["vanilla"] * 0.99
    assert payload["needed"]["target 0.99"]["interval"]["vanilla"] == [None, None]
    assert f"[{low:.3g}, {high:.3g}]" in text
    ratio = next(line for line in text.splitlines() if line.startswith("GPT-3 175B"))
    assert ratio.endswith("*")  # of two computes beyond the ladders


def test_only_what_a_run_lacks_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = tmp_path / "t.csv"
    table.write_text(
        "arm,depth,compute_flops,val_loss\n" + "".join(f"vanilla,{d},{d}e18,{5 - d / 8}\n" for d in (6, 8, 10, 12))
        + "vanilla,14,2e19,\n"
    )  # fmt: skip
    assert laws_main(["ladder", str(table), "--where", "arm=vanilla", "--loss", "val_loss"]) == 0
    assert "left out, without final_val_loss: vanilla d14 (line 6)" in caplog.messages
    (tmp_path / "result.json").write_text('{"family": "vanilla", "training_flops": "1e18", "final_val_loss": 3.0}')
    with pytest.raises(InputError, match=r"training_flops in vanilla .* = '1e18': must be a number"):
        laws_main(["ladder", str(tmp_path / "result.json")])
