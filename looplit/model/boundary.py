"""Boundary operators between the stages, one class each: φ before a pass, ρ before the coda.

The growth study's BO(h, e) = RMSNorm(h) + α·e and its parts (Eq. 3), and W[e; h]. An operator says everything that the
rest of LoopLit asks of it; one of your own extends `BoundaryOperator` and is named by its import path. No torch at
import: recipes and plans ask too.

Shape suffixes: B batch, T tokens, D width.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from looplit.errors import require, require_whole
from looplit.parts import part_class, part_name

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from looplit.model.config import InitialState, Role


class BoundaryOperator:
    """Mixes the state h with the prelude's output e. A subclass gives its equation as `apply`.

    Args:
        width: D.
        injection_scale: α, for an operator that injects by it.
        initial_state: h_0 of the first pass, see `BackboneConfig`.

    Attributes:
        injects: Whether it adds α·e, so that α is its constant.
        reads_prelude: Whether it reads e.
        mixes_first: Whether it is applied before the first pass too, to h_0 = 0 or e; else that pass reads α·e, or
            under "prelude", or where the operator does not inject, e as it is.
        may_precede_coda: Whether it may stand before the coda.
        tuned_for: The one module class whose recipe has settings for what it learns; None where every recipe's do.
    """

    injects: ClassVar[bool] = False
    reads_prelude: ClassVar[bool] = True
    mixes_first: ClassVar[bool] = True
    may_precede_coda: ClassVar[bool] = True
    tuned_for: ClassVar[str | None] = None

    def __init__(self, width: int, injection_scale: float = 0.0, initial_state: InitialState = "zero") -> None:
        self.width = width
        self.injection_scale = injection_scale
        self.initial_state = initial_state

    def apply(self, h_BTD: Tensor, e_BTD: Tensor, **parameters: Tensor) -> Tensor:
        """What the next stage reads, in the precision of the residual stream.

        Args:
            h_BTD: State after the pass before; before the first h_0.
            e_BTD: Output of the prelude.
            **parameters: By the names of `shapes`. Products run in the `compute_dtype` of the matrix.
        """
        raise NotImplementedError(f"{type(self).__name__} gives no equation: it must define apply(h, e)")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the learned parameters by name: matrices (outputs, inputs), and vectors. None by default."""
        return {}

    def start(self, name: str, zeros: Tensor, generator: Generator) -> Tensor:
        """The initial value of the parameter `name`; by default ones, and ±inputs^-0.5 uniform for a matrix.

        Args:
            name: Of the parameter.
            zeros: A tensor of its shape, fp32, on the CPU, to fill.
            generator: For what is drawn; seeded by the run and the parameter's name.
        """
        if zeros.ndim == 1:
            return zeros.fill_(1.0)
        bound = zeros.shape[1] ** -0.5
        return zeros.uniform_(-bound, bound, generator=generator)

    def first(self, e_BTD: Tensor, **parameters: Tensor) -> Tensor:
        """What the first pass reads, see `mixes_first`. With h_0 = 0 RMSNorm(h_0) = 0, so that α·e is BO(h_0, e)."""
        if self.mixes_first:
            h_BTD = e_BTD if self.initial_state == "prelude" else e_BTD.new_zeros(e_BTD.shape)
            return self.apply(h_BTD, e_BTD, **parameters)
        return self.injection_scale * e_BTD if self.injects and self.initial_state == "zero" else e_BTD

    def role(self, name: str) -> Role:
        """How the parameter `name` trains: a matrix as the role "boundary", a vector as the gains of norms do."""
        return "boundary" if len(self.shapes()[name]) == 2 else "gain"

    @property
    def trains_prelude(self) -> bool:
        """Whether the gradient of what it gives reaches e, and with it prelude and embedding."""
        return self.reads_prelude

    def applications(self, passes: int) -> int:
        """How often it is applied before `passes` passes."""
        return passes if self.mixes_first else passes - 1

    def matrices(self) -> list[tuple[int, int]]:
        """Shapes of its matrices."""
        return [(shape[0], shape[1]) for shape in self.shapes().values() if len(shape) == 2]

    def matrix_parameters(self) -> int:
        """Entries of its matrices."""
        return sum(rows * columns for rows, columns in self.matrices())

    def vector_parameters(self) -> int:
        """Entries of its vectors."""
        return sum(math.prod(shape) for shape in self.shapes().values() if len(shape) == 1)

    def flops_per_token(self) -> int:
        """FLOPs of one application in the forward: 2 per entry of a matrix; what is elementwise is left out."""
        return 2 * self.matrix_parameters()


class Identity(BoundaryOperator):
    """h. A pass reads what the pass before gave."""

    reads_prelude = False
    mixes_first = False

    def apply(self, h_BTD: Tensor, e_BTD: Tensor, **parameters: Tensor) -> Tensor:
        return h_BTD


class Norm(BoundaryOperator):
    """RMSNorm(h)."""

    reads_prelude = False
    mixes_first = False

    def apply(self, h_BTD: Tensor, e_BTD: Tensor, **parameters: Tensor) -> Tensor:
        from looplit.model.precision import rms_norm

        return rms_norm(h_BTD)


class Inject(BoundaryOperator):
    """h + α·e."""

    injects = True
    mixes_first = False

    def apply(self, h_BTD: Tensor, e_BTD: Tensor, **parameters: Tensor) -> Tensor:
        return h_BTD + self.injection_scale * e_BTD


class NormInject(BoundaryOperator):
    """RMSNorm(h) + α·e, the growth study's operator BO."""

    injects = True
    mixes_first = False

    def apply(self, h_BTD: Tensor, e_BTD: Tensor, **parameters: Tensor) -> Tensor:
        from looplit.model.precision import rms_norm

        return rms_norm(h_BTD) + self.injection_scale * e_BTD


class Linear(BoundaryOperator):
    """W[e; h], W of shape (D, 2·D) and the same for all passes; it starts as [I | 0] (truncation study, after Huginn).

    The product runs in the precision of the weights, as a branch does; its result joins the residual stream in the
    precision of that.
    """

    may_precede_coda = False
    tuned_for = "TruncatedLoop"

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"weight": (self.width, 2 * self.width)}

    def start(self, name: str, zeros: Tensor, generator: Generator) -> Tensor:
        return zeros.fill_diagonal_(1.0)

    def apply(self, h_BTD: Tensor, e_BTD: Tensor, **parameters: Tensor) -> Tensor:
        import torch

        from looplit.model.precision import compute_dtype

        weight = parameters["weight"]
        both = torch.cat((e_BTD, h_BTD), dim=-1).to(compute_dtype(weight))
        return torch.nn.functional.linear(both, weight).to(h_BTD.dtype)


BOUNDARIES: dict[str, type[BoundaryOperator]] = {
    "identity": Identity,
    "norm": Norm,
    "inject": Inject,
    "norm_inject": NormInject,
    "linear": Linear,
}


def boundary_class(argument: str, value: str | type[BoundaryOperator]) -> type[BoundaryOperator]:
    """The operator that a short name, an import path or a class stands for.

    Raises:
        InputError: None.
    """
    return part_class(argument, value, BOUNDARIES, BoundaryOperator)


def boundary_name(argument: str, value: str | type[BoundaryOperator]) -> str:
    """Its short name or import path, as configurations and checkpoints keep it.

    Raises:
        InputError: It stands for no operator, or for one without an equation.
    """
    operator = boundary_class(argument, value)
    defined = operator.apply is not BoundaryOperator.apply
    require(defined, argument, value, "the class must define apply(h, e), its equation")
    return part_name(argument, value, BOUNDARIES, BoundaryOperator)


def check_parameters(argument: str, operator: BoundaryOperator) -> None:
    """Refuses parameters that are neither matrices nor vectors, and names that are none."""
    for name, shape in operator.shapes().items():
        where = f"{argument}.{name}"
        require(name.isidentifier(), where, shape, "a parameter's name is a Python name")
        require(len(shape) in (1, 2), where, shape, "a boundary's parameters are matrices and vectors")
        for size in shape:
            require_whole(where, size, 1)
