"""Errors of models on tables, own and union, and the rows that a fit holds out for them."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from ..errors import DataError
from ..labels import factorise, names_of, places_of
from ..model import SiteModel
from ..tables.sources import Batch, inputs_of, open_source
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
    """Squared errors of the models of all sites on rows that come in batches."""

    def __init__(self, models: Mapping[str, SiteModel]) -> None:
        self._models = models
        self._own: dict[str, Any] = defaultdict(float)  # an entry per output
        self._union: dict[str, Any] = dict.fromkeys(models, 0.0)
        self._truths: dict[str, list[Array]] = defaultdict(list)

    def add(self, batch: Batch, target: str | Sequence[str], site: str | None) -> None:
        """Take in some rows; without the name of a site column, every model is scored on all of them."""
        frame = frame_of(batch)
        targets = [target] if isinstance(target, str) else list(target)
        for column in (*targets, *([site] if site else [])):
            if column not in frame.columns:
                raise DataError(f"{batch.where} has no column {column!r}; it has {', '.join(map(str, frame.columns))}")
        if not len(frame):
            return
        truth = np.column_stack([_numbers(frame[name], batch, name) for name in targets])
        first = next(iter(self._models.values()))
        if first.n_outputs != len(targets):
            raise DataError(f"the models predict {first.n_outputs} columns, not {len(targets)}: give --target for each")
        rows = inputs_of(batch, first.header.reading)
        for name, model in self._models.items():
            prediction = model.predict_encoded(rows, elsewhere=True).reshape(truth.shape)
            self._union[name] = self._union[name] + np.sum((prediction - truth) ** 2, axis=0)
        if site is None:
            self._truths[""].append(truth)
            return
        labels, index = factorise(frame[site], len(frame))
        for name, own in zip(names_of(labels), places_of(index, len(labels)), strict=True):
            if name not in self._models:
                raise DataError(f"no model for site {name!r}; there are {sorted(self._models)}")
            prediction = self._models[name].predict_encoded(rows[own]).reshape(truth[own].shape)
            self._own[name] = self._own[name] + np.sum((prediction - truth[own]) ** 2, axis=0)
            self._truths[name].append(truth[own])

    @property
    def n_rows(self) -> int:
        """How many rows there were."""
        return sum(len(part) for parts in self._truths.values() for part in parts)

    def own(self) -> float:
        """Return the relative squared error of all rows, each by its own site's model; its mean over outputs."""
        spread = _spread(part for parts in self._truths.values() for part in parts)
        return float(np.mean(sum(self._own.values()) / spread))

    def union(self) -> float:
        """Return the mean over models of the relative squared error on all rows."""
        spread = _spread(part for parts in self._truths.values() for part in parts)
        return float(np.mean(np.array(list(self._union.values())) / spread))

    def of_site(self, name: str) -> tuple[int, float]:
        """Return the number of rows of a site, and the relative squared error of its model on them."""
        if name not in self._own:
            return 0, float("nan")
        return sum(map(len, self._truths[name])), float(np.mean(self._own[name] / _spread(self._truths[name])))

    def of_model(self, name: str) -> float:
        """Return the relative squared error of a site's model on the rows of all sites."""
        return float(np.mean(self._union[name] / _spread(part for parts in self._truths.values() for part in parts)))

    def facts(self, *, own: bool) -> dict[str, Any]:
        """Return the errors as JSON has them: RSE over all rows and of each site, `own` ones only where asked for."""
        sites: dict[str, dict[str, Any]] = {name: {"union": self.of_model(name)} for name in sorted(self._models)}
        found: dict[str, Any] = {"measure": "RSE", "rows": self.n_rows, "union": self.union()}
        if own:
            found["own"] = self.own()
            for name, errors in sites.items():
                n_rows, error = self.of_site(name)
                errors |= {"rows": n_rows, "own": None if np.isnan(error) else error}
        return found | {"sites": sites}

    def table(self, title: str) -> Table:
        """Return the errors of all sites as a table for a terminal."""
        table = Table(title=title)
        for heading in ("site", "rows", "own RSE", "union RSE"):
            table.add_column(heading, justify="left" if heading == "site" else "right")
        for name in sorted(self._own):
            n_rows, error = self.of_site(name)
            table.add_row(name, str(n_rows), f"{error:.4f}", f"{self.of_model(name):.4f}")
        return table


def errors_on(
    models: Mapping[str, SiteModel], batches: Iterable[Batch], target: str | Sequence[str], site: str | None
) -> Errors:
    """Return the errors of models on all batches."""
    errors = Errors(models)
    for batch in batches:
        errors.add(batch, target, site)
    return errors


def _spread(parts: Iterable[Array] | Sequence[Array]) -> Array:
    """Return the sum of squared deviations of each output, NaN where there are none."""
    known = list(parts)
    if not known:
        return np.full(1, np.nan)
    y = np.concatenate(known)
    spread = np.sum((y - y.mean(axis=0)) ** 2, axis=0)
    return np.where(spread > 0, spread, np.nan)


def _numbers(column: Any, batch: Batch, target: str) -> Array:
    try:
        truth = np.asarray(column, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(f"{batch.where}: column {target!r} has values that are not numbers") from None
    if not np.isfinite(truth).all():
        row = int(np.flatnonzero(~np.isfinite(truth))[0])
        raise DataError(
            f"{batch.where}: row {batch.start + row}, column {target!r} is {truth[row]}: drop rows without a response"
        )
    return truth
