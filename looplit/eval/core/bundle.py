"""The `eval_bundle` layout on disk: which tasks there are, their examples, and the fingerprint of the whole."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from looplit.errors import InputError, require

Kind = Literal["multiple_choice", "schema", "language_modeling"]

PUBLISHED_FINGERPRINT = "e908e4e0e145860290d46fb37c5d1bad52bbf22da843073ff0e6b6f624250e52"
LABELS = (
    "hellaswag_zeroshot", "jeopardy", "bigbench_qa_wikidata", "arc_easy", "arc_challenge", "copa", "commonsense_qa",
    "piqa", "openbook_qa", "lambada_openai", "hellaswag", "winograd", "winogrande", "bigbench_dyck_languages",
    "agi_eval_lsat_ar", "bigbench_cs_algorithms", "bigbench_operators", "bigbench_repeat_copy_logic", "squad", "coqa",
    "boolq", "bigbench_language_identification",
)  # fmt: skip
"""The 22 tasks of CORE (growth study, Table 10) by their labels in the published bundle."""

EXAMPLE_SHUFFLE_SEED = 1337
CONTEXT = 2048
"""Tokens that the protocol keeps of a longer prompt."""


@dataclass(frozen=True)
class Task:
    """One task of a bundle.

    Args:
        label: Its name in all results.
        kind: How prompts are built and what counts as right.
        n_shots: Demonstrations before the query.
        delimiter: Between a query and its answer.
        path: JSON-lines file of its examples.
        baseline: Accuracy of a random guess, from 0 to below 1.
    """

    label: str
    kind: Kind
    n_shots: int
    delimiter: str
    path: Path
    baseline: float


@dataclass(frozen=True)
class Example:
    """One example, in the words of multiple choice: question c is `queries[c]`, the delimiter and `answers[c]`.

    Multiple choice repeats the query, a schema repeats the continuation; language modelling has one of each.
    """

    queries: tuple[str, ...]
    answers: tuple[str, ...]
    gold: int


@dataclass(frozen=True)
class Bundle:
    """A suite of tasks in a folder that holds `core.yaml`."""

    folder: Path
    tasks: Mapping[str, Task]
    fingerprint: str

    @property
    def published(self) -> bool:
        """Whether this is the published CORE suite, to the byte."""
        return self.fingerprint == PUBLISHED_FINGERPRINT


def open_bundle(folder: str | Path) -> Bundle:
    """Reads the task list and the random baselines, and takes the fingerprint.

    Args:
        folder: Holds `core.yaml`, `eval_meta_data.csv` and `eval_data/`, or a folder `eval_bundle` with these.

    Raises:
        InputError: A file is missing, a task is malformed, has no baseline, or points outside the bundle.
    """
    given = Path(folder).expanduser()
    root = given if (given / "core.yaml").is_file() else given / "eval_bundle"
    for name in ("core.yaml", "eval_meta_data.csv"):
        require((root / name).is_file(), "bundle", str(given), f"holds no {name}")
    try:
        entries = yaml.safe_load(_content(root / "core.yaml"))["icl_tasks"]
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise InputError(f"bundle = {str(given)!r}: core.yaml has no readable list icl_tasks") from error
    require(isinstance(entries, list) and bool(entries), "icl_tasks", entries, "must be a list of tasks")
    baselines = _read_baselines(root / "eval_meta_data.csv")
    tasks: dict[str, Task] = {}
    for entry in entries:
        task = _task(root, entry, baselines)
        require(task.label not in tasks, "label", task.label, "stands twice in core.yaml")
        tasks[task.label] = task
    return Bundle(root, tasks, fingerprint(root))


def read_examples(task: Task) -> list[Example]:
    """The examples of a task in the order of the protocol: shuffled by `random.Random(1337)`.

    Raises:
        InputError: A line is not an example of the task's kind; names file and line.
    """
    examples = []
    for number, line in enumerate(_content(task.path).split("\n"), start=1):
        if line.strip():
            try:
                examples.append(_example(task.kind, json.loads(line)))
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise InputError(f"{task.path.name} line {number}: not a {task.kind} example ({error!r})") from error
    require(bool(examples), "task", task.label, f"{task.path.name} holds no examples")
    random.Random(EXAMPLE_SHUFFLE_SEED).shuffle(examples)
    return examples


def fingerprint(folder: str | Path) -> str:
    """SHA-256 over every file's relative path and the hex SHA-256 of its content, a folder's files before its folders.

    Files and folders go by name, parts of a path are joined by "/".
    """
    root, digest = Path(folder), hashlib.sha256()
    for path in _files(root):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(hashlib.sha256(path.read_bytes()).hexdigest().encode())
    return digest.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    entries = sorted(folder.iterdir(), key=lambda path: path.name)
    yield from (path for path in entries if path.is_file())
    for path in entries:
        if path.is_dir():
            yield from _files(path)


def _content(path: Path) -> str:
    """A text file with its line ends as they are."""
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"bundle = {str(path)!r}: not a text in UTF-8 ({error.reason})") from error


def _read_baselines(path: Path) -> dict[str, str]:
    rows = list(csv.DictReader(io.StringIO(_content(path).removeprefix("\ufeff"), newline="")))
    try:
        return {row["Eval Task"]: row["Random baseline"] for row in rows}
    except KeyError as error:
        raise InputError(f"{path.name}: has no column {error}") from error


def _task(root: Path, entry: Any, baselines: Mapping[str, str]) -> Task:
    require(isinstance(entry, dict), "icl_tasks", entry, "every task must be a mapping")
    for key in ("label", "dataset_uri", "num_fewshot", "icl_task_type"):
        require(key in entry, "icl_tasks", entry, f"a task must say its {key}")
    label, kind, shots = str(entry["label"]), entry["icl_task_type"], entry["num_fewshot"]
    first = shots[0] if isinstance(shots, list) and shots else shots
    kinds = get_args(Kind)
    require(kind in kinds, f"icl_task_type of {label}", kind, f"must be one of {', '.join(kinds)}")
    require(type(first) is int and first >= 0, f"num_fewshot of {label}", shots, "must start with a count")
    data = root / "eval_data"
    path = data / str(entry["dataset_uri"])
    inside = path.resolve().is_relative_to(data.resolve())
    require(inside, f"dataset_uri of {label}", entry["dataset_uri"], "leaves the bundle")
    require(path.is_file(), f"dataset_uri of {label}", entry["dataset_uri"], "there is no such file in eval_data")
    percent = baselines.get(label)
    require(percent is not None, "task", label, "has no line in eval_meta_data.csv")
    try:
        baseline = float(percent or "") / 100
    except ValueError:
        baseline = -1.0
    require(0 <= baseline < 1, f"Random baseline of {label}", percent, "must be a percentage from 0 to below 100")
    delimiter = entry.get("continuation_delimiter", " ")
    require(isinstance(delimiter, str), f"continuation_delimiter of {label}", delimiter, "must be text")
    return Task(label, kind, first, delimiter, path, baseline)


def _example(kind: Kind, line: Mapping[str, Any]) -> Example:
    if kind == "language_modeling":
        return Example((_text(line["context"]),), (_text(line["continuation"]),), 0)
    if kind == "multiple_choice":
        answers = _texts(line["choices"])
        queries = (_text(line["query"]),) * len(answers)
    else:
        queries = _texts(line["context_options"])
        answers = (_text(line["continuation"]),) * len(queries)
    gold = line["gold"]
    if type(gold) is not int or not 0 <= gold < len(answers):
        raise ValueError(f"gold = {gold!r} is not one of the {len(answers)} choices")
    return Example(queries, answers, gold)


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise TypeError(f"{values!r} is not a list")
    return tuple(map(_text, values))


def _text(value: Any) -> str:
    """Text as it is, and a number as it is written."""
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not text")
    return str(value)
