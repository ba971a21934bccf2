"""Errors of models on tables, own and union, and the rows that a fit holds out for them."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from ..errors import DataError
from ..labels import factorise, names_of, places_of
from ..model import SiteClassifier, SiteModel
from ..tables.sources import Batch, column_of, inputs_of, numbers_of, open_source
from ..types import Array

_FEW = 20  # the first rows of a site, which are never held out


def frame_of(batch: Batch) -> Any:
    """Return a batch as a frame of pandas."""
    return batch.table.to_pandas() if hasattr(batch.table, "to_pandas") else batch.table


def parts_of(data: Path, site: str, share: float, *, held_out: bool) -> Callable[[], Iterator[Any]]:
    """Return a function that gives the rows of a table that are held out, or the others, in batches.

    Every site has the same share of its rows held out, evenly spread, but for its first 20.
    """

    def batches() -> Iterator[Any]:
        seen: dict[Any, int] = defaultdict(int)
        for batch in open_source(data).read(None):
            frame = frame_of(batch)
            labels, index = factorise(frame[site], len(frame))
            out = np.zeros(len(frame), dtype=bool)
            for label, own in zip(labels, places_of(index, len(labels)), strict=True):
                place = seen[label] + np.arange(len(own))
                out[own] = (np.floor((place + 1) * share) > np.floor(place * share)) & (place >= _FEW)
                seen[label] += len(own)
            yield frame[out if held_out else ~out].reset_index(drop=True)

    return batches


class Errors:
    """Relative squared errors of the models of all sites on rows that come in batches."""

    measures: tuple[str, ...] = ("RSE",)

    def __init__(self, models: Mapping[str, Any]) -> None:
        self._models = models
        self._elsewhere = {name: model.for_elsewhere() for name, model in models.items()}
        self._own: dict[str, Any] = defaultdict(float)  # sums of losses, an entry per kind of loss
        self._union: dict[str, Any] = dict.fromkeys(models, 0.0)
        self._truths: dict[str, list[Array]] = defaultdict(list)

    def add(self, batch: Batch, targets: Sequence[str], site: str | None) -> None:
        """Take in some rows; without the name of a site column, every model is scored on all of them."""
        frame = frame_of(batch)
        for column in (*targets, *([site] if site else [])):
            column_of(batch, column)  # which refuses those that are not there
        if not len(frame):
            return
        truth = self._truth(frame, batch, targets)
        rows = inputs_of(batch, next(iter(self._models.values())).header.reading)
        for name, model in self._elsewhere.items():
            self._union[name] = self._union[name] + self._losses(model, rows, truth).sum(axis=0)
        if site is None:
            self._truths[""].append(truth)
            return
        labels, index = factorise(frame[site], len(frame))
        for name, own in zip(names_of(labels), places_of(index, len(labels)), strict=True):
            if name not in self._models:
                raise DataError(f"no model for site {name!r}; there are {sorted(self._models)}")
            self._own[name] = self._own[name] + self._losses(self._models[name], rows[own], truth[own]).sum(axis=0)
            self._truths[name].append(truth[own])

    def _truth(self, frame: Any, batch: Batch, targets: Sequence[str]) -> Array:
        first = next(iter(self._models.values()))
        if first.n_outputs != len(targets):
            raise DataError(f"the models predict {first.n_outputs} columns, not {len(targets)}: give --target for each")
        return np.column_stack([numbers_of(batch, column_of(batch, name), repr(name)) for name in targets])

    def _losses(self, model: Any, rows: Any, truth: Array) -> Array:
        """Return the losses of rows, shape (n_rows, n_losses)."""
        return np.asarray((model.predict_encoded(rows).reshape(truth.shape) - truth) ** 2)

    def _mean(self, sums: Any, truths: Sequence[Array]) -> Array:
        """Return a figure for each measure, from sums of losses; NaN where there are no rows to compare with."""
        if not truths:
            return np.full(1, np.nan)
        y = np.concatenate(truths)
        spread = np.sum((y - y.mean(axis=0)) ** 2, axis=0)
        return np.full(1, np.mean(sums / np.where(spread > 0, spread, np.nan)))

    @property
    def _every_truth(self) -> list[Array]:
        return [part for parts in self._truths.values() for part in parts]

    @property
    def n_rows(self) -> int:
        """How many rows there were."""
        return sum(map(len, self._every_truth))

    def own(self) -> Array:
        """Return the figures of all rows, each by its own site's model; RSE is a mean over outputs."""
        return self._mean(sum(self._own.values()), self._every_truth)

    def union(self) -> Array:
        """Return the figures of all models on all rows, their mean."""
        return np.asarray(np.mean([self.of_model(name) for name in self._models], axis=0))

    def of_site(self, name: str) -> tuple[int, Array]:
        """Return the number of rows of a site, and the figures of its model on them."""
        truths = self._truths.get(name, [])
        return sum(map(len, truths)), self._mean(self._own.get(name), truths)

    def of_model(self, name: str) -> Array:
        """Return the figures of a site's model on the rows of all sites."""
        return self._mean(self._union[name], self._every_truth)

    def words(self, whose: str) -> str:
        """Return the own or the union figures in words."""
        shown = zip(self.measures, self.own() if whose == "own" else self.union(), strict=True)
        return f"{whose} " + " and ".join(f"{name} {figure:.4f}" for name, figure in shown)

    def _named(self, figures: Array) -> Any:
        named = dict(zip(self.measures, figures.tolist(), strict=True))
        return named if len(named) > 1 else figures[0]

    def facts(self, *, own: bool) -> dict[str, Any]:
        """Return the figures as JSON has them: over all rows and of each site, `own` ones only where asked for."""
        sites = {name: {"union": self._named(self.of_model(name))} for name in sorted(self._models)}
        measure = " and ".join(self.measures)
        found: dict[str, Any] = {"measure": measure, "rows": self.n_rows, "union": self._named(self.union())}
        if own:
            found["own"] = self._named(self.own())
            for name, figures in sites.items():
                n_rows, of_site = self.of_site(name)
                figures |= {"rows": n_rows, "own": self._named(of_site) if n_rows else None}
        return found | {"sites": sites}

    def table(self, title: str) -> Table:
        """Return the figures of all sites as a table for a terminal."""
        table = Table(title=title)
        headings = [f"{whose} {measure}" for whose in ("own", "union") for measure in self.measures]
        for heading in ("site", "rows", *headings):
            table.add_column(heading, justify="left" if heading == "site" else "right")
        for name in sorted(self._own):
            n_rows, own = self.of_site(name)
            table.add_row(name, str(n_rows), *(f"{figure:.4f}" for figure in (*own, *self.of_model(name))))
        return table


class ClassErrors(Errors):
    """Accuracy and log loss of models of classes."""

    measures = ("accuracy", "log loss")

    def __init__(self, models: Mapping[str, SiteClassifier]) -> None:
        super().__init__(models)
        first = next(iter(models.values()))
        if any(model.header.classes != first.header.classes for model in models.values()):
            raise DataError("the models have different classes: score models of one fit")
        self._places = {str(label): k for k, label in enumerate(first.classes_.tolist())}

    def _truth(self, frame: Any, batch: Batch, targets: Sequence[str]) -> Array:
        """Return the place of each row's class; refuse rows of no class, or of one that the models do not know."""
        values = frame[targets[0]].tolist()
        places = [self._places.get(str(value), self._places.get(_whole(value), -1)) for value in values]
        if -1 in places:
            row = places.index(-1)
            raise DataError(
                f"{batch.where}: row {batch.start + row}, column {targets[0]!r} is {values[row]!r}, which is none of "
                f"the models' classes {', '.join(self._places)}: drop such rows, or score the column that was predicted"
            )
        return np.array(places)

    def _losses(self, model: Any, rows: Any, truth: Array) -> Array:
        probabilities = model.probabilities_of(model.predict_encoded(rows))
        of_class = probabilities[np.arange(len(truth)), truth]
        return np.column_stack([np.argmax(probabilities, axis=1) == truth, -np.log(of_class)])

    def _mean(self, sums: Any, truths: Sequence[Array]) -> Array:
        return np.asarray(sums / sum(map(len, truths))) if truths else np.full(2, np.nan)


def errors_on(models: Mapping[str, SiteModel], batches: Iterable[Batch], targets: Any, site: str | None) -> Errors:
    """Return the errors of models on all batches; the targets are the column of each output."""
    kind: Any = ClassErrors if isinstance(next(iter(models.values())), SiteClassifier) else Errors
    errors: Errors = kind(models)
    for batch in batches:
        errors.add(batch, [targets] if isinstance(targets, str) else targets, site)
    return errors


def _whole(value: Any) -> str:
    """Return 1.0 as "1": a column of whole numbers is read as floats where some rows have none."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else ""
