"""Parameter groups by role: the module a parameter belongs to decides, never its shape."""

from __future__ import annotations

from typing import Any, Literal

from torch import nn

from looplit.errors import require
from looplit.model.block import Block

Role = Literal["embedding", "matrix", "head"]
ROLES: tuple[Role, ...] = ("embedding", "matrix", "head")


def parameters_by_role(backbone: nn.Module) -> dict[Role, list[tuple[str, nn.Parameter]]]:
    """Every parameter in exactly one role: the token embedding, the head, and the matrices of every block.

    Raises:
        InputError: A parameter that belongs to none of them; the line names it.
    """
    roles: dict[Role, list[tuple[str, nn.Parameter]]] = {role: [] for role in ROLES}
    in_blocks = {id(p) for module in backbone.modules() if isinstance(module, Block) for p in module.parameters()}
    for name, parameter in backbone.named_parameters():
        if id(parameter) in in_blocks:
            roles["matrix"].append((name, parameter))
        else:
            role: Any = name.split(".")[0]
            require(role in ("embedding", "head"), "parameter", name, "belongs to no block, embedding or head")
            roles[role].append((name, parameter))
    return roles
