"""Records that differ in a setting, or of which one lacks it, are kept apart by every answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from looplit.commands.laws.command import laws_main
from looplit.commands.loops.command import loops_main
from looplit.errors import InputError
from looplit.recipes.growth_study import recipe
from looplit.results import EXTENTS, FIELDS, field_of

Record = dict[str, Any]

SETTINGS = [each.name for each in FIELDS if each.kind == "setting" and each.name != "hyperparameters"]


def record(depth: int, seed: int = 0, **said: Any) -> Record:
    """A record that has every setting, and the scores that any answer reads."""
    plain: Record = {name: "one" if field_of(name).unit == "" else 2.0 for name in SETTINGS}
    compute = 1e18 * (depth / 8) ** 5
    loss = 1.7 + 1.6 * (compute / 1e18) ** -0.11 + 0.01 * seed
    return plain | {
        "family": "vanilla", "depth": depth, "seed": seed, "passes": 2, "trained_passes": 2,
        "training_flops": compute, "tokens": compute / 1e9, "tokens_per_parameter": compute / 1e18,
        "initial_parameters": 1e9, "nonembedding_parameters": depth * 1e7, "recurrent_parameters": depth * 5e6,
        "train_seconds": compute / 1e15, "final_val_loss": loss, "core_metric": 1 / loss, "core_loss": loss,
        "loss:a": loss, "centered:a": 1 / loss,
    } | said  # fmt: skip


class Case(NamedTuple):
    """One answer.

    Args:
        main: Its command.
        argv: Its arguments, `RUNS` for the folder.
        records: That it reads.
        own: Settings that tell the points or the series of this answer apart, or that it cannot do without.
    """

    main: Callable[[list[str]], int]
    argv: tuple[str, ...]
    records: list[Record]
    own: tuple[str, ...]


LADDER = [record(depth, seed) for depth in (6, 8, 10, 12) for seed in (0, 1)]
SWEEP = [record(8, seed, learning_rate=rate, final_val_loss=3 + (i - 2) ** 2 + 0.01 * seed)
         for i, rate in enumerate((0.01, 0.02, 0.04, 0.08)) for seed in (0, 1)]  # fmt: skip
GRID = [record(depth, passes=passes, trained_passes=passes, weight_decay=decay, family=f"loop_{passes}",
               final_val_loss=3 - 0.1 * passes - 0.05 * depth + decay, seed=seed)
        for depth in (6, 8, 10) for passes in (2, 3, 4) for decay in (0.4, 0.8) for seed in (0, 1)]  # fmt: skip

CASES = {
    "ladder": Case(laws_main, ("ladder", "RUNS"), LADDER, ("family", "training_flops")),
    "forecast": Case(laws_main, ("forecast", "RUNS", "--tasks", "a"), LADDER, ("family", "training_flops")),
    "residuals": Case(laws_main, ("residuals", "RUNS"), LADDER, ("family", *EXTENTS)),
    "vertex": Case(laws_main, ("vertex", "RUNS", "--x", "learning_rate"), SWEEP, ("family", "learning_rate")),
    "recurrence": Case(laws_main, ("recurrence", "RUNS"), GRID,
                       ("family", "passes", "weight_decay", "training_flops")),
    "loops fit": Case(loops_main, ("fit", "RUNS"), [each | {"weight_decay": 0.8} for each in GRID],
                      ("passes", "trained_passes", "tokens")),
}  # fmt: skip


def ask(case: Case, records: list[Record], folder: Path) -> None:
    for number, each in enumerate(records):
        place = folder / f"{number:02}"
        place.mkdir(exist_ok=True)
        (place / "result.json").write_text(json.dumps(each))
    assert case.main([str(folder) if word == "RUNS" else word for word in case.argv]) == 0


def changed(records: list[Record], change: Callable[[Record], Mapping[str, Any]]) -> list[Record]:
    """The records, the last one changed: a replicate of the one before it."""
    return [*records[:-1], dict(change(records[-1]))]


@pytest.mark.parametrize("name", [name for name in CASES if name != "loops fit"])
def test_equal_records_are_answered(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ask(CASES[name], CASES[name].records, tmp_path)
    assert "recorded in no run" not in caplog.text


KEPT_APART = [(name, setting) for name, case in CASES.items() for setting in (*SETTINGS, "a column of one's own")
              if setting not in case.own]  # fmt: skip


@pytest.mark.parametrize(("name", "setting"), KEPT_APART)
def test_records_that_differ_in_one_setting_are_kept_apart(name: str, setting: str, tmp_path: Path) -> None:
    case = CASES[name]
    records = [{setting: "one"} | each for each in case.records]
    other = changed(records, lambda one: one | {setting: 2 * one[setting]})
    with pytest.raises(InputError, match=rf"^{setting} = .*(--where {setting}=|--where family=)") as caught:
        ask(case, other, tmp_path)
    assert "\n" not in str(caught.value)


NAMED = [
    (name, setting) for name, setting in KEPT_APART if (name, setting) != ("vertex", "tokens_per_parameter")
]  # which follows from tokens and parameters
NAMED += [("residuals", setting) for setting in EXTENTS]


@pytest.mark.parametrize(("name", "setting"), NAMED)
def test_a_record_without_a_setting_that_others_have_is_named(name: str, setting: str, tmp_path: Path) -> None:
    case = CASES[name]
    records = [{setting: "one"} | each for each in case.records]
    lacking = changed(records, lambda one: {key: value for key, value in one.items() if key != setting})
    last = rf"\({len(records) - 1:02}\)"
    with pytest.raises(InputError, match=rf"{setting} = .* not recorded in .*{last}, which may differ") as caught:
        ask(case, lacking, tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["boundary", "corpus", "precision", "optimizer", "mlp"])
def test_a_ladder_whose_rungs_differ_in_what_does_not_follow_the_size_is_refused(key: str, tmp_path: Path) -> None:
    records = [each | {key: "other"} if each["depth"] > 8 else each for each in LADDER]
    with pytest.raises(InputError, match=f"{key} = one and other in vanilla d6 .* differs in one series; choose"):
        ask(CASES["ladder"], records, tmp_path)


def test_families_of_two_corpora_are_not_compared_and_other_differences_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loops = [each | {"family": "loop_2", "boundary": "norm_inject"} for each in LADDER]
    ask(CASES["ladder"], LADDER + loops, tmp_path)
    assert "compared across family: runs that differ in boundary" in caplog.messages
    with pytest.raises(InputError, match="corpus = one and edu in .* differs among runs that are compared"):
        ask(CASES["ladder"], LADDER + [each | {"corpus": "edu"} for each in loops], tmp_path)


def test_series_told_apart_by_corpus_may_differ_in_it(tmp_path: Path) -> None:
    better = {"core_metric": 0.5, "loss:a": 1.5, "centered:a": 0.6}
    series = LADDER + [
        each
        | {"corpus": "edu"}
        | {key: value + each["depth"] / 100 + each["seed"] / 1000 for key, value in better.items()}
        for each in LADDER
    ]
    case = CASES["forecast"]._replace(argv=(*CASES["forecast"].argv, "--series", "corpus"))
    ask(case, series, tmp_path)


def test_records_of_earlier_versions_are_read_with_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    new = ("boundary", "precision", "corpus")
    old = [{key: value for key, value in each.items() if key not in new} for each in LADDER]
    ask(CASES["ladder"], old, tmp_path)
    assert "recorded in no run, and taken as equal: boundary, precision, corpus" in caplog.messages


def test_the_shipped_arms_of_the_boundary_ablation_are_not_averaged(tmp_path: Path) -> None:
    records = []
    for seed, (boundary, loss) in enumerate((("norm_inject", 3.0), ("norm", 3.2))):
        run = recipe("loop_2", 8, coda_boundary=boundary)
        records.append(run.to_dict() | {"seed": seed, "final_val_loss": loss})
    with pytest.raises(InputError, match="coda_boundary = norm_inject and norm in loop_2 d8"):
        ask(CASES["ladder"]._replace(argv=("ladder", "RUNS", "--reference", "loop_2")), records, tmp_path)


def test_drawn_passes_are_read_whole(tmp_path: Path) -> None:
    records = [each | {"passes": [1, 2, 4]} for each in LADDER]
    other = changed(records, lambda one: one | {"passes": [1, 3, 4]})
    with pytest.raises(InputError, match=r"every_passes = \[1, 2, 4\] and \[1, 3, 4\]"):
        ask(CASES["ladder"], other, tmp_path)
