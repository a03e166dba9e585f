"""Parameters and FLOPs of a backbone, counted by hand (growth study, section 4; truncation study, section 2).

Every count uses the padded vocabulary, and every answer is exact: plain integers from a `BackboneConfig`, no torch.
A FLOP is a multiply or an add, so a matrix costs 2 per parameter and token forward and 4 backward.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from looplit.errors import require
from looplit.model.config import BackboneConfig
from looplit.wording import counted

Attention = Literal["causal", "full"]


def block_matrix_parameters(config: BackboneConfig) -> int:
    """Parameters of the matrices of one block: 4·width² (q, k, v, out) + 3·width·hidden (gate, up, down).

    Squared ReLU has no gate: 2·width·hidden there.
    """
    return 4 * config.width**2 + (3 if config.mlp == "swiglu" else 2) * config.width * config.hidden


def block_parameters(config: BackboneConfig) -> int:
    """Parameters of one transformer block: its matrices, and where norms have gains two of those."""
    return block_matrix_parameters(config) + (2 * config.width if config.gains else 0)


def boundary_parameters(config: BackboneConfig) -> int:
    """Parameters of the boundary before the passes, as it says: 2·width² of a linear one."""
    return config.pass_operator.matrix_parameters() + config.pass_operator.vector_parameters()


def coda_boundary_parameters(config: BackboneConfig) -> int:
    """Parameters of the boundary before the coda; none of LoopLit's own has any."""
    return config.coda_operator.matrix_parameters() + config.coda_operator.vector_parameters()


def vocabulary_parameters(config: BackboneConfig) -> int:
    """Parameters of one vocabulary matrix; the embedding and the head are one each."""
    return config.padded_vocabulary * config.width


def stored_parameters(config: BackboneConfig) -> int:
    """All allocated parameters, both vocabulary matrices and the cores that wait for growth included.

    >>> from looplit.recipes.families import FAMILIES
    >>> stored_parameters(FAMILIES["untied_grow"].backbone(26))
    7424049152
    """
    return 2 * vocabulary_parameters(config) + nonembedding_parameters(config)


def initial_parameters(config: BackboneConfig) -> int:
    """N of the recipes: the stored parameters that are active at the initial number of passes.

    >>> from looplit.recipes.families import FAMILIES
    >>> initial_parameters(FAMILIES["untied_grow"].backbone(26))
    5016387584
    """
    dormant = config.stored_blocks - active_blocks(config, config.passes)
    return stored_parameters(config) - dormant * block_parameters(config)


def nonembedding_parameters(config: BackboneConfig) -> int:
    """Stored parameters without the two vocabulary matrices: blocks, what boundaries learn, the outer norms' gains."""
    boundaries = boundary_parameters(config) + coda_boundary_parameters(config)
    return config.stored_blocks * block_parameters(config) + boundaries + _outer_gains(config)


def gain_parameters(config: BackboneConfig) -> int:
    """Learned gains of all norms, and vectors of the boundaries, which train like them."""
    vectors = sum(operator.vector_parameters() for operator in config.operators.values())
    in_blocks = config.stored_blocks * (block_parameters(config) - block_matrix_parameters(config))
    return in_blocks + vectors + _outer_gains(config)


def once_parameters(config: BackboneConfig) -> int:
    """N_once of the truncation study: prelude and coda, the boundary before it, and the gains around all blocks."""
    gains = _outer_gains(config) - _pass_gains(config)
    return (config.prelude + config.coda) * block_parameters(config) + coda_boundary_parameters(config) + gains


def recurrent_parameters(config: BackboneConfig) -> int:
    """N_rec of the truncation study: the parameters of one core, the boundary before it and the gains after it."""
    return config.core * block_parameters(config) + boundary_parameters(config) + _pass_gains(config)


def applied_parameters(config: BackboneConfig, passes: int | None = None) -> int:
    """Non-embedding parameters of HyperP: blocks and boundaries counted once per application, outer gains once.

    >>> from looplit.recipes.truncation_study import truncated_backbone
    >>> applied_parameters(truncated_backbone(width=640, passes=4))
    101608320
    """
    passes = config.passes if passes is None else passes
    blocks = config.executed_depth(passes) * block_parameters(config)
    boundaries = config.pass_operator.applications(passes) * boundary_parameters(config)
    return blocks + boundaries + coda_boundary_parameters(config) + _outer_gains(config)


def _outer_gains(config: BackboneConfig) -> int:
    """Gains of the norms after the embedding, after the passes and before the head."""
    return (2 * config.width if config.gains else 0) + _pass_gains(config)


def _pass_gains(config: BackboneConfig) -> int:
    return config.width if config.gains and config.pass_norm else 0


def active_blocks(config: BackboneConfig, passes: int | None = None) -> int:
    """Distinct blocks that run at `passes` (default: the initial K): a tied core counts once."""
    return config.executed_depth(1 if config.tied else passes)


def compute_parameters(config: BackboneConfig, passes: int | None = None) -> int:
    """N_c,K = ℓ_K·block + head: the matrix parameters a token meets, a shared core counted once per pass.

    The leading-order cost of a token is 6·N_c,K FLOPs (growth study, A.2.2). Gains are not matrices.
    """
    passes = config.passes if passes is None else passes
    blocks = config.executed_depth(passes) * block_matrix_parameters(config)
    before = config.pass_operator
    boundaries = before.applications(passes) * before.matrix_parameters() + config.coda_operator.matrix_parameters()
    return blocks + boundaries + vocabulary_parameters(config)


def flops_per_token(
    config: BackboneConfig,
    passes: int | None = None,
    context: int | None = None,
    *,
    gradient_passes: int | None = None,
    attention: Attention = "causal",
) -> int:
    """Training FLOPs (forward and backward) per token at `passes`.

    6·(ℓ_K·block + head) + ℓ_K·attention, and 3 times what a boundary takes forward, a linear one 2 per weight. With
    truncated backpropagation the first T - B passes of the core, their boundary included, run forward only and cost a
    third: 2 per weight instead of 6 (truncation study: a forward pass is 1 unit of cost, a backward pass 2). Norms,
    rotary embedding, the softmax and the optimizer are left out, as usual.

    Args:
        passes: K, or T under truncation; default the initial K.
        context: Tokens per sequence; default the longest.
        gradient_passes: B, the last passes that the gradient goes through; default the config's `trained_passes`.
        attention: Per trained block and token, "causal" counts 6·width·(context + 1), a query attending to
            (context + 1)/2 keys on average (growth study); "full" counts 12·width·context (truncation study).

    >>> from looplit.recipes.families import FAMILIES
    >>> vanilla = FAMILIES["vanilla"].backbone(8)
    >>> flops_per_token(vanilla) * 1962 * 524_288
    1055750772932739072
    """
    require(attention in get_args(Attention), "attention", attention, "must be causal or full")
    passes = config.passes if passes is None else passes
    context = config.context if context is None else context
    trained = min(passes, config.trained_passes or passes) if gradient_passes is None else gradient_passes
    require(
        0 <= trained <= passes, "gradient_passes", trained, f"must be from 0 to the {counted(passes, 'pass')} that run"
    )
    attention_forward = 2 * config.width * (context + 1) if attention == "causal" else 4 * config.width * context
    block_forward = 2 * block_matrix_parameters(config) + attention_forward
    before, before_coda = config.pass_operator, config.coda_operator
    applied = before.applications(passes)
    boundaries = loop_cost(applied, min(applied, trained)) * before.flops_per_token()
    once = 3 * ((config.prelude + config.coda) * block_forward + before_coda.flops_per_token())
    cores = loop_cost(passes, trained) * config.core * block_forward
    return once + 6 * vocabulary_parameters(config) + cores + boundaries


def training_flops(
    config: BackboneConfig,
    phases: Iterable[tuple[int, int]],
    batch_tokens: int,
    *,
    gradient_passes: int | None = None,
    attention: Attention = "causal",
) -> int:
    """FLOPs of a run: Σ over phases of steps · batch tokens · FLOPs per token at the K in force.

    Args:
        phases: (passes, optimizer steps) pairs: the phases between growths, or how often each K was drawn.
        batch_tokens: Tokens per optimizer step.
        gradient_passes: B of truncated backpropagation, the same in every phase; a phase with fewer passes than
            that trains all of them.
        attention: As in `flops_per_token`.
    """
    total = 0
    for passes, steps in phases:
        trained = None if gradient_passes is None else min(gradient_passes, passes)
        total += steps * flops_per_token(config, passes, gradient_passes=trained, attention=attention)
    return total * batch_tokens


def loop_cost(passes: int, gradient_passes: int) -> int:
    """T + 2B, the cost of the core's passes in forward-pass units (truncation study).

    >>> loop_cost(8, 2), loop_cost(8, 8)
    (12, 24)
    """
    require(
        0 <= gradient_passes <= passes,
        "gradient_passes",
        gradient_passes,
        f"must be from 0 to the {counted(passes, 'pass')}",
    )
    return passes + 2 * gradient_passes


def truncated_compute_parameters(config: BackboneConfig, passes: int, gradient_passes: int) -> float:
    """N_comp = N_once + (T + 2B)/3·N_rec: 6·N_comp is the leading-order cost per token under truncation.

    No vocabulary matrix, no attention (truncation study).

    >>> from looplit.recipes.truncation_study import truncated_backbone
    >>> truncated_compute_parameters(truncated_backbone(width=640, passes=8), 8, 2)
    101610240.0
    """
    return once_parameters(config) + loop_cost(passes, gradient_passes) / 3 * recurrent_parameters(config)
