"""CORE of a model: questions planned once, scored task by task, the work split among processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tiktoken
import torch
from numpy.typing import NDArray
from torch import Tensor

from looplit.data.tokenizer import load_tokenizer, token_byte_counts
from looplit.errors import require, require_whole
from looplit.eval.core.batches import collate, groups, row_lengths
from looplit.eval.core.bundle import CONTEXT, Bundle, Task, read_examples
from looplit.eval.core.metric import TaskScores
from looplit.eval.core.processes import largest, rank_and_world
from looplit.eval.core.prompts import Question, SegmentEncoder, ask
from looplit.eval.core.scoring import Outcome, Scorer, outcomes
from looplit.eval.core.summary import TaskResult, summarize

SEEDS = (0, 1, 2)
TOKEN_BUDGET = 16_384
TOKENIZERS = {50257: "gpt2", 257: "bytes"}
"""Tokenizer that a vocabulary size belongs to."""

OnTask = Callable[[str, TaskResult, list[Outcome]], None]


@dataclass(frozen=True)
class TaskPlan:
    """The questions of one task that this process asks.

    Args:
        task: Which task.
        seeds: The seeds asked: all of them, or the first alone where there are no demonstrations to draw.
        questions: All seeds together.
        skipped: Seed of every question that does not fit into the context.
    """

    task: Task
    seeds: tuple[int, ...]
    questions: list[Question]
    skipped: list[int]

    def tokens(self, share: bool = True) -> int:
        """Tokens of all rows, padding aside."""
        return sum(sum(row_lengths(question, share)) for question in self.questions)


@dataclass(frozen=True)
class Plan:
    """Everything that an evaluation asks, independent of the model. Evaluations of several models can share it."""

    bundle: Bundle
    tasks: tuple[TaskPlan, ...]
    seeds: tuple[int, ...]
    limit: int | None
    context: int
    tokenizer: tiktoken.Encoding
    token_bytes: NDArray[np.int64]


def plan_evaluation(
    bundle: Bundle,
    tokenizer: str = "gpt2",
    *,
    seeds: Sequence[int] = SEEDS,
    tasks: Sequence[str] | None = None,
    limit: int | None = None,
    context: int = CONTEXT,
    progress: bool = False,
) -> Plan:
    """Builds and encodes the questions; under `torch.distributed` this process's share of them.

    Args:
        bundle: The suite.
        tokenizer: By the name that `load_tokenizer` takes.
        seeds: Of the demonstrations.
        tasks: Labels of the tasks to evaluate; all by default.
        limit: Examples of each task, the first ones; all by default. Each gets the demonstrations that it has in the
            full evaluation.
        context: Tokens kept of a longer prompt, its last ones; at most what the model takes.
        progress: Whether to show a bar.

    Raises:
        InputError: An unknown task, or a value out of range.
    """
    from tqdm import tqdm

    check_seeds(seeds)
    if limit is not None:
        require_whole("limit", limit)
    require_whole("context", context, least=2)
    labels = list(bundle.tasks) if tasks is None else list(dict.fromkeys(tasks))
    unknown = [label for label in labels if label not in bundle.tasks]
    require(not unknown and bool(labels), "tasks", unknown, f"the bundle has {', '.join(bundle.tasks)}")
    encoding = load_tokenizer(tokenizer)
    rank, world = rank_and_world()
    planned = []
    for label in tqdm(labels, desc="prompts", disable=None if progress else True, leave=False):
        task = bundle.tasks[label]
        planned.append(_plan_task(task, encoding, tuple(seeds), limit, context, rank, world))
    return Plan(bundle, tuple(planned), tuple(seeds), limit, context, encoding, token_byte_counts(encoding))


def check_seeds(seeds: Any) -> None:
    """Refuses what are not seeds of demonstrations.

    Raises:
        InputError: No list of different whole numbers, at least one.
    """
    whole = isinstance(seeds, Sequence) and len(seeds) > 0 and all(type(seed) is int for seed in seeds)
    require(whole and len(set(seeds)) == len(seeds), "seeds", seeds, "must list different whole numbers, at least one")


def evaluate(
    model: Callable[[Tensor], Tensor],
    plan: Plan,
    *,
    passes: int | None = None,
    token_budget: int = TOKEN_BUDGET,
    share_prefixes: bool = True,
    device: str | torch.device = "cpu",
    known: Mapping[str, TaskResult] | None = None,
    on_task: OnTask | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """CORE of a model: everything that `summarize` reports, and `passes`.

    The numbers do not depend on the token budget, on sharing or on the number of processes, rounding aside. Under
    `torch.distributed` every process must call this and gets the whole result. The model's mode, passes and random
    state stay as they were.

    Args:
        model: A `Backbone`, a module with a `backbone`, or a causal callable from tokens (batch, tokens) to logits
            (batch, tokens, vocabulary).
        plan: From `plan_evaluation`.
        passes: K to evaluate at; the model's own by default.
        token_budget: Tokens per batch, padding included.
        share_prefixes: Whether the choices of an example share the computation of their common beginning, where the
            model is a `Backbone` and it pays.
        device: Of the tokens, for a callable that is not a module.
        known: Results of tasks that need not be evaluated again.
        on_task: Called after every task with its label, its result and this process's outcomes.
        progress: Whether to show a bar with the time left.

    Raises:
        InputError: The tokenizer has ids that the model does not know, the plan's prompts are longer than the model's
            context, or the model has no such number of passes.
    """
    from tqdm import tqdm

    scorer = checked_scorer(model, plan, passes=passes, token_budget=token_budget, device=device)
    share = share_prefixes and scorer.shares_prefixes
    results = dict(known or {})
    todo = [task for task in plan.tasks if task.task.label not in results]
    total = sum(task.tokens(share) for task in todo)
    with tqdm(total=total, unit="tok", unit_scale=True, disable=None if progress else True) as bar, scorer.ready():
        for task in todo:
            label = task.task.label
            bar.set_description(label)
            results[label], found = _evaluate_task(task, plan, scorer, token_budget, share, bar.update)
            if on_task is not None:
                on_task(label, results[label], found)
        at = getattr(scorer.looped, "passes", None)
    ordered = {task.task.label: results[task.task.label] for task in plan.tasks}
    summary = summarize(plan.bundle, ordered, plan.seeds, plan.limit, plan.context)
    return {**summary, "passes": at, "context": plan.context}


def checked_scorer(
    model: Callable[[Tensor], Tensor],
    plan: Plan,
    *,
    passes: int | None = None,
    token_budget: int = TOKEN_BUDGET,
    device: str | torch.device = "cpu",
) -> Scorer:
    """Says whether `evaluate` can do what it is asked for, before hours are spent; gives what it scores with.

    A model that names no vocabulary runs one token. Under `torch.distributed` every process must call this.

    Raises:
        InputError: See `evaluate`.
    """
    require_whole("token_budget", token_budget)
    scorer = Scorer(model, device, passes)
    most, ids = scorer.context, plan.tokenizer.n_vocab
    with scorer.ready():
        known_ids = scorer.vocabulary or scorer.idle().shape[-1]
    rule = f"has {ids} token ids, the model's vocabulary is {known_ids}"
    require(ids <= known_ids, "tokenizer", plan.tokenizer.name, rule)
    require(most is None or plan.context <= most, "context", plan.context, f"the model's context is {most}")
    return scorer


def tokenizer_of(vocabulary: int) -> str:
    """Name of the tokenizer that a vocabulary size belongs to.

    Raises:
        InputError: It belongs to none that is known.
    """
    require(vocabulary in TOKENIZERS, "tokenizer", None, f"say which one has the {vocabulary} ids of the vocabulary")
    return TOKENIZERS[vocabulary]


def _plan_task(
    task: Task,
    encoding: tiktoken.Encoding,
    seeds: tuple[int, ...],
    limit: int | None,
    context: int,
    rank: int,
    world: int,
) -> TaskPlan:
    examples, encoder = read_examples(task), SegmentEncoder(encoding)
    drawn = seeds if task.n_shots else seeds[:1]
    questions, skipped = [], []
    for seed in drawn:
        for index in range(rank, min(limit or len(examples), len(examples)), world):
            question = ask(task, examples, index, seed, encoder, context)
            if question is None:
                skipped.append(seed)
            else:
                questions.append(question)
    return TaskPlan(task, drawn, questions, skipped)


def _evaluate_task(
    plan: TaskPlan, whole: Plan, scorer: Scorer, token_budget: int, share: bool, advance: Callable[[int], Any]
) -> tuple[TaskResult, list[Outcome]]:
    scores = TaskScores(plan.seeds)
    if rank_and_world()[1] > 1:
        scores.to(scorer.device)  # where the processes can add it up
    found: list[Outcome] = []
    batches = groups(plan.questions, token_budget, share)
    idle = largest(len(batches), scorer.device) - len(batches)
    for group in batches:
        batch = collate(group, share)
        found += outcomes(batch, *scorer(batch), whole.token_bytes)
        advance(sum(sum(row_lengths(question, share)) for question in group))
    for _ in range(idle):
        scorer.idle()
    scores.update(found, plan.skipped)
    values = {name: value.reshape(-1).tolist() for name, value in scores.compute().items()}
    if len(plan.seeds) < len(whole.seeds):
        values = {name: value * len(whole.seeds) for name, value in values.items()}
    return TaskResult(
        accuracy=tuple(values["accuracy"]),
        loss=tuple(values["loss"]),
        bits_per_byte=tuple(values["bits_per_byte"]),
        examples=tuple(map(int, values["examples"])),
        skipped=tuple(map(int, values["skipped"])),
        split_tokens=tuple(map(int, values["split_tokens"])),
    ), found
