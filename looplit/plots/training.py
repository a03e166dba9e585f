"""A run's loss against optimizer steps, tokens and FLOPs."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from looplit.plots.style import family_style, panels

Point = tuple[int, int, int, float]  # optimizer steps, tokens, training FLOPs, loss


def training_curves(train: Sequence[Point], validation: Sequence[Point]) -> Figure:
    """Training and validation loss, a panel for each axis.

    Args:
        train: Logged training losses.
        validation: Validation losses.
    """
    with panels(3) as (figure, all_axes):
        for column, (axes, name) in enumerate(zip(all_axes, ("steps", "tokens", "training FLOPs"), strict=True)):
            for position, (series, text, style) in enumerate(
                ((train, "training", "-"), (validation, "validation", "o-"))
            ):
                color, _ = family_style(text, position)
                x = [point[column] for point in series]
                axes.plot(x, [point[3] for point in series], style, color=color, markersize=3, label=text)
            axes.set_xlabel(name)
            axes.set_ylabel("nats per token")
        all_axes[0].legend()
    return figure
