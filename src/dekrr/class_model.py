"""A site's model of classes: least squares on class codes, and how its predictions become probabilities."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from .classes import ClassCalibration, Platt, scores
from .errors import SettingsError, warn
from .intervals import too_few_text
from .metrics import accuracy
from .model import SiteModel
from .types import Array

_VERSION = 3  # of the file format


def uncalibrated(n_classes: int = 2) -> ClassCalibration:
    """Return what stands for a calibration where no rows were held out."""
    return ClassCalibration(Platt.start(n_classes), np.zeros(1), np.zeros(1))


@dataclass(frozen=True, eq=False, repr=False)
class SiteClassifier(SiteModel):
    """A site's model of classes; `dekrr.load` returns it where a file has one.

    Parameters
    ----------
    header, members, scaling, calibration
        Of the model of the class codes; the header has the classes.
    class_calibration : ClassCalibration
    """

    class_calibration: ClassCalibration = field(default_factory=uncalibrated)

    @classmethod
    def of(
        cls, model: SiteModel, classes: Iterable[Any], calibration: ClassCalibration, target: str | None = None
    ) -> "SiteClassifier":
        """Return the classifier that a model of class codes is.

        Parameters
        ----------
        model : SiteModel
        classes : iterable of str, int, float or bool
            In their order among the codes.
        calibration : ClassCalibration
        target : str, optional
            The name of the column of classes; by default that of the model's header.
        """
        known = np.asarray(classes if isinstance(classes, np.ndarray) else list(classes)).tolist()
        targets = model.header.targets if target is None else [target]
        version = max(model.header.version, _VERSION)
        header = msgspec.structs.replace(model.header, classes=known, targets=targets, version=version)
        return cls(header, model.members, model.scaling, None, calibration)

    def __repr__(self) -> str:
        return super().__repr__().replace(" columns", f" columns, {len(self.classes_)} classes", 1)

    @property
    def classes_(self) -> np.ndarray:
        """The classes, shape (n_classes,)."""
        return np.asarray(self.header.classes)

    def codes(self, X: Any) -> Array:
        """Return what is predicted of the class codes, shape (n_rows,) or (n_rows, n_classes)."""
        return SiteModel.predict(self, X)

    def probabilities_of(self, codes: Array) -> Array:
        """Return the probability of each class, shape (n_rows, n_classes), from predictions of the codes."""
        return self.class_calibration.platt.probabilities(scores(codes))

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each row, shape (n_rows,)."""
        return np.asarray(self.classes_[np.argmax(self.predict_proba(X), axis=1)])

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class, shape (n_rows, n_classes)."""
        return self.probabilities_of(self.codes(X))

    def decision_function(self, X: Any) -> Array:
        """Return logits, shape (n_rows, n_classes); of two classes their difference, shape (n_rows,)."""
        return margins(self.class_calibration.platt.logits(scores(self.codes(X))))

    def predict_set(self, X: Any, coverage: float = 0.9) -> np.ndarray:
        """Return which classes are in each row's prediction set, a mask of shape (n_rows, n_classes).

        If a row comes from the same distribution as the site's own rows, its set holds its class with a probability of
        at least `coverage`. A set may be empty if no class is probable enough. If the site held out too
        few rows for the coverage, the set holds all classes, and a warning says so.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_columns), or frame
        coverage : float, default=0.9
        """
        least = self.class_calibration.least_probability(coverage)
        if not least:
            warn(too_few_text([self.header.site], coverage, "its prediction sets have all classes"))
        return np.asarray(self.predict_proba(X) >= least)

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Array:
        """Raise `SettingsError`: classes have prediction sets."""
        raise SettingsError("a model of classes has no intervals: use predict_set, which gives sets of classes")

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy of `predict(X)`."""
        return accuracy(y, self.predict(X), sample_weight)

    def fit(self, X: Any, y: Any = None) -> "SiteClassifier":
        """Raise `SettingsError`: a site's model comes of a training that all sites take part in."""
        raise SettingsError("a site's model cannot be fitted by itself: fit DeKRRClassifier")

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(allow_nan=self.header.encoding is not None),
        )

    def _contents(self) -> tuple[dict[str, Array], dict[str, str]]:
        """Return the tensors of the model's file, and its metadata."""
        tensors, metadata = super()._contents()
        own = {name: np.ascontiguousarray(t, dtype=np.float64) for name, t in self.class_calibration.tensors.items()}
        return tensors | own, metadata


def margins(logits: Array) -> Array:
    """Return logits; of two classes their difference."""
    return np.asarray(logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits)
