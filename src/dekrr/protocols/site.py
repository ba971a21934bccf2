"""A site, and the types of what a procedure yields and receives."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TypeVar

import numpy as np

from ..errors import DataError, warn
from ..features import FeatureMap
from ..messages import AnyMessage, Message
from ..privacy.admission import AnyAdmission, learn
from ..privacy.maps_of_neighbors import Ledger
from ..privacy.masks import Identity
from ..privacy.proofs import site_rng
from ..privacy.vault import Vault
from ..rows import Rows
from ..types import Array

Outbox = Mapping[str, Message]
Inbox = Mapping[str, AnyMessage]
Result = TypeVar("Result")
Procedure = Generator[Outbox, Inbox, Result]


def without_exchange(result: Result) -> Procedure[Result]:
    """Return a procedure that ends at once, with a result that takes no exchange."""
    yield from ()
    return result


@dataclass(frozen=True, eq=False)
class Site:
    """What one site has before a run: its name, its neighbours' names and its rows.

    Parameters
    ----------
    name : str
    neighbors : tuple of str
    rows : Rows
    seed : int, default=0
        The run's seed, the same at all sites; `rng` makes the site's own stream of it.
    feature_map : FeatureMap, optional
        Features to use instead of choosing some.
    coefficients : ndarray of shape (n_features,) or (n_features, n_outputs), optional
        Where the rounds start: those of an earlier model with these features, or an empty array for 0. All sites of a
        run have this, or none has.
    ledger : Ledger
        The maps that its neighbours have asked sums for.
    vault : Vault
        What the site has released under differential privacy, so that resuming releases nothing new.
    admission : callable, optional
        The rule of an earlier run by which rows are in sums that leave the site; otherwise the rule is learnt.
    identity : Identity
        The site's key for masks, and how it is proved.
    tell : callable
        Is told, in words and with a category of warnings, what the site should know about its run; by default it warns.
    """

    name: str
    neighbors: tuple[str, ...]
    rows: Rows
    _: KW_ONLY
    seed: int = 0
    feature_map: FeatureMap | None = None
    coefficients: Array | None = None
    ledger: Ledger = field(default_factory=Ledger)
    vault: Vault = field(default_factory=Vault)
    admission: AnyAdmission | None = None
    identity: Identity = field(default_factory=Identity)
    tell: Callable[..., None] = warn

    @property
    def n_rows(self) -> int:
        """How many rows the site has (N_j)."""
        return self.rows.n_rows

    @property
    def X(self) -> Array:
        """The rows as an array, where they are in memory."""
        return self.rows.arrays().X

    @property
    def y(self) -> Array:
        """The responses as an array, where they are in memory."""
        return self.rows.arrays().y

    def rng(self, purpose: str = "features") -> np.random.Generator:
        """Return this site's random numbers: a stream that depends on seed, name and purpose only."""
        return site_rng(self.seed, self.name, purpose)

    def to_all(self, message: Message) -> Outbox:
        """Return the outbox that sends one message to every neighbour."""
        return dict.fromkeys(self.neighbors, message)

    def withholding(self, max_leverage: float) -> "Site":
        """Return the site without the rows that are withheld: they have no part in anything that leaves it.

        Parameters
        ----------
        max_leverage : float
            For the rule, where the site has none yet; 1 admits all rows.
        """
        if max_leverage >= 1 or not self.neighbors or not self.n_rows:
            return self
        admission = self.admission or learn(self.rows.sample, max_leverage)
        return replace(self, rows=self.rows.admitted(admission), admission=admission)

    @property
    def n_effective(self) -> int:
        """How many rows of equal weights the site's rows are worth: what guards count; see `rows.survey.Weighed`."""
        return self.rows.n_effective

    def require_rows(self, at_least: int) -> None:
        """Refuse to send sums over so few rows that they come close to being the rows."""
        if self.neighbors and self.n_rows >= at_least > self.n_effective:
            raise DataError(
                f"the weights of the {self.n_rows} rows of site {self.name!r} are so unequal that sums over them come "
                f"close to sums over {self.n_effective} rows, fewer than min_rows={at_least}: these would give the "
                "heaviest rows away; make the weights more equal, join the site to another, or lower min_rows"
            )
        if self.neighbors and self.n_rows < at_least:
            raise DataError(
                f"site {self.name!r} has {self.n_rows} row{'s' * (self.n_rows != 1)}, fewer than min_rows={at_least}: "
                "sums over so few rows would give them away; join it to another site, or lower min_rows"
            )
