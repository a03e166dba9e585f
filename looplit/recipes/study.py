"""What a study is to the rest of LoopLit: its families, and what follows from the arguments of their modules. No torch.

LoopLit's two are `growth_study` and `truncation_study`. One of your own is a subclass of `Study`, and module classes
that name it: `class MyLM(LoopedLM): study = my_study; family = MyFamily("mine")`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from looplit.errors import InputError, require
from looplit.model.config import BackboneConfig
from looplit.parts import imported
from looplit.recipes.training import Optimizer, TrainingSettings

if TYPE_CHECKING:
    from looplit.recipes.run import Run

IMPORT_RULE = "must be the import path of a class, such as my_module.MyFamily"
OF_ANY_MODULE = ("steps", "compile", "seed")  # arguments that say nothing of the model or of its settings


@dataclass(frozen=True)
class StudyFamily:
    """One kind of model in a study; a study adds what its recipes need.

    Args:
        name: In commands, JSON and file names.
        class_path: The module class that trains it, as a config file names it: by itself if it is LoopLit's, else with
            its module. A class of your own need not say it.
    """

    name: str
    class_path: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True, kw_only=True)
class ModelRecipe(ABC):
    """What the arguments of a module stand for: its model, and how that trains.

    Args:
        study: That made it.
        family: With the module's class.
        backbone: Shape and constants.
        depth: Nominal depth, where the study has one.
        optimizer: Of the block matrices.
        batch_tokens: Tokens per optimizer step that the settings were made for; None if they do not depend on it.
        growth_plan: (K after growth, growth fraction ρ) where the recipe prescribes growth.
    """

    study: Study
    family: StudyFamily
    backbone: BackboneConfig
    depth: int | None = None
    optimizer: Optimizer = "muon"
    batch_tokens: int | None = None
    growth_plan: tuple[int, float] | None = None

    @property
    def name(self) -> str:
        """Of the family or variant, as in JSON and reports."""
        return self.family.name

    @abstractmethod
    def settings(self, steps: int) -> TrainingSettings:
        """The settings of a run of `steps` optimizer steps."""

    def check_batch(self, taken: int) -> None:
        """Says whether an optimizer step takes the tokens that the recipe's learning rates were made for.

        Raises:
            InputError: It takes others.
        """
        require(
            self.batch_tokens in (None, taken), "batch_tokens", self.batch_tokens,
            f"an optimizer step takes {taken} tokens; the model's learning rates depend on that number, say it",
        )  # fmt: skip


class Study(ABC):
    """Families with one way from a module's arguments to its recipe, and what runs of them are called.

    Attributes:
        families: By name.
        variants: What else `recipe` takes as a family, for its help.
        always: Arguments of a module that its config file says in any case.
        arguments: Those, and all that decide on backbone or settings, in the order in which a config file says them.
    """

    families: Mapping[str, Any]
    variants: Sequence[str] = ()
    always: Sequence[str] = ()
    arguments: Sequence[str]

    @abstractmethod
    def resolve(self, family: Any, arguments: Mapping[str, Any]) -> ModelRecipe:
        """The recipe of a module of `family` with `arguments`; what is absent or None is the study's own value.

        Raises:
            InputError: An argument that is unknown, missing, or breaks a rule.
        """

    @abstractmethod
    def run(self, name: str, *args: Any, **options: Any) -> Run:
        """The run that the study prescribes for the family `name`."""

    def family(self, name: str) -> Any:
        """The family called `name`, or that of the class of your own which `name` is the import path of.

        Raises:
            InputError: There is none, or it is of another study.
        """
        if "." in name:
            study, family = imported_family(name, "family")
            require(study is self, "family", name, "is of another study")
            return family
        if name not in self.families:
            known = ", ".join((*self.families, *self.variants))
            raise InputError(f"family = {name!r}: must be one of {known}")
        return self.families[name]

    def given(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a module that are not None, which stands for the recipe's own value.

        Raises:
            InputError: An argument that the study does not know.
        """
        known = (*self.arguments, *OF_ANY_MODULE)
        for name in arguments:
            require(name in known, "model.init_args", name, f"must be one of {', '.join(known)}")
        return {name: value for name, value in arguments.items() if value is not None}

    def title(self, run: Run) -> str:
        """What cards and headers call the run."""
        return run.family

    def file_stem(self, run: Run) -> str:
        """Name of the run's config file, without the ending."""
        return run.family

    def facts(self, run: Run) -> dict[str, Any]:
        """JSON keys that only this study's runs have."""
        return {}

    def rows(self, run: Run) -> list[tuple[str, str]]:
        """(name, text) of the lines that a card of this study's ends with."""
        return []

    def header(self, run: Run) -> list[str]:
        """The lines on learning rate and compute in the header of a config file."""
        rate = run.groups["matrix"].learning_rate
        return [f"Matrix learning rate {rate:.8g}; {run.training_flops:.7g} training FLOPs."]

    def notes(self, run: Run) -> list[str]:
        """What a reader of its plan should know before starting, one line each."""
        return []

    def add_options(self, parser: ArgumentParser) -> None:  # noqa: B027  a study without options is whole
        """Adds the options of `recipe` beside the family; LoopLit's two studies have theirs in `looplit.commands`."""

    def run_of_options(self, args: Namespace) -> Run:
        """The run that parsed options describe, `args.family` among them."""
        return self.run(args.family)


def check_split(split: Any) -> tuple[int, int, int]:
    """The blocks of prelude, core and coda.

    Raises:
        InputError: Not three of them.
    """
    three = isinstance(split, tuple | list) and len(split) == 3
    require(three, "split", split, "must be the blocks of prelude, core and coda")
    return split[0], split[1], split[2]


def class_path(cls: type) -> str:
    """What a config file calls a module class: its name if it is LoopLit's, else its module too."""
    return cls.__name__ if cls.__module__.startswith("looplit.") else f"{cls.__module__}.{cls.__qualname__}"


def imported_family(path: str, argument: str) -> tuple[Study, Any]:
    """Study and family of a module class of your own.

    Raises:
        InputError: It cannot be imported, or has no study or no family.
    """
    cls = imported(argument, path, IMPORT_RULE)
    study, family = (getattr(cls, name, None) for name in ("study", "family"))
    whole = isinstance(cls, type) and isinstance(study, Study) and isinstance(family, StudyFamily)
    require(whole, argument, path, "must be a module class with a study and a family, such as a GrowthStudyLM")
    assert isinstance(study, Study)
    assert isinstance(family, StudyFamily)
    return study, replace(family, class_path=class_path(cls))
