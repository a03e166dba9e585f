"""Finished runs as rows of named numbers, from a CSV table, or from a folder of runs that left `result.json`."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from looplit.errors import InputError, require
from looplit.results import field_of, resolved
from looplit.wording import is_numeral

TASK_TABLES = {"losses": "loss:", "centered_results": "centered:"}
"""Tables of an evaluation → prefix of the columns they become, "loss:hellaswag" for example."""


# The FineWeb ladders of the growth study (arXiv 2609.19107): family, depth, training FLOPs and validation loss of all
# runs, as published. A folder of one's own that is called "published" is ./published.
PUBLISHED_NAME = "published"
PUBLISHED = Path(__file__).with_name("published") / "fineweb_ladders.csv"


@dataclass(frozen=True)
class Result:
    """One finished run.

    Args:
        name: How messages call it.
        labels: Its text values, the family among them.
        values: Its numbers, under the keys of `result.json`; those of an evaluation as "core_metric", "loss:TASK" and
            "centered:TASK". Of a list per phase the last counts, the first is under "initial_…", and a list that is
            more than these two is the label "every_…".
        measured: Columns that a reader takes for measurements, whatever they are called.
    """

    name: str
    labels: Mapping[str, str]
    values: Mapping[str, float]
    measured: frozenset[str] = frozenset()

    @property
    def family(self) -> str:
        """The architecture family, or "" where the run names none."""
        return self.labels.get("family", "")

    def said(self, key: str) -> float | str | None:
        """Its value of a column, number or text; None where it has none."""
        return self.values.get(key, self.labels.get(key))

    def settings(self) -> list[str]:
        """Its columns that are settings: all that are not known as anything else."""
        named = dict.fromkeys((*self.labels, *self.values))
        return [key for key in named if key not in self.measured and field_of(key).kind == "setting"]


def checked(runs: Sequence[Result], *keys: str) -> Sequence[Result]:
    """`runs`, whose numbers in the columns `keys` are what such a column holds.

    Raises:
        InputError: One is not finite, or outside of its range; names column, run, value and rule.
    """
    for key in keys:
        numbers = field_of(key).range
        for run in runs:
            value = run.values[key]
            require(math.isfinite(value), f"{key} in {run.name}", value, "must be finite")
            require(numbers.holds(value), f"{key} in {run.name}", value, f"must be {numbers.words}")
    return runs


def read_results(path: str | Path) -> list[Result]:
    """All runs of a CSV file, of one `result.json`, or of the `result.json` files under a folder; see `PUBLISHED`.

    Raises:
        InputError: There is no such path, it holds no run, or a value cannot be read; names file and line.
    """
    source = PUBLISHED if str(path) == PUBLISHED_NAME else Path(path)
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
        if isinstance(value, str | bool | dict):
            labels[name] = value if isinstance(value, str) else json.dumps(value)
        elif isinstance(value, int | float):
            values[name] = float(value)
    return Result(_name(labels, values, place), labels, values)


def _flat(plain: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Pairs of a result: hyperparameters and evaluation lifted to the top, lists per phase split, aliases resolved."""
    for key, value in plain.items():
        name = resolved(key)
        chosen = field_of(name).kind in ("size", "setting")
        if name == "hyperparameters" and isinstance(value, dict):
            yield from _flat(value)
        elif name == "core" and isinstance(value, dict):
            yield from _flat({key: value[key] for key in value if key.startswith("core_") or key in TASK_TABLES})
        elif name in TASK_TABLES and isinstance(value, dict):
            yield from ((TASK_TABLES[name] + task, number) for task, number in value.items())
        elif isinstance(value, list) and value:
            yield from ((name, value[-1]), (f"initial_{name}", value[0]))
            if chosen and (len(value) > 2 or any(isinstance(one, list | dict) for one in value)):
                yield (f"every_{name}", json.dumps(value))
        elif chosen or not isinstance(value, dict):
            yield name, value


def _name(labels: Mapping[str, str], values: Mapping[str, float], place: str) -> str:
    depth = f" d{values['depth']:g}" if "depth" in values else ""
    return f"{labels.get('family', 'run')}{depth} ({place})"


def without_repeats(runs: Sequence[Result]) -> tuple[list[Result], list[Result]]:
    """Runs of which no two are the same, and the repeats, each of an earlier run.

    A run is a repeat if every setting and every result is equal; only its circumstances may differ. Runs of equal
    settings and another loss are replicates, and stay.
    """
    kept: dict[Any, Result] = {}
    repeats = []
    for run in runs:
        said = (*run.labels.items(), *run.values.items())
        key = frozenset((name, value) for name, value in said if field_of(name).kind != "circumstance")
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
