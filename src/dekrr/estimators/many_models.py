"""The models of several sites: their mean, and sites that have none."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import DataError
from ..kernel_model import KernelModel
from ..labels import listed
from ..model import SiteModel
from ..types import Array


def mean_of(models: Sequence[SiteModel | KernelModel], X: Array) -> Array:
    """Return the mean of models' predictions of rows whose columns are numbers."""
    return np.asarray(np.mean([model.predict_encoded(X) for model in models], axis=0))


def refuse_unknown(regressor: Any, labels: Sequence[Hashable]) -> None:
    """Refuse rows of sites that were not in `fit`, if the estimator does."""
    unknown = [label for label in labels if label not in regressor.models_]
    if unknown and regressor.unknown_sites == "error":
        raise DataError(
            f"unknown sites {unknown}: no rows of theirs were in fit; the sites are {listed(regressor.sites_)}. "
            'unknown_sites="mean" predicts their rows by the mean of all models, as LeaveOneSiteOut needs it; '
            "models_[site].predict(X) applies any site's model to any rows. In cross-validation by rows, "
            "dekrr.model_selection.SiteKFold keeps every site in every fold"
        )


def different(models: Mapping[Hashable, Any]) -> list[SiteModel | KernelModel]:
    """Return the models, each once: some methods end with one model for all sites."""
    return list({id(model): model for model in models.values()}.values())
