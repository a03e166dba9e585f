"""`laws residuals`: whether families differ downstream at equal validation loss."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from looplit.commands.laws.base import Answer, chosen_runs, common_arguments, described, require_score, table
from looplit.laws.residuals import RANGES, pooled_residuals, task_categories, task_residuals
from looplit.laws.results import is_rising, resolved, unit_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `laws residuals`."""
    common_arguments(parser)
    parser.add_argument(
        "--score", type=resolved, default="core_loss", help="pooled downstream loss (default: core_loss)"
    )
    parser.add_argument("--reference", default="vanilla", help="family whose line is the yardstick of each task")
    parser.add_argument("--categories", metavar="FILE", help="eval_meta_data.csv of the bundle, to group tasks")


def answer(args: argparse.Namespace) -> Answer:
    """Pooled and per-task residuals."""
    require_score("score", args.score)
    runs = chosen_runs(args, args.loss, args.score)
    pooled = pooled_residuals(runs, args.loss, args.score)
    categories = task_categories(args.categories) if args.categories else None
    per_task = any(key.startswith("loss:") for run in runs for key in run.values)
    tasks = task_residuals(runs, args.loss, args.reference, categories) if per_task else {}
    payload: dict[str, Any] = {
        "loss": {"column": args.loss, "unit": unit_of(args.loss)},
        "score": {"column": args.score, "unit": unit_of(args.score)},
        "pooled": {
            "fit": pooled.line.to_dict(),
            "by_family": dict(pooled.by_family),
            "by_run": dict(pooled.by_run),
        },
        "reference": args.reference,
        "tasks": {
            task: {"fit": found.line.to_dict(), "category": found.category, "beyond_reference": found.beyond}
            | {"means": {which: dict(found.means[which]) for which in RANGES}}
            for task, found in tasks.items()
        },
    }
    families = list(pooled.by_family)
    parts = [
        f"{args.score} less what one line through all runs tells from {args.loss} "
        f"({'positive' if is_rising(args.score) else 'negative'} is better)",
        described(pooled.line),
        table(
            ["family", f"mean residual, {unit_of(args.score)}"],
            [[name, f"{value:+.4f}"] for name, value in pooled.by_family.items()],
        ),
    ]
    for which in RANGES if tasks else ():
        rows = [
            [
                task,
                *([found.category] if categories else []),
                *(_cell(found.means[which].get(family)) for family in families),
            ]
            for task, found in tasks.items()
        ]
        parts += ["", f"Each task's NLL less the line of {args.reference}, {which} of the loss range "
                  "(nats per token of the gold answers)",
                  table(["task", *(["category"] if categories else []), *families], rows)]  # fmt: skip
    beyond = sorted({name for found in tasks.values() for name in found.beyond})
    if tasks:
        first = next(iter(tasks))
        parts += ["", f"each task's own line, {first} for example:", described(tasks[first].line)]
    if beyond:
        parts.append(f"lines are extended beyond {args.reference}'s own losses for {', '.join(beyond)}")

    def draw() -> Figure:
        from looplit.plots.tasks import residuals_figure

        return residuals_figure(pooled, tasks, runs, args.loss, args.score)

    return Answer(payload, "\n".join(parts), draw)


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:+.4f}"
