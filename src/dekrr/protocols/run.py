"""A run as one object: the chooser, the settings, and the policies that the settings ask for.

`Outcome` is what a site ends it with.

A policy is one of several ways to do a step. Each kind has a base class, here or in `preparation`. Its classes are in
the module of the step, with a table of the names that settings know them by. So a further one is a class and a line.

`Tuning` is what tuning chooses from, and `Tuned` what it chose; `cross_validation` has the procedure. After each stage
of a run a site has more: a `Start`, its neighbours' `Offers`, and sums, its `SetUp`.

**What rows count, and what outputs count beside each other, over all sites.**

N of the objective is the sum of all rows' weights. Where rows have weights, each site tells its neighbours the sum of
its own, and the sum over all sites is found over the spanning tree. So a row of weight 2 counts as two rows do, and a
common factor of all weights changes nothing.

Several outputs share features and settings, so their errors are added up. Each output is brought to the same variance
over all sites first: otherwise one with a few large values would hardly count.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np

from ..classes import ClassCalibration
from ..errors import MessageError, SettingsError
from ..features import FeatureMap
from ..intervals import Calibration
from ..messages import AnyMessage, Coefficients, Total, Unchanged, expect
from ..parts.local import NO_LEVEL, Home, LevelSums
from ..privacy.admission import AnyAdmission
from ..privacy.mechanism import Spent
from ..scaling import AnyScaling, Scaling
from ..selection import Chooser
from ..settings import DeKRRSettings
from ..solvers import SiteSystem, Solver
from ..statistics import CrossSums, OwnSums, Weights, assemble, penalty
from ..tables.columns import Columns
from ..tables.rows import ArrayRows, Rows
from ..types import Array, Block
from .masking import Agreement, Masking
from .preparation import Preparation
from .roll_call import RollCall, Roster
from .site import Outbox, Procedure, Site
from .spanning_tree import Tree, tree_of

OWN_WEIGHTS = (1 / 3, 1 / 2, 2 / 3, 1.0)


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """What to choose from, and how."""

    sigmas: tuple[float, ...]  # sigmas, alphas, consensuses: the grid; a tuple of one is not tuned
    alphas: tuple[float, ...]
    consensuses: tuple[float, ...]
    folds: int = 5
    # how a site will predict; for "neighborhood" the weight of its own model is chosen too
    prediction: str = "neighborhood"

    @property
    def own_weights(self) -> tuple[float, ...]:
        """The weights of the own model to choose from."""
        return OWN_WEIGHTS if self.prediction == "neighborhood" else (1.0,)

    @property
    def grid(self) -> list[tuple[float, float, float, float]]:
        """All candidates (sigma, alpha, consensus, own weight), in the order of their scores."""
        return [
            (s, a, c, w) for s in self.sigmas for c in self.consensuses for a in self.alphas for w in self.own_weights
        ]

    @property
    def n_maps(self) -> int:
        """For how many maps a site asks its neighbours at most: shortlists and choices, in tuning and training."""
        return 2 * (len(self.sigmas) * self.folds + 1)


@dataclass(frozen=True)
class Tuned:
    """What all sites chose."""

    sigma: float
    alpha: float
    consensus: float
    own_weight: float  # of a site's own model in its prediction
    grid: list[tuple[float, float, float, float]]
    # shape (n_candidates,): mean squared held-out error of each candidate over all sites, in scaled units of the
    # response
    errors: Array


@dataclass(frozen=True, eq=False)
class Start:
    """What a site has before it chooses features."""

    site: Site  # with the rows alone that its sums are over
    rows: Rows  # the rows to train on, in agreed units
    scaling: AnyScaling
    roll: RollCall  # who is there. It may still have to be called.
    masking: Masking | None = None  # the masks of sums. They may still have to be agreed on.

    def tree(self) -> Procedure[Tree]:
        """Return the tree that sums over the rows go over, masked or not."""
        return tree_of(self.roll, self.masking)


class Offers(NamedTuple):
    """What the neighbours have chosen."""

    maps: dict[str, FeatureMap]
    degrees: dict[str, int]  # how many neighbours each neighbour has
    digests: dict[str, bytes]  # of what each neighbour told; masks depend on it


@dataclass(frozen=True)
class SetUp:
    """What a site has when features are chosen and sums exchanged: all that solving needs of the rows."""

    roster: Roster
    own_map: FeatureMap
    maps: dict[str, FeatureMap]
    degrees: dict[str, int]  # how many neighbours each neighbour has
    own: OwnSums
    # over the neighbour's rows about this site's features. Of masked sums each neighbour has an equal share, and no C.
    received: dict[str, CrossSums]
    # what was sent the other way round, without its B, which is of no use here unless sums are masked
    sent: dict[str, CrossSums]
    ridge: float = 0.0  # what the noise in the sums adds to the ridge, in units of a sum over rows
    spent: Spent | None = None  # the privacy budget that the sums cost
    masked: bool = False  # whether the sums were masked

    def system(self, alpha: float, consensus: float) -> SiteSystem:
        """Return the site's block row of the linear system, and what it is assembled from."""
        alpha += self.roster.n_sites * self.ridge / self.roster.n_counted
        weights = self.weights(alpha, consensus)
        row = assemble(self.own, self.received, self.sent, weights)
        return SiteSystem(row, self.own, self.received, weights, consensus)

    def weights(self, alpha: float, consensus: float, share: float = 1.0) -> Weights:
        """Return the weights of the objective's terms when a `share` of all (weighted) rows is in the sums."""
        n_rows = self.roster.n_counted * share
        return Weights(
            n_rows=n_rows,
            n_sites=self.roster.n_sites,
            alpha=alpha,
            own_penalty=penalty(consensus, n_rows, len(self.maps)),
            penalties={p: penalty(consensus, n_rows, degree) for p, degree in self.degrees.items()},
        )


_MOST_CLIPPED = 3.0  # the largest response where responses more than a span outside their bounds are clipped


def weigh_rows(site: Site, roll: RollCall) -> Procedure[None]:
    """Find the sum of the weights of the neighbours' rows, and of all rows; the roll has them from then on."""
    roster = yield from roll.roster()
    own = np.array([site.rows.weights.total])
    inbox = expect((yield site.to_all(Total(own))), Total, values=dict.fromkeys(site.neighbors, (1,)))
    weights = {site.name: float(own[0])} | {p: float(message.values[0]) for p, message in inbox.items()}
    for name, weight in weights.items():
        if not weight > 0:
            raise MessageError(f"site {name!r} sent {weight:g} as its sum of weights, which is not positive", name)
    total = float((yield from Tree(roster).sum(own))[0])
    roll.found(replace(roster, weights=weights, total_weight=total))


def equal_outputs(
    rows: Rows, scaling: AnyScaling, roll: RollCall, agreement: Agreement | None
) -> Procedure[AnyScaling]:
    """Return the scaling with a span for each output by which all outputs have the same variance over all sites.

    The largest variance stays. Centres stay too, so that a model of several outputs is that of each output alone.
    `rows` are in the units of `scaling`; where they are many, a sample stands for them.
    """
    n_outputs = rows.n_outputs
    if n_outputs == 1 or not isinstance(scaling, Scaling):
        return scaling
    tree = yield from tree_of(roll, agreement)
    _, y, weight = rows.sample.arrays()
    weight = rows.sample.expansion * (np.ones(len(y)) if weight is None else weight)
    moments = np.concatenate([[weight.sum()], weight @ y, weight @ y**2])
    most = 1.0 if scaling.limits is None else _MOST_CLIPPED
    total = yield from tree.sum(moments, 2 * tree.roster.n_counted * most**2)
    mean, square = total[1 : n_outputs + 1] / total[0], total[n_outputs + 1 :] / total[0]
    variances = np.maximum(square - mean**2, 0.0)
    shares = np.sqrt(variances / max(variances.max(), np.finfo(float).tiny))
    return scaling.with_spans(np.where(shares > 0, shares, 1.0))


class Exchange(ABC):
    """What sites send each other about their rows, once they know each other's features (line 6)."""

    # what of the rows is looked at before their sums, and what to take instead; empty where nothing is
    looks_at_rows: str = ""
    is_masked: bool = False  # whether a site learns sums over its neighbourhood alone

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
    """What one site needs to know of a run of DeKRR."""

    chooser: Chooser  # with this site's number of features, once that is known
    settings: DeKRRSettings
    preparation: Preparation
    exchange: Exchange
    solver: Solver[Any]
    tuning: Tuning | None = None  # what is chosen by cross-validation first
    tuned: Tuned | None = None  # what cross-validation chose. It is in the chooser and the settings already.
    keep_path: bool = False  # keep the coefficients of every round in the outcome
    keep_sums: bool = True  # keep the sums in the outcome, so that training can go on from them

    @property
    def looks_at_rows(self) -> list[str]:
        """What of its rows the run looks at besides their sums, each with what to take instead."""
        looks = [self.preparation.looks_at_rows, self.exchange.looks_at_rows]
        if self.settings.allocation == "sqrt":
            looks.append('allocation="sqrt" gives sites different features: use allocation="equal"')
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
        """Refuse a run that cannot be as it is set, by all reasons at once, `also` first; before anything is sent."""
        reasons = [*also, *self.preparation.reasons(site), *self.exchange.reasons(site, self)]
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


def neighborhood_weights(n_neighbors: int, own_weight: float = 0.5) -> list[float]:
    """Return the weights of a site's own model and of its neighbours' models in a neighbourhood prediction.

    The own model has `own_weight`; the neighbours share the rest equally. Without neighbours the own weight is 1.
    """
    return [own_weight, *[(1 - own_weight) / n_neighbors] * n_neighbors] if n_neighbors else [1.0]


@dataclass(frozen=True, eq=False)
class SharedPart:
    """The part of a model that all sites share, with the level of the site."""

    feature_map: FeatureMap
    coefficients: Array  # shape (n_features,) or (n_features, n_outputs)
    ridge: float = 0.0  # the ridge of the shared part, in units of Z'Z / N
    error: float = float("nan")  # the squared error per row that was predicted for it
    # shape (n_ridges,): the squared error per row of each ridge, on held-out rows where there are some
    errors: Array = field(default_factory=lambda: np.zeros(0))
    # shape (n_features, n_features): the sum over all sites' rows, at the root of the tree, for as long as training
    # lasts
    gram: Array | None = None
    ratio: float = NO_LEVEL  # of the variances of noise and of sites' levels
    of_site: LevelSums | None = None  # what the site's level follows from

    @cached_property
    def level(self) -> Array:
        """The site's level, shape () or (n_outputs,), in the units of scaled responses."""
        if self.of_site is None or self.ratio == NO_LEVEL:
            return np.zeros(self.coefficients.shape[1:])
        return self.of_site.level(self.coefficients, self.ratio)

    def residuals(self, rows: Rows) -> Rows:
        """Return the rows with what the part and the site's level leave of their responses."""

        def left(block: Block) -> Block:
            return block._replace(y=block.y - self.feature_map.apply(block.X, self.coefficients) - self.level)

        return rows.mapped(left)


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Rows that a second training was without. They stay at the site, and are dropped when their errors are known."""

    rows: ArrayRows
    own: Array  # shape (n_rows,) or (n_rows, n_outputs): what the site's model would predict for them
    # what the site would predict for them without any other site: by its mean, by ridge regression, by its trees
    alone: dict[str, Array]
    best_alone: str  # which of these has the least error in all folds
    # shape (n_rows,) or (n_rows, n_outputs): what the shared part would predict, without levels, if the second training
    # did not fit it anew; otherwise 0
    beneath: Array
    # what the second training of the site predicts, for rows from anywhere, of all that it had to fit
    fitted: Callable[[Array], Array]


@dataclass
class Outcome:
    """What a site ends a run with."""

    roster: Roster
    scaling: AnyScaling
    feature_map: FeatureMap
    coefficients: Array  # shape (n_features,) or (n_features, n_outputs)
    neighbor_maps: dict[str, FeatureMap] = field(default_factory=dict)
    neighbor_coefficients: dict[str, Array] = field(default_factory=dict)
    rounds: int = 0  # updates made
    settled: bool = True  # whether `tol` was reached
    ended_by: str = ""  # what ended the rounds before `tol` or `max_rounds`, in words; empty if nothing did
    relative_residual: float = 0.0  # the last relative residual that all sites knew
    # this site's share of the objective before each round and after the last
    objective_shares: list[float] = field(default_factory=list)
    # coefficients before each round and after the last, where they are kept
    path: list[Array] = field(default_factory=list)
    # the multipliers of the same rounds, of methods that have them
    dual_path: list[Array] = field(default_factory=list)
    own_weight: float = 0.5  # the weight of the site's own model when it predicts with its neighbourhood
    tuned: Tuned | None = None  # what cross-validation chose, where settings were tuned
    ready: SetUp | None = None  # the maps and sums, from which training can go on
    privacy: Spent | None = None  # the privacy budget that the site spent
    admission: AnyAdmission | None = None  # the rule by which rows were in sums, for later sums
    calibration: Calibration | None = None  # what intervals are made of, where the run found it
    # how predictions of class codes become probabilities, where the responses are codes
    classes: ClassCalibration | None = None
    # the part that is the same at all sites, where there is one. The coefficients above fit what it leaves.
    shared: SharedPart | None = None
    home: Home | None = None  # what the site adds for its own rows, and sends to nobody
    # shape (n_columns,): what the response depends on, as all sites agreed; the largest is 1
    column_scales: Array | None = None
    sigma: float | None = None  # the bandwidth that sites agreed on, where none was given
    alpha: float | None = None  # the same of the regularisation
    encoding: Columns | None = None  # what raw columns became, where the sites of the run agreed on it
    held_out: HeldOut | None = None  # rows that a second training was without, where there was one
    hessian: Array | None = None  # shape (n_features, n_features): H_jj, for as long as training lasts
    # what would be predicted for the site's rows if each had not been seen, for as long as training lasts
    out_of_fold: Any = None

    @classmethod
    def without_agreed(
        cls, roster: Roster, scaling: AnyScaling, rows: Rows, shared: SharedPart | None = None, admission: Any = None
    ) -> Self:
        """Return what a run ends with that has no agreed part: one of a single feature, which is 0 everywhere."""
        nothing = FeatureMap(np.zeros((rows.n_columns, 1)), np.zeros(1), np.zeros(1))
        coefficients = np.zeros((1, *rows.sample.y.shape[1:]))
        return cls(
            roster,
            scaling,
            nothing,
            coefficients,
            settled=False,
            relative_residual=float("nan"),
            objective_shares=[float("nan")],
            shared=shared,
            admission=admission,
            hessian=np.eye(1),
        )

    def agreed_members(
        self, prediction: str, own_weight: float | None = None
    ) -> Iterator[tuple[FeatureMap, Array, float]]:
        """Yield the maps, coefficients and weights of the agreed part: the site's own first, then its neighbours'.

        `own_weight` stands in for that of predictions elsewhere.
        """
        maps = self.neighbor_maps if prediction == "neighborhood" else {}
        weights = neighborhood_weights(len(maps), self.own_weight if own_weight is None else own_weight)
        yield self.feature_map, self.coefficients, weights[0]
        for (p, feature_map), weight in zip(maps.items(), weights[1:], strict=True):
            yield feature_map, self.neighbor_coefficients[p], weight

    def others(self, X: Array, prediction: str, home: Home | None = None) -> Array:
        """Return what the shared and the agreed part predict for scaled rows, shape (n_rows,) or (n_rows, n_outputs).

        Rows of the site's own have the own weight of its `home`; without it, rows are from anywhere.
        """
        members = self.agreed_members(prediction, None if home is None else home.own_weight)
        found = np.asarray(np.sum([w * known.apply(X, theta) for known, theta, w in members], axis=0))
        if self.shared is not None:
            found = found + self.shared.feature_map.apply(X, self.shared.coefficients)
        return found

    def predicted(self, X: Array, prediction: str, *, elsewhere: bool = False) -> Array:
        """Return the prediction for scaled rows of the site's own, or from `elsewhere`."""
        home = None if elsewhere else self.home
        found = self.others(X, prediction, home)
        return found if home is None else home.finished(X, found)

    def unit(self, y: Array) -> Array:
        """Return the units of scaled responses of the shape of `y`, in those of responses."""
        return np.asarray(self.scaling.undo(np.ones_like(y)) - self.scaling.undo(np.zeros_like(y)))

    def at_the_end(self) -> Self:
        """Return the outcome without what it had for as long as training lasts."""
        self.hessian = self.out_of_fold = None
        if self.shared is not None:
            self.shared = replace(self.shared, gram=None)
        return self


class OpenRounds:
    """The rounds where C_jp is in the block row: coefficients are all that sites send."""

    behind = 1.0  # by how much to multiply what the block row knows of the neighbours' errors, to know of all

    def __init__(self, site: Site) -> None:
        self._site = site

    def outbox(self, message: Coefficients | Unchanged, known: Array) -> Outbox:
        """Return the messages of a round."""
        return self._site.to_all(message)

    def read(self, inbox: Mapping[str, AnyMessage]) -> tuple[Mapping[str, AnyMessage], Array | float]:
        """Return the neighbours' coefficients, and what is to be added to the residual."""
        return inbox, 0.0
