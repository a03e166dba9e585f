"""A third study in one file: its families, its recipe, the runs it prescribes, and the class that trains them."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from looplit import LoopedLM
from looplit.accounting.recurrence import Recurrence
from looplit.errors import require
from looplit.model.config import BackboneConfig
from looplit.recipes.families import FAMILIES
from looplit.recipes.hyperparameters import Hyperparameters
from looplit.recipes.run import Run, run_of
from looplit.recipes.study import ModelRecipe, Study, StudyFamily

TUNED = FAMILIES["loop_2"].hyperparameters


@dataclass(frozen=True)
class WideFamily(StudyFamily):
    """Blocks in the core of a family."""

    core: int


@dataclass(frozen=True, kw_only=True)
class WideRecipe(ModelRecipe):
    """One set of hyperparameters for every width."""

    hyperparameters: Hyperparameters

    def settings(self, steps: int) -> Hyperparameters:
        return self.hyperparameters


class WidthStudy(Study):
    """Width alone, at a fixed number of tokens."""

    families: Mapping[str, WideFamily] = {}
    always = ("width",)
    arguments = ("width", "passes", "vocabulary", "context", "learning_rate")

    def resolve(self, family: WideFamily, arguments: Mapping[str, Any]) -> WideRecipe:
        given = {"passes": 2, "vocabulary": 257, "context": 32, "learning_rate": 0.02, **self.given(arguments)}
        require("width" in given, "width", None, "say the width")
        tuned = Hyperparameters(**{**TUNED.to_dict(), "learning_rate": given["learning_rate"]})
        shape = {name: given[name] for name in ("width", "passes", "vocabulary", "context")}
        backbone = BackboneConfig(heads=2, prelude=1, core=family.core, coda=1, **shape)
        return WideRecipe(study=self, family=family, backbone=backbone, hyperparameters=tuned)

    def run(self, name: str, *, tokens: int = 4096, **arguments: Any) -> Run:
        recipe = self.resolve(self.family(name), arguments)
        steps, passes = tokens // 256, recipe.backbone.passes
        return run_of(recipe, steps, recurrence=Recurrence(passes), steps=steps, batch_tokens=256)

    def title(self, run: Run) -> str:
        return f"{run.family} at width {run.backbone.width}"

    def file_stem(self, run: Run) -> str:
        return f"{run.family}_w{run.backbone.width}"

    def rows(self, run: Run) -> list[tuple[str, str]]:
        return [("width study", "one set of hyperparameters")]

    def add_options(self, parser: ArgumentParser) -> None:
        parser.add_argument("--width", type=int, required=True)
        parser.add_argument("--passes", type=int)

    def run_of_options(self, args: Namespace) -> Run:
        return self.run(args.family, width=args.width, passes=args.passes)


class WideLoop(LoopedLM):
    """Its model."""

    study, family = WidthStudy(), WideFamily("wide_loop", core=2)

    def __init__(
        self, width: int, passes: int | None = None, vocabulary: int | None = None, context: int | None = None,
        learning_rate: float | None = None, steps: int | None = None, compile: bool = False, seed: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.save_hyperparameters()
        self.build()
