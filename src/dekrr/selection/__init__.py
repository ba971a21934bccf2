"""The choice of features: pools of candidates, and the choosers by name.

`transformers` has every chooser as a scikit-learn transformer. It is the only module of this package that imports
scikit-learn, and no other module of this package imports it.
"""

from .choosers import MAPPINGS, Chooser
from .energy import Energy, Plain
from .greedy import Greedy
from .mixed import Mixed
from .pool import Pool
from .sampled import Leverage, Surrogate

CHOOSERS: dict[str, type[Chooser]] = {
    "plain": Plain,
    "energy": Energy,
    "leverage": Leverage,
    "surrogate": Surrogate,
    "greedy": Greedy,
}

__all__ = ["CHOOSERS", "MAPPINGS", "Chooser", "Energy", "Greedy", "Leverage", "Mixed", "Plain", "Pool", "Surrogate"]
