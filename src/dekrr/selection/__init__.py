"""The choice of features: pools of candidates, and the choosers by name.

`transformers` has every chooser as a scikit-learn transformer. It is the only module of this package that imports
scikit-learn, and no other module of this package imports it.
"""

from .choosers import MAPPINGS, Chooser, Energy, Leverage, Plain, Pool, Surrogate
from .greedy import Auto, Greedy, Mixed

CHOOSERS: dict[str, type[Chooser]] = {
    "auto": Auto,
    "plain": Plain,
    "energy": Energy,
    "leverage": Leverage,
    "surrogate": Surrogate,
    "greedy": Greedy,
}

__all__ = [
    "CHOOSERS",
    "MAPPINGS",
    "Auto",
    "Chooser",
    "Energy",
    "Greedy",
    "Leverage",
    "Mixed",
    "Plain",
    "Pool",
    "Surrogate",
]
