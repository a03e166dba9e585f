"""EffectiveDepth: what it logs and when, and that two processes read what one reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import lightning as L
import pytest
import torch
from helpers.small import TINY, quiet_trainer, windows
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import looplit
from looplit.callbacks import EffectiveDepth, ModelGrowth, RunReport
from looplit.errors import InputError
from looplit.eval.lens import lens

SCRIPT = Path(__file__).with_name("depth_run.py")


def fit(model: L.LightningModule, folder: Path, callbacks: list[Any], **settings: Any) -> L.Trainer:
    logger = TensorBoardLogger(str(folder), name="", version="run")
    settings = {"max_steps": 4, "val_check_interval": 1, "log_every_n_steps": 2, "logger": logger, **settings}
    trainer = quiet_trainer(callbacks=callbacks, **settings)
    trainer.fit(model, windows(16), windows(16))
    return trainer


def events(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder / "run")).Reload()


def test_a_growing_run_logs_depth_and_the_curves(tmp_path: Path) -> None:
    depth = EffectiveDepth(tokens=64)
    fit(looplit.UntiedGrow(**TINY), tmp_path, [ModelGrowth(passes=4, step=2), depth])
    assert depth.result is not None
    logged = events(tmp_path)
    assert [event.step for event in logged.Scalars("depth/effective_depth")] == [0, 1, 2, 3]
    assert logged.Scalars("depth/effective_depth")[-1].value == depth.result.effective_depth
    # core passes 3 and 4 exist from the growth at step 2 on; a validation that falls on it runs before
    assert [event.step for event in logged.Scalars("depth_kl/2_core_4.1")] == [2, 3]
    assert [event.value for event in logged.Scalars("depth_kl/3_coda_1")] == [0, 0, 0, 0]  # one curve across the growth
    assert logged.Scalars("depth_agreement/3_coda_1")[-1].value == 1
    places = ["1_prelude_1", "2_core_1.1", "2_core_2.1", "2_core_3.1", "2_core_4.1", "3_coda_1"]
    kl = [logged.Scalars(f"depth_kl/{place}")[-1].value for place in places]
    assert kl == pytest.approx(depth.result.kl, rel=1e-6)  # event files hold fp32


def test_the_figure_is_there(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    fit(looplit.Loop(**TINY), tmp_path, [EffectiveDepth(tokens=64)], max_steps=2, val_check_interval=2)
    assert [image.step for image in events(tmp_path).Images("depth/lens")] == [1]


def test_it_reads_every_nth_validation_and_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forwards = []
    monkeypatch.setattr("looplit.callbacks.effective_depth.lens", lambda *a, **k: forwards.append(1) or lens(*a, **k))  # type: ignore[func-returns-value]
    fit(looplit.Loop(**TINY), tmp_path, [EffectiveDepth(every_n_validations=3, tokens=64)])
    assert [event.step for event in events(tmp_path).Scalars("depth/effective_depth")] == [2, 3]
    assert len(forwards) == 2  # nothing happens between


@pytest.mark.parametrize(
    ("settings", "read"),
    [
        ({"max_steps": -1, "max_epochs": 2, "val_check_interval": 2}, [5, 7]),
        # a run with a report is validated after its last step, whatever the interval
        ({"max_steps": -1, "max_epochs": 2, "val_check_interval": 3}, [7]),
        ({"max_steps": 7, "val_check_interval": 3, "max_epochs": 9}, [6]),
    ],
)
def test_the_last_validation_of_epochs_is_read_too(tmp_path: Path, settings: dict[str, Any], read: list[int]) -> None:
    """Four steps an epoch."""
    fit(looplit.Loop(**TINY), tmp_path, [EffectiveDepth(every_n_validations=3, tokens=64), RunReport()], **settings)
    assert [event.step for event in events(tmp_path).Scalars("depth/effective_depth")] == read


def test_it_is_what_the_pure_function_gives(tmp_path: Path) -> None:
    model, depth = looplit.Loop(**TINY), EffectiveDepth(tokens=2 * 16, threshold=0.01, direction="decoded_final")
    fit(model, tmp_path, [depth, RunReport()])
    rows = next(iter(windows()))[:2]
    expected = lens(model, [(rows[:, :-1], rows[:, 1:])], threshold=0.01, direction="decoded_final")
    assert depth.result == expected
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["effective_depth"] == expected.effective_depth


def test_reading_changes_nothing_of_the_run(tmp_path: Path) -> None:
    plain, read = looplit.Loop(**TINY, seed=1), looplit.Loop(**TINY, seed=1)
    fit(plain, tmp_path / "plain", [])
    fit(read, tmp_path / "read", [EffectiveDepth(tokens=64)])
    for a, b in zip(plain.parameters(), read.parameters(), strict=True):
        assert torch.equal(a, b)
    assert plain.meter.flops == read.meter.flops


@pytest.mark.parametrize("arguments", [{"tokens": 0}, {"every_n_validations": 0}])
def test_wrong_arguments_are_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(InputError, match=next(iter(arguments))):
        EffectiveDepth(**arguments)  # type: ignore[arg-type]


def approximately(value: Any) -> Any:
    """Sums over processes add in another order, and sharded sums of squares too: fp32 rounding of values below 10."""
    if isinstance(value, dict):
        return {name: approximately(item) for name, item in value.items()}
    return pytest.approx(value, abs=2e-6, rel=2e-6) if isinstance(value, float) else value


def test_two_processes_read_what_one_reads(tmp_path: Path, load_script: Callable[[Path], ModuleType]) -> None:
    out = tmp_path / "two.json"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, str(SCRIPT), str(out)], check=True, env=environment, timeout=240, cwd=tmp_path,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    two = json.loads(out.read_text())
    one = load_script(SCRIPT).validate("auto", 1)
    assert one["lens"]["tokens"] == 7 * 16
    assert one["lens"]["blocks"][0]["kl"] > 0.1
    for strategy in ("ddp", "fsdp2"):
        compared = {name: _lists_apart(part) for name, part in two[strategy].items()}
        assert compared == {name: approximately(_lists_apart(part)) for name, part in one.items()}, strategy


def _lists_apart(plain: dict[str, Any]) -> dict[str, Any]:
    """A flat mapping: pytest.approx does not look into lists of mappings."""
    flat: dict[str, Any] = {}
    for name, value in plain.items():
        if isinstance(value, list):
            for i, row in enumerate(value):
                flat |= {f"{name}.{i}.{key}": item for key, item in row.items()}
        else:
            flat[name] = value
    return flat
