"""The protocol of CORE once more, plainly: one prompt per forward, whole logits, nothing shared with the package."""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest
import tiktoken
import torch
import yaml
from torch import Tensor

Logits = Callable[[Tensor], Tensor]

# fp32 rounding of a sum over 32 channels and a softmax over 256 tokens, in another order; the logits are of order 1.
ATOL = 1e-5
AGGREGATES = ("core_metric", "core_metric_std", "core_loss", "core_bpb")
PER_TASK = ("results", "centered_results", "losses", "bits_per_byte")


def slow_core(
    folder: Path,
    model: Logits,
    tokenizer: tiktoken.Encoding,
    seeds: Sequence[int] = (0, 1, 2),
    limit: int | None = None,
    context: int = 2048,
) -> dict[str, Any]:
    """All numbers of an evaluation, and under "examples" what happened to each (label, seed, index)."""
    tasks = yaml.safe_load((folder / "core.yaml").read_text())["icl_tasks"]
    with (folder / "eval_meta_data.csv").open() as file:
        baseline = {row["Eval Task"]: row["Random baseline"] for row in csv.DictReader(file)}
    examples: dict[tuple[str, int, int], dict[str, Any]] = {}
    accuracy, loss, bits, center = {}, {}, {}, {}
    for task in tasks:
        label = task["label"]
        lines = (folder / "eval_data" / task["dataset_uri"]).read_text(encoding="utf-8").split("\n")
        data = [json.loads(line) for line in lines if line]
        random.Random(1337).shuffle(data)
        for seed in seeds:
            for i in range(len(data) if limit is None else min(limit, len(data))):
                examples[label, seed, i] = one_example(task, data, i, seed, model, tokenizer, context)
        done = {s: [e for (of, t, _), e in examples.items() if (of, t) == (label, s) and e] for s in seeds}
        accuracy[label] = [fmean(e["correct"] for e in done[s]) for s in seeds]
        loss[label] = [fmean(e["nats"] / e["tokens"] for e in done[s] if e["tokens"]) for s in seeds]
        bits[label] = [sum(e["nats"] for e in done[s]) / sum(e["bytes"] for e in done[s]) / math.log(2) for s in seeds]
        b = float(baseline[label]) / 100
        center[label] = [(a - b) / (1 - b) for a in accuracy[label]]
    per_seed = [fmean(center[label][s] for label in center) for s in range(len(seeds))]
    return {
        "examples": examples,
        "results": {label: fmean(values) for label, values in accuracy.items()},
        "centered_results": {label: fmean(values) for label, values in center.items()},
        "losses": {label: fmean(values) for label, values in loss.items()},
        "bits_per_byte": {label: fmean(values) for label, values in bits.items()},
        "core_metric": fmean(per_seed),
        "core_metric_std": pstdev(per_seed),
        "core_loss": fmean(fmean(values) for values in loss.values()),
        "core_bpb": fmean(fmean(values) for values in bits.values()),
    }


def one_example(
    task: dict[str, Any],
    data: list[dict[str, Any]],
    i: int,
    seed: int,
    model: Logits,
    tokenizer: tiktoken.Encoding,
    context: int,
) -> dict[str, Any] | None:
    """Prediction, losses and answer of one example; None where it does not fit."""
    kind, delimiter = task["icl_task_type"], task.get("continuation_delimiter", " ")
    others = [j for j in range(len(data)) if j != i]
    drawn = random.Random(seed + i).sample(others, min(task["num_fewshot"][0], len(others)))
    shots = [data[j] for j in drawn]
    item = data[i]

    def encode(text: str) -> list[int]:
        return [tokenizer.eot_token, *tokenizer.encode_ordinary(text)]

    if kind == "multiple_choice":
        lead = (
            "".join(f"{s['query']}{delimiter}{s['choices'][s['gold']]}\n\n" for s in shots) + item["query"] + delimiter
        )
        wholes = [(lead + choice).strip() for choice in item["choices"]]
        answer = item["choices"][item["gold"]].rstrip()
        gold = item["gold"]
    elif kind == "schema":
        lead = "".join(f"{s['context_options'][s['gold']]}{delimiter}{s['continuation']}\n\n" for s in shots)
        wholes = [lead + option + delimiter + item["continuation"] for option in item["context_options"]]
        answer, gold = item["continuation"], item["gold"]
    else:
        lead = "".join(f"{s['context'].strip()}{delimiter}{s['continuation']}\n\n" for s in shots)
        lead += item["context"].strip() + delimiter
        wholes, gold = [lead + item["continuation"]], 0
    tokens = [encode(whole) for whole in wholes]
    if kind == "language_modeling":
        prompt = encode(lead.strip())
        answer_start = common([prompt, tokens[0]])
        starts = [answer_start]
    else:
        cut = wholes[gold][: len(wholes[gold]) - len(answer)]
        answer_start = common([encode(cut), tokens[gold]])
        if kind == "multiple_choice":
            starts = [common(tokens)] * len(tokens)
        else:
            ending = common([t[::-1] for t in tokens])
            starts = [max(1, len(t) - ending) for t in tokens]
    losses, hits, answer_losses, answer_tokens = [], [], [], []
    for c, (whole, start) in enumerate(zip(tokens, starts, strict=True)):
        left = max(0, len(whole) - context)
        if start - left < 1 or (c == gold and answer_start - left < 1):
            return None
        kept = whole[left:]
        logits = model(torch.tensor([kept]))[0, :-1]
        per_token = torch.nn.functional.cross_entropy(logits, torch.tensor(kept[1:]), reduction="none").double()
        span = per_token[start - left - 1 :]
        losses.append(float(span.mean()) if len(span) else math.inf)
        if c == gold:
            hits = (logits.argmax(-1) == torch.tensor(kept[1:]))[start - left - 1 :].tolist()
            answer_losses = per_token[answer_start - left - 1 :].tolist()
            answer_tokens = whole[answer_start:]
    if kind == "language_modeling":
        prediction = 0 if hits and all(hits) else -1
    else:
        prediction = losses.index(min(losses)) if min(losses) < math.inf else -1
    return {
        "prediction": prediction,
        "correct": prediction == gold,
        "losses": losses,
        "nats": sum(answer_losses),
        "tokens": len(answer_tokens),
        "bytes": len(tokenizer.decode_bytes(answer_tokens)),
    }


def common(sequences: list[list[int]]) -> int:
    """Tokens in common from the left."""
    count = 0
    for tokens in zip(*sequences, strict=False):
        if len(set(tokens)) > 1:
            break
        count += 1
    return count


def assert_same(summary: dict[str, Any], outcomes: dict[tuple[str, int, int], Any], reference: dict[str, Any]) -> None:
    """Equal choices on every example (label, seed, index), and losses to rounding."""
    asked = {key: e for key, e in reference["examples"].items() if e is not None}
    zero_shot = {key for key in asked if key not in outcomes}
    assert all(key[1] != 0 for key in zero_shot)
    assert set(outcomes) == set(asked) - zero_shot
    for key, o in outcomes.items():
        expected = asked[key]
        assert (o.prediction, o.correct) == (expected["prediction"], expected["correct"]), key
        assert (o.answer_tokens, o.answer_bytes) == (expected["tokens"], expected["bytes"]), key
        assert o.losses == pytest.approx(expected["losses"], abs=ATOL), key
        assert o.answer_nats == pytest.approx(expected["nats"], abs=ATOL * max(1, o.answer_tokens)), key
    for name in AGGREGATES:
        assert summary[name] == pytest.approx(reference[name], abs=ATOL), name
    for name in PER_TASK:
        assert summary[name] == pytest.approx(reference[name], abs=ATOL), name
