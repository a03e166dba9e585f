"""One LightningModule per architecture family (growth study, section 3)."""

from __future__ import annotations

from looplit.modules.base import LoopedLM
from looplit.scaling.families import FAMILIES


class Vanilla(LoopedLM):
    """Plain pre-norm transformer: one stack, no boundary operator. The baseline of every comparison."""

    family = FAMILIES["vanilla"]


class DeepVanilla(LoopedLM):
    """Plain transformer of P+2C+D blocks: Untied-2 without the boundary operator."""

    family = FAMILIES["deep_vanilla"]


class DeepVanillaGrow(LoopedLM):
    """Deep Vanilla whose core is copied mid-run, 2 → 4 passes: growth without the boundary operator."""

    family = FAMILIES["deep_vanilla_grow"]


class Operator1(LoopedLM):
    """Vanilla with the boundary operator at K = 1: the same parameters and FLOPs."""

    family = FAMILIES["operator_1"]


class Loop(LoopedLM):
    """Tied core applied K times (default 2) with the boundary operator before each pass and before the coda."""

    family = FAMILIES["loop_2"]


class LoopGrow(LoopedLM):
    """Loop-2 that grows to 4 passes mid-run; stores as many blocks as Vanilla."""

    family = FAMILIES["loop_grow"]


class Untied(LoopedLM):
    """K cores (default 2), one per pass: Loop's computation graph and FLOPs with weights of their own."""

    family = FAMILIES["untied_2"]


class UntiedGrow(LoopedLM):
    """Untied-2 whose cores are copied mid-run, 2 → 4 passes, and then train separately."""

    family = FAMILIES["untied_grow"]
