"""Muon or MuonH with AdamW as one optimizer, its parameter groups and its schedule."""

from looplit.optim.directions import muon_momentum
from looplit.optim.groups import parameters_by_role
from looplit.optim.muon import MuonAdamW
from looplit.optim.polar import orthogonalize
from looplit.optim.schedule import learning_rate_factor, rewarm_factor

__all__ = [
    "MuonAdamW",
    "learning_rate_factor",
    "muon_momentum",
    "orthogonalize",
    "parameters_by_role",
    "rewarm_factor",
]
