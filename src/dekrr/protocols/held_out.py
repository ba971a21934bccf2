"""Errors on held-out rows: what a second training without them predicts for them. Nothing is sent for it."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..classes import ClassCalibration, Platt, scores
from ..metrics import accuracy, rse
from ..types import Array
from .outcome import HeldOut, Outcome


class Predicted(NamedTuple):
    """Responses of held-out rows, what a model predicts, and what each row counts for."""

    y: Array
    prediction: Array
    weight: Array

    @classmethod
    def of(cls, rows: HeldOut, model: HeldOut, most: int | None = None) -> "Predicted":
        """Return what the model of one site predicts for the held-out rows of another, or for `most` of them."""
        n_rows = rows.rows.n_rows
        places = np.arange(n_rows)
        if most is not None and most < n_rows:
            places = np.linspace(0, n_rows - 1, most).astype(int)
        X, y, weight = rows.rows.X[places], rows.rows.y[places], rows.rows.weight
        shared = y - rows.left.y[places]
        weights = np.ones(len(places)) if weight is None else weight[places]
        return cls(y, shared + model.fitted(X), weights * n_rows * rows.rows.expansion / max(len(places), 1))

    @classmethod
    def joined(cls, parts: list["Predicted"]) -> "Predicted":
        """Return the rows of several."""
        return cls(*(np.concatenate(each) for each in zip(*parts, strict=True)))


Measure = Callable[[Predicted], float]


def measures_of(classes: ClassCalibration | None) -> dict[str, Measure]:
    """Return what is measured on held-out rows: RSE or, for classes, accuracy and log loss."""
    if classes is None:
        return {"RSE": lambda found: rse(found.y, found.prediction, found.weight)}
    return {"accuracy": _accuracy(classes.platt), "log loss": _log_loss(classes.platt)}


def errors_at_site(outcome: Outcome) -> dict[str, float]:
    """Return a site's errors on its own held-out rows, by what is measured; empty where it held none out."""
    held = outcome.held_out
    if held is None or not held.rows.n_rows:
        return {}
    found = Predicted.of(held, held)
    return {name: measure(found) for name, measure in measures_of(outcome.classes).items()}


def _accuracy(platt: Platt) -> Measure:
    def measure(found: Predicted) -> float:
        probable = np.argmax(platt.logits(scores(found.prediction)), axis=1)
        return accuracy(np.argmax(scores(found.y), axis=1), probable, found.weight)

    return measure


def _log_loss(platt: Platt) -> Measure:
    def measure(found: Predicted) -> float:
        probabilities = platt.probabilities(scores(found.prediction))
        of_class = np.sum(probabilities * scores(found.y), axis=1)
        return float(-np.average(np.log(of_class), weights=found.weight))

    return measure
