"""The scikit-learn front door: fit on rows with a site label each, and get a model per site.

- `site_regressor`: the shape that all regressors share, and their parameters from the table of settings.
- `tables`: the front door's tables, rows in arrays and from sources, and mistakes in them.
- `network`: sites of rows, what they run, which features they choose, and the network that drives them.
- `model_set`: the models of all sites, their errors and intervals, and the summary of a fit.
- `regressor`, `classifier`: the estimators. Each is imported at its first use, as are the baselines in `dekrr.lab`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .classifier import DeKRRClassifier as DeKRRClassifier
    from .regressor import DeKRRRegressor as DeKRRRegressor

_BASELINES = "AllReduceRegressor COKERegressor CentralizedKRR CentralizedRFF DKLARegressor LocalRegressor"
_HOMES = dict.fromkeys(_BASELINES.split(), "dekrr.lab.baselines")
_HOMES |= {"DeKRRClassifier": f"{__name__}.classifier", "DeKRRRegressor": f"{__name__}.regressor"}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
