"""Muon, MuonH or an algorithm of one's own with AdamW as one optimizer, its parameter groups and its schedule.

Names load on first use: recipes and plans ask `looplit.optim.algorithms` without torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
