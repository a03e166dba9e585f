"""Between a module's arguments, as a config file gives them, and the model and training they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from looplit.errors import InputError, require, require_whole
from looplit.model.config import HEAD_DIM, BackboneConfig, split_depth
from looplit.recipes.families import FAMILIES, Family, Hyperparameters
from looplit.recipes.growth_runs import growth_fraction
from looplit.recipes.run import Run
from looplit.recipes.training import ModelRecipe, Optimizer, given_arguments
from looplit.recipes.truncation import CLASS, NAME, check_split, truncated_init_args, truncation_recipe
from looplit.recipes.tuning import Tuning, tuned_backbone

# Classes of `looplit.modules` and the family of each.
CLASSES = {
    "Vanilla": "vanilla",
    "DeepVanilla": "deep_vanilla",
    "DeepVanillaGrow": "deep_vanilla_grow",
    "Operator1": "operator_1",
    "Loop": "loop_2",
    "LoopGrow": "loop_grow",
    "Untied": "untied_2",
    "UntiedGrow": "untied_grow",
}
SHAPE = (
    "width", "heads", "passes", "trained_passes", "stored_cores", "boundary", "coda_boundary", "initial_state",
    "vocabulary", "context",
)  # fmt: skip
TUNED = tuple(field.name for field in fields(Hyperparameters))
OTHER = ("depth", "split", "optimizer", "steps", "compile", "seed")


def class_family(class_name: str) -> Family:
    """The family of a module class, given with or without its package.

    >>> class_family("looplit.UntiedGrow").name
    'untied_grow'
    """
    short = class_name.rpartition(".")[2]
    if short not in CLASSES:
        raise InputError(f"model.class_path = {class_name!r}: must be one of {', '.join((*CLASSES, CLASS))}")
    return FAMILIES[CLASSES[short]]


@dataclass(frozen=True)
class GrowthRecipe:
    """Model and training of a family of the growth study; the settings do not depend on the length of the run."""

    family: Family
    depth: int
    backbone: BackboneConfig
    hyperparameters: Hyperparameters
    optimizer: Optimizer

    batch_tokens: ClassVar[None] = None

    @property
    def name(self) -> str:
        """Of the family or variant."""
        return variant_name(self.family, self.backbone)

    @property
    def growth_plan(self) -> tuple[int, float] | None:
        """(K after growth, ρ) as published for the family and depth; None if it does not grow."""
        fraction = growth_fraction(self.family, self.depth)
        return None if fraction is None or self.family.grow_to is None else (self.family.grow_to, fraction)

    def settings(self, steps: int) -> Hyperparameters:
        """The family's hyperparameters, scaled to the size."""
        return self.hyperparameters


def growth_recipe(family: Family, given: Mapping[str, Any]) -> GrowthRecipe:
    """What the arguments `given` of a module of `family` stand for, see `resolve`."""
    backbone, tuned = resolve(family, given)
    tuned = replace(tuned, betas=tuple(tuned.betas))  # type: ignore[arg-type]
    return GrowthRecipe(family, given["depth"], backbone, tuned, given.get("optimizer") or "muon")


def recipe_of(class_name: str, given: Mapping[str, Any]) -> ModelRecipe:
    """What the arguments `given` of a module class stand for.

    Raises:
        InputError: No class of LoopLit, or a wrong argument.
    """
    if class_name.rpartition(".")[2] == CLASS:
        return truncation_recipe(given)
    return growth_recipe(class_family(class_name), given)


def resolve(family: Family, given: Mapping[str, Any]) -> tuple[BackboneConfig, Hyperparameters]:
    """Backbone and hyperparameters of a module with the arguments `given`; what is absent or None is the recipe's.

    K = 1 takes Operator-1's hyperparameters where the family has the boundary operator.

    Args:
        family: Of the module's class.
        given: Arguments of the module, `depth` at least.

    Raises:
        InputError: An unknown argument, no depth, or a value that breaks a rule of the backbone.
    """
    requested = given_arguments(given, (*OTHER, *SHAPE, *TUNED))
    require("depth" in requested, "depth", None, "the model needs its nominal depth")
    require_whole("depth", requested["depth"], 1)
    shape = {name: requested[name] for name in SHAPE if name in requested}
    if "width" in shape and "heads" not in shape:
        require_whole("width", shape["width"], 1)
        shape["heads"] = default_heads(shape["width"])
    if "split" in requested:
        check_split(requested["split"])
        shape.update(zip(("prelude", "core", "coda"), requested["split"], strict=True))
    one_pass = family.boundary == "norm_inject" and requested.get("passes") == 1
    source = FAMILIES["operator_1"] if one_pass else family
    tuning = Tuning(
        hyperparameters_of="operator_1" if one_pass else None,
        exponents={"learning_rate": source.learning_rate_exponent},
        optimizer=requested.get("optimizer", "muon"),
        overrides={name: requested[name] for name in TUNED if name in requested},
    )
    return tuned_backbone(family, requested["depth"], tuning, shape)


def default_heads(width: int) -> int:
    """One head per 128 of width, at least one.

    >>> default_heads(1024), default_heads(64)
    (8, 1)
    """
    return max(1, width // HEAD_DIM)


def module_class(run: Run) -> str:
    """The module class that trains `run`: that of its family, or Loop or Untied for a variant."""
    if run.family == NAME:
        return CLASS
    for class_name, family in CLASSES.items():
        if family == run.family:
            return class_name
    return "Loop" if run.backbone.tied else "Untied"


def init_args(run: Run) -> dict[str, Any]:
    """Arguments of the module of `run`: its depth, and whatever differs from what the depth gives by itself."""
    if run.depth is None:
        return truncated_init_args(run)
    args: dict[str, Any] = {"depth": run.depth}
    family = class_family(module_class(run))
    backbone = run.backbone
    if backbone.passes != family.passes:
        args["passes"] = backbone.passes
    if backbone.width != HEAD_DIM * run.depth:
        args["width"] = backbone.width
    if backbone.heads != default_heads(backbone.width):
        args["heads"] = backbone.heads
    split = (backbone.prelude, backbone.core, backbone.coda)
    if split != split_depth(run.depth):
        args["split"] = list(split)
    if run.optimizer != "muon":
        args["optimizer"] = run.optimizer
    for name in (*SHAPE, *TUNED):  # in this order, because the defaults of later ones depend on earlier ones
        default, tuned = resolve(family, args)
        wanted = getattr(backbone, name) if name in SHAPE else getattr(run.hyperparameters, name)
        if wanted != getattr(default if name in SHAPE else tuned, name):
            args[name] = list(wanted) if isinstance(wanted, tuple) else wanted
    return args


def run_of(recipe: ModelRecipe, planned_steps: int, *, context: int | None = None, **rest: Any) -> Run:
    """The run of a module.

    Args:
        recipe: Of the module.
        planned_steps: Of its schedule.
        context: Tokens of the windows trained on, where that is not the model's longest.
        **rest: The other fields of `Run`.
    """
    return Run(
        family=recipe.name,
        depth=recipe.depth,
        backbone=replace(recipe.backbone, context=context or recipe.backbone.context),
        hyperparameters=recipe.settings(planned_steps),
        optimizer=recipe.optimizer,
        planned_steps=None if planned_steps == rest["steps"] else planned_steps,
        **rest,
    )


def variant_name(family: Family, backbone: BackboneConfig) -> str:
    """The family's name, with K as it is for Loop-K and Untied-K, and as plain where nothing is injected or normed."""
    if family.name not in ("loop_2", "untied_2"):
        return family.name
    if {backbone.boundary, backbone.coda_boundary} == {"identity"}:
        return f"{'tied' if backbone.tied else 'untied'}_vanilla_{backbone.passes}"
    return f"{family.name.removesuffix('_2')}_{backbone.passes}"
