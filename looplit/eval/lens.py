"""The logit lens: what every executed block would predict, and how deep a model computes (growth study, Figure 6).

The residual stream after each executed block is decoded as the final one is, OM·head(RMSNorm(x)), and compared with the
final prediction. Two forwards: the first finds the final state, the second compares every block with it. Logits exist
for one block and one chunk of tokens at a time, so memory grows neither with depth × vocabulary nor with
tokens × vocabulary.

Shape suffixes: B batch, T tokens, N tokens of a chunk, D width, V vocabulary, L executed blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor, nn

from looplit.data.batches import Batch, inputs_and_targets
from looplit.errors import InputError, require
from looplit.model.backbone import Backbone, Observer, Site

Direction = Literal["final_decoded", "decoded_final"]
Stage = Literal["prelude", "core", "coda"]

THRESHOLD = 2.0  # nats, the growth study's
_CHUNK_TOKENS = 512  # 98 MiB of fp32 logits at 50,304 columns


@runtime_checkable
class ResidualStream(Protocol):
    """What the lens needs of a model. `stream_of` gives it for LoopLit's, `HookedStream` for any other."""

    def run(self, tokens_BT: Tensor, observe: Observer) -> None:
        """One forward that shows `observe` what each stage reads (block 0) and the state after every block."""

    def decode(self, state: Tensor) -> Tensor:
        """Logits (…, vocabulary) that a state (…, width) would give."""


class BackboneStream:
    """The residual stream of a `Backbone`."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone

    def run(self, tokens_BT: Tensor, observe: Observer) -> None:
        check_ids("tokens", tokens_BT, self.backbone.config.vocabulary)
        self.backbone(tokens_BT, observe=observe, readout=lambda y_BTD: y_BTD)

    def decode(self, state: Tensor) -> Tensor:
        return self.backbone.decode(state)


class HookedStream:
    """The residual stream of any model whose blocks are modules, read by forward hooks.

    Args:
        model: Called with token ids (B, T).
        stages: ("prelude" | "core" | "coda", its blocks) in the order of execution. A core that is called again starts
            the next pass; so does another core. Blocks take the state (B, T, D) as their first argument and return it
            (or a tuple that begins with it).
        decode: From states to logits, the final norm included.

    Example:
        >>> model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 8))
        >>> stream = HookedStream(model, [("prelude", [model[1]]), ("coda", [model[2]])], model[3])
        >>> [site_label(site) for site in token_readings(stream, torch.zeros(1, 5, dtype=torch.long)).sites]
        ['prelude 1', 'coda 1']
    """

    def __init__(
        self, model: nn.Module, stages: Sequence[tuple[Stage, Sequence[nn.Module]]], decode: Callable[[Tensor], Tensor]
    ) -> None:
        for stage, blocks in stages:
            require(stage in get_args(Stage), "stages", stage, f"must be one of {', '.join(get_args(Stage))}")
            require(len(blocks) > 0, "stages", stage, "has no blocks")
        self.model = model
        self.stages = stages
        self.decode = decode

    def run(self, tokens_BT: Tensor, observe: Observer) -> None:
        passes = dict.fromkeys(get_args(Stage), 0)

        def reads(stage: Stage, block: nn.Module, args: tuple[Any, ...]) -> None:
            passes[stage] += stage == "core"
            observe(Site(stage, passes[stage], 0), args[0])

        def gives(stage: Stage, b: int, block: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            observe(Site(stage, passes[stage], b), output[0] if isinstance(output, tuple) else output)

        handles = []
        try:
            for stage, blocks in self.stages:
                handles.append(blocks[0].register_forward_pre_hook(partial(reads, stage)))
                for b, block in enumerate(blocks, start=1):
                    handles.append(block.register_forward_hook(partial(gives, stage, b)))
            self.model(tokens_BT)
        finally:
            for handle in handles:
                handle.remove()


def stream_of(model: Any) -> ResidualStream:
    """The residual stream of a `Backbone`, of a module that has one as `backbone`, or the stream itself.

    Raises:
        InputError: None of these.
    """
    if isinstance(model, ResidualStream):
        return model
    if not is_readable(model):
        raise InputError(f"model = {type(model).__name__}: has no Backbone; read it through a HookedStream")
    return BackboneStream(getattr(model, "backbone", model))


def is_readable(model: Any) -> bool:
    """Whether `stream_of` finds the residual stream of a model."""
    return isinstance(model, ResidualStream) or isinstance(getattr(model, "backbone", model), Backbone)


def site_label(site: Site) -> str:
    """Stage, pass (in the core) and block, e.g. "prelude 2" or "core 3.1".

    >>> site_label(Site("core", 3, 1))
    'core 3.1'
    """
    return f"{site.stage} {site.pass_}.{site.block}" if site.pass_ else f"{site.stage} {site.block}"


def check_reading(threshold: float, direction: str) -> None:
    """Refuses settings that no lens can have.

    Raises:
        InputError: A threshold that is negative or no number, or an unknown direction.
    """
    require(threshold >= 0, "threshold", threshold, "must be a number of nats, at least 0")
    directions = get_args(Direction)
    require(direction in directions, "direction", direction, f"must be one of {', '.join(directions)}")


def check_ids(argument: str, ids: Tensor, vocabulary: int) -> None:
    """Refuses token ids beyond a vocabulary.

    Raises:
        InputError: Names the largest id.
    """
    largest = int(ids.max())
    require(largest < vocabulary, argument, largest, f"the model's vocabulary has ids from 0 to {vocabulary - 1}")


class TokenReadings(NamedTuple):
    """What the lens reads at every executed block and token; tensors (L, B, T).

    Attributes:
        sites: The blocks.
        kl: Divergence between the final and the decoded prediction, in nats.
        prediction: Token id that the decoded state would predict.
        probability: Its probability.
        loss: Of the decoded prediction, in nats; NaN without targets.
        rms: Root mean square of the state, the residual stream's norm over sqrt(width).
        update: ‖what the block added‖ / ‖what it read‖.
    """

    sites: list[Site]
    kl: Tensor
    prediction: Tensor
    probability: Tensor
    loss: Tensor
    rms: Tensor
    update: Tensor

    @property
    def agreement(self) -> Tensor:
        """Whether the decoded prediction is the final one; of equal logits the lowest id counts."""
        return self.prediction == self.prediction[-1]


@torch.no_grad()
def token_readings(
    model: Any,
    tokens_BT: Tensor,
    targets_BT: Tensor | None = None,
    *,
    direction: Direction = "final_decoded",
    chunk_tokens: int = _CHUNK_TOKENS,
) -> TokenReadings:
    """Reads every executed block of a model at its current number of passes.

    Args:
        model: See `stream_of`.
        tokens_BT: Token ids (B, T).
        targets_BT: Ids of the tokens that follow, for the loss; negative ones give NaN.
        direction: "final_decoded" for KL(final ‖ decoded), the study's; "decoded_final" for the other.
        chunk_tokens: Tokens decoded at a time.

    Raises:
        InputError: No tokens, targets of another shape, an id beyond the vocabulary, or an unknown direction.
    """
    require(tokens_BT.numel() > 0, "tokens", list(tokens_BT.shape), "nothing to score")
    check_reading(THRESHOLD, direction)
    if targets_BT is not None:
        rule = f"must have the shape of the tokens, {list(tokens_BT.shape)}"
        require(targets_BT.shape == tokens_BT.shape, "targets", list(targets_BT.shape), rule)
    require(chunk_tokens >= 1, "chunk_tokens", chunk_tokens, "must be at least 1")
    stream = stream_of(model)
    last: list[Tensor] = []

    def keep(site: Site, state_BTD: Tensor) -> None:
        last[:] = [state_BTD]

    stream.run(tokens_BT, keep)
    require(bool(last), "model", type(model).__name__, "executed none of its blocks")
    (final_BTD,) = last
    if targets_BT is not None:
        check_ids("targets", targets_BT, stream.decode(final_BTD[:1, :1]).shape[-1])
    sites: list[Site] = []
    rows: list[list[Tensor]] = []

    def read(site: Site, state_BTD: Tensor) -> None:
        if site.block:
            compared = _compare(stream, state_BTD, final_BTD, targets_BT, direction, chunk_tokens)
            sites.append(site)
            rows.append([*compared, *_norms(state_BTD, last[0])])
        last[0] = state_BTD

    stream.run(tokens_BT, read)
    return TokenReadings(sites, *(torch.stack(column) for column in zip(*rows, strict=True)))


def _compare(
    stream: ResidualStream,
    state_BTD: Tensor,
    final_BTD: Tensor,
    targets_BT: Tensor | None,
    direction: Direction,
    chunk_tokens: int,
) -> list[Tensor]:
    """KL, prediction, its probability, and loss, each (B, T)."""
    states, finals = (x_BTD.flatten(0, 1).split(chunk_tokens) for x_BTD in (state_BTD, final_BTD))
    targets = [None] * len(states) if targets_BT is None else targets_BT.flatten().split(chunk_tokens)
    chunks = []
    for state_ND, final_ND, targets_N in zip(states, finals, targets, strict=True):
        decoded_NV = _log_probabilities(stream.decode(state_ND))
        best = decoded_NV.max(-1)
        if targets_N is None:
            loss_N = torch.full_like(best.values, math.nan)
        else:
            loss_N = -decoded_NV.gather(1, targets_N.long().clamp(min=0)[:, None])[:, 0]
            loss_N = loss_N.masked_fill(targets_N < 0, math.nan)
        final_NV = _log_probabilities(stream.decode(final_ND))
        p_NV, q_NV = (final_NV, decoded_NV) if direction == "final_decoded" else (decoded_NV, final_NV)
        chunks.append((_kl(p_NV, q_NV), best.indices, best.values.exp(), loss_N))
    return [torch.cat(column).view(state_BTD.shape[:2]) for column in zip(*chunks, strict=True)]


def _log_probabilities(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


def _kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Σ p·(log p - log q) over the last dimension. Overwrites both; rounding never makes it negative."""
    difference = log_q.neg_().add_(log_p)
    return log_p.exp_().mul_(difference).sum(-1).clamp(min=0)


def _norms(state_BTD: Tensor, before_BTD: Tensor) -> list[Tensor]:
    """RMS of the state, and the relative size of what the block added, each (B, T)."""
    rms = state_BTD.float().square().mean(-1).sqrt()
    added, read = (x_BTD.float().norm(dim=-1) for x_BTD in (state_BTD - before_BTD, before_BTD))
    return [rms, added / read.clamp(min=torch.finfo(torch.float32).tiny)]


@dataclass(frozen=True)
class LensResult:
    """The lens over an evaluation: means over tokens, one entry per executed block.

    Args:
        sites: The blocks, in the order of execution.
        kl: Divergence from the final prediction, in nats.
        agreement: Share of tokens whose most likely next token is the final one.
        loss: Of the decoded prediction, in nats per token.
        rms: Root mean square of the residual stream.
        update: Relative size of what the block added.
        tokens: Tokens scored.
        threshold: Of the effective depth, in nats.
        direction: Of the divergence.
    """

    sites: tuple[Site, ...]
    kl: tuple[float, ...]
    agreement: tuple[float, ...]
    loss: tuple[float, ...]
    rms: tuple[float, ...]
    update: tuple[float, ...]
    tokens: int
    threshold: float = THRESHOLD
    direction: Direction = "final_decoded"

    @property
    def labels(self) -> list[str]:
        """Stage, pass and block of every entry."""
        return [site_label(site) for site in self.sites]

    @property
    def executed_depth(self) -> int:
        """Executed blocks."""
        return len(self.sites)

    @property
    def effective_depth(self) -> int:
        """KL effective depth, in executed blocks."""
        return effective_depth(self.kl, self.threshold)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        columns = ("kl", "agreement", "loss", "rms", "update")
        return {
            "effective_depth": self.effective_depth,
            "executed_depth": self.executed_depth,
            "threshold_nats": self.threshold,
            "direction": self.direction,
            "tokens": self.tokens,
            "blocks": [
                {"stage": site.stage, "pass": site.pass_, "block": site.block}
                | {name: getattr(self, name)[i] for name in columns}
                for i, site in enumerate(self.sites)
            ],
        }


def effective_depth(kl: Sequence[float], threshold: float = THRESHOLD) -> int:
    """L_eff = min{i ≥ i* : KL_i ≤ threshold}, i from 1, i* the first argmax of KL (growth study, appendix).

    Zero everywhere, as in a model that was never trained, gives 1; a peak below the threshold gives its own place. A
    curve that stays above the threshold gives its length: there the last block's state is not what is decoded at the
    end (a boundary operator follows it), and every block is needed.

    Raises:
        InputError: An empty curve, a value that is not a number, or a negative threshold.

    >>> effective_depth([1.0, 5.0, 1.5, 3.0, 0.0])
    3
    """
    require(len(kl) > 0, "kl", list(kl), "has no blocks")
    require(not any(math.isnan(value) for value in kl), "kl", list(kl), "has values that are not numbers")
    require(threshold >= 0, "threshold", threshold, "must be at least 0")
    peak = max(range(len(kl)), key=lambda i: kl[i])
    return next((i + 1 for i in range(peak, len(kl)) if kl[i] <= threshold), len(kl))


def lens(
    model: Any,
    batches: Iterable[Batch],
    *,
    threshold: float = THRESHOLD,
    direction: Direction = "final_decoded",
    chunk_tokens: int = _CHUNK_TOKENS,
    reduce: Callable[[Tensor], Tensor] = lambda sums: sums,
) -> LensResult:
    """The lens over batches, as means over the tokens whose target counts (is not negative).

    Args:
        model: See `stream_of`; read at its current number of passes, in the mode (train, eval) it is in.
        batches: Windows of token ids (B, T + 1), or pairs (inputs, targets) (B, T), as of any loader.
        threshold: Of the effective depth, in nats.
        direction: Of the divergence, see `token_readings`.
        chunk_tokens: Tokens decoded at a time.
        reduce: Sums a tensor over processes, each of which has batches of its own, as many as the others.

    Raises:
        InputError: Nothing to score, or a wrong argument.
    """
    check_reading(threshold, direction)
    total: Tensor | None = None
    sites: list[Site] = []
    for batch in batches:
        inputs_BT, targets_BT = inputs_and_targets(batch)
        readings = token_readings(model, inputs_BT, targets_BT, direction=direction, chunk_tokens=chunk_tokens)
        counts_BT = targets_BT >= 0
        ones = torch.ones_like(readings.kl)
        columns = (readings.kl, readings.agreement, readings.loss, readings.rms, readings.update, ones)
        sums = torch.stack([column[:, counts_BT].double().sum(-1) for column in columns])
        total, sites = sums if total is None else total + sums, readings.sites
    if total is not None:
        total = reduce(total)
    if total is None or not total[-1].any():
        raise InputError("batches = 0 tokens: nothing to score")
    kl, agreement, loss, rms, update = (tuple(column.tolist()) for column in total[:-1] / total[-1])
    tokens = round(float(total[-1, 0]))
    return LensResult(tuple(sites), kl, agreement, loss, rms, update, tokens, threshold, direction)
