"""What a resumed run may not change: the model, the settings of its parameter groups, the tokens of a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from looplit.errors import InputError, require
from looplit.scaling.training import GroupSettings, ModelRecipe, Role, check_batch


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
            return
        if self.per_step not in (None, taken) and step == self.resumed_at:
            raise InputError(
                f"accumulate_grad_batches = {micro_batches}: an optimizer step takes {taken} tokens; "
                f"the checkpoint's run took {self.per_step}"
            )
        check_batch(recipe, taken)
        self.per_step = taken
