"""What loops are worth: the looping coefficient, the frontier of settings, loss at equal compute (truncation study)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from looplit.laws.loops.law import NREC, PUBLISHED, LoopLaw
from looplit.laws.loops.optimum import STUDY_SETTINGS, Setting, worth
from looplit.laws.loops.runs import Comparison, Quartiles
from looplit.plots.style import log_ticks, panels, plain_log_ticks, sequence_colors

LOOPS = (1, 2, 4, 8, 16)
COLORS = dict(zip(LOOPS, sequence_colors(len(LOOPS)), strict=True))
"""One colour per loop count, or per number of trained passes."""
MARKERS = dict(zip(LOOPS, "osD^v", strict=True))


def worth_figure(
    law: LoopLaw = PUBLISHED,
    nrec: float = NREC,
    runwise: Mapping[Setting, Quartiles] | None = None,
    settings: Sequence[Setting] = STUDY_SETTINGS,
) -> Figure:
    """What a setting is worth, in three panels: g(T, T) and its ceiling, g against B/T, N_eff/N grouped by B.

    Lines and bars are the law, markers with whiskers the runs' medians and quartiles.

    Args:
        law: The law.
        nrec: N_rec/N.
        runwise: From `runwise_g`.
        settings: Of the bars.
    """
    with panels(columns=3) as (figure, axes):
        _draw_worth(axes, law, nrec, runwise or {}, settings)
    return figure


def _draw_worth(
    axes: Sequence[Axes], law: LoopLaw, nrec: float, runwise: Mapping[Setting, Quartiles], settings: Sequence[Setting]
) -> None:
    draw_full(axes[0], law, runwise)
    draw_fractions(axes[1], law, runwise)
    draw_effective_sizes(axes[2], law, nrec, runwise, settings)


def draw_full(axes: Axes, law: LoopLaw, runwise: Mapping[Setting, Quartiles]) -> None:
    """g(T, T) against T, below the dashed ceiling e^c."""
    passes = np.geomspace(1, 32, 100)
    axes.plot(passes, law.g(passes, passes), color="black", label="law")
    axes.axhline(law.ceiling, color="0.5", linestyle="--", label=f"ceiling {law.ceiling:.2f}")
    _whiskers(axes, {t: each for (t, b), each in runwise.items() if t == b}, "black")
    _passes_axis(axes, (*LOOPS, 32))
    axes.set_xlabel("passes T, all trained")
    axes.set_ylabel("looping coefficient g(T, T)")
    axes.legend(loc="lower right")


def draw_fractions(axes: Axes, law: LoopLaw, runwise: Mapping[Setting, Quartiles]) -> None:
    """g against the trained fraction B/T, a curve per T."""
    for t in LOOPS[1:]:
        trained = np.geomspace(1, t, 60)
        axes.plot(trained / t, law.g(t, trained), color=COLORS[t], label=f"T = {t}")
        _whiskers(axes, {b / t: each for (passes, b), each in runwise.items() if passes == t}, COLORS[t])
    plain_log_ticks(axes)
    axes.set_xlabel("trained fraction B/T")
    axes.set_ylabel("looping coefficient g(T, B)")
    axes.legend()


def draw_effective_sizes(
    axes: Axes, law: LoopLaw, nrec: float, runwise: Mapping[Setting, Quartiles], settings: Sequence[Setting]
) -> None:
    """Bars of N_eff/N, grouped by B."""
    ordered = sorted(settings, key=lambda setting: (setting.trained_passes, setting.passes))
    groups = sorted({setting.trained_passes for setting in ordered})
    # Half a bar's room between groups.
    places = {setting: i + 0.5 * groups.index(setting.trained_passes) for i, setting in enumerate(ordered)}
    for setting, place in places.items():
        color = sequence_colors(len(groups))[groups.index(setting.trained_passes)]
        axes.bar(place, float(law.effective_ratio(*setting, nrec)), 0.8, color=color, alpha=0.6)
    effective = {
        places[setting]: each.shifted(nrec, 1 - nrec) for setting, each in runwise.items() if setting in places
    }
    _whiskers(axes, effective, "black")
    axes.set_xticks(list(places.values()), [f"{setting.passes:g}, {setting.trained_passes:g}" for setting in places],
                    rotation=90)  # fmt: skip
    axes.axhline(1, color="0.5", linestyle="--", linewidth=0.8)
    axes.set_xlabel("T, B")
    axes.set_ylabel("effective size N_eff/N")


def _whiskers(axes: Axes, found: Mapping[float, Quartiles], color: object) -> None:
    for place, each in found.items():
        axes.plot([place, place], [each.low, each.high], color=color, linewidth=0.8)
        axes.plot(place, each.median, "o", color=color, markersize=3.5, markerfacecolor="white")


def _passes_axis(axes: Axes, passes: Sequence[int]) -> None:
    axes.set_xscale("log")
    axes.set_xticks(list(passes), [str(t) for t in passes])
    axes.set_xticks([], minor=True)


def frontier_figure(
    law: LoopLaw = PUBLISHED, nrec: float = NREC, settings: Sequence[Setting] = STUDY_SETTINGS
) -> Figure:
    """Parameters saved against compute needed, beside the best model without loops at equal loss.

    Filled markers train every pass, and the dashed curve is the law for any real T from 2 on; it is the frontier where
    q > 2p.

    Args:
        law: The law.
        nrec: N_rec/N.
        settings: Markers.
    """
    with panels(height=3.0) as (figure, (axes,)):
        full = [worth(t, t, nrec, law) for t in np.geomspace(2, max(setting.passes for setting in settings), 60)]
        axes.plot([each.compute_per_effective for each in full], [100 * each.parameters_saved for each in full], "k--",
                  linewidth=0.8, label="every pass trained")  # fmt: skip
        for setting in settings:
            found, color = worth(*setting, nrec, law), COLORS.get(int(setting.passes), "black")
            place = (found.compute_per_effective, 100 * found.parameters_saved)
            trained = setting.passes == setting.trained_passes
            axes.plot(*place, MARKERS.get(int(setting.trained_passes), "o"), color=color,
                      markerfacecolor=color if trained else "white")  # fmt: skip
            axes.annotate(f"{setting.passes:g}, {setting.trained_passes:g}", place, fontsize=6, color=color,
                          textcoords="offset points", xytext=(-2, 5) if trained else (4, -5),
                          ha="right" if trained else "left")  # fmt: skip
        plain_log_ticks(axes)
        axes.margins(x=0.1)  # room for the labels to the left of no looping
        axes.set_xlabel("training compute at equal loss / no looping's")
        axes.set_ylabel("non-embedding parameters saved, %")
        axes.legend(loc="lower right")
    return figure


def comparison_figure(comparisons: Mapping[float, Comparison]) -> Figure:
    """Loss minus no looping at equal compute, a panel per size, each with a strip of the best setting.

    Args:
        comparisons: From `compare`, by non-embedding parameters.
    """
    columns = 2 if len(comparisons) == 4 else min(len(comparisons), 3)
    with panels(columns, -(-len(comparisons) // columns)) as (figure, axes):
        _draw_comparisons(figure, axes, comparisons)
    return figure


def _draw_comparisons(figure: Figure, axes: Sequence[Axes], comparisons: Mapping[float, Comparison]) -> None:
    for panel, (size, found) in zip(axes, comparisons.items(), strict=False):
        draw_comparison(panel, found)
        panel.set_title(f"{size / 1e6:.3g}M parameters")
    for panel in axes[len(comparisons) :]:
        panel.remove()
    lines = {str(line.get_label()): line for panel in axes[: len(comparisons)] for line in panel.get_lines()}
    named = {name: line for name, line in lines.items() if not name.startswith("_")}
    figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=5)


def draw_comparison(axes: Axes, found: Comparison) -> None:
    """One panel of `comparison_figure`; settings in dashed lines and hollow markers are truncated."""
    for setting, (compute, gain) in found.differences.items():
        t, b = int(setting.passes), int(setting.trained_passes)
        axes.plot(compute, gain, "-" if t == b else "--", marker=MARKERS.get(b, "o") if len(compute) < 20 else None,
                  color=COLORS.get(t, "black"), label=str(setting),
                  markerfacecolor=None if t == b else "white")  # fmt: skip
    axes.axhline(0, color="0.5", linewidth=0.8)
    low, high = axes.get_ylim()
    axes.set_ylim(low - 0.12 * (high - low), high)  # room for the strip
    for setting, start, end in found.stretches():
        color = COLORS.get(int(setting.passes), "black")
        axes.plot([start, end], [0.02, 0.02], color=color, linewidth=5, solid_capstyle="butt",
                  transform=axes.get_xaxis_transform())  # fmt: skip
        axes.text(np.sqrt(start * end), 0.05, str(setting), transform=axes.get_xaxis_transform(), ha="center",
                  fontsize=6, color=color)  # fmt: skip
    log_ticks(axes)
    axes.set_xlabel("training FLOPs")
    axes.set_ylabel("loss minus no looping, nats per token")


def runs_figure(
    law: LoopLaw, nrec: float, runwise: Mapping[Setting, Quartiles], comparisons: Mapping[float, Comparison]
) -> Figure:
    """The three panels of `worth_figure`, and below them those of `comparison_figure`."""
    with panels(3, 1 + -(-len(comparisons) // 3)) as (figure, axes):
        _draw_worth(axes[:3], law, nrec, runwise, STUDY_SETTINGS)
        if comparisons:
            _draw_comparisons(figure, axes[3:], comparisons)
    return figure


def pairs_figure(losses: Mapping[Setting, Sequence[float]], unit: str = "nats per token") -> Figure:
    """Two settings on the same seeds: loss of each seed joined across them, and the differences of the pairs.

    Large markers are means; whiskers and the band are ± one standard deviation over the seeds.

    Args:
        losses: One loss per seed, in the same order for both settings; at least two.
        unit: Of the loss.
    """
    (first, of_first), (second, of_second) = losses.items()
    pairs = np.array([of_first, of_second], float)
    with panels(columns=2) as (figure, (left, right)):
        left.plot((0, 1), pairs, "o-", color="0.6", linewidth=0.8, markersize=3)
        for i, values in enumerate(pairs):
            left.errorbar(i, values.mean(), values.std(ddof=1), fmt="o", color="black", capsize=3)
        left.set_xticks((0, 1), [str(first), str(second)])
        left.set_xlim(-0.5, 1.5)
        left.set_ylabel(f"validation loss, {unit}")
        _draw_differences(right, pairs[0] - pairs[1])
        right.set_ylabel(f"loss of {first} minus {second}")
    return figure


def _draw_differences(axes: Axes, differences: np.ndarray) -> None:
    mean, spread = differences.mean(), differences.std(ddof=1)
    seeds = np.arange(1, len(differences) + 1)
    axes.axhline(0, color="0.5", linestyle="--", linewidth=0.8)
    axes.axhline(mean, color="black", linewidth=0.8)
    axes.axhspan(mean - spread, mean + spread, color="black", alpha=0.12, linewidth=0)
    axes.plot(seeds, differences, "o", color="black")
    axes.set_xticks(seeds)
    axes.set_xlabel("seed")
