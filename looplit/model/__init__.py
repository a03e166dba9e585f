"""The prelude-core-coda backbone in pure torch; it knows nothing of Lightning.

Names load on first use: `looplit.model.config` is read without torch by recipes and accounting.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOME = {
    "Backbone": "backbone",
    "BackboneConfig": "config",
    "Block": "block",
    "BoundaryOperator": "boundary",
    "Growable": "growth",
    "Site": "backbone",
    "grow": "growth",
    "linear_cross_entropy": "loss",
}

__all__ = list(_HOME)

if TYPE_CHECKING:
    from looplit.model.backbone import Backbone as Backbone
    from looplit.model.backbone import Site as Site
    from looplit.model.block import Block as Block
    from looplit.model.boundary import BoundaryOperator as BoundaryOperator
    from looplit.model.config import BackboneConfig as BackboneConfig
    from looplit.model.growth import Growable as Growable
    from looplit.model.growth import grow as grow
    from looplit.model.loss import linear_cross_entropy as linear_cross_entropy


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"looplit.model.{_HOME[name]}"), name)
    raise AttributeError(f"module 'looplit.model' has no attribute {name!r}")
