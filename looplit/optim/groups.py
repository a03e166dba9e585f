"""Parameter groups by role: the module a parameter belongs to decides, never its shape."""

from __future__ import annotations

from typing import get_args

from torch import nn

from looplit.errors import InputError
from looplit.model.block import Block, RMSNorm
from looplit.model.boundary_module import Boundary
from looplit.model.config import Role

_OUTSIDE_BLOCKS: dict[str, Role] = {"embedding": "embedding", "head": "head"}


def parameters_by_role(backbone: nn.Module) -> dict[Role, list[tuple[str, nn.Parameter]]]:
    """Every parameter in exactly one role; a role without parameters is left out.

    Roles are the token embedding, the matrices of every block, the head, and the gains of norms; a boundary says the
    role of what it learns, "boundary" for matrices and "gain" for vectors.

    Raises:
        InputError: A parameter that belongs to none of them; the line names it.
    """
    known: dict[int, Role] = {}
    for module in backbone.modules():
        if isinstance(module, Block):
            known |= {id(parameter): "matrix" for parameter in module.parameters()}
        elif isinstance(module, RMSNorm):  # after the block that it is part of
            known |= {id(parameter): "gain" for parameter in module.parameters()}
        elif isinstance(module, Boundary):
            known |= {id(parameter): module.operator.role(name) for name, parameter in module.named_parameters()}
    roles: dict[Role, list[tuple[str, nn.Parameter]]] = {role: [] for role in get_args(Role)}
    for name, parameter in backbone.named_parameters():
        roles[known.get(id(parameter)) or _outside_blocks(name)].append((name, parameter))
    return {role: named for role, named in roles.items() if named}


def _outside_blocks(name: str) -> Role:
    module = name.split(".")[0]
    if module not in _OUTSIDE_BLOCKS:
        raise InputError(f"parameter = {name!r}: belongs to no block, embedding, head, boundary or norm")
    return _OUTSIDE_BLOCKS[module]
