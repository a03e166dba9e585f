"""Which loops to run and how many to train: the truncation study's law and its optima (arXiv 2610.26030).

The law and its optima need numpy alone. Fits from runs are in `looplit.scaling.loops.fit`, comparisons of runs in
`looplit.scaling.loops.runs`; both need scipy.
"""

from looplit.scaling.loops.law import NREC, PUBLISHED, LoopLaw, compute_ratio, cost_units, training_compute
from looplit.scaling.loops.optimum import (
    NO_LOOPING,
    STUDY_SETTINGS,
    Exponents,
    Optimum,
    PassesPath,
    Setting,
    Worth,
    all_settings,
    asymptotic_exponents,
    best_at_size,
    best_of_all,
    best_passes,
    best_size,
    best_split,
    best_trained_passes,
    best_whole_split,
    finite_exponents,
    full_backpropagation,
    switch_points,
    tokens_for,
    worth,
)

__all__ = [
    "NO_LOOPING",
    "NREC",
    "PUBLISHED",
    "STUDY_SETTINGS",
    "Exponents",
    "LoopLaw",
    "Optimum",
    "PassesPath",
    "Setting",
    "Worth",
    "all_settings",
    "asymptotic_exponents",
    "best_at_size",
    "best_of_all",
    "best_passes",
    "best_size",
    "best_split",
    "best_trained_passes",
    "best_whole_split",
    "compute_ratio",
    "cost_units",
    "finite_exponents",
    "full_backpropagation",
    "switch_points",
    "tokens_for",
    "training_compute",
    "worth",
]
