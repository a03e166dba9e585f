"""Muon, MuonH or another algorithm for the block matrices and AdamW for the rest, as one optimizer.

One `torch.optim.Optimizer` keeps Lightning's automatic optimization: accumulation, clipping, one step per global_step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from looplit.optim.algorithms import algorithm_name, algorithm_of

_ADAMW_DEFAULTS = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8}


class MuonAdamW(torch.optim.Optimizer):
    """Each parameter group names its `algorithm`: "muon" or "muonh" (2-D matrices), "adamw", or one of your own.

    What each does is in `looplit.optim.algorithms`; one of your own is a subclass of `Algorithm` there, given as the
    class or by its import path.

    State exists from the start for every parameter, also for those that get no gradient yet: a parameter whose `grad`
    is None is not touched (no update, no decay) and its state stays zero, which is what growth needs.

    Sharded parameters (`DTensor`, as FSDP2 makes them) get the update of a single process, bit for bit: matrices of one
    shape are stacked, exchanged once so that each process holds whole matrices of its own, and exchanged back.

    Args:
        params: Parameter groups with the keys `params`, `algorithm`, `lr` and optionally `weight_decay`, `betas`,
            `eps` (the last two for AdamW). Messages name parameters that are given as (name, parameter).

    Raises:
        InputError: An unknown algorithm, Muon for a tensor that is not a matrix, MuonH with weight decay or for a
            matrix of zeros.
    """

    def __init__(self, params: Iterable[dict[str, Any]]) -> None:
        super().__init__(params, {"algorithm": "adamw", "weight_decay": 0.0, **_ADAMW_DEFAULTS, "steps_taken": 0})
        for group in self.param_groups:
            group["algorithm"] = algorithm_name("algorithm", group["algorithm"])
            algorithm = algorithm_of("algorithm", group["algorithm"])
            algorithm.check(group)
            for parameter in group["params"]:
                self.state[parameter] = algorithm.initial_state(parameter)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            live = [parameter for parameter in group["params"] if parameter.grad is not None]
            if live:
                algorithm_of("algorithm", group["algorithm"]).update(live, self.state, group)
            group["steps_taken"] += 1
        return loss
