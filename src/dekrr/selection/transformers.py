"""The choosers as scikit-learn transformers, for use without a network, for instance in a pipeline with Ridge.

The parameters of a transformer are the fields of its chooser, and `random_state`. This is the only module of the
package that imports scikit-learn.
"""

from dataclasses import dataclass, field, fields
from inspect import signature
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from ..types import Array
from . import Chooser, Energy, Greedy, Leverage, Plain, Surrogate


class Selector(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Base class of the transformers: `fit` chooses features, `transform` computes them.

    Attributes
    ----------
    feature_map_ : FeatureMap
        The chosen features.
    """

    chooser_type: ClassVar[type[Chooser]]
    random_state: Any = None

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.__annotations__ = {}
        for parameter in fields(cls.chooser_type):
            cls.__annotations__[parameter.name] = parameter.type
            setattr(cls, parameter.name, field(default=parameter.default, kw_only=parameter.kw_only))
        cls.random_state = None
        cls.__annotations__["random_state"] = Any
        made: Any = dataclass(eq=False, repr=False, kw_only=True)(cls)
        made.__init__.__signature__ = signature(made.__init__)  # scikit-learn asks for it in every call of fit

    def chooser(self) -> Chooser:
        """Return the chooser with this transformer's parameters, or raise an error that names the wrong ones."""
        names = [parameter.name for parameter in fields(self.chooser_type)]
        return self.chooser_type(**{name: getattr(self, name) for name in names})

    def fit(self, X: Any, y: Any) -> Self:
        """Choose features from rows.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_columns)
        y : array-like of shape (n_rows,) or (n_rows, n_outputs)
        """
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        self.feature_map_ = self.chooser().select(X, y, np.random.default_rng(seed))
        self._n_features_out = self.feature_map_.n_features
        return self

    def transform(self, X: Any) -> Array:
        """Return the chosen features of rows `X`, shape (n_rows, n_features).

        Parameters
        ----------
        X : array-like of shape (n_rows, n_columns)
        """
        check_is_fitted(self)
        features: Array = self.feature_map_(validate_data(self, X, dtype=np.float64, reset=False))
        return features

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        return tags


class PlainSelector(Selector):
    """No selection: `n_features` features, drawn from the kernel's spectral density.

    Examples
    --------
    >>> from dekrr import PlainSelector
    >>> import numpy as np
    >>> X = np.zeros((4, 3))
    >>> PlainSelector(n_features=6, random_state=0).fit(X, np.zeros(4)).transform(X).shape
    (4, 6)
    """

    chooser_type = Plain


class EnergySelector(Selector):
    """Keep the candidates with the highest energy score, that is, correlation with the response: the paper's choice.

    Examples
    --------
    >>> from dekrr import EnergySelector
    >>> from sklearn.linear_model import Ridge
    >>> from sklearn.pipeline import make_pipeline
    >>> from dekrr.data import make_sites
    >>> X, y, _ = make_sites(random_state=0)
    >>> pipeline = make_pipeline(EnergySelector(60, sigma=0.3, random_state=0), Ridge(alpha=1e-3))
    >>> pipeline.fit(X, y).score(X, y) > 0.5
    True
    """

    chooser_type = Energy


class LeverageSelector(Selector):
    """Sample candidates by ridge leverage score."""

    chooser_type = Leverage


class SurrogateSelector(Selector):
    """Sample candidates by response-weighted surrogate leverage."""

    chooser_type = Surrogate


class GreedySelector(Selector):
    """Take, one after another, the candidate that most reduces the ridge residual: orthogonal least squares."""

    chooser_type = Greedy
