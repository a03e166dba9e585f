"""Figures: what is drawn, in whose colour, and how it is saved."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from looplit.errors import InputError
from looplit.laws.curves import fit_parabola
from looplit.laws.matched import (
    Cell,
    ladders_by_passes,
    marginal_gains,
    matched_cut,
    strategies,
    weight_decay_optima,
)
from looplit.laws.multiplier import multipliers
from looplit.laws.power import fit_ladders, power_rows
from looplit.laws.results import Result
from looplit.laws.stages import sweep_rows
from looplit.recipes.families import FAMILIES

matplotlib = pytest.importorskip("matplotlib")

from looplit.plots.depth import effective_depth_figure  # noqa: E402
from looplit.plots.ladders import ladder_figure  # noqa: E402
from looplit.plots.recurrence import recurrence_figure  # noqa: E402
from looplit.plots.stages import sweeps_figure  # noqa: E402
from looplit.plots.style import COLUMN_IN, FAMILY_STYLES, Picture, family_style, panels, save  # noqa: E402


def simulated(color: str, matrix: np.ndarray) -> np.ndarray:
    """A colour as seen with a colour-vision deficiency: a linear-RGB matrix."""
    rgb = np.array(matplotlib.colors.to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(matrix @ linear, 0, 1)
    return np.where(seen <= 0.0031308, 12.92 * seen, 1.055 * seen ** (1 / 2.4) - 0.055)


# Severity 1.0 of Machado, Oliveira and Fernandes (2009).
PROTANOPIA = np.array(
    [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
)
DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
)


def test_every_family_has_its_own_colour_and_marker() -> None:
    assert set(FAMILY_STYLES) == set(FAMILIES)
    assert len({color for color, _ in FAMILY_STYLES.values()}) == len(FAMILIES)
    assert len({marker for _, marker in FAMILY_STYLES.values()}) == len(FAMILIES)
    assert family_style("untied_grow", 0) == family_style("untied_grow", 5)


@pytest.mark.parametrize("matrix", [np.eye(3), PROTANOPIA, DEUTERANOPIA], ids=["normal", "protan", "deutan"])
def test_colours_stay_apart_without_red_green_vision(matrix: np.ndarray) -> None:
    seen = {name: simulated(color, matrix) for name, (color, _) in FAMILY_STYLES.items()}
    nearest = min(float(np.linalg.norm(seen[a] - seen[b])) for a, b in combinations(seen, 2))
    # In sRGB of unit range; 0.1 is several just-noticeable differences, and markers differ besides.
    assert nearest > 0.1


def test_ladder_figure_shows_every_run_in_its_colour(tmp_path: Path) -> None:
    compute = np.geomspace(1e18, 1e20, 6)
    ladders = {
        name: (compute, 1.7 + 1.6 * (gain * compute / 1e18) ** -0.11)
        for name, gain in (("vanilla", 1.0), ("untied_grow", 2.0), ("mine", 1.5))
    }
    fits = fit_ladders({name: power_rows(*points) for name, points in ladders.items()})
    saved = {name: multipliers(ladders["vanilla"], points) for name, points in ladders.items()}
    figure = ladder_figure(fits, saved, "vanilla")
    losses, gains, constants = figure.axes[:3]
    assert figure.get_size_inches()[0] == pytest.approx(3 * COLUMN_IN)
    drawn = next(line for line in losses.lines if line.get_label().startswith("Untied Grow"))
    assert drawn.get_color() == FAMILY_STYLES["untied_grow"][0]
    assert list(drawn.get_ydata()) == list(fits.families["untied_grow"].observed)
    assert {line.get_label() for line in gains.lines} == {"Vanilla", "Untied Grow", "mine"}
    ahead = ladder_figure(fits, saved, "vanilla", [("mine", 1e22, 2.2)]).axes[0]
    square = next(line for line in ahead.lines if line.get_label() == "held out")
    assert (square.get_xdata()[0], square.get_fillstyle()) == (1e22, "none")
    assert max(max(line.get_xdata()) for line in ahead.lines if line.get_linestyle() == "--") == pytest.approx(1e22)
    assert "C0 = 1.0265e+18" in constants.get_xlabel()
    save(figure, tmp_path / "new" / "ladder.svg", tmp_path / "ladder.png")
    assert (tmp_path / "ladder.png").read_bytes().startswith(b"\x89PNG")
    svg = (tmp_path / "new" / "ladder.svg").read_text()
    assert "training FLOPs" in svg  # text stays text
    save(ladder_figure(fits, saved, "vanilla"), tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == svg
    drawn = ladder_figure(fits, saved, "vanilla")  # its own: drawing settles the layout that is saved
    drawn.draw_without_rendering()
    inset = drawn.axes[0].child_axes[0]
    for axis in (inset.xaxis, inset.yaxis):
        assert sum(bool(tick.get_text()) for tick in axis.get_ticklabels()) >= 2
    assert {text.get_text() for text in drawn.legends[0].get_texts()} == {
        line.get_label() for line in losses.lines if not line.get_label().startswith("_")
    }
    assert not constants.texts  # names beside points would overlap; the legend has them


def test_type_is_legible_at_column_width() -> None:
    with panels() as (figure, (axes,)):
        axes.set_xlabel("x")
        axes.plot([0, 1], label="line")
        legend = axes.legend()
    assert figure.get_size_inches()[0] == pytest.approx(COLUMN_IN)
    assert axes.xaxis.label.get_size() >= 7
    assert legend.get_texts()[0].get_size() >= 6


def test_legends_cover_no_curve() -> None:
    x = np.array([2.0, 3.0, 5.0, 8.0, 13.0])
    fits = {f"budget {n}": fit_parabola(sweep_rows(x, n * np.exp(0.02 * np.log(x / 5) ** 2))) for n in (1, 2, 3, 4, 5)}
    cells = [Cell(d, k, 0.8, 1e17 * d**3 * k, 4 - 0.1 * d - 0.1 * np.log(k)) for d in (6, 8, 10) for k in (1, 2, 4)]
    curves = strategies(cells)
    cuts = [matched_cut(ladders_by_passes(cells), 1.5e20)]
    for figure in (sweeps_figure({"vanilla": fits}), recurrence_figure(cuts, marginal_gains(cells), curves, {})):
        figure.draw_without_rendering()
        for axes in figure.axes:
            assert axes.get_legend().get_window_extent().y1 < axes.get_window_extent().y0


def test_sweeps_mark_bracketed_optima_only() -> None:
    x = np.array([2.0, 3.0, 5.0, 8.0, 13.0])
    fits = {
        "inside": fit_parabola(sweep_rows(x, 3 * np.exp(0.02 * np.log(x / 5) ** 2))),
        "falling": fit_parabola(sweep_rows(x, 3 * np.exp(0.02 * np.log(x / 50) ** 2))),
    }
    figure = sweeps_figure({"vanilla": fits})
    stars = [line for line in figure.axes[0].lines if line.get_marker() == "*"]
    assert [float(star.get_xdata()[0]) for star in stars] == pytest.approx([5.0])
    page = sweeps_figure({f"family {n}": fits for n in range(5)})
    assert page.get_size_inches()[0] == pytest.approx(3 * COLUMN_IN)
    assert [bool(axes.axison) for axes in page.axes] == [True] * 5 + [False]


def test_many_sweeps_leave_the_axes_their_height() -> None:
    x = np.array([2.0, 3.0, 5.0, 8.0, 13.0])
    many = {f"budget {n}": fit_parabola(sweep_rows(x, n * np.exp(0.02 * np.log(x / 5) ** 2))) for n in range(1, 25)}
    few = dict(list(many.items())[:3])
    heights = []
    for fits in (few, many):
        figure = sweeps_figure({"vanilla": fits})
        figure.draw_without_rendering()
        axes = figure.axes[0]
        heights.append(axes.get_window_extent().height)
        assert axes.yaxis.label.get_window_extent().y0 >= 0
        assert axes.yaxis.label.get_window_extent().y1 <= figure.bbox.y1
    assert heights[1] == pytest.approx(heights[0], rel=0.2)


def test_the_stars_of_cuts_are_explained() -> None:
    compute = np.geomspace(1e18, 1e20, 5)
    ladders = {k: (compute, 3 + 0.01 * np.log(k / 2.5) ** 2 - 0.1 * np.log(compute / 1e18)) for k in (1, 2, 4)}
    inside, censored = matched_cut(ladders, 1e19), matched_cut({k: ladders[k] for k in (1, 2)}, 1e19)
    names = [text.get_text() for text in
             recurrence_figure([inside, censored], {}, {}, {}).axes[0].get_legend().get_texts()]  # fmt: skip
    assert names[-2:] == ["fitted optimum", "best measured K"]


def test_recurrence_figure_leaves_out_what_there_is_no_data_for() -> None:
    cells = [
        Cell(depth, passes, decay, 1e16 * depth**2.5 * (passes + 2), 3.6 - 0.02 * depth - 0.05 * np.log(passes)
             + 0.05 * np.log(decay / 0.8) ** 2)
        for depth in (6, 8, 10) for passes in (1, 2, 4) for decay in (0.4, 0.8, 1.6)
    ]  # fmt: skip
    fixed = [cell for cell in cells if cell.weight_decay == 0.8]
    cuts = [matched_cut(ladders_by_passes(fixed), 8e18)]
    whole = recurrence_figure(cuts, marginal_gains(fixed), strategies(cells), weight_decay_optima(cells))
    assert len(whole.axes) == 4
    star = next(line for line in whole.axes[0].lines if line.get_marker() == "*")
    assert (star.get_markerfacecolor() == "white") == cuts[0].censored
    assert len(recurrence_figure(cuts, marginal_gains(fixed), {}, {}).axes) == 2


def test_effective_depth() -> None:
    runs = [
        Result(
            f"d{d}", {"family": "untied_2"}, {"training_flops": d * 1e18, "effective_depth": d, "executed_depth": d + 2}
        )
        for d in (12, 8, 10)
    ]
    axes = effective_depth_figure(runs).axes[0]
    measured, executed = axes.lines
    assert list(measured.get_ydata()) == [8, 10, 12]
    assert list(executed.get_ydata()) == [10, 12, 14]
    with pytest.raises(InputError, match="effective_depth"):
        effective_depth_figure([Result("a", {"family": "vanilla"}, {"training_flops": 1e18})])


def test_notebooks_get_a_picture() -> None:
    with panels() as (figure, _):
        assert Picture(figure)._repr_png_().startswith(b"\x89PNG")


def test_unknown_formats_are_refused(tmp_path: Path) -> None:
    with panels() as (figure, _), pytest.raises(InputError, match="must end in"):
        save(figure, tmp_path / "figure.bmp")
