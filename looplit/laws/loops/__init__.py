"""Which loops to run and how many to train: the truncation study's law and its optima (arXiv 2610.26030).

The law and its optima need numpy alone. Fits from runs are in `looplit.laws.loops.fit`, comparisons of runs in
`looplit.laws.loops.runs`; both need scipy.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
