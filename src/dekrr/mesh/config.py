"""The contents of the files of a mesh: network.toml describes a single run, site.toml a site, relay.toml a relay."""

import datetime
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from ..protocols import training
from ..protocols.baselines import allreduce, dkla
from ..protocols.run import Outcome, Tuning
from ..protocols.site import Procedure
from ..scaling import Response
from ..selection import CHOOSERS, Chooser
from ..settings import (
    GRIDS,
    WITH_SHARED,
    AllReduceSettings,
    DeKRRSettings,
    DKLASettings,
    EstimatorSettings,
    FeatureSettings,
    TuningSettings,
    entries,
    grid_of,
    is_auto,
    parts_of,
)

NONE, BY_RELAY = "none", "relay"
METHODS: dict[str, tuple[Callable[..., Procedure[Outcome]], type[msgspec.Struct]]] = {
    "dekrr": (training.train, DeKRRSettings),
    "dkla": (dkla.train, DKLASettings),
    "allreduce": (allreduce.train, AllReduceSettings),
}
Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


class DataTable(msgspec.Struct, frozen=True, kw_only=True):
    """The table [data]: the columns to use."""

    target: str | tuple[str, ...]  # the column to predict, or several
    columns: tuple[str, ...]  # the columns to predict from
    # A site's CSV or Parquet file, or a folder of Parquet files. In network.toml it is in each [[site]] instead.
    file: str = ""
    # the column that says how often a row counts, the same at all sites; empty where all rows count once
    weight: str = ""
    # Whether columns may have words, dates and missing values. Sites then agree on what columns become, and tell each
    # other categories that at least `min_rows` of their rows have.
    raw: bool = False
    classes: tuple[str | int | float | bool, ...] = ()  # the classes that the target has; empty where it is a number
    # The address of a Dask scheduler whose workers read a site's Parquet files and sum over them; empty where the node
    # reads its file itself. It is the site's own choice.
    scheduler: str = ""

    @property
    def targets(self) -> tuple[str, ...]:
        """The columns to predict."""
        return (self.target,) if isinstance(self.target, str) else self.target

    @property
    def used(self) -> tuple[str, ...]:
        """All columns that are read."""
        return (*self.columns, *self.targets, *([self.weight] if self.weight else []))


class KeysTable(msgspec.Struct, frozen=True, kw_only=True):
    """The table [keys] of site.toml: the authority's certificate, the site's certificate, and its private key."""

    authority: str
    certificate: str
    key: str


class PageTable(msgspec.Struct, frozen=True, kw_only=True):
    """The table [page] of site.toml: the port of 127.0.0.1 for the page to look at; 0 takes a free one."""

    port: Annotated[int, msgspec.Meta(ge=0, le=65535)]


class Training(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be trained: what network.toml, study.toml and the site.toml of a single run have in common."""

    method: Literal["dekrr", "dkla", "allreduce"]
    data: DataTable
    settings: dict[str, Any] = {}
    patience: Seconds = 60.0  # seconds after which a neighbour that cannot be reached is declared gone
    start_patience: Seconds = 600.0  # seconds to wait for all sites before the start

    def features(self) -> FeatureSettings:
        """Return the settings of all methods; a sigma that is found is represented by the first value of its grid."""
        return msgspec.convert(part_of(_untuned(self.method, self.settings), FeatureSettings), FeatureSettings)

    def chooser(self) -> Chooser:
        """Return how the site chooses features; its sigma is None where sites agree on one by their rows."""
        features = self.features()
        sigma = None if self.method == "dekrr" and leaves_sigma(self.settings) else features.sigma
        return CHOOSERS[features.features](
            features.n_features, kernel=features.kernel, sigma=sigma, mapping=features.mapping
        )

    def method_settings(self, n_gone: int = 0) -> Any:
        """Return the method's own settings; a setting that is tuned is represented by the first value of its grid.

        A run that tunes starts again after the loss of a site, and then asks for the same number of maps again. So the
        limit `max_maps` grows with `n_gone`, the number of lost sites.
        """
        kind: Any = METHODS[self.method][1]
        settings = msgspec.convert(part_of(_untuned(self.method, self.settings), kind), kind)
        if self.data.weight:
            settings = msgspec.structs.replace(settings, weighted=True)
        if self.method == "dekrr" and settings.allocation == "equal" and not settings.max_features:
            settings = msgspec.structs.replace(settings, max_features=self.features().n_features)
        tuning = self.tuning()
        if tuning is None:
            return settings
        return msgspec.structs.replace(settings, max_maps=max(settings.max_maps, (1 + n_gone) * tuning.n_maps))

    def tuning(self) -> Tuning | None:
        """Return the tuning of DeKRR; None if nothing is tuned."""
        if self.method != "dekrr":
            return None
        grids = grids_of(self.settings)
        if max(map(len, grids.values())) == 1:
            return None
        settings = self.tuning_settings()
        return Tuning(
            sigmas=grids["sigma"],
            alphas=grids["alpha"],
            consensuses=grids["consensus"],
            folds=settings.folds,
            prediction=self.features().prediction,
        )

    def tuning_settings(self) -> TuningSettings:
        """Return what DeKRR finds before it trains, and by what."""
        return msgspec.convert(part_of(self.settings, TuningSettings), TuningSettings)

    def response(self) -> Response:
        """Return how responses are changed for training."""
        return Response(part_of(self.settings, DeKRRSettings).get("transform") if self.method == "dekrr" else None)

    def why_not_warm(self) -> list[str]:
        """Return why a run cannot keep the features of an earlier one and start from its model; empty if it can."""
        if self.method != "dekrr":
            return [f"method {self.method!r} always starts at 0"]
        found: list[str] = []
        if leaves_sigma(self.settings) or self.tuning() is not None:
            found.append("sigma, alpha and consensus are found anew in every run: give numbers")
        if parts_of_run(self.settings)["column_scales"] is not None:
            found.append(
                "features are drawn in column scales that depend on the rows of the run, and neighbours refuse others: "
                'give column_scales = "none"'
            )
        if self.data.raw:
            found.append("what raw columns become depends on the rows of the run")
        if self.data.classes or self.method_settings().intervals:
            found.append("classes and intervals have a second training, whose features may not know the rows left out")
        return found

    def terms(self, version: str, sites: Iterable[str]) -> dict[str, str]:
        """Return the terms: all sites must agree on them before a message that depends on rows is sent."""
        settings = {**msgspec.to_builtins(self.features()), **msgspec.to_builtins(self.method_settings())}
        local = {name for name, entry in entries(METHODS[self.method][1]).items() if not entry.setting.agreed}
        tuning = self.tuning()
        if tuning is not None:
            settings |= {"sigma": tuning.sigmas, "alpha": tuning.alphas, "consensus": tuning.consensuses}
            settings |= {"folds": tuning.folds}
        if self.method == "dekrr":
            settings |= {"sigma": "auto"} if leaves_sigma(self.settings) else {}
            settings |= {"alpha": "auto"} if leaves_alpha(self.settings) else {}
        return {
            "version of dekrr": version,
            "method": self.method,
            "sites": ", ".join(sorted(sites)),
            "target": ", ".join(self.data.targets),
            "weight": self.data.weight,
            "columns": ", ".join(self.data.columns),
            "raw columns": json.dumps(self.data.raw),
            "classes": json.dumps(self.data.classes),
            "patience": f"{self.patience:g}",
            **{key: json.dumps(value) for key, value in settings.items() if key not in local},
        }


class SiteEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One [[site]] of network.toml: its name, the address for its neighbours, and the file of its rows."""

    name: str
    endpoint: str
    data: str


class NetworkFile(Training, frozen=True, kw_only=True):
    """All of network.toml."""

    run: str  # the run's id; every run needs a new one
    site: tuple[SiteEntry, ...]
    # one of `dekrr.topology.TOPOLOGIES`, laid out over the sites in their order
    topology: str = entries(EstimatorSettings)["topology"].default
    n_neighbors: int = entries(EstimatorSettings)["n_neighbors"].default
    edges: tuple[tuple[str, str], ...] = ()  # the edges, as an alternative to `topology`

    def neighbors(self) -> dict[str, list[str]]:
        """Return the graph."""
        from .. import topology  # imported here because it loads networkx, which a node does not need

        names = [entry.name for entry in self.site]
        graph = topology.build(self.edges or self.topology, names, self.n_neighbors, seed=0)
        return {name: sorted(graph[name]) for name in names}


class SiteFile(Training, frozen=True, kw_only=True):
    """All of the site.toml of a single run, or what one run of a study is at a site; paths are relative to the file."""

    run: str
    site: str
    listen: str  # the address host:port that this site listens on
    sites: tuple[str, ...]  # all sites of the run
    neighbors: dict[str, str]
    keys: KeysTable | None = None
    page: PageTable | None = None


class StudyFile(Training, frozen=True, kw_only=True):
    """All of study.toml."""

    name: str
    sites: tuple[str, ...]  # all sites that take part; all must approve
    source: str  # the name of the data source at each site
    expires: datetime.date  # the last day on which a run may start
    about: str = ""  # what the study is for, for the person who approves it
    method: Literal["dekrr", "dkla", "allreduce"] = "dekrr"
    every_hours: float = 0.0  # train again after so many hours; 0 for a single run
    new_rows: int = 0  # train again when a site has so many new rows; 0 for never
    # Later runs keep the agreed part's features of the first, and start from the last model. The settings must be
    # numbers, and `column_scales` "none".
    warm: bool = False

    def site_file(self, run: str, site: str, neighbors: dict[str, str], file: str, scheduler: str = "") -> SiteFile:
        """Return what a site needs for one run; where its rows are is the site's word, not the study's."""
        return SiteFile(
            run=run,
            site=site,
            method=self.method,
            listen="127.0.0.1:1",
            sites=self.sites,
            neighbors={p: endpoint for p, endpoint in neighbors.items() if p in self.sites},
            data=msgspec.structs.replace(self.data, file=file, scheduler=scheduler),
            settings=self.settings,
            patience=self.patience,
            start_patience=self.start_patience,
        )


class StandingFile(msgspec.Struct, frozen=True, kw_only=True):
    """All of a standing site's site.toml; paths are relative to the file."""

    site: str
    neighbors: dict[str, str]  # "relay" for a neighbour that is reached by the relay, "" for one that dials this site
    sources: dict[str, str]  # files of rows, by the names that studies use
    keys: KeysTable
    listen: str = ""  # host:port; empty for a site that accepts no connection
    relay: str = ""  # the relay's host:port
    # the address of a Dask scheduler whose workers read the sources; empty where the site reads them itself
    scheduler: str = ""
    # how many models of each study are kept, with the records of their runs; the one in use and those that people chose
    # are kept in any case
    keep_versions: int = 50
    # A program of the site's own, with arguments. It is started with two more, an event and a study: "proposal" when
    # one waits for a person, "held back" when a new model is not used.
    hook: tuple[str, ...] = ()
    page: PageTable | None = None

    def run_of(self, study: StudyFile, run: str, folder: Path) -> SiteFile:
        """Return what one run of a study is at this site, whose file is in `folder`."""
        file = str((folder / self.sources[study.source]).absolute())
        return study.site_file(run, self.site, dict(self.neighbors), file, self.scheduler)


class RelayFile(msgspec.Struct, frozen=True, kw_only=True):
    """All of relay.toml: the relay's name in its certificate, its address, the sites it serves, and its keys."""

    name: str
    listen: str
    sites: tuple[str, ...]
    keys: KeysTable


def protocol_of(version: str) -> str:
    """Return what the sites of a run must have in common: releases that differ in the third number work together.

    Examples
    --------
    >>> protocol_of("0.3.0"), protocol_of("0.3.12")
    ('0.3', '0.3')
    """
    return ".".join(version.split(".")[:2])


def parts_of_run(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return which parts the models of a DeKRR run have, by the settings in its file.

    Examples
    --------
    >>> parts_of_run({"local": "none"})
    {'shared': 'auto', 'site_effect': 'auto', 'local': None, 'column_scales': 'auto'}
    """
    given = part_of(settings, DeKRRSettings)
    return parts_of(given, private=given.get("privacy") is not None)


def grids_of(settings: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
    """Return the values of sigma, alpha and consensus to choose from; 1 stands for a sigma that sites agree on."""
    given, shared = part_of(settings, TuningSettings), parts_of_run(settings)["shared"]
    grids = {name: grid_of(name, given.get(name, "auto"), shared=shared) for name in GRIDS}
    return grids | ({"sigma": (1.0,)} if leaves_sigma(settings) else {})


def leaves_sigma(settings: Mapping[str, Any]) -> bool:
    """Return whether sites agree on a bandwidth by their rows: where there is a shared part, and none is given."""
    return is_auto(settings.get("sigma", "auto")) and parts_of_run(settings)["shared"] is not None


def leaves_alpha(settings: Mapping[str, Any]) -> bool:
    """Return whether the regularisation follows from the ridge of the shared part."""
    return is_auto(settings.get("alpha", "auto")) and parts_of_run(settings)["shared"] is not None


def _untuned(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with a single number for each setting that DeKRR can find."""
    if method != "dekrr":
        return dict(settings)
    parts, first = parts_of_run(settings), {name: grid[0] for name, grid in grids_of(settings).items()}
    own = {"own_weight": WITH_SHARED["own_weight"]} if parts["shared"] is not None else {}
    left = {"alpha": None} if leaves_alpha(settings) else {}
    return {**own, **settings, **parts, **first, **left}


def part_of(settings: Mapping[str, Any], kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the settings that are fields of a struct; "none" stands for None, which TOML has no word for.

    Examples
    --------
    >>> part_of({"shared": "none", "features": "none", "alpha": 1e-3}, DeKRRSettings)
    {'shared': None, 'alpha': 0.001}
    """
    known = entries(kind)
    return {
        key: None if value == NONE and known[key].setting.rule.allows(None) else value
        for key, value in settings.items()
        if key in known
    }
