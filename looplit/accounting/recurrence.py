"""How often the core runs at each optimizer step: growth and random recurrence, as numbers that a plan can replay."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from looplit.errors import require

REWARM_STEPS = 40  # optimizer steps over which the learning rate rises again after growth (growth study, Algorithm 1)


def growth_step(fraction: float, steps: int) -> int:
    """g = floor((1-ρ)·steps + 1e-9), the optimizer steps before growth (growth study, Algorithm 1).

    Args:
        fraction: ρ in (0, 1), the share of the steps after growth.
        steps: Optimizer steps of the run.

    >>> growth_step(0.23, 68699)
    52898
    """
    require(0 < fraction < 1, "fraction", fraction, "the share of the run after growth lies between 0 and 1, exclusive")
    return math.floor((1 - fraction) * steps + 1e-9)


def draw_passes(seed: int, step: int, choices: Sequence[int]) -> int:
    """K of optimizer step `step` under random recurrence: uniform over `choices`, a pure function of seed and step.

    A hash instead of a generator: every rank, a resumed run and the plan agree without any state, on every Python.

    >>> [draw_passes(1, step, (2, 3, 4, 5, 6)) for step in range(8)]
    [3, 6, 6, 2, 4, 4, 3, 5]
    """
    digest = hashlib.blake2b(f"{seed}/{step}".encode(), digest_size=8).digest()
    return choices[int.from_bytes(digest, "big") % len(choices)]


@dataclass(frozen=True)
class Growth:
    """One growth: `passes` from step `step` on. `fraction` is ρ, if the step was derived from it."""

    passes: int
    step: int
    fraction: float | None = None


@dataclass(frozen=True)
class RandomPasses:
    """K drawn from `choices` at every optimizer step after the last growth; evaluation uses `evaluate_at`."""

    choices: tuple[int, ...]
    evaluate_at: int
    seed: int = 0

    def __post_init__(self) -> None:
        whole = all(type(k) is int and k >= 1 for k in self.choices)
        require(bool(self.choices) and whole, "passes", list(self.choices), "must be whole numbers from 1 up")


@dataclass(frozen=True)
class Phase:
    """A stretch of the run with one K, or with one set of K's to draw from."""

    first_step: int
    steps: int
    choices: tuple[int, ...]

    @property
    def passes(self) -> int | list[int]:
        """K, or the list K is drawn from."""
        return self.choices[0] if len(self.choices) == 1 else list(self.choices)


@dataclass(frozen=True)
class Recurrence:
    """K over a whole run.

    Args:
        passes: K at the start.
        growths: In the order of their steps.
        random: Drawn K after the last growth, or from the start if there is none.
        rewarm_steps: Over which the learning rate rises again after each growth.
    """

    passes: int
    growths: tuple[Growth, ...] = ()
    random: RandomPasses | None = None
    rewarm_steps: int = REWARM_STEPS

    def __post_init__(self) -> None:
        passes, step = self.passes, 0
        for growth in self.growths:
            require(growth.passes > passes, "passes", growth.passes, f"growth must lead to more than {passes} passes")
            require(growth.step > step, "step", growth.step, "growths need rising steps, from 1 up")
            passes, step = growth.passes, growth.step

    @property
    def max_passes(self) -> int:
        """The largest K of the run."""
        drawn = self.random.choices if self.random else ()
        return max((self.passes, *(growth.passes for growth in self.growths), *drawn))

    def phases(self, steps: int) -> list[Phase]:
        """The stretches between growths, in order, over `steps` optimizer steps."""
        choices: list[tuple[int, ...]] = [(self.passes,), *((growth.passes,) for growth in self.growths)]
        if self.random:
            choices[-1] = self.random.choices
        starts = [0, *(growth.step for growth in self.growths)]
        ends = [*starts[1:], steps]
        return [
            Phase(start, min(end, steps) - start, drawn)
            for start, end, drawn in zip(starts, ends, choices, strict=True)
            if start < steps
        ]

    def realised(self, steps: int) -> list[tuple[int, int]]:
        """(passes, optimizer steps) pairs as the run takes them, drawn values replayed, by rising K."""
        counts: Counter[int] = Counter()
        for phase in self.phases(steps):
            counts.update(dict(self.realised_in(phase)))
        return sorted(counts.items())

    def realised_in(self, phase: Phase) -> list[tuple[int, int]]:
        """The same within one phase."""
        if len(phase.choices) == 1:
            return [(phase.choices[0], phase.steps)]
        assert self.random is not None
        steps = range(phase.first_step, phase.first_step + phase.steps)
        return sorted(Counter(draw_passes(self.random.seed, step, phase.choices) for step in steps).items())


def as_list(value: Any) -> list[Any]:
    """Passes, steps or fractions of growths, which are given as one value, as several, or not at all (None).

    >>> as_list(4), as_list((4, 6)), as_list(None)
    ([4], [4, 6], [])
    """
    if value is None:
        return []
    return list(value) if isinstance(value, Sequence) else [value]
