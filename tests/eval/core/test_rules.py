"""Rules of the protocol one by one, with models whose answer is known."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
import torch
from helpers.core_bundle import CONTEXT, Made, made_tasks, text, write_bundle
from scipy.stats import kendalltau
from torch import Tensor

from looplit.data.tokenizer import load_tokenizer
from looplit.errors import InputError
from looplit.eval.core import (
    FILTERED,
    LABELS,
    PUBLISHED_FINGERPRINT,
    Outcome,
    TaskResult,
    evaluate,
    open_bundle,
    plan_evaluation,
    select_tasks,
    summarize,
    table,
)
from looplit.eval.core.batches import collate, groups
from looplit.eval.core.bundle import Example, Task
from looplit.eval.core.prompts import SegmentEncoder, ask, demonstrations
from looplit.eval.core.scoring import Scorer, outcomes
from looplit.model import Backbone

BYTES = load_tokenizer("bytes")


def alphabet(tokens_BT: Tensor) -> Tensor:
    """Logits of a model that is sure of the next letter of the alphabet, and finds all else equally likely."""
    return 5.0 * torch.nn.functional.one_hot((tokens_BT + 1) % 257, 257).float()


def one(kind: str, delimiter: str = " ", **example: Any) -> tuple[Task, Example]:
    task = Task("made", kind, 0, delimiter, Path("made.jsonl"), 0.0)  # type: ignore[arg-type]
    queries, answers = example["queries"], example["answers"]
    if len(queries) < len(answers):
        queries = queries * len(answers)
    return task, Example(tuple(queries), tuple(answers), example.get("gold", 0))


def answer(task: Task, example: Example, model: Any = alphabet, tokenizer: tiktoken.Encoding = BYTES) -> Outcome:
    question = ask(task, [example], 0, 0, SegmentEncoder(tokenizer), CONTEXT)
    assert question is not None
    batch = collate([question])
    return next(outcomes(batch, *Scorer(model)(batch), np.ones(257, np.int64)))


@pytest.mark.parametrize(("continuation", "right"), [("bcd", True), ("bce", False), ("b", True)])
def test_language_modelling_needs_every_token(continuation: str, right: bool) -> None:
    outcome = answer(*one("language_modeling", "", queries=["a"], answers=[continuation]))
    assert outcome.correct is right
    assert outcome.answer_tokens == len(continuation)


def test_an_empty_answer_is_never_right_and_has_no_nll() -> None:
    outcome = answer(*one("language_modeling", "", queries=["a"], answers=[""]))
    assert (outcome.correct, outcome.answer_tokens, outcome.answer_nats) == (False, 0, 0.0)


def test_the_lowest_mean_wins_not_the_lowest_sum() -> None:
    outcome = answer(*one("multiple_choice", "", queries=["-a"], answers=["x", "bcdefghx"], gold=1))
    assert outcome.prediction == 1


def test_equal_choices_tie_and_the_first_wins() -> None:
    outcome = answer(*one("multiple_choice", "", queries=["-a"], answers=["z", "bc", "bc"], gold=2))
    assert outcome.losses[1] == outcome.losses[2] < outcome.losses[0]
    assert (outcome.prediction, outcome.correct) == (1, False)


def test_a_choice_that_begins_another_has_nothing_to_score_and_cannot_win() -> None:
    outcome = answer(*one("multiple_choice", "", queries=["-a"], answers=["b", "bz"], gold=0))
    assert outcome.losses[0] == math.inf
    assert (outcome.prediction, outcome.answer_tokens) == (1, 1)  # its answer NLL is defined all the same


def test_where_nothing_can_be_scored_nothing_is_right() -> None:
    outcome = answer(*one("multiple_choice", "", queries=["-a"], answers=["b", "b"], gold=0))
    assert (outcome.prediction, outcome.correct) == (-1, False)


@pytest.mark.parametrize("kind", ["multiple_choice", "schema", "language_modeling"])
def test_not_a_number_never_wins(kind: str) -> None:
    count = 1 if kind == "language_modeling" else 2
    queries = ["a", "b"] if kind == "schema" else ["a"] * count
    answers = ["bc"] * count if kind == "schema" else ["bc", "zz"][:count]
    task, example = one(kind, "", queries=queries, answers=answers)
    outcome = answer(task, example, lambda tokens: alphabet(tokens) * math.nan)
    assert (outcome.prediction, outcome.correct) == (-1, False)
    assert math.isnan(outcome.answer_nats)

    def nan_at_b(tokens: Tensor) -> Tensor:
        return torch.where((tokens == ord("b"))[..., None], math.nan, alphabet(tokens))

    if kind == "multiple_choice":
        assert answer(task, example, nan_at_b).prediction == 1


def test_a_token_without_a_loss_is_not_hit() -> None:
    task, example = one("language_modeling", "", queries=["a"], answers=["\0"])  # argmax over NaN is token 0
    assert not answer(task, example, lambda tokens: alphabet(tokens) * math.nan).correct


def test_schema_scores_the_common_ending() -> None:
    outcome = answer(*one("schema", "", queries=["the z", "the a"], answers=["bcd", "bcd"], gold=1))
    assert (outcome.prediction, outcome.answer_tokens) == (1, 3)
    near, far = torch.nn.functional.cross_entropy(
        alphabet(torch.tensor([[0, 0]]))[0], torch.tensor([1, 9]), reduction="none"
    ).tolist()
    assert outcome.losses == pytest.approx([(far + 2 * near) / 3, near], abs=1e-6)


def test_demonstrations_are_the_published_draw() -> None:
    for n, example, shots, seed in ((7, 0, 3, 0), (7, 6, 6, 1), (50, 13, 10, 2), (3, 1, 10, 0), (1, 0, 5, 0)):
        others = [j for j in range(n) if j != example]
        assert demonstrations(n, example, shots, seed) == random.Random(seed + example).sample(
            others, min(shots, len(others))
        )


@pytest.mark.parametrize("name", ["bytes", "gpt2", "other"])
def test_segments_are_encoded_as_the_whole_is(name: str, request: pytest.FixtureRequest) -> None:
    if name != "bytes":
        request.getfixturevalue("gpt2_files")
    tokenizer = load_tokenizer("gpt2" if name == "other" else name)
    if name == "other":
        pattern = r"[\p{L}\p{N}]+|[^\s\p{L}\p{N}]+[\r\n]*|\s+"  # takes line breaks into the punctuation before them
        tokenizer = tiktoken.Encoding("other", pat_str=pattern, mergeable_ranks=tokenizer._mergeable_ranks,
                                      special_tokens={"<|endoftext|>": 50256})  # fmt: skip
    encoder, draw = SegmentEncoder(tokenizer), random.Random(1)
    endings = ("", ".", "!?", " ", "\n", "\u2003", "\x1c", "'", "'s", "²", "9", "…", "\u00a0")
    for _ in range(300):
        texts = [text(draw, 1, 4) + draw.choice(endings) for _ in range(draw.randint(1, 5))]
        segments = [texts[0], *("\n\n" + part for part in texts[1:])]
        joined = tokenizer.encode_ordinary("".join(segments))
        assert encoder.encode(segments).tolist() == [tokenizer.eot_token, *joined]


def test_a_prompt_whose_tokens_are_no_prefix_is_counted_and_scored_from_the_common_prefix(gpt2_files: None) -> None:
    tokenizer = load_tokenizer("gpt2")
    task, example = one("language_modeling", "", queries=["i lo"], answers=["ve dogs"])
    question = ask(task, [example], 0, 0, SegmentEncoder(tokenizer), CONTEXT)
    assert question is not None
    assert tokenizer.decode(question.sequence(0)[question.starts[0] :].tolist()) == " love dogs"
    assert question.splits_token
    task, example = one("language_modeling", " ", queries=["i love"], answers=["dogs"])
    whole = ask(task, [example], 0, 0, SegmentEncoder(tokenizer), CONTEXT)
    assert whole is not None
    assert not whole.splits_token


def test_longer_than_the_context_keeps_the_last_tokens() -> None:
    task, example = one("language_modeling", "", queries=["q" * 500], answers=["bcd"])
    question = ask(task, [example], 0, 0, SegmentEncoder(BYTES), CONTEXT)
    assert question is not None
    assert question.sequence(0).tolist() == [*b"q" * (CONTEXT - 3), *b"bcd"]
    assert question.starts == (CONTEXT - 3,)
    too_long = Example(("q",), ("b" * CONTEXT,), 0)
    assert ask(task, [too_long], 0, 0, SegmentEncoder(BYTES), CONTEXT) is None


@pytest.mark.parametrize("share", [True, False])
def test_groups_keep_the_budget_and_lose_nothing(bundle_folder: Path, share: bool) -> None:
    plan = plan_evaluation(open_bundle(bundle_folder), "bytes", context=CONTEXT)
    for planned in plan.tasks:
        asked = []
        for group in groups(planned.questions, 1024, share):
            asked += [(question.seed, question.example) for question in group]
            assert collate(group, share).tokens_BT.numel() <= 1024 or len(group) == 1
        assert sorted(asked) == sorted((q.seed, q.example) for q in planned.questions)


def test_sharing_saves_the_repeated_beginning(bundle_folder: Path) -> None:
    plan = plan_evaluation(open_bundle(bundle_folder), "bytes", context=CONTEXT, tasks=["arc_easy"])
    assert (plan.tasks[0].task.kind, plan.tasks[0].task.n_shots) == ("multiple_choice", 10)
    assert plan.tasks[0].tokens(share=True) < 0.6 * plan.tasks[0].tokens(share=False)


def test_zero_shot_tasks_are_asked_once(backbone: Backbone, bundle_folder: Path) -> None:
    bundle = open_bundle(bundle_folder)
    label = next(label for label, task in bundle.tasks.items() if task.n_shots == 0)
    plan = plan_evaluation(bundle, "bytes", context=CONTEXT, tasks=[label])
    assert plan.tasks[0].seeds == (0,)
    summary = evaluate(backbone, plan)
    assert len({summary["per_seed"][seed]["losses"][label] for seed in ("0", "1", "2")}) == 1


def test_bits_per_byte_count_the_text(tmp_path: Path, gpt2_files: None) -> None:
    sentence = "i love dogs 🐕 naïve 你好"
    folder = write_bundle(tmp_path / "b", [Made("copa", "language_modeling", [0], 1, delimiter="")])
    (folder / "eval_data" / "some kind" / "copa.jsonl").write_text(
        json.dumps({"context": "", "continuation": sentence}), encoding="utf-8"
    )
    told: list[Outcome] = []
    plan = plan_evaluation(open_bundle(folder), "gpt2")
    evaluate(
        lambda tokens: torch.zeros(*tokens.shape, 50257), plan, on_task=lambda _, __, outcomes: told.extend(outcomes)
    )
    assert [o.answer_bytes for o in told] == [len(sentence.encode())]


def test_filtered_core_is_the_mean_of_its_17_tasks(backbone: Backbone, bundle_folder: Path) -> None:
    plan = plan_evaluation(open_bundle(bundle_folder), "bytes", context=CONTEXT, limit=1, seeds=[0])
    summary = evaluate(backbone, plan)
    assert len(FILTERED) == 17
    assert summary["core_metric_filtered"] == pytest.approx(
        sum(summary["centered_results"][label] for label in FILTERED) / 17
    )


def test_what_is_not_the_suite_says_so(backbone: Backbone, bundle_folder: Path) -> None:
    plan = plan_evaluation(open_bundle(bundle_folder), "bytes", context=CONTEXT, limit=2, tasks=LABELS[:10], seeds=[0])
    summary = evaluate(backbone, plan)
    assert summary["published_suite"] is False
    assert summary["partial"][0] == "10 of 22 tasks"
    assert "core_metric_filtered" not in summary


def test_skipped_examples_are_counted(backbone: Backbone, bundle_folder: Path, reference: dict[str, Any]) -> None:
    summary = evaluate(backbone, plan_evaluation(open_bundle(bundle_folder), "bytes", context=CONTEXT))
    expected = {key[0] for key, e in reference["examples"].items() if e is None}
    assert expected
    assert set(summary["skipped"]) == expected
    assert any("do not fit" in reason for reason in summary["partial"])


@pytest.mark.parametrize(
    ("labels", "partial"),
    [
        (LABELS, []),
        (LABELS[1:], ["21 of 22 tasks, without hellaswag_zeroshot"]),
        ((*LABELS, "mine"), ["tasks that are not of the suite: mine"]),
        (("mine",), []),
    ],
)
def test_a_missing_or_a_23rd_task_is_marked(tmp_path: Path, labels: tuple[str, ...], partial: list[str]) -> None:
    folder = write_bundle(tmp_path / "b", [Made(label, "schema", [0], 1) for label in labels])
    result = TaskResult((0.5,), (1.0,), (1.0,), (1,), (0,), (0,))
    summary = summarize(open_bundle(folder), dict.fromkeys(labels, result), [0])
    assert (summary["published_suite"], summary["partial"]) == (False, partial)
    assert all(reason in table(summary) for reason in partial)


def test_centering_takes_the_baseline_of_the_bundle(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "b", [Made("boolq", "schema", [0], 1, baseline=62), Made("copa", "schema", 0, 1)])
    accuracies = {"boolq": (0.64, 0.50), "copa": (0.0, 1.0)}
    results = {
        label: TaskResult(a, (1.0,) * 2, (1.0,) * 2, (1,) * 2, (0,) * 2, (0,) * 2) for label, a in accuracies.items()
    }
    summary = summarize(open_bundle(folder), results, [0, 1])
    first, second = (summary["per_seed"][seed]["centered_results"] for seed in ("0", "1"))
    assert first == pytest.approx({"boolq": 0.0526, "copa": -0.3333}, abs=5e-5)  # the values have four digits
    assert second == pytest.approx({"boolq": -0.3158, "copa": 1.0}, abs=5e-5)
    metrics = [sum(one.values()) / 2 for one in (first, second)]
    assert summary["core_metric"] == pytest.approx(sum(metrics) / 2)
    assert summary["core_metric_std"] == pytest.approx(abs(metrics[1] - metrics[0]) / 2)  # population, not sample


def test_a_published_suite_with_shorter_prompts_is_marked(tmp_path: Path) -> None:
    bundle = open_bundle(write_bundle(tmp_path / "b", [Made(label, "schema", [0], 1) for label in LABELS]))
    results = dict.fromkeys(LABELS, TaskResult((0.5,), (1.0,), (1.0,), (1,), (0,), (0,)))
    published = dataclasses.replace(bundle, fingerprint=PUBLISHED_FINGERPRINT)
    assert summarize(published, results, [0], context=2048)["partial"] == []
    assert summarize(published, results, [0], context=256)["partial"] == [
        "longer prompts keep 256 tokens, in the protocol 2,048"
    ]


def test_a_bundle_of_other_tasks(tmp_path: Path, backbone: Backbone) -> None:
    folder = write_bundle(tmp_path / "own", [Made("mine", "schema", [2], 4), Made("other", "multiple_choice", 0, 5)])
    summary = evaluate(backbone, plan_evaluation(open_bundle(folder), "bytes", context=CONTEXT))
    assert (summary["published_suite"], summary["partial"], summary["num_examples"]) == (False, [], 9)


def test_the_filter_keeps_what_stands_out_and_rises() -> None:
    amounts = [4.0, 1.0, 2.0, 3.0]  # the checkpoint with the most tokens comes first
    accuracies = {
        "just enough": [0.27, 0.10, 0.24, 0.26],
        "just too little": [0.2699, 0.10, 0.24, 0.26],
        "rises too little": [0.9, 0.3, 0.4, 0.2],  # 4 pairs in order, 2 not: a third
        "high and falling": [0.8, 0.9, 0.9, 0.85],
        "constant": [0.9] * 4,
    }
    taus = {name: kendalltau(amounts, values).statistic for name, values in accuracies.items()}
    assert 0 < taus["rises too little"] < 0.5 < taus["just enough"]
    assert select_tasks(amounts, accuracies, dict.fromkeys(accuracies, 0.25)) == ["just enough"]
    with pytest.raises(InputError, match="accuracies of a = .*must be 4 values"):
        select_tasks(amounts, {"a": [0.5]}, {"a": 0.25})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks": ["nope"]}, "tasks = \\['nope'\\]"),
        ({"seeds": [0, 0]}, "seeds"),
        ({"limit": 0}, "limit = 0"),
        ({"context": 4096}, "context = 4096: the model's context is 256"),
        ({"tokenizer": "gpt2"}, "vocabulary is 257"),
    ],
)
def test_wrong_settings_are_named(
    settings: dict[str, Any], message: str, backbone: Backbone, bundle_folder: Path, gpt2_files: None
) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(
            backbone, plan_evaluation(open_bundle(bundle_folder), **{"tokenizer": "bytes", "limit": 1, **settings})
        )


def test_made_tasks_are_the_22_labels() -> None:
    assert [made.label for made in made_tasks()] == list(LABELS)
    assert len(set(LABELS)) == 22
