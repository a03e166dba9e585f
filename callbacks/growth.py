"""Growth at a step of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from looplit.errors import InputError, require
from looplit.model.config import check_growth
from looplit.model.growth import Growable, grow, growable_backbone, restore_passes, save_passes
from looplit.modules.length import trainer_steps
from looplit.optim.schedule import REWARM_STEPS, rewarm_factor
from looplit.scaling.recurrence import Growth, growth_step


class ModelGrowth(Callback):
    """Grows a model to more passes at step g and re-warms the learning rate (growth study, Algorithm 1).

    g counts optimizer steps as `trainer.global_step` does. For `rewarm_steps` steps from g on, every learning rate is
    multiplied by (t - g)/rewarm_steps, whatever the scheduler; factors of several growths multiply.

    Works on any LightningModule whose `backbone` has `passes`, `tied`, `cores` and `set_passes`
    (`looplit.model.growth.Growable`). Its optimizer must hold the parameters of all stored cores from the start and
    leave parameters without a gradient alone, as every `torch.optim` optimizer does.

    Note:
        The number of passes travels with checkpoints. A validation that falls on g runs before growth. Under DDP use
        `find_unused_parameters=True`: dormant cores get no gradient.

    Args:
        passes: K after growth, or one for each of several growths. Default: the family's own growth plan.
        step: g, or one for each growth.
        fraction: ρ instead of `step`: the share of the run after growth, g = floor((1-ρ)·steps).
        rewarm_steps: Steps of the re-warm; 0 for none.
        any_target: Whether an untied model may grow to a K that is not a multiple of its present one.

    Raises:
        InputError: Both or neither of step and fraction, or lists that do not match.

    Example:
        >>> from looplit.callbacks import ModelGrowth
        >>> callback = ModelGrowth(passes=4, fraction=0.3)
        >>> staged = ModelGrowth(passes=[4, 6], step=[1000, 2000])
    """

    def __init__(
        self,
        passes: int | list[int] | None = None,
        step: int | list[int] | None = None,
        fraction: float | list[float] | None = None,
        rewarm_steps: int = REWARM_STEPS,
        any_target: bool = False,
    ) -> None:
        super().__init__()
        require(rewarm_steps >= 0, "rewarm_steps", rewarm_steps, "must be at least 0")
        require(step is None or fraction is None, "fraction", fraction, "give step or fraction, not both")
        self.passes = _as_list(passes)
        self.steps = _as_list(step)
        self.fractions = _as_list(fraction)
        when = self.steps or self.fractions
        if self.passes is None:
            require(when is None, "passes", passes, "step or fraction needs the passes to grow to")
        else:
            require(when is not None, "passes", passes, "growth needs its step or its fraction")
            assert when is not None
            require(len(when) == len(self.passes), "passes", passes, f"has not one entry for each of {when}")
        self.rewarm_steps = rewarm_steps
        self.any_target = any_target
        self.growth_events: list[Growth] = []
        self._grown: set[int] = set()
        self._hooks: list[RemovableHandle] = []
        self._scheduled_rates: dict[Optimizer, list[float]] = {}  # of an optimizer that is taking a re-warmed step

    @property
    def finished(self) -> bool:
        """Whether no growth is still to come."""
        return all(event.step in self._grown for event in self.growth_events)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        others = [callback for callback in trainer.callbacks if isinstance(callback, ModelGrowth)]  # type: ignore[attr-defined]
        require(len(others) == 1, "callbacks", len(others), "give several growths to one ModelGrowth, as lists")
        self.growth_events = self._events(trainer, pl_module)
        self._check(trainer, growable_backbone(pl_module))

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        at = trainer.global_step
        for event in self.growth_events:
            done = event.step >= at or event.step in self._grown
            require(done, "step", event.step, f"the run resumes at step {at} without having grown there")
        for optimizer in trainer.optimizers:
            self._hooks.append(optimizer.register_step_pre_hook(lambda o, *_: self._rewarm(trainer, o)))
            self._hooks.append(optimizer.register_step_post_hook(lambda o, *_: self._restore(o)))

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        for event in self.growth_events:
            if event.step == trainer.global_step and event.step not in self._grown:
                backbone = growable_backbone(pl_module)
                before = backbone.passes
                copies = grow(backbone, event.passes, any_target=self.any_target)
                self._grown.add(event.step)
                copied = ", ".join(f"core {source + 1} → {filled + 1}" for source, filled in copies)
                rank_zero_info(
                    f"Step {event.step}: grew from {before} to {event.passes} passes" + f" ({copied})" * bool(copied)
                )

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._scheduled_rates = {}

    def state_dict(self) -> dict[str, Any]:
        return {"grown": sorted(self._grown)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._grown = set(state_dict["grown"])

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        save_passes(growable_backbone(pl_module), checkpoint)
        for optimizer, rates in self._scheduled_rates.items():  # saved within a step: by a signal or an exception
            state = checkpoint["optimizer_states"][trainer.optimizers.index(optimizer)]
            for group, rate in zip(state.get("param_groups", ()), rates, strict=False):  # the first process has them
                group["lr"] = rate

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        restore_passes(growable_backbone(pl_module), checkpoint)

    def _events(self, trainer: L.Trainer, pl_module: L.LightningModule) -> list[Growth]:
        passes, fractions = self.passes, self.fractions
        if passes is None:
            plan = getattr(pl_module, "growth_plan", None)
            if plan is None:
                raise InputError(
                    f"passes = None: {type(pl_module).__name__} has no growth plan; say passes and fraction"
                )
            passes, fractions = [plan[0]], [plan[1]]
        steps = self.steps
        if steps is None:
            assert fractions is not None
            run = _planned_steps(trainer, pl_module)
            steps = [growth_step(fraction, int(run)) for fraction in fractions]
        shares: list[Any] = fractions if fractions is not None else [None] * len(steps)
        growths = (Growth(k, g, share) for k, g, share in zip(passes, steps, shares, strict=True))
        return sorted(growths, key=lambda growth: growth.step)

    def _check(self, trainer: L.Trainer, backbone: Growable) -> None:
        """Every event lies inside the run and is possible."""
        run = _planned_steps(trainer, trainer.lightning_module)
        steps = [event.step for event in self.growth_events]
        require(len(set(steps)) == len(steps), "step", steps, "two growths fall on one step")
        before = backbone.passes
        for k, g, _ in map(astuple, self.growth_events):
            inside = 0 < g < run or bool(trainer.fast_dev_run)  # type: ignore[attr-defined]  # a smoke run has one step
            require(inside, "step", g, f"growth must fall inside the run of {run} steps")
            if g in self._grown:
                continue
            require(
                not self._grown or g > max(self._grown), "step", g,
                f"the checkpoint grew at step {max(self._grown, default=0)}; a resumed run keeps its steps: say step",
            )  # fmt: skip
            check_growth(before, k, tied=backbone.tied, stored_cores=len(backbone.cores), any_target=self.any_target)
            before = k

    def _rewarm(self, trainer: L.Trainer, optimizer: Optimizer) -> None:
        self._scheduled_rates[optimizer] = [group["lr"] for group in optimizer.param_groups]
        factor = rewarm_factor(trainer.global_step, (event.step for event in self.growth_events), self.rewarm_steps)
        for group in optimizer.param_groups if factor != 1 else ():
            group["lr"] = group["lr"] * factor

    def _restore(self, optimizer: Optimizer) -> None:
        for group, rate in zip(optimizer.param_groups, self._scheduled_rates.pop(optimizer), strict=True):
            group["lr"] = rate


def _planned_steps(trainer: L.Trainer, pl_module: L.LightningModule) -> float:
    """Optimizer steps of the run: a module's own plan, else what the Trainer will take (inf where it has no end)."""
    return getattr(pl_module, "planned_steps", None) or trainer_steps(trainer)


def _as_list(value: Any) -> list[Any] | None:
    if value is None:
        return None
    return list(value) if isinstance(value, Sequence) else [value]
