"""The scikit-learn front door: fit on rows with a site label each, and get a model per site.

`base` has the shape that all regressors share, `streams` and `arrays` where their rows come from, `parameters` their
defaults, checks and documentation from the table of settings. `choosing` says which features sites choose, `network`
makes sites of rows and has a network run them, `procedures` has what the sites run, and `updates` how a trained network
goes on. `dekrr` and `baselines` are the regressors.
"""

from .baselines import (
    AllReduceRegressor,
    CentralizedKRR,
    CentralizedRFF,
    COKERegressor,
    DKLARegressor,
    LocalRegressor,
)
from .classifier import DeKRRClassifier
from .dekrr import DeKRRRegressor

__all__ = [
    "AllReduceRegressor",
    "COKERegressor",
    "CentralizedKRR",
    "CentralizedRFF",
    "DKLARegressor",
    "DeKRRClassifier",
    "DeKRRRegressor",
    "LocalRegressor",
]
