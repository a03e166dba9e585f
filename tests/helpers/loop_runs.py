"""Runs made from the published law."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from looplit.laws.loops import NREC, PUBLISHED, STUDY_SETTINGS, Setting, training_compute
from looplit.laws.loops.runs import LoopRun

SIZES = (58e6, 116e6, 231e6, 464e6, 919e6)
TOKENS = tuple(2.0**30 * np.array([1, 2, 4, 8, 16]))

MakeRuns = Callable[..., list[LoopRun]]


@pytest.fixture
def make_runs() -> MakeRuns:
    """(noise, seed, count, settings) → runs: `count` cells of the study's grid with relative noise in the loss."""

    def make(
        noise: float = 0.0, seed: int = 0, count: int | None = None, settings: tuple[Setting, ...] = STUDY_SETTINGS
    ) -> list[LoopRun]:
        rng = np.random.default_rng(seed)
        cells = [(n, d, setting) for n in SIZES for d in TOKENS for setting in settings]
        if count is not None:
            cells = [cells[i] for i in np.sort(rng.choice(len(cells), count, replace=False))]
        runs = []
        for n, d, setting in cells:
            loss = float(PUBLISHED.loss(n, d, *setting)) * np.exp(noise * rng.standard_normal())
            compute = float(training_compute(n, d, *setting))
            runs.append(LoopRun(f"{n:.3g} {d:.3g} {setting}", setting, n, NREC, d, compute, float(loss)))
        return runs

    return make
