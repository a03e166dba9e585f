"""What a user writes to have families of his own; beside them, classes that a checkpoint must not get called."""

from __future__ import annotations

from dataclasses import replace

from looplit import GrowthStudyLM, TruncatedLoop
from looplit.recipes.families import FAMILIES, Family
from looplit.recipes.study import StudyFamily

TUNED = replace(FAMILIES["loop_2"].hyperparameters, learning_rate=0.03, warmup_steps=2, betas=(0.9, 0.97))


class ThreePasses(GrowthStudyLM):
    """A tied core that starts at three passes, with hyperparameters, TPP and exponent of its own."""

    family = Family("three_passes", True, 3, None, "inject", TUNED, 9.0, 0.4)


class GrowsToSix(GrowthStudyLM):
    """Three untied cores that become six for the last quarter of the run."""

    family = Family("grows_to_six", False, 3, 6, "norm_inject", TUNED, 4.0, 0.7, growth_fraction=0.25)


class OwnTruncatedLoop(TruncatedLoop):
    """The truncation study's model under a name of its own."""

    family = StudyFamily("own_loop")


class NoModel:
    """Says when it is called."""

    called = False

    def __init__(self, **_: object) -> None:
        NoModel.called = True

    load_from_checkpoint = __init__
