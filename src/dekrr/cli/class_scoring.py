"""Accuracy and log loss of models of classes on tables, own and union."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from rich.table import Table

from ..errors import DataError
from ..labels import factorise, names_of, places_of
from ..model import SiteClassifier
from ..tables.sources import Batch, inputs_of
from .scoring import frame_of


class ClassErrors:
    """How many classes the models of all sites predict right, and their log loss, on rows that come in batches."""

    def __init__(self, models: Mapping[str, SiteClassifier]) -> None:
        self._models = models
        first = next(iter(models.values()))
        if any(model.header.classes != first.header.classes for model in models.values()):
            raise DataError("the models have different classes: score models of one fit")
        self._places = {str(label): k for k, label in enumerate(first.classes_.tolist())}
        self._own: dict[str, Any] = defaultdict(lambda: np.zeros(2))  # right classes, and the sum of log losses
        self._union: dict[str, Any] = {name: np.zeros(2) for name in models}
        self._n_rows: dict[str, int] = defaultdict(int)

    def add(self, batch: Batch, target: str, site: str | None) -> None:
        """Take in some rows; without the name of a site column, every model is scored on all of them."""
        frame = frame_of(batch)
        for column in (target, *([site] if site else [])):
            if column not in frame.columns:
                raise DataError(f"{batch.where} has no column {column!r}; it has {', '.join(map(str, frame.columns))}")
        if not len(frame):
            return
        truth = self._truth(frame[target].tolist(), batch, target)
        rows = inputs_of(batch, next(iter(self._models.values())).header.reading)
        figures = {name: _figures(model, rows, truth) for name, model in self._models.items()}
        for name, model in self._models.items():
            self._union[name] += _figures(model.for_elsewhere(), rows, truth).sum(axis=0)
        if site is None:
            self._n_rows[""] += len(frame)
            return
        labels, index = factorise(frame[site], len(frame))
        for name, own in zip(names_of(labels), places_of(index, len(labels)), strict=True):
            if name not in figures:
                raise DataError(f"no model for site {name!r}; there are {sorted(self._models)}")
            self._own[name] += figures[name][own].sum(axis=0)
            self._n_rows[name] += len(own)

    def _truth(self, values: list[Any], batch: Batch, target: str) -> np.ndarray:
        """Return the place of each row's class; refuse rows of no class, or of one that the models do not know."""
        places = [self._places.get(str(value), self._places.get(_whole(value), -1)) for value in values]
        if -1 in places:
            row = places.index(-1)
            raise DataError(
                f"{batch.where}: row {batch.start + row}, column {target!r} is {values[row]!r}, which is none of the "
                f"models' classes {', '.join(self._places)}: drop such rows, or score the column that was predicted"
            )
        return np.array(places)

    @property
    def n_rows(self) -> int:
        """How many rows there were."""
        return sum(self._n_rows.values())

    def own(self) -> np.ndarray:
        """Return the accuracy and the log loss of all rows, each by its own site's model."""
        return np.asarray(sum(self._own.values()) / self.n_rows)

    def union(self) -> np.ndarray:
        """Return the mean over models of the accuracy and the log loss on all rows."""
        return np.asarray(np.mean(list(self._union.values()), axis=0) / self.n_rows)

    def facts(self, *, own: bool) -> dict[str, Any]:
        """Return the figures as JSON has them, in the form of `dekrr.cli.scoring.Errors.facts`."""
        sites = {name: {"union": _named(sums / self.n_rows)} for name, sums in sorted(self._union.items())}
        found: dict[str, Any] = {"measure": "accuracy and log loss", "rows": self.n_rows, "union": _named(self.union())}
        if own:
            found["own"] = _named(self.own())
            for name, figures in sites.items():
                n_rows = self._n_rows[name]
                figures |= {"rows": n_rows, "own": _named(self._own[name] / n_rows) if n_rows else None}
        return found | {"sites": sites}

    def table(self, title: str) -> Table:
        """Return the figures of all sites as a table for a terminal."""
        table = Table(title=title)
        for heading in ("site", "rows", "own accuracy", "own log loss", "union accuracy", "union log loss"):
            table.add_column(heading, justify="left" if heading == "site" else "right")
        for name in sorted(self._own):
            numbers = (*self._own[name] / self._n_rows[name], *self._union[name] / self.n_rows)
            table.add_row(name, str(self._n_rows[name]), *(f"{number:.4f}" for number in numbers))
        return table


def class_errors_on(
    models: Mapping[str, SiteClassifier], batches: Iterable[Batch], target: str, site: str | None
) -> ClassErrors:
    """Return the figures of models of classes on all batches."""
    errors = ClassErrors(models)
    for batch in batches:
        errors.add(batch, target, site)
    return errors


def _figures(model: SiteClassifier, rows: Any, truth: np.ndarray) -> np.ndarray:
    """Return of each row whether its class is the most probable one, and its log loss, shape (n_rows, 2)."""
    probabilities = model.probabilities_of(model.predict_encoded(rows))
    of_class = probabilities[np.arange(len(truth)), truth]
    return np.column_stack([np.argmax(probabilities, axis=1) == truth, -np.log(of_class)])


def _named(figures: np.ndarray) -> Any:
    return dict(zip(("accuracy", "log loss"), figures.tolist(), strict=True))


def _whole(value: Any) -> str:
    """Return 1.0 as "1": a column of whole numbers is read as floats where some rows have none."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else ""
