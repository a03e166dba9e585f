"""One LightningModule per architecture family of the growth study (section 3)."""

from __future__ import annotations

from typing import ClassVar

from looplit.model.config import CONTEXT, VOCABULARY, Boundary, InitialState
from looplit.modules.base import LoopedLM
from looplit.optim import Algorithm
from looplit.recipes.families import FAMILIES, Family
from looplit.recipes.growth_study import GrowthRecipe, growth_study


class GrowthStudyLM(LoopedLM):
    """A language model of one family: `depth` alone gives the shape and the tuned recipe; anything can be overridden.

    A family of your own is a subclass: `class MyFamily(GrowthStudyLM): family = Family("my_family", …)`.

    Args:
        depth: Nominal depth ℓ: width 128·ℓ, ℓ heads, blocks split in thirds over prelude, core and coda.
        width: Size of the residual stream.
        heads: Attention heads per block; default one per 128 of width.
        split: Blocks of prelude, core and coda.
        vocabulary: Token ids of the tokenizer.
        context: Tokens per window.
        passes: K at the start of training. K = 1 takes Operator-1's hyperparameters where the family has operators.
        trained_passes: B of truncated backpropagation: gradient through the last B passes only. Default all.
        stored_cores: Cores kept in memory (untied families): leave room for growth.
        boundary: φ, before each pass: identity, norm, inject, norm_inject, or the import path of a
            `looplit.model.BoundaryOperator` of your own.
        coda_boundary: ρ, before the coda, likewise.
        injection_scale: α, where a boundary injects.
        initial_state: "zero" (the paper's h_0 = 0) or "prelude" (the released checkpoints), see `BackboneConfig`.
        residual_multiplier: RM, of what each branch adds to the residual stream.
        output_multiplier: OM, of the logits.
        embedding_std: WTE, of the token embedding at initialisation.
        uniform_init_scale: UIS, of q, k, v, gate and up at initialisation.
        optimizer: For the block matrices: "muon", "adamw" (no published learning rate; ours is 0.05 of Muon's), or the
            import path of a `looplit.optim.Algorithm` of your own, which says its `learning_rate_share` or is given a
            `learning_rate`.
        learning_rate: GLR of the block matrices; default the family's, scaled by (N_d8/N)^b.
        embedding_lr_multiplier: ELRM.
        head_lr_multiplier: HLRM.
        weight_decay: WD of all three groups.
        betas: Of AdamW.
        eps: Of AdamW.
        warmup_steps: WU.
        warmdown_ratio: WDR, share of the run over which the learning rate falls to zero.
        steps: Planned optimizer steps of the schedule; default those the Trainer will take. Set it where a run is to
            stop earlier and go on later.
        compile: Whether to compile each block. One graph serves all blocks and every K.
        seed: Of the initial weights; default the global seed (`seed_everything`).

    Raises:
        InputError: A value that breaks a rule of the backbone or of the recipe.
    """

    study = growth_study
    family: ClassVar[Family]
    recipe: GrowthRecipe

    def __init__(
        self,
        depth: int,
        width: int | None = None,
        heads: int | None = None,
        split: tuple[int, int, int] | None = None,
        vocabulary: int = VOCABULARY,
        context: int = CONTEXT,
        passes: int | None = None,
        trained_passes: int | None = None,
        stored_cores: int | None = None,
        boundary: Boundary | None = None,
        coda_boundary: Boundary | None = None,
        injection_scale: float | None = None,
        initial_state: InitialState = "zero",
        residual_multiplier: float | None = None,
        output_multiplier: float | None = None,
        embedding_std: float | None = None,
        uniform_init_scale: float | None = None,
        optimizer: str | type[Algorithm] = "muon",
        learning_rate: float | None = None,
        embedding_lr_multiplier: float | None = None,
        head_lr_multiplier: float | None = None,
        weight_decay: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        warmup_steps: int | None = None,
        warmdown_ratio: float | None = None,
        steps: int | None = None,
        compile: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.build()
        self.hyperparameters = self.recipe.hyperparameters


class Vanilla(GrowthStudyLM):
    """Plain pre-norm transformer: one stack, no boundary operator. The baseline of every comparison."""

    family = FAMILIES["vanilla"]


class DeepVanilla(GrowthStudyLM):
    """Plain transformer of P+2C+D blocks: Untied-2 without the boundary operator."""

    family = FAMILIES["deep_vanilla"]


class DeepVanillaGrow(GrowthStudyLM):
    """Deep Vanilla whose core is copied mid-run, 2 → 4 passes: growth without the boundary operator."""

    family = FAMILIES["deep_vanilla_grow"]


class Operator1(GrowthStudyLM):
    """Vanilla with the boundary operator at K = 1: the same parameters and FLOPs."""

    family = FAMILIES["operator_1"]


class Loop(GrowthStudyLM):
    """Tied core applied K times (default 2) with the boundary operator before each pass and before the coda."""

    family = FAMILIES["loop_2"]


class LoopGrow(GrowthStudyLM):
    """Loop-2 that grows to 4 passes mid-run; stores as many blocks as Vanilla."""

    family = FAMILIES["loop_grow"]


class Untied(GrowthStudyLM):
    """K cores (default 2), one per pass: Loop's computation graph and FLOPs with weights of their own."""

    family = FAMILIES["untied_2"]


class UntiedGrow(GrowthStudyLM):
    """Untied-2 whose cores are copied mid-run, 2 → 4 passes, and then train separately."""

    family = FAMILIES["untied_grow"]
