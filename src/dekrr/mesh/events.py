"""The events of a site's process, in addition to those of its session."""

from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from ..protocols.calibration import Predicted, errors_at_site, measures_of
from ..protocols.run import Outcome
from ..scaling import AS_IT_IS, Response
from .session.events import Event
from .status import Status

HELD_OUT = ("held-out RSE", "held-out accuracy", "held-out log loss")  # fields of `Finished`


class Started(Event, frozen=True, tag="started"):
    """The process has its rows, and begins to greet its neighbours."""

    run: str
    site: str
    rows: int
    neighbors: list[str]
    terms: dict[str, str]


class ModelNotWritten(Event, frozen=True, tag="model not written"):
    """The model could not be written; the node tries again until its patience is over."""

    path: str
    reason: str


class Exposed(Event, frozen=True, tag="exposed"):
    """Something of the site's sums arrives at a neighbour without masks."""

    reason: str


class LooksWrong(Event, frozen=True, tag="looks wrong"):
    """Rows of this site, or of another one, look wrong beside those of all."""

    reason: str


class Noisy(Event, frozen=True, tag="noisy"):
    """Noise of differential privacy costs much of the model's accuracy, or all of it."""

    reason: str


class Finished(Status, Event, frozen=True, tag="finished"):
    """The result is final and the model is written: the status, and a summary of the outcome.

    `held_out_error` is the mean squared error of tuning by cross-validation, over all sites, in agreed units. The other
    errors are of the site's own model on its own held-out rows, by a second training without them, and of the best that
    the site has alone. They stay here. `rounds ended by` says what ended the rounds early, if anything did.
    """

    rounds: int
    settled: bool
    relative_residual: float = msgspec.field(name="relative residual")
    objective_share: float = msgspec.field(name="objective share")
    sites: int
    rows_of_all_sites: int = msgspec.field(name="rows of all sites")
    sigma: float | UnsetType = UNSET
    alpha: float | UnsetType = UNSET
    consensus: float | UnsetType = UNSET
    own_weight: float | UnsetType = msgspec.field(name="own weight", default=UNSET)
    held_out_error: float | UnsetType = msgspec.field(name="held-out error", default=UNSET)
    held_out_rows: int | UnsetType = msgspec.field(name="held-out rows", default=UNSET)
    held_out_rse: float | UnsetType = msgspec.field(name="held-out RSE", default=UNSET)
    held_out_accuracy: float | UnsetType = msgspec.field(name="held-out accuracy", default=UNSET)
    held_out_log_loss: float | UnsetType = msgspec.field(name="held-out log loss", default=UNSET)
    held_out_rse_alone: float | UnsetType = msgspec.field(name="held-out RSE alone", default=UNSET)
    held_out_log_loss_alone: float | UnsetType = msgspec.field(name="held-out log loss alone", default=UNSET)
    ended_by: str | UnsetType = msgspec.field(name="rounds ended by", default=UNSET)


class Stopped(Status, Event, frozen=True, tag="stopped"):
    """The process ends without a result: the reason, and the status."""

    reason: str


class Ended(Status, Event, frozen=True, tag="ended"):
    """The process ends; no neighbour needs it any more."""


def finished(status: Status, outcome: Outcome, response: Response = AS_IT_IS) -> Finished:
    """Return the event that an outcome is final.

    `response`: how responses were changed for training; errors are of those that are changed back.
    """
    tuned, held = outcome.tuned, outcome.held_out
    errors: dict[str, Any] = {
        f"held_out_{name.lower().replace(' ', '_')}": value
        for name, value in errors_at_site(outcome, response.back).items()
    }
    if held is not None and errors:
        errors["held_out_rows"] = held.rows.n_rows
        if held.best_alone:
            alone = Predicted.own(held, held.alone[held.best_alone]).changed(response.back)
            measures = measures_of(outcome.classes)
            for name in measures.keys() - {"accuracy"}:
                errors[f"held_out_{name.lower().replace(' ', '_')}_alone"] = measures[name](alone)
    chosen: dict[str, Any] = (
        {}
        if tuned is None
        else {
            "sigma": tuned.sigma,
            "alpha": tuned.alpha,
            "consensus": tuned.consensus,
            "own_weight": tuned.own_weight,
            "held_out_error": float(np.min(tuned.errors)),
        }
    )
    return Finished(
        **msgspec.structs.asdict(status),
        rounds=outcome.rounds,
        settled=outcome.settled,
        relative_residual=outcome.relative_residual,
        objective_share=outcome.objective_shares[-1],
        sites=outcome.roster.n_sites,
        rows_of_all_sites=outcome.roster.n_rows,
        ended_by=outcome.ended_by or UNSET,
        **chosen,
        **errors,
    )
