"""Writes bundles in the published layout, with text that is awkward on purpose, and makes a tiny model."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from looplit.eval.core import LABELS
from looplit.model import Backbone, BackboneConfig

CONTEXT = 256
KINDS = ("multiple_choice", "schema", "language_modeling")
SHOTS = (0, 3, 1, 10)
WORDS = (
    "the river", "naïve", "café 12", "你好", "🐕 dogs", "i love", "e.g.", "(see 3.14)", "don't", "Answer:", "a  b",
    "tab\tin", "line\nbreak", "New", "New York", "0", "ß", "…", "end.", "x",
)  # fmt: skip


class Made(NamedTuple):
    """A task to write: `words` is the range of words in a query."""

    label: str
    kind: str
    shots: Any
    n_examples: int
    words: tuple[int, int] = (1, 8)
    delimiter: str | None = None
    baseline: float = 25.0


def made_tasks(n_examples: int = 2) -> list[Made]:
    """All kinds, with and without demonstrations, several delimiters and baselines; some prompts must be cropped."""
    return [
        Made(
            label, KINDS[t % 3], [SHOTS[t % 4], 5], n_examples + t % 4, (1, 4 + t),
            (None, " ", "\nAnswer: ", "")[t % 4] if t % 3 else None, baseline=(0.0, 25.0, 50.0)[t % 3],
        )
        for t, label in enumerate(LABELS)
    ]  # fmt: skip


def make_model(vocabulary: int = 257, context: int = CONTEXT, seed: int = 3) -> Backbone:
    """A tied model of width 32 and three stages whose zero-initialised matrices are set."""
    config = BackboneConfig(
        width=32, heads=2, prelude=1, core=1, coda=1, passes=2, vocabulary=vocabulary, context=context
    )
    model = Backbone(config, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    return model.eval()


def write_bundle(folder: Path, tasks: Sequence[Made], seed: int = 0) -> Path:
    """A bundle of random examples in `folder`, which is returned."""
    draw = random.Random(seed)
    data = folder / "eval_data" / "some kind"
    data.mkdir(parents=True)
    core = ["icl_tasks:"]
    rows = ["Eval Task,Task Category,Random baseline", "not_in_core,other,"]
    for task in tasks:
        core += ["-", f"  label: {task.label}", f"  dataset_uri: some kind/{task.label}.jsonl"]
        core += [f"  num_fewshot: {task.shots}", f"  icl_task_type: {task.kind}"]
        if task.delimiter is not None:
            core.append(f"  continuation_delimiter: {json.dumps(task.delimiter)}")
        rows.append(f"{task.label},some,{task.baseline}")
        lines = [json.dumps(example(draw, task), ensure_ascii=False) for _ in range(task.n_examples)]
        (data / f"{task.label}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "core.yaml").write_text("\n".join(core) + "\n", encoding="utf-8")
    (folder / "eval_meta_data.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


def example(draw: random.Random, task: Made) -> dict[str, Any]:
    """One random example of a task's kind."""
    query = text(draw, *task.words)
    if task.kind == "language_modeling":
        return {
            "context": draw.choice(("", " ", "\n")) + query + draw.choice(("", " ")),
            "continuation": text(draw, 1, 4) if draw.random() > 0.1 else text(draw, 60, 80),  # more than fits
        }
    n = draw.randint(2, 5)
    gold = draw.randrange(n)
    if task.kind == "schema":
        beginnings = [f"{query} {text(draw, 1, 2)}" for _ in range(n)]
        return {"context_options": beginnings, "continuation": text(draw, 1, 4), "gold": gold}
    choices = [text(draw, 1, 3) for _ in range(n)]
    if draw.random() < 0.2:
        choices[0] = choices[-1]  # twice the same
    if draw.random() < 0.2:
        choices[0] = choices[-1] + " and more"  # one is the beginning of another
    return {"query": query, "choices": choices, "gold": gold}


def text(draw: random.Random, least: int, most: int) -> str:
    """So many random words."""
    return " ".join(draw.choice(WORDS) for _ in range(draw.randint(least, most)))
