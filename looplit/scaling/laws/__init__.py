"""Scaling laws from measurements: fits that say how far to trust them, multipliers, optima and forecasts.

numpy and scipy only. Every fit is a `Fit`: parameters with uncertainty, residuals, warnings; saved and loaded as JSON.
"""

from looplit.scaling.laws.curves import fit_line, fit_parabola, fit_proportion, optimum
from looplit.scaling.laws.fit import LAWS, Fit, Law, Parameter, register
from looplit.scaling.laws.forecast import CoreForecast, TaskPoints, fit_forecast, task_points
from looplit.scaling.laws.multiplier import Multiplier, compute_at, law_multipliers, multipliers
from looplit.scaling.laws.power import LadderFits, exponent_gain, fit_above_floor, fit_ladders, fit_power, power_rows
from looplit.scaling.laws.replicates import averaged
from looplit.scaling.laws.results import Result, read_results, without_repeats
from looplit.scaling.laws.rows import Rows, check_rows
from looplit.scaling.laws.solve import Huber, fit_law, fit_linear
from looplit.scaling.laws.twovariable import fit_coupled, fit_two_powers, size_data_rows

__all__ = [
    "LAWS",
    "CoreForecast",
    "Fit",
    "Huber",
    "LadderFits",
    "Law",
    "Multiplier",
    "Parameter",
    "Result",
    "Rows",
    "TaskPoints",
    "averaged",
    "check_rows",
    "compute_at",
    "exponent_gain",
    "fit_above_floor",
    "fit_coupled",
    "fit_forecast",
    "fit_ladders",
    "fit_law",
    "fit_line",
    "fit_linear",
    "fit_parabola",
    "fit_power",
    "fit_proportion",
    "fit_two_powers",
    "law_multipliers",
    "multipliers",
    "optimum",
    "power_rows",
    "read_results",
    "register",
    "size_data_rows",
    "task_points",
    "without_repeats",
]
