"""`loops` from the command line, as a table, as JSON and as a figure."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from looplit.commands.arguments import quantity
from looplit.commands.loops.command import loops_main
from looplit.errors import InputError
from looplit.laws.loops import NREC, PUBLISHED, STUDY_SETTINGS
from looplit.laws.loops.runs import LoopRun

KEYS = {"T", "B", "g", "effective_ratio", "units", "compute_per_token", "compute_per_effective"}


def answer(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[dict[str, Any], str]:
    """JSON and table of one command."""
    assert loops_main([*argv, "--json"]) == 0
    payload = json.loads(capsys.readouterr().out)
    assert loops_main(argv) == 0
    return payload, capsys.readouterr().out


@pytest.fixture
def table(make_runs: Callable[..., list[LoopRun]], tmp_path: Path) -> str:
    """The study's grid with 0.05 % noise as a CSV table."""
    return write_table(make_runs(5e-4), tmp_path)


def write_table(runs: list[LoopRun], folder: Path) -> str:
    path = folder / "runs.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["nonembedding_parameters", "recurrent_parameters", "tokens", "passes", "trained_passes",
                         "final_val_loss"])  # fmt: skip
        for run in runs:
            writer.writerow([run.size, run.nrec * run.size, run.tokens, *run.setting, run.loss])
    return str(path)


def test_worth(capsys: pytest.CaptureFixture[str]) -> None:
    payload, text = answer(capsys, "--T", "8", "--B", "2")
    assert set(payload) == KEYS | {"best_B", "full_bptt_alternative", "method"}
    assert set(payload["full_bptt_alternative"]) == KEYS
    assert (payload["T"], payload["B"], payload["units"], payload["best_B"]) == (8, 2, 12, 2)
    full = payload["full_bptt_alternative"]
    assert (full["T"], full["B"], full["units"]) == (4, 4, 12)
    assert full["compute_per_token"] == payload["compute_per_token"] == pytest.approx(2.521)
    assert full["effective_ratio"] == pytest.approx(1.762, abs=5e-4)
    assert payload["g"] == pytest.approx(float(PUBLISHED.g(8, 2)))
    assert "B = 2 is best at equal loss" in text
    assert "(4, 4) costs 12 units" in text
    other, text = answer(capsys, "--T", "8", "--B", "8", "--nrec", "0.6")
    assert other["compute_per_token"] == pytest.approx(0.4 + 8 * 0.6)
    assert "N_rec/N = 0.6" in text
    assert "every pass is trained already" in text


@pytest.mark.parametrize(
    "argv", [("--T", "8", "--B", "2"), ("optimum", "--n", "240M"), ("optimum", "--units", "12"), ("frontier",)]
)
def test_every_answer_says_its_law_units_and_what_was_held(
    argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    payload, text = answer(capsys, *argv, "--nrec", "0.6")
    method = payload["method"]
    assert method["held"]["nrec"] == 0.6
    assert method["held"]["kappa"] == PUBLISHED.kappa
    assert method["units"]["loss"] == "nats per token"
    assert "6·N_comp·D" in method["units"]["compute"]
    assert "by the published law, L = E + [A·(N_eff/N0)^-alpha" in text
    assert "L in nats per token" in text
    assert "kappa = 0.3251" in text
    assert "N_rec/N = 0.6" in text.splitlines()[-1]


def test_letters_of_the_study_stand_for_the_words(capsys: pytest.CaptureFixture[str]) -> None:
    for letters, words in (
        (("--T", "8", "--B", "2", "--nrec", "0.6"),
         ("worth", "--passes", "8", "--trained-passes", "2", "--recurrent_share", "0.6")),
        (("optimum", "--n", "240M", "--compute", "1e20", "--T", "8"),
         ("optimum", "--parameters", "240M", "--flops", "1e20", "--passes", "8")),
    ):  # fmt: skip
        assert answer(capsys, *letters) == answer(capsys, *words)


def test_one_pass_is_no_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "--T", "1", "--B", "1")[1].startswith("(1, 1): 1 pass, the last 1 trained")


def test_worth_is_answered_without_scipy_or_torch() -> None:
    code = ("import sys; from looplit.commands.loops.command import loops_main; loops_main(['--T', '8', '--B', '2']); "
            "sys.exit(bool({'torch', 'scipy', 'matplotlib'} & set(sys.modules)))")  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_optimum_at_size(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    figure = tmp_path / "size.svg"
    payload, text = answer(capsys, "optimum", "--n", "240M", "--compute", "1e20", "--plot", str(figure))
    assert payload["given"] == {"n": 2.4e8, "compute": 1e20, "nrec": NREC}
    assert (payload["best"]["T"], payload["best"]["B"]) == (3, 3)
    assert 2 < payload["continuous"]["T"] < 3
    assert payload["exponents"]["asymptotic"] == pytest.approx({"passes": 0.238, "tokens": 0.762}, abs=5e-4)
    assert payload["exponents"]["local"]["passes"] == pytest.approx(0.22, abs=5e-3)
    assert [entry["passes"] for entry in payload["switch_points"]] == [2, 4]
    assert "from 7.69e+18 FLOPs 2 passes are better than 1" in text
    assert figure.read_text().startswith("<?xml")
    bare, _ = answer(capsys, "optimum", "--n", "240M")
    assert bare["switch_points"] == payload["switch_points"]
    assert "best" not in bare
    early, _ = answer(capsys, "optimum", "--n", "240M", "--compute", "1e18")
    assert early["exponents"]["local"] is None
    assert early["best"]["T"] == 1
    prescribed, _ = answer(capsys, "optimum", "--n", "240M", "--compute", "1e20", "--T", "8")
    assert prescribed["best"]["T"] == 8
    assert prescribed["best"]["loss"] > payload["best"]["loss"]


def test_optimum_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    free, text = answer(capsys, "optimum", "--compute", "2.1e19")
    assert (free["best"]["T"], free["best_looped"]["T"], free["best_looped"]["B"]) == (1, 2, 2)
    assert "1.031" in text
    prescribed, _ = answer(capsys, "optimum", "--T", "8")
    assert prescribed["best"]["B"] == 2
    loop, text = answer(capsys, "optimum", "--units", "12")
    assert (loop["best"]["T"], loop["best"]["B"]) == (4, 4)
    assert loop["continuous"] == {"T": 4, "B": 4}
    assert "train every pass" in text


def test_frontier(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    payload, text = answer(capsys, "frontier", "--plot", str(tmp_path / "frontier.svg"))
    assert len(payload["settings"]) == len(STUDY_SETTINGS)
    two = next(entry for entry in payload["settings"] if (entry["T"], entry["B"]) == (2, 2))
    assert two["parameters_saved"] == pytest.approx(0.316, abs=5e-4)
    assert "31.6%" in text
    assert (tmp_path / "frontier.svg").exists()


def test_fit(table: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    figure, saved = tmp_path / "fit.svg", tmp_path / "fit.json"
    payload, text = answer(capsys, "fit", table, "--bootstrap", "5", "--budget", "2e19", "--save", str(saved),
                           "--plot", str(figure))  # fmt: skip
    assert payload["full_bptt_favoured"]
    assert {passes: entry["best_B"] for passes, entry in payload["fixed_passes"].items()} == {"4": 2, "8": 2, "16": 2}
    for entry in payload["runwise_g"]:
        assert entry["low"] < entry["law"] < entry["high"]
    assert list(payload["equal_compute"]) == ["5.8e+07", "1.16e+08", "2.31e+08", "4.64e+08", "9.19e+08"]
    strip = payload["equal_compute"]["2.31e+08"]["best"]
    assert [entry["T"] for entry in strip] == [1, 2]
    sizes = {(entry["T"], entry["B"]): entry["n"] for entry in payload["optimal_sizes"]}
    assert sizes[2, 2] < sizes[1, 1]
    assert "q - 2p" in text
    assert all(entry["fit"]["fixed"]["x0"] > 0 for entry in payload["optimal_sizes"] if entry["bracketed"])
    assert "x in non-embedding parameters, output in nats per token" in text
    assert "monotone cubic" in payload["interpolation"]
    assert "6·N_comp·D" in payload["compute"]["unit"]
    assert figure.exists()
    again, card = answer(capsys, "--T", "8", "--B", "2", "--law", str(saved))
    assert again["g"] == pytest.approx(float(PUBLISHED.g(8, 2)), rel=0.02)
    assert "by the given law" in card
    assert loops_main(["fit", table, "--hold", "p=0.2368", "--nrec", "0.507", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fit"]["fixed"]["p"] == 0.2368


def test_no_verdict_from_runs_that_tell_none(
    make_runs: Callable[..., list[LoopRun]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Where every pass is trained, p and q trade for one another; a law saved from such runs goes on saying so."""
    saved = tmp_path / "fit.json"
    full = write_table(make_runs(5e-4, settings=tuple(each for each in STUDY_SETTINGS if each[0] == each[1])), tmp_path)
    payload, text = answer(capsys, "fit", full, "--save", str(saved))
    assert payload["full_bptt_favoured"] is None
    assert "q - 2p: not identified" in text
    for argv, key in ((["--T", "8", "--B", "2"], "best_B"), (["optimum", "--T", "8"], "best"),
                      (["optimum", "--units", "12"], "q_minus_2p")):  # fmt: skip
        payload, text = answer(capsys, *argv, "--law", str(saved))
        assert payload[key] is None
        assert "only p + q is told" in payload["method"]["warnings"][0]
        assert "only p + q is told" in text
        assert "not identified" in text.partition("warning")[0]


def test_models_of_one_width_meet_at_equal_compute(
    make_runs: Callable[..., list[LoopRun]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The linear boundary adds 2 % to the parameters of a looped model; a missing comparison says what it lacks."""
    runs = [replace(run, size=run.size * (1.021 if run.setting[0] > 1 else 1)) for run in make_runs(5e-4)]
    payload, _ = answer(capsys, "fit", write_table(runs, tmp_path))
    assert list(payload["equal_compute"]) == ["5.8e+07", "1.16e+08", "2.31e+08", "4.64e+08", "9.19e+08"]
    assert [entry["T"] for entry in payload["equal_compute"]["2.31e+08"]["best"]] == [1, 2]
    assert payload["no_equal_compute_because"] is None
    looped = [run for run in runs if run.setting[0] > 1]
    far = [replace(run, size=1.2 * run.size) for run in looped] + runs
    for chosen, reason in ((looped, "no run without loops"), ([run for run in far if run not in looped], "within 8%")):
        payload, text = answer(capsys, "fit", write_table(chosen, tmp_path))
        assert reason in payload["no_equal_compute_because"]
        assert reason in text


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--T", "2", "--B", "3"], "trained_passes = 3: must be from 1 to passes = 2"),
        (["--T", "2", "--B", "0"], "trained_passes = 0: must be from 1 to passes = 2"),
        (["--T", "0", "--B", "0"], "passes = 0: must be at least 1"),
        (["--T", "2"], "required: --trained_passes"),
        (["--T", "2", "--B", "2", "--nrec", "2"], "nrec = 2.0"),
        (["--T", "2", "--B", "2", "--law", "none.json"], "no such file"),
        (["optimum"], "say what is given"),
        (["optimum", "--units", "12", "--T", "4"], "excludes"),
        (["optimum", "--T", "8", "--plot", "a.svg"], "needs --parameters"),
        (["optimum", "--T", "0"], "passes = 0"),
        (["optimum", "--n", "many"], "is not a positive number"),
        (["frontier", "--plot", "a.gif"], "must end in"),
        (["fit", "none"], "no such file or folder"),
        (["fit", "none", "--bootstrap", "-3"], "bootstrap"),
        (["optimum", "--T", "10000000000000"], "passes = 10000000000000: must be at most 10000"),
        (["--T", "2000000", "--B", "2"], "passes = 2000000: must be at most 10000"),
        (["bogus"], "loops = 'bogus': must be one of worth, optimum, frontier, fit"),
    ],
)
def test_wrong_input_is_one_line(argv: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        loops_main(argv)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("hold", ["alpha=1", "p=much"])
def test_wrong_coefficients_to_hold(table: str, hold: str) -> None:
    with pytest.raises(InputError, match="hold"):
        loops_main(["fit", table, "--hold", hold])


@pytest.mark.parametrize("text", ["-1", "0", "inf", "nan", "", "M"])
def test_quantities_are_positive_and_finite(text: str) -> None:
    with pytest.raises(Exception, match="positive number"):
        quantity(text)
