"""The shape of a backbone as plain numbers. No torch here: recipes and accounting read it too."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from looplit.errors import require, require_whole
from looplit.model.boundary import BoundaryOperator, boundary_class, boundary_name, check_parameters

Boundary = str | type[BoundaryOperator]  # a key of `looplit.model.boundary.BOUNDARIES`, an import path, or the class
Role = Literal["embedding", "matrix", "head", "boundary", "gain"]  # of a parameter: how it trains
InitialState = Literal["zero", "prelude"]
MLPKind = Literal["swiglu", "squared_relu"]
Unit = Literal["block", "pass"]  # of activation checkpointing; the prelude and the coda are units as a pass is

HEAD_DIM = 128  # width per head, and width per block of nominal depth, in the growth study
VOCABULARY = 50257  # of GPT-2's tokenizer
CONTEXT = 2048
VOCABULARY_MULTIPLE = 64
LOGITS_PER_CHUNK = 2**27  # of the loss: 512 MiB of fp32


def mlp_hidden(width: int) -> int:
    """Hidden width of the SwiGLU MLP: 256·ceil(floor(8·width/3)/256).

    >>> mlp_hidden(1024)
    2816
    """
    return 256 * math.ceil((8 * width // 3) / 256)


def padded_vocabulary(vocabulary: int) -> int:
    """Rows of the embedding and head matrices: the next multiple of 64.

    >>> padded_vocabulary(50257), padded_vocabulary(257)
    (50304, 320)
    """
    return VOCABULARY_MULTIPLE * math.ceil(vocabulary / VOCABULARY_MULTIPLE)


def loss_chunk_tokens(vocabulary: int) -> int:
    """Tokens whose logits the loss holds at once.

    >>> loss_chunk_tokens(50257)
    2670
    """
    return max(256, LOGITS_PER_CHUNK // vocabulary)


def split_depth(depth: int) -> tuple[int, int, int]:
    """Prelude, core and coda blocks of a nominal depth: thirds, remainder first to the core, then to the coda.

    >>> split_depth(8), split_depth(10), split_depth(4)
    ((2, 3, 3), (3, 4, 3), (1, 2, 1))
    """
    require(depth >= 3, "depth", depth, "a nominal depth has at least 3 blocks, one per stage")
    third, rest = divmod(depth, 3)
    return third, third + (rest >= 1), third + (rest == 2)


@dataclass(frozen=True)
class BackboneConfig:
    """Shape and constants of a prelude-core-coda backbone (growth study, section 3, Eq. 2 and 3).

    One class covers every family: a plain transformer is `passes=1` with identity boundaries, a looped one has a
    tied core, an untied one stores a core per pass, and a growing untied one stores more cores than it starts with.

    Args:
        width: Size of the residual stream, a multiple of `heads`.
        heads: Attention heads per block; `width / heads` is even (rotary embedding pairs dimensions).
        prelude: Blocks before the core, at least 0.
        core: Blocks of one core, at least 1.
        coda: Blocks after the core, at least 0.
        passes: K, the times the core is applied at the start of training, at least 1.
        tied: Whether all passes share one core.
        stored_cores: Cores kept in memory. 1 if tied; if untied, at least `passes` (more leave room for growth).
        boundary: φ, applied to the state before each pass: identity, norm, inject, norm_inject, linear, or a subclass
            of `BoundaryOperator`, which the config keeps as its import path. "linear" is W[e; h] with one learned
            matrix W for all passes (truncation study); it starts as [I | 0], so that every pass reads e at first.
        coda_boundary: ρ, applied to the state before the coda; not "linear".
        injection_scale: α of BO(h, e) = RMSNorm(h) + α·e. Only where a boundary injects; then 1 by default.
        trained_passes: B of truncated backpropagation (truncation study): the gradient goes through the last B passes
            only, the first run without a graph. All passes by default; at most the initial K.
        initial_state: "zero" is the paper's h_0 = 0, so that under an injecting φ the first pass reads α·e;
            "prelude" is the released checkpoints' first pass, which reads e. They differ only if α ≠ 1, and under a φ
            that mixes that h_0 (0 or e) before the first pass too, as the linear one does.
        residual_multiplier: RM, scales what each branch adds to the residual stream.
        output_multiplier: OM, scales the logits.
        vocabulary: Token ids; the matrices are padded to the next multiple of 64.
        context: Longest sequence in tokens.
        embedding_std: WTE, standard deviation of the token embedding at initialisation.
        uniform_init_scale: UIS; q, k, v, gate and up start uniform in ±UIS·width^-0.5.
        branch_init_scale: The same for what ends a branch, out and down: uniform in ±scale·inputs^-0.5; 0 is zero.
        head_std: Standard deviation of the head at initialisation; 0 is zero.
        mlp: "swiglu", down(silu(gate(x))·up(x)), or "squared_relu", down(relu(up(x))²) with 4·width hidden units.
        gains: Whether norms have learned gains: two per block and those after the embedding, after each pass (one for
            all passes) and before the head. The norms of q and k never have.
        pass_norm: Whether the state is normalised after every pass.
        soft_cap: c of the logits' soft cap, c·tanh(z/c); none by default.

    Raises:
        InputError: A value that breaks one of the rules above.
    """

    width: int
    heads: int
    prelude: int
    core: int
    coda: int
    passes: int = 1
    tied: bool = True
    stored_cores: int | None = None
    trained_passes: int | None = None
    boundary: Boundary = "norm_inject"
    coda_boundary: Boundary = "norm_inject"
    injection_scale: float | None = None
    initial_state: InitialState = "zero"
    residual_multiplier: float = 1.0
    output_multiplier: float = 1.0
    vocabulary: int = VOCABULARY
    context: int = CONTEXT
    embedding_std: float = 0.02
    uniform_init_scale: float = 0.25
    branch_init_scale: float = 0.0
    head_std: float = 0.0
    mlp: MLPKind = "swiglu"
    gains: bool = False
    pass_norm: bool = False
    soft_cap: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("width", 1), ("heads", 1), ("prelude", 0), ("core", 1), ("coda", 0), ("passes", 1),
                            ("vocabulary", 1), ("context", 1)):  # fmt: skip
            require_whole(name, getattr(self, name), least)
        require(self.width % self.heads == 0, "heads", self.heads, f"must divide the width {self.width}")
        require(
            self.head_dim % 2 == 0, "heads", self.heads,
            f"gives heads of {self.head_dim} dimensions; rotary embedding needs an even number",
        )  # fmt: skip
        for name, kinds in (("initial_state", InitialState), ("mlp", MLPKind)):
            value = getattr(self, name)
            require(value in get_args(kinds), name, value, f"must be one of {', '.join(get_args(kinds))}")
        for name in ("residual_multiplier", "output_multiplier", "embedding_std", "uniform_init_scale",
                     "branch_init_scale", "head_std"):  # fmt: skip
            value = getattr(self, name)
            number = isinstance(value, int | float) and math.isfinite(value)
            require(number and value >= 0, name, value, "must be a finite number, at least 0")
        cap = self.soft_cap
        require(cap is None or 0 < cap < math.inf, "soft_cap", cap, "must be a finite number above 0, or None")
        trained = self.trained_passes
        if trained is not None:
            require_whole("trained_passes", trained, 0)
        require(
            trained is None or 1 <= trained <= self.passes, "trained_passes", trained,
            f"the gradient goes through 1 to all {self.passes} passes",
        )  # fmt: skip
        self._resolve_cores()
        self._resolve_boundaries()
        self._resolve_injection()

    def _resolve_cores(self) -> None:
        stored = self.stored_cores
        if self.tied:
            require(stored in (None, 1), "stored_cores", stored, "a tied core is stored once")
            stored = 1
        elif stored is None:
            stored = self.passes
        require(
            self.tied or self.passes <= stored, "passes", self.passes,
            f"an untied model can run at most its {stored} stored cores",
        )  # fmt: skip
        object.__setattr__(self, "stored_cores", stored)

    def _resolve_boundaries(self) -> None:
        for name in ("boundary", "coda_boundary"):
            object.__setattr__(self, name, boundary_name(name, getattr(self, name)))
        require(
            boundary_class("coda_boundary", self.coda_boundary).may_precede_coda, "coda_boundary", self.coda_boundary,
            "mixes before each pass; the coda reads the state",
        )  # fmt: skip
        for name, operator in self.operators.items():
            check_parameters(name, operator)

    def _resolve_injection(self) -> None:
        scale = self.injection_scale
        if scale is None:
            object.__setattr__(self, "injection_scale", 1.0 if self.injects else 0.0)
            return
        require(math.isfinite(scale), "injection_scale", scale, "must be a finite number")
        require(
            self.injects or scale == 0, "injection_scale", scale,
            f"nothing is injected by α under boundary {self.boundary} and coda_boundary {self.coda_boundary}",
        )  # fmt: skip

    @property
    def injects(self) -> bool:
        """Whether a boundary adds α·e; a linear one mixes e in with weights of its own."""
        return any(boundary_class(name, getattr(self, name)).injects for name in ("boundary", "coda_boundary"))

    @property
    def operators(self) -> dict[str, BoundaryOperator]:
        """φ and ρ as "boundary" and "coda_boundary", the names of their modules in the backbone."""
        constants: tuple[float, InitialState] = (self.injection_scale or 0.0, self.initial_state)
        return {
            name: boundary_class(name, getattr(self, name))(self.width, *constants)
            for name in ("boundary", "coda_boundary")
        }

    @property
    def pass_operator(self) -> BoundaryOperator:
        """φ, applied before each pass."""
        return self.operators["boundary"]

    @property
    def coda_operator(self) -> BoundaryOperator:
        """ρ, applied before the coda."""
        return self.operators["coda_boundary"]

    @property
    def roles(self) -> set[Role]:
        """Roles that the model's parameters have."""
        learned: set[Role] = {op.role(name) for op in self.operators.values() for name in op.shapes()}
        always: set[Role] = {"embedding", "matrix", "head"}
        return always | learned | ({"gain"} if self.gains else set())

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def hidden(self) -> int:
        """Hidden width of the MLP."""
        return mlp_hidden(self.width) if self.mlp == "swiglu" else 4 * self.width

    @property
    def padded_vocabulary(self) -> int:
        return padded_vocabulary(self.vocabulary)

    @property
    def max_passes(self) -> int | None:
        """Most passes the model can run: its stored cores if untied, no limit (None) if tied."""
        return None if self.tied else self.stored_cores

    @property
    def stored_blocks(self) -> int:
        """Blocks kept in memory, dormant cores included."""
        assert self.stored_cores is not None
        return self.prelude + self.stored_cores * self.core + self.coda

    def executed_depth(self, passes: int | None = None) -> int:
        """ℓ_K = P + K·C + D, the blocks a token passes through at `passes` (default: the initial K)."""
        return self.prelude + (self.passes if passes is None else passes) * self.core + self.coda

    def backward_passes(self, passes: int | None = None) -> int:
        """The last passes that the gradient goes through at `passes` (default: the initial K): B, or all if fewer."""
        passes = self.passes if passes is None else passes
        return min(passes, self.trained_passes or passes)

    def leaves_idle(self, passes: int | None = None) -> bool:
        """Whether a step at `passes` (default: the initial K) leaves stored parameters without gradient.

        Untied: cores that are dormant, or run before the trained passes. A learned φ that is never applied, since the
        only pass is the first. And what `cuts_prelude` says.
        """
        passes = self.passes if passes is None else passes
        dormant = not self.tied and self.backward_passes(passes) < (self.stored_cores or 1)
        before = self.pass_operator
        return dormant or self.cuts_prelude(passes) or bool(before.shapes() and not before.applications(passes))

    def cuts_prelude(self, passes: int | None = None) -> bool:
        """Whether prelude and embedding get no gradient at `passes`: untrained passes first, and e in no boundary."""
        passes = self.passes if passes is None else passes
        trained = any(operator.trains_prelude for operator in self.operators.values())
        return self.backward_passes(passes) < passes and not trained

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as checkpoints and JSON store them."""
        return asdict(self)


def check_growth(passes: int, target: int, *, tied: bool, stored_cores: int, any_target: bool = False) -> None:
    """Says whether a model of `passes` passes can grow to `target`.

    Args:
        passes: K before growth.
        target: K after growth.
        tied: Whether all passes share one core.
        stored_cores: Cores kept in memory, dormant ones included.
        any_target: Whether an untied model may grow to a K that is not a multiple of `passes`.

    Raises:
        InputError: The target is not above K, above the stored cores, or (untied) no multiple of K unless asked for.
    """
    require(target > passes, "passes", target, f"growth must lead above the current {passes} passes")
    if tied:
        return
    require(target <= stored_cores, "passes", target, f"the model stores {stored_cores} cores")
    require(
        any_target or target % passes == 0, "passes", target,
        f"an untied model grows to a multiple of its {passes} passes (any_target=True allows others)",
    )  # fmt: skip
