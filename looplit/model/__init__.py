"""The prelude-core-coda backbone in pure torch; it knows nothing of Lightning.

Names load on first use: `looplit.model.config` is read without torch by recipes and accounting.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
