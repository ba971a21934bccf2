"""The two files of a mesh: network.toml describes a run, site.toml is one site's part of it.

Both are read into frozen structs in one pass, which tells all mistakes at once.
"""

import difflib
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from .. import topology
from ..errors import SettingsError, TopologyError
from ..kernels import KERNELS
from ..privacy.mechanism import DifferentialPrivacy
from ..protocols import allreduce, dekrr, dkla
from ..protocols.tuning import GRIDS, Tuning, grid_of
from ..protocols.wire import Wire
from ..selection import MAPPINGS, SELECTORS

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
RESERVED = ("alive", "status", "ticker")
METHODS: dict[str, Any] = {"dekrr": dekrr, "dkla": dkla, "allreduce": allreduce}
Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Struct = TypeVar("Struct", bound=msgspec.Struct)


class DataTable(msgspec.Struct, frozen=True, kw_only=True):
    """Which columns to use: [data].

    Parameters
    ----------
    target : str
        The column to predict.
    columns : tuple of str
        The columns to predict from.
    file : str
        A site's CSV or Parquet file, or a folder of Parquet files; in network.toml each site has its own.
    """

    target: str
    columns: tuple[str, ...]
    file: str = ""


class FeatureSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The part of [settings] that all methods share; the rest is the method's own `Settings`.

    Parameters
    ----------
    n_features : int
    features : str
        How they are chosen; see `dekrr.selection.SELECTORS`.
    kernel : str
    sigma : float
        In scaled columns. DeKRR tunes it where it is "auto", or a list; see `TuningSettings`.
    mapping : {"cos", "cossin"}
    seed : int
    prediction : {"own", "neighborhood"}
    """

    n_features: Annotated[int, msgspec.Meta(ge=1)] = 100
    features: str = "greedy"
    kernel: str = "gaussian"
    sigma: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    mapping: str = "cos"
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    prediction: Literal["own", "neighborhood"] = "neighborhood"


class TuningSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The part of [settings] that says what DeKRR tunes before it trains, as in `DeKRRRegressor`.

    Parameters
    ----------
    sigma, alpha, consensus : float, "auto" or list of float
        A number is not tuned.
    folds : int
    objective : {"mean", "own", "union"}
    """

    sigma: Any = "auto"
    alpha: Any = "auto"
    consensus: Any = "auto"
    folds: Annotated[int, msgspec.Meta(ge=2)] = 5
    objective: Literal["mean", "own", "union"] = "mean"

    def grids(self) -> dict[str, tuple[float, ...]]:
        """Return the values to choose from."""
        return {name: grid_of(name, getattr(self, name)) for name in GRIDS}


class SiteEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One [[site]] of network.toml: its name, where its neighbours reach it, and its rows."""

    name: str
    endpoint: str
    data: str


class NetworkFile(msgspec.Struct, frozen=True, kw_only=True):
    """All of network.toml.

    Parameters
    ----------
    run : str
        The run's id; give every run its own.
    method : {"dekrr", "dkla", "allreduce"}
    site : tuple of SiteEntry
    data : DataTable
    settings : dict
    topology : str
        One of `dekrr.topology.TOPOLOGIES`, laid out over the sites in their order.
    n_neighbors : int
    edges : tuple of pairs
        Instead of a topology.
    patience : float
        Seconds after which a neighbour that cannot be reached is declared gone.
    start_patience : float
        Seconds to wait for all sites before the start.
    """

    run: str
    method: Literal["dekrr", "dkla", "allreduce"]
    site: tuple[SiteEntry, ...]
    data: DataTable
    settings: dict[str, Any] = {}
    topology: str = "ring"
    n_neighbors: int = 4
    edges: tuple[tuple[str, str], ...] = ()
    patience: Seconds = 60.0
    start_patience: Seconds = 600.0

    def neighbors(self) -> dict[str, list[str]]:
        """Return the graph."""
        names = [entry.name for entry in self.site]
        graph = topology.build(self.edges or self.topology, names, self.n_neighbors, seed=0)
        return {name: sorted(graph[name]) for name in names}


class KeysTable(msgspec.Struct, frozen=True, kw_only=True):
    """[keys] of site.toml: the authority's certificate, the site's own, and its private key."""

    authority: str
    certificate: str
    key: str


class SiteFile(msgspec.Struct, frozen=True, kw_only=True):
    """All of site.toml; paths are relative to the file.

    Parameters
    ----------
    run, site, method, settings, data, patience, start_patience
        As in network.toml.
    listen : str
        host:port that this site listens on.
    sites : tuple of str
        All sites of the run.
    neighbors : dict of site to host:port
    keys : KeysTable or None
    """

    run: str
    site: str
    method: Literal["dekrr", "dkla", "allreduce"]
    listen: str
    sites: tuple[str, ...]
    neighbors: dict[str, str]
    data: DataTable
    settings: dict[str, Any] = {}
    keys: KeysTable | None = None
    patience: Seconds = 60.0
    start_patience: Seconds = 600.0

    def features(self) -> FeatureSettings:
        """Return the shared part of the settings; a sigma to be tuned is the first of its grid."""
        return msgspec.convert(_part(_untuned(self.method, self.settings), FeatureSettings), FeatureSettings)

    def method_settings(self, n_gone: int = 0) -> Any:
        """Return the method's own settings; those to be tuned are the first of their grids.

        A run that tunes begins anew when a site is lost, and asks for as many maps again.
        """
        kind = METHODS[self.method].Settings
        settings = msgspec.convert(_part(_untuned(self.method, self.settings), kind), kind)
        if self.method == "dekrr" and settings.allocation == "equal" and not settings.max_features:
            settings = msgspec.structs.replace(settings, max_features=self.features().n_features)
        tuning = self.tuning()
        if tuning is None:
            return settings
        return msgspec.structs.replace(settings, max_maps=max(settings.max_maps, (1 + n_gone) * tuning.n_maps))

    def tuning(self) -> Tuning | None:
        """Return what DeKRR tunes, if it does."""
        if self.method != "dekrr":
            return None
        settings = msgspec.convert(_part(self.settings, TuningSettings), TuningSettings)
        grids = settings.grids()
        if max(map(len, grids.values())) == 1:
            return None
        return Tuning(
            sigmas=grids["sigma"],
            alphas=grids["alpha"],
            consensuses=grids["consensus"],
            folds=settings.folds,
            objective=settings.objective,
            prediction=self.features().prediction,
        )

    def terms(self, version: str) -> dict[str, str]:
        """Return what all sites must agree on before anything that depends on rows is sent."""
        every = {**msgspec.to_builtins(self.features()), **msgspec.to_builtins(self.method_settings())}
        tuning = self.tuning()
        if tuning is not None:
            every |= {"sigma": tuning.sigmas, "alpha": tuning.alphas, "consensus": tuning.consensuses}
            every |= {"folds": tuning.folds, "objective": tuning.objective}
        return {
            "version of dekrr": version,
            "method": self.method,
            "sites": ", ".join(sorted(self.sites)),
            "target": self.data.target,
            "columns": ", ".join(self.data.columns),
            "patience": f"{self.patience:g}",
            **{key: json.dumps(value) for key, value in every.items()},
        }


def read_network(path: Path) -> NetworkFile:
    """Read and check a network.toml."""
    mistakes: list[str] = []
    network = _read(path, NetworkFile, mistakes)
    if network is not None:
        _check_network(network, mistakes)
    if mistakes or network is None:
        raise _complaint(path, mistakes)
    return network


def is_site_file(path: Path) -> bool:
    """Return whether a file is one site's, not a network's."""
    try:
        return isinstance(tomllib.loads(path.read_text()).get("site"), str)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return False


def read_site(path: Path) -> SiteFile:
    """Read and check a site.toml."""
    mistakes: list[str] = []
    site = _read(path, SiteFile, mistakes)
    if site is not None:
        _check_site(site, mistakes)
    if mistakes or site is None:
        raise _complaint(path, mistakes)
    return site


def to_toml(table: Mapping[str, Any]) -> str:
    """Return a table of values and of tables of values as TOML; a table in a table is written on one line.

    Examples
    --------
    >>> print(to_toml({"run": "trial", "keys": {"key": "key.pem"}}))
    run = "trial"
    <BLANKLINE>
    [keys]
    key = "key.pem"
    <BLANKLINE>
    """
    lines = [f"{_key(key)} = {_value(value)}" for key, value in table.items() if not isinstance(value, Mapping)]
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{_key(key)}]", *(f"{_key(name)} = {_value(entry)}" for name, entry in value.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(name)} = {_value(entry)}" for name, entry in value.items()) + " }"
    return json.dumps(value)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)


def _complaint(path: Path, mistakes: list[str]) -> SettingsError:
    listed = "\n".join(f"  - {mistake}" for mistake in mistakes)
    return SettingsError(f"{path} has {len(mistakes)} mistake{'s' * (len(mistakes) != 1)}:\n{listed}")


def _read(path: Path, kind: type[Struct], mistakes: list[str]) -> Struct | None:
    try:
        table = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not TOML: {error}") from None
    return _convert(table, kind, "", mistakes)


def _convert(table: Mapping[str, Any], kind: type[Struct], where: str, mistakes: list[str]) -> Struct | None:
    """Make a struct of a table, field by field, so that every mistake is found."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    unknown = sorted(set(table) - set(fields))
    mistakes += [f"{where}{key} is not known{_suggestion(key, fields)}" for key in unknown]
    values: dict[str, Any] = {}
    before = len(mistakes)
    for name, field in fields.items():
        if name not in table:
            if field.required:
                mistakes.append(f"{where}{name} is missing")
            continue
        nested = _nested(field.type)
        if nested is not None and isinstance(table[name], dict):
            values[name] = _convert(table[name], nested, f"{where}{name}.", mistakes)
        elif name == "site" and isinstance(table[name], list):
            entries = [entry if isinstance(entry, dict) else {} for entry in table[name]]
            values[name] = tuple(
                _convert(entry, SiteEntry, f"site {i + 1}: ", mistakes) for i, entry in enumerate(entries)
            )
        else:
            try:
                values[name] = msgspec.convert(table[name], field.type)
            except msgspec.ValidationError as error:
                mistakes.append(f"{where}{name}: {error}")
    if len(mistakes) > before:
        return None
    try:
        return kind(**values)
    except SettingsError as error:
        mistakes.append(f"{where.rstrip('.')}: {error}")
        return None


def _nested(kind: Any) -> type[msgspec.Struct] | None:
    for candidate in (DataTable, KeysTable, DifferentialPrivacy, Wire):
        if kind == candidate or kind == candidate | None:
            return candidate
    return None


def _suggestion(key: str, known: Any) -> str:
    close = difflib.get_close_matches(key, list(known), 1)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}"


def _untuned(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with one number for each that DeKRR may tune."""
    if method != "dekrr":
        return dict(settings)
    first = {name: grid[0] for name, grid in TuningSettings(**_part(settings, TuningSettings)).grids().items()}
    return {**settings, **first}


def _part(settings: Mapping[str, Any], kind: type[msgspec.Struct]) -> dict[str, Any]:
    names = {field.name for field in msgspec.structs.fields(kind)}
    return {key: value for key, value in settings.items() if key in names}


def _check_network(network: NetworkFile, mistakes: list[str]) -> None:
    names = [entry.name for entry in network.site]
    _check_names([network.run], "run", mistakes)
    _check_names(names, "site", mistakes)
    _check_endpoints({entry.name: entry.endpoint for entry in network.site}, mistakes)
    _check_twice(names, "site", mistakes)
    _check_twice([entry.endpoint for entry in network.site], "endpoint", mistakes)
    _check_data(network.data, mistakes)
    _check_settings(network.method, network.settings, mistakes)
    _check_bounds(network.settings.get("bounds"), network.data, mistakes)
    if not names:
        mistakes.append("there is no site: add [[site]] tables")
        return
    try:
        network.neighbors()
    except TopologyError as error:
        mistakes.append(f"edges or topology: {error}")


def _check_site(site: SiteFile, mistakes: list[str]) -> None:
    _check_names([site.run], "run", mistakes)
    _check_names(site.sites, "site", mistakes)
    _check_endpoints({site.site: site.listen, **site.neighbors}, mistakes)
    _check_twice(site.sites, "site", mistakes)
    _check_data(site.data, mistakes)
    _check_settings(site.method, site.settings, mistakes)
    _check_bounds(site.settings.get("bounds"), site.data, mistakes)
    if site.site not in site.sites:
        mistakes.append(f"site {site.site!r} is not one of sites")
    if not site.data.file:
        mistakes.append("data.file is missing")
    mistakes += [f"neighbors.{name} is not one of sites" for name in site.neighbors if name not in site.sites]
    if site.site in site.neighbors:
        mistakes.append(f"neighbors.{site.site} is this site itself")


def _check_names(names: Any, what: str, mistakes: list[str]) -> None:
    bad = [name for name in names if not NAME.fullmatch(name) or name in RESERVED]
    mistakes += [
        f"{what} {name!r}: use up to 63 letters, digits, dots, dashes, underscores, and none of {', '.join(RESERVED)}"
        for name in bad
    ]


def _check_bounds(bounds: Any, data: DataTable, mistakes: list[str]) -> None:
    if not isinstance(bounds, list) or [type(bound) for bound in bounds] != [list, list]:
        return  # left out, or told as a mistake of type
    try:
        dekrr.public_scaling((tuple(bounds[0]), tuple(bounds[1])), len(data.columns))
    except (SettingsError, ValueError) as error:
        mistakes.append(f"settings.{error}")


def _check_endpoints(endpoints: Mapping[str, str], mistakes: list[str]) -> None:
    for name, endpoint in endpoints.items():
        host, colon, port = endpoint.rpartition(":")
        if not (host and colon and port.isdecimal() and 0 < int(port) < 65536):
            mistakes.append(f"endpoint {endpoint!r} of {name}: write host:port")


def _check_twice(values: Any, what: str, mistakes: list[str]) -> None:
    twice = sorted({value for value in values if list(values).count(value) > 1})
    mistakes += [f"{what} {value!r} is there more than once" for value in twice]


def _check_data(data: DataTable, mistakes: list[str]) -> None:
    if not data.columns:
        mistakes.append("data.columns is empty")
    if data.target in data.columns:
        mistakes.append(f"data.columns has the target {data.target!r}")
    _check_twice(data.columns, "column", mistakes)


_CHOICES: dict[str, tuple[str, ...]] = {
    "features": tuple(SELECTORS),
    "kernel": tuple(KERNELS),
    "mapping": MAPPINGS,
    "solver": ("jacobi", "chebyshev"),
    "exchange": ("sums",),
    "allocation": ("equal", "sqrt"),
    "scale": ("minmax",),
}
_POSITIVE = ("alpha", "rho")


def _check_settings(method: str, settings: Mapping[str, Any], mistakes: list[str]) -> None:
    own = METHODS[method].Settings
    kinds = (FeatureSettings, own, TuningSettings) if method == "dekrr" else (FeatureSettings, own)
    known = list(dict.fromkeys(field.name for kind in kinds for field in msgspec.structs.fields(kind)))
    unknown = sorted(set(settings) - set(known))
    if "privacy" in settings:
        _check_privacy(method, settings, mistakes)
        unknown = [key for key in unknown if key != "privacy"]
    mistakes += [f"settings.{key} is not known to {method}{_suggestion(key, known)}" for key in unknown]
    if method == "dekrr":
        settings = _check_grids(settings, mistakes)
    _convert(_part(settings, FeatureSettings), FeatureSettings, "settings.", mistakes)
    _convert(_part(settings, own), own, "settings.", mistakes)
    for key, choices in _CHOICES.items():
        if key in settings and settings[key] not in choices:
            mistakes.append(f"settings.{key} is {settings[key]!r}; choose one of {', '.join(choices)}")
    low = [key for key in _POSITIVE if isinstance(settings.get(key), int | float) and not settings[key] > 0]
    mistakes += [f"settings.{key} is {settings[key]!r}; it must be above 0" for key in low]


def _check_grids(settings: Mapping[str, Any], mistakes: list[str]) -> dict[str, Any]:
    """Check what is tuned; return the settings with one good number for each of them."""
    _convert(_part(settings, TuningSettings), TuningSettings, "settings.", mistakes)
    checked = dict(settings)
    tuned = []
    for name, automatic in GRIDS.items():
        try:
            grid = grid_of(name, settings.get(name, "auto"))
        except SettingsError as error:
            mistakes.append(f"settings.{error}")
            grid = automatic[:1]
        tuned += [name] if len(grid) > 1 else []
        checked[name] = grid[0]
    if tuned and settings.get("privacy") is not None:
        mistakes.append(f"settings.privacy: give {', '.join(tuned)} as one number each; the budget pays for no tuning")
    return checked


def _check_privacy(method: str, settings: Mapping[str, Any], mistakes: list[str]) -> None:
    """Find what `protocols.private.require_private` would refuse when the run starts."""
    if method != "dekrr":
        mistakes.append(f'settings.privacy: only method = "dekrr" offers differential privacy, not {method}')
        return
    features = settings.get("features", FeatureSettings().features)
    if features != "plain":
        given = f"{features!r}" if "features" in settings else f"{features!r}, the default,"
        mistakes.append(f'settings.features is {given} and looks at rows; with privacy write features = "plain"')
    if "bounds" not in settings:
        mistakes.append("settings.bounds is missing: with privacy give public bounds of the columns and the target")
    if settings.get("allocation", "equal") != "equal":
        mistakes.append('settings.allocation: with privacy all sites share their features; write "equal"')
