"""Cross-validation that knows of sites: splitters that keep every site in every fold, and scorers own and union.

With scikit-learn's metadata routing, `sites` goes to the estimator, the splitter and the scorer by itself:

>>> import sklearn
>>> from sklearn.model_selection import cross_validate
>>> from dekrr import DeKRRRegressor
>>> from dekrr.data import make_sites
>>> from dekrr.model_selection import OWN, UNION, SiteKFold
>>> X, y, sites = make_sites(n_sites=4, random_state=0)
>>> regressor = DeKRRRegressor(n_features=10, sigma=0.3, alpha=1e-4, consensus=1.0, random_state=0)
>>> with sklearn.config_context(enable_metadata_routing=True):
...     found = cross_validate(regressor, X, y, cv=SiteKFold(3), scoring={"own": OWN, "union": UNION},
...                            params={"sites": sites})
>>> found["test_own"].shape
(3,)
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils.metadata_routing import MetadataRequest

from .errors import DataError, SettingsError
from .labels import factorise, listed, places_of
from .metrics import accuracy, rse
from .model import SiteModel
from .tables.columns import array_of, column_names, is_frame, require_columns, select

__all__ = ["OWN", "UNION", "LeaveOneSiteOut", "Scorer", "SiteKFold"]


class _Splitter:
    """What both splitters share: where the sites of rows come from."""

    def __init__(self, *, sites: str | None = None) -> None:
        self.sites = sites

    def get_metadata_routing(self) -> Any:
        """Return that `split` takes `sites` (scikit-learn's metadata routing)."""
        request = MetadataRequest(owner=self)
        request.split.add_request(param="sites", alias=True)
        return request

    def _labels(self, X: Any, given: Any, groups: Any) -> tuple[list[Any], np.ndarray]:
        labels = given if given is not None else groups
        if labels is None and self.sites is not None:
            labels = self.sites
        if labels is None:
            raise DataError(
                f"{type(self).__name__} needs the site of every row: with enable_metadata_routing=True give "
                'params={"sites": sites}, without it groups=sites, or name a column as in '
                f'{type(self).__name__}(sites="station")'
            )
        if isinstance(labels, str):
            if not is_frame(X):
                raise DataError(f"sites={labels!r} is the name of a column, but the rows are not a frame")
            require_columns(X, [labels])
            labels = array_of(X, labels)
        return factorise(labels, len(X))


class SiteKFold(_Splitter):
    """K folds with every site in every fold: each site's own rows are dealt out to the folds at random.

    Parameters
    ----------
    n_splits : int, default=5
    sites : str, optional
        The column of a frame that has the site, where `sites` and `groups` are not given to `split`.
    random_state : int, default=0

    Examples
    --------
    >>> import numpy as np
    >>> from dekrr.model_selection import SiteKFold
    >>> sites = np.repeat(["a", "b"], 4)
    >>> [np.unique(sites[test]).tolist() for train, test in SiteKFold(2).split(sites, sites=sites)]
    [['a', 'b'], ['a', 'b']]
    """

    def __init__(self, n_splits: int = 5, *, sites: str | None = None, random_state: int = 0) -> None:
        super().__init__(sites=sites)
        self.n_splits = n_splits
        self.random_state = random_state

    def split(self, X: Any, y: Any = None, groups: Any = None, sites: Any = None) -> Iterator[tuple[Any, Any]]:
        """Yield the indices of the rows to train on and to test on, fold by fold.

        Parameters
        ----------
        X : array-like or frame of n_rows rows
        y : object
            Not used.
        groups, sites : array-like of shape (n_rows,), optional
            The site of every row, by the name that scikit-learn has for it or ours.
        """
        labels, index = self._labels(X, sites, groups)
        if self.n_splits < 2:
            raise DataError(f"n_splits is {self.n_splits}; it must be at least 2")
        fold = np.empty(len(index), dtype=np.intp)
        rng = np.random.default_rng(self.random_state)
        for label, own in zip(labels, places_of(index, len(labels)), strict=True):
            if len(own) < self.n_splits:
                raise DataError(
                    f"site {label!r} has {len(own)} rows, too few for {self.n_splits} folds: lower n_splits, or join "
                    "it to another site"
                )
            fold[rng.permutation(own)] = np.arange(len(own)) % self.n_splits
        for k in range(self.n_splits):
            yield np.flatnonzero(fold != k), np.flatnonzero(fold == k)

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None, sites: Any = None) -> int:
        """Return the number of folds."""
        return self.n_splits


class LeaveOneSiteOut(_Splitter):
    """Leaves out each site in turn, to test on its rows. The estimator needs ``unknown_sites="mean"``.

    Parameters
    ----------
    sites : str, optional
        The column of a frame that has the site, where `sites` and `groups` are not given to `split`.

    Examples
    --------
    >>> import numpy as np
    >>> from dekrr.model_selection import LeaveOneSiteOut
    >>> sites = np.array(["a", "b", "a"])
    >>> [test.tolist() for train, test in LeaveOneSiteOut().split(sites, sites=sites)]
    [[0, 2], [1]]
    """

    def split(self, X: Any, y: Any = None, groups: Any = None, sites: Any = None) -> Iterator[tuple[Any, Any]]:
        """Yield the indices of the rows to train on and to test on, site by site; see `SiteKFold.split`."""
        labels, index = self._labels(X, sites, groups)
        if len(labels) < 2:
            raise DataError(f"there is only one site, {listed(labels)}: nothing is left to train on without it")
        for k in range(len(labels)):
            yield np.flatnonzero(index != k), np.flatnonzero(index == k)

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None, sites: Any = None) -> int:
        """Return the number of sites."""
        return len(self._labels(X, sites, groups)[0])


class Scorer:
    """A scorer for scikit-learn that knows of sites: larger is better.

    By default it is minus the relative squared error of a regressor, and the accuracy of a classifier. It takes
    `DeKRRRegressor` and `DeKRRClassifier`, also at the end of a pipeline, in a `TransformedTargetRegressor` and in a
    search.

    Parameters
    ----------
    metric : {"own", "union"}
        "own" predicts each row by its own site's model. "union" has every site's model predict all rows, and takes the
        mean over sites. A row of a site that was not in `fit` has no own model; "own" is then the mean of all models,
        if the estimator has ``unknown_sites="mean"``.
    loss : callable, optional
        `loss(y, prediction)` is a number that is better where it is smaller, for instance scikit-learn's
        `mean_absolute_error`. The score is minus the loss.
    response : {"predict", "predict_proba"}, default="predict"
        What `loss` is given: "predict_proba" for scikit-learn's `log_loss`, for instance.

    Examples
    --------
    >>> from dekrr.model_selection import Scorer
    >>> from sklearn.metrics import mean_absolute_error
    >>> from dekrr import DeKRRRegressor
    >>> from dekrr.data import make_sites
    >>> X, y, sites = make_sites(n_sites=4, random_state=0)
    >>> regressor = DeKRRRegressor(n_features=10, sigma=0.3, alpha=1e-4, consensus=1.0, random_state=0)
    >>> regressor = regressor.fit(X, y, sites=sites)
    >>> own = Scorer("own", mean_absolute_error)
    >>> own(regressor, X, y, sites=sites) == -mean_absolute_error(y, regressor.predict(X, sites=sites))
    True
    """

    def __init__(self, metric: str, loss: Callable[..., float] | None = None, *, response: str = "predict") -> None:
        if metric not in ("own", "union") or response not in ("predict", "predict_proba"):
            raise SettingsError(
                f'metric is "own" or "union" and response "predict" or "predict_proba"; got {metric!r}, {response!r}'
            )
        self.metric = metric
        self.loss = loss
        self.response = response

    def get_metadata_routing(self) -> Any:
        """Return that the scorer takes `sites` (scikit-learn's metadata routing)."""
        request = MetadataRequest(owner=self)
        request.score.add_request(param="sites", alias=True)
        return request

    def __call__(self, estimator: Any, X: Any, y: Any, sites: Any = None) -> float:
        """Return the score of an estimator's predictions."""
        if self.loss is None and hasattr(estimator, "rse"):
            return -float(estimator.rse(X, y, sites=sites, metric=self.metric))
        respond = getattr(estimator, self.response)
        if self.metric == "own":
            return self._score(estimator, y, respond(X) if sites is None else respond(X, sites=sites))
        if isinstance(sites, str) and is_frame(X):
            X = select(X, [name for name in column_names(X) if name != sites])
        inner = _inner(estimator)
        with _for_elsewhere(inner):
            scores = [self._score(estimator, y, respond(X, sites=[site] * len(y))) for site in inner.sites_]
        return float(np.mean(scores))

    def _score(self, estimator: Any, y: Any, found: Any) -> float:
        if self.loss is not None:
            return -float(self.loss(y, found))
        return accuracy(y, found) if is_classifier(estimator) else -rse(y, found)

    def __repr__(self) -> str:
        loss = "" if self.loss is None else f", {getattr(self.loss, '__name__', self.loss)}"
        return f"Scorer({self.metric!r}{loss})"


def _inner(estimator: Any) -> Any:
    """Return the estimator of dekrr that is in a pipeline, a search or another estimator, or the estimator itself."""
    if hasattr(estimator, "sites_"):
        return estimator
    if hasattr(estimator, "steps"):
        return _inner(estimator.steps[-1][1])
    for inner in ("best_estimator_", "regressor_", "estimator_"):
        if hasattr(estimator, inner):
            return _inner(getattr(estimator, inner))
    raise SettingsError(
        f"a scorer by sites cannot find an estimator of dekrr in {type(estimator).__name__}: score DeKRRRegressor, "
        "DeKRRClassifier, or a pipeline that ends in one"
    )


@contextmanager
def _for_elsewhere(estimator: Any) -> Iterator[None]:
    """Let each site's model predict as for rows from elsewhere, without the parts that are for the site's own rows."""
    owners = [estimator, *([estimator.regressor_] if is_classifier(estimator) else [])]
    at_home = [owner.models_ for owner in owners]
    for owner, models in zip(owners, at_home, strict=True):
        owner.models_ = {
            site: model.for_elsewhere() if isinstance(model, SiteModel) else model for site, model in models.items()
        }
    try:
        yield
    finally:
        for owner, models in zip(owners, at_home, strict=True):
            owner.models_ = models


OWN, UNION = Scorer("own"), Scorer("union")
