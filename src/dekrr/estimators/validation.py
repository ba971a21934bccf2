"""Errors on held-out rows: what a second training without them predicts, at a row's own site and at all others.

A fit that trains a second time without a fifth of the rows, for intervals or probabilities, has these rows and models
in its process until it ends. Nothing is sent for it. A fit whose sites are in several processes knows the errors of its
own sites on their own rows.
"""

from collections.abc import Hashable, Mapping
from typing import NamedTuple

import numpy as np

from ..protocols.held_out import Predicted, measures_of
from ..protocols.outcome import HeldOut, Outcome

_MOST_PREDICTIONS = 5000  # for the union errors, of all models together


class HeldOutErrors(NamedTuple):
    """Errors on rows that were held out, by a training without them.

    Parameters
    ----------
    n_rows : dict of site to int
        How many rows of each site were held out.
    own : dict of site to float
        The error of each site's model on its own held-out rows; NaN where there are none.
    mean_own : float
        The error on the held-out rows of all sites, each row by its own site's model, as in ``metric="own"``.
    n_union : int
        How many held-out rows, of all sites, the next ones rest on.
    union : dict of site to float
        The error of each site's model on held-out rows of all sites. It is empty where sites are in other processes.
    mean_union : float
        The mean of the last over sites, as in ``metric="union"``.
    """

    n_rows: dict[Hashable, int]
    own: dict[Hashable, float]
    mean_own: float
    n_union: int
    union: dict[Hashable, float]
    mean_union: float


def validate(outcomes: Mapping[Hashable, Outcome], n_sites: int) -> dict[str, HeldOutErrors] | None:
    """Return the held-out errors of a run by what is measured, and drop the held-out rows; None where there are none.

    Parameters
    ----------
    outcomes : mapping of label to Outcome
        Of the sites of this process.
    n_sites : int
        How many sites there are in all.
    """
    held = {label: outcome.held_out for label, outcome in outcomes.items() if outcome.held_out is not None}
    classes = next((outcome.classes for outcome in outcomes.values() if outcome.classes is not None), None)
    for outcome in outcomes.values():
        outcome.held_out = None
    if not held or not any(each.rows.n_rows for each in held.values()):
        return None
    own = {label: Predicted.of(each, each) for label, each in held.items() if each.rows.n_rows}
    union = _union(held) if len(held) == n_sites else {}
    n_rows = {label: each.rows.n_rows for label, each in held.items()}
    found = {}
    for name, measure in measures_of(classes).items():
        by_model = {label: measure(each) for label, each in union.items()}
        found[name] = HeldOutErrors(
            n_rows,
            {label: measure(own[label]) if label in own else float("nan") for label in held},
            measure(Predicted.joined(list(own.values()))),
            len(next(iter(union.values())).y) if union else 0,
            by_model,
            float(np.mean(list(by_model.values()))) if by_model else float("nan"),
        )
    return found


def _union(held: Mapping[Hashable, HeldOut]) -> dict[Hashable, Predicted]:
    """Return what each site's model predicts for held-out rows of all sites: of each site the same share."""
    there = [each for each in held.values() if each.rows.n_rows]
    share = min(1.0, _MOST_PREDICTIONS / len(held) / sum(each.rows.n_rows for each in there))
    most = {id(each): max(1, round(share * each.rows.n_rows)) for each in there}
    return {
        label: Predicted.joined([Predicted.of(rows, model, most[id(rows)]) for rows in there])
        for label, model in held.items()
    }
