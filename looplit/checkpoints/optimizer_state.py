"""Optimizer state by the names of parameters, and by their numbers as `torch.optim` keeps it."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer


def numbered(named: dict[str, Any]) -> dict[str, Any]:
    """State by name as an `Optimizer.state_dict`: numbers count through the groups in order."""
    numbers: dict[str, int] = {}
    for group in named["param_groups"]:
        for name in group["params"]:
            numbers[name] = len(numbers)
    return {
        "state": {numbers[name]: state for name, state in named["state"].items()},
        "param_groups": [{**g, "params": [numbers[name] for name in g["params"]]} for g in named["param_groups"]],
    }


def named(state: dict[str, Any], optimizer: Optimizer, model: nn.Module) -> dict[str, Any]:
    """An `Optimizer.state_dict` by the names that `model` gives to the parameters of `optimizer`, group by group."""
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    names: dict[int, str] = {}
    for saved, group in zip(state["param_groups"], optimizer.param_groups, strict=True):
        numbers_and_parameters = zip(saved["params"], group["params"], strict=True)
        names |= {number: name_of[id(parameter)] for number, parameter in numbers_and_parameters}
    return {
        "state": {names[number]: entries for number, entries in state["state"].items()},
        "param_groups": [{**g, "params": [names[number] for number in g["params"]]} for g in state["param_groups"]],
    }
