"""When a run grows and to how many passes, for plans, reports and the callback alike (growth study, section 4)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from looplit.accounting.recurrence import Growth, as_list, growth_step
from looplit.errors import InputError, require
from looplit.model.config import check_growth


@dataclass(frozen=True)
class GrowthRequest:
    """What a person asks of growth. One value or a list of them for each field; None where the recipe decides.

    Args:
        passes: K after growth, one for each of several growths. None: the recipe's own growth plan.
        step: g, optimizer steps before growth, one for each.
        fraction: ρ instead of `step`, the share of the run after growth.
        any_target: Whether an untied model may grow to a K that is not a multiple of its present one.

    Raises:
        InputError: Both or neither of step and fraction, or lists that do not match.

    >>> GrowthRequest(passes=4, fraction=0.3).events(None, 100)
    (Growth(passes=4, step=70, fraction=0.3),)
    """

    passes: int | Sequence[int] | None = None
    step: int | Sequence[int] | None = None
    fraction: float | Sequence[float] | None = None
    any_target: bool = False

    def __post_init__(self) -> None:
        step, fraction, passes = self.step, self.fraction, self.passes
        require(step is None or fraction is None, "fraction", fraction, "give step or fraction, not both")
        when = step if fraction is None else fraction
        if passes is None:
            require(when is None, "passes", passes, "step or fraction needs the passes to grow to")
            return
        require(when is not None, "passes", passes, "growth needs its step or its fraction")
        matches = len(as_list(when)) == len(as_list(passes))
        require(matches, "passes", passes, f"does not have one entry for each of {as_list(when)}")

    def events(self, plan: tuple[int, float] | None, run_steps: float, model: str = "the model") -> tuple[Growth, ...]:
        """The growths of a run, in the order of their steps.

        Args:
            plan: (K after growth, ρ) of the recipe, which a request without passes takes.
            run_steps: Planned optimizer steps of the run; growth fractions are shares of it.
            model: How a message calls what grows.

        Raises:
            InputError: There is no plan to take, or two growths fall on one step.
        """
        passes, fractions = self.passes, self.fraction
        if passes is None:
            if plan is None:
                raise InputError(f"passes = None: {model} has no growth plan; say passes and fraction")
            passes, fractions = plan
        if self.step is None:
            shares = as_list(fractions)
            steps = [growth_step(share, int(run_steps)) for share in shares]
        else:
            steps = as_list(self.step)
            shares = [None] * len(steps)
        require(len(set(steps)) == len(steps), "step", steps, "two growths fall on one step")
        growths = (Growth(k, g, share) for k, g, share in zip(as_list(passes), steps, shares, strict=True))
        return tuple(sorted(growths, key=lambda growth: growth.step))

    def check(
        self,
        events: Sequence[Growth],
        run_steps: float,
        *,
        passes: int,
        tied: bool,
        stored_cores: int,
        grown: Collection[int] = (),
    ) -> None:
        """Says whether every growth lies inside the run and is possible.

        Args:
            events: As `events` gives them.
            run_steps: Planned optimizer steps of the run.
            passes: K now.
            tied: Whether all passes share one core.
            stored_cores: Cores kept in memory, dormant ones included.
            grown: Steps at which a resumed run has grown already.

        Raises:
            InputError: A growth outside the run, before one that is done, or see `check_growth`.
        """
        for event in events:
            inside = 0 < event.step < run_steps
            require(inside, "step", event.step, f"growth must fall inside the run of {run_steps} steps")
            if event.step in grown:
                continue
            require(
                not grown or event.step > max(grown), "step", event.step,
                f"the checkpoint grew at step {max(grown, default=0)}; a resumed run keeps its steps: say step",
            )  # fmt: skip
            check_growth(passes, event.passes, tied=tied, stored_cores=stored_cores, any_target=self.any_target)
            passes = event.passes
