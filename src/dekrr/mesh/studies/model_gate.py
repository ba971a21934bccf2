"""Whether a site takes a new model into use: only if its own rows say that it is no worse than what the site has.

One site with another unit can ruin the models of all. The run then ends well, and the model is kept; but `current`, and
with it what is served, stays what it was, until a person says otherwise (`dekrr study use`).
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...errors import DekrrError
from ...metrics import rse
from ...model import load
from ..config import SiteFile
from ..node import MODEL
from ..policy import Policy
from ..record import RECORD, events_in
from ..site_rows import read_rows, source_of
from .versions import Versions

_MEASURES = ("held-out RSE", "held-out log loss")
_SLACK = 0.05  # of the variance: errors on rows of the training differ that much from run to run
_NOTHING = 1e-6  # of the variance: smaller errors, of rows without noise, are rounding and chance
_MEAN = 1.0  # the RSE of a site's mean: every site has that alone


class Figures(NamedTuple):
    """A site's own errors, of which smaller ones are better."""

    what: str  # what is measured
    new: float  # of the new model
    used: float | None  # of the model in use; None where there is none, or it has no such figure
    alone: float | None  # of what the site has without the others
    n_rows: int  # the rows that they were measured on
    slack: float = 0.0  # how much larger the first may be beside what a policy tolerates
    cut_short: str = ""  # what ended the run before all parts of the model were there; empty if nothing did


def figures(config: SiteFile, folder: Path, versions: Versions, number: int) -> Figures | None:
    """Return the figures that a new version is judged by; None where there are none.

    The records of runs with a second training have errors on held-out rows. Otherwise both models predict the site's
    own rows, which the new one was trained on: that shows a ruin, and nothing finer.

    `config`: of the run. `folder`: the site's folder. `number`: of the new version.
    """
    current = versions.current
    new, used = ({} if one is None else _recorded(versions.place(one)) for one in (number, current))
    if new.get("rounds") == 0 and "rounds ended by" in new and current is not None:
        return Figures("", math.nan, None, None, 0, cut_short=new["rounds ended by"])
    for what in _MEASURES:
        if what in new:
            recorded = [new[f"{what} alone"]] if f"{what} alone" in new else []
            alone = min([*recorded, _MEAN] if what == _MEASURES[0] else recorded, default=None)
            return Figures(what, new[what], used.get(what), alone, int(new.get("held-out rows", 1)))
    if config.data.classes:
        return None
    found, n_rows = _on_own_rows(config, folder, versions.place(number) / MODEL)
    before = None if current is None else _on_own_rows(config, folder, versions.place(current) / MODEL)[0]
    return Figures("RSE on own rows", found, before, _MEAN, n_rows, _SLACK)


def why_held_back(policy: Policy, found: Figures | None, *, looked_wrong: bool = False) -> str:
    """Return why a version is not taken into use; an empty string if it is.

    If a site looked wrong in the run, a version that is worse than the one in use is not put down to chance, and
    errors on rows of the training say too little.

    Examples
    --------
    >>> why_held_back(Policy(), Figures("held-out RSE", 40.0, 0.2, 1.0, 400))
    'its held-out RSE is 40 on 400 rows of this site, and that of the model in use 0.2; dekrr study use takes it anyway'
    >>> why_held_back(Policy(), Figures("held-out RSE", 0.21, 0.2, 1.0, 400))
    ''
    """
    if policy.accept == "person":
        return "a person decides (accept in the policy); dekrr study use takes it"
    if policy.accept == "any" or found is None:
        return ""
    if found.cut_short:
        return f"its run was cut short by {found.cut_short}; dekrr study use takes it anyway"
    if looked_wrong and found.used is not None and found.slack:
        return (
            "a site looked wrong in its run, and no held-out rows say what that does; dekrr study use takes it anyway"
        )
    worse = 1 + policy.tolerance + 2 / math.sqrt(max(found.n_rows, 1))  # what chance does to few rows
    for other, what in ((found.used, "that of the model in use"), (found.alone, "that of this site alone")):
        if other is None:
            continue
        most = worse * max(other, _NOTHING) + found.slack
        if looked_wrong and other is found.used:
            most = max(other, _NOTHING)
        if not found.new <= most:  # nan is worse, too
            return (
                f"its {found.what} is {found.new:.4g} on {found.n_rows} rows of this site, and {what} {other:.4g}; "
                "dekrr study use takes it anyway"
            )
    return ""


def _recorded(place: Path) -> dict[str, Any]:
    """Return the last end of a run in the record of a version."""
    return next(reversed(events_in(place / RECORD, "finished")), {})


def _on_own_rows(config: SiteFile, folder: Path, path: Path) -> tuple[float, int]:
    """Return the RSE of a model on the site's own rows, or on a sample of them; infinite where it cannot be told."""
    try:
        model = load(path)
        rows = read_rows(config, source_of(config, folder), model.header.encoding).sample
        with np.errstate(all="ignore"):
            return float(rse(rows.y, model.predict_encoded(rows.X), rows.weight)), len(rows.y)
    except (DekrrError, OSError, ValueError):
        return math.inf, 0
