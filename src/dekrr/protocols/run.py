"""A run as one object: the chooser, the settings, and the policies that the settings ask for.

A policy is one of several ways to do a step. Each kind has a base class, here or in `preparation`. Its classes are in
the module of the step, with a table of the names that settings know them by. So a further one is a class and a line.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ..errors import SettingsError
from ..features import FeatureMap
from ..selection import Chooser
from ..settings import DeKRRSettings
from ..solvers import Solver
from .preparation import Preparation
from .site import Procedure, Site
from .stages import Offers, SetUp, Start
from .tuning import Tuned, Tuning


class Allocation(ABC):
    """How many features each site has.

    Attributes
    ----------
    looks_at_rows : str
        What of the rows is looked at before their sums, and what to take instead; empty where nothing is.
    """

    looks_at_rows: str = ""

    def reasons(self, site: Site, run: "Run") -> list[str]:
        """Return why the run cannot be as it is set."""
        return []

    @abstractmethod
    def n_features(self, start: Start, run: "Run") -> Procedure[int]:
        """Return this site's number of features; the mean over all sites is the chooser's `n_features`."""


class Exchange(ABC):
    """What sites send each other about their rows, once they know each other's features (line 6).

    Attributes
    ----------
    looks_at_rows : str
        What of the rows is looked at before their sums, and what to take instead; empty where nothing is.
    is_masked : bool
        Whether a site learns sums over its neighbourhood alone.
    """

    looks_at_rows: str = ""
    is_masked: bool = False

    def reasons(self, site: Site, run: "Run") -> list[str]:
        """Return why the run cannot be as it is set."""
        return []

    def prepared(self, site: Site, run: "Run") -> Site:
        """Return the site with the features that the exchange prescribes, where it does."""
        return site

    @abstractmethod
    def sums(self, start: Start, own_map: FeatureMap, offers: Offers, run: "Run") -> Procedure[SetUp]:
        """Return the site's sums and its neighbours'; the roll is called here where it has not been called yet."""


@dataclass(frozen=True)
class Run:
    """What one site needs to know of a run of DeKRR.

    Parameters
    ----------
    chooser : Chooser
        With this site's number of features, once that is known.
    settings : DeKRRSettings
    preparation : Preparation
    allocation : Allocation
    exchange : Exchange
    solver : Solver
    tuning : Tuning, optional
        What is chosen by cross-validation first.
    tuned : Tuned, optional
        What cross-validation chose. It is in the chooser and the settings already.
    keep_path : bool, default=False
        Keep the coefficients of every round in the outcome.
    keep_sums : bool, default=True
        Keep the sums in the outcome, so that training can go on from them.
    """

    chooser: Chooser
    settings: DeKRRSettings
    preparation: Preparation
    allocation: Allocation
    exchange: Exchange
    solver: Solver[Any]
    tuning: Tuning | None = None
    tuned: Tuned | None = None
    keep_path: bool = False
    keep_sums: bool = True

    @property
    def looks_at_rows(self) -> list[str]:
        """What of its rows the run looks at besides their sums, each with what to take instead."""
        looks = [self.preparation.looks_at_rows, self.exchange.looks_at_rows, self.allocation.looks_at_rows]
        if self.chooser.uses_rows or self.chooser.asks_neighbors:
            looks.insert(0, f'{type(self.chooser).__name__} chooses features from rows: use features="plain"')
        if self.tuning is not None:
            looks.append("tuning would look at rows: give sigma, alpha and consensus as one number each")
        return [look for look in looks if look]

    @property
    def max_leverage(self) -> float:
        """The leverage above which rows are in no sum that leaves; noise hides rows of any leverage."""
        return self.settings.max_leverage if self.settings.privacy is None else 1.0

    @property
    def counts_rows_first(self) -> bool:
        """Whether the roll is called at the start.

        A run that wants nothing of its rows but their sums calls the roll after it has summed. One pass over rows on
        disk then counts them too. All sites of a run answer alike.
        """
        return bool(self.looks_at_rows) or self.max_leverage < 1 or self.settings.weighted

    @property
    def proves_features(self) -> bool:
        """Whether maps travel as proofs of where they come from."""
        return self.settings.verify_features and self.settings.privacy is None

    def refuse(self, site: Site, also: Iterable[str] = ()) -> None:
        """Refuse a run that cannot be as it is set, with every reason at once; before anything is sent.

        Parameters
        ----------
        site : Site
        also : iterable of str
            Further reasons.
        """
        reasons = [*also, *self.preparation.reasons(site), *self.allocation.reasons(site, self)]
        reasons += self.exchange.reasons(site, self)
        if self.settings.privacy is not None and (self.settings.weighted or site.rows.weighted):
            reasons.append(
                "the privacy budget is for rows that count once each: a row of weight w would move the sums w times as "
                "far; leave the weights out"
            )
        if site.rows.weighted and not self.settings.weighted:
            reasons.append(f"the rows of site {site.name!r} have weights, but the run is not set to be weighted")
        if self.settings.privacy is not None and self.looks_at_rows:
            reasons.append("this run cannot keep its privacy budget: " + "; ".join(self.looks_at_rows))
        if reasons:
            raise SettingsError("; ".join(reasons))

    def with_n_features(self, n_features: int) -> "Run":
        """Return the run with this site's number of features."""
        return replace(self, chooser=self.chooser.replace(n_features=n_features))

    def with_tuned(self, tuned: Tuned) -> "Run":
        """Return the run with the numbers that cross-validation chose."""
        settings = msgspec.structs.replace(
            self.settings, alpha=tuned.alpha, consensus=tuned.consensus, own_weight=tuned.own_weight
        )
        return replace(self, chooser=self.chooser.replace(sigma=tuned.sigma), settings=settings, tuned=tuned)
