"""The model of exact kernel ridge regression, which has all rows: the centralised baseline."""

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import ModelFileError, SettingsError
from .kernels import Kernel
from .model import Header, as_rows
from .scaling import UNSCALED, AnyScaling
from .types import Array

_ROWS_PER_BLOCK = 4096


@dataclass(frozen=True, eq=False)
class KernelModel:
    """Exact kernel ridge regression on the pooled rows. The model contains these rows, so it cannot be saved."""

    header: Header
    kernel: Kernel
    rows: Array
    dual_coefficients: Array
    scaling: AnyScaling = UNSCALED
    calibration: None = None

    def interval_encoded(self, rows: Array, coverage: float = 0.9) -> Array:
        """Raise `SettingsError`: there are no intervals."""
        raise SettingsError("an exact kernel model has no intervals: fit DeKRRRegressor")

    def predict(self, X: Any, *, elsewhere: bool = False) -> Array:
        """Predict the response of rows `X`, shape (n_rows,) or (n_rows, n_outputs)."""
        return self.predict_encoded(as_rows(X, self.header))

    def predict_encoded(self, rows: Array, *, elsewhere: bool = False) -> Array:
        """Predict the response of rows whose columns are numbers already, shape (n_rows, header.n_columns)."""
        rows = self.scaling.rows(rows)
        blocks = [
            self.kernel(rows[start : start + _ROWS_PER_BLOCK], self.rows) @ self.dual_coefficients
            for start in range(0, len(rows), _ROWS_PER_BLOCK)
        ]
        prediction = np.concatenate([np.empty((0, *self.dual_coefficients.shape[1:])), *blocks])
        return self.scaling.undo(prediction)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Raise `ModelFileError`: the file would contain the training rows."""
        raise ModelFileError(f"{path} not written: an exact kernel model holds all sites' rows; save a feature model")
