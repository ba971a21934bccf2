"""The scikit-learn front door: DeKRR and the baselines."""

from .dekrr import (
    AllReduceRegressor,
    CentralizedKRR,
    CentralizedRFF,
    COKERegressor,
    DeKRRRegressor,
    DKLARegressor,
    LocalRegressor,
)

__all__ = [
    "AllReduceRegressor",
    "COKERegressor",
    "CentralizedKRR",
    "CentralizedRFF",
    "DKLARegressor",
    "DeKRRRegressor",
    "LocalRegressor",
]
