"""The LightningModule that every architecture family shares: training, evaluation, checkpoints."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any, ClassVar, Self, cast, get_args

import lightning as L
import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from looplit.accounting.flops import flops_per_token
from looplit.checkpoints.addresses import opened
from looplit.checkpoints.saving import DataOnlyIO
from looplit.data.batches import Batch, inputs_and_targets
from looplit.errors import RunStopped, require, require_whole
from looplit.eval.metrics import TokenLoss
from looplit.model.backbone import Backbone
from looplit.model.config import BackboneConfig, Role, Unit
from looplit.model.growth import restore_passes, save_passes
from looplit.modules.checks import (
    check_data,
    check_growth_callback,
    check_strategy,
    check_vocabulary,
    warn_of_cut_prelude,
)
from looplit.modules.length import trainer_steps
from looplit.modules.meter import RunMeter
from looplit.modules.movement import ResidualMovement
from looplit.modules.resume import (
    PlannedSchedule,
    StepTokens,
    check_same_config,
    check_same_model,
    check_same_schedule,
    check_same_settings,
)
from looplit.modules.window import Place, Window, begin_whole_steps, rescale_short_window
from looplit.optim import MuonAdamW, learning_rate_factor, parameters_by_role
from looplit.parts import import_path
from looplit.recipes.study import ModelRecipe, Study, StudyFamily, class_path
from looplit.recipes.training import GroupSettings, Schedule

# In checkpoints.
CLASS_KEY, CLASS_PATH_KEY = "looplit_class", "looplit_class_path"
METER_KEY, STEP_KEY = "looplit_meter", "looplit_step_tokens"
CONFIG_KEY, COURSE_KEY = "looplit_config", "looplit_course"


class LoopedLM(L.LightningModule):
    """A language model that trains as its recipe says: what every family shares.

    A batch is a tensor of token windows (batch, tokens + 1), inputs and shifted targets overlapping, or a pair
    (inputs, targets) of shape (batch, tokens) each. Train with any Lightning Trainer; families that grow need
    `looplit.callbacks.ModelGrowth` among its callbacks.

    Built under `torch.device("meta")`, a model takes no memory and gets its weights when a Trainer sets it up, under
    `looplit_fsdp` shard by shard.

    A subclass names its study and its family, saves its hyperparameters, `steps`, `compile` and `seed` among them, and
    calls `build`.
    """

    study: ClassVar[Study]
    family: ClassVar[StudyFamily]
    recipe: ModelRecipe
    backbone: Backbone

    def __init__(self) -> None:
        super().__init__()
        self.meter = RunMeter()
        self._step_tokens = StepTokens()
        self._planned_schedule: PlannedSchedule | None = None
        self._resumed_schedule: PlannedSchedule | None = None
        self._losses: list[Tensor] = []
        self._window = Window()
        self._movement = ResidualMovement()
        self._metrics: dict[str, TokenLoss] = {}

    def build(self) -> None:
        """Resolves the recipe that the saved hyperparameters stand for, and builds its backbone.

        Raises:
            InputError: There is no family, or an argument breaks a rule.
        """
        cls = type(self)
        require(hasattr(cls, "family"), "class_path", class_path(cls), "has no family; say one in a subclass")
        steps, seed = self.hparams["steps"], self.hparams["seed"]
        if steps is not None:
            require_whole("steps", steps, 1)
        self.recipe = self.study.resolve(replace(self.family, class_path=class_path(cls)), self.hparams)
        self._seed = torch.initial_seed() if seed is None else seed
        self.backbone = Backbone(self.recipe.backbone, self._seed)

    def _set_hparams(self, hp: Any) -> None:
        """What `save_hyperparameters` keeps: of classes the import path, so that checkpoints stay plain values."""
        super()._set_hparams({name: import_path(v) if isinstance(v, type) else v for name, v in hp.items()})

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
        check_strategy(self.trainer, self.backbone, stage)
        if type(self.trainer.strategy.checkpoint_io) is TorchCheckpointIO:  # it runs what is at an address
            self.trainer.strategy.checkpoint_io = DataOnlyIO()
        check_data(self.trainer.datamodule, self.config)  # type: ignore[attr-defined]
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
        self._planned_schedule = PlannedSchedule(steps, course)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: learning_rate_factor(t, steps, *course))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_fit_start(self) -> None:
        check_growth_callback(self.trainer, self.recipe.growth_plan, type(self).__name__)
        warn_of_cut_prelude(self.trainer, self.backbone)

    # --- training

    def on_train_start(self) -> None:
        optimizer = self.optimizers(use_pl_optimizer=False)
        check_same_settings(optimizer.param_groups, self._groups())  # type: ignore[union-attr]
        if self._resumed_schedule and self._planned_schedule:
            check_same_schedule(self._resumed_schedule, self._planned_schedule, self.global_step)
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
            check_vocabulary(int(torch.maximum(inputs_BT.max(), targets_BT.max())), self.config)
        observe = self._movement.observer() if self._logs_this_step and not self._losses else None
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
        rescale_short_window(optimizer, len(losses), planned)
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
        for stage, moved in self._movement.moved.items():
            self.log(f"residual/{stage}", moved)

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

    @classmethod
    def load_from_checkpoint(
        cls, checkpoint_path: Any, map_location: Any = None, hparams_file: Any = None, strict: bool | None = None,
        weights_only: bool | None = None, **kwargs: Any,
    ) -> Self:  # fmt: skip
        """As Lightning's, but an address too is read as data alone, unless `weights_only` is False.

        Raises:
            InputError: The address is of a kind that is not read.
        """
        data_only = weights_only is not False
        with opened(checkpoint_path, "checkpoint_path") as file:
            return super().load_from_checkpoint(file, map_location, hparams_file, strict, data_only, **kwargs)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.meter.pause()
        save_passes(self.backbone, checkpoint)
        checkpoint[CLASS_KEY], checkpoint[CLASS_PATH_KEY] = type(self).__name__, class_path(type(self))
        checkpoint[METER_KEY] = self.meter.state_dict()
        place = self._window.left_open(self._trainer) if self._trainer else None
        if place:
            checkpoint["loops"]["fit_loop"], checkpoint[METER_KEY] = place.loop, place.meter
        checkpoint[STEP_KEY] = self._step_tokens.per_step
        checkpoint[CONFIG_KEY] = self.config.to_dict()
        if self._planned_schedule:
            checkpoint[COURSE_KEY] = {
                "steps": self._planned_schedule.steps,
                "schedule": self._planned_schedule.schedule._asdict(),
            }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        check_same_model(checkpoint.get("state_dict", {}), self.state_dict())
        trainer = self._trainer
        if trainer is not None:
            training = trainer.state.fn == TrainerFn.FITTING
            check_same_config(checkpoint.get(CONFIG_KEY, {}), self.config, training)
        restore_passes(self.backbone, checkpoint)
        saved = checkpoint.get(COURSE_KEY)
        self._resumed_schedule = saved and PlannedSchedule(saved["steps"], Schedule(**saved["schedule"]))
        if METER_KEY in checkpoint:
            self.meter.load_state_dict(checkpoint[METER_KEY])
        if trainer is not None and trainer.state.fn == TrainerFn.FITTING and "loops" in checkpoint:
            loop = copy.deepcopy(checkpoint["loops"]["fit_loop"])
            self._window.place = Place(checkpoint["global_step"], loop, self.meter.state_dict())
        tokens = self._step_tokens
        tokens.per_step, tokens.resumed_at = checkpoint.get(STEP_KEY), checkpoint.get("global_step")
