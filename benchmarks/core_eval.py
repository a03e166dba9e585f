"""CORE scored in batches against one prompt at a time: same model, same bundle, same numbers, one run on the CPU.

The slow scorer is the one that the tests compare with: every prompt of every choice in a forward of its own, logits of
all its positions. Prompts have 100 to 1,500 tokens and 1 to 10 demonstrations, in CORE's mix of task types.

    python benchmarks/core_eval.py [--examples 3] [--token_budget 2048] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "eval" / "core"))

from helpers.core_bundle import Made, write_bundle
from helpers.core_reference import slow_core

from looplit.data.tokenizer import load_tokenizer
from looplit.eval.core import Plan, evaluate, open_bundle, plan_evaluation
from looplit.model import Backbone, BackboneConfig

# (kind, demonstrations, words of a query), in CORE's proportions: 11 multiple choice, 2 schema, 9 language modelling
MIX = (
    ("multiple_choice", 10, (4, 12)), ("multiple_choice", 5, (6, 20)), ("multiple_choice", 1, (10, 80)),
    ("multiple_choice", 3, (20, 50)), ("schema", 2, (8, 30)), ("language_modeling", 10, (3, 15)),
    ("language_modeling", 3, (20, 50)), ("language_modeling", 1, (20, 120)),
)  # fmt: skip


def make_model() -> Backbone:
    """Width 256, 8 executed blocks, 50,304 columns, zero-initialised matrices set."""
    model = Backbone(BackboneConfig(width=256, heads=4, prelude=2, core=2, coda=2, passes=2))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    return model.eval()


def peak_gib() -> float:
    """Largest memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def lengths(plan: Plan) -> list[int]:
    """Tokens of every prompt."""
    return sorted(q.length(c) for task in plan.tasks for q in task.questions for c in range(len(q.starts)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=3, help="examples scored of each task (default %(default)s)")
    parser.add_argument("--token_budget", type=int, default=2048, help="tokens per batch (default %(default)s)")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    args = parser.parse_args()
    model = make_model()
    with tempfile.TemporaryDirectory() as scratch:
        made = [Made(f"task_{n}", kind, [shots], 12, words) for n, (kind, shots, words) in enumerate(MIX)]
        folder = write_bundle(Path(scratch) / "eval_bundle", made)
        settings: dict[str, Any] = {"seeds": (0,), "limit": args.examples}
        start = time.perf_counter()
        plan = plan_evaluation(open_bundle(folder), "bytes", **settings)
        before = peak_gib()
        fast = evaluate(model, plan, token_budget=args.token_budget)
        fast_s, fast_gib = time.perf_counter() - start, peak_gib() - before
        start = time.perf_counter()
        with torch.no_grad():
            slow = slow_core(folder, model, load_tokenizer("bytes"), **settings)
        slow_s = time.perf_counter() - start
    tokens = lengths(plan)
    worst = max(abs(fast["losses"][label] - loss) for label, loss in slow["losses"].items())
    numbers = {
        "examples": fast["num_examples"],
        "prompts": len(tokens),
        "prompt_tokens": {"shortest": tokens[0], "median": median(tokens), "longest": tokens[-1]},
        "tokens_after_sharing": sum(task.tokens() for task in plan.tasks),
        "tokens_one_at_a_time": sum(tokens),
        "fast_examples_per_second": fast["num_examples"] / fast_s,
        "slow_examples_per_second": fast["num_examples"] / slow_s,
        "speedup": slow_s / fast_s,
        "fast_gib_above_model": fast_gib,
        "largest_difference_of_a_task_loss": worst,
        "equal_accuracy": fast["results"] == slow["results"],
        "token_budget": args.token_budget,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    print(json.dumps(numbers, indent=2))
    if args.json is not None:
        args.json.write_text(json.dumps(numbers, indent=2) + "\n")


if __name__ == "__main__":
    main()
