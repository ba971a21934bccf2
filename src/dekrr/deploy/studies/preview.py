"""What a study would send, found out at the site alone: its own rows, and neighbours that are made up."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...networks.base import Delivery
from ...networks.local import LocalNetwork
from ...privacy.admission import learn
from ...protocols.columns import agree_on_columns
from ...protocols.outcome import Outcome
from ...protocols.site import Procedure, Site
from ...rows import ArrayRows, Rows
from ..leaving import REVEALS
from ..procedure import procedure_of
from ..site_rows import Counted, facts_of, open_rows, source_of
from ..standing_file import StandingFile
from .study import StudyFile

_MOST_MADE_UP = 2000


class Leaving(NamedTuple):
    """The messages of one kind to one neighbour: how many, their bytes, and what they reveal."""

    to: str
    message: str
    times: int
    size: int
    reveals: str


class Preview(NamedTuple):
    """What a study would send to each neighbour, from so many rows."""

    lines: list[Leaving]
    n_rows: int
    neighbors: list[str]


def preview(study: StudyFile, config: StandingFile, folder: Path) -> Preview:
    """Return what would leave a site in a run of a study.

    The other sites' rows are made up: each column has this site's values, in another order. So sizes and kinds of
    messages are those of a run; the number of rounds may differ.
    """
    me = config.site
    others = sorted(site for site in study.sites if site != me)
    neighbors = sorted(p for p in config.neighbors if p in study.sites) or others
    file = str((folder / config.sources[study.source]).absolute())
    run = study.site_file("preview", me, dict.fromkeys(neighbors, ""), file, config.scheduler)
    own = open_rows(run, folder)
    facts = facts_of(run, source_of(run, folder)) if run.data.raw else None
    graph = {me: neighbors} | {p: sorted({me, *others} - {p}) if p in neighbors else [] for p in others}
    for p in others:  # sites that are no neighbours hang on the first neighbour
        if p not in neighbors:
            graph[p] = [neighbors[0]]
    graph = {p: [q for q in them if p in graph[q]] for p, them in graph.items()}
    features, settings = run.features(), run.method_settings()
    admits = learn(own.sample, settings.max_leverage) if settings.max_leverage < 1 else None
    counts: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()

    def count(delivery: Delivery) -> None:
        if delivery.sender == me:
            key = delivery.receiver, type(delivery.message).__name__
            counts[key] += 1
            sizes[key] += delivery.n_bytes

    def takes_part(site: Site) -> Procedure[Outcome]:
        if facts is not None:
            yield from agree_on_columns(replace(site, rows=Counted(facts)), facts, settings.min_rows)
        return (yield from procedure_of(run, site))

    procedures = {}
    for number, (name, them) in enumerate(sorted(graph.items())):
        rows: Rows = own if name == me else _made_up(own, number)
        site = Site(name, tuple(sorted(them)), rows, seed=features.seed, admission=admits, tell=_unheard)
        procedures[name] = takes_part(site)
    LocalNetwork(graph, observers=[count]).run(procedures)
    lines = [Leaving(*key, counts[key], sizes[key], REVEALS.get(key[1], "")) for key in sorted(counts)]
    return Preview(lines, own.n_rows, neighbors)


def _unheard(text: str) -> None:
    """Tell nobody: the neighbourhoods of the other sites are made up."""


def _made_up(own: Rows, seed: int) -> ArrayRows:
    """Return rows whose columns have the values of a site's own rows, each in an order of its own."""
    rng = np.random.default_rng(seed)
    sample = own.sample
    X, y = np.array(sample.X), np.array(sample.y)
    n_rows = min(len(y), _MOST_MADE_UP)
    columns = [rng.permutation(X[:, j])[:n_rows] for j in range(X.shape[1])]
    return ArrayRows(np.column_stack(columns), rng.permutation(y)[:n_rows])
