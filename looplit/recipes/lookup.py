"""From names and module classes to their studies, and from a run back to the arguments of its module. No torch."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from looplit.errors import InputError, require
from looplit.recipes.growth_study import growth_study
from looplit.recipes.run import Run
from looplit.recipes.study import ModelRecipe, Study, imported_family
from looplit.recipes.truncation_study import truncation_study

STUDIES: tuple[Study, ...] = (growth_study, truncation_study)


def study_of(name: str) -> Study:
    """The study of a family; the growth study, which has variants by pattern, is asked for all other names.

    Args:
        name: Of a family, or the import path of a module class of your own.

    Raises:
        InputError: The path leads to no such class.
    """
    if "." in name:
        return imported_family(name, "family")[0]
    return next((study for study in STUDIES if name in study.families), growth_study)


def family_of_class(class_path: str) -> tuple[Study, Any]:
    """Study and family of a module class, with or without its package if it is LoopLit's; another one is imported.

    >>> family_of_class("looplit.UntiedGrow")[1].name
    'untied_grow'

    Raises:
        InputError: There is no such class, or it has no family.
    """
    package, _, name = class_path.rpartition(".")
    if package and package.partition(".")[0] != "looplit":
        return imported_family(class_path, "model.class_path")
    classes = {family.class_path: (study, family) for study in STUDIES for family in study.families.values()}
    if name not in classes:
        known = f"{', '.join(map(str, classes))}, or the import path of a class of your own"
        raise InputError(f"model.class_path = {class_path!r}: must be one of {known}")
    return classes[name]


def recipe_of(class_path: str, arguments: Mapping[str, Any]) -> ModelRecipe:
    """What the arguments of a module class stand for.

    Raises:
        InputError: No module class with a family, or a wrong argument.
    """
    study, family = family_of_class(class_path)
    return study.resolve(family, arguments)


def module_arguments(run: Run) -> dict[str, Any]:
    """Arguments of the module that trains `run`: those whose omission would change its model or its settings.

    Raises:
        InputError: The module has no argument for something in the run's backbone.
    """
    study, family = family_of_class(run.class_path)

    def meaning(arguments: Mapping[str, Any]) -> tuple[Any, ...]:
        recipe = study.resolve(family, arguments)
        return recipe.backbone, recipe.settings(run.steps), recipe.optimizer, recipe.batch_tokens

    values = {name: _argument(run, name) for name in study.arguments}
    arguments = {name: value for name, value in values.items() if value is not None}
    meant = meaning(arguments)
    for name, value in run.backbone.to_dict().items():
        rule = f"{run.class_path} has no argument for it, so no config file can say it"
        require(getattr(meant[0], name) == value, name, value, rule)
    for name in [name for name in arguments if name not in study.always]:
        fewer = {other: value for other, value in arguments.items() if other != name}
        with contextlib.suppress(InputError):  # an omission that breaks a rule changes something
            if meaning(fewer) == meant:
                arguments = fewer
    return arguments


def _argument(run: Run, name: str) -> Any:
    """The value that `run` has for a module's argument, as a config file writes it."""
    holder = next(part for part in (run, run.hyperparameters, run.backbone) if hasattr(part, name))
    value = getattr(holder, name)
    return list(value) if isinstance(value, tuple) else value
