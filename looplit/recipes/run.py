"""One training run as plain numbers: what a recipe gives, what a plan says, what `result.json` repeats."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from looplit.accounting.flops import (
    flops_per_token,
    initial_parameters,
    nonembedding_parameters,
    recurrent_parameters,
    stored_parameters,
    training_flops,
)
from looplit.accounting.recurrence import Phase, Recurrence
from looplit.errors import require
from looplit.model.config import CONTEXT, BackboneConfig, Role
from looplit.optim.algorithms import algorithm_of
from looplit.recipes.study import ModelRecipe, Study
from looplit.recipes.training import GroupSettings, Optimizer, TrainingSettings
from looplit.results import field_of

BATCH_TOKENS = 524_288  # the growth study's global batch


@dataclass(frozen=True)
class Run:
    """A training run, complete but for data and machine.

    Args:
        study: That prescribes it.
        class_path: Module class that trains it, as a config file names it.
        family: Name of the family or variant, e.g. "untied_grow", "loop_3".
        depth: Nominal depth, where the recipe has one.
        backbone: Shape and constants of the model.
        hyperparameters: As the run uses them, scaled.
        recurrence: K over the run.
        steps: Optimizer steps.
        batch_tokens: Tokens per optimizer step.
        optimizer: Of the block matrices; embedding, head and gains always take AdamW.
        pool_tokens: Unique training tokens; None for fresh data throughout.
        planned_steps: Optimizer steps of the schedule; None for `steps`.
    """

    study: Study
    class_path: str
    family: str
    depth: int | None
    backbone: BackboneConfig
    hyperparameters: TrainingSettings
    recurrence: Recurrence
    steps: int
    batch_tokens: int = BATCH_TOKENS
    optimizer: Optimizer = "muon"
    pool_tokens: int | None = None
    planned_steps: int | None = None

    def __post_init__(self) -> None:
        if self.pool_tokens is not None:
            require(
                self.steps_per_epoch >= 1, "pool_tokens", self.pool_tokens,
                f"must hold one batch of {self.batch_tokens:,} tokens in windows of {self.backbone.context + 1}",
            )  # fmt: skip
        require(self.steps >= 1, "steps", self.steps, "a run has at least one optimizer step")
        algorithm_of("optimizer", self.optimizer)
        most = self.backbone.max_passes
        require(
            most is None or self.recurrence.max_passes <= most, "passes", self.recurrence.max_passes,
            f"an untied model can run at most its {most} stored cores",
        )  # fmt: skip
        for growth in self.recurrence.growths:
            inside = growth.step < self.steps
            require(inside, "step", growth.step, f"growth must fall inside the run of {self.steps} steps")

    @property
    def title(self) -> str:
        """What cards and headers call it."""
        return self.study.title(self)

    @property
    def split(self) -> list[int]:
        """Blocks of prelude, core and coda."""
        return [self.backbone.prelude, self.backbone.core, self.backbone.coda]

    @property
    def groups(self) -> dict[Role, GroupSettings]:
        """Settings of the parameter groups by role, of those that the model has."""
        groups = self.hyperparameters.groups(self.optimizer)
        return {role: settings for role, settings in groups.items() if role in self.backbone.roles}

    @property
    def tokens(self) -> int:
        """Training tokens, repeats counted."""
        return self.steps * self.batch_tokens

    @property
    def tokens_per_parameter(self) -> float:
        """TPP, per stored parameter of the initial model."""
        return self.tokens / initial_parameters(self.backbone)

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in one pass over the pool of `pool_tokens`."""
        assert self.pool_tokens is not None
        return epoch_steps(self.pool_tokens, self.batch_tokens, self.backbone.context)

    @property
    def epochs(self) -> float | None:
        """Passes over the pool; None on fresh data."""
        return None if self.pool_tokens is None else self.steps / self.steps_per_epoch

    @cached_property
    def phases(self) -> list[Phase]:
        """The stretches of the run between growths."""
        return self.recurrence.phases(self.steps)

    @cached_property
    def training_flops(self) -> int:
        """FLOPs of the run at the passes it takes, drawn ones replayed."""
        return sum(self.phase_flops(phase) for phase in self.phases)

    @property
    def training_flops_full_attention(self) -> int:
        """The same with the attention counted without causal halving, as the truncation study counts."""
        realised = self.recurrence.realised(self.steps)
        return training_flops(self.backbone, realised, self.batch_tokens, attention="full")

    @property
    def expected_training_flops(self) -> float:
        """The same at the mean of the passes drawn from; equal to `training_flops` where nothing is drawn."""
        total = 0.0
        for phase in self.phases:
            costs = [flops_per_token(self.backbone, passes) for passes in phase.choices]
            total += phase.steps * self.batch_tokens * sum(costs) / len(costs)
        return total

    def phase_flops(self, phase: Phase) -> int:
        """FLOPs of one phase at the passes it takes."""
        return training_flops(self.backbone, self.recurrence.realised_in(phase), self.batch_tokens)

    def to_dict(self) -> dict[str, Any]:
        """The JSON keys of recipes, plans and results, as `looplit.results` explains them; absent where none applies.

        A value per phase is a list over phases; within it, a phase of drawn passes is a list over its choices.
        One growth gives `growth_step` and `growth_fraction` as numbers, several give lists.
        """
        groups, growths = self.groups, self.recurrence.growths
        choices = [phase.choices for phase in self.phases]
        answer: dict[str, Any] = {
            "family": self.family,
            "depth": self.depth,
            "width": self.backbone.width,
            "heads": self.backbone.heads,
            "split": self.split,
            "passes": [phase.passes for phase in self.phases],
            "trained_passes": self.backbone.trained_passes,
            "vocabulary": self.backbone.vocabulary,
            "context": self.backbone.context,
            "batch_tokens": self.batch_tokens,
            "stored_parameters": stored_parameters(self.backbone),
            "initial_parameters": initial_parameters(self.backbone),
            "nonembedding_parameters": nonembedding_parameters(self.backbone),
            "recurrent_parameters": recurrent_parameters(self.backbone),
            "executed_depth": [_each([self.backbone.executed_depth(k) for k in drawn]) for drawn in choices],
            "steps": self.steps,
            "planned_steps": self.planned_steps or self.steps,
            "tokens": self.tokens,
            "epochs": self.epochs,
            "growth_step": _each([growth.step for growth in growths]),
            "growth_fraction": _each([self._fraction(index) for index in range(len(growths))]),
            "growth_rewarm_steps": self.recurrence.rewarm_steps if growths else None,
            **self._drawn_fields(),
            "learning_rate": groups["matrix"].learning_rate,
            "embedding_lr": groups["embedding"].learning_rate,
            "head_lr": groups["head"].learning_rate,
            "gain_lr": groups["gain"].learning_rate if "gain" in groups else None,
            "hyperparameters": {"optimizer": self.optimizer, **_without_none(self.hyperparameters.to_dict())},
            "flops_per_token": [_each([flops_per_token(self.backbone, k) for k in drawn]) for drawn in choices],
            "training_flops": self.training_flops,
            **self.study.facts(self),
            "expected_training_flops": self.expected_training_flops if self.recurrence.random else None,
            "pool_tokens": self.pool_tokens,
        }
        said = {*answer, *answer["hyperparameters"]}
        rest = {name: value for name, value in backbone_settings(self.backbone).items() if name not in said}
        return _without_none(answer | rest)

    def _drawn_fields(self) -> dict[str, Any]:
        drawn = self.recurrence.random
        if drawn is None:
            return {}
        return {"drawn_passes": list(drawn.choices), "evaluate_at": drawn.evaluate_at, "draw_seed": drawn.seed}

    def _fraction(self, index: int) -> float:
        growth = self.recurrence.growths[index]
        return (self.steps - growth.step) / self.steps if growth.fraction is None else growth.fraction


def backbone_settings(backbone: BackboneConfig) -> dict[str, Any]:
    """What a record says of a backbone beside its size: all that changes the function it computes."""
    split = ("prelude", "core", "coda")
    given = {name: value for name, value in backbone.to_dict().items() if name not in split}
    return {name: value for name, value in given.items() if field_of(name).kind == "setting"}


def run_of(recipe: ModelRecipe, planned_steps: int, *, context: int | None = None, **rest: Any) -> Run:
    """The run of a module.

    Args:
        recipe: Of the module.
        planned_steps: Of its schedule.
        context: Tokens of the windows trained on, where that is not the model's longest.
        **rest: The other fields of `Run`.

    Raises:
        InputError: No class is known to train the recipe's family.
    """
    family = recipe.family
    rule = f"no class is known for {family.name}; name it by the import path of its class, my_module.MyFamily"
    require(family.class_path is not None, "class_path", family.class_path, rule)
    return Run(
        study=recipe.study,
        class_path=str(family.class_path),
        family=recipe.name,
        depth=recipe.depth,
        backbone=replace(recipe.backbone, context=context or recipe.backbone.context),
        hyperparameters=recipe.settings(planned_steps),
        optimizer=recipe.optimizer,
        planned_steps=None if planned_steps == rest["steps"] else planned_steps,
        **rest,
    )


def epoch_steps(pool_tokens: int, batch_tokens: int = BATCH_TOKENS, context: int = CONTEXT) -> int:
    """Optimizer steps of one epoch: whole batches of whole windows of context + 1 tokens; the rest is left out.

    >>> epoch_steps(100_000_000), epoch_steps(250_000_000)
    (190, 476)
    """
    windows = pool_tokens // (context + 1)
    return windows // batch_windows(batch_tokens, context)


def batch_windows(batch_tokens: int, context: int) -> int:
    """Sequences per optimizer step.

    Raises:
        InputError: `batch_tokens` is not a multiple of `context`.
    """
    require(
        batch_tokens > 0 and batch_tokens % context == 0, "batch_tokens", batch_tokens,
        f"must be a multiple of the context {context}",
    )  # fmt: skip
    return batch_tokens // context


def _each(values: list[Any]) -> Any:
    """None, the one value, or the list."""
    return values if len(values) > 1 else values[0] if values else None


def _without_none(mapping: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if value is not None}
