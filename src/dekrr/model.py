"""The model that a site keeps after training. It predicts, saves and loads without the other sites."""

import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as tensors_of
from safetensors.numpy import save as bytes_of
from safetensors.numpy import save_file

from .classes import ClassCalibration, Platt, scores
from .disk import replacing
from .errors import DataError, ModelFileError, SettingsError, warn
from .features import FeatureMap
from .intervals import Calibration, borrowed_text, too_few_text
from .metrics import accuracy, rse
from .parts.local import Home, WavesPart
from .privacy.mechanism import Spent
from .protocols.run import Outcome, neighborhood_weights
from .rules import is_missing
from .scaling import AS_IT_IS, NAMES, UNSCALED, AnyScaling, Response, Scaling
from .tables.columns import Column, Columns, is_frame
from .tables.sources import AnyColumns, Batch, inputs_of, is_source, is_spread, open_source, open_spread
from .types import Array

_SLACK = 1e-9  # of a column's span, for rounding
_FAR, _VERY_FAR = 0.1, 1.0  # spans beyond the bounds
_FEW = 0.01  # of the rows
_NAMED = 5  # columns


class Outside:
    """Names the columns of each row whose values lie outside: beyond the bounds of a number or a date, or a new word.

    The bounds are those to which the model clips a column, where it does, and otherwise those of training. Columns
    without names go by their numbers.
    """

    def __init__(self, model: "SiteModel") -> None:
        n_columns, encoding, bounds = model.header.n_columns, model.header.encoding, model.scaling.tensors
        self.bounds = np.full(n_columns, -np.inf), np.full(n_columns, np.inf), np.full(n_columns, np.inf)
        self.owners = list(model.header.columns or map(str, range(n_columns)))  # the user's column of each encoded one
        self._words: list[tuple[int, Column]] = []
        if bounds:
            lowest, highest = bounds.get("lowest", bounds["lower"]), bounds.get("highest", bounds["upper"])
            spans = highest - lowest
            room = _SLACK * np.maximum(spans, np.abs(lowest) + np.abs(highest))
            self.bounds = (lowest - room)[:n_columns], (highest + room)[:n_columns], spans[:n_columns]
        if encoding is not None:
            self.owners = [column.name for column in encoding.columns for _ in column.names_out]
            bounded = {column.name for column in encoding.columns if column.kind == "number"}
            bounded |= {f"{column.name} year" for column in encoding.columns if column.kind == "datetime"}
            unbounded = [name not in bounded for name in encoding.names_out]
            for bound, none in zip(self.bounds, (-np.inf, np.inf, np.inf), strict=True):
                bound[unbounded] = none
            places = np.cumsum([0, *(len(column.names_out) for column in encoding.columns)])
            known = zip(places, encoding.columns, strict=False)
            self._words = [(int(place), column) for place, column in known if column.kind == "category"]

    def __call__(self, rows: Any, encoded: Array) -> list[list[str]] | None:
        """Return for each row, as it came and encoded, the columns whose values lie outside; None if there are none."""
        lowest, highest, _ = self.bounds
        beyond = (encoded < lowest) | (encoded > highest)
        found: list[list[str]] | None = None
        if beyond.any():
            found = [[] for _ in encoded]
            for i, j in np.argwhere(beyond).tolist():
                found[i].append(self.owners[j])
        for place, column in self._words:
            words = encoded[:, place : place + len(column.categories)]  # of two, one has .5 where it is neither
            unknown = words[:, 0] == 0.5 if len(column.categories) == 2 else ~words.any(axis=1)
            for i in np.flatnonzero(unknown).tolist():
                if not is_missing(rows[column.name][i]):
                    found = found or [[] for _ in encoded]
                    found[i].append(column.name)
        return found


class FarRows:
    """Counts rows that lie far outside, as they come in parts, and tells of them where they are not few.

    New rows from where the old ones came from are beyond the bounds now and then, by little: of n old rows and one new
    one, each is as likely to be the largest. So a row is far outside where a value is a tenth of the column's span
    beyond the bounds. That is told where one row in a hundred is, or any by a whole span. It takes two comparisons a
    value. Where nothing is known of `outside`, nothing is counted.
    """

    def __init__(self, outside: Outside | None, rows: Array | None = None) -> None:
        self._outside = outside
        self._n_rows = self._n_far = 0
        self._any_very_far = False
        self._counts: Counter[str] = Counter()
        if rows is not None:
            self.add(rows)

    def add(self, encoded: Array) -> None:
        """Count rows, shape (n_rows, n_columns), as the model takes them."""
        if self._outside is None:
            return
        lowest, highest, spans = self._outside.bounds
        self._n_rows += len(encoded)
        beyond = np.maximum(lowest - encoded, encoded - highest)
        far = beyond > _FAR * spans
        if not far.any():
            return
        self._n_far += int(far.any(axis=1).sum())
        very_far = (beyond > _VERY_FAR * spans) & (spans > 0)  # any other value is, where a column was constant
        self._any_very_far |= bool(very_far.any())
        for j in np.flatnonzero(far.any(axis=0)).tolist():
            self._counts[self._outside.owners[j]] += int(far[:, j].sum())

    def in_words(self) -> str:
        """Return how many rows are far outside, and in which columns; an empty text where they are few."""
        if not self._n_far or (self._n_far <= _FEW * self._n_rows and not self._any_very_far):
            return ""
        columns = ", ".join(f"{name!r} ({count})" for name, count in self._counts.most_common(_NAMED))
        more = f" and {len(self._counts) - _NAMED} more columns" if len(self._counts) > _NAMED else ""
        lie = "lies" if self._n_rows == 1 else "lie"
        rows = f"{self._n_far} of {self._n_rows} rows {lie}"
        return f"{rows} far outside what the models were trained on, in {columns}{more}"


def out_of_range(predictions: Array, low: float, high: float) -> str:
    """Return how many predictions are outside a range that responses had in training; an empty text where few are.

    A response that was never negative may be one that cannot be, and one from 0 to 1 may be a share. Beyond that, a
    prediction is told as a row is that lies far outside.
    """
    n_rows = len(predictions)
    few = _FEW * n_rows
    if low >= 0 and high <= 1 and (count := int(np.sum((predictions < 0) | (predictions > 1)))) > few:
        return (
            f"{count} of {n_rows} predictions lie outside 0 to 1, and no response in training did: if none can, fit "
            'with transform="share" or "logit"'
        )
    if low >= 0 and (count := int(np.sum(predictions < 0))) > few:
        return (
            f"{count} of {n_rows} predictions are negative, and no response in training was: if none can be, fit with "
            'transform="nonnegative", "log1p" or "sqrt"'
        )
    beyond = np.maximum(low - predictions, predictions - high)
    count = int(np.sum(beyond > _FAR * (high - low)))
    if not count or (count <= few and not (beyond > _VERY_FAR * (high - low)).any()):
        return ""
    return f"{count} of {n_rows} predictions lie far outside the responses of training, from {low:.6g} to {high:.6g}"


__all__ = ["Member", "SiteModel", "load"]

FORMAT = "dekrr-model"
FORMAT_VERSION = (
    6  # the newest that is read; 2 has an encoding of columns, or limits that rows are clipped to; 3 classes; 4 a local
    # part of random features among the members; 5 what the site adds for its own rows; 6 a change of the response
)
_STAYS_HOME = f"{FORMAT}-stays-home"  # in the metadata of files of private runs that have parts of the site's own
# what a damaged file can raise
_NOT_READ = (SafetensorError, OSError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError)


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The header of a model file: JSON beside the tensors."""

    site: str  # the site's name
    method: str  # the name of the estimator that trained the model
    kernel: str
    sigma: float
    n_columns: int
    columns: list[str] | None = None  # the names of the columns; None where they have no names
    n_members: int = 1  # the number of models whose predictions are added up, each with its weight
    # what each member is: "own", "neighbor" or "shared" ("local" in files of release 0.2). Where it is empty, the first
    # is the site's own and the others are its neighbours'.
    parts: list[str] = []
    # how much the response depends on each of the `n_columns` columns, as all sites agreed; the largest is 1
    column_scales: list[float] | None = None
    scaled: bool = False  # whether the model scales rows and responses
    privacy: Spent | None = None  # the privacy budget that training spent
    # how the user's columns become the `n_columns` numbers of a row; None where they are numbers
    encoding: Columns | None = None
    targets: list[str] | None = None  # the names of what is predicted, where it has names
    classes: list[str | int | float | bool] | None = None  # the classes, where the model predicts class codes
    # how responses were changed for training; see `dekrr.scaling`
    transform: str | msgspec.UnsetType = msgspec.UNSET  # so that other models' files stay as they were
    format: str = FORMAT  # format, version: the name and the version of the file format
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
    return inputs_of(Batch("the rows", 0, X), n_columns)


@dataclass(frozen=True, eq=False)
class Member:
    """One linear model: a feature map, the coefficients of its features, and its weight in a site's prediction.

    Parameters
    ----------
    coefficients : ndarray of shape (n_features,) or (n_features, n_outputs)
    """

    feature_map: FeatureMap
    coefficients: Array
    weight: float = 1.0

    def predict(self, X: Array) -> Array:
        """Return coefficients'z(x) for scaled rows, shape (n_rows,) or (n_rows, n_outputs)."""
        return self.feature_map.apply(X, self.coefficients)


def joined(members: Sequence[Member]) -> Member:
    """Return members as one, whose prediction is the weighted sum of theirs: one product instead of one for each."""
    feature_map = FeatureMap.joined(member.feature_map for member in members)
    return Member(feature_map, np.concatenate([member.weight * member.coefficients for member in members]))


@dataclass(frozen=True, eq=False, repr=False)
class SiteModel:
    """A site's model. Its prediction is the weighted sum of its members' predictions, in the units of the response.

    For rows of the site's own, it adds the site's level and its local part. It is a fitted regressor to scikit-learn:
    permutation importance, partial dependence and scorers take it.

    Parameters
    ----------
    members : tuple of Member
        First the site's own agreed model; then its neighbours' models, if it predicts with its neighbourhood; then the
        shared part, where there is one. `header.parts` says which is which.
    calibration : Calibration, optional
        What intervals are made of.
    home : Home, optional
        What the site adds for its own rows; see `dekrr.parts.local`.
    response : Response
        How responses were changed for training; predictions are changed back.
    """

    header: Header
    members: tuple[Member, ...]
    scaling: AnyScaling = UNSCALED
    calibration: Calibration | None = None
    home: Home | None = None
    response: Response = AS_IT_IS

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
        """Return the model without its local part and its level: what the sites agreed on, to be given to others.

        Its predictions are those that `predict` gives for rows from elsewhere. What is left out is fitted to the site's
        own rows alone. Intervals are those of the prediction without it, and are made of rows that may be in sums. A
        file of release 0.2 does not have them. After a private run, what is left follows from the noisy sums alone.
        """
        calibration = None if self.calibration is None else self.calibration.to_pass_on
        if self.calibration is not None and calibration is None:
            warn(nothing_to_pass_on("intervals", self.header.site))
        return replace(self, home=None, calibration=calibration)

    def for_elsewhere(self) -> "SiteModel":
        """Return the model that predicts every row as one from elsewhere."""
        return replace(self, home=None)

    @property
    def stays_home(self) -> bool:
        """Whether the model must stay at its site though its run was private.

        The promise of differential privacy does not cover what the site added for its own rows. Its file says so, too;
        `without_local` gives what may be passed on.
        """
        return self.header.privacy is not None and self.home is not None

    @property
    def level(self) -> Array:
        """What the site's responses are above or below those of all sites, in their units, shape () or (n_outputs,).

        Where responses were changed for training, these are the units of the changed ones.
        """
        zero = np.zeros((1, *self.coefficients.shape[1:]))
        if self.home is None:
            return np.asarray(zero[0])
        return np.asarray((self.scaling.undo(zero + self.home.level) - self.scaling.undo(zero))[0])

    def predict(self, X: Any, *, elsewhere: bool = False) -> Array:
        """Predict the response.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_columns), or source
            A source is a path, or another object that gives rows in batches; see `dekrr.tables.sources`.
        elsewhere : bool, default=False
            Whether the rows are from anywhere. By default they are the site's own, and have its level and its local
            part.

        Returns
        -------
        ndarray of shape (n_rows,) or (n_rows, n_outputs)
            Of a Dask frame, a Dask series or frame, which is computed when it is asked for.
        """
        if is_spread(X):
            lazily: Array = open_spread(X).predicted(partial(self.predict, elsewhere=elsewhere), self.n_outputs)
            return lazily
        if is_source(X):
            columns = self.header.reading
            no_rows = np.empty((0, *self.coefficients.shape[1:]))
            batches = open_source(X, once=True).batches(columns)
            found = (self.predict_encoded(inputs_of(batch, columns), elsewhere=elsewhere) for batch in batches)
            return np.concatenate([no_rows, *found])
        return self.predict_encoded(as_rows(X, self.header), elsewhere=elsewhere)

    def predict_interval(self, X: Any, coverage: float = 0.9, *, elsewhere: bool = False) -> Array:
        """Return intervals that cover the response of the site's own rows with a chance of `coverage`.

        Nothing is promised for rows that are unlike the site's own. A site that held out no rows has the intervals of
        all sites' errors; where all held out too few rows for the coverage, the ends are infinite. A warning says so.

        Returns
        -------
        ndarray of shape (n_rows, 2) or (n_rows, 2, n_outputs)
            The lower and the upper end.
        """
        if elsewhere:
            return self.without_local().predict_interval(X, coverage)
        ends = self.interval_encoded(as_rows(X, self.header), coverage)
        if self.calibration is not None and not self.calibration.reaches(coverage):
            warn(too_few_text([self.header.site], coverage, "the ends of its intervals are infinite"))
        elif self.calibration is not None and not self.calibration.n_held_out:
            warn(borrowed_text([self.header.site]))
        return ends

    def interval_encoded(self, rows: Array, coverage: float = 0.9) -> Array:
        """Return `predict_interval` of rows whose columns are numbers already, shape (n_rows, header.n_columns)."""
        if self.calibration is None:
            raise SettingsError(
                f"the model of site {self.header.site!r} has no intervals: it was fitted without them, or the site has "
                "too few rows. Fit with intervals=True"
            )
        rows = self.scaling.rows(rows)
        middle = self._through(rows)
        radius = self.calibration.radius(self.feature_map(rows), coverage).reshape(middle.shape)
        ends = np.stack([self.scaling.undo(middle - radius), self.scaling.undo(middle + radius)], axis=1)
        return self.response.ends_back(ends)

    def outside(self, X: Any) -> list[list[str]]:
        """Return for each row the columns whose values lie outside what the model was trained on.

        That is a number or a date beyond the bounds of training, or a word that the model does not know. The prediction
        of such a row is a guess, and its interval is no wider for it.
        """
        rows, encoded = X, as_rows(X, self.header)
        if self.header.encoding is not None:
            rows = {name: raw.values for name, raw in self.header.encoding.read(X, "the rows").items()}
        return Outside(self)(rows, encoded) or [[] for _ in encoded]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the coefficient of determination R^2 of `predict(X)`, the mean over outputs."""
        return 1 - rse(y, self.predict(X), sample_weight)

    def fit(self, X: Any, y: Any = None) -> "SiteModel":
        """Raise `SettingsError`: a site's model comes of a training that all sites take part in."""
        raise SettingsError(
            "a site's model cannot be fitted by itself: fit DeKRRRegressor or DeKRRClassifier, or LocalRegressor for "
            "one site"
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

    def predict_encoded(self, rows: Array, *, elsewhere: bool = False) -> Array:
        """Predict the response of rows whose columns are numbers already.

        Parameters
        ----------
        rows : ndarray of shape (n_rows, header.n_columns)
        """
        return self.response.back(self.scaling.undo(self._through(self.scaling.rows(rows), elsewhere=elsewhere)))

    def _through(self, rows: Array, *, elsewhere: bool = False) -> Array:
        """Return the prediction for scaled rows, in units of scaled responses."""
        if self.home is None or elsewhere:
            return self._elsewhere.predict(rows)
        return self.home.finished(rows, self.joined_at_home.predict(rows))

    @cached_property
    def _elsewhere(self) -> Member:
        return joined(self.members)

    @cached_property
    def joined_at_home(self) -> Member:
        """The members as one, with the weights that they have for the site's own rows."""
        if self.home is None:
            return self._elsewhere
        shared = self.header.parts.count("shared")
        weights = neighborhood_weights(len(self.members) - shared - 1, self.home.own_weight) + [1.0] * shared
        return joined([replace(member, weight=w) for member, w in zip(self.members, weights, strict=True)])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a safetensors file; an existing file is replaced atomically."""
        tensors, metadata = self._contents()
        _require_place(Path(path))
        if self.stays_home:
            warn(
                f"{Path(path).name} must stay at site {self.header.site!r}: differential privacy covers what the sites "
                "sent, and not the trees and the level that this site fitted to its own rows. Pass on "
                "model.without_local() instead"
            )
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
        if self.response.is_learner:
            raise ModelFileError(
                f"a model with transform={self.response.transform!r} cannot be written: a file keeps numbers and names "
                f"alone. Fit with one of the names {', '.join(NAMES)}, or pickle the estimator"
            )
        tensors = {"weights": np.array([member.weight for member in self.members])}
        for i, member in enumerate(self.members):
            tensors[f"frequencies_{i}"] = member.feature_map.frequencies
            tensors[f"phases_{i}"] = member.feature_map.phases
            tensors[f"amplitudes_{i}"] = member.feature_map.amplitudes
            tensors[f"coefficients_{i}"] = member.coefficients
        tensors |= self.scaling.tensors
        tensors |= {} if self.calibration is None else self.calibration.tensors
        tensors |= {} if self.home is None else self.home.tensors()
        version = 2 if "lowest" in tensors else 1
        version = version if self.calibration is None and self.home is None else 5
        header = msgspec.structs.replace(self.header, version=max(self.header.version, version))
        if self.response.name is not None:
            header = msgspec.structs.replace(header, transform=self.response.name, version=FORMAT_VERSION)
        tensors = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
        metadata = {FORMAT: msgspec.json.encode(header).decode()}
        return tensors, metadata | ({_STAYS_HOME: f"must stay at site {header.site}"} if self.stays_home else {})


def nothing_to_pass_on(what: str, site: str) -> str:
    """Return the warning about a model that has something for the whole prediction alone."""
    return (
        f"the model of site {site!r} without its local part has no {what}: what it has is made of the site's own rows, "
        f"and holds for the whole model alone. Fit again for {what} to pass on; a site with few rows has none"
    )


def _require_place(path: Path) -> None:
    """Refuse a path that no file can be written to, in words about the path itself."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give a file in it, such as {path / 'model.safetensors'}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} of {path.name} does not exist: make it first")
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"the folder {path.parent} of {path.name} cannot be written to: give another one")


def response_range_of(model: SiteModel) -> tuple[float, float] | None:
    """Return the lowest and the highest response of training; None where they are not known.

    Of several outputs the bounds are not those of training; see `dekrr.protocols.run.equal_outputs`.
    """
    bounds = model.scaling.tensors
    known = bounds and "lowest" not in bounds and len(bounds["lower"]) == model.header.n_columns + 1
    return (float(bounds["lower"][-1]), float(bounds["upper"][-1])) if known else None


def from_bytes(data: bytes, path: Any = "the model") -> SiteModel:
    """Return the model that `SiteModel.to_bytes` wrote; see `load`. The `path` is for messages."""
    size = int.from_bytes(data[:8], "little")
    try:
        tensors, metadata = tensors_of(data), msgspec.json.decode(data[8 : 8 + size]).get("__metadata__")
    except (*_NOT_READ, msgspec.MsgspecError) as error:
        noise = isinstance(error, SafetensorError) and "header" in str(error)
        why = "it does not begin as one" if noise else error
        raise ModelFileError(
            f"{path} is damaged, or not a model file: {why}. Model files are written by models_[site].save(path), "
            "and by dekrr fit and dekrr node"
        ) from None
    return _from_tensors(path, _read_header(path, metadata), tensors)


def load(path: str | os.PathLike[str]) -> SiteModel:
    """Read the model of a site that `SiteModel.save` wrote.

    A file that is damaged, is not a model, or has a newer format raises `ModelFileError`.
    """
    if os.path.isdir(path):
        raise ModelFileError(f"{path} is a folder: give one of its model files, which end in .safetensors")
    return from_bytes(Path(path).read_bytes(), path)


def _read_header(path: Any, metadata: dict[str, str] | None) -> Header:
    if not metadata or FORMAT not in metadata:
        raise ModelFileError(f"{path} is a safetensors file, but not a dekrr model: it has no {FORMAT} header")
    try:
        header = msgspec.json.decode(metadata[FORMAT], type=Header)
    except msgspec.MsgspecError as error:
        raise ModelFileError(f"{path} has a header that cannot be read: {error}") from None
    if header.version > FORMAT_VERSION:
        raise ModelFileError(
            f"{path} has format version {header.version}; this dekrr reads up to {FORMAT_VERSION}: install a newer one"
        )
    return header


def _from_tensors(path: Any, header: Header, tensors: dict[str, Array]) -> SiteModel:
    try:
        members, home = [], None
        weights = tensors["weights"]
        if weights.shape != (header.n_members,):
            raise ModelFileError(f"{path}: {weights.shape} weights for {header.n_members} members")
        for i in range(header.n_members):
            frequencies = tensors[f"frequencies_{i}"]
            phases, amplitudes = tensors[f"phases_{i}"], tensors[f"amplitudes_{i}"]
            coefficients = tensors[f"coefficients_{i}"]
            outputs = tensors["coefficients_0"].shape[1:]
            size = (frequencies.shape[1],)
            fits = phases.shape == amplitudes.shape == size and coefficients.shape == size + outputs
            known = {header.n_columns}
            if header.parts[i : i + 1] == ["local"]:
                known.add(header.n_columns + math.prod(outputs))
            if frequencies.shape[0] not in known or not fits or len(outputs) > 1:
                raise ModelFileError(f"{path}: the shapes of member {i} do not fit each other")
            member = Member(FeatureMap(frequencies, phases, amplitudes), coefficients, float(weights[i]))
            if header.parts[i : i + 1] == ["local"]:  # of release 0.2, which had it among the members
                home = Home(float(weights[0]), np.zeros(outputs), WavesPart(member.feature_map, coefficients))
            else:
                members.append(member)
        if home is not None:
            parts = [part for part in header.parts if part != "local"]
            header = msgspec.structs.replace(header, parts=parts, n_members=len(members))
        home = home or Home.from_tensors(tensors, header.n_columns, outputs)
        scaling = Scaling.from_tensors(tensors) if header.scaled else UNSCALED
        n_bounds = header.n_columns + math.prod(members[0].coefficients.shape[1:])
        if any(bound.shape != (n_bounds,) for bound in scaling.tensors.values()):
            sizes = " and ".join(str(bound.size) for bound in scaling.tensors.values())
            raise ModelFileError(f"{path}: {sizes} bounds for {header.n_columns} columns and a response")
    except (KeyError, IndexError) as error:
        raise ModelFileError(f"{path} lacks the tensor {error}") from None
    clips = ("lowest", "highest")  # limits of what is not clipped are infinite
    if any(np.isnan(t).any() or (np.isinf(t).any() and name not in clips) for name, t in tensors.items()):
        raise ModelFileError(f"{path} has NaN or infinite values")
    calibration = None
    if "interval_own" in tensors:
        try:
            own = members[0]
            calibration = Calibration.of(tensors, own.feature_map.n_features, math.prod(own.coefficients.shape[1:]))
        except (KeyError, ValueError) as error:
            raise ModelFileError(f"{path}: what intervals are made of is damaged: {error}") from None
    transform = header.transform or None
    if transform not in (None, *NAMES):
        raise ModelFileError(f"{path} has an unknown transform of the response, {transform!r}")
    model = SiteModel(header, tuple(members), scaling, calibration, home, Response(transform))
    if header.classes is None:
        return model
    try:
        return SiteClassifier.of(model, header.classes, ClassCalibration.of(tensors, len(header.classes)))
    except (KeyError, ValueError) as error:
        raise ModelFileError(f"{path}: what probabilities of classes are made of is damaged: {error}") from None


def members_of(outcome: Outcome, prediction: str) -> tuple[Member, ...]:
    """Return the models that a site's prediction adds up.

    First its own agreed model, and for "neighborhood" those of its neighbours, too; then the shared part, where there
    is one.
    """
    agreed = [Member(*parts) for parts in outcome.agreed_members(prediction)]
    others = [Member(part.feature_map, part.coefficients) for part in (outcome.shared,) if part]
    return (*agreed, *others)


def model_of(outcome: Outcome, header: Header, prediction: str, response: Response = AS_IT_IS) -> SiteModel:
    """Return a site's model; what its header says beforehand is filled in."""
    members, scales = members_of(outcome, prediction), outcome.column_scales
    shared = ["shared"] if outcome.shared else []
    header = msgspec.structs.replace(
        header,
        n_members=len(members),
        parts=["own", *["neighbor"] * (len(members) - 1 - len(shared)), *shared],
        column_scales=None if scales is None else scales.tolist(),
        scaled=isinstance(outcome.scaling, Scaling),
        privacy=outcome.privacy,
    )
    return SiteModel(header, members, outcome.scaling, outcome.calibration, outcome.home, response)


_VERSION_OF_CLASSES = 3  # of files of classes


def uncalibrated(n_classes: int = 2) -> ClassCalibration:
    """Return what stands for a calibration where no rows were held out."""
    return ClassCalibration(Platt.start(n_classes), np.zeros(1), np.zeros(1))


@dataclass(frozen=True, eq=False, repr=False)
class SiteClassifier(SiteModel):
    """A site's model of classes; `dekrr.load` returns it where a file has one. Its header has the classes."""

    class_calibration: ClassCalibration = field(default_factory=uncalibrated)

    @classmethod
    def of(
        cls, model: SiteModel, classes: Iterable[Any], calibration: ClassCalibration, target: str | None = None
    ) -> "SiteClassifier":
        """Return the classifier that a model of class codes is; classes are in the order of the codes."""
        known = np.asarray(classes if isinstance(classes, np.ndarray) else list(classes)).tolist()
        targets = model.header.targets if target is None else [target]
        version = max(model.header.version, _VERSION_OF_CLASSES)
        header = msgspec.structs.replace(model.header, classes=known, targets=targets, version=version)
        return cls(header, model.members, model.scaling, home=model.home, class_calibration=calibration)

    def without_local(self) -> "SiteClassifier":
        """Return the model without its local part, with the probabilities of its prediction; see `SiteModel`."""
        calibration = self.class_calibration.to_pass_on
        if calibration is None:
            if self.class_calibration.own.any():
                warn(nothing_to_pass_on("prediction sets", self.header.site))
            calibration = uncalibrated(len(self.classes_))
        found = super().without_local()
        assert isinstance(found, SiteClassifier)
        return replace(found, class_calibration=calibration)

    def for_elsewhere(self) -> "SiteClassifier":
        """Return the model that gives every row the probabilities of one from elsewhere."""
        calibration = self.class_calibration.elsewhere or self.class_calibration
        return replace(self, home=None, class_calibration=calibration)

    def __repr__(self) -> str:
        return super().__repr__().replace(" columns", f" columns, {len(self.classes_)} classes", 1)

    @property
    def classes_(self) -> np.ndarray:
        """The classes, shape (n_classes,)."""
        return np.asarray(self.header.classes)

    def codes(self, X: Any, *, elsewhere: bool = False) -> Array:
        """Return what is predicted of the class codes, shape (n_rows,) or (n_rows, n_classes)."""
        return SiteModel.predict(self, X, elsewhere=elsewhere)

    def probabilities_of(self, codes: Array) -> Array:
        """Return the probability of each class, shape (n_rows, n_classes), from predictions of the codes."""
        return self.class_calibration.platt.probabilities(scores(codes))

    def predict(self, X: Any, *, elsewhere: bool = False) -> np.ndarray:
        """Return the most probable class of each row, shape (n_rows,); see `SiteModel.predict`."""
        return np.asarray(self.classes_[np.argmax(self.predict_proba(X, elsewhere=elsewhere), axis=1)])

    def predict_proba(self, X: Any, *, elsewhere: bool = False) -> Array:
        """Return the probability of each class, shape (n_rows, n_classes); see `SiteModel.predict`."""
        found = self.codes(X, elsewhere=elsewhere)
        passed_on = self.class_calibration.elsewhere if elsewhere else None
        return self.probabilities_of(found) if passed_on is None else passed_on.platt.probabilities(scores(found))

    def decision_function(self, X: Any) -> Array:
        """Return logits, shape (n_rows, n_classes); of two classes their difference, shape (n_rows,)."""
        return margins(self.class_calibration.platt.logits(scores(self.codes(X))))

    def predict_set(self, X: Any, coverage: float = 0.9) -> np.ndarray:
        """Return which classes are in each row's prediction set, a mask of shape (n_rows, n_classes).

        If a row comes from the same distribution as the site's own rows, its set holds its class with a probability of
        at least `coverage`. A set may be empty if no class is probable enough. If the site held out too few rows for
        the coverage, the set holds all classes, and a warning says so.
        """
        least = self.class_calibration.least_probability(coverage)
        if not least:
            warn(too_few_text([self.header.site], coverage, "its prediction sets have all classes"))
        return np.asarray(self.predict_proba(X) >= least)

    def predict_interval(self, X: Any, coverage: float = 0.9, *, elsewhere: bool = False) -> Array:
        """Raise `SettingsError`: classes have prediction sets."""
        raise SettingsError("a model of classes has no intervals: use predict_set, which gives sets of classes")

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy of `predict(X)`."""
        return accuracy(y, self.predict(X), sample_weight)

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, TargetTags

        return replace(
            super().__sklearn_tags__(),
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            regressor_tags=None,
        )

    def _contents(self) -> tuple[dict[str, Array], dict[str, str]]:
        """Return the tensors of the model's file, and its metadata."""
        tensors, metadata = super()._contents()
        own = {name: np.ascontiguousarray(t, dtype=np.float64) for name, t in self.class_calibration.tensors.items()}
        return tensors | own, metadata


def margins(logits: Array) -> Array:
    """Return logits; of two classes their difference."""
    return np.asarray(logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits)
