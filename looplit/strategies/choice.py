"""Which strategy a name means: FSDP is FSDP2 here."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.strategies import FSDPStrategy, Strategy, StrategyRegistry
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from looplit.errors import InputError, require
from looplit.scaling.strategy import FSDP1_REASON, SHARDED_CLASS, SHARDED_STRATEGY


def resolve_strategy(strategy: Any) -> Any:
    """The strategy to use in place of the one asked for: "fsdp" means `looplit_fsdp`, said in one line.

    Args:
        strategy: A name, an object, or a mapping with `class_path`, as a config file has it.

    Raises:
        InputError: Lightning's FSDPStrategy (FSDP1) by class path, by another of its names, or as an object; a name
            that is not a strategy's.
    """
    if strategy == "fsdp":
        rank_zero_info(f"strategy fsdp: using {SHARDED_STRATEGY}; {FSDP1_REASON.partition(';')[0]}")
        return SHARDED_STRATEGY
    if isinstance(strategy, Strategy):
        name = type(strategy).__name__
    else:
        name = strategy if isinstance(strategy, str) else strategy.get("class_path", "")
    names = {FSDPStrategy.__name__, *FSDPStrategy.get_registered_strategies()}
    if isinstance(strategy, FSDPStrategy) or name.rpartition(".")[2] in names:
        raise InputError(f"trainer.strategy = {name!r}: {FSDP1_REASON}")
    known = ("auto", *StrategyRegistry.available_strategies())
    rule = f"there is no such strategy; take auto, ddp, {SHARDED_STRATEGY} or another of Lightning's"
    require(not isinstance(strategy, str) or strategy in known, "trainer.strategy", strategy, rule)
    return strategy


def shards(strategy: Any) -> bool:
    """Whether a resolved strategy, as a config file has it, is `looplit_fsdp`.

    >>> shards("ddp"), shards("looplit_fsdp"), shards({"class_path": "looplit.strategies.LoopLitFSDP"})
    (False, True, True)
    """
    name = strategy if isinstance(strategy, str) else strategy.get("class_path", "")
    return name == SHARDED_STRATEGY or name.rpartition(".")[2] == SHARDED_CLASS
