"""Number and bytes of the collectives of one optimizer step, by formula; a test counts them in real steps."""

from __future__ import annotations

from dataclasses import dataclass

from looplit.model.config import BackboneConfig
from looplit.optim.exchange import STACK_ELEMENTS
from looplit.scaling.accounting import block_parameters, vocabulary_parameters

_MASTER = 4  # bytes of an fp32 value


@dataclass(frozen=True)
class Collective:
    """Collectives of one kind in one optimizer step.

    Args:
        kind: What is exchanged.
        number: How many.
        sent: Bytes that each process sends in all of them, as rings do it: an all-gather or reduce-scatter of S bytes
            over n processes sends S·(n-1)/n, an all-reduce twice that, an all-to-all S·(n-1)/n².
    """

    kind: str
    number: int
    sent: float


def sharded_step(
    config: BackboneConfig,
    passes: int,
    processes: int,
    micro_batches: int,
    *,
    replicas: int = 1,
    compute_bytes: int = 2,
    reduce_every_micro_batch: bool = False,
) -> list[Collective]:
    """Collectives of a step of `looplit_fsdp` with Muon, scalars aside.

    Every executed block is gathered in the forward and in the backward; the head is gathered once for both, and so is
    the embedding, in fp32. Gradients are reduced in fp32. A block that runs in several passes is gathered and reduced
    in each.

    Args:
        config: Of the backbone.
        passes: K of the step.
        processes: In all.
        micro_batches: Of the accumulation.
        replicas: Copies of the model; processes gather, and Muon works, within a copy. Copies exchange gradients.
        compute_bytes: Of a gathered value: 2 under bf16-mixed, 4 in fp32.
        reduce_every_micro_batch: As of the strategy.
    """
    executed, block, vocabulary = config.executed_depth(passes), block_parameters(config), vocabulary_parameters(config)
    within = processes // replicas
    share = (within - 1) / within
    gathered = (2 * executed * block + vocabulary) * compute_bytes + vocabulary * _MASTER
    reductions = micro_batches if reduce_every_micro_batch else 1
    reduced = (executed * block + 2 * vocabulary) * _MASTER
    live = config.prelude + config.coda + config.core * (1 if config.tied else passes)
    square, wide = config.width**2, config.width * config.hidden
    stacks = sum(_stacks(live * n, size, within) for n, size in ((4, square), (2, wide), (1, wide)))
    variances = live * (4 * config.width + 3 * config.hidden) * _MASTER
    step = [
        Collective("gather weights", micro_batches * (2 * executed + 2), micro_batches * gathered * share),
        Collective("reduce gradients", reductions * (executed + 2), reductions * reduced * share),
        Collective("exchange matrices for Muon", 2 * stacks, 2 * live * block * _MASTER * share / within),
        Collective("gather Muon's variances", stacks, variances * share),
    ]
    if replicas > 1:
        exchanged = 2 * reduced / within * (replicas - 1) / replicas
        step.insert(2, Collective("exchange gradients between copies", executed + 2, exchanged))
    return step


def ddp_step(config: BackboneConfig, processes: int, bucket_bytes: int = 25 * 2**20) -> list[Collective]:
    """Collectives of a step under DDP: gradients of all stored parameters, dormant ones too, once per step.

    DDP reduces in buckets of `bucket_bytes`; a parameter is never split, so the number is the least there can be.
    """
    bytes_ = (config.stored_blocks * block_parameters(config) + 2 * vocabulary_parameters(config)) * _MASTER
    return [Collective("reduce gradients", -(-bytes_ // bucket_bytes), 2 * bytes_ * (processes - 1) / processes)]


def least_step(config: BackboneConfig, passes: int, processes: int) -> float:
    """Bytes that each process sends at least: live fp32 gradients reduced once, and as many bf16 weights gathered."""
    live = config.prelude + config.coda + config.core * (1 if config.tied else passes)
    values = live * block_parameters(config) + 2 * vocabulary_parameters(config)
    return values * (_MASTER + 2) * (processes - 1) / processes


def _stacks(matrices: int, size: int, processes: int) -> int:
    together = max(1, STACK_ELEMENTS * processes // size)
    if together > processes:
        together -= together % processes
    return -(-matrices // together)
