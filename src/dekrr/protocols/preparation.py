"""How the units of rows are found: by quantiles or extremes that sites agree on, by public bounds, or as rows are."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..errors import DataError, SettingsError
from ..messages import Bounds, expect
from ..privacy import quantiles
from ..privacy.masks import exponent_of
from ..scaling import UNSCALED, AnyScaling, Scaling
from ..settings import GuardSettings
from ..types import Array
from .masking import Agreement, Masks
from .roll_call import RollCall
from .roster import Roster
from .site import Procedure, Site, without_exchange
from .spanning_tree import tree_sum

_MOST_CLIPPED = 0.25  # of a site's rows in a column: with more of them outside, the rest would stand alone

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


def agree_on_quantiles(
    site: Site, roster: Roster, fewest: int, masks: Masks | None = None
) -> Procedure[tuple[Array, Array]]:
    """Find bounds of every column and of the response over all sites by rounded counts; see `privacy.quantiles`.

    Every grid takes 2 height exchanges over the spanning tree. Sites stop at the same grid, because all have the same
    totals. Of many rows a sample is counted.

    Parameters
    ----------
    site : Site
    roster : Roster
    fewest : int
        Counts of fewer rows than this are not told.
    masks : Masks, optional
        For the counts: with them, sites learn counts over all sites alone.
    """
    sample = site.rows.sample
    values = np.column_stack([sample.X, sample.y])
    lower, upper = np.empty(values.shape[1]), np.empty(values.shape[1])
    coarse = np.arange(values.shape[1])  # the columns whose bounds are not fine enough yet
    edges = np.tile(quantiles.first_edges()[:, None], len(coarse))
    for grid in range(quantiles.MOST_GRIDS):
        counts = sample.expansion * quantiles.rounded_counts(values[:, coarse], edges, fewest)
        total = yield from tree_sum(site, roster, counts.ravel(), masks, 2.0 ** exponent_of(roster.n_rows))
        first, last = quantiles.bounds_between(edges, total.reshape(edges.shape), roster.n_rows)
        each = np.arange(len(coarse))
        lower[coarse], upper[coarse] = edges[first, each], edges[last, each]
        is_coarse = (last - first < quantiles.FEWEST_CELLS) | (grid == 0)
        if not is_coarse.any():
            return lower, upper
        coarse, constant = coarse[is_coarse], coarse[last - first == 1]
        edges = quantiles.equal_edges(lower[coarse], upper[coarse])
    upper[constant] = lower[constant]  # all in one cell of the finest grid
    return lower, upper


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
    return Scaling.clipping(lower, upper, n_columns)


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
    def agree(self, site: Site, roll: RollCall, agreement: Agreement | None = None) -> Procedure[AnyScaling]:
        """Return the scaling, which is the same at all sites; an agreement on keys masks what is summed for it."""

    def scaling(self, lower: Array, upper: Array, n_columns: int) -> Scaling:
        """Return the scaling by bounds that a neighbour tells a site that joins."""
        return Scaling.clipping(lower, upper, n_columns)


@dataclass(frozen=True)
class AgreedQuantiles(Preparation):
    """By quantiles near the ends of each column over all sites, from rounded counts; rows are clipped to them.

    Parameters
    ----------
    min_rows : int
        Counts of fewer rows than this are not told.
    """

    min_rows: int

    looks_at_rows = "counts of the rows would be sent: give public bounds, or scale=None"

    def agree(self, site: Site, roll: RollCall, agreement: Agreement | None = None) -> Procedure[AnyScaling]:
        """Return the scaling after some 6 times the tree's height in exchanges."""
        roster = yield from roll.roster()
        masks = (yield from agreement.masks()) if agreement is not None else None
        lower, upper = yield from agree_on_quantiles(site, roster, self.min_rows, masks)
        n_columns = site.rows.n_columns
        if (lower[n_columns:] == upper[n_columns:]).any():
            raise DataError(
                f"too few responses differ from {lower[n_columns]:.6g} to agree on their bounds without revealing "
                'them: give public bounds, scale="minmax", or scale=None'
            )
        scaling = self.scaling(lower, upper, n_columns)
        _refuse_narrow(site, scaling)
        return scaling

    def scaling(self, lower: Array, upper: Array, n_columns: int) -> Scaling:
        """Return the scaling by bounds; quantiles leave rows outside, which are clipped where they are far."""
        return Scaling.clipping(lower, upper, n_columns, quantiles.ROOM)


def _refuse_narrow(site: Site, scaling: Scaling) -> None:
    """Refuse bounds outside which many of the site's rows lie: a liar's, or of a site unlike all others."""
    X = site.rows.sample.X
    varies = scaling.lower[: X.shape[1]] < scaling.upper[: X.shape[1]]  # in a constant column, no row stands alone
    scaled = scaling.rows(X)
    clipped = varies * np.mean((scaled <= -quantiles.ROOM) | (scaled >= 1 + quantiles.ROOM), axis=0)
    if len(X) and (clipped > _MOST_CLIPPED).any():
        column = int(np.argmax(clipped))
        raise DataError(
            f"{clipped[column]:.0%} of the rows of site {site.name!r} lie far outside the agreed bounds "
            f"{scaling.lower[column]:.6g} and {scaling.upper[column]:.6g} of column {column}: give public bounds, or "
            "put the site into a run with sites like it"
        )


class AgreedBounds(Preparation):
    """By the smallest and largest value of each column over all sites, which the sites tell each other."""

    is_agreed = True
    looks_at_rows = "the smallest and largest values of the rows would be sent: give public bounds, or scale=None"

    def agree(self, site: Site, roll: RollCall, agreement: Agreement | None = None) -> Procedure[AnyScaling]:
        """Return the scaling after diameter exchanges."""
        roster = yield from roll.roster()
        return (yield from agree_on_scaling(site, roster))

    def scaling(self, lower: Array, upper: Array, n_columns: int) -> Scaling:
        """Return the scaling by bounds that a neighbour tells a site that joins; nothing is clipped."""
        return Scaling(lower, upper)


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

    def agree(self, site: Site, roll: RollCall, agreement: Agreement | None = None) -> Procedure[AnyScaling]:
        """Return the scaling."""
        return without_exchange(public_scaling(self.bounds, site.rows.n_columns, self._n_outputs(site)))


class OwnUnits(Preparation):
    """Rows stay in their own units."""

    def agree(self, site: Site, roll: RollCall, agreement: Agreement | None = None) -> Procedure[AnyScaling]:
        """Return the scaling that changes nothing."""
        return without_exchange(UNSCALED)


PREPARATIONS: dict[str | None, Callable[[int], Preparation]] = {
    "quantiles": AgreedQuantiles,
    "minmax": lambda min_rows: AgreedBounds(),
    None: lambda min_rows: OwnUnits(),
}


def preparation_of(settings: GuardSettings, bounds: BoundsPair | None = None) -> Preparation:
    """Return the preparation that the settings, and public bounds where there are some, ask for."""
    if settings.scale is not None and bounds is not None:
        return PublicBounds(bounds)
    return PREPARATIONS[settings.scale](settings.min_rows)
