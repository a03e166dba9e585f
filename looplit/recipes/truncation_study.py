"""The truncation study's model and run: T passes of a tied core, the gradient through the last B (arXiv 2610.26030).

The study names its basis and not every setting; `docs/truncation.md` says which parts are whose.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from looplit.accounting.flops import loop_cost, once_parameters, recurrent_parameters
from looplit.accounting.recurrence import Recurrence
from looplit.errors import require, require_whole
from looplit.model.boundary import boundary_class
from looplit.model.config import BackboneConfig, Boundary
from looplit.recipes.hyperp import HyperPSettings, transfer
from looplit.recipes.run import Run, batch_windows, run_of
from looplit.recipes.study import ModelRecipe, Study, StudyFamily, check_split
from looplit.recipes.training import Optimizer

TRUNCATED_LOOP = StudyFamily("truncated_loop", class_path="TruncatedLoop")
WIDTHS = (768, 1088, 1536, 2176, 3072)  # for the study's 60M, 120M, 240M, 480M and 1B; it prints no shapes
SETTINGS = tuple((t, b) for t in (1, 2, 4, 8, 16) for b in (1, 2, 4, 8, 16) if b <= t)
PAGE_VOCABULARY = 32_768  # columns of the head that fit the study's printed compute
BATCH_TOKENS = 2**18
TOKENS = 2**34  # 17.2B, of the study's measured pairs
HEAD_DIM = 64
SPLIT = (2, 4, 2)

SHAPE = ("width", "heads", "passes", "trained_passes", "boundary", "mlp", "vocabulary", "context")
RATES = tuple(field.name for field in fields(HyperPSettings))


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


@dataclass(frozen=True, kw_only=True)
class TruncationRecipe(ModelRecipe):
    """Model and training of `looplit.TruncatedLoop`; the learning rates depend on batch and tokens.

    Args:
        overrides: Fields of `HyperPSettings` to set outright.
    """

    batch_tokens: int = BATCH_TOKENS
    optimizer: Optimizer = "muonh"
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_whole("batch_tokens", self.batch_tokens, 1)
        self.settings(1)  # refuses wrong overrides

    def settings(self, steps: int) -> HyperPSettings:
        """HyperP's settings of a run of `steps` optimizer steps; no looping has a reference of its own."""
        config = self.backbone
        rates = transfer(config.width, self.batch_tokens, steps * self.batch_tokens, looped=config.passes > 1)
        return replace(rates, **self.overrides)


class TruncationStudy(Study):
    """*Truncate or Not? A Scaling Study of Looped Transformers with Truncated Backpropagation* (arXiv 2610.26030)."""

    families = {TRUNCATED_LOOP.name: TRUNCATED_LOOP}
    always = ("passes", "trained_passes", "width")
    arguments = (*always, "split", "batch_tokens", "heads", "boundary", "mlp", "vocabulary", "context", *RATES)

    def resolve(self, family: StudyFamily, arguments: Mapping[str, Any]) -> TruncationRecipe:
        """The recipe of a `TruncatedLoop`; what is absent or None is the study's.

        Raises:
            InputError: An unknown argument, no passes, or a value that breaks a rule of the backbone.
        """
        given = self.given(arguments)
        require("passes" in given, "passes", None, "say T, the passes of the core")
        shape = {name: given[name] for name in SHAPE if name in given}
        if "split" in given:
            shape["split"] = check_split(given["split"])
        return TruncationRecipe(
            study=self, family=family, backbone=truncated_backbone(**shape),
            batch_tokens=given.get("batch_tokens", BATCH_TOKENS),
            overrides={name: given[name] for name in RATES if name in given},
        )  # fmt: skip

    def run(self, name: str, *args: Any, **options: Any) -> Run:
        """As `truncated_run`."""
        return truncated_run(*args, family=name, **options)

    def title(self, run: Run) -> str:
        """Family with the loop setting (T, B)."""
        return f"{run.family} ({run.backbone.passes}, {_trained(run)})"

    def file_stem(self, run: Run) -> str:
        """Width and loop setting."""
        return setting_stem(run.backbone.width, run.backbone.passes, _trained(run), run.family)

    def facts(self, run: Run) -> dict[str, Any]:
        """The compute as the study counts it."""
        return {"training_flops_full_attention": run.training_flops_full_attention}

    def rows(self, run: Run) -> list[tuple[str, str]]:
        """The same."""
        return [("with full attention", f"{run.training_flops_full_attention:.7e}")]

    def header(self, run: Run) -> list[str]:
        """Cost of the loop setting, learning rate, and compute as LoopLit and as the study counts it."""
        page = replace(run, backbone=replace(run.backbone, vocabulary=PAGE_VOCABULARY))
        return [
            loop_line(run.backbone) + ".",
            f"Matrix learning rate {run.groups['matrix'].learning_rate:.8g}; training FLOPs {run.training_flops:.5g} "
            f"with causal attention, {run.training_flops_full_attention:.5g}",
            f"with full attention (the study's count; {page.training_flops_full_attention:.5g} at its "
            f"{PAGE_VOCABULARY:,}-token vocabulary).",
        ]


truncation_study = TruncationStudy()


def truncated_run(
    passes: int,
    trained_passes: int | None = None,
    *,
    tokens: int = TOKENS,
    family: str = TRUNCATED_LOOP.name,
    **arguments: Any,
) -> Run:
    """The run of one loop setting (T, B).

    Args:
        passes: T.
        trained_passes: B; default all, full backpropagation.
        tokens: Training tokens; steps are these over the batch, rounded.
        family: Name, or import path of a class of your own.
        **arguments: Others of `looplit.TruncatedLoop`: width, batch_tokens, boundary, gain_lr …

    >>> run = truncated_run(8, 2, width=768, vocabulary=32768)
    >>> f"{run.steps:,} steps, {run.training_flops_full_attention:.4g} FLOPs"
    '65,536 steps, 2.416e+19 FLOPs'
    """
    trained = passes if trained_passes is None else trained_passes
    loop = {"passes": passes, "trained_passes": trained, **arguments}
    recipe = truncation_study.resolve(truncation_study.family(family), loop)
    batch_windows(recipe.batch_tokens, recipe.backbone.context)
    steps = round(tokens / recipe.batch_tokens)
    require(steps >= 1, "tokens", tokens, f"must be at least one batch of {recipe.batch_tokens}")
    return run_of(recipe, steps, recurrence=Recurrence(passes), steps=steps, batch_tokens=recipe.batch_tokens)


def setting_stem(width: int, passes: int, trained: int, family: str = TRUNCATED_LOOP.name) -> str:
    """Name of a loop setting's config file, without the ending."""
    return f"{family}_w{width:04}_t{passes:02}_b{trained:02}"


def loop_line(config: BackboneConfig) -> str:
    """N_once, N_rec and the cost of the passes, as the truncation study counts them."""
    trained = config.trained_passes or config.passes
    return (
        f"N_once {once_parameters(config):,}, N_rec {recurrent_parameters(config):,}; T + 2B = "
        f"{config.passes} + 2·{trained} = {loop_cost(config.passes, trained)} units of cost"
    )


def _trained(run: Run) -> int:
    return run.backbone.trained_passes or run.backbone.passes
