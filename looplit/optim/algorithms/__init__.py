"""The algorithms of `MuonAdamW`, one class each. No torch at import: recipes and plans ask them too."""

from __future__ import annotations

from looplit.errors import require
from looplit.optim.algorithms.adamw import AdamW
from looplit.optim.algorithms.base import Algorithm
from looplit.optim.algorithms.collectives import Collective, Matrices
from looplit.optim.algorithms.muon import Muon
from looplit.optim.algorithms.muonh import MuonH
from looplit.parts import part_class, part_name

__all__ = ["ALGORITHMS", "Algorithm", "Collective", "Matrices", "algorithm_name", "algorithm_of"]

ALGORITHMS: dict[str, type[Algorithm]] = {"muon": Muon, "muonh": MuonH, "adamw": AdamW}

_REQUIRED = ("initial_state", "update", "bytes_per_entry")


def algorithm_of(argument: str, value: str | type[Algorithm]) -> Algorithm:
    """The algorithm that a short name, an import path or a class stands for.

    Raises:
        InputError: None.
    """
    return part_class(argument, value, ALGORITHMS, Algorithm)()


def algorithm_name(argument: str, value: str | type[Algorithm]) -> str:
    """Its short name or import path, as parameter groups, checkpoints and records keep it.

    Raises:
        InputError: It stands for no algorithm, or for one that leaves out what every algorithm must say.
    """
    found = part_class(argument, value, ALGORITHMS, Algorithm)
    for method in _REQUIRED:
        defined = getattr(found, method) is not getattr(Algorithm, method)
        require(defined, argument, value, f"the class must define {method}")
    return part_name(argument, value, ALGORITHMS, Algorithm)
