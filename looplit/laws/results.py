"""Finished runs as rows of named numbers, from a CSV table, or from a folder of runs that left `result.json`."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from looplit.errors import InputError, require
from looplit.wording import is_numeral

ALIASES = {"arm": "family", "compute_flops": "training_flops", "val_loss": "final_val_loss"}
"""Names of the published table → ours."""

TASK_TABLES = {"losses": "loss:", "centered_results": "centered:"}
"""Tables of an evaluation → prefix of the columns they become, "loss:hellaswag" for example."""

UNITS = {
    "training_flops": "training FLOPs",
    "train_seconds": "seconds of optimization",
    "tokens": "training tokens",
    "tokens_per_parameter": "training tokens per initial stored parameter",
    "growth_fraction": "fraction of training tokens after growth",
    "stored_parameters": "stored parameters N",
    "passes": "passes K",
    "trained_passes": "trained passes B",
    "depth": "nominal depth",
    "learning_rate": "matrix learning rate per step",
    "embedding_lr": "embedding learning rate per step",
    "head_lr": "head learning rate per step",
    "weight_decay": "weight decay per step and learning rate",
    "embedding_lr_multiplier": "multiple of the matrix learning rate",
    "head_lr_multiplier": "multiple of the matrix learning rate",
    "residual_multiplier": "factor on every block's branches",
    "output_multiplier": "factor on the logits",
    "injection_scale": "factor on the prelude's output",
    "embedding_std": "standard deviation",
    "uniform_init_scale": "multiple of width^-0.5",
    "batch_tokens": "tokens per optimizer step",
    "warmup_steps": "optimizer steps",
    "warmdown_ratio": "fraction of the optimizer steps",
    "effective_depth": "executed blocks",
    "final_val_loss": "nats per token",
    "best_val_loss": "nats per token",
    "final_val_bpb": "bits per byte",
    "core_loss": "nats per token of the gold answers",
    "loss:": "nats per token of the gold answers",
    "centered:": "centered accuracy",
    "core_metric": "CORE, mean centered accuracy",
    "core_metric_filtered": "filtered CORE, mean centered accuracy",
}
CIRCUMSTANCES = (
    "tokens_per_second", "train_seconds", "wall_s", "peak_gib", "device", "device_count", "versions", "config_path",
    "checkpoint_path",
)  # fmt: skip
"""What may differ between two results of one run: where it ran, how fast, and where it was kept."""

SIZE = ("depth", "width", "stored_parameters")
"""What tells the rungs of a ladder apart."""

SETTINGS = (
    "family", "corpus", "optimizer", "heads", "split", "passes", "initial_passes", "trained_passes", "vocabulary",
    "context", "batch_tokens", "pool_tokens", "epochs", "tokens_per_parameter", "growth_fraction", "growth_step",
    "learning_rate", "embedding_lr", "head_lr", "embedding_lr_multiplier", "head_lr_multiplier", "residual_multiplier",
    "output_multiplier", "injection_scale", "weight_decay", "embedding_std", "uniform_init_scale", "warmup_steps",
    "warmdown_ratio", "betas", "initial_betas", "eps", "tokens", "steps", "training_flops",
)  # fmt: skip
"""What a person chooses for a run, beside its `SIZE`. Replicates differ in none of these."""

RISING = ("core_metric", "core_metric_filtered", "centered:")
"""Scores that are better when higher."""

_ABOVE_0 = ((lambda value: value > 0), "must be above 0")
_WHOLE = ((lambda value: value >= 1 and value == int(value)), "must be a whole number of at least 1")
_AT_MOST_1 = ((lambda value: value <= 1), "must be at most 1")
RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "depth": _WHOLE,
    "passes": _WHOLE,
    "weight_decay": ((lambda value: value >= 0), "must be at least 0"),
    "training_flops": _ABOVE_0,
    "train_seconds": _ABOVE_0,
    "final_val_loss": _ABOVE_0,
    "best_val_loss": _ABOVE_0,
    "final_val_bpb": _ABOVE_0,
    "core_loss": _ABOVE_0,
    "loss:": _ABOVE_0,
    "core_metric": _AT_MOST_1,
    "core_metric_filtered": _AT_MOST_1,
    "centered:": _AT_MOST_1,
}
"""Column → what its values are, and the same in words."""


@dataclass(frozen=True)
class Result:
    """One finished run.

    Args:
        name: How messages call it.
        labels: Its text values, the family among them.
        values: Its numbers, under the keys of `result.json`; those of an evaluation as "core_metric", "loss:TASK" and
            "centered:TASK". Of a list per phase the last counts, and the first is under "initial_…".
    """

    name: str
    labels: Mapping[str, str]
    values: Mapping[str, float]

    @property
    def family(self) -> str:
        """The architecture family, or "" where the run names none."""
        return self.labels.get("family", "")


def resolved(column: str) -> str:
    """Our name of a column that may bear the published table's."""
    return ALIASES.get(column, column)


def kind_of(key: str) -> str:
    """What tables of columns know a column by: its name, or its prefix where there is one per task.

    >>> kind_of("core_metric"), kind_of("centered:copa")
    ('core_metric', 'centered:')
    """
    kind, task, _ = key.partition(":")
    return kind + task


def checked(runs: Sequence[Result], *keys: str) -> Sequence[Result]:
    """`runs`, whose numbers in the columns `keys` are what such a column holds.

    Raises:
        InputError: One is not finite, or outside of `RANGES`; names column, run, value and rule.
    """
    for key in keys:
        fits, rule = RANGES.get(kind_of(key), (lambda value: True, ""))
        for run in runs:
            value = run.values[key]
            require(math.isfinite(value), f"{key} in {run.name}", value, "must be finite")
            require(fits(value), f"{key} in {run.name}", value, rule)
    return runs


def is_rising(key: str) -> bool:
    """Whether a score is better when higher."""
    return kind_of(key) in RISING


def unit_of(key: str) -> str:
    """Unit of a column, in words; of one that is not ours, its name and that it is as given.

    >>> unit_of("final_val_bpb"), unit_of("warmth")
    ('bits per byte', 'warmth, in its own unit')
    """
    return UNITS.get(kind_of(key), f"{key}, in its own unit")


def read_results(path: str | Path) -> list[Result]:
    """All runs of a CSV file, of one `result.json`, or of the `result.json` files under a folder.

    Raises:
        InputError: There is no such path, it holds no run, or a value cannot be read; names file and line.
    """
    source = Path(path)
    require(source.exists(), "runs", str(path), "no such file or folder")
    if source.is_dir():
        files = sorted(source.rglob("result.json"))
        require(bool(files), "runs", str(path), "holds no result.json; every finished run leaves one")
        return [_from_json(file, str(file.parent.relative_to(source))) for file in files]
    if source.suffix == ".json":
        return [_from_json(source, source.parent.name)]
    return _from_csv(source)


def _from_csv(path: Path) -> list[Result]:
    # A spreadsheet's byte-order mark would otherwise become part of the first column's name.
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            lines = [(reader.line_num, cells) for cells in reader if any(map(str.strip, cells))]
    except UnicodeDecodeError as error:
        raise InputError(f"runs = {str(path)!r}: must be UTF-8 text ({error.reason} at byte {error.start})") from None
    require(len(lines) > 1, "runs", str(path), "must have a header line and at least one run")
    header = _header(path, lines[0][1])
    for number, cells in lines[1:]:
        rule = f"must have {len(header)} cells, as the header has (a decimal comma splits a number in two)"
        require(len(cells) == len(header), f"{path.name} line {number}", len(cells), rule)
    first = [next((cells[i] for _, cells in lines[1:] if cells[i].strip()), "") for i in range(len(header))]
    numeric = {name: is_numeral(cell) or _decimal_comma(cell) for name, cell in zip(header, first, strict=True)}
    runs = []
    for number, cells in lines[1:]:
        filled = {name: cell.strip() for name, cell in zip(header, cells, strict=True) if cell.strip()}
        labels = {name: cell for name, cell in filled.items() if not numeric[name]}
        values = {}
        for name, cell in filled.items():
            if numeric[name]:
                rule = "must be a number" + (" with a decimal point, not a comma" if _decimal_comma(cell) else "")
                require(is_numeral(cell), f"{name} in {path.name} line {number}", cell, rule)
                values[name] = float(cell)
        runs.append(Result(_name(labels, values, f"line {number}"), labels, values))
    return runs


def _header(path: Path, cells: Sequence[str]) -> list[str]:
    """Names of the columns, aliases resolved."""
    for mark, name in ((";", "semicolons"), ("\t", "tabs")):
        split = len(cells) == 1 and mark in cells[0]
        require(not split, "runs", str(path), f"is separated by {name}; save it with commas, and decimal points")
    header = [resolved(cell.strip()) for cell in cells]
    for name in header:
        require(header.count(name) == 1, "runs", str(path), f"has more than one column {name!r}")
    return header


def _decimal_comma(text: str) -> bool:
    whole, comma, part = text.strip().partition(",")
    return bool(comma) and part.isdigit() and whole.lstrip("+-").isdigit()


def _from_json(path: Path, place: str) -> Result:
    try:
        plain = json.loads(path.read_text())
    except ValueError as error:
        raise InputError(f"runs = {str(path)!r}: is not valid JSON ({error})") from None
    require(isinstance(plain, dict), "runs", str(path), "must hold a JSON object")
    labels: dict[str, str] = {}
    values: dict[str, float] = {}
    for name, value in _flat(plain):
        if isinstance(value, str):
            labels[name] = value
        elif isinstance(value, int | float):
            values[name] = float(value)
    return Result(_name(labels, values, place), labels, values)


def _flat(plain: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Pairs of a result: hyperparameters and evaluation lifted to the top, lists per phase split, aliases resolved."""
    for name, value in plain.items():
        if name == "hyperparameters" and isinstance(value, dict):
            yield from _flat(value)
        elif name == "core" and isinstance(value, dict):
            yield from _flat({key: value[key] for key in value if key.startswith("core_") or key in TASK_TABLES})
        elif name in TASK_TABLES and isinstance(value, dict):
            yield from ((TASK_TABLES[name] + task, number) for task, number in value.items())
        elif isinstance(value, list) and value:
            yield from ((name, value[-1]), (f"initial_{name}", value[0]))
        else:
            yield resolved(name), value


def _name(labels: Mapping[str, str], values: Mapping[str, float], place: str) -> str:
    depth = f" d{values['depth']:g}" if "depth" in values else ""
    return f"{labels.get('family', 'run')}{depth} ({place})"


def without_repeats(runs: Sequence[Result]) -> tuple[list[Result], list[Result]]:
    """Runs of which no two are the same, and the repeats, each of an earlier run.

    A run is a repeat if every setting and every result is equal; only the `CIRCUMSTANCES` may differ. Runs of equal
    settings and another loss are replicates, and stay.
    """
    kept: dict[Any, Result] = {}
    repeats = []
    for run in runs:
        said = (*run.labels.items(), *run.values.items())
        key = frozenset((name, value) for name, value in said if name not in CIRCUMSTANCES)
        if key in kept:
            repeats.append(run)
        else:
            kept[key] = run
    return list(kept.values()), repeats


def having(runs: Sequence[Result], *keys: str, argument: str = "column") -> list[Result]:
    """Those runs that have every one of `keys` as a number.

    Args:
        runs: To choose from.
        *keys: Columns.
        argument: How messages call what named them.

    Raises:
        InputError: There are none; names a key that no run has, or has only as text, where there is one.
    """
    kept = [run for run in runs if all(key in run.values for key in keys)]
    if not kept:
        absent = [key for key in keys if not any(key in run.values for run in runs)]
        for run in runs:
            for key in absent:
                require(key not in run.labels, key, run.labels.get(key), f"must be a number, in {run.name}")
        known = sorted({key for run in runs for key in run.values if ":" not in key})
        raise InputError(f"{argument} = {', '.join(absent or keys)!r}: no run has it; runs have {', '.join(known)}")
    return kept


def grouped(runs: Sequence[Result], by: str = "family") -> dict[str, list[Result]]:
    """Runs by a text label, or by a number such as depth; groups and runs in order of first appearance."""
    by = resolved(by)
    groups: dict[str, list[Result]] = {}
    for run in runs:
        key = run.labels.get(by) or (f"{run.values[by]:g}" if by in run.values else None)
        known = ", ".join(name for name in sorted({*run.labels, *run.values}) if ":" not in name)
        require(key is not None, "column", by, f"{run.name} has no {by!r} to group by; it has {known}")
        groups.setdefault(str(key), []).append(run)
    return groups


def column(runs: Sequence[Result], key: str) -> list[float]:
    """One number of every run, in order.

    Raises:
        InputError: A run lacks it; names the runs.
    """
    lacking = [run.name for run in runs if key not in run.values]
    require(not lacking, "column", key, f"missing in {', '.join(lacking)}")
    return [run.values[key] for run in runs]


def split_held_out(runs: Sequence[Result], held_out: Sequence[str]) -> tuple[list[Result], list[Result]]:
    """Runs to fit and runs to keep out, each of which is named as "family:depth", "untied_grow:26" for example.

    Raises:
        InputError: A name matches no run.
    """
    names = dict.fromkeys(f"{run.family}:{run.values['depth']:g}" for run in runs if "depth" in run.values)
    for name in held_out:
        require(name in names, "held_out", name, f"no such run; there are {', '.join(names)}")
    inside = [run for run in runs if f"{run.family}:{run.values.get('depth', 0):g}" not in held_out]
    return inside, [run for run in runs if run not in inside]
