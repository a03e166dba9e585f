"""Whether families differ downstream at equal validation loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from looplit.laws.answers.answer import Answer
from looplit.laws.answers.base import Runs, chosen_runs, described, note_compared, require_score
from looplit.laws.replicates import SIZE, replicates, require_series
from looplit.laws.residuals import (
    RANGES,
    PooledResiduals,
    TaskResiduals,
    pooled_residuals,
    task_categories,
    task_residuals,
)
from looplit.laws.results import Result, grouped
from looplit.results import EXTENTS, is_rising, resolved, unit_of
from looplit.wording import shown, table


@dataclass(frozen=True)
class ResidualsAnswer(Answer):
    """Residuals of all runs, and by task.

    Args:
        pooled: Of the pooled score.
        tasks: Of every task.
        runs: That were read.
        loss: Column of the loss.
        score: Column of the pooled score.
    """

    pooled: PooledResiduals
    tasks: Mapping[str, TaskResiduals]
    runs: Sequence[Result]
    loss: str
    score: str


def residuals_answer(
    runs: Runs,
    *,
    where: Sequence[str] = (),
    loss: str = "final_val_loss",
    score: str = "core_loss",
    reference: str = "vanilla",
    categories: str | Path | None = None,
) -> ResidualsAnswer:
    """Pooled and per-task residuals.

    Args:
        runs: Finished runs, or where they lie.
        where: Conditions, as in `chosen_runs`.
        loss: Column of the loss.
        score: Column of the pooled downstream loss.
        reference: Family whose line is the yardstick of each task.
        categories: eval_meta_data.csv of the bundle, to group tasks.

    Raises:
        InputError: The runs lack evaluations, or what is asked for.
    """
    loss, score = resolved(loss), resolved(score)
    require_score("score", score)
    kept = chosen_runs(runs, where, loss, loss, score, score=score)
    families = grouped(kept)
    for members in families.values():
        replicates(members, (*SIZE, *EXTENTS))
        require_series(members)
    note_compared(families)
    pooled = pooled_residuals(kept, loss, score)
    groups = task_categories(categories) if categories else None
    per_task = any(key.startswith("loss:") for run in kept for key in run.values)
    tasks = task_residuals(kept, loss, reference, groups) if per_task else {}
    payload = {
        "loss": {"column": loss, "unit": unit_of(loss)},
        "score": {"column": score, "unit": unit_of(score)},
        "pooled": {
            "fit": pooled.line.to_dict(),
            "by_family": dict(pooled.by_family),
            "by_run": dict(pooled.by_run),
        },
        "reference": reference,
        "tasks": {
            task: {"fit": found.line.to_dict(), "category": found.category, "beyond_reference": found.beyond}
            | {"means": {which: dict(found.means[which]) for which in RANGES}}
            for task, found in tasks.items()
        },
    }
    text = "\n".join([*_pooled_text(pooled, loss, score), *(_task_text(payload, tasks, groups) if tasks else ())])
    return ResidualsAnswer(payload, text, pooled, tasks, kept, loss, score)


def _pooled_text(pooled: PooledResiduals, loss: str, score: str) -> list[str]:
    return [
        f"{score} less what one line through all runs tells from {loss} "
        f"({'positive' if is_rising(score) else 'negative'} is better)",
        described(pooled.line),
        table(
            ["family", f"mean residual, {unit_of(score)}"],
            [[name, f"{value:+.4f}"] for name, value in pooled.by_family.items()],
        ),
    ]


def _task_text(
    payload: Mapping[str, Any], tasks: Mapping[str, TaskResiduals], categories: Mapping[str, str] | None
) -> list[str]:
    families, reference = list(payload["pooled"]["by_family"]), payload["reference"]
    lines = []
    for which in RANGES:
        rows = [
            [
                task,
                *([found.category] if categories else []),
                *(shown(found.means[which].get(family), "+.4f") for family in families),
            ]
            for task, found in tasks.items()
        ]
        lines += ["", f"Each task's NLL less the line of {reference}, {which} of the loss range "
                  "(nats per token of the gold answers)",
                  table(["task", *(["category"] if categories else []), *families], rows)]  # fmt: skip
    first = next(iter(tasks))
    lines += ["", f"each task's own line, {first} for example:", described(tasks[first].line)]
    beyond = sorted({name for found in tasks.values() for name in found.beyond})
    if beyond:
        lines.append(f"lines are extended beyond {reference}'s own losses for {', '.join(beyond)}")
    return lines
