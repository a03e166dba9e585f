"""Sharded training: `strategy: looplit_fsdp`, registered with Lightning on import."""

from lightning.pytorch.strategies import StrategyRegistry

from looplit.strategies.choice import resolve_strategy, shards
from looplit.strategies.fsdp import LoopLitFSDP
from looplit.strategies.sharding import shard

StrategyRegistry.register("looplit_fsdp", LoopLitFSDP, description="FSDP2 for looped and growing models", override=True)

__all__ = ["LoopLitFSDP", "resolve_strategy", "shard", "shards"]
