"""What a run needs: memory per device and time, estimated without building the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from looplit.accounting.flops import (
    active_blocks,
    block_parameters,
    gain_parameters,
    nonembedding_parameters,
    vocabulary_parameters,
)
from looplit.errors import InputError, require
from looplit.model.config import BackboneConfig, Unit, loss_chunk_tokens
from looplit.optim.algorithms import algorithm_of
from looplit.recipes.run import Run

Precision = Literal["32-true", "bf16-mixed", "bf16-true"]

# Dense bf16 FLOPs per second, from the vendor's data sheets.
DEVICES = {"a100": 312e12, "h100": 989e12, "h200": 989e12, "b200": 2250e12}
MEMORY = {"a100": 80 * 10**9, "h100": 80 * 10**9, "h200": 141 * 10**9, "b200": 180 * 10**9}  # bytes, likewise
# The study's yardstick, Untied-2 d8 on 1B tokens in 6.54 minutes on eight H100, is an MFU of 0.42.
TYPICAL_MFU = 0.4

# Activation checkpointing runs every forward twice: 8 FLOPs per weight and token in place of 6, the head's aside.
RECOMPUTATION = 4 / 3


@dataclass(frozen=True)
class Machine:
    """Where a run takes place.

    Args:
        devices: In all, over all nodes.
        micro_batch: Sequences per device and forward.
        sharded: Whether parameters, gradients and optimizer state are split over the devices (FSDP).
        precision: As Lightning names it.
        replicas: Copies of a sharded model, each split over its share of the devices.
        activation_checkpointing: What keeps only its input for the backward pass, if anything.
        whole_gradients: Whether a sharded model sums whole gradients over micro-batches, to reduce them once.
    """

    devices: int = 1
    micro_batch: int = 1
    sharded: bool = False
    precision: Precision = "bf16-mixed"
    replicas: int = 1
    activation_checkpointing: Unit | None = None
    whole_gradients: bool = False

    def __post_init__(self) -> None:
        require(self.devices >= 1, "devices", self.devices, "must be at least 1")
        require(self.micro_batch >= 1, "micro_batch", self.micro_batch, "must be at least 1")
        known = get_args(Precision)
        require(self.precision in known, "precision", self.precision, f"must be one of {', '.join(known)}")
        divides = self.replicas >= 1 and self.devices % self.replicas == 0
        require(divides, "replicas", self.replicas, f"must divide the {self.devices} devices")
        require(
            self.activation_checkpointing in (None, *get_args(Unit)), "activation_checkpointing",
            self.activation_checkpointing, "must be block or pass",
        )  # fmt: skip

    @property
    def shards(self) -> int:
        """Parts that parameters, gradients and optimizer state are split into."""
        return self.devices // self.replicas if self.sharded else 1


def memory_per_device(run: Run, machine: Machine, passes: int | None = None) -> dict[str, int]:
    """Bytes on one device by what they hold, and their total, at K = `passes`; default the most expensive of the run.

    Parameters, gradients and optimizer state are exact sums: 4 bytes each, or 2 under "bf16-true"; the algorithm of the
    matrices says what it keeps per entry, and AdamW keeps two moments of the rest, gains too. Dormant cores have state
    but no gradient. Activations are an estimate (`activation_bytes`), and so are the weights that are in use at one
    time (`_working_bytes`). Scratch space of the optimizer and the allocator comes on top.
    """
    config, passes = run.backbone, passes or run.recurrence.max_passes
    size = 2 if machine.precision == "bf16-true" else 4
    shards = machine.shards
    inner = nonembedding_parameters(config)
    vocabulary = 2 * vocabulary_parameters(config)
    active = inner - (config.stored_blocks - active_blocks(config, passes)) * block_parameters(config)
    matrices = inner - gain_parameters(config)
    algorithm, adamw = (algorithm_of("optimizer", name) for name in (run.optimizer, "adamw"))
    rest = inner - matrices + vocabulary
    moments = algorithm.bytes_per_entry(size) * matrices + adamw.bytes_per_entry(size) * rest
    parts = {
        "parameters": size * (inner + vocabulary) // shards,
        "gradients": size * (active + vocabulary) // (1 if machine.whole_gradients else shards),
        "optimizer_state": moments // shards,
        "working_weights": _working_bytes(config, passes, machine),
        "activations": activation_bytes(
            config, passes, machine.micro_batch, machine.precision, machine.activation_checkpointing
        ),
    }
    return {**parts, "total": sum(parts.values())}


def _working_bytes(config: BackboneConfig, passes: int, machine: Machine) -> int:
    """Weights in the form that products use, beside the stored ones.

    On a single device and under DDP the bf16 copies that autocast keeps of all of them. Sharded, what is gathered at
    one time: two blocks (one ahead), or those of a stage that runs again as a whole, the head, and the embedding,
    which is looked up in fp32.
    """
    block, vocabulary = block_parameters(config), vocabulary_parameters(config)
    if not machine.sharded:
        copied = active_blocks(config, passes) * block + vocabulary
        return 2 * copied if machine.precision == "bf16-mixed" else 0
    together = 2 if machine.activation_checkpointing != "pass" else max(2, _largest_stage(config))
    stored, used = (2 if machine.precision == "bf16-true" else 4), (4 if machine.precision == "32-true" else 2)
    return used * (together * block + vocabulary) + stored * vocabulary


def activation_bytes(
    config: BackboneConfig, passes: int, micro_batch: int, precision: Precision, unit: Unit | None = None
) -> int:
    """Estimate of what the backward pass needs, in bytes.

    Per block and token: two residual states, q and k before their norm, in fp32 (16·width); two norm outputs, q, k,
    v and the attention's output, and four tensors of the MLP's hidden width (two under squared ReLU), in the branches'
    precision; with learned gains what each of the two norms gives before them, in fp32. With activation checkpointing,
    the state that every unit reads (4·width), and all this for the one unit that runs again. The loss adds the logits
    of one chunk. Passes without a gradient keep nothing.

    Args:
        config: Of the backbone.
        passes: K.
        micro_batch: Sequences.
        precision: As Lightning names it.
        unit: Of activation checkpointing: "block", "pass", or None for none.
    """
    branch = 4 if precision == "32-true" else 2
    tokens = micro_batch * config.context
    hidden = (4 if config.mlp == "swiglu" else 2) * config.hidden
    block = (24 if config.gains else 16) * config.width + branch * (6 * config.width + hidden)
    chunk = min(tokens, loss_chunk_tokens(config.vocabulary))  # two fp32 copies are alive at once
    trained = min(passes, config.trained_passes or passes)
    units, blocks_of_one = {
        None: (0, config.executed_depth(trained)),
        "block": (config.executed_depth(trained), 1),
        "pass": (trained + 2, _largest_stage(config)),
    }[unit]
    return tokens * (units * 4 * config.width + blocks_of_one * block) + 2 * 4 * chunk * config.vocabulary


def _largest_stage(config: BackboneConfig) -> int:
    return max(config.prelude, config.core, config.coda)


def peak_flops(device: str) -> float:
    """Dense bf16 FLOPs per second of a device by name.

    >>> peak_flops("h100")
    989000000000000.0
    """
    if device not in DEVICES:
        raise InputError(f"device = {device!r}: must be one of {', '.join(DEVICES)}, or give its FLOPs per second")
    return DEVICES[device]


def training_seconds(training_flops: float, devices: int, peak: float, mfu: float = TYPICAL_MFU) -> float:
    """Time of optimization at a model FLOPs utilisation, FLOPs / (devices · peak · MFU); evaluation comes on top."""
    require(0 < mfu <= 1, "mfu", mfu, "must be above 0, at most 1")
    require(peak > 0, "peak", peak, "must be above 0 FLOPs per second")
    return training_flops / (devices * peak * mfu)
