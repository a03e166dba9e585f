"""What an evaluation leaves on disk: its JSON, the finished tasks of an interrupted one, a line per example."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from looplit.errors import InputError
from looplit.eval.core.scoring import Outcome
from looplit.eval.core.summary import TaskResult

_BEGINNING = '{"checkpoint": '  # of every line of examples


class FinishedTasks:
    """Results of the tasks that are done, kept in a file until the evaluation is complete.

    A file of another model or other settings, or one that cannot be read, is not taken up.

    Args:
        path: The file.
        key: What the results depend on: checkpoint, suite, seeds, limit, passes and so on.
    """

    def __init__(self, path: Path, key: Mapping[str, Any]) -> None:
        self.path = path
        self.key = plain(key)
        self.results: dict[str, TaskResult] = {}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["key"] == self.key:
                self.results = {label: _task_result(values) for label, values in kept["tasks"].items()}

    def add(self, label: str, result: TaskResult) -> None:
        """Keeps one more result."""
        self.results[label] = result
        tasks = {name: asdict(one) for name, one in self.results.items()}
        write_json(self.path, {"key": self.key, "tasks": tasks})

    def remove(self) -> None:
        """Removes the file: the evaluation is complete."""
        self.path.unlink(missing_ok=True)


class ExampleLines:
    """One JSON line per example asked: checkpoint, task, seed, example, prediction, losses and the answer's NLL.

    Args:
        path: The file. Lines of other checkpoints and of the tasks that are done are kept, all others removed.
        checkpoint: Whose examples are added.
        done: Tasks that are not asked again.

    Attributes:
        tasks: Those of the checkpoint that have lines.

    Raises:
        InputError: The file has a line that is not one of these; it stays as it is.
    """

    def __init__(self, path: Path, checkpoint: str, done: Iterable[str]) -> None:
        self.path, self.checkpoint, kept = path, checkpoint, set(done)
        entries = [e for e in _entries(path) if e["checkpoint"] != checkpoint or e["task"] in kept]
        self.tasks = {e["task"] for e in entries if e["checkpoint"] == checkpoint}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(map(_line, entries)), encoding="utf-8")

    def add(self, task: str, found: Iterable[Outcome]) -> None:
        """Appends the outcomes of one task."""
        with self.path.open("a", encoding="utf-8") as file:
            for outcome in sorted(found, key=lambda o: (o.seed, o.example)):
                file.write(_line({"checkpoint": self.checkpoint, "task": task, **asdict(outcome)}))


def write_json(path: Path, value: Any) -> None:
    """Writes indented JSON so that a reader finds the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(path.name + ".new")
    scratch.write_text(json.dumps(plain(value), indent=2) + "\n", encoding="utf-8")
    os.replace(scratch, path)


def plain(value: Any) -> Any:
    """The value as JSON has it: lists for tuples, null for numbers that are not finite.

    >>> plain({"a": (1, float("nan"))})
    {'a': [1, None]}
    """
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _entries(path: Path) -> list[dict[str, Any]]:
    """The lines of a file, but for a last one that was begun and not written to its end."""
    *lines, last = path.read_text(encoding="utf-8").split("\n") if path.is_file() else [""]
    if last[: len(_BEGINNING)] != _BEGINNING[: len(last)]:
        lines.append(last)
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            entries.append({"checkpoint": entry["checkpoint"], "task": entry["task"], **entry})
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"examples = {str(path)!r}: line {number} is not an example of an evaluation") from error
    return entries


def _task_result(values: Mapping[str, Any]) -> TaskResult:
    """A result from JSON, where null stands for not a number."""
    scores: dict[str, Any] = {name: tuple(math.nan if v is None else v for v in kept) for name, kept in values.items()}
    return TaskResult(**scores)


def _line(entry: Mapping[str, Any]) -> str:
    return json.dumps(plain(entry)) + "\n"
