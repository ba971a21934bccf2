"""A model in MLflow: the loader that MLflow's pyfunc flavour calls. Nothing is pickled; docs/serving.md has the recipe.

mlflow.pyfunc.save_model("folder", loader_module="dekrr.serving.mlflow", data_path="model.safetensors")
"""

from typing import Any

from ..model import SiteModel, load
from ..types import Array


class Loaded:
    """What MLflow calls `predict` of."""

    def __init__(self, model: SiteModel) -> None:
        self.model = model

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> Array:
        """Predict the response of the rows of a frame; `params` may have `coverage`, for intervals.

        Returns
        -------
        ndarray of shape (n_rows,) or (n_rows, n_outputs); with coverage, of shape (n_rows, 2)
        """
        coverage = (params or {}).get("coverage")
        if coverage is None:
            return self.model.predict(model_input)
        interval: Array = self.model.predict_interval(model_input, coverage=coverage)
        return interval


def _load_pyfunc(path: str) -> Loaded:
    """Read a model file; MLflow calls this by its name."""
    return Loaded(load(path))
