from .algorithms import ALGORITHMS as ALGORITHMS
from .algorithms import Algorithm as Algorithm
from .directions import muon_momentum as muon_momentum
from .groups import parameters_by_role as parameters_by_role
from .muon_adamw import MuonAdamW as MuonAdamW
from .polar import orthogonalize as orthogonalize
from .schedule import learning_rate_factor as learning_rate_factor
from .schedule import rewarm_factor as rewarm_factor
