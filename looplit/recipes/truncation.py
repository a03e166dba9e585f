"""The truncation study's model and run: T passes of a tied core, the gradient through the last B (arXiv 2610.26030).

The study names its basis and not every setting; `docs/truncation.md` says which parts are whose.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from looplit.accounting.recurrence import Recurrence
from looplit.errors import require, require_whole
from looplit.model.boundary import boundary_class
from looplit.model.config import BackboneConfig, Boundary
from looplit.recipes.hyperp import HyperPSettings, transfer
from looplit.recipes.run import Run, batch_windows
from looplit.recipes.training import Optimizer, check_betas, given_arguments

NAME, CLASS = "truncated_loop", "TruncatedLoop"
WIDTHS = (768, 1088, 1536, 2176, 3072)  # for the study's 60M, 120M, 240M, 480M and 1B; it prints no shapes
SETTINGS = tuple((t, b) for t in (1, 2, 4, 8, 16) for b in (1, 2, 4, 8, 16) if b <= t)
PAGE_VOCABULARY = 32_768  # columns of the head that fit the study's printed compute
BATCH_TOKENS = 2**18
TOKENS = 2**34  # 17.2B, of the study's measured pairs
HEAD_DIM = 64
SPLIT = (2, 4, 2)

SHAPE = ("width", "heads", "passes", "trained_passes", "boundary", "mlp", "vocabulary", "context")
RATES = tuple(field.name for field in fields(HyperPSettings))
OTHER = ("split", "batch_tokens", "steps", "compile", "seed")


def truncated_backbone(
    width: int = WIDTHS[0],
    passes: int = 4,
    *,
    heads: int | None = None,
    split: tuple[int, int, int] = SPLIT,
    boundary: Boundary | None = None,
    **shape: Any,
) -> BackboneConfig:
    """The study's backbone, by configuration of LoopLit's.

    Squared ReLU, learned gains, RMSNorm after every pass, logits capped at 15, and everything nonzero at the start:
    q, k, v, out and up uniform with standard deviation width^-0.5, down with (4·width)^-0.5, embedding normal(1), head
    normal(0.001).

    Args:
        width: Of the residual stream.
        passes: T.
        heads: Default one per 64 of width.
        split: Blocks of prelude, core and coda.
        boundary: φ; default linear, and the identity where there is one pass, which has no state to mix in.
        **shape: Other fields of `BackboneConfig`.

    >>> truncated_backbone(768, 8, trained_passes=2).heads
    12
    """
    require_whole("passes", passes, 1)
    require_whole("width", width, 1)
    boundary = boundary or ("linear" if passes > 1 else "identity")
    uniform = math.sqrt(3)  # ±√3·s has the standard deviation s
    constants: dict[str, Any] = {
        "coda_boundary": "identity",
        "initial_state": "prelude" if boundary_class("boundary", boundary).mixes_first else "zero",
        "mlp": "squared_relu",
        "gains": True,
        "pass_norm": True,
        "soft_cap": 15.0,
        "embedding_std": 1.0,
        "head_std": 0.001,
        "uniform_init_scale": uniform,
        "branch_init_scale": uniform,
        **shape,
    }
    heads = max(1, width // HEAD_DIM) if heads is None else heads
    prelude, core, coda = split
    return BackboneConfig(
        width=width, heads=heads, prelude=prelude, core=core, coda=coda, passes=passes,
        boundary=boundary, **constants,
    )  # fmt: skip


@dataclass(frozen=True)
class TruncationRecipe:
    """Model and training of `looplit.TruncatedLoop`.

    Args:
        backbone: Of `truncated_backbone`.
        batch_tokens: Tokens per optimizer step; the learning rates depend on it.
        overrides: Fields of `HyperPSettings` to set outright.
    """

    backbone: BackboneConfig
    batch_tokens: int = BATCH_TOKENS
    overrides: Mapping[str, Any] = field(default_factory=dict)

    name: ClassVar[str] = NAME
    depth: ClassVar[None] = None
    optimizer: ClassVar[Optimizer] = "muonh"
    growth_plan: ClassVar[None] = None

    def __post_init__(self) -> None:
        require_whole("batch_tokens", self.batch_tokens, 1)
        self.settings(1)  # refuses wrong overrides

    def settings(self, steps: int) -> HyperPSettings:
        """HyperP's settings of a run of `steps` optimizer steps; no looping has a reference of its own."""
        config = self.backbone
        settled = transfer(config.width, self.batch_tokens, steps * self.batch_tokens, looped=config.passes > 1)
        return replace(settled, **self.overrides)


def check_split(split: Any) -> None:
    """Refuses what is not a list of three block counts."""
    three = isinstance(split, tuple | list) and len(split) == 3
    require(three, "split", split, "must be the blocks of prelude, core and coda")


def truncation_recipe(given: Mapping[str, Any]) -> TruncationRecipe:
    """The recipe of a `TruncatedLoop` with the arguments `given`; what is absent or None is the study's.

    Raises:
        InputError: An unknown argument, no passes, or a value that breaks a rule of the backbone.
    """
    requested = given_arguments(given, (*SHAPE, *RATES, *OTHER))
    require("passes" in requested, "passes", None, "say T, the passes of the core")
    shape = {name: requested[name] for name in SHAPE if name in requested}
    if "split" in requested:
        check_split(requested["split"])
        shape["split"] = tuple(requested["split"])
    rates = {name: requested[name] for name in RATES if name in requested}
    if "betas" in rates:  # a list in YAML
        check_betas(rates["betas"])
        rates["betas"] = tuple(rates["betas"])
    return TruncationRecipe(truncated_backbone(**shape), requested.get("batch_tokens", BATCH_TOKENS), rates)


def truncated_run(
    passes: int,
    trained_passes: int | None = None,
    *,
    tokens: int = TOKENS,
    batch_tokens: int = BATCH_TOKENS,
    overrides: Mapping[str, Any] | None = None,
    **shape: Any,
) -> Run:
    """The run of one loop setting (T, B).

    Args:
        passes: T.
        trained_passes: B; default all, full backpropagation.
        tokens: Training tokens; steps are these over the batch, rounded.
        batch_tokens: Tokens per optimizer step, a multiple of the context.
        overrides: Fields of `HyperPSettings` to set outright.
        **shape: Of `truncated_backbone`.

    >>> run = truncated_run(8, 2, width=768, vocabulary=32768)
    >>> f"{run.steps:,} steps, {run.training_flops_full_attention:.4g} FLOPs"
    '65,536 steps, 2.416e+19 FLOPs'
    """
    trained = passes if trained_passes is None else trained_passes
    backbone = truncated_backbone(passes=passes, trained_passes=trained, **shape)
    batch_windows(batch_tokens, backbone.context)
    recipe = TruncationRecipe(backbone, batch_tokens, overrides or {})
    steps = round(tokens / batch_tokens)
    require(steps >= 1, "tokens", tokens, f"must be at least one batch of {batch_tokens}")
    return Run(
        family=NAME, depth=None, backbone=backbone, hyperparameters=recipe.settings(steps),
        recurrence=Recurrence(passes), steps=steps, batch_tokens=batch_tokens, optimizer=recipe.optimizer,
    )  # fmt: skip


def truncated_init_args(run: Run) -> dict[str, Any]:
    """Arguments of the `TruncatedLoop` of `run`: its setting and width, and whatever differs from the study's."""
    backbone = run.backbone
    args: dict[str, Any] = {"passes": backbone.passes, "trained_passes": backbone.trained_passes}
    args["width"] = backbone.width
    split = (backbone.prelude, backbone.core, backbone.coda)
    if split != SPLIT:
        args["split"] = list(split)
    if run.batch_tokens != BATCH_TOKENS:
        args["batch_tokens"] = run.batch_tokens
    recipe = truncation_recipe(args)
    settings, wanted = recipe.settings(run.steps).to_dict(), run.hyperparameters.to_dict()
    pairs = [(name, getattr(backbone, name), getattr(recipe.backbone, name)) for name in SHAPE]
    pairs += [(name, wanted[name], settings[name]) for name in RATES]
    changed = {name: value for name, value, default in pairs if value != default}
    return args | {name: list(value) if isinstance(value, tuple) else value for name, value in changed.items()}
