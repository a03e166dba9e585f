"""Number and bytes of the collectives of one optimizer step, by formula; a test counts them in real steps."""

from __future__ import annotations

from collections import Counter

from looplit.accounting.flops import active_blocks, block_parameters, stored_parameters, vocabulary_parameters
from looplit.errors import require
from looplit.model.config import BackboneConfig
from looplit.optim.algorithms import Collective, Matrices, algorithm_of
from looplit.optim.algorithms.collectives import MASTER_BYTES
from looplit.recipes.training import Optimizer


def sharded_step(
    config: BackboneConfig,
    passes: int,
    processes: int,
    micro_batches: int,
    *,
    optimizer: Optimizer = "muon",
    replicas: int = 1,
    compute_bytes: int = 2,
    reduce_every_micro_batch: bool = False,
) -> list[Collective]:
    """Collectives of a step of `looplit_fsdp`, scalars aside.

    Every executed block is gathered in the forward, and in the backward where the gradient goes through it. What
    belongs to no block (the head, what boundaries learn, outer gains) is gathered once for both, and so is the
    embedding, in fp32. Gradients are reduced in fp32. A block that runs in several passes is gathered and reduced in
    each.

    Args:
        config: Of the backbone.
        passes: K of the step.
        processes: In all.
        micro_batches: Of the accumulation.
        optimizer: Of the block matrices and those of the boundaries.
        replicas: Copies of the model; processes gather, and Muon works, within a copy. Copies exchange gradients.
        compute_bytes: Of a gathered value: 2 under bf16-mixed, 4 in fp32.
        reduce_every_micro_batch: As of the strategy.

    Raises:
        InputError: `replicas` does not divide `processes`.
    """
    require(replicas >= 1 and processes % replicas == 0, "replicas", replicas, f"must divide the {processes} processes")
    executed, trained = config.executed_depth(passes), config.executed_depth(config.backward_passes(passes))
    block, vocabulary = block_parameters(config), vocabulary_parameters(config)
    root = _root_parameters(config)
    within = processes // replicas
    share = (within - 1) / within
    # FSDP2 gathers in the backward what ran before, also the last block of the untrained passes, where it is not one of
    # those that are gathered just then.
    gathers = executed + trained + (executed > trained and not (config.tied and config.core == 1))
    gathered = (gathers * block + root) * compute_bytes + vocabulary * MASTER_BYTES
    reductions = micro_batches if reduce_every_micro_batch else 1
    reduced = (trained * block + root + vocabulary) * MASTER_BYTES
    step = [
        Collective("gather weights", micro_batches * (gathers + 2), micro_batches * gathered * share),
        Collective("reduce gradients", reductions * (trained + 2), reductions * reduced * share),
    ]
    if replicas > 1:
        exchanged = 2 * reduced / within * (replicas - 1) / replicas
        step.append(Collective("exchange gradients between copies", trained + 2, exchanged))
    return [*step, *_optimizer_step(config, config.backward_passes(passes), within, optimizer)]


def _optimizer_step(
    config: BackboneConfig, trained_passes: int, processes: int, optimizer: Optimizer
) -> list[Collective]:
    """What the algorithm of the matrices exchanges, of those that get a gradient."""
    live = active_blocks(config, trained_passes)
    up, width, hidden = (2 if config.mlp == "swiglu" else 1), config.width, config.hidden
    alike = [Matrices(4 * live, width, width), Matrices(up * live, hidden, width), Matrices(live, width, hidden)]
    learned = Counter(shape for operator in config.operators.values() for shape in operator.matrices())
    alike += [Matrices(number, *shape) for shape, number in learned.items()]
    return algorithm_of("optimizer", optimizer).collectives(alike, processes)


def ddp_step(config: BackboneConfig, processes: int, bucket_bytes: int = 25 * 2**20) -> list[Collective]:
    """Collectives of a step under DDP: gradients of all stored parameters, idle ones too, once per step.

    DDP reduces in buckets of `bucket_bytes`; a parameter is never split, so the number is the least there can be.
    """
    bytes_ = stored_parameters(config) * MASTER_BYTES
    return [Collective("reduce gradients", -(-bytes_ // bucket_bytes), 2 * bytes_ * (processes - 1) / processes)]


def least_step(config: BackboneConfig, passes: int, processes: int) -> float:
    """Bytes that each process sends at least: what runs gathered once in bf16, its fp32 gradients reduced once."""
    rest = _root_parameters(config) + vocabulary_parameters(config)
    running, trained = (
        active_blocks(config, k) * block_parameters(config) + rest for k in (passes, config.backward_passes(passes))
    )
    return (trained * MASTER_BYTES + running * 2) * (processes - 1) / processes


def _root_parameters(config: BackboneConfig) -> int:
    """What belongs neither to a block nor to the embedding."""
    blocks = config.stored_blocks * block_parameters(config)
    return stored_parameters(config) - blocks - vocabulary_parameters(config)
