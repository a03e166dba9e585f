"""The LightningModule that every architecture family shares."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, cast, get_args

import lightning as L
import torch
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from looplit.errors import InputError, RunStopped, require
from looplit.eval.metrics import TokenLoss
from looplit.model.backbone import Backbone, Site
from looplit.model.config import BackboneConfig, Boundary, InitialState, Unit
from looplit.model.growth import restore_passes, save_passes
from looplit.modules.meter import RunMeter
from looplit.optim import MuonAdamW, learning_rate_factor, parameters_by_role
from looplit.scaling.accounting import flops_per_token
from looplit.scaling.families import Family
from looplit.scaling.recipes import growth_fraction
from looplit.scaling.settle import settle

Batch = Tensor | tuple[Tensor, Tensor] | list[Tensor]

CLASS_KEY, METER_KEY, STEP_KEY = "looplit_class", "looplit_meter", "looplit_step_tokens"  # in checkpoints


class LoopedLM(L.LightningModule):
    """A language model of one family: `depth` alone gives the shape and the tuned recipe; anything can be overridden.

    A batch is a tensor of token windows (batch, tokens + 1), inputs and shifted targets overlapping, or a pair
    (inputs, targets) of shape (batch, tokens) each. Train with any Lightning Trainer; families that grow need
    `looplit.callbacks.ModelGrowth` among its callbacks.

    Built under `torch.device("meta")`, a model takes no memory and gets its weights when a Trainer sets it up, under
    `looplit_fsdp` shard by shard.

    Args:
        depth: Nominal depth ℓ: width 128·ℓ, ℓ heads, blocks split in thirds over prelude, core and coda.
        width: Size of the residual stream.
        heads: Attention heads per block; default one per 128 of width.
        split: Blocks of prelude, core and coda.
        vocabulary: Token ids of the tokenizer.
        context: Tokens per window.
        passes: K at the start of training. K = 1 takes Operator-1's hyperparameters where the family has operators.
        trained_passes: B of truncated backpropagation: gradient through the last B passes only. Default all.
        stored_cores: Cores kept in memory (untied families): leave room for growth.
        boundary: φ, before each pass.
        coda_boundary: ρ, before the coda.
        injection_scale: α, where a boundary injects.
        initial_state: "zero" (the paper's h_0 = 0) or "prelude" (the released checkpoints), see `BackboneConfig`.
        residual_multiplier: RM, of what each branch adds to the residual stream.
        output_multiplier: OM, of the logits.
        embedding_std: WTE, of the token embedding at initialisation.
        uniform_init_scale: UIS, of q, k, v, gate and up at initialisation.
        optimizer: For the block matrices: "muon", or "adamw" (no published learning rate; ours is 0.05 of Muon's).
        learning_rate: GLR of the block matrices; default the family's, scaled by (N_d8/N)^b.
        embedding_lr_multiplier: ELRM.
        head_lr_multiplier: HLRM.
        weight_decay: WD of all three groups.
        betas: Of AdamW.
        eps: Of AdamW.
        warmup_steps: WU.
        warmdown_ratio: WDR, share of the run over which the learning rate falls to zero.
        steps: Planned optimizer steps of the schedule; default those the Trainer will take. Set it where a run is to
            stop earlier and go on later.
        compile: Whether to compile each block. One graph serves all blocks and every K.
        seed: Of the initial weights; default the global seed (`seed_everything`).

    Raises:
        InputError: A value that breaks a rule of the backbone or of the recipe.
    """

    family: ClassVar[Family]

    def __init__(
        self,
        depth: int,
        width: int | None = None,
        heads: int | None = None,
        split: tuple[int, int, int] | None = None,
        vocabulary: int = 50257,
        context: int = 2048,
        passes: int | None = None,
        trained_passes: int | None = None,
        stored_cores: int | None = None,
        boundary: Boundary | None = None,
        coda_boundary: Boundary | None = None,
        injection_scale: float | None = None,
        initial_state: InitialState = "zero",
        residual_multiplier: float | None = None,
        output_multiplier: float | None = None,
        embedding_std: float | None = None,
        uniform_init_scale: float | None = None,
        optimizer: Literal["muon", "adamw"] = "muon",
        learning_rate: float | None = None,
        embedding_lr_multiplier: float | None = None,
        head_lr_multiplier: float | None = None,
        weight_decay: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        warmup_steps: int | None = None,
        warmdown_ratio: float | None = None,
        steps: int | None = None,
        compile: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        config, self.hyperparameters = settle(self.family, self.hparams)
        require(steps is None or steps >= 1, "steps", steps, "must be at least 1")
        self._seed = torch.initial_seed() if seed is None else seed
        self.backbone = Backbone(config, self._seed)
        self.meter = RunMeter()
        self._window: list[Tensor] = []
        self._window_tokens = 0
        self._step_tokens: int | None = None
        self._resumed_at: int | None = None
        self._moved: dict[str, Tensor] = {}
        self._metrics: dict[str, TokenLoss] = {}

    @property
    def config(self) -> BackboneConfig:
        """Shape and constants of the backbone."""
        return self.backbone.config

    @property
    def growth_plan(self) -> tuple[int, float] | None:
        """(K after growth, growth fraction ρ) as published for the family and depth; None if it does not grow."""
        fraction = growth_fraction(self.family, self.hparams["depth"])
        return None if fraction is None or self.family.grow_to is None else (self.family.grow_to, fraction)

    @property
    def planned_steps(self) -> int:
        """S, optimizer steps of the schedule: `steps`, else those the Trainer will take.

        Raises:
            InputError: Neither is known, or the Trainer would go on after the schedule has ended.
        """
        steps, trainer_steps = self.hparams["steps"], self.trainer.estimated_stepping_batches
        if steps is not None:
            require(
                trainer_steps <= steps, "trainer.max_steps", trainer_steps,
                f"goes beyond the {steps} planned steps of the model, after which the learning rate is zero",
            )  # fmt: skip
            return cast(int, steps)
        known = not math.isinf(trainer_steps)
        require(known, "trainer.max_steps", self.trainer.max_steps, "the schedule needs the length of the run")
        return int(trainer_steps)

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
        if isinstance(self.trainer.strategy, FSDPStrategy):
            raise InputError("trainer.strategy = FSDPStrategy: FSDP1 hides matrices from Muon; take looplit_fsdp")
        self._check_data()
        if self.backbone.head.weight.is_meta and not isinstance(self.trainer.strategy, ModelParallelStrategy):
            self.backbone.to_empty(device="cpu")
            self.initialize_weights()
        if self.hparams["compile"] and stage == "fit":
            for block in self.backbone.blocks():
                block.compile()

    def _learning_rates(self) -> dict[str, float]:
        tuned = self.hyperparameters
        return {
            "embedding": tuned.learning_rate * tuned.embedding_lr_multiplier,
            "matrix": tuned.learning_rate,
            "head": tuned.learning_rate * tuned.head_lr_multiplier,
        }

    def configure_optimizers(self) -> OptimizerLRScheduler:
        tuned, steps, rates = self.hyperparameters, self.planned_steps, self._learning_rates()
        muon = self.hparams["optimizer"] == "muon"
        optimizer = MuonAdamW(
            {
                "params": [parameter for _, parameter in named],
                "role": role,
                "algorithm": "muon" if muon and role == "matrix" else "adamw",
                "lr": rates[role],
                "weight_decay": tuned.weight_decay,
                "betas": tuned.betas,
                "eps": tuned.eps,
            }
            for role, named in parameters_by_role(self.backbone).items()
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda t: learning_rate_factor(t, steps, tuned.warmup_steps, tuned.warmdown_ratio)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_fit_start(self) -> None:
        grows = any(hasattr(callback, "growth_events") for callback in self.trainer.callbacks)  # type: ignore[attr-defined]
        if self.family.grow_to is not None and not grows:
            raise InputError(
                f"callbacks: {type(self).__name__} trains with growth; add looplit.callbacks.ModelGrowth() to them"
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
        """A resumed optimizer keeps the checkpoint's settings: other ones must not stand in the run's record."""
        rates = self._learning_rates()
        for group in self.optimizers(use_pl_optimizer=False).param_groups:  # type: ignore[union-attr]
            for name, kept, asked in (
                ("learning_rate", group["initial_lr"], rates[group["role"]]),
                ("weight_decay", group["weight_decay"], self.hyperparameters.weight_decay),
                ("betas", tuple(group["betas"]), tuple(self.hyperparameters.betas)),
                ("eps", group["eps"], self.hyperparameters.eps),
            ):
                rule = f"the checkpoint trains its {group['role']} with {kept}, and a resumed run goes on so"
                require(kept == asked, name, asked, rule)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        self.meter.batch_started()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        inputs_BT, targets_BT = inputs_and_targets(batch)
        if batch_idx == 0:  # loaders that are not LoopLit's say no largest token
            self._check_vocabulary(int(torch.maximum(inputs_BT.max(), targets_BT.max())))
        observe = self._observe_stages() if self._logs_this_step and not self._window else None
        loss = self.backbone(inputs_BT, targets_BT, observe=observe)
        self._window.append(loss.detach())
        # Counted here and not at the batch's end: callbacks that save a checkpoint there run before the module.
        tokens = inputs_BT.numel() * self.trainer.world_size
        cost = flops_per_token(self.config, self.backbone.passes, inputs_BT.shape[1])
        self.meter.batch_processed(tokens, tokens * cost)
        self._window_tokens += tokens
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        losses, self._window = self._window, []
        self.meter.step_ended()
        self._check_step_tokens(len(losses))
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

    def _check_step_tokens(self, micro_batches: int) -> None:
        """A resumed run keeps the tokens of a step, however devices, micro-batch and accumulation share them."""
        taken, self._window_tokens = self._window_tokens, 0
        if micro_batches != self.trainer.accumulate_grad_batches:
            return
        if self._step_tokens not in (None, taken) and self.global_step == self._resumed_at:
            raise InputError(
                f"accumulate_grad_batches = {micro_batches}: an optimizer step takes {taken} tokens; "
                f"the checkpoint's run took {self._step_tokens}"
            )
        self._step_tokens = taken

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
        checkpoint[STEP_KEY] = self._step_tokens

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._check_shapes(checkpoint.get("state_dict", {}))
        restore_passes(self.backbone, checkpoint)
        if METER_KEY in checkpoint:
            self.meter.load_state_dict(checkpoint[METER_KEY])
        self._step_tokens, self._resumed_at = checkpoint.get(STEP_KEY), checkpoint.get("global_step")

    def _check_shapes(self, saved: dict[str, Any]) -> None:
        """Another depth, width or family than the checkpoint's gets one line, not a list of every tensor."""
        own = self.state_dict()
        for name in saved.keys() ^ own.keys() if saved else ():
            where = "the checkpoint" if name in saved else "this model"
            raise InputError(f"ckpt_path: the checkpoint is of another model; only {where} has {name}")
        for name, value in saved.items():
            if value.shape != own[name].shape:
                shapes = f"{tuple(value.shape)} there, {tuple(own[name].shape)} here"
                raise InputError(f"ckpt_path: the checkpoint is of another model; {name} is {shapes}")


def inputs_and_targets(batch: Batch) -> tuple[Tensor, Tensor]:
    """Splits windows (batch, tokens + 1) into inputs and shifted targets; a pair is taken as it is."""
    if isinstance(batch, Tensor):
        windows = batch.long()
        return windows[:, :-1], windows[:, 1:]
    inputs_BT, targets_BT = batch
    return inputs_BT, targets_BT
