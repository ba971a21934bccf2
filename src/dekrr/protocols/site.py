"""A site, and the types of what a procedure yields and receives."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from ..errors import DataError, warn
from ..features import FeatureMap
from ..messages import AnyMessage, Message
from ..privacy.admission import AnyAdmission, AskedMaps, Vault, check_leverages, check_rows_of_shared, learn, site_rng
from ..privacy.masks import Identity
from ..settings import DeKRRSettings
from ..tables.rows import HashOf, RowHash, Rows, fold_of
from ..types import Array

Outbox = Mapping[str, Message]
Inbox = Mapping[str, AnyMessage]
Limits = tuple[Array, Array]
Result = TypeVar("Result")
Procedure = Generator[Outbox, Inbox, Result]
FOLDS = 5  # of a site's rows: of the shared and the local part, and of a second training, which is without one of them


class Quiet(dict[str, Message]):
    """The outbox of a site that sends nothing for some exchanges, and that nothing is to arrive at.

    A network may resume the site when so many exchanges are `Passed`, or when a message arrives all the same. To a
    network that does not, it is an empty outbox like others. A sum over a tree is many such exchanges for most sites.
    """

    def __init__(self, exchanges: int) -> None:
        super().__init__()
        self.exchanges = exchanges


class Passed(dict[str, AnyMessage]):
    """An inbox after several exchanges: the messages of the last one."""

    def __init__(self, messages: Inbox, exchanges: int) -> None:
        super().__init__(messages)
        self.exchanges = exchanges


def passed(inbox: Inbox) -> int:
    """Return how many exchanges an inbox is after."""
    return inbox.exchanges if isinstance(inbox, Passed) else 1


def without_exchange(result: Result) -> Procedure[Result]:
    """Return a procedure that ends at once, with a result that takes no exchange."""
    yield from ()
    return result


def _unwatched(stage: str) -> None:
    """Tell nobody about a stage."""


class Kept:
    """What a site keeps of a run when another site is lost; see `dekrr.mesh.after_loss`."""

    def __init__(self, epoch: str = "") -> None:
        self.epoch = epoch  # what is lost in the present epoch, in words; empty in the first one
        self.summed_in: str | None = None  # the epoch in which the site has sent its first masked words about rows
        # What training could end with, of the sums formed so far, the last one last: all sites have the same, as far as
        # they have come. None stands for what the site adds at home alone.
        self.reached: list[Any] = []
        # Returns an outcome, or one of no sums, with what the site adds for its own rows, without any other site.
        self.at_home: Callable[[Any, Any], Procedure[Any]] | None = None

    @property
    def has_sent(self) -> bool:
        """Whether the site has sent masked words in an earlier epoch."""
        return self.summed_in not in (None, self.epoch)

    def note_words(self) -> None:
        """Note that masked words are about to leave."""
        if self.summed_in is None:
            self.summed_in = self.epoch


@dataclass(frozen=True, eq=False)
class Site:
    """What one site has before a run: its name, its neighbours' names and its rows."""

    name: str
    neighbors: tuple[str, ...]
    rows: Rows
    _: KW_ONLY
    seed: int = 0  # the run's seed, the same at all sites; `rng` makes the site's own stream of it
    feature_map: FeatureMap | None = None  # features to use instead of choosing some
    # shape (n_features,) or (n_features, n_outputs): where the rounds start: those of an earlier model with these
    # features, or an empty array for 0. All sites of a run have this, or none has.
    coefficients: Array | None = None
    ledger: AskedMaps = field(default_factory=AskedMaps)  # the maps that its neighbours have asked sums for
    # what the site has released under differential privacy, so that resuming releases nothing new
    vault: Vault = field(default_factory=Vault)
    # how the site hashes its rows, which folds are made by; a node has a secret key for it
    hash_of: HashOf = field(default_factory=RowHash)
    # the rule of an earlier run by which rows are in sums that leave the site; otherwise the rule is learnt
    admission: AnyAdmission | None = None
    # shape (n_columns + n_outputs,): what values are moved to that lie outside, as all sites agreed where a site has
    # values far off the others'
    limits: Limits | None = None
    identity: Identity = field(default_factory=Identity)  # the site's key for masks, and how it is proved
    kept: Kept = field(default_factory=Kept)  # what it keeps when another site is lost
    # whether neighbours may lie: coefficients that no honest site can have are cut, and their sender is named
    doubts: bool = False
    # is told, in words and with a category of warnings, what the site should know about its run; by default it warns
    tell: Callable[..., None] = warn
    # is told the name of each stage of the run that the site enters, for whoever watches it
    enter: Callable[[str], None] = _unwatched

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

    def in_order(self) -> "Site":
        """Return the site with its rows in an order of their own; see `dekrr.tables.rows.Rows.in_order`."""
        return replace(self, rows=self.rows.in_order(self.hash_of))

    def fold_of(self, n_folds: int) -> np.ndarray:
        """Return the fold of each row of the site's sample; see `dekrr.tables.rows`."""
        sample = self.rows.sample
        return fold_of(self.hash_of(sample.arrays()) if sample.hashes is None else sample.hashes, n_folds)

    def to_all(self, message: Message) -> Outbox:
        """Return the outbox that sends one message to every neighbour."""
        return dict.fromkeys(self.neighbors, message)

    def withholding(self, max_leverage: float) -> "Site":
        """Return the site without the rows that are withheld: they have no part in anything that leaves it.

        The rule is learnt by `max_leverage` where the site has none yet; 1 admits all rows.
        """
        if max_leverage >= 1 or not self.neighbors or not self.n_rows:
            return self
        admission = self.admission or learn(self.rows.sample, max_leverage)
        return replace(self, rows=self.rows.admitted(admission), admission=admission)

    @property
    def n_effective(self) -> int:
        """How many rows of equal weights the site's rows are worth: what guards count; see `tables.rows.Weighed`."""
        return self.rows.n_effective

    def check_shared(self, rows: Rows, feature_map: FeatureMap, settings: DeKRRSettings) -> None:
        """Refuse sums of features that all sites share from which rows could be computed."""
        per_feature = settings.rows_per_feature
        check_rows_of_shared(self.name, rows.n_rows, feature_map, self.neighbors, per_feature)
        # How many features there are follows from numbers of rows, which are told. What rows are worth by their weights
        # is not told: half as many are enough, as for other sums.
        by_weights = "that all sites share, by its rows' weights"
        check_rows_of_shared(self.name, rows.n_effective, feature_map, self.neighbors, per_feature / 2, by_weights)
        if settings.max_leverage < 1 and self.neighbors and rows.n_rows:
            check_leverages(self.name, rows, None, dict.fromkeys(self.neighbors, feature_map), per_feature)

    def require_rows(self, at_least: int) -> None:
        """Refuse to send sums over so few rows that they come close to being the rows."""
        if self.neighbors and self.n_rows >= at_least > self.n_effective:
            raise DataError(
                f"the weights of the {self.n_rows} rows of site {self.name!r} are so unequal that sums over them come "
                f"close to sums over {self.n_effective} rows, fewer than min_rows={at_least}: these would give the "
                "heaviest rows away; make the weights more equal, join the site to another, or lower min_rows"
            ).about(code="few-rows")
        if self.neighbors and self.n_rows < at_least:
            raise DataError(
                f"site {self.name!r} has {self.n_rows} row{'s' * (self.n_rows != 1)}, fewer than min_rows={at_least}: "
                "sums over so few rows would give them away; join it to another site, leave it out, or lower min_rows"
            ).about(code="few-rows")
