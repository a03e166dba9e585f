"""Tokenizers, preparation and streaming of text.

Public names load on first use: the processes that tokenize must start quickly and need neither torch nor Lightning.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
