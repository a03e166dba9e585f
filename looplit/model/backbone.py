"""The shared prelude-core-coda backbone of every family (growth study, section 3, Eq. 2).

e = P(embed(s)),  h_k = R_θk(φ(h_{k-1}, e)) for k = 1..K,  y = C(ρ(h_K, e)); h_k is RMSNorm of that under `pass_norm`

Shape suffixes: B batch, T tokens, D width, V vocabulary; 1 broadcasts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from looplit.errors import require
from looplit.model.block import Block, RMSNorm, rotary_tables
from looplit.model.boundary_module import Boundary
from looplit.model.config import BackboneConfig, Unit
from looplit.model.initialization import assign, initial_value
from looplit.model.loss import Reduction, linear_cross_entropy, scaled_logits


class Site(NamedTuple):
    """Where in the forward a state was read.

    `block` counts from 1 within the stage or pass; 0 is what the stage or pass reads, after its boundary operator.
    `pass_` counts from 1 in the core and is 0 elsewhere.
    """

    stage: Literal["prelude", "core", "coda"]
    pass_: int
    block: int


Observer = Callable[[Site, Tensor], None]
AttentionInputs = tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]  # cosines, sines, and a mask unless causal


class Backbone(nn.Module):
    """Decoder-only transformer of prelude, core and coda; the core runs `passes` times.

    Tied: one core serves every pass. Untied: pass k runs core k, and cores from `passes` on are dormant: stored, not
    executed, without gradient. `set_passes` changes K at any time; `looplit.model.growth.grow` also fills the cores
    that wake up.

    Attributes:
        activation_checkpointing: "block" or "pass" where every block, or every pass (and the prelude, and the coda)
            keeps only its input for the backward pass and runs again there; None where activations are kept.

    Args:
        config: Shape and constants.
        seed: Seed of the initial weights. Every parameter draws from a generator seeded by `seed` and its own name,
            so that it starts the same in every family, for any number of stored cores and on any number of devices.

    Example:
        >>> model = Backbone(BackboneConfig(width=64, heads=2, prelude=1, core=1, coda=1, passes=2, vocabulary=257))
        >>> tokens_BT = torch.zeros(1, 8, dtype=torch.long)
        >>> model(tokens_BT).shape
        torch.Size([1, 8, 257])
        >>> round(model(tokens_BT, tokens_BT).item(), 4)  # the head starts at zero: ln 257
        5.5491
    """

    cores: nn.ModuleList
    rotary_cos: Tensor
    rotary_sin: Tensor

    def __init__(self, config: BackboneConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.passes = config.passes
        self.activation_checkpointing: Unit | None = None
        self.embedding = nn.Embedding(config.padded_vocabulary, config.width)
        self.prelude = _stage(config, config.prelude)
        self.cores = nn.ModuleList(_stage(config, config.core) for _ in range(config.stored_cores or 1))
        self.coda = _stage(config, config.coda)
        self.head = nn.Linear(config.width, config.padded_vocabulary, bias=False)
        self.boundary = Boundary(config.pass_operator)
        self.coda_boundary = Boundary(config.coda_operator)
        self.embedding_norm = RMSNorm(config)
        self.pass_norm = RMSNorm(config) if config.pass_norm else nn.Identity()
        self.head_norm = RMSNorm(config)
        self.register_buffer("rotary_cos", torch.empty(0), persistent=False)
        self.register_buffer("rotary_sin", torch.empty(0), persistent=False)
        self.initialize(seed)

    @torch.no_grad()
    def initialize(self, seed: int) -> None:
        """Sets every parameter to its `initial_value`, and the rotary tables. Does nothing on the meta device.

        A sharded model gets the same weights: a process draws one whole parameter at a time and keeps its part.
        """
        if self.head.weight.is_meta:
            return
        tables = rotary_tables(self.config.head_dim, self.config.context, torch.device("cpu"))  # alike on all devices
        self.rotary_cos, self.rotary_sin = (table.to(self.rotary_cos) for table in tables)
        for name, parameter in self.named_parameters():
            assign(parameter, initial_value(name, parameter.shape, self.config, seed))

    @property
    def tied(self) -> bool:
        """Whether every pass runs the same core."""
        return self.config.tied

    @property
    def max_passes(self) -> int | None:
        """Most passes the model can run; None where there is no limit."""
        return self.config.max_passes

    @property
    def executed_depth(self) -> int:
        """Blocks that a token passes through at the current number of passes."""
        return self.config.executed_depth(self.passes)

    def set_passes(self, passes: int) -> None:
        """Sets K from the next forward on. Weights stay as they are.

        Raises:
            InputError: Below 1, or above the stored cores of an untied model.
        """
        require(passes >= 1, "passes", passes, "must be at least 1")
        most = self.max_passes
        require(
            most is None or passes <= most, "passes", passes, f"an untied model can run at most its {most} stored cores"
        )
        self.passes = passes

    def blocks(self) -> Iterator[Block]:
        """Every stored block, dormant ones included, in the order of `named_parameters`."""
        for module in self.modules():
            if isinstance(module, Block):
                yield module

    def forward(
        self,
        tokens_BT: Tensor,
        targets_BT: Tensor | None = None,
        *,
        reduction: Reduction = "mean",
        observe: Observer | None = None,
        branches_BT: Tensor | None = None,
        readout: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Logits of the next token, or the loss where targets are given.

        Args:
            tokens_BT: Token ids, (batch, tokens), an integer type; at most `config.context` tokens.
            targets_BT: Ids of the tokens that follow, same shape; -100 does not count.
            reduction: Of the loss: "mean" over the targets that count, "sum", or "none".
            observe: Called with (site, state (B, T, D)) at what every stage reads and after every executed block.
            branches_BT: Branch of every token, for several continuations of one beginning in a row: 0 marks the
                beginning, which all positive branches continue; negative ones (padding) see themselves alone. Each
                branch gets what it would get in a row of its own.
            readout: Called with the normalised final state (B, T, D) in place of the decoding; its answer is returned.

        Returns:
            Logits (B, T, vocabulary) in fp32; or with targets the loss in nats per token, a scalar or (B, T).

        Raises:
            InputError: More tokens than the context.
        """
        y_BTD = self.head_norm(self._residual_stream(tokens_BT, observe, branches_BT))
        if readout is not None:
            return readout(y_BTD)
        if targets_BT is None:
            return self.decode_normed(y_BTD)
        loss = linear_cross_entropy(
            y_BTD.flatten(0, 1),
            self.head.weight,
            targets_BT.flatten().long(),
            vocabulary=self.config.vocabulary,
            multiplier=self.config.output_multiplier,
            soft_cap=self.config.soft_cap,
            reduction=reduction,
        )
        return loss.view(targets_BT.shape) if reduction == "none" else loss

    def decode(self, state_BTD: Tensor) -> Tensor:
        """Logits that a state of the residual stream would give, OM·head(RMSNorm(x)), as the logit lens reads it."""
        return self.decode_normed(self.head_norm(state_BTD))

    def decode_normed(self, normed_BTD: Tensor) -> Tensor:
        """Logits of a state that is normalised already."""
        config = self.config
        return scaled_logits(normed_BTD, self.head.weight, config.vocabulary, config.output_multiplier, config.soft_cap)

    def _residual_stream(
        self, tokens_BT: Tensor, observe: Observer | None, branches_BT: Tensor | None = None
    ) -> Tensor:
        T = tokens_BT.shape[1]
        inputs = self._attention_inputs(T) if branches_BT is None else self._branch_inputs(branches_BT)
        x_BTD = self.embedding_norm(self.embedding(tokens_BT.long()))
        run = partial(_run, unit=self.activation_checkpointing)
        e_BTD = h_BTD = run(self.prelude, x_BTD, inputs, observe, "prelude", 0)
        untrained = self.passes - (self.config.trained_passes or self.passes)
        for k in range(self.passes):
            with torch.set_grad_enabled(torch.is_grad_enabled() and k >= untrained):
                h_BTD = self.boundary(h_BTD, e_BTD) if k else self.boundary.first(e_BTD)
                h_BTD = self.pass_norm(run(self.cores[0 if self.tied else k], h_BTD, inputs, observe, "core", k + 1))
        return run(self.coda, self.coda_boundary(h_BTD, e_BTD), inputs, observe, "coda", 0)

    def _attention_inputs(self, T: int) -> AttentionInputs:
        require(self.config.context >= T, "tokens", T, f"the model's context is {self.config.context}")
        return self.rotary_cos[:T], self.rotary_sin[:T]

    def _branch_inputs(self, branches_BT: Tensor) -> AttentionInputs:
        """A token sees itself and, before it, its own branch and the beginning; its position counts what it sees."""
        query_BT1, key_B1T = branches_BT[:, :, None], branches_BT[:, None, :]
        mask_BTT = ((key_B1T == query_BT1) | ((key_B1T == 0) & (query_BT1 > 0))).tril()
        positions_BT = mask_BTT.sum(-1) - 1
        return self.rotary_cos[positions_BT], self.rotary_sin[positions_BT], mask_BTT[:, None]


def _stage(config: BackboneConfig, n_blocks: int) -> nn.ModuleList:
    return nn.ModuleList(Block(config) for _ in range(n_blocks))


def _run(
    blocks: nn.Module,
    x_BTD: Tensor,
    attention_inputs: AttentionInputs,
    observe: Observer | None,
    stage: Literal["prelude", "core", "coda"],
    pass_: int,
    unit: Unit | None = None,
) -> Tensor:
    if unit == "pass":
        first_time = iter([observe])  # the backward pass runs the blocks again, unobserved
        return _recomputed(lambda x: _run(blocks, x, attention_inputs, next(first_time, None), stage, pass_), x_BTD)
    if observe is not None:
        observe(Site(stage, pass_, 0), x_BTD)
    for b, block in enumerate(blocks.children(), start=1):
        x_BTD = _recomputed(block, x_BTD, *attention_inputs) if unit == "block" else block(x_BTD, *attention_inputs)
        if observe is not None:
            observe(Site(stage, pass_, b), x_BTD)
    return x_BTD


def _recomputed(function: Callable[..., Tensor], *args: Tensor) -> Tensor:
    result: Tensor = checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)
    return result
