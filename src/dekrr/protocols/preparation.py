"""How the units of rows are found: by bounds that sites agree on, by public ones, or as rows are."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from ..errors import SettingsError
from ..messages import Bounds, expect
from ..scaling import UNSCALED, AnyScaling, Scaling
from .roll_call import RollCall
from .roster import Roster
from .site import Procedure, Site, without_exchange

BoundsPair = tuple[tuple[float, ...], tuple[float, ...]]


def agree_on_scaling(site: Site, roster: Roster) -> Procedure[Scaling]:
    """Find the bounds of every column and of the response over all sites, in diameter exchanges."""
    lower, upper = site.rows.bounds.lower, site.rows.bounds.upper
    shapes = dict.fromkeys(site.neighbors, lower.shape)
    for _ in range(roster.diameter):
        inbox = expect((yield site.to_all(Bounds(lower, upper))), Bounds, lower=shapes, upper=shapes)
        lower = np.min([lower, *(message.lower for message in inbox.values())], axis=0)
        upper = np.max([upper, *(message.upper for message in inbox.values())], axis=0)
    return Scaling(lower, upper)


def public_scaling(bounds: BoundsPair, n_columns: int, n_outputs: int = 1) -> Scaling:
    """Return the scaling by bounds that everybody knows beforehand: of the columns, then of each output."""
    lower, upper = (np.asarray(bound, dtype=float) for bound in bounds)
    if not (lower.shape == upper.shape == (n_columns + n_outputs,) and np.isfinite([lower, upper]).all()):
        last = "the response last" if n_outputs == 1 else f"those of the {n_outputs} outputs last"
        raise SettingsError(
            f"bounds must be {n_columns + n_outputs} finite lower and upper values each, {last}; "
            f"got {lower.size} and {upper.size}"
        )
    if not (lower < upper).all():
        entry = int(np.argmin(lower < upper))
        raise SettingsError(f"bounds: the lower value of entry {entry} is not below the upper one")
    return Scaling(lower, upper)


class Preparation(ABC):
    """How the units of rows are found.

    Attributes
    ----------
    looks_at_rows : str
        What of the rows is looked at before their sums, and what to take instead; empty where nothing is.
    is_agreed : bool
        Whether sites agree on units by their rows, so that outputs can be brought to one variance too.
    """

    looks_at_rows: str = ""
    is_agreed: bool = False

    def reasons(self, site: Site) -> list[str]:
        """Return why a site cannot be part of the run."""
        return []

    @abstractmethod
    def agree(self, site: Site, roll: RollCall) -> Procedure[AnyScaling]:
        """Return the scaling, which is the same at all sites."""


class AgreedBounds(Preparation):
    """By the smallest and largest value of each column over all sites, which the sites tell each other."""

    is_agreed = True
    looks_at_rows = "the smallest and largest values of the rows would be sent: give public bounds, or scale=None"

    def agree(self, site: Site, roll: RollCall) -> Procedure[AnyScaling]:
        """Return the scaling after diameter exchanges."""
        roster = yield from roll.roster()
        return (yield from agree_on_scaling(site, roster))


@dataclass(frozen=True)
class PublicBounds(Preparation):
    """By bounds that everybody knows before the run.

    Parameters
    ----------
    bounds : pair of tuple of float
        The lower and the upper bounds of the columns and, last, of the response.
    """

    bounds: BoundsPair

    def _n_outputs(self, site: Site) -> int:
        """Return the number of outputs; rows that would have to be read for it have as many as there are bounds."""
        if site.rows.knows_outputs:
            return site.rows.n_outputs
        return max(1, len(self.bounds[0]) - site.rows.n_columns)

    def reasons(self, site: Site) -> list[str]:
        """Return in what way the bounds do not fit the site's columns."""
        try:
            public_scaling(self.bounds, site.rows.n_columns, self._n_outputs(site))
        except SettingsError as error:
            return [str(error)]
        return []

    def agree(self, site: Site, roll: RollCall) -> Procedure[AnyScaling]:
        """Return the scaling."""
        return without_exchange(public_scaling(self.bounds, site.rows.n_columns, self._n_outputs(site)))


class OwnUnits(Preparation):
    """Rows stay in their own units."""

    def agree(self, site: Site, roll: RollCall) -> Procedure[AnyScaling]:
        """Return the scaling that changes nothing."""
        return without_exchange(UNSCALED)


PREPARATIONS: dict[str | None, type[Preparation]] = {"minmax": AgreedBounds, None: OwnUnits}


def preparation_of(scale: str | None, bounds: BoundsPair | None = None) -> Preparation:
    """Return the preparation that the settings `scale` and `bounds` ask for."""
    return PublicBounds(bounds) if scale is not None and bounds is not None else PREPARATIONS[scale]()
