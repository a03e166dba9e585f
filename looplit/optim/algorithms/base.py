"""What an optimizer algorithm says of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from looplit.errors import require
from looplit.optim.algorithms.collectives import Collective, Matrices

if TYPE_CHECKING:
    from torch import Tensor

Group = dict[str, Any]  # of `MuonAdamW`: params, algorithm, lr, weight_decay, betas, eps, steps_taken


class Algorithm:
    """How `MuonAdamW` updates the parameters of a group. What it keeps of a parameter stands in the optimizer's state.

    Attributes:
        learning_rate_share: Its matrix learning rate in the growth study's recipe, as a share of Muon's there. None
            where there is no such number: whoever takes the algorithm then says `learning_rate`. Embedding and head
            keep their rates either way.
        keeps_norm: Whether every matrix stays at the norm it starts with, so that one of zeros cannot train.
    """

    learning_rate_share: ClassVar[float | None] = None
    keeps_norm: ClassVar[bool] = False

    def check(self, group: Group) -> None:
        """Refuses the settings of a group.

        Raises:
            InputError: A negative learning rate, decay or eps.
        """
        for name in ("lr", "weight_decay", "eps"):
            require(group[name] >= 0, name, group[name], "must be at least 0")

    def initial_state(self, parameter: Tensor) -> dict[str, Tensor]:
        """What is kept of a parameter, before its first gradient. Zeros, so that cores that wake up start afresh."""
        raise NotImplementedError

    def update(self, parameters: list[Tensor], state: Mapping[Tensor, dict[str, Tensor]], group: Group) -> None:
        """Updates parameters and state in place, for the step `group["steps_taken"]`, from 0.

        Args:
            parameters: At least one, each with a gradient. Those of a sharded model are `DTensor`s:
                `looplit.optim.exchange.local` gives a process's part, enough for what works entry by entry, and
                `Exchange` whole matrices.
            state: Of every parameter, as `initial_state` made it.
            group: Settings.
        """
        raise NotImplementedError

    def bytes_per_entry(self, parameter_bytes: int) -> int:
        """Bytes kept per entry of a matrix, for estimates of memory; what is per row or matrix is left out.

        Args:
            parameter_bytes: Of an entry of the parameter itself: 4, or 2 under "bf16-true".
        """
        raise NotImplementedError

    def collectives(self, matrices: Sequence[Matrices], processes: int) -> list[Collective]:
        """What the processes that a model is split over exchange in one step; by default nothing."""
        return []


def check_matrices(group: Group) -> None:
    """Refuses parameters that are not matrices."""
    for parameter in group["params"]:
        require(parameter.ndim == 2, "shape", tuple(parameter.shape), "Muon takes matrices only")
