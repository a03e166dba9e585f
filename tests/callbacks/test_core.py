"""CORE in a training run: when it is evaluated, what is logged, and that training goes on undisturbed."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers.logger import Logger
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from looplit.callbacks import ModelGrowth
from looplit.callbacks.core import CoreEvaluation
from looplit.errors import InputError
from looplit.eval.core import evaluate, open_bundle, plan_evaluation
from looplit.modules import Loop, UntiedGrow

CONTEXT = 128
STEPS = 6


@pytest.fixture(scope="module")
def samples(root: Path, load_script: Callable[[Path], ModuleType]) -> ModuleType:
    """The writer of bundles of the CORE tests."""
    return load_script(root / "tests/helpers/core_bundle.py")


@pytest.fixture(scope="module")
def folder(samples: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = [samples.Made("copa", "multiple_choice", [2], 5, (1, 4)), samples.Made("coqa", "language_modeling", [0], 3)]
    return Path(samples.write_bundle(tmp_path_factory.mktemp("core") / "bundle", made))


class Recorder(Logger):
    """Keeps what is logged."""

    name, version = "recorder", 0

    def __init__(self) -> None:
        super().__init__()
        self.logged: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.logged.append((step or 0, metrics))

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass


def make_model() -> Loop:
    return Loop(depth=3, width=32, heads=2, vocabulary=257, context=CONTEXT, passes=2, seed=0)


def batches(shuffle: bool = False) -> DataLoader[tuple[Tensor, ...]]:
    tokens = torch.randint(0, 257, (4 * STEPS, 17), generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(tokens[:, :-1], tokens[:, 1:]), batch_size=4, shuffle=shuffle)


def train(*callbacks: L.Callback) -> tuple[Loop, Recorder]:
    torch.manual_seed(0)
    model, recorder = make_model(), Recorder()
    trainer = L.Trainer(
        accelerator="cpu", max_steps=STEPS, val_check_interval=2, callbacks=[*callbacks], logger=recorder,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1,
        devices=1,
    )  # fmt: skip
    trainer.fit(model, batches(shuffle=True), batches())
    return model, recorder


def logged_core(recorder: Recorder) -> dict[int, dict[str, float]]:
    return {step: metrics for step, metrics in recorder.logged if "core/metric" in metrics}


def test_every_second_validation_and_the_end(folder: Path) -> None:
    callback = CoreEvaluation(str(folder), every_n_validations=2, seeds=[0, 1])
    model, recorder = train(callback)
    assert list(logged_core(recorder)) == [3, 5]  # validations end steps 1, 3 and 5; the last is evaluated as the end
    plan = plan_evaluation(open_bundle(folder), "bytes", seeds=[0, 1], context=CONTEXT)
    after = evaluate(model, plan)
    assert callback.result == after
    last = logged_core(recorder)[5]
    assert last["core/metric"] == after["core_metric"]
    assert last["core/loss"] == after["core_loss"]
    assert last["core_loss/copa"] == after["losses"]["copa"]
    assert logged_core(recorder)[3]["core/loss"] != last["core/loss"]


def test_cores_that_a_growth_has_still_to_fill_are_not_asked(folder: Path) -> None:
    class Asked(CoreEvaluation):
        at: ClassVar[list[int]] = []

        def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            super().on_validation_epoch_end(trainer, pl_module)
            assert self.result is not None
            self.at.append(self.result["passes"])

    model = UntiedGrow(depth=3, width=32, heads=2, vocabulary=257, context=CONTEXT, seed=0)
    trainer = L.Trainer(
        accelerator="cpu", devices=1, max_steps=STEPS, val_check_interval=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
        callbacks=[ModelGrowth(passes=4, step=3), Asked(str(folder), every_n_validations=1, limit=1, passes=4)],
    )  # fmt: skip
    trainer.fit(model, batches(), batches())
    assert Asked.at == [2, 4, 4]


def test_a_validation_on_the_last_step_is_not_repeated(folder: Path) -> None:
    _, recorder = train(CoreEvaluation(str(folder), every_n_validations=3, limit=2))
    assert list(logged_core(recorder)) == [5]


def test_training_goes_on_as_without(folder: Path) -> None:
    plain, _ = train()
    state = torch.get_rng_state()
    watched, recorder = train(CoreEvaluation(str(folder), every_n_validations=1, passes=3))
    assert len(logged_core(recorder)) == 3
    assert torch.equal(state, torch.get_rng_state())
    assert watched.backbone.passes == plain.backbone.passes == 2
    for (name, before), (_, after) in zip(plain.named_parameters(), watched.named_parameters(), strict=True):
        assert torch.equal(before, after), name


class Plain(L.LightningModule):
    """A module of somebody else's: tokens to logits, no backbone."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(257, 257)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return self.table(tokens_BT)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return torch.nn.functional.cross_entropy(self(batch[0]).flatten(0, 1), batch[1].flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_any_module_from_tokens_to_logits(folder: Path) -> None:
    def fit(callback: CoreEvaluation) -> None:
        L.Trainer(
            accelerator="cpu", devices=1, max_steps=1, callbacks=[callback], logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        ).fit(Plain(), batches())  # fmt: skip

    callback = CoreEvaluation(str(folder), tokenizer="bytes")
    fit(callback)
    assert callback.result is not None
    assert callback.result["num_examples"] == 8
    with pytest.raises(InputError, match="Plain names no vocabulary"):
        fit(CoreEvaluation(str(folder)))


def test_two_processes_log_what_one_logs(folder: Path, tmp_path: Path) -> None:
    """Under DDP and with sharded weights, the result is that of one process with the weights the run ends with."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = str(Path(__file__).with_name("core_run.py"))
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "NODE_RANK": "0"}
    processes = [
        subprocess.Popen([sys.executable, script, folder, tmp_path], env={**os.environ, **shared, "LOCAL_RANK": rank})
        for rank in ("0", "1")
    ]
    try:
        assert [process.wait(timeout=240) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    plan = plan_evaluation(open_bundle(folder), "bytes", seeds=[0], context=CONTEXT)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    for strategy in ("ddp", "sharded"):
        result, weights = first[strategy]
        assert result == second[strategy][0]
        model = make_model()
        model.backbone.load_state_dict(weights)
        alone = evaluate(model, plan)
        assert result["results"] == alone["results"]
        assert result["losses"] == pytest.approx(alone["losses"], abs=1e-5)  # fp32 in batches of other shapes
        assert abs(result["core_loss"] - math.log(257)) > 1e-3  # the weights are not those of the start


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(InputError, match="every_n_validations = 0"):
        CoreEvaluation(every_n_validations=0)
