"""The growth study: from a module's arguments to its recipe, and the runs that one depth gives (A.4 and section 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from looplit.accounting.recurrence import Growth, RandomPasses, Recurrence, growth_step
from looplit.errors import require, require_whole
from looplit.model.config import CONTEXT, HEAD_DIM, BackboneConfig
from looplit.recipes.families import FAMILIES, Family, Mode
from looplit.recipes.hyperparameters import Hyperparameters
from looplit.recipes.length import Budget, budget_steps, stretches
from looplit.recipes.run import BATCH_TOKENS, Run, batch_windows, run_of
from looplit.recipes.study import ModelRecipe, Study, check_split
from looplit.recipes.tuning import Tuning, matrix_learning_rate
from looplit.recipes.variants import as_variant, family_named
from looplit.wording import counted

__all__ = ["Budget", "GrowthRecipe", "Mode", "data_constrained", "growth_study", "matrix_learning_rate", "recipe"]

SHAPE = (
    "width", "heads", "passes", "trained_passes", "stored_cores", "boundary", "coda_boundary", "initial_state",
    "vocabulary", "context",
)  # fmt: skip
TUNED = tuple(field.name for field in fields(Hyperparameters))

FIXED_WEIGHT_DECAY = 0.8  # of the data-constrained study, at every depth
SELECTED_WEIGHT_DECAY = {6: 0.4, 8: 0.8, 10: 0.8, 12: 1.2, 14: 1.2, 16: 1.6, 18: 1.6}  # selected at K = 1


@dataclass(frozen=True, kw_only=True)
class GrowthRecipe(ModelRecipe):
    """Model and training of a family of the growth study; the settings do not depend on the length of the run."""

    hyperparameters: Hyperparameters

    def settings(self, steps: int) -> Hyperparameters:
        """The family's hyperparameters, scaled to the size."""
        return self.hyperparameters


class GrowthStudy(Study):
    """*How Model Growth, Recursion, and Boundary Operators Influence Scaling Exponents* (arXiv 2609.19107)."""

    families = FAMILIES
    variants = ("loop_K", "untied_K", "(un)tied_vanilla_K")
    always = ("depth",)
    arguments = tuple(dict.fromkeys(("depth", "passes", "width", "heads", "split", "optimizer", *SHAPE, *TUNED)))

    def family(self, name: str) -> Family:
        """The family or variant called `name`, see `family_named`."""
        return family_named(name)

    def resolve(self, family: Family, arguments: Mapping[str, Any]) -> GrowthRecipe:
        """The recipe of a module of `family`: `depth` at least, what is absent or None is the family's own.

        Raises:
            InputError: An unknown argument, no depth, or a value that breaks a rule of the backbone.
        """
        given = self.given(arguments)
        require("depth" in given, "depth", None, "the model needs its nominal depth")
        require_whole("depth", given["depth"], 1)
        shape = {name: given[name] for name in SHAPE if name in given}
        if "width" in shape and "heads" not in shape:
            require_whole("width", shape["width"], 1)
            shape["heads"] = default_heads(shape["width"])
        if "split" in given:
            shape.update(zip(("prelude", "core", "coda"), check_split(given["split"]), strict=True))
        overrides = {name: given[name] for name in TUNED if name in given}
        tuning = Tuning(optimizer=given.get("optimizer", "muon"), overrides=overrides)
        recipe = self.prescribe(family, given["depth"], tuning, shape)
        return replace(recipe, family=as_variant(family, recipe.backbone))

    def prescribe(self, family: Family, depth: int, tuning: Tuning, shape: Mapping[str, Any]) -> GrowthRecipe:
        """The recipe of a family with the fields `shape` of its backbone, whose constants are those of the tuning."""
        backbone = family.backbone(depth, **shape)
        elsewhere = backbone.pass_operator.tuned_for
        rule = f"the growth study's recipe has no settings for its matrix; take {elsewhere}"
        require(elsewhere is None, "boundary", backbone.boundary, rule)
        tuned = tuning.apply(family, backbone)
        shared = set(TUNED) & {field.name for field in fields(BackboneConfig)}
        return GrowthRecipe(
            study=self, family=family, depth=depth, hyperparameters=tuned, optimizer=tuning.optimizer,
            backbone=replace(backbone, **{name: getattr(tuned, name) for name in shared}),
            growth_plan=family.growth_plan(depth),
        )  # fmt: skip

    def run(self, name: str, *args: Any, **options: Any) -> Run:
        """As `recipe`."""
        return recipe(name, *args, **options)

    def title(self, run: Run) -> str:
        """Family with nominal depth."""
        return f"{run.family} d{run.depth}"

    def file_stem(self, run: Run) -> str:
        """The same, for files."""
        return f"{run.family}_d{run.depth:02}"

    def notes(self, run: Run) -> list[str]:
        """The batch of the tuning, where the run's is another."""
        if run.batch_tokens == BATCH_TOKENS:
            return []
        return [f"the batch has {run.batch_tokens:,} tokens; the recipes were tuned at {BATCH_TOKENS:,}"]


growth_study = GrowthStudy()


def default_heads(width: int) -> int:
    """One head per 128 of width, at least one.

    >>> default_heads(1024), default_heads(64)
    (8, 1)
    """
    return max(1, width // HEAD_DIM)


def recipe(
    name: str,
    depth: int,
    *,
    mode: Mode = "published",
    budget: Budget | None = None,
    tuning: Tuning | None = None,
    growth: Sequence[tuple[int, float]] | None = None,
    random_passes: RandomPasses | None = None,
    batch_tokens: int = BATCH_TOKENS,
    **shape: Any,
) -> Run:
    """The run that the study prescribes for a family at a depth.

    T = TPP·N·N_c,K0 / Σ share·N_c,K over the stretches between growths, N the initial stored parameters; with a fixed
    K this is TPP·N. Steps are T over the batch, rounded.

    Args:
        name: Family or variant, as `family_named` takes it.
        depth: Nominal depth, at least 3.
        mode: "published" trains as the printed ladders did; "simple" as the study recommends (A.4.3): the tokens per
            parameter of the family without growth, and one ρ per family.
        budget: How long to train, if not by the family's tokens per parameter.
        tuning: Departures from the family's hyperparameters.
        growth: (passes, ρ) pairs in order, ρ the share of training after that growth; default the family's own.
        random_passes: Passes to draw from after the last growth.
        batch_tokens: Tokens per optimizer step, a multiple of the context.
        **shape: Fields of `BackboneConfig` to set otherwise: width, prelude, boundary, vocabulary, context …
            (not those that `Hyperparameters` has: they go through `tuning`).

    >>> run = recipe("untied_grow", 26)
    >>> run.steps, run.recurrence.growths[0].step
    (68699, 52898)
    """
    for tuned in TUNED:
        require(tuned not in shape, tuned, shape.get(tuned), "goes through tuning")
    budget, tuning = budget or Budget(), tuning or Tuning()
    family = family_named(name)
    batch_windows(batch_tokens, shape.get("context") or CONTEXT)
    planned = family.growth_plan(depth, mode)
    events = list(growth) if growth is not None else [] if planned is None else [planned]
    for _, fraction in events:
        require(0 < fraction < 1, "fraction", fraction, "the share of the run after growth lies between 0 and 1")
    if events and not family.tied:
        shape = {"stored_cores": max(passes for passes, _ in events), **shape}
    prescribed = growth_study.prescribe(family, depth, tuning, shape)
    backbone = prescribed.backbone
    parts = stretches(backbone.passes, events, random_passes)
    simple = family.simple_tokens_per_parameter if mode == "simple" else None
    tokens_per_parameter = simple or family.tokens_per_parameter

    def of_length(steps: int) -> Run:
        for length in ("flops", "tokens", "tokens_per_parameter"):
            given = getattr(budget, length)
            rule = f"pays for no optimizer step of {counted(batch_tokens, 'token')}"
            require(given is None or steps >= 1, length, given, rule)
        growths = tuple(Growth(passes, growth_step(fraction, steps), fraction) for passes, fraction in events)
        recurrence = Recurrence(backbone.passes, growths, random_passes)
        return run_of(
            prescribed, steps, recurrence=recurrence, steps=steps, batch_tokens=batch_tokens,
            pool_tokens=budget.pool_tokens,
        )  # fmt: skip

    run = of_length(budget_steps(budget, tokens_per_parameter, backbone, parts, batch_tokens))
    while budget.flops is not None and run.expected_training_flops > budget.flops:  # growth steps are rounded down
        run = of_length(run.steps - 1)
    return run


def data_constrained(
    name: str,
    depth: int,
    *,
    budget: Budget | None = None,
    weight_decay: Literal["fixed", "selected"] | float = "fixed",
    batch_tokens: int = BATCH_TOKENS,
    **shape: Any,
) -> Run:
    """A run of the data-constrained study (section 5, Appendix D): repeated data, a constant recipe.

    Every looped run takes Operator-1's hyperparameters, the plain controls Vanilla's, both with GLR 0.04 at every
    depth and the weight decay of one of three modes.

    Args:
        name: operator_1, loop_K, untied_K, vanilla, tied_vanilla_K or untied_vanilla_K.
        depth: Nominal depth.
        budget: Default 100M unique tokens, ten times. The study's others are 250M, four times, and 1B fresh tokens.
        weight_decay: "fixed" is 0.8; "selected" is the best at K = 1 of that depth (of the nearest depth, where it
            was not swept); a number is itself (the study's grid is 0.05, 0.2, 0.4, 0.8, 1.2, 1.6).
        batch_tokens: Tokens per optimizer step.
        **shape: As in `recipe`.

    >>> run = data_constrained("loop_3", 8)
    >>> run.steps, run.hyperparameters.learning_rate, run.hyperparameters.weight_decay
    (1900, 0.04, 0.8)
    """
    if weight_decay == "fixed":
        decay = FIXED_WEIGHT_DECAY
    elif weight_decay == "selected":
        decay = SELECTED_WEIGHT_DECAY[min(SELECTED_WEIGHT_DECAY, key=lambda known: (abs(known - depth), -known))]
    else:
        require(isinstance(weight_decay, int | float) and weight_decay >= 0, "weight_decay", weight_decay,
                "must be fixed, selected, or a number of at least 0")  # fmt: skip
        decay = float(weight_decay)
    budget = budget or Budget(pool_tokens=100_000_000, epochs=10)
    source = "vanilla" if family_named(name).boundary == "identity" else "operator_1"
    tuning = Tuning(source, exponents={"learning_rate": 0.0}, overrides={"weight_decay": decay})
    return recipe(name, depth, budget=budget, tuning=tuning, growth=(), batch_tokens=batch_tokens, **shape)
