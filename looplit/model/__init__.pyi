from .backbone import Backbone as Backbone
from .backbone import Site as Site
from .block import Block as Block
from .boundary import BoundaryOperator as BoundaryOperator
from .config import BackboneConfig as BackboneConfig
from .growth import Growable as Growable
from .growth import grow as grow
from .loss import linear_cross_entropy as linear_cross_entropy
