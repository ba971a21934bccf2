"""What a site has after each stage of a run: a start, its neighbours' maps, and sums."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ..features import FeatureMap
from ..privacy.mechanism import Spent
from ..rows import Rows
from ..scaling import AnyScaling
from ..solvers import SiteSystem
from ..statistics import CrossSums, OwnSums
from ..system import Weights, penalty
from .masking import Masking
from .roll_call import RollCall
from .roster import Roster
from .site import Site


@dataclass(frozen=True, eq=False)
class Start:
    """What a site has before it chooses features.

    Parameters
    ----------
    site : Site
        With the rows alone that its sums are over.
    rows : Rows
        The rows to train on, in agreed units.
    scaling : Scaling or Unscaled
    roll : RollCall
        Who is there. It may still have to be called.
    masking : Masking, optional
        The masks of sums. They may still have to be agreed on.
    """

    site: Site
    rows: Rows
    scaling: AnyScaling
    roll: RollCall
    masking: Masking | None = None


class Offers(NamedTuple):
    """What the neighbours have chosen.

    Parameters
    ----------
    maps : dict of neighbour to FeatureMap
    degrees : dict of neighbour to int
        How many neighbours each neighbour has.
    digests : dict of neighbour to bytes
        Of what each neighbour told; masks depend on it.
    """

    maps: dict[str, FeatureMap]
    degrees: dict[str, int]
    digests: dict[str, bytes]


@dataclass(frozen=True)
class SetUp:
    """What a site has when features are chosen and sums exchanged: all that solving needs of the rows.

    Parameters
    ----------
    roster : Roster
    own_map : FeatureMap
    maps : dict of neighbour to FeatureMap
    degrees : dict of neighbour to int
        How many neighbours each neighbour has.
    own : OwnSums
    received : dict of neighbour to CrossSums
        Over the neighbour's rows about this site's features. Of masked sums each neighbour has an equal share, and
        no C.
    sent : dict of neighbour to CrossSums
        What was sent the other way round, without its B, which is of no use here unless sums are masked.
    ridge : float, default=0.0
        What the noise in the sums adds to the ridge, in units of a sum over rows.
    spent : Spent, optional
        The privacy budget that the sums cost.
    masked : bool, default=False
        Whether the sums were masked.
    """

    roster: Roster
    own_map: FeatureMap
    maps: dict[str, FeatureMap]
    degrees: dict[str, int]
    own: OwnSums
    received: dict[str, CrossSums]
    sent: dict[str, CrossSums]
    ridge: float = 0.0
    spent: Spent | None = None
    masked: bool = False

    def without_sums(self) -> "SetUp":
        """Return all but the sums, from which training cannot go on."""
        return replace(self, own=OwnSums(np.empty((0, 0)), np.empty(0), 0.0), received={}, sent={})

    def system(self, alpha: float, consensus: float) -> SiteSystem:
        """Return the site's block row of the linear system, and what it is assembled from."""
        alpha += self.roster.n_sites * self.ridge / self.roster.n_counted
        weights = self.weights(alpha, consensus)
        return SiteSystem.assembled(self.own, self.received, self.sent, weights, consensus)

    def weights(self, alpha: float, consensus: float, share: float = 1.0) -> Weights:
        """Return the weights of the objective's terms when a `share` of all rows is in the sums.

        N is the number of rows of all sites, or the sum of their weights where they have some.
        """
        n_rows = self.roster.n_counted * share
        return Weights(
            n_rows=n_rows,
            n_sites=self.roster.n_sites,
            alpha=alpha,
            own_penalty=penalty(consensus, n_rows, len(self.maps)),
            penalties={p: penalty(consensus, n_rows, degree) for p, degree in self.degrees.items()},
        )
