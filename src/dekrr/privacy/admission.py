"""Which rows of a site may be in sums that leave it: a rule that is made once, before the first message.

Any two sums over sets of rows that differ by few rows give those rows away: their difference is a sum over those few.
So a row must be in all sums that leave its site, or in none: of shortlists and choices, of folds and of all rows,
before and after the loss of a site, of one run and the next. The rule is therefore a function of a row alone. It is
learnt from the site's own rows and knows nothing of a run's features or neighbours. A deployment keeps it on disk, for
later runs and later rows.

A row is withheld where it stands alone: where its leverage z(x)'(Z'Z)^-1 z(x) among reference features z is above a
limit. Those are plain random waves of several lengths, with at least three rows a feature. A single sum with such a row
tells where it is. A withheld row has no part in any sum over features that leaves the site: neither in sums for
neighbours nor in the site's own sums, because coefficients show those. What sites tell about raw columns, before
features are drawn, counts all rows: which of them stand alone is known only when columns are numbers.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ..disk import replacing
from ..errors import DataError
from ..features import FeatureMap
from ..rows import ArrayRows
from ..scaling import Scaling
from ..selection import Plain
from ..types import Array

_REFERENCE = Plain(sigma=1.0, bandwidths=(1.0, 2.0, 4.0, 8.0), max_columns=4)
_ROWS_PER_FEATURE = 3
_MOST_FEATURES = 512
_PASSES = 3
_ROUNDING = 1e-12


AnyAdmission = Callable[[Array], np.ndarray]
"""Tells for rows in their own units which of them are admitted, shape (n_rows,)."""


@dataclass(frozen=True, eq=False)
class Admission:
    """Tells for each row whether it may be in sums.

    Parameters
    ----------
    bounds : Scaling
        The site's own smallest and largest values: the units of the reference features.
    reference : FeatureMap
    whitening : ndarray of shape (n_features, n_features)
        (Z'Z)^-1/2 over the rows that are admitted, of the rows that the rule was learnt from.
    max_leverage : float
    order : ndarray of int, shape (n_columns,), optional
        The places of the rule's columns in the rows that it is asked about, where they come in another order.
    """

    bounds: Scaling
    reference: FeatureMap
    whitening: Array
    max_leverage: float
    order: np.ndarray | None = None

    def __call__(self, X: Array) -> np.ndarray:
        """Return which rows are admitted, shape (n_rows,), from rows in their own units."""
        ordered = X if self.order is None else X[:, self.order]
        return leverages(self.reference(self.bounds.rows(ordered)), self.whitening) <= self.max_leverage

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the rule to a file for its owner's eyes alone; it holds sums over the site's rows."""
        tensors = {
            "lower": self.bounds.lower,
            "upper": self.bounds.upper,
            "frequencies": self.reference.frequencies,
            "phases": self.reference.phases,
            "amplitudes": self.reference.amplitudes,
            "whitening": self.whitening,
            "max_leverage": np.array([self.max_leverage]),
        }
        with replacing(Path(path), durable=True) as temporary:
            try:
                save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, temporary)
            except SafetensorError as error:
                raise DataError(f"{path} cannot be written, and nothing is sent without it: {error}") from None


def learn(rows: ArrayRows, max_leverage: float) -> Admission:
    """Return the rule that a site's rows give.

    Rows that others hid behind show when those are gone, so that it is done three times; not more often, as that would
    leave none. The same rows give the same rule.

    Parameters
    ----------
    rows : ArrayRows
        The site's rows, or a sample of them, in their own units.
    max_leverage : float
        1 admits all rows that the rule is learnt from.
    """
    n_features = min(_MOST_FEATURES, 1 << (max(2, rows.n_rows // _ROWS_PER_FEATURE).bit_length() - 1))
    reference = _REFERENCE.replace(n_features=n_features).select(
        np.empty((0, rows.n_columns)), np.empty(0), np.random.default_rng(0)
    )
    features = reference(rows.bounds.rows(rows.X))
    told, kept = np.zeros((n_features, n_features)), features
    for _ in range(_PASSES):
        whitening = whiten(kept.T @ kept)
        admitted = leverages(kept, whitening) <= max_leverage
        if not admitted.any():
            break
        told, kept = whitening, kept[admitted]
        if admitted.all():
            break
    return Admission(rows.bounds, reference, told, max_leverage)


def kept(path: Path, make: Callable[[], Admission], n_columns: int) -> Admission:
    """Return the rule in a file, or the one that is made now and written there before it is used."""
    if not path.exists():
        made = make()
        made.save(path)
        return made
    try:
        with safe_open(path, framework="numpy") as file:
            parts = {name: np.asarray(file.get_tensor(name), dtype=float) for name in file.keys()}  # noqa: SIM118
        reference = FeatureMap(parts["frequencies"], parts["phases"], parts["amplitudes"])
        bounds = Scaling(parts["lower"], parts["upper"])
        found = Admission(bounds, reference, parts["whitening"], float(parts["max_leverage"][0]))
        fits = found.reference.n_columns == n_columns == len(found.bounds.lower) - 1
    except (SafetensorError, OSError, KeyError, IndexError, TypeError, ValueError) as error:
        raise DataError(f"{path} says which rows may be in sums, and cannot be read: {error}; restore it") from None
    if not fits:
        raise DataError(f"{path} is about rows of {found.reference.n_columns} columns, not of {n_columns}")
    return found


def whiten(gram: Array) -> Array:
    """Return (Z'Z)^-1/2 from Z'Z.

    Features are brought to one length first: one of a large amplitude would pass off all others as rounding.
    """
    lengths = np.sqrt(np.diag(gram))
    lengths[lengths == 0] = 1.0
    values, vectors = np.linalg.eigh(gram / np.outer(lengths, lengths))
    return np.asarray(vectors / np.sqrt(np.maximum(values, _ROUNDING * values[-1])) / lengths[:, None])


def leverages(features: Array, whitening: Array) -> Array:
    """Return z'(Z'Z)^-1 z of each row's features, shape (n_rows,)."""
    return np.asarray(np.sum((features @ whitening.astype(features.dtype, copy=False)) ** 2, axis=1))
