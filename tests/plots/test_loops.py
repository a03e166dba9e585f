"""The figures of the truncation study."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from looplit.laws.loops import PUBLISHED, STUDY_SETTINGS, Setting, worth
from looplit.laws.loops.runs import Quartiles, compare, law_ladders

pytest.importorskip("matplotlib")

from looplit.plots.loops import comparison_figure, frontier_figure, pairs_figure, runs_figure, worth_figure
from looplit.plots.style import save

RUNWISE = {Setting(4, 4): Quartiles(2.4, 2.5, 2.6, 9), Setting(8, 2): Quartiles(2.0, 2.2, 2.3, 9)}


def test_three_panels_of_what_a_setting_is_worth(tmp_path: Path) -> None:
    figure = worth_figure(runwise=RUNWISE)
    full, fractions, sizes = figure.axes
    curve, ceiling, *marks = full.lines
    assert curve.get_ydata() == pytest.approx(PUBLISHED.g(curve.get_xdata(), curve.get_xdata()))
    assert ceiling.get_ydata()[0] == pytest.approx(PUBLISHED.ceiling)
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in marks if line.get_marker() == "o"] == [(4, 2.5)]
    assert {line.get_xdata()[-1] for line in fractions.lines if line.get_label().startswith("T =")} == {1.0}
    eighth = next(line for line in fractions.lines if line.get_marker() == "o" and line.get_xdata()[0] == 2 / 8)
    assert eighth.get_ydata()[0] == 2.2
    assert len(sizes.patches) == len(STUDY_SETTINGS)
    ordered = sorted(STUDY_SETTINGS, key=lambda setting: (setting.trained_passes, setting.passes))
    heights = [float(PUBLISHED.effective_ratio(*setting)) for setting in ordered]
    assert [bar.get_height() for bar in sizes.patches] == pytest.approx(heights)
    medians = [float(line.get_ydata()[0]) for line in sizes.lines if line.get_marker() == "o"]
    assert medians == pytest.approx([0.493 + 0.507 * 2.5, 0.493 + 0.507 * 2.2])
    save(figure, tmp_path / "worth.svg")


def test_frontier_fills_what_is_fully_trained() -> None:
    (axes,) = frontier_figure().axes
    marks = [line for line in axes.lines if line.get_marker() != "None"]
    assert len(marks) == len(STUDY_SETTINGS)
    for setting, mark in zip(STUDY_SETTINGS, marks, strict=True):
        found = worth(*setting)
        place = (found.compute_per_effective, 100 * found.parameters_saved)
        assert (mark.get_xdata()[0], mark.get_ydata()[0]) == pytest.approx(place)
        assert (mark.get_markerfacecolor() == "white") == (setting.passes > setting.trained_passes)
    dashed = next(line for line in axes.lines if line.get_linestyle() == "--")
    assert dashed.get_ydata()[0] == pytest.approx(31.6, abs=0.05)  # it starts at (2, 2)


def test_comparisons_have_a_panel_per_size_with_a_strip() -> None:
    budgets = np.geomspace(1e18, 1e21, 12)
    settings = [Setting(1, 1), Setting(2, 2), Setting(4, 2)]
    comparisons = {size: compare(law_ladders(size, budgets, settings)) for size in (6e7, 1.2e8, 2.4e8, 4.8e8)}
    figure = comparison_figure(comparisons)
    assert [axes.get_title() for axes in figure.axes] == [f"{size}M parameters" for size in (60, 120, 240, 480)]
    third, found = figure.axes[2], comparisons[2.4e8]
    drawn = {line.get_label(): line for line in third.lines}
    assert list(drawn["(2, 2)"].get_ydata()) == list(found.differences[2, 2][1])
    assert (drawn["(2, 2)"].get_linestyle(), drawn["(4, 2)"].get_linestyle()) == ("-", "--")
    named = {text.get_text() for text in third.texts}
    assert named == {str(setting) for setting, *_ in found.stretches()}
    assert len(runs_figure(PUBLISHED, 0.507, RUNWISE, comparisons).axes) == 7
    assert len(runs_figure(PUBLISHED, 0.507, {}, {}).axes) == 3


def test_pairs_show_every_seed_and_their_differences() -> None:
    figure = pairs_figure({Setting(8, 2): [2.5, 2.7, 2.6], Setting(4, 4): [2.4, 2.7, 2.5]}, "nats per byte")
    losses, differences = figure.axes
    assert [label.get_text() for label in losses.get_xticklabels()] == ["(8, 2)", "(4, 4)"]
    assert losses.get_ylabel() == "validation loss, nats per byte"
    joined = [tuple(line.get_ydata()) for line in losses.lines if len(line.get_xdata()) == 2]
    assert joined[:3] == [(2.5, 2.4), (2.7, 2.7), (2.6, 2.5)]
    (marks,) = (line for line in differences.lines if line.get_marker() == "o")
    assert marks.get_ydata() == pytest.approx([0.1, 0.0, 0.1])
    (band,) = differences.patches
    spread = np.std([0.1, 0.0, 0.1], ddof=1)
    assert (band.get_y(), band.get_height()) == pytest.approx((0.2 / 3 - spread, 2 * spread))
