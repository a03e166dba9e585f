"""From scores per task and seed to CORE: centering, means, spread, the filtered suite and its rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import fmean, pstdev
from typing import Any

from looplit.errors import require
from looplit.eval.core.bundle import CONTEXT, LABELS, Bundle, Task

FILTERED_OUT = (
    "commonsense_qa", "boolq", "bigbench_cs_algorithms", "bigbench_language_identification",
    "bigbench_repeat_copy_logic",
)  # fmt: skip
"""Tasks that filtered CORE leaves out (growth study, Table 10)."""
FILTERED = tuple(label for label in LABELS if label not in FILTERED_OUT)

LEAST_GAIN_OVER_CHANCE = 0.02
LEAST_TAU = 0.5
ROUNDING = 1e-12
MOST_NAMED = 5  # missing tasks that a line lists


@dataclass(frozen=True)
class TaskResult:
    """Scores of one task; tuples have an entry per seed.

    Args:
        accuracy: Share of right answers.
        loss: Answer NLL in nats per token.
        bits_per_byte: Of the gold answers.
        examples: Examples scored (the same for every seed, skipped ones aside).
        skipped: Examples that do not fit into the context.
        split_tokens: Language-modelling examples whose prompt tokens are no prefix of the whole.
    """

    accuracy: tuple[float, ...]
    loss: tuple[float, ...]
    bits_per_byte: tuple[float, ...]
    examples: tuple[int, ...]
    skipped: tuple[int, ...]
    split_tokens: tuple[int, ...]


def centered(accuracy: float, baseline: float) -> float:
    """Accuracy with chance at 0 and perfection at 1: (a - b)/(1 - b) (growth study, Eq. 14).

    >>> round(centered(0.64, 0.62), 4), round(centered(0.50, 0.62), 4), round(centered(0.0, 0.25), 4)
    (0.0526, -0.3158, -0.3333)
    """
    return (accuracy - baseline) / (1 - baseline)


def summarize(
    bundle: Bundle,
    results: Mapping[str, TaskResult],
    seeds: Sequence[int],
    limit: int | None = None,
    context: int = CONTEXT,
) -> dict[str, Any]:
    """Everything that an evaluation reports about its tasks, under the keys of the evaluation's JSON.

    A task's scores are averaged over seeds before tasks are averaged; `core_metric_std` is the population standard
    deviation of CORE over seeds. `partial` lists why the numbers are not those of the whole suite under its protocol,
    and is empty for a complete evaluation; `published_suite` says whether the suite is CORE at all. A bundle that has
    some of CORE's labels is held against all 22 of them, one without any against itself. `core_metric_filtered` is
    there only where all 17 of its tasks are.

    Args:
        bundle: The suite, for baselines and what it lacks.
        results: Scores of the tasks that were evaluated.
        seeds: Of the demonstrations.
        limit: Examples per task, where limited.
        context: Tokens kept of longer prompts.
    """
    require(bool(results), "tasks", list(results), "nothing was evaluated")
    tasks = {label: bundle.tasks[label] for label in results}
    every = [_one(tasks, results, itemgetter(s)) for s in range(len(seeds))]
    spread = [one["core_metric"] for one in every]
    return {
        **_one(tasks, results, fmean),
        "core_metric_std": pstdev(spread) if all(map(math.isfinite, spread)) else math.nan,
        "per_seed": {str(seed): one for seed, one in zip(seeds, every, strict=True)},
        "seeds": list(seeds),
        "task_counts": {label: max(result.examples) for label, result in results.items()},
        "num_examples": sum(max(result.examples) for result in results.values()),
        "skipped": {label: max(r.skipped) for label, r in results.items() if any(r.skipped)},
        "split_tokens": {label: max(r.split_tokens) for label, r in results.items() if any(r.split_tokens)},
        "baselines": {label: task.baseline for label, task in tasks.items()},
        "suite_fingerprint": bundle.fingerprint,
        "published_suite": bundle.published,
        "partial": _shortfalls(bundle, results, limit, context),
    }


def select_tasks(
    amounts: Sequence[float], accuracies: Mapping[str, Sequence[float]], baselines: Mapping[str, float]
) -> list[str]:
    """The filter's rule: tasks that stand out from chance and rise with training (growth study, appendix C.2).

    A task stays if the checkpoint with the most training tokens is at least 2 points above chance and Kendall's τ_b
    between training amount and accuracy is at least 0.50.

    Args:
        amounts: Training tokens of every checkpoint.
        accuracies: Raw accuracy of every checkpoint by task.
        baselines: Random baseline by task, from 0 to 1.

    >>> select_tasks([1, 2, 3], {"a": [0.3, 0.4, 0.5], "b": [0.5, 0.4, 0.3], "c": [0.2, 0.25, 0.26]},
    ...              {"a": 0.25, "b": 0.25, "c": 0.25})
    ['a']
    """
    from scipy.stats import kendalltau

    require(len(amounts) > 1, "amounts", list(amounts), "needs at least two checkpoints")
    largest = max(range(len(amounts)), key=lambda i: amounts[i])
    kept = []
    for label, values in accuracies.items():
        require(len(values) == len(amounts), f"accuracies of {label}", list(values), f"must be {len(amounts)} values")
        gain = values[largest] - baselines[label]
        # What is exactly at a bound may come out a rounding error below. Constant accuracies have no τ_b (NaN).
        rises = kendalltau(amounts, values).statistic >= LEAST_TAU - ROUNDING
        if gain >= LEAST_GAIN_OVER_CHANCE - ROUNDING and rises:
            kept.append(label)
    return kept


def table(summary: Mapping[str, Any]) -> str:
    """The tasks of an evaluation and the aggregates, for the screen."""
    rows = [("task", "examples", "accuracy", "centered", "NLL", "bits/byte")]
    for label, accuracy in summary["results"].items():
        rows.append((
            label, f"{summary['task_counts'][label]:,}", f"{accuracy:.4f}",
            f"{summary['centered_results'][label]:.4f}", f"{summary['losses'][label]:.4f}",
            f"{summary['bits_per_byte'][label]:.4f}",
        ))  # fmt: skip
    name = "CORE" if summary["published_suite"] else "mean (not the published suite)"
    spread = f" ± {summary['core_metric_std']:.4f}" if len(summary["seeds"]) > 1 else ""
    rows.append((
        name, f"{summary['num_examples']:,}", "", f"{summary['core_metric']:.4f}{spread}",
        f"{summary['core_loss']:.4f}", f"{summary['core_bpb']:.4f}",
    ))  # fmt: skip
    if summary.get("core_metric_filtered") is not None:
        rows.append((f"filtered ({len(FILTERED)} tasks)", "", "", f"{summary['core_metric_filtered']:.4f}", "", ""))
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
    return "\n".join([*lines, *(f"partial: {reason}" for reason in summary["partial"])])


def _one(
    tasks: Mapping[str, Task], results: Mapping[str, TaskResult], over_seeds: Callable[[Any], float]
) -> dict[str, Any]:
    """Results and aggregates with the seeds of every task reduced by `over_seeds`."""
    accuracy = {label: over_seeds(result.accuracy) for label, result in results.items()}
    center = {label: centered(accuracy[label], task.baseline) for label, task in tasks.items()}
    losses = {label: over_seeds(result.loss) for label, result in results.items()}
    bits = {label: over_seeds(result.bits_per_byte) for label, result in results.items()}
    answer = {
        "core_metric": fmean(center.values()),
        "core_loss": fmean(losses.values()),
        "core_bpb": fmean(bits.values()),
    }
    if set(FILTERED) <= set(center):
        answer["core_metric_filtered"] = fmean(center[label] for label in FILTERED)
    return {**answer, "results": accuracy, "centered_results": center, "losses": losses, "bits_per_byte": bits}


def _shortfalls(bundle: Bundle, results: Mapping[str, TaskResult], limit: int | None, context: int) -> list[str]:
    reasons = []
    expected = LABELS if set(LABELS) & set(bundle.tasks) else tuple(bundle.tasks)
    if missing := [label for label in expected if label not in results]:
        names = f", without {', '.join(missing)}" if len(missing) <= MOST_NAMED else ""
        reasons.append(f"{len(expected) - len(missing)} of {len(expected)} tasks{names}")
    if others := [label for label in results if label not in expected]:
        reasons.append(f"tasks that are not of the suite: {', '.join(others)}")
    if limit is not None:
        reasons.append(f"at most {limit} examples of each task")
    if bundle.published and context != CONTEXT:
        reasons.append(f"longer prompts keep {context:,} tokens, in the protocol {CONTEXT:,}")
    skipped = {label: max(result.skipped) for label, result in results.items() if any(result.skipped)}
    if skipped:
        listed = ", ".join(f"{label} {count}" for label, count in skipped.items())
        reasons.append(f"examples that do not fit into the context are left out: {listed}")
    return reasons
