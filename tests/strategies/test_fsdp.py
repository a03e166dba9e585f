"""looplit_fsdp against a single device: trajectories, checkpoints of every kind on every number of processes, cost."""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import looplit
from looplit.errors import InputError
from looplit.model.config import BackboneConfig
from looplit.recipes.families import FAMILIES
from looplit.recipes.training import Optimizer
from looplit.recipes.truncation_study import truncated_backbone
from looplit.strategies.communication import sharded_step

SCRIPT = Path(__file__).with_name("sharded_run.py")
UNITS_BEFORE, UNITS = 4 + 2, 6 + 2  # blocks that run before growth, and after, with the embedding and the rest
SHAPES = 3  # of matrices: attention's, gate and up, down


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    log = folder / "log.txt"
    with log.open("w") as output:
        parent = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder)], env=environment, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        try:
            assert parent.wait(timeout=500) == 0, log.read_text()[-3000:]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)  # whatever it has forked
    return folder


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: torch.load(path) for path in folder.glob("*.pt")}


def tensors(run: dict[str, Any]) -> dict[str, torch.Tensor]:
    state = {f"{name}/{key}": value for name, entries in run["state"].items() for key, value in entries.items()}
    return {**run["weights"], **state}


def equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    mine, other = tensors(a), tensors(b)
    return mine.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in mine.items())


def test_one_process_is_the_single_device_bit_for_bit(runs: dict[str, dict[str, Any]]) -> None:
    assert runs["fsdp_1"]["losses"] == runs["plain"]["losses"]
    assert equal(runs["fsdp_1"], runs["plain"])
    assert runs["fsdp_1"]["sharded"] == len(runs["plain"]["weights"])


@pytest.mark.parametrize("name", ["fsdp_2", "fsdp_4", "two_times_two", "copies_reduced", "ddp_2"])
def test_more_processes_follow_the_same_trajectory(runs: dict[str, dict[str, Any]], name: str) -> None:
    """Across growth, with accumulation and clipping. Gradients are summed in another order: fp32 rounding, 1.2e-7
    of the value, that 20 steps carry on."""
    assert len(runs[name]["losses"]) == 20
    assert runs[name]["losses"] == pytest.approx(runs["plain"]["losses"], rel=1e-6)
    assert runs[name]["counts"] == runs["plain"]["counts"]


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_a_model_built_on_meta_starts_as_one_built_whole(runs: dict[str, dict[str, Any]], processes: int) -> None:
    """Bit for bit, buffers too; 32 rows over 3 processes are uneven."""
    alone = looplit.UntiedGrow(depth=3, width=32, heads=1, vocabulary=257, context=32, seed=5)
    expected = {**dict(alone.named_parameters()), **dict(alone.named_buffers())}
    started = runs[f"start_meta_{processes}"]["weights"]
    assert started.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(value, started[name]), name
    assert started["backbone.rotary_cos"].shape == (32, 16)
    assert started["backbone.cores.3.0.mlp.up.weight"].any()


def test_no_process_builds_the_whole_model(runs: dict[str, dict[str, Any]]) -> None:
    """At most its shards, a block twice, which FSDP2 gathers into one piece of memory and then into parameters, and a
    third time where the last one's memory is let go late, as on a busy machine."""
    model = looplit.UntiedGrow(depth=3, width=32, heads=1, vocabulary=257, context=32)
    whole = sum(parameter.nbytes for parameter in model.parameters())
    block = sum(parameter.nbytes for parameter in model.backbone.prelude.parameters())
    tables = sum(buffer.nbytes for buffer in model.buffers())
    for processes in (2, 3):
        run = runs[f"start_meta_{processes}"]
        assert run["own_bytes"] == pytest.approx(whole / processes, rel=0.05)
        assert run["most_bytes"] < run["own_bytes"] + 3 * block + 3 * tables < whole
    assert runs["start_cpu_2"]["most_bytes"] > whole


def test_training_is_the_same_from_meta(runs: dict[str, dict[str, Any]]) -> None:
    for name, of in (("fsdp_2_whole", "fsdp_2"), ("plain_meta", "plain")):
        assert runs[name]["losses"] == runs[of]["losses"][:5]


def test_drawn_passes_are_the_same_on_all_processes(runs: dict[str, dict[str, Any]]) -> None:
    """The FLOPs count the drawn passes. Up to six passes of one core carry rounding further than four of four."""
    assert runs["drawn_2"]["losses"] == pytest.approx(runs["plain_drawn"]["losses"], rel=5e-6)
    assert runs["drawn_2"]["counts"] == runs["plain_drawn"]["counts"]


def test_copies_of_a_sharded_model_resume(runs: dict[str, dict[str, Any]]) -> None:
    assert runs["from_copies"]["losses"] == runs["two_times_two"]["losses"][-5:]
    assert equal(runs["from_copies"], runs["two_times_two"])


@pytest.mark.parametrize(("name", "steps"), [("two_from_two_before", 15), ("two_from_two_after", 5)])
def test_a_resumed_run_is_the_uninterrupted_one(runs: dict[str, dict[str, Any]], name: str, steps: int) -> None:
    assert runs[name]["losses"] == runs["fsdp_2"]["losses"][-steps:]
    assert equal(runs[name], runs["fsdp_2"])
    assert runs[name]["counts"] == runs["fsdp_2"]["counts"]


@pytest.mark.parametrize("name", ["at_after_1", "at_after_3", "at_after_4", "at_after_back", "at_after_file"])
def test_weights_and_state_are_the_same_on_any_number_of_processes(runs: dict[str, dict[str, Any]], name: str) -> None:
    assert equal(runs[name], runs["at_after"])
    assert any(
        value.any() for key, value in tensors(runs[name]).items() if key.endswith("cores.3.0.mlp.up.weight/momentum")
    )


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("two_from_plain_before", "plain"),
        ("two_from_plain_after", "plain"),
        ("plain_from_before", "fsdp_2"),
        ("plain_from_after", "fsdp_2"),
    ],
)
def test_a_run_goes_on_with_and_without_shards(runs: dict[str, dict[str, Any]], name: str, of: str) -> None:
    """The tolerance of the trajectories: from the checkpoint on, sums are in another order."""
    losses = runs[name]["losses"]
    assert len(losses) == (15 if name.endswith("before") else 5)
    assert losses == pytest.approx(runs[of]["losses"][-len(losses) :], rel=1e-6)


def test_a_killed_process_ends_the_run_and_it_resumes(folder: Path, runs: dict[str, dict[str, Any]]) -> None:
    _assert_survivor_spoke(folder)
    assert runs["after_the_loss"]["losses"] == runs["fsdp_2"]["losses"][10:]
    assert equal(runs["after_the_loss"], runs["fsdp_2"])


def _assert_survivor_spoke(folder: Path) -> None:
    ended, line = (folder / "survivor.txt").read_text().split("\n")
    assert line.startswith("process 0 of 2 lost the connection to another process")
    assert "go on with --ckpt_path" in line
    assert float(ended) - float((folder / "killed_at").read_text()) < 60


def test_two_nodes_under_torchrun_end_when_one_is_lost(tmp_path: Path) -> None:
    """Two agents on this machine with one process each, as on two nodes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--nnodes", "2", "--nproc_per_node", "1", "--master_addr", "127.0.0.1", "--master_port", str(port)]
    agents = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *options, "--node_rank", str(node), str(SCRIPT),
             str(tmp_path), "2"],
            env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for node in range(2)
    ]  # fmt: skip
    try:
        assert all(agent.wait(timeout=180) for agent in agents)
    finally:
        for agent in agents:
            agent.terminate()  # an agent that still runs takes its process along
    _assert_survivor_spoke(tmp_path)
    assert (tmp_path / "at_growth" / "meta.pt").is_file()


def test_dormant_cores_have_zero_state_before_growth(runs: dict[str, dict[str, Any]]) -> None:
    for name, value in tensors(runs["at_before"]).items():
        if name.endswith("/momentum"):
            assert bool(value.any()) is not (".cores.2." in name or ".cores.3." in name), name


def test_master_weights_gradients_and_state_stay_in_fp32_under_bf16(runs: dict[str, dict[str, Any]]) -> None:
    """Each process rounds its own products to bf16, 2^-8 of a value: losses agree to a thousandth."""
    assert runs["mixed"]["dtypes"] == {"torch.float32"}
    assert runs["mixed"]["losses"] == pytest.approx(runs["plain_mixed"]["losses"], rel=1e-3)
    assert runs["mixed"]["losses"] != pytest.approx(runs["plain"]["losses"], rel=1e-5)


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("recomputed_block", "fsdp_2"),
        ("recomputed_pass", "fsdp_2"),
        ("ddp_recomputed", "ddp_2"),
        ("truncated_block", "truncated_False"),
        ("truncated_pass", "truncated_False"),
    ],
)
def test_recomputed_activations_change_nothing(runs: dict[str, dict[str, Any]], name: str, of: str) -> None:
    """Neither a bit of the weights nor a collective; tied and truncated, several blocks per stage, across growth."""
    assert runs[name]["losses"] == runs[of]["losses"]
    assert equal(runs[name], runs[of])
    assert runs[name]["communication"] == runs[of]["communication"]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", ["loop", "window"])
def test_truncated_backpropagation_is_that_of_one_process(
    runs: dict[str, dict[str, Any]], name: str, strategy: str
) -> None:
    """`TruncatedLoop` with its state in sight, and untied cores of which the last alone is trained; across growth.

    fp32 rounding, as above. It is the weights' too where none starts at zero.
    """
    several, alone = runs[f"{name}_{strategy}"], runs[f"plain_{name}"]
    assert several["losses"] == pytest.approx(alone["losses"], rel=2e-6)
    assert len(alone["losses"]) == 15
    assert several["counts"] == alone["counts"]
    for key, value in alone["weights"].items() if name == "loop" else ():
        torch.testing.assert_close(several["weights"][key], value, rtol=1e-5, atol=1e-5, msg=key)


def test_untied_cores_outside_the_window_stay_as_they_are(runs: dict[str, dict[str, Any]]) -> None:
    """Core 1 (of 2) is trained before growth, and core 3, its copy, alone after it."""
    start = looplit.UntiedGrow(depth=3, width=32, heads=1, vocabulary=257, context=32, seed=3).state_dict()
    for name in ("plain_window", "window_ddp", "window_fsdp"):
        trained = {key.split(".")[2] for key, value in runs[name]["weights"].items()
                   if ".cores." in key and not torch.equal(value, start[key])}  # fmt: skip
        assert trained == {"1", "2", "3"}, name
        for key, value in tensors(runs[name]).items():
            if key.endswith("/momentum") and ".cores." in key:
                assert bool(value.any()) is (key.split(".")[2] in ("1", "3")), (name, key)


def test_collectives_of_truncated_steps_are_those_of_the_formulas(runs: dict[str, dict[str, Any]]) -> None:
    """Also MuonH's: gloo's all-to-all is an all-gather, and its sums are beside those of the gradients' norm."""
    loop = truncated_backbone(32, 3, heads=1, trained_passes=2, split=(1, 2, 1), vocabulary=257)
    untied = FAMILIES["untied_grow"].backbone(3)
    window = dataclasses.replace(untied, width=32, heads=1, vocabulary=257, trained_passes=1)
    cases: list[tuple[str, BackboneConfig, Optimizer, int, int]] = [
        ("loop", loop, "muonh", 3, 3), ("loop", loop, "muonh", 12, 4),
        ("window", window, "muon", 3, 2), ("window", window, "muon", 12, 4),
    ]  # fmt: skip
    for name, config, optimizer, step, passes in cases:
        counts = runs[f"{name}_fsdp"]["communication"][step]
        by_formula = {part.kind: part.number for part in sharded_step(config, passes, 2, 2, optimizer=optimizer)}
        assert counts["_allgather_base_"] == by_formula["gather weights"], (name, step)
        assert counts["_reduce_scatter_base_"] == by_formula["reduce gradients"], (name, step)
        gathers = by_formula["exchange matrices"] + by_formula.get("gather Muon's variances", 0)
        assert counts["all_gather_into_tensor"] == gathers, (name, step)
        assert counts["all_reduce"] == 2 + by_formula.get("sum MuonH's products", 0), (name, step)


@pytest.mark.parametrize(("step", "units"), [(3, UNITS_BEFORE), (12, UNITS)])
def test_collectives_of_a_step_are_those_that_are_needed(
    runs: dict[str, dict[str, Any]], step: int, units: int
) -> None:
    """Two micro-batches gather each unit in the forward, blocks again in the backward, and reduce once together.

    The rest is kept gathered and the embedding is not needed in the backward. gloo's all-to-all is an all-gather, so
    that Muon's two exchanges and its variances are three of these for each shape.
    """
    counts = runs["fsdp_2"]["communication"][step]
    config = dataclasses.replace(FAMILIES["untied_grow"].backbone(3), width=32, heads=1, vocabulary=257)
    by_formula = {part.kind: part.number for part in sharded_step(config, 2 if step == 3 else 4, 2, 2)}
    assert counts["_allgather_base_"] == by_formula["gather weights"] == 2 * (units + units - 2)
    assert counts["_reduce_scatter_base_"] == by_formula["reduce gradients"] == units
    assert by_formula["exchange matrices"] == 2 * by_formula["gather Muon's variances"] == 2 * SHAPES
    assert counts["all_gather_into_tensor"] == 3 * SHAPES
    assert counts["all_reduce"] == 2  # the norm of the gradients: to look at and to clip by


def test_reducing_after_every_micro_batch_is_a_choice(runs: dict[str, dict[str, Any]]) -> None:
    assert runs["reduced"]["communication"][3]["_reduce_scatter_base_"] == 2 * UNITS_BEFORE
    assert runs["reduced"]["losses"] == pytest.approx(runs["plain"]["losses"][:5], rel=1e-6)


@pytest.mark.parametrize(("name", "reductions"), [("two_times_two", 1), ("copies_reduced", 2)])
def test_copies_exchange_gradients_once_per_step(runs: dict[str, dict[str, Any]], name: str, reductions: int) -> None:
    counts = runs[name]["communication"][12]
    config = dataclasses.replace(FAMILIES["untied_grow"].backbone(3), width=32, heads=1, vocabulary=257)
    by_formula = {
        part.kind: part.number
        for part in sharded_step(config, 4, 4, 2, replicas=2, reduce_every_micro_batch=reductions == 2)
    }
    assert counts["_reduce_scatter_base_"] == by_formula["reduce gradients"] == reductions * UNITS
    assert counts["allreduce_"] == by_formula["exchange gradients between copies"] == UNITS


def test_consolidated_checkpoints_open_in_a_notebook(folder: Path, runs: dict[str, dict[str, Any]]) -> None:
    for name in ("consolidated_after.ckpt", "weights.ckpt", "two_after.ckpt"):
        model = looplit.load(folder / name)
        assert model.backbone.passes == 4
        for key, value in model.state_dict().items():
            assert torch.equal(value, runs["at_after"]["weights"][key])
    assert looplit.load(folder / "consolidated_before.ckpt").backbone.passes == 2
    assert "optimizer_states" not in torch.load(folder / "weights.ckpt")
    with torch.no_grad():
        assert math.isfinite(float(model.backbone(torch.zeros(1, 8, dtype=torch.long)).sum()))


def test_folders_and_half_written_checkpoints_are_named(folder: Path, tmp_path: Path) -> None:
    from looplit.commands.consolidate import consolidate_main

    assert not list(folder.glob("*.part"))
    with pytest.raises(InputError, match="a folder; make one file .*consolidate"):
        looplit.load(folder / "two_after")
    half = tmp_path / "half"
    half.mkdir()
    (half / ".metadata").write_bytes((folder / "two_after" / ".metadata").read_bytes())
    with pytest.raises(InputError, match="there is no complete sharded checkpoint"):
        consolidate_main([str(half), str(tmp_path / "out.ckpt")])
    with pytest.raises(InputError, match="exists already"):
        consolidate_main([str(folder / "two_after"), str(folder / "weights.ckpt")])
