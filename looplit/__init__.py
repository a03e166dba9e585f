"""LoopLit: train, grow, measure and compare looped transformers, and turn the runs into scaling laws.

Public names load on first use, so that recipes, plans and laws need neither torch nor Lightning.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__.remove("eval")  # in a star import it would hide the builtin
