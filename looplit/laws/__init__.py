"""Scaling laws from measurements: fits that say how far to trust them, multipliers, optima and forecasts.

numpy and scipy only. Every fit is a `Fit`: parameters with uncertainty, residuals, warnings; saved and loaded as JSON.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
