"""What a run needs: memory per device and time, estimated without building the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from looplit.errors import InputError, require
from looplit.model.config import BackboneConfig
from looplit.scaling.accounting import (
    active_blocks,
    block_parameters,
    nonembedding_parameters,
    vocabulary_parameters,
)
from looplit.scaling.run import Run

Precision = Literal["32-true", "bf16-mixed", "bf16-true"]

# Dense bf16 FLOPs per second, from the vendor's data sheets.
DEVICES = {"a100": 312e12, "h100": 989e12, "h200": 989e12, "b200": 2250e12}
# The study's yardstick, Untied-2 d8 on 1B tokens in 6.54 minutes on eight H100, is an MFU of 0.42.
TYPICAL_MFU = 0.4

LOGITS_PER_CHUNK = 2**27  # of the chunked loss; two fp32 copies of a chunk are alive at once


@dataclass(frozen=True)
class Machine:
    """Where a run takes place.

    Args:
        devices: In all, over all nodes.
        micro_batch: Sequences per device and forward.
        sharded: Whether parameters, gradients and optimizer state are split over the devices (FSDP).
        precision: As Lightning names it.
    """

    devices: int = 1
    micro_batch: int = 1
    sharded: bool = False
    precision: Precision = "bf16-mixed"

    def __post_init__(self) -> None:
        require(self.devices >= 1, "devices", self.devices, "must be at least 1")
        require(self.micro_batch >= 1, "micro_batch", self.micro_batch, "must be at least 1")
        known = get_args(Precision)
        require(self.precision in known, "precision", self.precision, f"must be one of {', '.join(known)}")


def memory_per_device(run: Run, machine: Machine) -> dict[str, int]:
    """Bytes on one device at the most expensive K of the run, by what they hold, and their total.

    Parameters, gradients and optimizer state are exact sums: 4 bytes each, or 2 under "bf16-true"; Muon keeps one
    momentum per matrix entry (always fp32), AdamW two moments. Dormant cores have state but no gradient. Activations
    are an estimate (`activation_bytes`). Scratch space of the optimizer and the allocator comes on top.
    """
    config, passes = run.backbone, run.recurrence.max_passes
    size = 2 if machine.precision == "bf16-true" else 4
    shards = machine.devices if machine.sharded else 1
    matrices = nonembedding_parameters(config)
    vocabulary = 2 * vocabulary_parameters(config)
    active = matrices - (config.stored_blocks - active_blocks(config, passes)) * block_parameters(config)
    moments = 2 * size * matrices if run.optimizer == "adamw" else 4 * matrices
    cast = 2 * (active + vocabulary // 2) if machine.precision == "bf16-mixed" else 0
    parts = {
        "parameters": size * (matrices + vocabulary) // shards,
        "gradients": size * (active + vocabulary) // shards,
        "optimizer_state": (moments + 2 * size * vocabulary) // shards,
        "cast_weights": cast // shards,
        "activations": activation_bytes(config, passes, machine.micro_batch, machine.precision),
    }
    return {**parts, "total": sum(parts.values())}


def activation_bytes(config: BackboneConfig, passes: int, micro_batch: int, precision: Precision) -> int:
    """Estimate of what the backward pass needs, in bytes, without activation checkpointing.

    Per block and token: two residual states, q and k before their norm, in fp32 (16·width); two norm outputs, q, k,
    v and the attention's output, and four tensors of the MLP's hidden width, in the branches' precision. Passes
    without gradient keep nothing. The loss adds the logits of one chunk.
    """
    branch = 4 if precision == "32-true" else 2
    tokens = micro_batch * config.context
    block = 16 * config.width + branch * (6 * config.width + 4 * config.hidden)
    chunk = min(tokens, max(256, LOGITS_PER_CHUNK // config.vocabulary))
    kept = config.executed_depth(min(passes, config.trained_passes or passes))
    return tokens * kept * block + 2 * 4 * chunk * config.vocabulary


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
