"""What a resumed run may not change: model, settings of its parameter groups, schedule so far, tokens of a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from looplit.errors import InputError, require
from looplit.model.config import BackboneConfig
from looplit.optim.schedule import learning_rate_factor
from looplit.scaling.training import GroupSettings, ModelRecipe, Role, Schedule, check_batch


def check_same_model(saved: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Another depth, width or family than the checkpoint's gets one line, not a list of every tensor.

    Raises:
        InputError: A name that only one of them has, or a shape that differs.
    """
    for name in saved.keys() ^ own.keys() if saved else ():
        where = "the checkpoint" if name in saved else "this model"
        raise InputError(f"ckpt_path: the checkpoint is of another model; only {where} has {name}")
    for name, value in saved.items():
        if value.shape != own[name].shape:
            shapes = f"{tuple(value.shape)} there, {tuple(own[name].shape)} here"
            raise InputError(f"ckpt_path: the checkpoint is of another model; {name} is {shapes}")


def check_same_config(saved: Mapping[str, Any], own: BackboneConfig, training: bool) -> None:
    """What no tensor's shape shows: heads, boundaries, multipliers, trained passes. Growth changes none of them.

    Args:
        saved: The checkpoint's `BackboneConfig` as plain values.
        own: This model's.
        training: Whether the run goes on; an evaluation may differ in what plays no part in it.

    Raises:
        InputError: A value that differs.
    """
    for name, value in own.to_dict().items():
        if name in saved and (training or name not in TRAINING_ONLY):
            rule = f"the checkpoint's model has {saved[name]!r}"
            require(value == saved[name], name, value, rule + (", and a resumed run goes on so" if training else ""))


TRAINING_ONLY = (
    "passes", "trained_passes", "context", "embedding_std", "uniform_init_scale", "branch_init_scale", "head_std",
)  # fmt: skip
"""Fields that an evaluation does not read, and the passes, which it takes from the checkpoint."""


@dataclass(frozen=True)
class Course:
    """The course of the learning rate that a run plans.

    Args:
        steps: Planned optimizer steps.
        schedule: Of the learning rate.
    """

    steps: int
    schedule: Schedule

    def factors(self, taken: int) -> list[float]:
        """Of the steps up to `taken`."""
        return [learning_rate_factor(t, self.steps, *self.schedule) for t in range(taken)]


def check_same_course(saved: Course, own: Course, taken: int) -> None:
    """A longer run, or another schedule, may be planned only while the rates so far are the same.

    Args:
        saved: Of the checkpoint's run.
        own: Of this one.
        taken: Optimizer steps that the checkpoint's run had taken.

    Raises:
        InputError: This run would have taken one of them at another rate.
    """
    if saved == own or saved.factors(taken) == own.factors(taken):
        return
    planned = {"steps": saved.steps, **saved.schedule._asdict()}
    for name, value in {"steps": own.steps, **own.schedule._asdict()}.items():
        rule = f"the checkpoint's run was planned with {planned[name]}, and its learning rate has gone by that"
        require(value == planned[name], name, value, rule)


def check_same_settings(param_groups: Iterable[dict[str, Any]], asked: Mapping[Role, GroupSettings]) -> None:
    """A resumed optimizer keeps the checkpoint's settings: other ones must not stand in the run's record.

    Raises:
        InputError: A setting that is asked for and not kept.
    """
    for group in param_groups:
        wanted = asked[group["role"]]
        kept = GroupSettings(
            group["algorithm"], group["initial_lr"], group["weight_decay"], tuple(group["betas"]), group["eps"]
        )
        for name, value, other in zip(GroupSettings._fields, kept, wanted, strict=True):
            rule = f"the checkpoint trains its {group['role']} with {value}, and a resumed run goes on so"
            require(value == other, name, other, rule)


class StepTokens:
    """Tokens of an optimizer step, however devices, micro-batch and accumulation share them.

    Attributes:
        per_step: Of the last whole step, or of the checkpoint's run; None before either.
        resumed_at: Optimizer steps that the checkpoint's run had taken.
    """

    def __init__(self) -> None:
        self.per_step: int | None = None
        self.resumed_at: int | None = None
        self._taken = 0

    def add(self, tokens: int) -> None:
        """Counts one micro-batch on all devices."""
        self._taken += tokens

    def step_ended(self, recipe: ModelRecipe, step: int, micro_batches: int, accumulation: int) -> None:
        """Ends a step; one with fewer micro-batches than planned (the end of an epoch) is not looked at.

        Raises:
            InputError: Other tokens than the recipe's settings are for, or than the checkpoint's run took.
        """
        taken, self._taken = self._taken, 0
        if micro_batches != accumulation:
            if step == self.resumed_at:
                self.resumed_at += 1  # the next one is looked at instead
            return
        if self.per_step not in (None, taken) and step == self.resumed_at:
            raise InputError(
                f"accumulate_grad_batches = {micro_batches}: an optimizer step takes {taken} tokens; "
                f"the checkpoint's run took {self.per_step}"
            )
        check_batch(recipe, taken)
        self.per_step = taken
