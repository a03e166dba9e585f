"""Parameter groups by role: the module a parameter belongs to decides, never its shape."""

from __future__ import annotations

from typing import get_args

from torch import nn

from looplit.errors import InputError
from looplit.model.block import Block, RMSNorm
from looplit.recipes.training import Role

_OUTSIDE_BLOCKS: dict[str, Role] = {"embedding": "embedding", "head": "head", "boundary": "boundary"}


def parameters_by_role(backbone: nn.Module) -> dict[Role, list[tuple[str, nn.Parameter]]]:
    """Every parameter in exactly one role; a role without parameters is left out.

    Roles are the token embedding, the matrices of every block, the head, a linear boundary, and the gains of norms.

    Raises:
        InputError: A parameter that belongs to none of them; the line names it.
    """
    gains = {id(p) for module in backbone.modules() if isinstance(module, RMSNorm) for p in module.parameters()}
    in_blocks = {id(p) for module in backbone.modules() if isinstance(module, Block) for p in module.parameters()}
    roles: dict[Role, list[tuple[str, nn.Parameter]]] = {role: [] for role in get_args(Role)}
    for name, parameter in backbone.named_parameters():
        role = "gain" if id(parameter) in gains else "matrix" if id(parameter) in in_blocks else _outside_blocks(name)
        roles[role].append((name, parameter))
    return {role: named for role, named in roles.items() if named}


def _outside_blocks(name: str) -> Role:
    module = name.split(".")[0]
    if module not in _OUTSIDE_BLOCKS:
        raise InputError(f"parameter = {name!r}: belongs to no block, embedding, head, boundary or norm")
    return _OUTSIDE_BLOCKS[module]
