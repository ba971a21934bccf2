"""What a study would send, found out at the site alone: its own rows, and neighbours that are made up."""

from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from ...errors import DataError
from ...networks.base import Delivery
from ...networks.local import LocalNetwork
from ...privacy.admission import learn
from ...protocols.preparation import agree_on_columns
from ...protocols.run import Outcome
from ...protocols.site import Procedure, Site
from ...tables.columns import Columns
from ...tables.rows import ArrayRows, Rows
from ...types import Array
from ..config import StandingFile, StudyFile
from ..procedure import procedure_of
from ..reveals import REVEALS
from ..site_rows import Counted, facts_of, read_rows, source_of


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
    messages are those of a run; the number of rounds may differ. This site's own rows are judged as in a run. Made-up
    rows are not: none of them is withheld, and where there are too few of them the error says that they are made up.
    """
    me = config.site
    others = sorted(site for site in study.sites if site != me)
    neighbors = sorted(p for p in config.neighbors if p in study.sites) or others
    run = msgspec.structs.replace(config.run_of(study, "preview", folder), neighbors=dict.fromkeys(neighbors, ""))
    if run.method != "dkla":  # the neighbourhoods of the other sites are made up, and nothing leaves
        run = msgspec.structs.replace(run, settings={**run.settings, "lone_neighbor": "warn"})
    if run.settings.get("exclude") == "stop":  # made-up rows may look wrong
        run = msgspec.structs.replace(run, settings={**run.settings, "exclude": "warn"})
    source = source_of(run, folder)
    facts = facts_of(run, source) if run.data.raw else None
    graph = {me: neighbors} | {p: sorted({me, *others} - {p}) if p in neighbors else [] for p in others}
    for p in others:  # sites that are no neighbours hang on the first neighbour
        if p not in neighbors:
            graph[p] = [neighbors[0]]
    graph = {p: [q for q in them if p in graph[q]] for p, them in graph.items()}
    seed, settings = run.features().seed, run.method_settings()
    counts: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()

    def count(delivery: Delivery) -> None:
        if delivery.sender == me:
            key = delivery.receiver, type(delivery.message).__name__
            counts[key] += 1
            sizes[key] += delivery.n_bytes

    @cache
    def own_rows(columns: Columns | None) -> Rows:
        return read_rows(run, source, columns)

    def takes_part(site: Site, number: int) -> Procedure[Outcome]:
        columns = None
        if facts is not None:
            columns = yield from agree_on_columns(
                replace(site, rows=Counted(facts, settings.min_rows)), facts, settings.min_rows
            )
        rows = own_rows(columns)
        if site.name == me:
            admits = learn(rows.sample, settings.max_leverage) if settings.max_leverage < 1 else None
            return (yield from procedure_of(run, replace(site, rows=rows, admission=admits), columns=columns))
        try:
            site = replace(site, rows=_made_up(rows, number, columns), admission=_admits_all)
            return (yield from procedure_of(run, site, columns=columns))
        except DataError as error:
            raise DataError(
                f"the made-up rows that stand for site {site.name!r} in this preview are refused, which tells nothing "
                f"about its real rows: {error}"
            ) from error

    nothing = ArrayRows(np.empty((0, 0)), np.empty(0))  # until the sites have agreed on columns
    procedures = {}
    for number, (name, them) in enumerate(sorted(graph.items())):
        procedures[name] = takes_part(Site(name, tuple(sorted(them)), nothing, seed=seed, tell=_unheard), number)
    LocalNetwork(graph, observers=[count]).run(procedures)
    lines = [Leaving(*key, counts[key], sizes[key], REVEALS.get(key[1], "")) for key in sorted(counts)]
    return Preview(lines, facts.n_rows if facts is not None else own_rows(None).n_rows, neighbors)


def _unheard(text: str, category: type[Warning] = UserWarning) -> None:
    """Tell nobody: the neighbourhoods of the other sites are made up."""


def _admits_all(X: Array) -> np.ndarray:
    """Admit made-up rows: they need no hiding, and in a random order of values far more rows stand alone."""
    return np.ones(len(X), dtype=bool)


def _made_up(own: Rows, seed: int, columns: Columns | None) -> ArrayRows:
    """Return rows whose columns have the values of a site's own rows, each in an order of its own.

    What one raw column has become, for instance a number for each category, stays together.
    """
    rng = np.random.default_rng(seed)
    sample = own.sample
    X, y = np.array(sample.X), np.array(sample.y)
    widths = [1] * X.shape[1] if columns is None else [len(column.names_out) for column in columns.columns]
    parts = np.split(X, np.cumsum(widths)[:-1], axis=1)
    return ArrayRows(np.hstack([rng.permutation(part) for part in parts]), rng.permutation(y))
