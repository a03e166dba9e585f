"""The logit lens and the loss at other numbers of passes, as figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from looplit.errors import require
from looplit.eval.lens import LensResult, TokenReadings, site_label
from looplit.eval.passes import PassesResult
from looplit.plots.style import COLUMN_IN, family_style, label, panels


def lens_figure(results: Mapping[str, LensResult]) -> Figure:
    """KL and agreement against the executed block, a curve per model; a ring marks each effective depth.

    Args:
        results: Name of the model → its lens. A family's name brings its colour.

    Raises:
        InputError: There is no result.
    """
    require(len(results) > 0, "results", dict(results), "must have at least one lens")
    with panels(2) as (figure, (kl_axes, agreement_axes)):
        for position, (name, result) in enumerate(results.items()):
            color, marker = family_style(name, position)
            blocks = range(1, result.executed_depth + 1)
            depth = result.effective_depth
            text = f"{label(name)}: {depth} of {result.executed_depth}"
            kl_axes.plot(blocks, result.kl, marker + "-", color=color, markersize=3, label=text)
            kl_axes.plot(depth, result.kl[depth - 1], "o", markersize=9, markerfacecolor="none", color=color)
            agreement_axes.plot(blocks, result.agreement, marker + "-", color=color, markersize=3)
        shown = next(iter(results.values()))
        kl_axes.axhline(shown.threshold, color="grey", linestyle=":", linewidth=0.8)
        first, second = shown.direction.split("_")
        kl_axes.set_ylabel(f"KL({first} ‖ {second}), nats")
        kl_axes.legend(title="effective depth")
        agreement_axes.set_ylabel("top-1 agreement with the end")
        agreement_axes.set_ylim(-0.02, 1.02)
        for axes in (kl_axes, agreement_axes):
            axes.set_xlabel("executed block")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            if len(results) == 1:
                _stage_lines(axes, shown)
    return figure


def _stage_lines(axes: Axes, result: LensResult) -> None:
    """Thin lines where a stage or a pass begins."""
    for i, site in enumerate(result.sites):
        if site.block == 1 and i:
            axes.axvline(i + 0.5, color="lightgrey", linewidth=0.6, zorder=0)


def lens_map(readings: TokenReadings, texts: Sequence[Sequence[str]], shown: Sequence[str], row: int = 0) -> Figure:
    """Heat map token × executed block: the decoded prediction's text over its divergence from the final one.

    Args:
        readings: Of `looplit.eval.lens.token_readings`.
        texts: Text of each prediction, [block][token].
        shown: Text of each input token.
        row: Row of the batch.
    """
    depth, _, n_tokens = readings.kl.shape
    with panels() as (figure, (axes,)):
        figure.set_size_inches(2 * COLUMN_IN, 0.9 + 0.19 * depth)
        kl = readings.kl[:, row].float().cpu().numpy()
        image = axes.imshow(kl, aspect="auto", origin="lower", cmap="viridis_r")
        for i in range(depth):
            for t in range(n_tokens):
                dark = kl[i, t] > 0.5 * kl.max()
                axes.text(t, i, texts[i][t], ha="center", va="center", fontsize=5, color="white" if dark else "black")
        axes.set_yticks(range(depth), [site_label(site) for site in readings.sites], fontsize=5.5)
        axes.set_xticks(range(n_tokens), list(shown), fontsize=5.5)
        axes.set_xlabel("input token")
        figure.colorbar(image, ax=axes, label="KL, nats")
    return figure


def passes_figure(results: Mapping[str, PassesResult]) -> Figure:
    """Loss at K passes minus loss at the trained K, a curve per model.

    Args:
        results: Name of the model → its losses. A family's name brings its colour.

    Raises:
        InputError: There is no result.
    """
    require(len(results) > 0, "results", dict(results), "must have at least one model")
    with panels() as (figure, (axes,)):
        for position, (name, result) in enumerate(results.items()):
            color, marker = family_style(name, position)
            excess = [result.excess(k) for k in result.losses]
            axes.plot(list(result.losses), excess, marker + "-", color=color,
                      label=f"{label(name)}, trained at {result.trained}")  # fmt: skip
        axes.axhline(0, color="grey", linestyle=":", linewidth=0.8)
        axes.set_xlabel("passes at test time")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel("loss above the trained passes', nats")
        axes.legend()
    return figure
