"""The LightningModule that every architecture family shares: training, evaluation, checkpoints."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any, cast, get_args

import lightning as L
import torch
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from looplit.errors import InputError, RunStopped, require, require_whole
from looplit.eval.metrics import TokenLoss
from looplit.model.backbone import Backbone, Site
from looplit.model.config import BackboneConfig, Unit
from looplit.model.growth import restore_passes, save_passes
from looplit.modules.length import trainer_steps
from looplit.modules.meter import RunMeter
from looplit.modules.resume import (
    Course,
    StepTokens,
    check_same_config,
    check_same_course,
    check_same_model,
    check_same_settings,
)
from looplit.modules.window import Place, Window, begin_whole_steps
from looplit.optim import MuonAdamW, learning_rate_factor, parameters_by_role
from looplit.scaling.accounting import flops_per_token
from looplit.scaling.training import GroupSettings, ModelRecipe, Role, Schedule

Batch = Tensor | tuple[Tensor, Tensor] | list[Tensor]

CLASS_KEY, METER_KEY, STEP_KEY = "looplit_class", "looplit_meter", "looplit_step_tokens"  # in checkpoints
CONFIG_KEY, COURSE_KEY = "looplit_config", "looplit_course"


class LoopedLM(L.LightningModule):
    """A language model that trains as its recipe says: what every family shares.

    A batch is a tensor of token windows (batch, tokens + 1), inputs and shifted targets overlapping, or a pair
    (inputs, targets) of shape (batch, tokens) each. Train with any Lightning Trainer; families that grow need
    `looplit.callbacks.ModelGrowth` among its callbacks.

    Built under `torch.device("meta")`, a model takes no memory and gets its weights when a Trainer sets it up, under
    `looplit_fsdp` shard by shard.

    A subclass saves its hyperparameters, `steps`, `compile` and `seed` among them, and calls `build` with its recipe.
    """

    recipe: ModelRecipe
    backbone: Backbone

    def __init__(self) -> None:
        super().__init__()
        self.meter = RunMeter()
        self._step_tokens = StepTokens()
        self._course: Course | None = None
        self._resumed_course: Course | None = None
        self._losses: list[Tensor] = []
        self._window = Window()
        self._moved: dict[str, Tensor] = {}
        self._metrics: dict[str, TokenLoss] = {}

    def build(self, recipe: ModelRecipe) -> None:
        """Builds the backbone of a recipe.

        Raises:
            InputError: `steps` is below 1.
        """
        steps, seed = self.hparams["steps"], self.hparams["seed"]
        if steps is not None:
            require_whole("steps", steps, 1)
        self.recipe = recipe
        self._seed = torch.initial_seed() if seed is None else seed
        self.backbone = Backbone(recipe.backbone, self._seed)

    @property
    def config(self) -> BackboneConfig:
        """Shape and constants of the backbone."""
        return self.backbone.config

    @property
    def growth_plan(self) -> tuple[int, float] | None:
        """(K after growth, growth fraction ρ) that the recipe prescribes; None if it does not grow."""
        return self.recipe.growth_plan

    @property
    def planned_steps(self) -> int:
        """S, optimizer steps of the schedule: `steps`, else those the Trainer will take.

        Raises:
            InputError: Neither is known, or the Trainer would go on after the schedule has ended.
        """
        steps, ends_at = self.hparams["steps"], trainer_steps(self.trainer)
        if steps is not None:
            require(
                not ends_at > steps, "trainer.max_steps", ends_at,
                f"goes beyond the {steps} planned steps of the model, where its learning rate ends",
            )  # fmt: skip
            return cast(int, steps)
        known = math.isfinite(ends_at)
        require(known, "trainer.max_steps", self.trainer.max_steps, "the schedule needs the length of the run")
        return int(ends_at)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Logits of the next token, (batch, tokens, vocabulary), fp32."""
        return self.backbone(tokens_BT)

    # --- set-up

    def sharded_modules(self) -> list[nn.Module]:
        """What sharded training gathers and releases together: each block, and the backbone with the rest."""
        return [*self.backbone.blocks(), self.backbone]

    def checkpoint_activations(self, unit: Unit | None) -> None:
        """Lets every "block", or every "pass", keep only its input for the backward pass and run again there.

        Under any strategy; call it before training. The gradients stay the same, for a third more compute.
        """
        require(unit in (None, *get_args(Unit)), "unit", unit, "must be block or pass")
        self.backbone.activation_checkpointing = unit

    def initialize_weights(self) -> None:
        """Sets the weights that a run starts with: the same ones whole, sharded, and on any number of processes."""
        self.backbone.initialize(self._seed)

    def setup(self, stage: str) -> None:
        self._losses = []
        self._window.clear()
        self._check_strategy(stage)
        self._check_data()
        if self.backbone.head.weight.is_meta and not isinstance(self.trainer.strategy, ModelParallelStrategy):
            self.backbone.to_empty(device="cpu")
            self.initialize_weights()
        if self.hparams["compile"] and stage == "fit":
            for block in self.backbone.blocks():
                block.compile()

    def _groups(self) -> dict[Role, GroupSettings]:
        return self.recipe.settings(self.planned_steps).groups(self.recipe.optimizer)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        steps, groups = self.planned_steps, self._groups()
        optimizer = MuonAdamW(
            {
                "params": [parameter for _, parameter in named],
                "role": role,
                "algorithm": groups[role].algorithm,
                "lr": groups[role].learning_rate,
                "weight_decay": groups[role].weight_decay,
                "betas": groups[role].betas,
                "eps": groups[role].eps,
            }
            for role, named in parameters_by_role(self.backbone).items()
        )
        course = self.recipe.settings(steps).schedule
        self._course = Course(steps, course)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: learning_rate_factor(t, steps, *course))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_fit_start(self) -> None:
        grows = any(hasattr(callback, "growth_events") for callback in self.trainer.callbacks)  # type: ignore[attr-defined]
        if self.recipe.growth_plan is not None and not grows:
            raise InputError(
                f"callbacks: {type(self).__name__} trains with growth; add looplit.callbacks.ModelGrowth() to them"
            )

        if any(map(self.config.cuts_prelude, self._passes_ahead())):
            rank_zero_info(
                "warning: no boundary reads the prelude, so the untrained passes before the last "
                f"{self.config.trained_passes} leave prelude and embedding without gradient: they stay as they start"
            )

    def _passes_ahead(self) -> list[int]:
        """K now, one more if it grows (whatever has no gradient then has none at a higher K), and those drawn."""
        callbacks = self.trainer.callbacks  # type: ignore[attr-defined]
        grown = [self.backbone.passes + 1 for callback in callbacks if hasattr(callback, "growth_events")]
        drawn = [callback.random_passes.choices for callback in callbacks if hasattr(callback, "random_passes")]
        return [self.backbone.passes, *grown, *itertools.chain(*drawn)]

    def _check_strategy(self, stage: str) -> None:
        strategy = self.trainer.strategy
        if isinstance(strategy, FSDPStrategy):
            raise InputError("trainer.strategy = FSDPStrategy: FSDP1 hides matrices from Muon; take looplit_fsdp")
        waits = isinstance(strategy, DDPStrategy) and not strategy._ddp_kwargs.get("find_unused_parameters")
        if stage == "fit" and waits and any(map(self.config.leaves_idle, self._passes_ahead())):
            raise InputError(
                f"trainer.strategy = {type(strategy).__name__}: plain DDP waits for every gradient, and some cores or "
                "the prelude get none here; take ddp_find_unused_parameters_true or looplit_fsdp"
            )

    def _check_data(self) -> None:
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        self._check_vocabulary(getattr(data, "largest_token", 0))
        context = getattr(data, "context", None)
        if context is not None:
            require(
                context <= self.config.context, "context", self.config.context,
                f"the data's windows have {context} tokens",
            )  # fmt: skip

    def _check_vocabulary(self, largest: int) -> None:
        require(
            largest < self.config.vocabulary, "vocabulary", self.config.vocabulary,
            f"the data holds token ids up to {largest}",
        )  # fmt: skip

    # --- training

    def on_train_start(self) -> None:
        optimizer = self.optimizers(use_pl_optimizer=False)
        check_same_settings(optimizer.param_groups, self._groups())  # type: ignore[union-attr]
        if self._resumed_course and self._course:
            check_same_course(self._resumed_course, self._course, self.global_step)
        begin_whole_steps(self.trainer)
        if self._window.place is None:
            self._window.keep(self.trainer, self.meter.state_dict())

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        # What loggers take as the step. Lightning (2.6) saves it before a step is counted, and after a resume counts
        # that step once, twice or not at all, depending on where the checkpoint was saved.
        self.trainer.fit_loop.epoch_loop._batches_that_stepped = self.global_step
        self._window.batch_started(self.trainer)
        self.meter.batch_started()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        inputs_BT, targets_BT = inputs_and_targets(batch)
        if batch_idx == 0:  # loaders that are not LoopLit's say no largest token
            self._check_vocabulary(int(torch.maximum(inputs_BT.max(), targets_BT.max())))
        observe = self._observe_stages() if self._logs_this_step and not self._losses else None
        loss = self.backbone(inputs_BT, targets_BT, observe=observe)
        self._losses.append(loss.detach())
        # Counted here and not at the batch's end: callbacks that save a checkpoint there run before the module.
        tokens = inputs_BT.numel() * self.trainer.world_size
        cost = flops_per_token(self.config, self.backbone.passes, inputs_BT.shape[1])
        self.meter.batch_processed(tokens, tokens * cost, self.backbone.passes)
        self._step_tokens.add(tokens)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        self._window.batch_ended(self.trainer, self.meter.state_dict())

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        losses, self._losses = self._losses, []
        self.meter.step_ended()
        planned = self.trainer.accumulate_grad_batches
        self._step_tokens.step_ended(self.recipe, self.global_step, len(losses), planned)
        self._rescale_short_window(optimizer, len(losses))
        loss = torch.stack(losses).mean()
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        if not torch.isfinite(norm + loss):
            raise RunStopped(self._not_finite(loss, norm))
        self.log("loss", loss, prog_bar=True, logger=False)
        self.log("K", float(self.backbone.passes), prog_bar=True, logger=False)
        if self._logs_this_step:
            self._log_step(optimizer, loss, norm)

    def _rescale_short_window(self, optimizer: torch.optim.Optimizer, micro_batches: int) -> None:
        """Lightning divides by `accumulate_grad_batches` also in an epoch's shorter last window: undo that."""
        planned = self.trainer.accumulate_grad_batches
        if micro_batches == planned:
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(planned / micro_batches)

    def _not_finite(self, loss: Tensor, norm: Tensor) -> str:
        saved = [c.last_model_path or c.best_model_path for c in self.trainer.checkpoint_callbacks]  # type: ignore[attr-defined]
        last = next((path for path in saved if path), None)
        return (
            f"step {self.global_step}: the loss ({float(loss):g}) or the gradient norm ({float(norm):g}) "
            f"is not finite; the weights were not updated. Last good checkpoint: {last or 'none yet'}"
        )

    @property
    def _logs_this_step(self) -> bool:
        every = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        return every > 0 and (self.global_step + 1) % every == 0

    def _log_step(self, optimizer: torch.optim.Optimizer, loss: Tensor, norm: Tensor) -> None:
        self.log("loss/train", loss, sync_dist=True)
        self.log("optimizer/gradient_norm", norm)
        for group in optimizer.param_groups:
            self.log(f"learning_rate/{group['role']}", group["lr"])
        self.log("growth/passes", float(self.backbone.passes))
        self.log("growth/executed_depth", float(self.backbone.executed_depth))
        self.log("compute/tokens", float(self.meter.tokens))
        self.log("compute/training_flops", float(self.meter.flops))
        speed = self.meter.recent_tokens_per_second()
        if speed is not None:
            self.log("compute/tokens_per_second", speed)
            self.log("tokens/s", speed, prog_bar=True, logger=False)
        for stage, moved in self._moved.items():
            self.log(f"residual/{stage}", moved)
        self._moved = {}

    def _observe_stages(self) -> Any:
        """An observer that measures how far each stage moved the residual stream: RMS of (out - in)."""
        read: dict[str, Tensor] = {}

        def observe(site: Site, state_BTD: Tensor) -> None:
            stage = f"{site.stage}_{site.pass_}" if site.pass_ else site.stage
            state = state_BTD.detach()
            if site.block == 0:
                read[stage] = state
            self._moved[stage] = (state - read[stage]).square().mean().sqrt()

        return observe

    def on_validation_start(self) -> None:
        self.meter.pause()

    def on_train_end(self) -> None:
        self.meter.pause()

    # --- evaluation

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate("val", batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate("test", batch)

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Loss of every target in nats, (batch, tokens)."""
        return self.backbone(*inputs_and_targets(batch), reduction="none")

    def _evaluate(self, split: str, batch: Batch) -> None:
        if split not in self._metrics:
            self._metrics[split] = TokenLoss(getattr(self.trainer.datamodule, "token_bytes", None)).to(self.device)  # type: ignore[attr-defined]
        inputs_BT, targets_BT = inputs_and_targets(batch)
        self._metrics[split].update(self.backbone(inputs_BT, targets_BT, reduction="none"), targets_BT)

    def on_validation_epoch_end(self) -> None:
        self._log_evaluation("val")

    def on_test_epoch_end(self) -> None:
        self._log_evaluation("test")

    def _log_evaluation(self, split: str) -> None:
        if split in self._metrics:
            result = self._metrics.pop(split).compute()
            self.log(f"loss/{split}", result["nats_per_token"].float(), prog_bar=True)
            if "bits_per_byte" in result:
                self.log(f"loss/{split}_bits_per_byte", result["bits_per_byte"].float())

    # --- checkpoints

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.meter.pause()
        save_passes(self.backbone, checkpoint)
        checkpoint[CLASS_KEY] = type(self).__name__
        checkpoint[METER_KEY] = self.meter.state_dict()
        if place := self._window.left_open(self.trainer):
            checkpoint["loops"]["fit_loop"], checkpoint[METER_KEY] = place.loop, place.meter
        checkpoint[STEP_KEY] = self._step_tokens.per_step
        checkpoint[CONFIG_KEY] = self.config.to_dict()
        if self._course:
            checkpoint[COURSE_KEY] = {"steps": self._course.steps, "schedule": self._course.schedule._asdict()}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        check_same_model(checkpoint.get("state_dict", {}), self.state_dict())
        trainer = self._trainer
        if trainer is not None:
            training = trainer.state.fn == TrainerFn.FITTING
            check_same_config(checkpoint.get(CONFIG_KEY, {}), self.config, training)
        restore_passes(self.backbone, checkpoint)
        saved = checkpoint.get(COURSE_KEY)
        self._resumed_course = saved and Course(saved["steps"], Schedule(**saved["schedule"]))
        if METER_KEY in checkpoint:
            self.meter.load_state_dict(checkpoint[METER_KEY])
        if trainer is not None and trainer.state.fn == TrainerFn.FITTING and "loops" in checkpoint:
            loop = copy.deepcopy(checkpoint["loops"]["fit_loop"])
            self._window.place = Place(checkpoint["global_step"], loop, self.meter.state_dict())
        tokens = self._step_tokens
        tokens.per_step, tokens.resumed_at = checkpoint.get(STEP_KEY), checkpoint.get("global_step")


def inputs_and_targets(batch: Batch) -> tuple[Tensor, Tensor]:
    """Splits windows (batch, tokens + 1) into inputs and shifted targets; a pair is taken as it is.

    Raises:
        InputError: Neither windows nor a pair of tensors of one shape.
    """
    if isinstance(batch, Tensor):
        require(batch.dim() == 2, "batch", list(batch.shape), "windows of token ids are (batch, tokens + 1)")
        windows = batch.long()
        return windows[:, :-1], windows[:, 1:]
    pair = isinstance(batch, tuple | list) and [isinstance(part, Tensor) for part in batch] == [True, True]
    require(pair, "batch", type(batch).__name__, "must be windows (batch, tokens + 1) or a pair (inputs, targets)")
    inputs_BT, targets_BT = batch
    shapes = [list(inputs_BT.shape), list(targets_BT.shape)]
    require(shapes[0] == shapes[1], "batch", shapes, "inputs and targets must have the same shape")
    return inputs_BT, targets_BT
