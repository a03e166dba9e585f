"""Trains a small growing model under several strategies and numbers of processes: run by test_fsdp.py.

Usage: sharded_run.py FOLDER          all scenarios, in forks of this process
       sharded_run.py FOLDER NODES    one process of a run that is launched from outside and loses its last process

Every scenario writes what its first process has put together: NAME.pt with losses, weights and optimizer state.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from looplit import LoopedLM, LoopGrow, TruncatedLoop, UntiedGrow
from looplit.callbacks import ModelGrowth, RandomRecurrence
from looplit.commands.consolidate import consolidate_main
from looplit.errors import RunStopped
from looplit.model.config import Unit
from looplit.strategies import LoopLitFSDP, shard

STEPS, GROWTH, ACCUMULATION, ROWS, CONTEXT = 20, 10, 2, 4, 32
BEFORE, AFTER = 5, 15  # steps after which checkpoints are written: before and after growth
KILLED = 12  # the step in which a process is killed
GROWTH_STUDY: dict[str, Any] = {"depth": 3, "warmup_steps": 3}
LOOP: dict[str, Any] = {
    "passes": 3, "trained_passes": 2, "split": (1, 2, 1), "batch_tokens": ACCUMULATION * ROWS * CONTEXT,
    "learning_rate": 0.02,
}  # fmt: skip
COUNTED = (3, 12)  # steps whose collectives are counted: before and after growth


def truncated_loop(**settings: Any) -> LoopedLM:
    """Its boundary starts as [I | 0], which hides the state and the gradient through it: not here."""
    model = TruncatedLoop(**settings)
    with torch.no_grad():
        model.backbone.boundary.weight.add_(torch.randn(32, 64, generator=torch.Generator().manual_seed(0)), alpha=0.1)
    return model


class Windows:
    """Rows of bytes of a module's source; a process takes its part of each micro-batch, and goes on where it was."""

    def __init__(self) -> None:
        source = torch.tensor(list(Path(argparse.__file__).read_bytes()))
        self.rows = source[: STEPS * ACCUMULATION * ROWS * (CONTEXT + 1)].view(-1, ROWS, CONTEXT + 1)
        self.taken = 0

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Tensor]:
        rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        while self.taken < len(self.rows):
            self.taken += 1
            yield self.rows[self.taken - 1].chunk(world)[rank]

    def state_dict(self) -> dict[str, int]:
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.taken = state["taken"]


class Record(Callback):
    """Mean loss over micro-batches and processes of every step, its collectives, and checkpoints at given steps."""

    def __init__(self, saves: dict[int, Path]) -> None:
        self.saves = saves
        self.losses: list[float] = []
        self.communication: dict[int, dict[str, int]] = {}
        self.window: list[Tensor] = []

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        self.window.append(loss.detach().double())  # already divided by the accumulation

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        if not self.window and trainer.global_step in COUNTED:
            self.mode = CommDebugMode()
            self.mode.__enter__()

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if len(self.window) < ACCUMULATION:
            return
        if trainer.global_step - 1 in COUNTED:
            self.mode.__exit__(None, None, None)
            counts = {str(name).rpartition(".")[2]: n for name, n in self.mode.get_comm_counts().items()}
            self.communication[trainer.global_step - 1] = counts
        loss = trainer.strategy.reduce(torch.stack(self.window).sum(), reduce_op="mean")
        self.losses.append(float(loss))  # type: ignore[arg-type]
        self.window = []
        if trainer.global_step in self.saves:
            trainer.save_checkpoint(self.saves[trainer.global_step])


class KillLastProcess(Callback):
    """SIGKILL to the last process in the middle of a step; the others are heard of after it."""

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step == KILLED:
            Path(trainer.default_root_dir, "killed_at").write_text(str(time.time()))
            if trainer.global_rank == trainer.world_size - 1:
                os.kill(os.getpid(), signal.SIGKILL)


def train(
    folder: Path,
    name: str,
    strategy: Any = "auto",
    *,
    nodes: int = 1,
    killed: bool = False,
    saves: dict[int, str] | None = None,
    start: str | None = None,
    stop: int = STEPS,
    precision: Any = "32-true",
    end: str | None = None,
    built_on: str = "cpu",
    family: Callable[..., LoopedLM] = UntiedGrow,
    callbacks: Sequence[Callback] = (),
    unit: Unit | None = None,
    **settings: Any,
) -> None:
    """One scenario: trains to step `stop` from a checkpoint, saves at steps and at the end, writes NAME.pt."""
    L.seed_everything(3, verbose=False)
    with torch.device(built_on):
        shape = {"width": 32, "heads": 1, "vocabulary": 257, "context": CONTEXT, "steps": STEPS}
        model = family(**shape, **(LOOP if family is truncated_loop else GROWTH_STUDY), **settings)
    model.checkpoint_activations(unit)
    record = Record({step: folder / file for step, file in (saves or {}).items()})
    growth = ModelGrowth(passes=4, step=GROWTH, rewarm_steps=4)
    trainer = L.Trainer(
        accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]) // nodes, num_nodes=nodes, strategy=strategy,
        precision=precision, max_steps=stop, accumulate_grad_batches=ACCUMULATION, gradient_clip_val=0.5,
        callbacks=[growth, record, *callbacks, *([KillLastProcess()] if killed else [])],
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        use_distributed_sampler=False, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(model, Windows(), ckpt_path=start and str(folder / start), weights_only=True)
    if end is not None:
        trainer.save_checkpoint(folder / end)
    whole = StateDictOptions(full_state_dict=True)
    optimizer = getattr(trainer.optimizers[0], "_optimizer", trainer.optimizers[0])
    state = get_optimizer_state_dict(model, optimizer, options=whole)
    weights = get_model_state_dict(model, options=whole)
    tensors = [t for p in model.parameters() for t in (p, p.grad, *optimizer.state[p].values()) if t is not None]
    if trainer.is_global_zero:
        result = {
            "losses": record.losses,
            "weights": weights,
            "state": state["state"],
            "counts": [model.meter.tokens, model.meter.flops, model.backbone.passes],
            "communication": record.communication,
            "dtypes": {str(tensor.dtype) for tensor in tensors},
            "sharded": sum(isinstance(p, DTensor) for p in model.parameters()),
        }
        torch.save(result, folder / f"{name}.pt")


class LiveBytes(TorchDispatchMode):
    """The most bytes of memory that tensors made inside it have at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self.storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # so that its parts come by here
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and not tensor.is_meta:
                self.storages[tensor.untyped_storage()._cdata] = weakref.ref(tensor.untyped_storage())
        alive = (reference() for reference in self.storages.values())
        self.most = max(self.most, sum(storage.nbytes() for storage in alive if storage is not None))
        return result


def start(folder: Path, built_on: str = "meta") -> None:
    """Shards a model that is built on a device, without a Trainer; writes start_DEVICE_PROCESSES.pt."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    with LiveBytes() as bytes_:
        with torch.device(built_on):
            model = UntiedGrow(depth=3, width=32, heads=1, vocabulary=257, context=CONTEXT, seed=5)
        world = dist.get_world_size()
        shard(model.sharded_modules(), init_device_mesh("cpu", (world,)), initialize=model.initialize_weights)
    own = sum(parameter.to_local().nbytes for parameter in model.parameters())  # type: ignore[attr-defined]
    whole = {name: parameter.full_tensor() for name, parameter in model.named_parameters()}  # type: ignore[attr-defined]
    if dist.get_rank() == 0:
        result = {"weights": {**whole, **dict(model.named_buffers())}, "most_bytes": bytes_.most, "own_bytes": own}
        torch.save(result, folder / f"start_{built_on}_{world}.pt")


def lose_a_process(folder: Path, nodes: int = 1) -> None:
    """Ends as `python -m looplit` does: with a line, here in survivor.txt, and an exit code."""
    try:
        train(folder, "killed", "looplit_fsdp", nodes=nodes, saves={GROWTH: "at_growth"}, killed=True)
    except RunStopped as stop:
        (folder / "survivor.txt").write_text(f"{time.time()}\n{stop}")
        os._exit(stop.exit_code)


Scenario = Callable[[], None]


def processes(world: int, *scenarios: Scenario, fails: bool = False) -> None:
    """Runs scenarios one after the other in `world` forks of this process, connected as torchrun would."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0"}
            place |= {"WORLD_SIZE": str(world), "RANK": str(rank), "LOCAL_RANK": str(rank)}
            try:
                for scenario in scenarios:
                    os.environ |= place  # a Trainer takes some of it away when it has finished
                    scenario()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    failed = [os.waitpid(child, 0)[1] for child in children]
    if any(failed) != fails or all(failed) != fails:
        sys.exit(f"{world} processes ended with {failed}")


def main(folder: Path) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    run = partial(partial, train, folder)
    both = {BEFORE: "before", AFTER: "after"}
    loop: Any = {"family": truncated_loop, "stop": AFTER}
    window: Any = {"trained_passes": 1, "stop": AFTER}
    truncated: Any = {"split": (2, 2, 2), "trained_passes": 1, "stop": KILLED}
    drawn: Any = {"family": LoopGrow, "callbacks": [RandomRecurrence([2, 3, 4, 5, 6], evaluate_at=4, seed=1)]}
    one_file = partial(LoopLitFSDP, save_distributed_checkpoint=False)
    processes(
        1,
        run("plain", saves={step: f"plain_{file}.ckpt" for step, file in both.items()}),
        run("fsdp_1", "looplit_fsdp", built_on="meta"),
        run("plain_drawn", **drawn),
        run("plain_loop", **loop),
        run("plain_window", **window),
        run("plain_meta", built_on="meta", stop=BEFORE),
        partial(start, folder),
    )
    processes(
        2,
        partial(start, folder),
        partial(start, folder, "cpu"),
        run("fsdp_2", "looplit_fsdp", built_on="meta", saves={step: f"two_{file}" for step, file in both.items()}),
        run("fsdp_2_whole", "looplit_fsdp", stop=BEFORE),
        run("ddp_2", "ddp_find_unused_parameters_true"),
        run("ddp_recomputed", "ddp_find_unused_parameters_true", unit="pass"),
        *(run(f"two_from_two_{file}", "looplit_fsdp", start=f"two_{file}", built_on="meta") for file in both.values()),
        *(run(f"two_from_plain_{file}", "looplit_fsdp", start=f"plain_{file}.ckpt") for file in both.values()),
        run("at_after", one_file(), start="two_after", stop=AFTER, end="two_after.ckpt"),
        run("at_before", "looplit_fsdp", start="two_before", stop=BEFORE),
        run("drawn_2", "looplit_fsdp", **drawn),
        run("reduced", LoopLitFSDP(reduce_every_micro_batch=True), stop=BEFORE),
        run("recomputed_block", LoopLitFSDP(activation_checkpointing=True)),
        run("recomputed_pass", LoopLitFSDP(activation_checkpointing="pass")),
        *(
            run(f"truncated_{unit}", LoopLitFSDP(activation_checkpointing=unit), family=LoopGrow, **truncated)
            for unit in (False, "block", "pass")
        ),
        run("loop_ddp", "ddp", **loop),
        run("loop_fsdp", "looplit_fsdp", **loop),
        run("window_ddp", "ddp_find_unused_parameters_true", **window),
        run("window_fsdp", "looplit_fsdp", **window),
        run("mixed", "looplit_fsdp", precision="bf16-mixed"),
    )
    for file in both.values():
        consolidate_main([str(folder / f"two_{file}"), str(folder / f"consolidated_{file}.ckpt")])
    consolidate_main([str(folder / "two_after"), str(folder / "weights.ckpt"), "--weights_only"])
    processes(
        4,
        run("fsdp_4", "looplit_fsdp"),
        run("two_times_two", LoopLitFSDP(replicas=2), saves={AFTER: "copies_after"}),
        run("copies_reduced", LoopLitFSDP(replicas=2, reduce_every_micro_batch=True)),
        run("from_copies", LoopLitFSDP(replicas=2), start="copies_after"),
        run("at_after_4", "looplit_fsdp", start="two_after", stop=AFTER, end="four_after"),
    )
    processes(2, partial(lose_a_process, folder), fails=True)
    processes(2, run("after_the_loss", "looplit_fsdp", start="at_growth"))
    processes(
        3,
        partial(start, folder),
        run("at_after_3", "looplit_fsdp", start="four_after", stop=AFTER, end="three_after"),
    )
    processes(2, run("at_after_back", "looplit_fsdp", start="three_after", stop=AFTER))
    processes(
        1,
        run("at_after_1", "looplit_fsdp", start="two_after", stop=AFTER),
        *(run(f"plain_from_{file}", start=f"consolidated_{file}.ckpt") for file in both.values()),
        run("at_after_file", start="two_after.ckpt", stop=AFTER),
        run("plain_mixed", precision="bf16-mixed"),
    )


if __name__ == "__main__":
    if len(sys.argv) == 3:
        lose_a_process(Path(sys.argv[1]), nodes=int(sys.argv[2]))
    else:
        main(Path(sys.argv[1]))
