"""What runs say by themselves, on runs made from the law."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from looplit.errors import InputError
from looplit.laws.loops import NO_LOOPING, PUBLISHED, STUDY_SETTINGS, Setting, best_size, switch_points
from looplit.laws.loops.runs import (
    compare,
    ladders_at,
    law_ladders,
    loop_runs,
    optimal_sizes,
    read_ladder,
    runwise_g,
    sizes_without_loops,
)
from looplit.laws.results import Result

MakeRuns = Callable[..., list]
FULL = tuple(Setting(t, t) for t in (1, 2, 4))


def result(**values: float) -> Result:
    plain = {"nonembedding_parameters": 2e8, "recurrent_parameters": 1e8, "tokens": 1e9, "passes": 4,
             "final_val_loss": 2.5, "training_flops": 7e18}  # fmt: skip
    return Result("run", {}, {name: value for name, value in (plain | values).items() if value is not None})


def test_runs_are_read_from_results() -> None:
    full, truncated = loop_runs([result(), result(trained_passes=2)])
    assert (full.setting, truncated.setting) == ((4, 4), (4, 2))
    assert truncated.nrec == 0.5
    assert truncated.compute == pytest.approx(6 * 1e9 * (1e8 + 8 / 3 * 1e8))
    assert loop_runs([result()], own_flops=True)[0].compute == 7e18
    assert loop_runs([result(recurrent_parameters=None)], nrec=0.507)[0].nrec == 0.507
    assert len(loop_runs([result(), result(tokens=None)])) == 1
    with pytest.raises(InputError, match="recurrent_parameters"):
        loop_runs([result(recurrent_parameters=None)])
    with pytest.raises(InputError, match=r"run: trained_passes = 5\.0|run: trained_passes = 5"):
        loop_runs([result(trained_passes=5)])


def test_runwise_g_is_the_laws_on_its_own_runs(make_runs: MakeRuns) -> None:
    found = runwise_g(make_runs())
    assert set(found) == set(STUDY_SETTINGS) - {NO_LOOPING}
    for setting, each in found.items():
        # Inverting the loss amplifies rounding by a factor near 1e3 for the largest sizes.
        assert each[:3] == pytest.approx([float(PUBLISHED.g(*setting))] * 3, rel=1e-9)
        assert each.runs == 25


def test_runwise_g_does_not_read_the_looping_coefficients(make_runs: MakeRuns) -> None:
    runs = make_runs(1e-3)
    assert runwise_g(runs, replace(PUBLISHED, c=0.1, p=3.0, q=0.0)) == runwise_g(runs)


def test_runwise_quartiles_and_runs_that_no_size_explains(make_runs: MakeRuns) -> None:
    runs = make_runs(1e-3, settings=(Setting(2, 2),))
    found = runwise_g(runs)[2, 2]
    assert found.low < PUBLISHED.g(2, 2) < found.high
    impossible = replace(runs[0], loss=float(PUBLISHED.loss_at(1e30, runs[0].tokens)) - 0.1)
    assert runwise_g([impossible, *runs[1:]])[2, 2].runs == len(runs) - 1
    assert runwise_g([impossible]) == {}
    assert found.shifted(0.5, 0.5).median == pytest.approx(0.5 * found.median + 0.5)


def test_strip_switches_where_the_law_does() -> None:
    size, budgets = 2.4e8, np.geomspace(1e18, 1e21, 400)
    found = compare(law_ladders(size, budgets, FULL), points=2000)
    (one, first, one_end), (two, _, two_end), (four, _, last) = found.stretches()
    assert (one, two, four) == FULL
    assert (first, last) == pytest.approx((1e18, 1e21))
    # The strip has 2000 points over three decades, 0.35 % apart.
    assert (one_end, two_end) == pytest.approx(switch_points(size), rel=4e-3)
    compute, gain = found.differences[Setting(2, 2)]
    assert (gain[compute > 1.01 * one_end] < 0).all()
    assert (gain[compute < 0.99 * one_end] > 0).all()


def test_measured_grids_come_near_the_law(make_runs: MakeRuns) -> None:
    """Five token counts, a factor of two apart, read by the cubic."""
    size = 231e6
    found = compare(ladders_at(make_runs(), size))
    for setting in ((2, 2), (4, 4), (8, 2)):
        compute, gain = found.differences[setting]
        plain = law_ladders(size, compute, [NO_LOOPING])[NO_LOOPING][1]
        looped = law_ladders(size, compute, [Setting(*setting)])[setting][1]
        # Three-point slopes at the ends leave a few 1e-4 nats; the differences themselves are a hundred times larger.
        assert gain == pytest.approx(looped - plain, abs=5e-4)


def test_a_linear_boundary_makes_no_other_size(make_runs: MakeRuns) -> None:
    """A model without loops lacks it: 2 % fewer parameters at the study's shapes."""
    exact = make_runs(settings=FULL)
    runs = [replace(run, size=0.98 * run.size) if run.setting == NO_LOOPING else run for run in exact]
    sizes = sizes_without_loops(runs)
    assert sizes == pytest.approx([0.98 * size for size in sizes_without_loops(exact)])
    assert list(ladders_at(runs, sizes[2])) == list(FULL)
    assert list(ladders_at(runs, sizes[2], within=0)) == [NO_LOOPING]


def test_ladders_are_read_between_their_points_only() -> None:
    curve = (np.array([1e18, 1e19, 1e20]), np.array([3.0, 2.6, 2.4]))
    assert np.isnan(read_ladder(curve, [1.0, 0.99e18, 1.01e20, 1e300])).all()
    assert read_ladder(curve, curve[0]) == pytest.approx(curve[1])
    between = read_ladder(curve, np.geomspace(1e18, 1e20, 50))
    assert (np.diff(between) < 0).all()


def test_ladders_average_replicates_and_need_two_budgets(make_runs: MakeRuns) -> None:
    runs = make_runs(settings=FULL[:2])
    size = runs[0].size
    single = [run for run in runs if run.setting == NO_LOOPING or run.tokens == 2.0**30]
    assert list(ladders_at(single, size)) == [NO_LOOPING]
    doubled = ladders_at([*runs, *(replace(run, loss=run.loss + 0.2) for run in runs)], size)
    assert doubled[2, 2][1] == pytest.approx(ladders_at(runs, size)[2, 2][1] + 0.1)
    with pytest.raises(InputError, match="no looping"):
        compare({Setting(2, 2): doubled[2, 2]})


def test_compute_optimal_sizes_are_the_laws(make_runs: MakeRuns) -> None:
    found = optimal_sizes(make_runs(settings=FULL), 1.2e19)
    for setting, each in found.items():
        exact = best_size(1.2e19, *setting)
        assert each.bracketed
        # A parabola through sizes a factor of two apart misses the law's skewed valley by a few percent.
        assert each.size == pytest.approx(exact.size, rel=0.06)
        assert each.loss == pytest.approx(exact.loss, abs=2e-3)
    assert found[2, 2].size < found[1, 1].size


def test_an_optimum_outside_the_sizes_is_said_to_be(make_runs: MakeRuns) -> None:
    found = optimal_sizes(make_runs(settings=FULL[:1]), 6.5e19)[NO_LOOPING]
    assert not found.bracketed
    assert found.size == 919e6
    with pytest.raises(InputError, match="budget"):
        optimal_sizes(make_runs(settings=FULL[:1]), 1e25)
