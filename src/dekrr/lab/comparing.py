"""Should sites join? Errors alone, together and pooled, on the same held-out rows of one's own table.

It is for a trial on rows in one place: an older export, a public table like one's own, or the rows of a few sites that
may be shown to each other.
"""

import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from ..errors import DataError, DekrrWarning, PoorFitWarning, SettingsError
from ..estimators import DeKRRClassifier, DeKRRRegressor
from ..estimators.model_set import as_frame, mean_excess
from ..estimators.tables import named
from ..labels import factorise, listed, places_of
from ..metrics import excess
from ..scaling import Response
from ..tables.columns import array_of, column_names, is_frame
from ..tables.rows import RowHash
from ..tables.sources import is_source, open_source
from ..types import Array, Block
from .yardsticks import Task, best, doubted, losses_of

__all__ = ["compare"]

_INNER_FOLDS = 5  # by which yardsticks choose
_CLEARLY = 2.0  # standard errors


def compare(
    table: Any,
    target: Any,
    sites: Any,
    *,
    columns: Sequence[str] | None = None,
    folds: int = 5,
    test: float | None = None,
    classes: bool | None = None,
    leave_out: Iterable[Hashable] | str = (),
    **settings: Any,
) -> Any:
    """Compare what each site would do alone with what sites do together, and with all rows in one place.

    Each row is predicted by models that have not seen it, and all models learn from the same rows:

    - *alone*: the best of the site's mean, ridge regression and boosted trees on the site's rows, by the site's own
      folds;
    - *together*: `DeKRRRegressor`, or `DeKRRClassifier`, each row by its own site's model;
    - *pooled*: the better of boosted trees and ridge regression on the rows of all sites, with the site as a category
      and a level for each site. Sites that cannot pool their rows do not have it. It shows what that costs.

    The errors of numbers are relative squared errors (RSE), and those of classes are log losses.

    Parameters
    ----------
    table : frame, array-like of shape (n_rows, n_columns), or source
        A source is a path, for instance, and is read into memory.
    target : str, or array-like of shape (n_rows,)
        The column to predict. Words are classes.
    sites : str, or array-like of shape (n_rows,)
        The column of the site.
    columns : sequence of str, optional
        The columns to predict from; by default all others.
    folds : int, default=5
        Each of them is held out once. Rows get their fold by a hash, within their site.
    test : float, optional
        Hold out this share of each site's rows once instead, which is quicker.
    classes : bool, optional
        Whether the target has classes; by default if it has words or True and False.
    leave_out : "all", or iterable of sites
        These are also predicted as newcomers, by the mean of models of all other sites; one more fit for each.
    **settings : object
        Of the estimator. Alone and pooled have its `transform`, too.

    Returns
    -------
    frame
        Of pandas, if it is installed; otherwise an object with `to_dict`. It has a row for each site, and "all". The
        columns are "rows" (tested), "alone", "alone_by" (what was chosen most), "together", "pooled", "pooled_by", and
        with `leave_out` "left_out". The RSE of a site is relative to the variance of the site's rows, that of "all" to
        the variance over all sites' rows. ``attrs["verdict"]`` has the answer in words, ``attrs["measure"]`` what the
        errors are. `dekrr.plot.comparison` draws it.

    Examples
    --------
    >>> import dekrr
    >>> from dekrr.data import make_sites
    >>> X, y, sites = make_sites(n_sites=3, rows_per_site=60, random_state=0)
    >>> found = dekrr.compare(X, y, sites, test=0.25, n_features=20, random_state=0)
    >>> list(found.columns)
    ['rows', 'alone', 'alone_by', 'together', 'pooled', 'pooled_by']
    >>> found.attrs["verdict"].split(":")[0] in ("Join", "Stay alone", "Joining changes little")
    True
    """
    trial = _read(table, target, sites, columns, classes)
    if test is not None and not 0 < test <= 0.5:
        raise SettingsError(f"test is the share of rows to hold out, above 0 and at most 0.5; got {test!r}")
    n_folds = folds if test is None else round(1 / test)
    if n_folds < 2:
        raise SettingsError(f"folds is {folds}; it must be at least 2")
    fold_of = _dealt(trial.hashes, trial.index, n_folds)
    found = _Found.empty(len(trial.y))
    for fold in range(n_folds if test is None else 1):
        _predict_fold(trial, np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold), settings, found)
    left_out = _left_out(trial, leave_out, settings)
    return _frame(trial, found, left_out)


@dataclass(frozen=True, eq=False)
class _Trial:
    """A table as all methods read it."""

    X: Any
    y: np.ndarray  # responses, or the places of classes
    names: np.ndarray | None  # of classes
    labels: list[Hashable]
    index: np.ndarray  # the place of each row's site
    hashes: np.ndarray

    @property
    def n_classes(self) -> int:
        return 0 if self.names is None else len(self.names)

    @property
    def responses(self) -> np.ndarray:
        return self.y if self.names is None else self.names[self.y]

    def rows(self, rows: np.ndarray) -> Any:
        """Return rows of the table, of the same library."""
        if not is_frame(self.X):
            return self.X[rows]
        import narwhals as nw

        return nw.from_native(self.X, eager_only=True)[rows.tolist(), :].to_native()

    def sites(self, rows: np.ndarray) -> list[Hashable]:
        return [self.labels[place] for place in self.index[rows]]


@dataclass(frozen=True, eq=False)
class _Found:
    """The loss of each row that was held out, and what was chosen for it."""

    losses: dict[str, Array]
    chosen: dict[str, np.ndarray]

    @classmethod
    def empty(cls, n_rows: int) -> "_Found":
        losses = {name: np.full(n_rows, np.nan) for name in ("alone", "together", "pooled")}
        return cls(losses, {name: np.full(n_rows, "", dtype=object) for name in ("alone", "pooled")})


def _read(table: Any, target: Any, sites: Any, columns: Sequence[str] | None, classes: bool | None) -> _Trial:
    if not is_frame(table) and is_source(table):
        import pandas as pd

        batches = (batch.table for batch in open_source(table).read(None))
        parts = [part.to_pandas() if hasattr(part, "to_pandas") else part for part in batches]
        table = pd.concat(parts, ignore_index=True)
    if is_frame(table):
        table, y, sites, _ = named(table, target, sites, columns)
    elif columns is not None or isinstance(target, str) or isinstance(sites, str):
        raise DataError("names of columns need a frame or a file; give arrays of the target and the sites")
    else:
        table, y = np.asarray(table, dtype=float), target
    y = np.asarray(y)
    if y.ndim != 1 or len(y) != len(table):
        raise DataError(f"compare takes one target; got an array of shape {y.shape} for {len(table)} rows")
    labels, index = factorise(sites, len(y))
    if len(labels) < 2:
        raise DataError(f"there is only one site, {listed(labels)}: nothing is there to join")
    names = None
    if classes if classes is not None else y.dtype.kind in "OUSb":
        try:
            names, y = np.unique(y, return_inverse=True)
        except TypeError:
            raise DataError("the target has missing values, or words and numbers: drop or mend such rows") from None
    elif not np.isfinite(y.astype(float)).all():
        raise DataError("the target has missing or infinite values: drop such rows")
    elif classes is None and len(two := np.unique(y)) == 2:
        warnings.warn(
            f"the target has two values alone, {two[0]:g} and {two[1]:g}, and is compared as a number; classes=True "
            "(on the command line, --classes) compares classes",
            DekrrWarning,
            stacklevel=3,
        )
    return _Trial(table, y if names is not None else y.astype(float), names, labels, index, _hashes(table, y))


def _hashes(table: Any, y: np.ndarray) -> np.ndarray:
    """Return a hash of each row, of its columns and its response; words have one of their own."""
    values = [array_of(table, name) for name in column_names(table)] if is_frame(table) else list(table.T)
    return RowHash()(Block(np.column_stack([_numbers(column) for column in values]), np.asarray(y, dtype=float)))


def _numbers(column: np.ndarray) -> Array:
    if column.dtype.kind in "fiub":
        return np.asarray(column, dtype=float)
    words, place = np.unique(np.array([str(value) for value in column.tolist()]), return_inverse=True)
    digests = [int.from_bytes(blake2b(word.encode(), digest_size=6).digest()) for word in words.tolist()]
    return np.array(digests, dtype=float)[place]


def _dealt(hashes: np.ndarray, index: np.ndarray, n_folds: int) -> np.ndarray:
    """Return the fold of each row: those of a site are dealt out in the order of their hashes, equal rows together.

    Where a site has two different rows or more, none of its folds has all of them.

    Examples
    --------
    >>> _dealt(np.array([7, 3, 9, 3], dtype=np.uint64), np.zeros(4, dtype=int), 2)
    array([0, 1, 1, 1])
    """
    fold_of: np.ndarray = np.empty(len(hashes), dtype=np.intp)
    for own in places_of(index, int(index.max()) + 1):
        different, place = np.unique(hashes[own], return_inverse=True)
        start = int(different[0] % np.uint64(n_folds)) if len(different) else 0
        fold_of[own] = (place + start) % n_folds
    return fold_of


def _estimator(trial: _Trial, settings: Mapping[str, Any]) -> Any:
    given = {**settings, "options": {"store_sums": False, **(settings.get("options") or {})}}
    if trial.names is not None:
        return DeKRRClassifier(**{"unknown_sites": "mean", **given})
    return DeKRRRegressor(**{"unknown_sites": "mean", "intervals": False, **given})


def _together(trial: _Trial, kept: np.ndarray, settings: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the estimator fitted to rows, and what makes numbers of rows of the table."""
    estimator = _estimator(trial, settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PoorFitWarning)  # which is what the frame says
        estimator.fit(trial.rows(kept), trial.responses[kept], sites=trial.sites(kept))
    encoding = getattr(getattr(estimator, "regressor_", estimator), "columns_", None)
    if encoding is not None:
        return estimator, encoding.encode(trial.X, "the rows")
    if is_frame(trial.X):
        return estimator, np.column_stack([array_of(trial.X, name) for name in column_names(trial.X)]).astype(float)
    return estimator, trial.X


def _predicted(trial: _Trial, estimator: Any, held: np.ndarray, n_kept: int, sites: Any) -> Array:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DekrrWarning)
        if trial.names is None:
            return np.asarray(estimator.predict(trial.rows(held), sites=sites))
        found = np.zeros((len(held), trial.n_classes))
        known = np.searchsorted(trial.names, estimator.classes_)
        found[:, known] = estimator.predict_proba(trial.rows(held), sites=sites)
        return doubted(found, n_kept)


def _predict_fold(
    trial: _Trial, kept: np.ndarray, held: np.ndarray, settings: Mapping[str, Any], found: _Found
) -> None:
    """Fit all methods to some rows, and write the losses of others; those of sites without a row to fit have none."""
    held = held[np.isin(trial.index[held], trial.index[kept])]
    if not len(held):
        return
    estimator, numbers = _together(trial, kept, settings)
    together = _predicted(trial, estimator, held, len(kept), trial.sites(held))
    found.losses["together"][held] = losses_of(trial.y[held], together, trial.n_classes)
    inner = _dealt(trial.hashes[kept], trial.index[kept], _INNER_FOLDS)
    way = Response.of(settings.get("transform"))  # the others know it, too
    task = Task(numbers[kept], way.forward(trial.y[kept]), inner, trial.n_classes, trial.index[kept], len(trial.labels))
    _keep(found, "pooled", held, trial, numbers, best(task, mean=False), way)
    alone = Task(task.X, task.y, task.folds, task.n_classes, task.site)
    for place in np.unique(trial.index[held]):
        own = held[trial.index[held] == place]
        _keep(found, "alone", own, trial, numbers, best(alone.take(task.site == place), mean=True), way)


def _keep(
    found: _Found, name: str, held: np.ndarray, trial: _Trial, numbers: Array, chosen: tuple[str, Any], way: Response
) -> None:
    kind, predict = chosen
    prediction = way.back(predict(numbers[held], trial.index[held]))
    found.losses[name][held] = losses_of(trial.y[held], prediction, trial.n_classes)
    found.chosen[name][held] = kind


def _left_out(trial: _Trial, leave_out: Iterable[Hashable] | str, settings: Mapping[str, Any]) -> dict[int, Array]:
    """Return the losses of sites that were left out, by the place of the site."""
    by_name = {str(label): label for label in trial.labels}  # as a command line has them
    given = [leave_out] if isinstance(leave_out, str) else leave_out
    wanted = trial.labels if leave_out == "all" else [by_name.get(site, site) for site in given]  # type: ignore[call-overload]
    unknown = [site for site in wanted if site not in trial.labels]
    if unknown:
        raise DataError(f"leave_out has unknown sites {listed(unknown)}; the sites are {listed(trial.labels)}")
    found = {}
    for site in wanted:
        place = trial.labels.index(site)
        kept, held = np.flatnonzero(trial.index != place), np.flatnonzero(trial.index == place)
        estimator, _ = _together(trial, kept, settings)
        found[place] = losses_of(trial.y[held], _predicted(trial, estimator, held, len(kept), None), trial.n_classes)
    return found


def _frame(trial: _Trial, found: _Found, left_out: Mapping[int, Array]) -> Any:
    tested = np.isfinite(found.losses["together"])
    of_sites = [own[tested[own]] for own in places_of(trial.index, len(trial.labels))]
    groups = [*of_sites, np.flatnonzero(tested)]
    shown: dict[str, list[Any]] = {"rows": [len(rows) for rows in groups]}
    for name in ("alone", "together", "pooled"):
        shown[name] = [_error(trial, rows, found.losses[name][rows]) for rows in groups]
        if name in found.chosen:
            shown[f"{name}_by"] = [_most(found.chosen[name][rows]) for rows in groups]
    if left_out:
        rows_of = places_of(trial.index, len(trial.labels))
        errors = [_error(trial, rows_of[k], left_out[k]) if k in left_out else np.nan for k in range(len(of_sites))]
        shown["left_out"] = [*errors, np.nan]
    measure = "log loss" if trial.names is not None else "RSE"
    verdict = _verdict(trial, found, of_sites, {name: shown[name][-1] for name in found.losses}, measure)
    return as_frame(shown, [*trial.labels, "all"], "site", verdict=verdict, measure=measure)


def _spread(trial: _Trial, rows: np.ndarray) -> float:
    """Return what mean losses are divided by: the variance of numbers, and 1 for classes."""
    return 1.0 if trial.names is not None else float(np.var(trial.y[rows]))


def _error(trial: _Trial, rows: np.ndarray, losses: Array) -> float:
    if not len(rows):
        return float("nan")
    spread, mean = _spread(trial, rows), float(np.mean(losses))
    return mean / spread if spread > 0 else float("nan")


def _most(chosen: np.ndarray) -> str:
    names, counts = np.unique(chosen.astype(str), return_counts=True)
    return str(names[np.argmax(counts)]) if len(names) else ""


def _verdict(
    trial: _Trial, found: _Found, of_sites: Sequence[np.ndarray], means: Mapping[str, float], measure: str
) -> str:
    """Return in a line whether sites should join: by the mean over sites of how much more error a row has together."""
    more = []
    for rows in of_sites:
        if len(rows) > 1 and (spread := _spread(trial, rows)) > 0:
            losses = [found.losses[name][rows] / spread for name in ("together", "alone")]
            more.append(excess(*losses))
    mean, error = mean_excess(more)
    n_better = sum(own < 0 for own, _ in more)
    answer = (
        "Join" if mean < -_CLEARLY * error else "Stay alone" if mean > _CLEARLY * error else "Joining changes little"
    )
    return (
        f"{answer}: together has less error than alone at {n_better} of {len(more)} sites. Over all rows the {measure} "
        f"is {means['together']:.3g} together, {means['alone']:.3g} alone and {means['pooled']:.3g} pooled"
    )
