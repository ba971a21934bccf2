"""The model that a site keeps after training. It predicts, saves and loads without the other sites."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save as bytes_of
from safetensors.numpy import save_file

from .disk import replacing
from .errors import DataError, ModelFileError, SettingsError, warn
from .features import FeatureMap
from .frames import Columns, is_frame
from .intervals import Calibration, too_few_text
from .metrics import rse
from .outside import Outside
from .privacy.mechanism import Spent
from .rows.batches import AnyColumns, inputs_of
from .rows.sources import is_source, open_source
from .rows.spread import is_spread, predicted
from .scaling import UNSCALED, AnyScaling, Scaling
from .types import Array

__all__ = ["Member", "SiteModel"]

FORMAT = "dekrr-model"
FORMAT_VERSION = (
    4  # the newest that is read; 2 has an encoding of columns, or limits that rows are clipped to; 3 classes; 4 a local
    # part that reads what the other members predict
)
_ROWS_PER_BLOCK = 4096


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The header of a model file: JSON beside the tensors.

    Parameters
    ----------
    site : str
        The site's name.
    method : str
        The name of the estimator that trained the model.
    kernel : str
    sigma : float
    columns : list of str or None
        The names of the columns; None where they have no names.
    n_columns : int
    n_members : int
        The number of models whose predictions are added up, each with its weight.
    parts : list of str
        What each member is: "own", "neighbor", "shared" or "local". Where it is empty, the first is the site's own and
        the others are its neighbours'.
    column_scales : list of float or None
        How much the response depends on each of the `n_columns` columns, as all sites agreed; the largest is 1.
    scaled : bool
        Whether the model scales rows and responses.
    privacy : Spent or None
        The privacy budget that training spent.
    encoding : Columns or None
        How the user's columns become the `n_columns` numbers of a row; None where they are numbers.
    targets : list of str or None
        The names of what is predicted, where it has names.
    classes : list of str, int, float or bool, or None
        The classes, where the model predicts class codes.
    format, version
        The name and the version of the file format.
    """

    site: str
    method: str
    kernel: str
    sigma: float
    n_columns: int
    columns: list[str] | None = None
    n_members: int = 1
    parts: list[str] = []
    column_scales: list[float] | None = None
    scaled: bool = False
    privacy: Spent | None = None
    encoding: Columns | None = None
    targets: list[str] | None = None
    classes: list[str | int | float | bool] | None = None
    format: str = FORMAT
    version: int = 1

    @property
    def reading(self) -> AnyColumns:
        """How the columns of a source are read: by their encoding, their names, or their number."""
        return self.encoding or self.columns or self.n_columns


def as_rows(X: Any, header: Header) -> Array:
    """Return rows as an array; where the header has names, the columns of a frame are selected by name."""
    columns, n_columns = header.columns, header.n_columns
    if header.encoding is not None:
        return header.encoding.encode(X, "the rows")
    if columns is not None and is_frame(X) and not hasattr(X, "column_names"):
        missing = [name for name in columns if name not in list(X.columns)]
        if missing:
            raise DataError(f"the rows lack columns {missing}; the model was trained on {list(columns)}")
        X = X[list(columns)]
    rows = np.asarray(X, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != n_columns:
        raise DataError(f"expected rows of {n_columns} columns, got an array of shape {rows.shape}")
    if not np.isfinite(rows).all():
        row, column = np.argwhere(~np.isfinite(rows))[0]
        raise DataError(f"row {row}, column {column} is {rows[row, column]}; fill or drop NaN and infinite values")
    return rows


@dataclass(frozen=True, eq=False)
class Member:
    """One linear model: a feature map, the coefficients of its features, and its weight in a site's prediction.

    Parameters
    ----------
    feature_map : FeatureMap
    coefficients : ndarray of shape (n_features,) or (n_features, n_outputs)
    weight : float, default=1.0
    """

    feature_map: FeatureMap
    coefficients: Array
    weight: float = 1.0

    def predict(self, X: Array) -> Array:
        """Return coefficients'z(x) for scaled rows, shape (n_rows,) or (n_rows, n_outputs).

        Parameters
        ----------
        X : ndarray of shape (n_rows, n_columns)
            Scaled rows.
        """
        return self.feature_map.apply(X, self.coefficients)


def joined(members: Sequence[Member]) -> Member:
    """Return members as one, whose prediction is the weighted sum of theirs: one product instead of one for each.

    Examples
    --------
    >>> one = Member(FeatureMap.unweighted(np.ones((1, 2)), np.zeros(2)), np.array([1.0, 2.0]), 0.25)
    >>> joined([one, one]).predict(np.zeros((1, 1)))
    array([1.5])
    """
    maps = [member.feature_map for member in members]
    feature_map = FeatureMap(
        np.hstack([part.frequencies for part in maps]),
        np.concatenate([part.phases for part in maps]),
        np.concatenate([part.amplitudes for part in maps]),
    )
    return Member(feature_map, np.concatenate([member.weight * member.coefficients for member in members]))


def stages_of(members: Sequence[Member]) -> tuple[Member, Member | None]:
    """Return the members that read rows, as one, and those that read what these predict, too, as one, or None.

    Examples
    --------
    >>> one = Member(FeatureMap.unweighted(np.ones((1, 2)), np.zeros(2)), np.array([1.0, 2.0]))
    >>> local = Member(FeatureMap.unweighted(np.ones((2, 2)), np.zeros(2)), np.array([1.0, 2.0]))
    >>> first, second = stages_of([one, local])
    >>> first.feature_map.n_columns, second.feature_map.n_columns
    (1, 2)
    """
    n_columns = members[0].feature_map.n_columns
    first = [member for member in members if member.feature_map.n_columns == n_columns]
    second = [member for member in members if member.feature_map.n_columns != n_columns]
    return joined(first), joined(second) if second else None


def _through(stages: tuple[Member, Member | None], rows: Array) -> Array:
    """Return what both stages predict for scaled rows."""
    first, second = stages
    found = first.predict(rows)
    return found if second is None else found + second.predict(np.column_stack((rows, found)))


@dataclass(frozen=True, eq=False, repr=False)
class SiteModel:
    """A site's model. Its prediction is the weighted sum of its members' predictions, in the units of the response.

    It is a fitted regressor to scikit-learn: permutation importance, partial dependence and scorers take it.

    Parameters
    ----------
    header : Header
    members : tuple of Member
        First the site's own agreed model; then its neighbours' models, if it predicts with its neighbourhood; then the
        shared part and the local part, where there are such. `header.parts` says which is which. A local part of
        n_columns + n_outputs columns reads scaled rows, and after them what the other members predict.
    scaling : Scaling or Unscaled
    calibration : Calibration, optional
        What intervals are made of.
    """

    header: Header
    members: tuple[Member, ...]
    scaling: AnyScaling = UNSCALED
    calibration: Calibration | None = None

    def __repr__(self) -> str:
        header = self.header
        known = f", {len(self.members)} models" if len(self.members) > 1 else ""
        outputs = f", {self.n_outputs} outputs" if self.n_outputs > 1 else ""
        intervals = ", intervals" if self.calibration is not None else ""
        columns = len(header.columns) if header.columns is not None else header.n_columns
        features = self.feature_map.n_features
        sizes = f"{columns} columns, {features} features{known}{outputs}{intervals}"
        return f"<{header.method} of site {header.site!r}: {sizes}>"

    @property
    def feature_map(self) -> FeatureMap:
        """The site's own feature map."""
        return self.members[0].feature_map

    @property
    def coefficients(self) -> Array:
        """The site's own coefficients (the paper's theta_j), shape (n_features,) or (n_features, n_outputs)."""
        return self.members[0].coefficients

    @property
    def n_outputs(self) -> int:
        """The number of outputs."""
        return math.prod(self.coefficients.shape[1:])

    def without_local(self) -> "SiteModel":
        """Return the model without its local part: what the sites agreed on, to be given to others.

        The local part is fitted to the site's own rows alone.
        """
        kept = [i for i in range(len(self.members)) if self.header.parts[i : i + 1] != ["local"]]
        parts = [self.header.parts[i] for i in kept] if self.header.parts else []
        header = msgspec.structs.replace(self.header, n_members=len(kept), parts=parts)
        return replace(self, header=header, members=tuple(self.members[i] for i in kept))

    def predict(self, X: Any) -> Array:
        """Predict the response.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_columns), or source
            A source is a path, or another object that gives rows in batches; see `dekrr.rows.sources`.

        Returns
        -------
        ndarray of shape (n_rows,) or (n_rows, n_outputs)
            Of a Dask frame, a Dask series or frame, which is computed when it is asked for.
        """
        if is_spread(X):
            lazily: Array = predicted(X, self.predict, self.n_outputs)
            return lazily
        if is_source(X):
            columns = self.header.reading
            no_rows = np.empty((0, *self.coefficients.shape[1:]))
            batches = open_source(X, once=True).batches(columns)
            return np.concatenate([no_rows, *(self.predict_encoded(inputs_of(batch, columns)) for batch in batches)])
        return self.predict_encoded(as_rows(X, self.header))

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Array:
        """Return intervals that cover the response of the site's own rows with a chance of `coverage`.

        Nothing is promised for rows that are unlike the site's own. Where the site held out too few rows for the
        coverage, the ends are infinite, and a warning says so.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_columns), or frame
        coverage : float, default=0.9

        Returns
        -------
        ndarray of shape (n_rows, 2) or (n_rows, 2, n_outputs)
            The lower and the upper end.
        """
        ends = self.interval_encoded(as_rows(X, self.header), coverage)
        if self.calibration is not None and not self.calibration.reaches(coverage):
            warn(too_few_text([self.header.site], coverage, "the ends of its intervals are infinite"))
        return ends

    def interval_encoded(self, rows: Array, coverage: float = 0.9) -> Array:
        """Return `predict_interval` of rows whose columns are numbers already, shape (n_rows, header.n_columns).

        Parameters
        ----------
        rows : ndarray of shape (n_rows, header.n_columns)
        coverage : float, default=0.9
        """
        if self.calibration is None:
            raise SettingsError(
                f"the model of site {self.header.site!r} has no intervals: it was fitted without them, or the site has "
                "too few rows. Fit with intervals=True"
            )
        rows = self.scaling.rows(rows)
        middle = _through(self._stages, rows)
        radius = self.calibration.radius(self.feature_map(rows), coverage).reshape(middle.shape)
        return np.stack([self.scaling.undo(middle - radius), self.scaling.undo(middle + radius)], axis=1)

    def outside(self, X: Any) -> list[list[str]]:
        """Return for each row the columns whose values lie outside what the model was trained on.

        That is a number or a date beyond the bounds of training, or a word that the model does not know. The prediction
        of such a row is a guess, and its interval is no wider for it.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_columns), or frame
        """
        rows, encoded = X, as_rows(X, self.header)
        if self.header.encoding is not None:
            rows = {name: raw.values for name, raw in self.header.encoding.read(X, "the rows").items()}
        return outside_of(self)(rows, encoded) or [[] for _ in encoded]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the coefficient of determination R^2 of `predict(X)`, the mean over outputs.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_columns), frame or source
        y : array-like of shape (n_rows,) or (n_rows, n_outputs)
        sample_weight : array-like of shape (n_rows,), optional
        """
        return 1 - rse(y, self.predict(X), sample_weight)

    def fit(self, X: Any, y: Any = None) -> "SiteModel":
        """Raise `SettingsError`: a site's model comes of a training that all sites take part in.

        Parameters
        ----------
        X, y : object
            Not used.
        """
        raise SettingsError(
            "a site's model cannot be fitted by itself: fit DeKRRRegressor, or LocalRegressor for one site"
        )

    @property
    def n_features_in_(self) -> int:
        """The number of columns that `predict` takes."""
        return len(self.header.columns) if self.header.columns is not None else self.header.n_columns

    @property
    def feature_names_in_(self) -> np.ndarray:
        """The names of the columns that `predict` takes, where they have names."""
        if self.header.columns is None:
            raise AttributeError("the columns have no names")
        return np.array(self.header.columns, dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, RegressorTags, Tags, TargetTags

        return Tags(
            estimator_type="regressor",
            target_tags=TargetTags(required=True, multi_output=True),
            regressor_tags=RegressorTags(),
            input_tags=InputTags(allow_nan=self.header.encoding is not None),
        )

    def predict_encoded(self, rows: Array) -> Array:
        """Predict the response of rows whose columns are numbers already, shape (n_rows, header.n_columns).

        Parameters
        ----------
        rows : ndarray of shape (n_rows, header.n_columns)
        """
        rows = self.scaling.rows(rows)
        return self.scaling.undo(_through(self._stages, rows))

    @cached_property
    def _stages(self) -> tuple[Member, Member | None]:
        return stages_of(self.members)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a safetensors file; an existing file is replaced atomically.

        Parameters
        ----------
        path : str or path
            The name of the file, which should end in .safetensors.
        """
        tensors, metadata = self._contents()
        _require_place(Path(path))
        with replacing(Path(path)) as temporary:
            try:
                save_file(tensors, temporary, metadata=metadata)
            except SafetensorError as error:
                raise ModelFileError(f"{path} cannot be written: {error}") from None

    def to_bytes(self) -> bytes:
        """Return what `save` writes to a file; `from_bytes` reads it."""
        tensors, metadata = self._contents()
        return bytes(bytes_of(tensors, metadata=metadata))

    def _contents(self) -> tuple[dict[str, Array], dict[str, str]]:
        """Return the tensors of the model's file, and its metadata."""
        tensors = {"weights": np.array([member.weight for member in self.members])}
        for i, member in enumerate(self.members):
            tensors[f"frequencies_{i}"] = member.feature_map.frequencies
            tensors[f"phases_{i}"] = member.feature_map.phases
            tensors[f"amplitudes_{i}"] = member.feature_map.amplitudes
            tensors[f"coefficients_{i}"] = member.coefficients
        tensors |= self.scaling.tensors
        if self.calibration is not None:
            tensors |= self.calibration.tensors
        header = self.header
        if isinstance(self.scaling, Scaling) and self.scaling.limits is not None:
            header = msgspec.structs.replace(header, version=max(header.version, 2))
        if self._stages[1] is not None:
            header = msgspec.structs.replace(header, version=max(header.version, 4))
        tensors = {name: np.ascontiguousarray(tensor, dtype=np.float64) for name, tensor in tensors.items()}
        return tensors, {FORMAT: msgspec.json.encode(header).decode()}


def _require_place(path: Path) -> None:
    """Refuse a path that no file can be written to, in words about the path itself."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give a file in it, such as {path / 'model.safetensors'}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} of {path.name} does not exist: make it first")
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"the folder {path.parent} of {path.name} cannot be written to: give another one")


def outside_of(model: SiteModel) -> Outside:
    """Return what names the columns of rows whose values lie outside those that a model was trained on."""
    header = model.header
    return Outside(header.n_columns, header.columns, header.encoding, model.scaling)
