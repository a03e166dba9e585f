"""The fast evaluator against the slow one, example by example."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.core_bundle import CONTEXT, made_tasks, make_model, write_bundle
from helpers.core_reference import ATOL, assert_same, slow_core

from looplit.data.tokenizer import load_tokenizer
from looplit.eval.core import Outcome, evaluate, open_bundle, plan_evaluation
from looplit.model import Backbone


def told_by(
    model: Any, folder: Path, tokenizer: str = "bytes", **settings: Any
) -> tuple[dict[str, Any], dict[tuple[str, int, int], Outcome]]:
    """The summary, and the outcome of every (label, seed, example)."""
    planned = {name: settings.pop(name) for name in ("seeds", "limit", "tasks") if name in settings}
    context = settings.pop("context", CONTEXT)
    outcomes: dict[tuple[str, int, int], Outcome] = {}
    plan = plan_evaluation(open_bundle(folder), tokenizer, context=context, **planned)
    summary = evaluate(
        model, plan, on_task=lambda label, _, told: outcomes.update({(label, o.seed, o.example): o for o in told}),
        **settings,
    )  # fmt: skip
    return summary, outcomes


@pytest.mark.parametrize("share_prefixes", [True, False])
@pytest.mark.parametrize("token_budget", [512, 4096, 32768])
def test_equal_to_one_example_at_a_time(
    token_budget: int, share_prefixes: bool, backbone: Backbone, bundle_folder: Path, reference: dict[str, Any]
) -> None:
    summary, outcomes = told_by(backbone, bundle_folder, token_budget=token_budget, share_prefixes=share_prefixes)
    assert_same(summary, outcomes, reference)


def test_bundle_is_a_real_trial(reference: dict[str, Any]) -> None:
    """Were all answers the same, or none cropped, the comparison would show little."""
    examples = reference["examples"].values()
    told = [e for e in examples if e]
    assert len({e["prediction"] for e in told}) >= 4
    assert 0.1 < sum(e["correct"] for e in told) / len(told) < 0.9
    assert any(e is None for e in examples)
    assert any(math.inf in e["losses"] for e in told)
    assert any(len(set(e["losses"])) < len(e["losses"]) for e in told)
    assert reference["core_metric_std"] > 0


def test_any_callable_gives_the_same(backbone: Backbone, bundle_folder: Path, reference: dict[str, Any]) -> None:
    summary, outcomes = told_by(lambda tokens: backbone(tokens), bundle_folder)
    assert_same(summary, outcomes, reference)
    assert summary["passes"] is None


def test_gpt2_tokens(tmp_path: Path, gpt2_files: None) -> None:
    """Tokens that join a delimiter to an answer."""
    folder = write_bundle(tmp_path / "bundle", made_tasks()[:9], seed=5)
    model = make_model(50257, 64)
    with torch.no_grad():
        expected = slow_core(folder, model, load_tokenizer("gpt2"), seeds=(0, 2), context=64)
    summary, outcomes = told_by(model, folder, "gpt2", seeds=(0, 2), context=64)
    assert_same(summary, outcomes, expected)


def test_limit_scores_the_first_examples_as_the_whole_does(backbone: Backbone, bundle_folder: Path) -> None:
    _, whole = told_by(backbone, bundle_folder, seeds=[1])
    summary, limited = told_by(backbone, bundle_folder, seeds=[1], limit=2)
    assert {key for key in whole if key[2] < 2} == set(limited)
    for key, outcome in limited.items():
        assert outcome.losses == pytest.approx(whole[key].losses, abs=ATOL)
    assert summary["partial"][0] == "at most 2 examples of each task"


def test_passes_are_set_for_the_evaluation_alone(backbone: Backbone, bundle_folder: Path) -> None:
    backbone.train()
    at_own, told_at_own = told_by(backbone, bundle_folder, tasks=["boolq"])
    at_three, told_at_three = told_by(backbone, bundle_folder, tasks=["boolq"], passes=3)
    assert (at_own["passes"], at_three["passes"], backbone.passes) == (2, 3, 2)
    assert all(abs(told_at_own[key].answer_nats - o.answer_nats) > 1e-4 for key, o in told_at_three.items())
    assert all(module.training for module in backbone.modules())
    backbone.eval()


def test_compiled_blocks_are_not_compiled_again(bundle_folder: Path) -> None:
    compiled: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        compiled.append(len(inputs))
        return graph.forward

    model = make_model()
    for block in model.blocks():
        block.compile(backend=backend)
    told_by(model, bundle_folder, tasks=["copa"])
    assert not compiled
    model(torch.zeros(1, 8, dtype=torch.long))
    assert compiled
