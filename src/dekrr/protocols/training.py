"""All of a site's training: the parts of its model and, where the run wants it, a second training to calibrate them.

The estimators and the nodes of a mesh call `train`, and so do the same.
"""

from dataclasses import dataclass, replace

import msgspec
import numpy as np

from ..errors import DataError
from ..selection import Chooser
from ..settings import DeKRRSettings
from ..types import Array
from . import parts
from .calibration import PARTS, Keep, calibrate, refusal_of_second
from .outcome import Beneath, Outcome
from .site import Procedure, Site
from .tuning import Tuning


@dataclass(frozen=True)
class SecondTraining:
    """A training without some rows, which intervals or probabilities of classes are made of.

    Parameters
    ----------
    keep : callable
        What to keep of it; see `dekrr.protocols.calibration`.
    fits_shared : bool, default=True
        Whether it fits the shared part anew, which most of a fit's bytes are for.
    """

    keep: Keep
    fits_shared: bool = True


def train(
    site: Site,
    chooser: Chooser,
    settings: DeKRRSettings,
    tuning: Tuning | None = None,
    *,
    prediction: str = "neighborhood",
    objective: str = "mean",
    second: SecondTraining | None = None,
    keep_sums: bool = True,
) -> Procedure[Outcome]:
    """Train one site's model together with its neighbours; see `dekrr.protocols.parts.train`.

    Parameters
    ----------
    site : Site
    chooser : Chooser
    settings : DeKRRSettings
    tuning : Tuning, optional
    prediction : {"neighborhood", "own"}
    objective : {"mean", "own", "union"}
    second : SecondTraining, optional
    keep_sums : bool, default=True
        Keep the sums in the outcome, so that training can go on from them.
    """
    if second is not None:
        check_second(site, chooser, settings)
    outcome = yield from parts.train(
        site, chooser, settings, tuning, prediction=prediction, objective=objective, keep_sums=keep_sums
    )
    if second is None:
        return _without_gram(outcome)
    fixed, found = _found(outcome, chooser, settings)
    beneath: Beneath | None = None
    if not second.fits_shared:
        fixed = msgspec.structs.replace(fixed, shared=None)  # `calibrate` takes it off the responses
        beneath = Beneath(outcome.shared, outcome.scaling) if outcome.shared is not None else None

    def again(other: Site) -> Procedure[Outcome]:
        try:
            return (
                yield from parts.train(
                    other,
                    found,
                    fixed,
                    prediction=prediction,
                    objective=objective,
                    keep_sums=False,
                    beneath=beneath,
                )
            )
        except DataError as error:
            raise DataError(
                f"in the second training, for intervals or classes, which leaves a fifth of the rows out and needs "
                f"{PARTS - 1} times as many rows per feature: {error}"
            ) from error

    def predict(outcome: Outcome, X: Array) -> Array:
        scaling = outcome.scaling
        under = 0.0 if beneath is None or outcome.shared is not None else beneath(X, scaling)
        return np.asarray(scaling.undo(outcome.whole_prediction(scaling.rows(X), prediction, under)))

    outcome = yield from calibrate(
        site,
        outcome,
        again,
        predict,
        second.keep,
        min_rows=settings.min_rows,
        fits_shared=second.fits_shared,
        probed=not settings.rows_per_feature and not settings.masks,  # no sums beyond those that the guards count
        masked=settings.masks,
        lone_neighbor=settings.lone_neighbor,
    )
    return _without_gram(outcome)


def check_second(site: Site, chooser: Chooser, settings: DeKRRSettings) -> None:
    """Refuse a run whose second training the site would refuse, before anything is sent; see `refusal_of_second`.

    Where sites have different numbers of features, a neighbour's number is not known yet and does not count.
    """
    if settings.allocation != "equal":
        return
    n_features = int(chooser.n_features)
    n_own = chooser.most_features(n_features, site.n_rows)
    n_other = min(n_features, settings.max_features)  # 0 where it is not the same at all sites
    reason = refusal_of_second(site, n_own, n_other, settings)
    if reason:
        raise DataError(f"site {site.name!r} {reason}; or join the site to another, or do without intervals")


def _without_gram(outcome: Outcome) -> Outcome:
    """Return an outcome without the sum over all sites' rows that the root of the tree had."""
    if outcome.shared is not None:
        outcome.shared = replace(outcome.shared, gram=None)
    return outcome


def _found(outcome: Outcome, chooser: Chooser, settings: DeKRRSettings) -> tuple[DeKRRSettings, Chooser]:
    """Return the settings and the chooser with the numbers that a training found, for one without some rows."""
    # A fifth of the rows is what sums over all rows differ by from those over the others.
    fixed = msgspec.structs.replace(settings, rows_per_feature=settings.rows_per_feature * (PARTS - 1))
    if outcome.column_scales is not None:
        fixed = msgspec.structs.replace(fixed, column_scales=tuple(outcome.column_scales.tolist()))
    tuned = outcome.tuned
    if tuned is None:
        return fixed, chooser if outcome.sigma is None else chooser.replace(sigma=outcome.sigma)
    numbers = {"alpha": tuned.alpha, "consensus": tuned.consensus, "own_weight": tuned.own_weight}
    return msgspec.structs.replace(fixed, **numbers), chooser.replace(sigma=tuned.sigma)
