"""CORE during and after a training run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from looplit.callbacks.tensorboard import log_step
from looplit.errors import InputError, require_whole
from looplit.eval.core.bundle import CONTEXT
from looplit.eval.core.evaluation import (
    SEEDS,
    TOKEN_BUDGET,
    Plan,
    check_seeds,
    checked_scorer,
    evaluate,
    plan_evaluation,
    tokenizer_of,
)
from looplit.eval.core.fetch import find_bundle
from looplit.eval.core.summary import table
from looplit.eval.passes import awake_passes
from looplit.modules.meter import RunMeter


class CoreEvaluation(Callback):
    """Evaluates CORE at the end of training, and with every n-th validation if asked.

    Logs `core/metric` (mean centered accuracy), `core/loss` and `core/bits_per_byte` (of the gold answers),
    `core/metric_filtered`, and for every task `core_accuracy/TASK`, `core_centered/TASK` and `core_loss/TASK`. Works
    on any LightningModule with a `backbone`, and on one whose `forward` goes from tokens to logits. Processes share
    the work. Training goes on as if there had been no evaluation: mode, passes and random state are left as they were.

    Attributes:
        result: The latest evaluation, under the keys of the `evaluate` command's JSON; None before the first.

    Note:
        The questions are encoded once, when training starts, so that a missing bundle is noticed then. Time spent here
        is not counted as optimization time. Validations fall where the Trainer's `val_check_interval` says. A callback
        that sets K for the end of training (`RandomRecurrence`) must be named before this one.

    Args:
        bundle: Folder of the suite; default the published one, downloaded once.
        every_n_validations: Evaluate with every n-th validation; only at the end by default.
        limit: Examples of each task, the first ones; all 91,037 by default.
        seeds: Of the demonstrations.
        tasks: Labels of the tasks; all by default.
        passes: K to evaluate at, before its growth at most what an untied model has; default what the model has then.
        tokenizer: Default the one of the model's vocabulary size, gpt2 or bytes.
        token_budget: Tokens per batch and process.

    Raises:
        InputError: A value out of range; when training starts, whatever `plan_evaluation` and `evaluate` refuse.

    Example:
        >>> from looplit.callbacks import CoreEvaluation
        >>> callback = CoreEvaluation(every_n_validations=4, limit=500, seeds=[0])
    """

    def __init__(
        self,
        bundle: str | None = None,
        every_n_validations: int | None = None,
        limit: int | None = None,
        seeds: Sequence[int] = SEEDS,
        tasks: list[str] | None = None,
        passes: int | None = None,
        tokenizer: str | None = None,
        token_budget: int = TOKEN_BUDGET,
    ) -> None:
        super().__init__()
        for name, value in (("every_n_validations", every_n_validations), ("limit", limit), ("passes", passes)):
            if value is not None:
                require_whole(name, value)
        require_whole("token_budget", token_budget)
        check_seeds(seeds)
        self.bundle = bundle
        self.every_n_validations = every_n_validations
        self.limit = limit
        self.seeds = tuple(seeds)
        self.tasks = tasks
        self.passes = passes
        self.tokenizer = tokenizer
        self.token_budget = token_budget
        self.result: dict[str, Any] | None = None
        self._plan: Plan | None = None
        self._validations = 0
        self._evaluated_step = -1

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        config = getattr(getattr(pl_module, "backbone", None), "config", None)
        tokenizer = self.tokenizer
        if tokenizer is None:
            if config is None:
                raise InputError(f"tokenizer = None: {type(pl_module).__name__} names no vocabulary; say which one")
            tokenizer = tokenizer_of(config.vocabulary)
        self._plan = plan_evaluation(
            find_bundle(self.bundle),
            tokenizer,
            seeds=self.seeds,
            tasks=self.tasks,
            limit=2 if trainer.fast_dev_run else self.limit,  # type: ignore[attr-defined]
            context=min(CONTEXT, getattr(config, "context", CONTEXT)),
        )
        with trainer.precision_plugin.forward_context():
            checked_scorer(pl_module, self._plan, passes=self.passes, token_budget=self.token_budget)

    @property
    def run_results(self) -> dict[str, Any]:
        """What `result.json` takes in."""
        return {} if self.result is None else {"core": self.result}

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking or self._plan is None:
            return
        self._validations += 1
        if self.every_n_validations is not None and self._validations % self.every_n_validations == 0:
            self._evaluate(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._evaluated_step != trainer.global_step:
            self._evaluate(trainer, pl_module)
        assert self.result is not None
        rank_zero_info(f"\n{table(self.result)}")

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self._plan = None

    def state_dict(self) -> dict[str, Any]:
        return {"validations": self._validations, "evaluated_step": self._evaluated_step, "result": self.result}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._validations, self._evaluated_step = state_dict["validations"], state_dict["evaluated_step"]
        self.result = state_dict["result"]

    def _evaluate(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert self._plan is not None
        meter = getattr(pl_module, "meter", None)
        if isinstance(meter, RunMeter):
            meter.pause()
        with trainer.precision_plugin.forward_context():
            result = evaluate(pl_module, self._plan, passes=self._passes(pl_module), token_budget=self.token_budget)
        self.result, self._evaluated_step = result, trainer.global_step
        for logger in trainer.loggers:
            logger.log_metrics(_metrics(result), step=log_step(trainer))

    def _passes(self, pl_module: L.LightningModule) -> int | None:
        """K to evaluate at: not more than the cores that an untied model has trained so far."""
        if self.passes is None:
            return None
        most = awake_passes(pl_module)
        return self.passes if most is None else min(self.passes, most)


def _metrics(result: dict[str, Any]) -> dict[str, float]:
    names = {
        "core_metric": "metric",
        "core_metric_filtered": "metric_filtered",
        "core_loss": "loss",
        "core_bpb": "bits_per_byte",
    }
    metrics = {f"core/{name}": result[key] for key, name in names.items() if key in result}
    for key, folder in (("results", "core_accuracy"), ("centered_results", "core_centered"), ("losses", "core_loss")):
        metrics |= {f"{folder}/{label}": value for label, value in result[key].items()}
    return metrics
