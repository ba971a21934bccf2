"""From rows to outcomes: sites of rows, a network that runs their procedures, and what came of it.

A fit can be watched: what stage it is in and how far it is is told to a terminal, a log or a callback. One site says
where all sites are, since they go in step: by the stages that it enters, and by its messages. So any network can be
watched, and nothing is sent for it.
"""

import logging
import sys
import time
import warnings
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, TextIO

import msgspec
import numpy as np
from sklearn.utils import check_random_state

from .. import messages
from ..errors import PACKAGE, DekrrWarning, SettingsError
from ..kernels import name_of
from ..labels import listed, names_of
from ..model import SiteModel, from_bytes
from ..networks.base import Connect, Network, PartialNetwork, Traffic
from ..networks.local import LocalNetwork
from ..protocols.preparation import preparation_of
from ..protocols.roll_call import RollCall
from ..protocols.run import Outcome, Tuning
from ..protocols.site import Inbox, Outbox, Procedure, Result, Site
from ..scaling import AnyScaling
from ..selection import CHOOSERS, Chooser
from ..settings import FeatureSettings, GuardSettings, grid_of, is_auto
from ..tables.rows import Rows, RowsElsewhere, Weighed
from ..types import Array

_LOG = logging.getLogger("dekrr")
_STAGES: dict[type[messages.Message], str] = {
    messages.Roll: "roll call",
    messages.RawColumns: "columns",
    messages.Bounds: "scales",
    messages.Shortlist: "choosing features",
    messages.Features: "choosing features",
    messages.Coefficients: "rounds",
    messages.MaskedRound: "rounds",
    messages.Unchanged: "rounds",
}
_SECONDS_BETWEEN_LINES = 0.1
_SECONDS_BETWEEN_LOGS = 10.0


@dataclass(frozen=True)
class FitEvent:
    """Where a fit is.

    Examples
    --------
    >>> str(FitEvent("rounds", exchange=40, part=3, parts=21, round=12, residual=1e-3, seconds=4.0))
    'training 3 of 21, rounds: 12, residual 1.0e-03, 4 s, about 30 s left'
    """

    # "columns", "looking at rows", "roll call", "scales", "column scales", "shared part", "choosing features",
    # "sums over rows", "rounds", "local part", "held-out rows", or "done"
    stage: str
    exchange: int  # exchanges of messages so far; agreeing on raw columns, and each look at rows, count their own
    # part, parts: tuning trains once per bandwidth and fold, and then once for good: how many of these trainings have
    # begun, and how many there are
    part: int = 0
    parts: int = 1
    round: int = 0  # rounds of this training so far
    residual: float = float("nan")  # the last relative residual that is known; NaN where there is none
    seconds: float = 0.0  # since the fit began

    @property
    def seconds_left(self) -> float:
        """About how many seconds are left, by the trainings that have begun; NaN where there is nothing to go by."""
        if self.stage == "done":
            return 0.0
        return self.seconds * (self.parts + 0.5 - self.part) / (self.part - 0.5) if self.part > 1 else float("nan")

    def __str__(self) -> str:
        if self.stage == "done":
            return f"done after {self.exchange} exchanges, {self.seconds:.0f} s"
        words = [f"training {self.part} of {self.parts}, "] if self.part and self.parts > 1 else []
        words.append(self.stage)
        if self.stage == "rounds":
            words.append(f": {self.round}, residual {self.residual:.1e}")
        words.append(f", {self.seconds:.0f} s")
        if self.seconds_left == self.seconds_left:
            words.append(f", about {self.seconds_left:.0f} s left")
        return "".join(words)


Callback = Callable[[FitEvent], None]


class Watch:
    """Follows one site's messages, and tells callbacks where the fit is; it has so many trainings (`parts`)."""

    def __init__(self, callbacks: Iterable[Callback], parts: int = 1, stage: str = "roll call") -> None:
        self.parts = parts
        self._callbacks = list(callbacks)
        self._start = time.monotonic()
        self._stage = stage
        self._exchange = self._part = self._round = 0
        self._residual = float("nan")

    def follow(self, procedure: Procedure[Result]) -> Procedure[Result]:
        """Return a procedure that does the same, and is watched."""
        inbox: Inbox | None = None
        while True:
            try:
                outbox = procedure.send(inbox)  # type: ignore[arg-type]
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            self._see(outbox)
            inbox = yield outbox

    def enter(self, stage: str) -> None:
        """Note that the site enters a stage; a training begins with its sums."""
        self._stage = stage
        if stage == "sums over rows":
            self._part, self._round = min(self._part + 1, self.parts), 0

    def _see(self, outbox: Outbox) -> None:
        self._exchange += 1
        message = next(iter(outbox.values()), None)
        stage = "choosing features" if isinstance(message, messages.Offer) else _STAGES.get(type(message))  # type: ignore[arg-type]
        if isinstance(message, messages.Coefficients | messages.MaskedRound | messages.Unchanged):
            self._round += 1
            residual = messages.residual_of(message)
            self._residual = float("nan") if residual is None else residual
        self._stage = stage or self._stage
        self.tell()

    def tell(self) -> None:
        """Tell callbacks where the fit is."""
        seconds = time.monotonic() - self._start
        event = FitEvent(self._stage, self._exchange, self._part, self.parts, self._round, self._residual, seconds)
        for callback in self._callbacks:
            callback(event)


class TerminalLine:
    """Writes where a fit is to one line of a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._next = 0.0

    def __call__(self, event: FitEvent) -> None:
        """Show an event, unless the last one was shown just now."""
        if event.stage == "done" or event.seconds >= self._next:
            self._next = event.seconds + _SECONDS_BETWEEN_LINES
            self._stream.write(f"\r\x1b[Kfit: {event}" + "\n" * (event.stage == "done"))
            self._stream.flush()


class FitLog:
    """Writes where a fit is to the log "dekrr": new stages, and every ten seconds."""

    def __init__(self) -> None:
        self._stage: tuple[str, int] = ("", 0)
        self._next = 0.0

    def __call__(self, event: FitEvent) -> None:
        """Log an event where there is something new."""
        stage = event.stage, event.part
        if stage != self._stage or event.seconds >= self._next:
            self._stage, self._next = stage, event.seconds + _SECONDS_BETWEEN_LOGS
            _LOG.info("fit: %s", event)


def callbacks_of(verbose: int, callbacks: Any) -> list[Callback]:
    """Return who is to be told of a fit: the callbacks, and with `verbose` a terminal or, without one, the log."""
    found = list(callbacks or ())
    if verbose:
        found.append(TerminalLine(sys.stderr) if sys.stderr is not None and sys.stderr.isatty() else FitLog())
    return found


@contextmanager
def watching(verbose: int, callbacks: Any, parts: int = 1, *, before: str = "") -> Iterator[Watch | None]:
    """Give what watches a fit, or a stage `before` its trainings; None where nobody wants to know."""
    told = callbacks_of(verbose, callbacks)
    watch = Watch(told, parts, before or "roll call") if told else None
    yield watch
    if watch is not None and not before:
        watch.enter("done")
        watch.tell()


Here = Callable[[Sequence[Hashable]], Set[Hashable]]
"""A function that says which of all sites are driven in this process."""


class _Told(msgspec.Struct, frozen=True, array_like=True):
    """What a process tells the others about its sites after a run, by their names."""

    counts: dict[str, tuple[int, Weighed]]
    traffic: list[tuple[str, str, str, int, int]]


def _of_all(network: PartialNetwork, own: Any, kind: Any) -> list[Any]:
    """Return what each process tells: this one tells its `own`, which is of this kind."""
    decoder = messages.decoder_of(kind)
    return [decoder.decode(data) for data in network.share(msgspec.msgpack.encode(own, enc_hook=messages.to_wire))]


def here_of(network: Any, graph_of: Callable[[Sequence[Hashable]], Any]) -> Here | None:
    """Return the function that says which sites are driven in this process; None where all are."""
    if not hasattr(network, "sites_here") or network.n_ranks == 1:
        return None

    def here(labels: Sequence[Hashable]) -> Set[Hashable]:
        graph = graph_of(labels)
        return frozenset(network.sites_here({label: list(graph[label]) for label in labels}))

    return here


def only_here(rows: Mapping[Hashable, Rows], here: Here | None) -> dict[Hashable, Rows]:
    """Return the rows of each site, without those of sites that are driven elsewhere."""
    if here is None:
        return dict(rows)
    own = here(list(rows))
    return {
        label: given if label in own else RowsElsewhere(given.n_columns, weighted=given.weighted)
        for label, given in rows.items()
    }


def refuse_other_sites(network: Any, before: Collection[Hashable], now: Collection[Hashable]) -> None:
    """Refuse to go on with other sites in several processes: those that stay could be driven by other processes."""
    if here_of(network, dict.fromkeys) is not None and set(before) != set(now):
        raise SettingsError("sites cannot join or leave a network on several ranks: fit again, or go on in one process")


def driven(network: Network, sites: Mapping[Hashable, Site]) -> dict[Hashable, Site]:
    """Return the sites that are driven in this process."""
    if not isinstance(network, PartialNetwork):
        return dict(sites)
    return {label: site for label, site in sites.items() if site.name in network.here}


def tell(network: Network, sites: Mapping[Hashable, Site]) -> Traffic:
    """Return the traffic of a run, by the names of its sites; tell others the numbers of rows, and hear theirs."""
    if not isinstance(network, PartialNetwork):
        return network.traffic
    counts = {}
    for site in driven(network, sites).values():
        same = Weighed(float(site.n_rows), float(site.n_rows))
        counts[site.name] = site.n_rows, site.rows.weights if site.rows.weighted else same
    told = _of_all(network, _Told(counts, network.traffic.rows() if network.gathers else []), _Told)
    counted = {name: count for each in told for name, count in each.counts.items()}
    for site in sites.values():
        if isinstance(site.rows, RowsElsewhere):
            site.rows.counted = counted[site.name]
    return Traffic.of_rows(row for each in told for row in each.traffic) if network.gathers else network.traffic


def gathered(
    network: Network, names: Mapping[Hashable, str], models: dict[Hashable, SiteModel], objective: Array
) -> tuple[dict[Hashable, SiteModel], Array]:
    """Return the models of all sites, where they are gathered, and the objective of all sites in each round.

    `names` are of all sites; `models` and the share of the `objective`, shape (n_rounds + 1,), are of this process.
    """
    if not isinstance(network, PartialNetwork):
        return models, objective
    total = np.sum(_of_all(network, objective.tolist(), list[float]), axis=0)
    if not network.gathers:
        return models, total
    encoded = {names[label]: model.to_bytes() for label, model in models.items()}
    files = {name: data for told in _of_all(network, encoded, dict[str, bytes]) for name, data in told.items()}
    return {label: models.get(label) or from_bytes(files[name]) for label, name in names.items()}, total


Training = Callable[[Site, Chooser], Procedure[Outcome]]
"""What a site does, given how it chooses its features."""


def scaling_of(settings: GuardSettings, rows: Rows) -> AnyScaling:
    """Return the scaling that rows in one place have."""
    site = Site("all", (), rows)
    return LocalNetwork({"all": ()}).run({"all": preparation_of(settings).agree(site, RollCall(site))})["all"]


def tuning_of(grids: Mapping[str, Sequence[float]], *, folds: int, prediction: str) -> Tuning | None:
    """Return what DeKRR tunes first: None where there is one value of each to choose from."""
    if max(map(len, grids.values())) == 1:
        return None
    return Tuning(
        sigmas=tuple(grids["sigma"]),
        alphas=tuple(grids["alpha"]),
        consensuses=tuple(grids["consensus"]),
        folds=folds,
        prediction=prediction,
    )


Graph = Mapping[Hashable, Iterable[Hashable]]


@dataclass(frozen=True)
class NetworkRun:
    """What came of a run, by the labels of its sites."""

    sites: dict[Hashable, Site]
    outcomes: dict[Hashable, Outcome]  # of the sites that were driven in this process
    traffic: Traffic
    network: Network

    @property
    def names(self) -> dict[Hashable, str]:
        """The names that the run gave its sites."""
        return {label: site.name for label, site in self.sites.items()}

    def everywhere(self, of_sites: Mapping[Hashable, Any], kind: Any) -> dict[Hashable, Any]:
        """Return what is known of the sites of all processes, where results are gathered, in the order of all sites.

        `of_sites` is of this process; the `kind` of it can be numbers, texts, or named tuples of arrays.
        """
        if not isinstance(self.network, PartialNetwork) or not self.network.gathers:
            return dict(of_sites)
        own = {self.names[label]: one for label, one in of_sites.items()}
        found = {name: one for told in _of_all(self.network, own, dict[str, kind]) for name, one in told.items()}
        return {label: found[name] for label, name in self.names.items() if name in found}

    @property
    def n_columns(self) -> int:
        """How many columns the rows have."""
        return next(iter(self.sites.values())).rows.n_columns

    @property
    def n_rows(self) -> dict[Hashable, int]:
        """How many rows each site has."""
        return {label: site.n_rows for label, site in self.sites.items()}

    @property
    def weights(self) -> dict[Hashable, Weighed] | None:
        """The sums of the weights of each site's rows, where rows have some."""
        if not are_weighted({label: site.rows for label, site in self.sites.items()}):
            return None
        return {label: site.rows.weights for label, site in self.sites.items()}


def are_weighted(rows: Mapping[Hashable, Rows]) -> bool:
    """Return whether rows of any site have weights: what all sites of a run must know."""
    return any(own_rows.weighted for own_rows in rows.values())


def seed_of(random_state: Any) -> int:
    """Return the seed of a run of an estimator with this `random_state`."""
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def _told_once() -> Callable[..., None]:
    """Return what warns, not twice with the same text: sites of one process may have the same to tell.

    It points at the line that called into this package when it was made, since sites may run in threads.
    """
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
    place, told = (frame.f_code.co_filename, frame.f_lineno), set[str]()

    def tell(text: str, category: type[Warning] = DekrrWarning) -> None:
        if text not in told:
            told.add(text)
            warnings.warn_explicit(text, category, *place)

    return tell


def sites_of(
    rows: Mapping[Hashable, Rows], graph: Graph, *, seed: int = 0, names: Mapping[Hashable, str] | None = None
) -> dict[Hashable, Site]:
    """Return a site for each label, with its neighbours and rows; names are by default as from `labels.names_of`."""
    labels = list(rows)
    names = names or dict(zip(labels, names_of(labels), strict=True))
    once = _told_once()
    return {
        label: Site(names[label], tuple(names[p] for p in graph[label]), own_rows, seed=seed, tell=once)
        for label, own_rows in rows.items()
    }


def run(
    sites: Mapping[Hashable, Site],
    procedure: Callable[[Hashable, Site], Procedure[Outcome]],
    connect: Connect | None = None,
    watch: Watch | None = None,
) -> NetworkRun:
    """Have a network, by default in this process, run each site's procedure; `watch` follows the first, and so all."""
    network = (connect or LocalNetwork)({site.name: site.neighbors for site in sites.values()})
    here = driven(network, sites)
    watched = next(iter(here), None) if watch is not None else None
    procedures = {}
    for label, site in here.items():
        if watch is not None and label == watched:
            procedures[site.name] = watch.follow(procedure(label, replace(site, enter=watch.enter)))
        else:
            procedures[site.name] = procedure(label, site)
    outcomes = network.run(procedures)
    return NetworkRun(
        sites=dict(sites),
        outcomes={label: outcomes[site.name] for label, site in here.items()},
        traffic=tell(network, sites).relabelled({site.name: label for label, site in sites.items()}),
        network=network,
    )


_ROWS_PER_FEATURE = 2
_FEWEST_FEATURES = 10
_MOST_BYTES = 700_000  # that a site's sums for its neighbours have


def n_features_for(n_rows: int, n_neighbors: int) -> int:
    """Return how many features a site takes where nobody says: by its rows, within a budget of bytes.

    A neighbour is sent sums of D (D + 1) / 2 + D D numbers.
    """
    affordable = _MOST_BYTES / (12 * n_neighbors) if n_neighbors else np.inf
    return int(max(_FEWEST_FEATURES, min(n_rows // _ROWS_PER_FEATURE, np.sqrt(affordable))))


@dataclass(frozen=True)
class Choosing:
    """How sites choose features."""

    owner: str  # the estimator's name, for messages
    features: Any
    given: Mapping[str, Any]  # the estimator's n_features, kernel, sigma and mapping
    defaults: Mapping[str, Any]  # the same of an estimator that is given none
    leaves_sigma: bool = False  # whether the sites agree on a bandwidth, where it is "auto"

    @classmethod
    def of(cls, regressor: Any, features: Any = None) -> "Choosing":
        """Return how an estimator's sites choose: by its parameters, or by other `features`."""
        names = ("n_features", "kernel", "sigma", "mapping")
        return cls(
            type(regressor).__name__,
            regressor.features if features is None else features,
            {name: getattr(regressor, name) for name in names},
            {name: type(regressor).__dataclass_fields__[name].default for name in names},
        )

    def brought(self) -> Chooser | None:
        """Return the chooser that `features` is, or makes; None where it is a name."""
        if hasattr(self.features, "chooser"):  # a transformer of one
            made: Chooser = self.features.chooser()
            return made
        return None if isinstance(self.features, str) else self.features

    def setting(self, name: str) -> Any:
        """Return a setting that a chooser object may bring too: from where it is given.

        A default counts as not given.
        """
        own, brought = self.given[name], self.brought()
        if brought is None or _is_same(getattr(brought, name), Chooser.__dataclass_fields__[name].default):
            return own
        if _is_same(own, self.defaults[name]) or _is_same(own, getattr(brought, name)):
            return getattr(brought, name)
        raise SettingsError(
            f"{name} is {own!r} in {self.owner} and {getattr(brought, name)!r} in {type(brought).__name__}, "
            "which chooses its features: give it once"
        )

    def sigmas(self) -> tuple[float, ...]:
        """Return the bandwidths to choose from; one that is given is the only one, and 1 stands for one to agree on."""
        return (1.0,) if self.leaves_sigma else grid_of("sigma", self.setting("sigma"))

    def kernel_name(self) -> str:
        """Return what model files call the kernel."""
        return name_of(self.setting("kernel"))

    def sizes(self, labels: Sequence[Hashable]) -> dict[Hashable, int]:
        """Return how many features each site gets (its mean, where an allocation shares them out)."""
        given = self.setting("n_features")
        if is_auto(given):
            given = FeatureSettings().n_features
        if isinstance(given, Integral):
            return dict.fromkeys(labels, int(given))
        sizes = dict(given) if isinstance(given, Mapping) else dict(zip(labels, given, strict=False))
        if set(sizes) != set(labels) or (not isinstance(given, Mapping) and len(given) != len(labels)):
            raise SettingsError(f"n_features has {len(given)} entries for {len(labels)} sites: {listed(labels)}")
        return {label: int(size) for label, size in sizes.items()}

    def sized(self, n_rows: Mapping[Hashable, int], graph: Any) -> "Choosing":
        """Return how sites choose where each takes features by its rows, if their number is "auto"."""
        if not is_auto(self.setting("n_features")):
            return self
        sizes = {label: n_features_for(number, graph.degree[label]) for label, number in n_rows.items()}
        return replace(self, given={**self.given, "n_features": sizes})

    def chooser(self, n_features: int, sigma: float | None = None) -> Chooser:
        """Return the chooser of a site with so many features; by default with the first bandwidth."""
        chooser = self.brought() or CHOOSERS[self.features]()
        if sigma is None and not self.leaves_sigma:
            sigma = self.sigmas()[0]
        return chooser.replace(
            n_features=n_features,
            kernel=self.setting("kernel"),
            sigma=sigma,
            mapping=self.setting("mapping"),
        )

    def choosers(self, labels: Sequence[Hashable]) -> dict[Hashable, Chooser]:
        """Return each site's chooser; sites of one size share it."""
        sizes = self.sizes(labels)
        of_size = {size: self.chooser(size) for size in set(sizes.values())}
        return {label: of_size[size] for label, size in sizes.items()}


def _is_same(value: Any, other: Any) -> bool:
    return np.ndim(value) == 0 and bool(value == other)
