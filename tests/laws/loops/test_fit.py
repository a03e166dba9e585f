"""The joint fit: recovery, coverage of its intervals, what the runs cannot tell, laws of one loop count."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from looplit.errors import InputError
from looplit.laws.fit import Fit
from looplit.laws.loops import PUBLISHED, STUDY_SETTINGS, best_trained_passes
from looplit.laws.loops.fit import fit_at_passes, fit_loops, law_of, load_law, loop_rows
from looplit.laws.loops.runs import LoopRun, rows_of

TRUTH = {
    "E": PUBLISHED.E, "log_A": np.log(PUBLISHED.A), "alpha": PUBLISHED.alpha, "log_H": np.log(PUBLISHED.H),
    "beta": PUBLISHED.beta, "kappa": PUBLISHED.kappa, "c": PUBLISHED.c, "p": PUBLISHED.p, "q": PUBLISHED.q,
}  # fmt: skip
MakeRuns = Callable[..., list[LoopRun]]


def test_exact_runs_give_the_law_back_whatever_their_order(make_runs: MakeRuns) -> None:
    runs = make_runs(count=230)
    fit = fit_loops(rows_of(runs))
    # Noise-free data leave the optimizer's tolerance, widened by a condition number near 1e3.
    assert {entry.name: entry.value for entry in fit.parameters} == pytest.approx(TRUTH, rel=1e-8)
    assert not fit.warnings
    assert fit["R2"] == pytest.approx(1)
    assert fit["q - 2p"] == pytest.approx(PUBLISHED.criterion, rel=1e-8)
    law = law_of(fit)
    assert law.loss(3e8, 5e9, 8, 2) == pytest.approx(PUBLISHED.loss(3e8, 5e9, 8, 2), rel=1e-10)
    order = np.random.default_rng(1).permutation(230)
    assert fit_loops(rows_of([runs[i] for i in order])).parameters == fit.parameters


def test_noisy_runs_predict_well_and_their_intervals_hold_the_truth(make_runs: MakeRuns) -> None:
    held, misses = dict.fromkeys(TRUTH, 0), []
    columns = rows_of(make_runs()).columns
    sizes = columns["N_once"] + columns["N_rec"]
    truth = PUBLISHED.loss(sizes, columns["D"], columns["T"], columns["B"])
    for seed in range(10):
        fit = fit_loops(rows_of(make_runs(1e-3, seed, count=230)), bootstrap=40, seed=seed)
        # Over the whole grid, the runs that were not fitted included.
        assert np.abs(fit.predict(**columns) / truth - 1).max() < 2e-3
        assert fit["R2"] > 0.999
        for name, value in TRUTH.items():
            low, high = fit.parameter(name).interval
            held[name] += low <= value <= high
        criterion = fit.parameter("q - 2p")
        assert criterion.interval[0] > 0
        misses.append((criterion.value - PUBLISHED.criterion) / criterion.standard_error)
    # 9 of 10 are expected; 6 is three standard deviations below.
    assert min(held.values()) >= 6
    # One if the standard error is right; ten draws tell it to 22 %.
    assert np.sqrt(np.mean(np.square(misses))) == pytest.approx(1, abs=0.5)


@pytest.mark.parametrize("loops", [(2.5, 0.6, 0.2), (0.3, 0.1, 2.0), (4.0, 0.02, 0.1), (1.5, 1.5, 0.05)])
def test_laws_far_from_the_published_one_are_recovered(make_runs: MakeRuns, loops: tuple[float, float, float]) -> None:
    law = replace(PUBLISHED, **dict(zip("cpq", loops, strict=True)))
    runs = [replace(run, loss=float(law.loss(run.size, run.tokens, *run.setting))) for run in make_runs(count=230)]
    fit = fit_loops(rows_of(runs))
    assert [fit[name] for name in "cpq"] == pytest.approx(loops, rel=1e-6)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (lambda t, b: t == b, "log B = 1·log T, so only p \\+ q is told"),
        (lambda t, b: b == 1, "every looped run has B = 1, so nothing tells q"),
        (lambda t, b: t == 1, "0 looped settings cannot tell c, p, q apart"),
        (lambda t, b: t <= 2, "2 looped settings cannot tell c, p, q apart"),
        (lambda t, b: t == 4, "3 looped settings without a run at \\(1, 1\\) cannot tell c, p, q apart"),
    ],
)
def test_what_the_settings_cannot_tell_is_flagged(make_runs: MakeRuns, chosen: object, message: str) -> None:
    settings = tuple(setting for setting in STUDY_SETTINGS if chosen(*setting))
    rows = rows_of(make_runs(1e-3, settings=settings))
    fit = fit_loops(rows)
    assert any(re.search(message, warning) for warning in fit.warnings)
    assert [entry.name for entry in fit.derived] == ["R2"]  # no q - 2p
    assert re.search(message, " ".join(law_of(fit).untold))
    prediction = fit.predict(**rows.columns)  # what was run is still predicted
    assert np.abs(prediction / rows.observed - 1).max() < 5e-3


def test_what_is_held_lets_full_runs_tell_the_rest(make_runs: MakeRuns) -> None:
    rows = rows_of(make_runs(settings=tuple(setting for setting in STUDY_SETTINGS if setting[0] == setting[1])))
    fit = fit_loops(rows, hold={"p": PUBLISHED.p})
    assert fit["q"] == pytest.approx(PUBLISHED.q, rel=1e-8)
    assert fit.fixed["p"] == PUBLISHED.p
    assert not fit.warnings
    assert fit.parameter("q - 2p").value == pytest.approx(PUBLISHED.criterion, rel=1e-7)
    assert not law_of(fit).untold
    with pytest.raises(InputError, match="hold"):
        fit_loops(rows, hold={"alpha": 0.3})
    with pytest.raises(InputError, match="hold = 'p=nan': must be from 0 to 10"):
        fit_loops(rows, hold={"p": float("nan")})


def test_too_few_runs_are_named_as_runs(make_runs: MakeRuns) -> None:
    with pytest.raises(InputError, match="runs = 8: must be at least 9"):
        fit_loops(rows_of(make_runs(count=8)))
    few = make_runs(count=5)
    with pytest.raises(InputError, match="runs = 5"):  # replicates do not tell how the law bends
        fit_loops(rows_of([*few, *(replace(run, loss=run.loss + 0.01) for run in few)]))


@pytest.mark.parametrize("passes", [4, 8, 16])
def test_laws_of_one_loop_count_agree(make_runs: MakeRuns, passes: int) -> None:
    exact = fit_at_passes(rows_of(make_runs()), passes)
    trained = [b for t, b in STUDY_SETTINGS if t == passes]
    assert law_of(exact).g(passes, trained) == pytest.approx(PUBLISHED.g(passes, trained), rel=1e-8)
    noisy = fit_at_passes(rows_of(make_runs(1e-3)), passes)
    assert best_trained_passes(passes, law=law_of(noisy)) == best_trained_passes(passes) == 2
    assert set(noisy.columns["T"]) == {1.0, float(passes)}


def test_a_loop_count_that_was_not_run_is_refused(make_runs: MakeRuns) -> None:
    with pytest.raises(InputError, match="passes = 3"):
        fit_at_passes(rows_of(make_runs()), 3)


def test_saved_fits_give_their_law_back(make_runs: MakeRuns, tmp_path: Path) -> None:
    fit = fit_loops(rows_of(make_runs(1e-3, count=230)), bootstrap=3)
    fit.save(tmp_path / "fit.json")
    assert Fit.load(tmp_path / "fit.json") == fit
    assert load_law(tmp_path / "fit.json") == law_of(fit)
    (tmp_path / "wrong.json").write_text('{"law": "power"}')
    for path, message in (("none.json", "no such file"), ("wrong.json", "holds no fit")):
        with pytest.raises(InputError, match=message):
            load_law(tmp_path / path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"trained_passes": [1, 1, 3]}, "trained_passes = 'c'"),
        ({"trained_passes": [1, 0, 2]}, "B = 0.0 in b: must be above 0"),
        ({"passes": [0.5, 1, 2]}, "trained_passes = 'a'"),
        ({"loss": [2.0, np.nan, 2.0]}, "loss = nan in b"),
    ],
)
def test_wrong_rows_are_refused(changed: dict, message: str) -> None:
    plain = {"once": [1e8] * 3, "rec": [1e8] * 3, "tokens": [1e9, 2e9, 3e9], "passes": [1, 2, 2],
             "trained_passes": [1, 1, 2], "loss": [3.0, 2.9, 2.8]}  # fmt: skip
    with pytest.raises(InputError, match=message):
        loop_rows(**plain | changed, labels=["a", "b", "c"])


def test_tokens_in_proportion_to_size_are_refused(make_runs: MakeRuns) -> None:
    runs = [run for run in make_runs() if run.tokens == 2.0**30]
    with pytest.raises(InputError, match="not identified"):
        fit_loops(rows_of(runs))
