"""Lightning's FSDP2 strategy (`ModelParallelStrategy`) for looped and growing models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import lightning as L
import torch
from lightning.fabric.utilities.optimizer import _optimizers_to_device
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn
from torch.distributed import DistError
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer

from looplit.checkpoints.addresses import is_address
from looplit.checkpoints.optimizer_state import named, numbered
from looplit.checkpoints.reading import WEIGHTS_ONLY, read_file, read_folder, read_tensors
from looplit.checkpoints.saving import WholeFileIO, discard, part_of, put_in_place, remove
from looplit.errors import InputError, RunStopped, require
from looplit.model.config import Unit
from looplit.strategies.sharding import shard

_LOST_CONNECTION = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "NCCL", "Timed out")


@runtime_checkable
class Shardable(Protocol):
    """What a LightningModule needs for `looplit_fsdp`. Every family of LoopLit has it; so can anyone's."""

    def sharded_modules(self) -> Sequence[nn.Module]:
        """Modules to shard one by one, inner ones first; the last is the one whose forward all steps go through."""


@runtime_checkable
class Initializable(Protocol):
    """What a LightningModule needs so that it can be built on the meta device: with it, no process builds it whole."""

    def initialize_weights(self) -> None:
        """Sets all weights and buffers, which have memory then and no values; parameters are sharded (`DTensor`)."""


@runtime_checkable
class Recomputable(Protocol):
    """What a LightningModule needs for activation checkpointing."""

    def checkpoint_activations(self, unit: Literal["block", "pass"]) -> None:
        """Lets every `unit` keep only its input for the backward pass and run again there."""


class LoopLitFSDP(ModelParallelStrategy):
    """Shards parameters, gradients and optimizer state over all processes, block by block (FSDP2).

    It is Lightning's `ModelParallelStrategy` with the sharding done by the strategy: any LightningModule with
    `sharded_modules` (see `Shardable`), or one that shards itself in `configure_model`. The same modules, callbacks
    and data run on a single device and under DDP. Under `precision: bf16-mixed` weights are gathered and used in
    bf16, master weights, gradients and optimizer state are kept in fp32, and gradients are reduced in fp32.

    A model built under `torch.device("meta")` (`Initializable`), as the command line builds LoopLit's, is sharded
    before it has weights: no process ever builds more of it than its shards and one whole parameter.

    Checkpoints are folders that load on any number of processes; `python -m looplit consolidate` makes one file of
    them. A folder gets its name when it is complete: one that was cut short is called NAME.part.

    Args:
        replicas: Copies of the sharded model, each split over its share of consecutive processes. With one per node,
            weights are gathered within nodes only and nodes exchange gradients alone, for more memory per process.
        save_distributed_checkpoint: Whether each process writes its shards to a folder; otherwise the first process
            collects everything into a single file, as on a single device.
        activation_checkpointing: "block" (or True): blocks keep only their input for the backward pass and run again
            there, a third more compute for a fraction of the memory. "pass": so do the prelude, every pass and the
            coda as wholes; the weights of one of them are then gathered together. The module needs
            `checkpoint_activations` (`Recomputable`), which serves other strategies too.
        reduce_every_micro_batch: Whether gradients are reduced after every micro-batch of an accumulation. Off, they
            are reduced once per step, and each process holds whole fp32 gradients until then. Replicas exchange
            theirs once per step in any case.
        process_group_backend: Default NCCL on GPUs, gloo on the CPU.
        timeout_minutes: After which a process that waits for another gives up.

    Example:
        >>> import lightning as L
        >>> from looplit.strategies import LoopLitFSDP
        >>> trainer = L.Trainer(strategy=LoopLitFSDP(activation_checkpointing=True), devices=1, accelerator="cpu")
    """

    def __init__(
        self,
        replicas: int = 1,
        save_distributed_checkpoint: bool = True,
        activation_checkpointing: bool | Literal["block", "pass"] = False,
        reduce_every_micro_batch: bool = False,
        process_group_backend: str | None = None,
        timeout_minutes: float = 30,
    ) -> None:
        require(type(replicas) is int and replicas >= 1, "replicas", replicas, "must be a whole number from 1 up")
        units = (False, True, *get_args(Unit))
        require(
            activation_checkpointing in units, "activation_checkpointing", activation_checkpointing,
            "must be block, pass, true or false",
        )  # fmt: skip
        require(timeout_minutes > 0, "timeout_minutes", timeout_minutes, "must be above 0")
        super().__init__(
            tensor_parallel_size=1,
            save_distributed_checkpoint=save_distributed_checkpoint,
            process_group_backend=process_group_backend,
            timeout=timedelta(minutes=timeout_minutes),
        )
        self.checkpoint_io = WholeFileIO()
        self.replicas = replicas
        self.activation_checkpointing: Literal["block", "pass"] | None = (
            "block" if activation_checkpointing is True else activation_checkpointing or None
        )
        self.reduce_every_micro_batch = reduce_every_micro_batch

    # --- set-up

    def setup_environment(self) -> None:
        world = self.num_nodes * self.num_processes
        require(world % self.replicas == 0, "replicas", self.replicas, f"must divide the {world} processes")
        self._data_parallel_size = world
        super().setup_environment()

    def setup(self, trainer: L.Trainer) -> None:
        assert self.accelerator is not None
        assert self.model is not None
        self.accelerator.setup(trainer)
        self.model = self.precision_plugin.convert_module(self.model)
        self._shard(self.model)
        self.model_to_device()
        self.barrier()
        if trainer.state.fn == TrainerFn.FITTING:
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()
        if trainer.state.fn == TrainerFn.FITTING:
            _optimizers_to_device(self.optimizers, self.root_device)

    def _shard(self, model: nn.Module) -> None:
        if any(isinstance(module, FSDPModule) for module in model.modules()):
            return
        if not isinstance(model, Shardable):
            raise InputError(
                f"model = {type(model).__name__}: looplit_fsdp needs its `sharded_modules()`, inner modules first and "
                "last the one whose forward every step goes through, or a `configure_model` that shards"
            )
        meta = any(parameter.is_meta for parameter in model.parameters())
        if meta and not isinstance(model, Initializable):
            raise InputError(
                f"model = {type(model).__name__}: built on the meta device, it needs an `initialize_weights()`"
            )
        if self.activation_checkpointing is not None:
            if not isinstance(model, Recomputable):
                raise InputError(
                    f"model = {type(model).__name__}: activation_checkpointing needs its `checkpoint_activations(unit)`"
                )
            model.checkpoint_activations(self.activation_checkpointing)
        mixed = isinstance(self.precision_plugin, MixedPrecision)
        if mixed:
            precision = self.precision_plugin.precision
            require(precision == "bf16-mixed", "trainer.precision", precision, "looplit_fsdp takes bf16-mixed instead")
        shard(
            model.sharded_modules(),
            self._sharding_mesh(),
            torch.bfloat16 if mixed else None,
            model.initialize_weights if isinstance(model, Initializable) else None,
        )

    def _sharding_mesh(self) -> DeviceMesh:
        if self.replicas == 1:
            return self.device_mesh["data_parallel"]
        shape = (self.replicas, self.world_size // self.replicas)
        return init_device_mesh(self.root_device.type, shape, mesh_dim_names=("replica", "shard"))

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        assert self.model is not None
        sharded = [module for module in self.model.modules() if isinstance(module, FSDPModule)]
        for module in sharded:
            module.set_requires_gradient_sync(self.reduce_every_micro_batch, recurse=False)
            module.set_requires_all_reduce(False, recurse=False)  # between replicas
        yield
        for module in sharded:
            module.set_requires_gradient_sync(True, recurse=False)

    def on_exception(self, exception: BaseException) -> None:
        """Ends the run with one line where another process is gone; what the other process says is the cause.

        Raises:
            RunStopped: The exception is a failed communication.
        """
        super().on_exception(exception)
        first = str(exception).partition("\n")[0]
        lost = isinstance(exception, DistError) or any(words in first for words in _LOST_CONNECTION)
        if isinstance(exception, RuntimeError) and lost:
            raise RunStopped(
                f"process {self.global_rank} of {self.world_size} lost the connection to another process, which has "
                f"ended or hangs ({first[:200]}); go on with --ckpt_path and the last checkpoint"
            ) from exception

    # --- checkpoints

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """State by the names of the parameters; by their numbers, as on a single device, for a single file."""
        assert self.model is not None
        optimizer = optimizer._optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
        options = StateDictOptions(full_state_dict=not self._save_distributed_checkpoint, cpu_offload=True)
        state = get_optimizer_state_dict(self.model, optimizer, options=options)
        whole = not self._save_distributed_checkpoint and self.is_global_zero
        return numbered(state) if whole else state

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any | None = None
    ) -> None:
        path = Path(self.broadcast(str(filepath)))
        if not self._save_distributed_checkpoint:
            if self.is_global_zero:
                self.checkpoint_io.save_checkpoint(checkpoint, path, storage_options=storage_options)
            return
        part = part_of(path)
        if self.is_global_zero:
            remove(part)
        self.barrier()
        super().save_checkpoint(checkpoint, part, storage_options)
        self.barrier()
        if self.is_global_zero:
            put_in_place(part, path)
        self.barrier()

    def remove_checkpoint(self, filepath: str | Path) -> None:
        if self.is_global_zero:
            discard(Path(filepath))

    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: bool | None = None) -> dict[str, Any]:
        """Reads data alone, whatever `weights_only` says: Lightning does not pass it on to strategies like this one."""
        where = self.broadcast(str(checkpoint_path))
        require(not is_address(where), "ckpt_path", where, "looplit_fsdp reads no addresses; copy it to a disk first")
        path = Path(where)
        require(path.exists(), "ckpt_path", str(path), "there is no such checkpoint")
        if path.is_dir():
            return self._load_folder(path)
        assert self.model is not None
        checkpoint: dict[str, Any] = read_file(path, mmap=True)
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(self.model, checkpoint.pop("state_dict"), options=options)
        if self.optimizers:
            require("optimizer_states" in checkpoint, "ckpt_path", str(path), WEIGHTS_ONLY)
            for optimizer, state in zip(self.optimizers, checkpoint.pop("optimizer_states"), strict=True):
                by_name = named(state, optimizer, self.model)
                set_optimizer_state_dict(self.model, optimizer, by_name, options=options)
        return checkpoint

    def _load_folder(self, folder: Path) -> dict[str, Any]:
        """As Lightning's strategy loads it, but for its reader, which runs what is in the folder."""
        assert self.model is not None
        assert self.lightning_module is not None
        content = read_folder(folder)
        weights = {"state_dict": get_model_state_dict(self.model)}
        read_tensors(folder, weights)
        self.model.load_state_dict(weights["state_dict"], strict=self.lightning_module.strict_loading)
        for i, optimizer in enumerate(self.optimizers):
            state = {f"optimizer_{i}": get_optimizer_state_dict(self.model, optimizer)}
            read_tensors(folder, state)
            options = StateDictOptions(cpu_offload=True)
            set_optimizer_state_dict(self.model, optimizer, state[f"optimizer_{i}"], options=options)
        return content
