"""Which strategy a name means, what is refused, and modules that are not LoopLit's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.small import TINY
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader

from looplit.__main__ import main
from looplit.callbacks import ModelGrowth
from looplit.cli import run
from looplit.errors import InputError
from looplit.modules import Loop, LoopedLM, LoopGrow, Untied, UntiedGrow
from looplit.strategies import LoopLitFSDP, resolve_strategy


def test_fsdp_means_fsdp2_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert resolve_strategy("fsdp") == "looplit_fsdp"
    (line,) = caplog.messages
    assert (
        line == "strategy fsdp: using looplit_fsdp; FSDP1 flattens parameters, so that Muon cannot see whole matrices"
    )


@pytest.mark.parametrize("kept", ["auto", "ddp", "looplit_fsdp", {"class_path": "LoopLitFSDP"}, DDPStrategy()])
def test_others_stay(kept: Any) -> None:
    assert resolve_strategy(kept) is kept


@pytest.mark.parametrize(
    "given",
    ["fsdp_cpu_offload", "FSDPStrategy", {"class_path": "lightning.pytorch.strategies.FSDPStrategy"}, FSDPStrategy()],
)
def test_fsdp1_is_refused_with_the_reason(given: Any) -> None:
    with pytest.raises(InputError, match="FSDP1 flattens parameters.*take looplit_fsdp"):
        resolve_strategy(given)


def small_run(folder: Path, *options: str) -> list[str]:
    config = folder / "small.yaml"
    config.write_text(
        f"""\
model:
  class_path: LoopGrow
  init_args: {{depth: 3, width: 32, heads: 1, vocabulary: 257, context: 32}}
data:
  class_path: StandardLibraryText
  init_args: {{folder: {folder / "corpus"}, context: 32, batch_size: 2, val_tokens: 2000}}
trainer:
  accelerator: cpu
  devices: 1
  max_steps: 4
  limit_val_batches: 1
  logger: false
  enable_progress_bar: false
  default_root_dir: {folder}
  callbacks: [{{class_path: ModelGrowth, init_args: {{passes: 4, step: 2}}}}]
"""
    )
    return ["fit", "--config", str(config), *options]


def test_the_command_line_builds_sharded_models_without_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    built: dict[str, bool] = {}

    def setup(model: LoopGrow, stage: str) -> None:
        built[str(model.trainer.strategy.__class__.__name__)] = all(p.is_meta for p in model.parameters())
        LoopedLM.setup(model, stage)

    monkeypatch.setattr(LoopGrow, "setup", setup)
    for strategy in ("looplit_fsdp", "auto"):
        (tmp_path / strategy).mkdir()
        run(small_run(tmp_path / strategy, "--trainer.strategy", strategy))
    assert built == {"LoopLitFSDP": True, "SingleDeviceStrategy": False}


def test_the_command_line_trains_saves_folders_and_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(small_run(tmp_path, "--trainer.strategy", "fsdp"))
    (saved,) = tmp_path.glob("**/last.ckpt")
    assert (saved / "meta.pt").is_file()
    with pytest.raises(InputError, match=r"ckpt_path = .*a sharded checkpoint; take strategy looplit_fsdp, or"):
        run(small_run(tmp_path, "--ckpt_path", str(saved)))
    weights = tmp_path / "weights.ckpt"
    assert main(["consolidate", str(saved), str(weights), "--weights_only"]) == 0
    for strategy in ("looplit_fsdp", "auto"):
        with pytest.raises(InputError, match=r"ckpt_path = .*: holds weights only and cannot be resumed"):
            run(small_run(tmp_path, "--trainer.strategy", strategy, "--ckpt_path", str(weights)))
    (saved / "__0_0.distcp").unlink()
    options = small_run(tmp_path, "--trainer.strategy", "looplit_fsdp", "--ckpt_path", str(saved))[1:]
    for command in ("fit", "validate"):
        with pytest.raises(InputError, match=r"ckpt_path = .*: broken: its file __0_0.distcp is missing"):
            run([command, *options])


class Foreign(L.LightningModule):
    """Someone else's module: it knows nothing of LoopLit."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss: Tensor = (self.net(batch) - 1).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.1)


class Hooked(Foreign):
    def sharded_modules(self) -> list[nn.Module]:
        return [self.net[0], self.net]


class Itself(Foreign):
    def configure_model(self) -> None:
        if isinstance(self.trainer.strategy, LoopLitFSDP) and not isinstance(self.net, FSDPModule):
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])  # type: ignore[index]


def fit(module: Foreign, folder: Path, strategy: Any, **settings: Any) -> dict[str, Tensor]:
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    trainer = L.Trainer(
        accelerator="cpu", devices=1, strategy=strategy, max_steps=5, logger=False, use_distributed_sampler=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, default_root_dir=folder,
        **settings,
    )  # fmt: skip
    trainer.fit(module, DataLoader(torch.randn(10, 4), batch_size=2))  # type: ignore[arg-type]
    assert all(isinstance(p, DTensor) for p in module.parameters()) is (strategy == "looplit_fsdp")
    return {n: p.full_tensor() if isinstance(p, DTensor) else p for n, p in module.named_parameters()}


@pytest.mark.parametrize("kind", [Hooked, Itself])
def test_other_peoples_modules_train_as_on_a_single_device(tmp_path: Path, kind: type[Foreign]) -> None:
    plain, sharded = fit(kind(), tmp_path, "auto"), fit(kind(), tmp_path, "looplit_fsdp")
    assert all(torch.equal(value, sharded[name]) for name, value in plain.items())


def test_a_module_on_meta_needs_its_start(tmp_path: Path) -> None:
    with torch.device("meta"):
        module = Hooked()
    with pytest.raises(InputError, match=r"model = Hooked: built on the meta device, it needs an `initialize_weights"):
        fit(module, tmp_path, "looplit_fsdp")


def test_a_module_says_how_it_runs_again(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"activation_checkpointing needs its `checkpoint_activations\(unit\)`"):
        fit(Hooked(), tmp_path, LoopLitFSDP(activation_checkpointing=True))


def test_a_module_without_the_hook_is_told_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model = Foreign: looplit_fsdp needs its `sharded_modules\(\)`"):
        fit(Foreign(), tmp_path, "looplit_fsdp")


def test_fp16_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="trainer.precision = '16-mixed': looplit_fsdp takes bf16-mixed"):
        fit(Hooked(), tmp_path, "looplit_fsdp", plugins=[MixedPrecision("16-mixed", "cpu")])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"timeout_minutes": 0}, "timeout_minutes = 0: must be above 0"),
        ({"replicas": 1.5}, "replicas = 1.5: must be a whole number"),
        ({"replicas": 0}, "replicas = 0: must be a whole number"),
        ({"activation_checkpointing": "foo"}, "activation_checkpointing = 'foo': must be block, pass, true or false"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        LoopLitFSDP(**settings)


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (["looplit_fsdpp"], "trainer.strategy = 'looplit_fsdpp': there is no such strategy"),
        (
            ["LoopLitFSDP", "--trainer.strategy.init_args.activation_checkpointing=foo"],
            "activation_checkpointing: Expected a <class 'bool'> or typing.Literal['block', 'pass']. Got value: foo",
        ),
        (["LoopLitFSDP", "--trainer.strategy.init_args.timeout_minutes=0"], "timeout_minutes = 0.0: must be above 0"),
    ],
)
def test_wrong_settings_are_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], strategy: list[str], said: str
) -> None:
    try:
        code = main(small_run(tmp_path, "--trainer.strategy", *strategy))
    except SystemExit as end:  # the parser's own way to stop
        code = int(end.code or 0)
    assert code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


WINDOWS = DataLoader(torch.zeros(8, 17, dtype=torch.long), batch_size=2)  # type: ignore[arg-type]


def fit_under(strategy: str, model: LoopedLM, folder: Path) -> None:
    trainer = L.Trainer(
        accelerator="cpu", devices=1, strategy=strategy, max_steps=3, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, use_distributed_sampler=False, default_root_dir=folder,
        callbacks=[ModelGrowth(passes=4, step=2)] if model.growth_plan else None,
    )  # fmt: skip
    trainer.fit(model, WINDOWS)


NO_INJECTION = {"boundary": "norm", "coda_boundary": "identity"}


@pytest.mark.parametrize(
    "build",
    [
        lambda: UntiedGrow(**TINY),
        lambda: Untied(**TINY, passes=2, trained_passes=1),
        lambda: Loop(**TINY, **NO_INJECTION, trained_passes=1),
        lambda: LoopGrow(**TINY, **NO_INJECTION, trained_passes=2),
    ],
    ids=["dormant cores", "cores before the window", "a prelude that nothing reads", "one that growth cuts off"],
)
def test_plain_ddp_is_refused_where_parameters_get_no_gradient(build: Callable[[], LoopedLM], tmp_path: Path) -> None:
    """It would end in its second step with a page of torch's."""
    with pytest.raises(InputError, match=r"trainer.strategy = DDPStrategy: .*take ddp_find_unused_parameters_true"):
        fit_under("ddp", build(), tmp_path)
    fit_under("ddp_find_unused_parameters_true", build(), tmp_path)


def test_plain_ddp_takes_models_that_use_all_they_store(tmp_path: Path) -> None:
    for model in (Loop(**TINY, trained_passes=1), Loop(**TINY, **NO_INJECTION), Untied(**TINY)):
        fit_under("ddp", model, tmp_path)
