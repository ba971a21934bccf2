"""The validation of network.toml, site.toml and study.toml; all mistakes are reported together."""

import difflib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec

from ..errors import SettingsError, TopologyError
from ..labels import NAME
from ..protocols.preparation import public_scaling
from ..settings import ALONE, DEPLOYED, GRIDS, DifferentialPrivacy, FeatureSettings, TuningSettings, Wire, entries
from .config import (
    BY_RELAY,
    METHODS,
    NONE,
    DataTable,
    KeysTable,
    NetworkFile,
    PageTable,
    SiteEntry,
    SiteFile,
    StandingFile,
    StudyFile,
    Training,
    grids_of,
    part_of,
    parts_of_run,
)
from .session.frames import RESERVED

Struct = TypeVar("Struct", bound=msgspec.Struct)


def toml_of(given: Path | str, where: str | Path) -> dict[str, Any]:
    """Return the table of a file, or of a text."""
    try:
        return tomllib.loads(given if isinstance(given, str) else given.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{where} is not TOML: {error}") from None


def read_as(
    kind: type[Struct], given: Path | str, check: Callable[[Struct, list[str]], object], where: str | Path = ""
) -> Struct:
    """Read and check a file, or a text that is called `where`; all mistakes are reported together."""
    where, mistakes = where or given, list[str]()
    found = convert(toml_of(given, where), kind, "", mistakes)
    if found is not None:
        check(found, mistakes)
    if mistakes or found is None:
        listed = "\n".join(f"  - {mistake}" for mistake in mistakes)
        raise SettingsError(f"{where} has {len(mistakes)} mistake{'s' * (len(mistakes) != 1)}:\n{listed}")
    return found


def convert(table: Mapping[str, Any], kind: type[Struct], where: str, mistakes: list[str]) -> Struct | None:
    """Convert a table to a struct, field by field, so that every mistake is found; None if it cannot be made.

    A struct may be returned beside mistakes, so that the rest can be checked: unknown keys are left out, and the word
    that was meant stands for one that is none of a field's choices.
    """
    fields, settings = {field.name: field for field in msgspec.structs.fields(kind)}, entries(kind)
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
            values[name] = convert(table[name], nested, f"{where}{name}.", mistakes)
        elif name == "site" and isinstance(table[name], list):
            site_entries = [entry if isinstance(entry, dict) else {} for entry in table[name]]
            values[name] = tuple(
                convert(entry, SiteEntry, f"site {i + 1}: ", mistakes) for i, entry in enumerate(site_entries)
            )
        else:
            choices = get_args(field.type) if get_origin(field.type) is Literal else ()
            if choices and table[name] not in choices:
                close = difflib.get_close_matches(str(table[name]), choices, 1)
                meant = f"; did you mean {close[0]}?" if close else ""
                mistakes.append(f"{where}{name} is {table[name]!r}; it must be one of {', '.join(choices)}{meant}")
                values[name] = close[0] if close else None
                before += bool(close)
                continue
            try:
                values[name] = msgspec.convert(table[name], field.type)
            except msgspec.ValidationError as error:
                mistakes.append(f"{where}{name}: {error}")
            else:
                mistake = settings[name].mistake(values[name])
                mistakes += [f"{where}{mistake}"] if mistake else []
    if len(mistakes) > before:
        return None
    try:
        return kind(**values)
    except SettingsError as error:
        mistakes.append(f"{where.rstrip('.')}: {error}")
        return None


def _nested(kind: Any) -> type[msgspec.Struct] | None:
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    for candidate in (DataTable, KeysTable, PageTable, DifferentialPrivacy, Wire):
        if kind == candidate or kind == candidate | None:
            return candidate
    return None


def _suggestion(key: str, known: Any) -> str:
    close = difflib.get_close_matches(key, list(known), 1)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}"


def check_network(network: NetworkFile, mistakes: list[str]) -> None:
    """Add the mistakes in a network file whose types are right to `mistakes`."""
    names = [entry.name for entry in network.site]
    check_training(network, network.run, names, mistakes)
    _check_endpoints({entry.name: entry.endpoint for entry in network.site}, mistakes)
    _check_twice([entry.endpoint for entry in network.site], "endpoint", mistakes)
    if not names:
        mistakes.append("there is no site: add [[site]] tables")
        return
    try:
        graph = network.neighbors()
    except TopologyError as error:
        mistakes.append(f"edges or topology: {error}")
    else:
        _check_lone(network, graph, len(names), mistakes)


def check_site(site: SiteFile, mistakes: list[str]) -> None:
    """Add the mistakes in the site file of a single run whose types are right to `mistakes`."""
    check_training(site, site.run, site.sites, mistakes)
    _check_endpoints({site.site: site.listen, **site.neighbors}, mistakes)
    if site.site not in site.sites:
        mistakes.append(f"site {site.site!r} is not one of sites")
    if not site.data.file:
        mistakes.append("data.file is missing")
    mistakes += [f"neighbors.{name} is not one of sites" for name in site.neighbors if name not in site.sites]
    if site.site in site.neighbors:
        mistakes.append(f"neighbors.{site.site} is this site itself")
    _check_lone(site, {site.site: list(site.neighbors)}, len(site.sites), mistakes)


def check_study(study: StudyFile, mistakes: list[str]) -> None:
    """Add the mistakes in a study whose types are right to `mistakes`."""
    if len(study.sites) < 2:
        mistakes.append("sites: a study has at least two sites")
    if study.every_hours < 0 or study.new_rows < 0:
        mistakes.append("every_hours and new_rows cannot be negative")
    check_training(study, study.name, study.sites, mistakes)
    _check_lone(study, {}, len(study.sites), mistakes)
    if study.warm and not mistakes:
        mistakes += [f"warm: {reason}; or leave warm out" for reason in study.why_not_warm()]


def check_standing(found: StandingFile, mistakes: list[str], folder: Path) -> None:
    """Add the mistakes in the file of a standing site, in its folder, whose types are right to `mistakes`."""
    places = {name: (folder / file).resolve() for name, file in found.sources.items()}
    mistakes += [
        f"sources.{name} has the rows of sources.{other}: which rows were in sums is kept by the name of their source, "
        "so give them one name"
        for name, place in places.items()
        for other, inner in places.items()
        if name != other and (place in inner.parents or (place == inner and name > other))
    ]
    for name in (found.site, *found.neighbors, *found.sources):
        mistakes += [] if NAME.fullmatch(name) else [f"{name!r} is not a name: use letters, digits, dots, dashes"]
    if found.keep_versions < 1:
        mistakes.append("keep_versions: keep at least one")
    if not found.neighbors:
        mistakes.append("neighbors: give at least one")
    if BY_RELAY in found.neighbors.values() and not found.relay:
        mistakes.append("relay is missing, but some neighbours are reached through it")
    unreachable = [p for p, endpoint in found.neighbors.items() if not endpoint and not found.listen]
    mistakes += [f"neighbors.{p}: neither this site nor {p} accepts connections; use a relay" for p in unreachable]


def check_training(what: Training, run: str, sites: Sequence[str], mistakes: list[str]) -> None:
    """Add the mistakes in what is to be trained, by whom and under which name, to `mistakes`."""
    data, settings = what.data, what.settings
    _check_names([run], "run", mistakes)
    _check_names(sites, "site", mistakes)
    _check_twice(sites, "site", mistakes)
    _check_data(data, mistakes)
    _check_settings(what.method, settings, mistakes)
    _check_bounds(settings.get("bounds"), data, mistakes)
    _check_raw(data, settings, mistakes)
    _check_classes(data, what.method, settings, mistakes)
    _check_scales(settings.get("column_scales"), data, mistakes)


def _check_lone(what: Training, graph: Mapping[str, list[str]], n_sites: int, mistakes: list[str]) -> None:
    """Find sites whose masks would hide nothing, where the run does not say that it takes them."""
    method, settings = what.method, what.settings
    kind, privacy = METHODS[method][1], settings.get("privacy")
    known = entries(kind)
    if "masks" not in known or settings.get("masks") is False or settings.get("lone_neighbor") == "warn":
        return
    if privacy is not None and not (isinstance(privacy, dict) and "colluders" in privacy):
        return  # noise takes the place of masks
    over_tree = method != "dekrr" or privacy is not None
    if n_sites == 2:
        mistakes.append(
            "settings.lone_neighbor: of two sites each gets the sums of the other, and masks hide nothing. Take a "
            'third site, or privacy, or write lone_neighbor = "warn" if this may be'
        )
    elif not over_tree:
        mistakes += [
            f"settings.lone_neighbor: {them[0]} is the only neighbour of {name}, which gets its sums: masks need two "
            'neighbours. Give more edges, or write lone_neighbor = "warn" if this may be'
            for name, them in graph.items()
            if len(them) == 1
        ]


def _check_names(names: Any, what: str, mistakes: list[str]) -> None:
    bad = [name for name in names if not NAME.fullmatch(name) or name in RESERVED]
    mistakes += [
        f"{what} {name!r}: use up to 63 ASCII letters (a to z), digits, dots, dashes, underscores, and none of "
        f"{', '.join(RESERVED)}"
        for name in bad
    ]


def _check_bounds(bounds: Any, data: DataTable, mistakes: list[str]) -> None:
    if not isinstance(bounds, list) or [type(bound) for bound in bounds] != [list, list]:
        return  # there are no bounds, or their wrong type is already among the mistakes
    try:
        public_scaling((tuple(bounds[0]), tuple(bounds[1])), len(data.columns), len(data.targets))
    except (SettingsError, ValueError) as error:
        mistakes.append(f"settings.{error}")


def _check_scales(scales: Any, data: DataTable, mistakes: list[str]) -> None:
    if isinstance(scales, list) and len(scales) != len(data.columns):
        mistakes.append(f"settings.column_scales has {len(scales)} numbers for {len(data.columns)} columns")


def _check_endpoints(endpoints: Mapping[str, str], mistakes: list[str]) -> None:
    for name, endpoint in endpoints.items():
        host, colon, port = endpoint.rpartition(":")
        if not (host and colon and port.isdecimal() and 0 < int(port) < 65536):
            mistakes.append(f"endpoint {endpoint!r} of {name}: write host:port")


def _check_twice(values: Any, what: str, mistakes: list[str]) -> None:
    twice = sorted({value for value in values if list(values).count(value) > 1})
    mistakes += [f"{what} {value!r} appears more than once" for value in twice]


def _check_classes(data: DataTable, method: str, settings: Mapping[str, Any], mistakes: list[str]) -> None:
    """Find what a run that predicts classes cannot have."""
    if not data.classes:
        return
    if len(set(data.classes)) < max(2, len(data.classes)) or len({type(each) for each in data.classes}) > 1:
        mistakes.append("data.classes: give at least two classes, each once, all words or all numbers")
    if len(data.targets) != 1:
        mistakes.append("data.classes: the classes are those of one target")
    if method != "dekrr":
        mistakes.append(f'data.classes: only method = "dekrr" predicts classes, not {method}')
    if settings.get("privacy") is not None:
        mistakes.append("data.classes: the privacy budget does not pay for the second training that classes need")
    if settings.get("transform", "none") != "none":
        mistakes.append("settings.transform: it changes responses that are numbers, and classes are none")
    if settings.get("intervals"):
        mistakes.append("settings.intervals: classes have prediction sets, not intervals; leave it out")


def _check_raw(data: DataTable, settings: Mapping[str, Any], mistakes: list[str]) -> None:
    """Find what a run over raw columns cannot have: what columns become is not known beforehand."""
    if data.raw and settings.get("privacy") is not None:
        mistakes.append(
            "data.raw: with privacy columns must be numbers, because agreeing on categories and fill values would "
            "reveal something about rows that the promise does not cover; encode columns by public knowledge"
        )
    elif data.raw and "bounds" in settings:
        mistakes.append(
            "data.raw: bounds are for columns of numbers, and raw columns are encoded as others; leave bounds out"
        )


def _check_data(data: DataTable, mistakes: list[str]) -> None:
    if not data.columns:
        mistakes.append("data.columns is empty")
    if not data.targets:
        mistakes.append("data.target is empty")
    mistakes += [f"data.columns has the target {target!r}" for target in data.targets if target in data.columns]
    if data.weight and data.weight in (*data.columns, *data.targets):
        mistakes.append(f"data.weight is {data.weight!r}, which is also a column or a target")
    _check_twice(data.columns, "column", mistakes)
    _check_twice(data.targets, "target", mistakes)


def _check_settings(method: str, settings: Mapping[str, Any], mistakes: list[str]) -> None:
    own = METHODS[method][1]
    kinds = (FeatureSettings, own, TuningSettings) if method == "dekrr" else (FeatureSettings, own)
    known = list(dict.fromkeys(field.name for kind in kinds for field in msgspec.structs.fields(kind)))
    unknown = sorted(set(settings) - set(known))
    if "privacy" in settings:
        _check_privacy(method, settings, mistakes)
        unknown = [key for key in unknown if key != "privacy"]
    mistakes += [f"settings.{key} is not known to {method}{_suggestion(key, known)}" for key in unknown]
    if method == "dekrr":
        _check_parts(settings, mistakes)
        settings = _check_grids(settings, mistakes)
    convert(part_of(settings, FeatureSettings), FeatureSettings, "settings.", mistakes)
    convert(part_of(settings, own), own, "settings.", mistakes)
    for key, choices in DEPLOYED.items():
        if key in settings and settings[key] not in choices:
            mistakes.append(
                f"settings.{key} is {settings[key]!r}; between organisations it must be {' or '.join(choices)}"
            )
    if settings.get("exclude") == "harmful":
        mistakes.append(
            "settings.exclude: between organisations nobody can be left out of sums that masks are to hide; write "
            '"warn" or "stop"'
        )
    mistakes[:] = dict.fromkeys(mistakes)  # a setting may be in several groups


def _check_parts(settings: Mapping[str, Any], mistakes: list[str]) -> None:
    """Find the mistakes that the shared part and the others would end a run with."""
    parts = parts_of_run(settings)
    wanted = [name for name in parts if parts[name] is not None]
    if settings.get("privacy") is not None:
        wanted = [name for name in wanted if name != "local"]  # it stays at home
        mistakes += [f"settings.{name}: the privacy budget does not pay for this part; leave it out" for name in wanted]
    elif wanted and settings.get("scale") == NONE and settings.get("masks", True):
        mistakes.append(
            'settings.scale is "none": masks hide only numbers of known size. Scale columns, or write '
            + ", ".join(f'{name} = "none"' for name in wanted)
        )


def _check_grids(settings: Mapping[str, Any], mistakes: list[str]) -> dict[str, Any]:
    """Check the settings that can be tuned; return the settings with one valid number for each of them."""
    convert(part_of(settings, TuningSettings), TuningSettings, "settings.", mistakes)
    checked = dict(settings)
    parts_only = {key: settings[key] for key in (*ALONE, "privacy") if key in settings}
    tuned = []
    for name, automatic in GRIDS.items():
        try:
            grid = grids_of({**parts_only, name: settings.get(name, "auto")})[name]
        except SettingsError as error:
            mistakes.append(f"settings.{error}")
            grid = automatic[:1]
        tuned += [name] if len(grid) > 1 else []
        checked[name] = grid[0]
    if tuned and settings.get("privacy") is not None:
        mistakes.append(
            f"settings.privacy: give {', '.join(tuned)} as one number each; the budget does not pay for tuning"
        )
    return checked


def _check_privacy(method: str, settings: Mapping[str, Any], mistakes: list[str]) -> None:
    """Find the mistakes that `protocols.run.Run.refuse` would refuse at the start of the run."""
    if method != "dekrr":
        mistakes.append(f'settings.privacy: only method = "dekrr" offers differential privacy, not {method}')
        return
    features = settings.get("features", FeatureSettings().features)
    if features != "plain":
        value = f"{features!r}" if "features" in settings else f"{features!r}, the default,"
        mistakes.append(f'settings.features is {value} and looks at rows; with privacy write features = "plain"')
    if "bounds" not in settings:
        mistakes.append("settings.bounds is missing: with privacy give public bounds of the columns and the target")
    if settings.get("intervals"):
        mistakes.append("settings.intervals: the privacy budget does not pay for the second training; leave it out")
    if settings.get("allocation", "equal") != "equal":
        mistakes.append('settings.allocation: with privacy all sites share their features; write "equal"')
