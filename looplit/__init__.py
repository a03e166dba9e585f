"""LoopLit: train, grow, measure and compare looped transformers, and turn the runs into scaling laws.

Public names load on first use, so that `looplit.scaling` needs neither torch nor Lightning.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Backbone": "looplit.model.backbone",
    "BackboneConfig": "looplit.model.config",
    "FineWeb": "looplit.data",
    "FineWebEdu": "looplit.data",
    "InputError": "looplit.errors",
    "MuonAdamW": "looplit.optim",
    "StandardLibraryText": "looplit.data",
    "TextFolder": "looplit.data",
    "TokenData": "looplit.data",
    "grow": "looplit.model.growth",
    "load": "looplit.modules",
    "LoopedLM": "looplit.modules",
    "Vanilla": "looplit.modules",
    "DeepVanilla": "looplit.modules",
    "DeepVanillaGrow": "looplit.modules",
    "Operator1": "looplit.modules",
    "Loop": "looplit.modules",
    "TruncatedLoop": "looplit.modules",
    "LoopGrow": "looplit.modules",
    "Untied": "looplit.modules",
    "UntiedGrow": "looplit.modules",
}
_SUBPACKAGES = ("callbacks", "data", "eval", "model", "modules", "optim", "plots", "scaling", "strategies")

# `eval` stays out of a star import, where it would hide the builtin.
__all__ = ["__version__", *_HOME, *(name for name in _SUBPACKAGES if name != "eval")]

if TYPE_CHECKING:
    from looplit.data import FineWeb as FineWeb
    from looplit.data import FineWebEdu as FineWebEdu
    from looplit.data import StandardLibraryText as StandardLibraryText
    from looplit.data import TextFolder as TextFolder
    from looplit.data import TokenData as TokenData
    from looplit.errors import InputError as InputError
    from looplit.model.backbone import Backbone as Backbone
    from looplit.model.config import BackboneConfig as BackboneConfig
    from looplit.model.growth import grow as grow
    from looplit.modules import DeepVanilla as DeepVanilla
    from looplit.modules import DeepVanillaGrow as DeepVanillaGrow
    from looplit.modules import Loop as Loop
    from looplit.modules import LoopedLM as LoopedLM
    from looplit.modules import LoopGrow as LoopGrow
    from looplit.modules import Operator1 as Operator1
    from looplit.modules import TruncatedLoop as TruncatedLoop
    from looplit.modules import Untied as Untied
    from looplit.modules import UntiedGrow as UntiedGrow
    from looplit.modules import Vanilla as Vanilla
    from looplit.modules import load as load
    from looplit.optim import MuonAdamW as MuonAdamW


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in _SUBPACKAGES:
        return importlib.import_module(f"looplit.{name}")
    raise AttributeError(f"module 'looplit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "eval"])
