"""A boundary and an algorithm that no file of the package knows: trained from YAML, resumed, sharded, counted."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers.own_parts import GatedInjection, LaterInjection, Lion, ScaledInjection, SharedLion
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import looplit
from looplit.__main__ import main
from looplit.accounting.flops import (
    applied_parameters,
    flops_per_token,
    gain_parameters,
    nonembedding_parameters,
    once_parameters,
    recurrent_parameters,
    stored_parameters,
)
from looplit.errors import InputError
from looplit.model import Backbone, BackboneConfig
from looplit.optim import MuonAdamW, parameters_by_role
from looplit.planning.plan import plan_config
from looplit.recipes.growth_study import growth_study, recipe
from looplit.recipes.lookup import module_arguments
from looplit.recipes.truncation_study import truncated_backbone, truncated_run
from looplit.recipes.tuning import Tuning
from looplit.strategies.communication import sharded_step

PATH = "helpers.own_parts"
GATED, LATER, LION = f"{PATH}.GatedInjection", f"{PATH}.LaterInjection", f"{PATH}.Lion"
STEPS, GROWTH = 8, 5  # floor(0.7·8)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Untied-Grow in miniature with both of its parts replaced, as YAML gives it."""
    return {
        "seed_everything": 1,
        "model": {
            "class_path": "UntiedGrow",
            "init_args": {
                "depth": 3, "width": 32, "heads": 1, "vocabulary": 257, "context": 32, "steps": STEPS,
                "boundary": GATED, "coda_boundary": GATED, "optimizer": LION, "learning_rate": 0.002,
            },
        },
        "data": {
            "class_path": "StandardLibraryText",
            "init_args": {
                "folder": str(tmp_path_factory.mktemp("corpus")), "tokenizer": "bytes", "context": 32, "batch_size": 4,
                "val_tokens": 2000,
            },
        },
        "trainer": {
            "accelerator": "cpu", "max_steps": STEPS, "val_check_interval": 4, "check_val_every_n_epoch": None,
            "num_sanity_val_steps": 0, "enable_progress_bar": False, "log_every_n_steps": 2,
            "callbacks": [{"class_path": "ModelGrowth", "init_args": {"passes": 4, "fraction": 0.3}}],
        },
    }  # fmt: skip


def fit(config: dict[str, Any], folder: Path, *options: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Trains in this process; gives `result.json` and the last checkpoint."""
    folder.mkdir()
    (folder / "own.yaml").write_text(yaml.dump(config))
    here = Path.cwd()
    os.chdir(folder)
    try:
        assert main(["fit", "--config", "own.yaml", *options]) == 0
    finally:
        os.chdir(here)
    run = folder / "runs" / "own" / "version_0"
    checkpoint = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    return json.loads((run / "result.json").read_text()), checkpoint


@pytest.fixture(scope="module")
def straight(config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    return fit(config, tmp_path_factory.mktemp("own") / "straight")


def test_both_train_and_grow_from_yaml(straight: tuple[dict[str, Any], dict[str, Any]]) -> None:
    result, checkpoint = straight
    weights = checkpoint["state_dict"]
    assert (result["growth_step"], result["passes"]) == (GROWTH, [2, 4])
    for stage in ("boundary", "coda_boundary"):
        gate, weight = weights[f"backbone.{stage}.gate"], weights[f"backbone.{stage}.weight"]
        assert (gate != 1).all()
        assert not torch.equal(weight, 0.5 * torch.eye(32))
    by_algorithm = {group["algorithm"]: group["role"] for group in checkpoint["optimizer_states"][0]["param_groups"]}
    assert by_algorithm[LION] == "boundary"  # after the block matrices, which come first
    assert checkpoint["looplit_config"]["boundary"] == GATED
    assert checkpoint["hyper_parameters"]["optimizer"] == LION


def test_the_record_names_and_counts_them(straight: tuple[dict[str, Any], dict[str, Any]]) -> None:
    result, checkpoint = straight
    assert result["hyperparameters"]["optimizer"] == LION
    assert result["stored_parameters"] == sum(value.numel() for value in checkpoint["state_dict"].values())
    assert (result["learning_rate"], result["gain_lr"]) == (0.002, result["head_lr"])
    assert result["training_flops"] == 4 * 32 * sum(
        steps * cost for steps, cost in zip((GROWTH, STEPS - GROWTH), result["flops_per_token"], strict=True)
    )


def test_a_plan_says_what_the_run_has(
    config: dict[str, Any], straight: tuple[dict[str, Any], dict[str, Any]], capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    (tmp_path / "own.yaml").write_text(yaml.dump(config))
    assert main(["plan", "--config", str(tmp_path / "own.yaml"), "--json"]) == 0
    planned, (result, checkpoint) = json.loads(capsys.readouterr().out), straight
    for key in ("stored_parameters", "initial_parameters", "flops_per_token", "hyperparameters", "learning_rate",
                "embedding_lr", "head_lr", "gain_lr", "training_flops"):  # fmt: skip
        assert planned[key] == result[key], key
    state = checkpoint["optimizer_states"][0]["state"].values()
    kept = sum(value.nbytes for entries in state for value in entries.values() if value.ndim)
    assert planned["memory_bytes"]["optimizer_state"] == kept


def test_a_resumed_run_is_the_uninterrupted_one(
    config: dict[str, Any], straight: tuple[dict[str, Any], dict[str, Any]], tmp_path: Path
) -> None:
    _, stopped = fit(config, tmp_path / "stopped", "--trainer.max_steps=4")
    assert stopped["global_step"] == 4
    saved = tmp_path / "stopped" / "runs" / "own" / "version_0" / "checkpoints" / "last.ckpt"
    result, checkpoint = fit(config, tmp_path / "resumed", "--ckpt_path", str(saved))
    assert result["final_val_loss"] == straight[0]["final_val_loss"]
    for name, value in straight[1]["state_dict"].items():
        assert torch.equal(checkpoint["state_dict"][name], value), name
    states = [content["optimizer_states"][0]["state"] for content in (straight[1], checkpoint)]
    for number, entries in states[0].items():
        assert all(torch.equal(states[1][number][name], value) for name, value in entries.items())
    model = looplit.load(tmp_path / "resumed" / "runs" / "own" / "version_0" / "checkpoints" / "last.ckpt")
    assert isinstance(model.backbone.boundary.operator, GatedInjection)


def test_another_boundary_does_not_go_on(
    config: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(config, tmp_path / "own", "--trainer.max_steps=4")
    saved = tmp_path / "own" / "runs" / "own" / "version_0" / "checkpoints" / "last.ckpt"
    monkeypatch.chdir(tmp_path / "own")
    arguments = ["fit", "--config", "own.yaml", "--ckpt_path", str(saved)]
    assert main([*arguments, f"--model.init_args.boundary={LATER}"]) == 2
    assert f"boundary = '{LATER}': the checkpoint's model has '{GATED}'" in capsys.readouterr().err
    assert main([*arguments, f"--model.init_args.optimizer={LION}Again"]) == 2
    assert f"algorithm = '{LION}Again': the checkpoint trains its matrix with {LION}" in capsys.readouterr().err


def small(**changes: Any) -> BackboneConfig:
    shape = {"width": 32, "heads": 2, "prelude": 1, "core": 2, "coda": 1, "passes": 3, "vocabulary": 128, "context": 16}
    return BackboneConfig(**{**shape, **changes})


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("passes", [1, 2, 3])
@pytest.mark.parametrize("coda_boundary", ["norm", GatedInjection])
@pytest.mark.parametrize("boundary", [GatedInjection, LaterInjection, "linear"])
def test_counts_are_those_of_torch(boundary: Any, coda_boundary: Any, passes: int, tied: bool) -> None:
    config = small(boundary=boundary, coda_boundary=coda_boundary, passes=passes, tied=tied)
    model = Backbone(config)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    assert stored_parameters(config) == sum(sizes.values())
    vocabulary = ("embedding.", "head.")
    inner = {name: n for name, n in sizes.items() if not name.startswith(vocabulary)}
    assert nonembedding_parameters(config) == sum(inner.values())
    assert gain_parameters(config) == sum(n for name, n in inner.items() if name.endswith("gate"))
    once = ("prelude.", "coda.", "coda_boundary.")
    assert once_parameters(config) == sum(n for name, n in inner.items() if name.startswith(once))
    recurrent = sum(n for name, n in inner.items() if name.startswith(("cores.0.", "boundary.")))
    assert recurrent_parameters(config) == recurrent
    before = sum(n for name, n in inner.items() if name.startswith("boundary."))
    applied = passes * (recurrent - before) + (passes - (boundary is LaterInjection)) * before
    assert applied_parameters(config) == once_parameters(config) + applied
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(torch.zeros(2, 16, dtype=torch.long)).sum().backward()
    # A product with a factor that needs no gradient has half a backward: LaterInjection detaches e.
    detached = (passes - 1) * 2 * 32**2 if boundary is LaterInjection else 0
    assert counter.get_total_flops() == 32 * (flops_per_token(config, attention="full") - detached)


def test_untrained_passes_cost_a_third() -> None:
    config = small(boundary=GatedInjection, passes=5, trained_passes=2, coda_boundary="norm")
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        Backbone(config)(torch.zeros(2, 16, dtype=torch.long)).sum().backward()
    assert counter.get_total_flops() == 32 * flops_per_token(config, attention="full")


def test_a_boundary_says_what_the_first_pass_reads_and_what_gets_no_gradient() -> None:
    e_BTD, tokens_BT = torch.randn(1, 4, 32), torch.arange(4)[None]
    model = Backbone(small(boundary=ScaledInjection, injection_scale=0.5))
    assert torch.equal(model.boundary.first(e_BTD), 0.5 * e_BTD.tanh())
    started = Backbone(small(boundary=ScaledInjection, initial_state="prelude"))
    assert torch.equal(started.boundary.first(e_BTD), e_BTD + e_BTD.tanh())
    later = Backbone(small(boundary=LaterInjection, coda_boundary="norm", trained_passes=2, branch_init_scale=0.1,
                           head_std=0.1))  # fmt: skip
    assert torch.equal(later.boundary.first(e_BTD), e_BTD)
    assert later.config.cuts_prelude()
    later(tokens_BT, tokens_BT).backward()
    assert later.embedding.weight.grad is None
    assert later.boundary.weight.grad is not None
    assert small(boundary=LaterInjection, passes=1).leaves_idle()
    assert not small(boundary=GatedInjection, coda_boundary="norm", trained_passes=1).cuts_prelude()
    seeds = [Backbone(later.config, seed).boundary.weight for seed in (0, 0, 1)]
    assert torch.equal(seeds[0], seeds[1])
    assert not torch.equal(seeds[0], seeds[2])
    assert 0.15 < seeds[0].detach().abs().max().item() <= 32**-0.5


def test_what_a_boundary_learns_trains_by_its_role() -> None:
    roles = parameters_by_role(Backbone(small(boundary=GatedInjection, coda_boundary=GatedInjection)))
    assert [name for name, _ in roles["boundary"]] == ["boundary.weight", "coda_boundary.weight"]
    assert [name for name, _ in roles["gain"]] == ["boundary.gate", "coda_boundary.gate"]


def test_the_truncation_study_takes_one_too(config: dict[str, Any]) -> None:
    backbone = truncated_backbone(32, 4, trained_passes=2, heads=1, boundary=GatedInjection)
    assert (backbone.boundary, backbone.initial_state) == (GATED, "prelude")
    loop = {
        "class_path": "TruncatedLoop",
        "init_args": {"passes": 4, "trained_passes": 2, "width": 32, "heads": 1, "boundary": GATED, "steps": 8,
                      "vocabulary": 257, "context": 32, "batch_tokens": 128},
    }  # fmt: skip
    run = plan_config({**config, "model": loop, "trainer": {**config["trainer"], "callbacks": []}}).run
    model = looplit.TruncatedLoop(**loop["init_args"])  # type: ignore[arg-type]
    assert run.to_dict()["stored_parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert run.groups["boundary"].algorithm == "muonh"
    assert truncated_run(4, width=32, heads=1, boundary=GATED).backbone.boundary == GATED


def test_arguments_of_a_run_lead_back_to_it() -> None:
    for tuning in (Tuning(optimizer=LION, overrides={"learning_rate": 0.003}),
                   Tuning(optimizer=f"{PATH}.SharedLion")):  # fmt: skip
        run = recipe("untied_2", 6, tuning=tuning, boundary=GATED, coda_boundary=LATER)
        args = module_arguments(run)
        again = growth_study.resolve(looplit.Untied.family, args)
        assert (args["boundary"], args["coda_boundary"], args["optimizer"]) == (GATED, LATER, tuning.optimizer)
        assert (again.hyperparameters, again.optimizer) == (run.hyperparameters, run.optimizer)
        assert dataclasses.replace(again.backbone, initial_state=run.backbone.initial_state) == run.backbone


def test_an_algorithm_moves_no_other_learning_rate() -> None:
    """Those of embedding and head are multiples of the matrices', which Muon's multipliers are for."""
    muon = recipe("untied_2", 6).groups
    for tuning in (Tuning(optimizer=LION, overrides={"learning_rate": 0.003}), Tuning(optimizer=f"{PATH}.SharedLion")):
        own = recipe("untied_2", 6, tuning=tuning).groups
        for role in ("embedding", "head"):
            assert own[role].learning_rate == pytest.approx(muon[role].learning_rate)
    assert own["matrix"].learning_rate == pytest.approx(0.01 * muon["matrix"].learning_rate)


class Local(GatedInjection):
    """At the top of this module, which `helpers` cannot import; its path leads here all the same."""


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"boundary": "nothing"}, "boundary = 'nothing': must be one of identity, norm, inject, norm_inject, linear, "
                                  "or the import path of a BoundaryOperator"),
        ({"boundary": f"{PATH}.Missing"}, r"cannot be imported \(.*no attribute 'Missing'\); must be one of identity"),
        ({"boundary": "no_such_module.X"}, r"cannot be imported \(No module named 'no_such_module'\); must be"),
        ({"boundary": LION}, f"boundary = '{LION}': must be one of"),
        ({"boundary": 3}, "boundary = 3: must be one of"),
        ({"boundary": "a..b"}, "boundary = 'a..b'"),
        ({"coda_boundary": f"{PATH}.NoEquation"}, "the class must define apply"),
        ({"boundary": f"{PATH}.Tensor3D"}, r"boundary.weight = \(2, 32, 32\): a boundary's parameters are matrices"),
        ({"coda_boundary": "linear"}, "coda_boundary = 'linear': mixes before each pass"),
        ({"boundary": GATED, "coda_boundary": "norm", "injection_scale": 0.5}, "nothing is injected by α"),
    ],
)  # fmt: skip
def test_wrong_boundaries_get_one_line(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        small(**settings)


def test_a_class_that_no_path_leads_to_is_refused() -> None:
    class Hidden(GatedInjection):
        pass

    with pytest.raises(InputError, match="a class at the top of a module"):
        small(boundary=Hidden)
    assert str(small(boundary=Local).boundary).endswith("test_own_parts.Local")


@pytest.mark.parametrize(
    ("tuning", "said"),
    [
        ({"optimizer": "sgd"}, "optimizer = 'sgd': must be one of muon, muonh, adamw, or the import path of an Algo"),
        ({"optimizer": GATED}, "must be one of muon, muonh, adamw"),
        ({"optimizer": f"{PATH}.Unfinished"}, "the class must define initial_state"),
        ({"optimizer": "muonh"}, "optimizer = 'muonh': keeps every matrix at the norm"),
    ],
)  # fmt: skip
def test_wrong_algorithms_get_one_line(tuning: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Tuning(**tuning)


def test_an_algorithm_without_a_share_needs_a_learning_rate() -> None:
    with pytest.raises(InputError, match=f"learning_rate = None: say that of {LION}"):
        looplit.Untied(depth=3, width=32, optimizer=Lion)
    model = looplit.Untied(depth=3, width=32, optimizer=SharedLion)
    assert model.hparams["optimizer"] == f"{PATH}.SharedLion"


def test_an_own_algorithm_is_a_group_like_any_other() -> None:
    """Against its equation, in float64; a parameter without gradient stays as it is."""
    weights = [torch.nn.Parameter(torch.randn(3, 2, dtype=torch.float64)) for _ in range(2)]
    optimizer = MuonAdamW(
        [{"params": weights, "algorithm": Lion, "lr": 0.1, "weight_decay": 0.2, "betas": (0.9, 0.95)}]
    )
    expected, momentum, asleep = weights[0].detach().clone(), torch.zeros(3, 2), weights[1].detach().clone()
    for _ in range(3):
        weights[0].grad = torch.randn(3, 2, dtype=torch.float64)
        step = (0.9 * momentum + 0.1 * weights[0].grad).sign()
        expected = expected - 0.1 * (step + 0.2 * expected)
        momentum = 0.95 * momentum + 0.05 * weights[0].grad
        optimizer.step()
    torch.testing.assert_close(weights[0].detach(), expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(weights[1], asleep)
    assert optimizer.state_dict()["param_groups"][0]["algorithm"] == LION


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory, root: Path) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("sharded")
    path = os.pathsep.join([str(root / "tests"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(root / "tests" / "strategies" / "own_parts_run.py"), str(folder)], capture_output=True,
        text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return {file.stem: torch.load(file) for file in folder.glob("*.pt")}


def test_two_processes_follow_one_across_growth(sharded: dict[str, dict[str, Any]]) -> None:
    """Gradients are summed in another order: fp32 rounding, 1.2e-7 of the value, that the steps carry on. Lion takes
    only the sign of an entry, so one near zero may go the other way."""
    assert sharded["fsdp"]["sharded"] == len(sharded["plain"]["weights"])
    assert sharded["fsdp"]["losses"] == pytest.approx(sharded["plain"]["losses"], rel=1e-4)
    assert sharded["fsdp"]["counts"] == sharded["plain"]["counts"]
    assert sharded["fsdp_muon"]["losses"] == pytest.approx(sharded["plain_muon"]["losses"], rel=1e-6)


def test_a_sharded_run_resumes_bit_for_bit(sharded: dict[str, dict[str, Any]]) -> None:
    assert sharded["resumed"]["losses"] == sharded["fsdp"]["losses"][-5:]
    for name, value in sharded["fsdp"]["weights"].items():
        assert torch.equal(sharded["resumed"]["weights"][name], value), name
    for name, entries in sharded["fsdp"]["state"].items():
        assert all(torch.equal(sharded["resumed"]["state"][name][key], value) for key, value in entries.items())


@pytest.mark.parametrize(("run", "optimizer"), [("fsdp", LION), ("fsdp_muon", "muon")])
@pytest.mark.parametrize(("step", "passes"), [(3, 2), (12, 4)])
def test_collectives_are_those_of_the_formulas(
    sharded: dict[str, dict[str, Any]], run: str, optimizer: str, step: int, passes: int
) -> None:
    """gloo's all-to-all is an all-gather; the norm of the gradients is reduced twice, to look at and to clip by."""
    config = looplit.UntiedGrow(
        depth=3, width=32, heads=1, vocabulary=257, context=32, boundary=GATED, coda_boundary=GATED
    ).config
    formula = {part.kind: part.number for part in sharded_step(config, passes, 2, 2, optimizer=optimizer)}
    counts = sharded[run]["communication"][step]
    assert counts["_allgather_base_"] == formula["gather weights"]
    assert counts["_reduce_scatter_base_"] == formula["reduce gradients"]
    moved = formula.get("exchange matrices", 0) + formula.get("gather Muon's variances", 0)
    assert counts.get("all_gather_into_tensor", 0) == moved == (0 if optimizer == LION else 3 * 4)
    assert counts["all_reduce"] == 2
