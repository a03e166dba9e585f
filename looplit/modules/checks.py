"""What a Trainer, its data and its callbacks must be for a model to train right; asked before the first step."""

from __future__ import annotations

import itertools
from typing import Any

import lightning as L
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from looplit.errors import InputError, require
from looplit.model.backbone import Backbone
from looplit.model.config import BackboneConfig


def passes_ahead(trainer: L.Trainer, backbone: Backbone) -> list[int]:
    """K now, one more if it grows (whatever has no gradient then has none at a higher K), and those drawn."""
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    grown = [backbone.passes + 1 for callback in callbacks if hasattr(callback, "growth_events")]
    drawn = [callback.random_passes.choices for callback in callbacks if hasattr(callback, "random_passes")]
    return [backbone.passes, *grown, *itertools.chain(*drawn)]


def check_strategy(trainer: L.Trainer, backbone: Backbone, stage: str) -> None:
    """Refuses what hides matrices from Muon, and what waits for gradients that never come.

    Raises:
        InputError: FSDP1, or plain DDP where a step leaves parameters without gradient.
    """
    strategy = trainer.strategy
    if isinstance(strategy, FSDPStrategy):
        raise InputError("trainer.strategy = FSDPStrategy: FSDP1 hides matrices from Muon; take looplit_fsdp")
    waits = isinstance(strategy, DDPStrategy) and not strategy._ddp_kwargs.get("find_unused_parameters")
    if stage == "fit" and waits and any(map(backbone.config.leaves_idle, passes_ahead(trainer, backbone))):
        raise InputError(
            f"trainer.strategy = {type(strategy).__name__}: plain DDP waits for every gradient, and some cores or "
            "the prelude get none here; take ddp_find_unused_parameters_true or looplit_fsdp"
        )


def check_data(data: Any, config: BackboneConfig) -> None:
    """Says whether the model can read what a data module holds, as far as that says it.

    Raises:
        InputError: Token ids beyond the vocabulary, or windows longer than the context.
    """
    check_vocabulary(getattr(data, "largest_token", 0), config)
    context = getattr(data, "context", None)
    if context is not None:
        require(context <= config.context, "context", config.context, f"the data's windows have {context} tokens")


def check_vocabulary(largest: int, config: BackboneConfig) -> None:
    """Refuses token ids that the model has no row for."""
    rule = f"the data holds token ids up to {largest}"
    require(largest < config.vocabulary, "vocabulary", config.vocabulary, rule)


def check_growth_callback(trainer: L.Trainer, growth_plan: tuple[int, float] | None, name: str) -> None:
    """Refuses to train a family that grows without the callback that grows it."""
    grows = any(hasattr(callback, "growth_events") for callback in trainer.callbacks)  # type: ignore[attr-defined]
    if growth_plan is not None and not grows:
        raise InputError(f"callbacks: {name} trains with growth; add looplit.callbacks.ModelGrowth() to them")


def warn_of_cut_prelude(trainer: L.Trainer, backbone: Backbone) -> None:
    """Says in one line that prelude and embedding will not train, where no gradient reaches them."""
    if any(map(backbone.config.cuts_prelude, passes_ahead(trainer, backbone))):
        rank_zero_info(
            "warning: no boundary reads the prelude, so the untrained passes before the last "
            f"{backbone.config.trained_passes} leave prelude and embedding without gradient: they stay as they start"
        )
