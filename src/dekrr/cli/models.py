"""`dekrr fit`: models from a table with a site column."""

import re
import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from ..errors import DataError, PoorFitWarning, SettingsError, UnusableError
from ..estimators import DeKRRClassifier, DeKRRRegressor
from ..estimators.model_set import advise
from ..estimators.network import sites_of
from ..estimators.site_regressor import keywords_of, parameters_of
from ..model import SiteModel
from ..settings import Entry, FeatureSettings, entries
from ..tables.columns import raw_of
from ..tables.rows import Rows
from ..tables.sources import hint_of, open_source
from .outputs import not_left_empty, print_json, require_folder, table_at
from .scoring import Errors, errors_on, frame_of, parts_of

SUFFIX = ".safetensors"
_SETTINGS = {name: parameter.entry for name, parameter in parameters_of(DeKRRRegressor).items()}
_SEED = entries(FeatureSettings)["seed"]
_TUNED = ("sigma", "alpha", "consensus")
_ROWS_AT_A_TIME = 4096


def _option(entry: Entry, sentences: int | None = None) -> Any:
    """Return the command-line option of a setting, with the first sentences of its text; the others are for Python."""
    words, text = entry.words(), ". ".join(entry.setting.text.removesuffix(".").split(". ")[:sentences])
    return typer.Option(help=f"{text}. It is {words}." if words else f"{text}.")


def fit(
    data: Annotated[Path, typer.Argument(help="A CSV or Parquet file; - reads standard input.")],
    target: Annotated[list[str], typer.Option(help="The column to predict; repeat the option for several.")],
    site: Annotated[str, typer.Option("--site", "--sites", help="The column that has the site of each row.")],
    out: Annotated[Path, typer.Option(help="The folder to write one model per site to.")],
    columns: Annotated[
        str | None, typer.Option(help="The columns to predict from, separated by commas; all others by default.")
    ] = None,
    weight: Annotated[
        str | None, typer.Option(help="The column that has the weight of each row: how often it counts.")
    ] = None,
    holdout: Annotated[
        float, typer.Option(help="The share of rows to hold out for measuring errors; 0 measures none.", min=0, max=0.5)
    ] = 0.2,
    n_features: Annotated[str, _option(_SETTINGS["n_features"], 3)] = "auto",
    features: Annotated[str, _option(_SETTINGS["features"], 1)] = _SETTINGS["features"].in_process,
    kernel: Annotated[str, _option(_SETTINGS["kernel"])] = _SETTINGS["kernel"].in_process,
    sigma: Annotated[str, _option(_SETTINGS["sigma"])] = _SETTINGS["sigma"].in_process,
    alpha: Annotated[str, _option(_SETTINGS["alpha"])] = _SETTINGS["alpha"].in_process,
    consensus: Annotated[str, _option(_SETTINGS["consensus"])] = _SETTINGS["consensus"].in_process,
    topology: Annotated[str, _option(_SETTINGS["topology"])] = _SETTINGS["topology"].in_process,
    n_neighbors: Annotated[int, _option(_SETTINGS["n_neighbors"])] = _SETTINGS["n_neighbors"].in_process,
    prediction: Annotated[str, _option(_SETTINGS["prediction"])] = _SETTINGS["prediction"].in_process,
    min_rows: Annotated[int, _option(_SETTINGS["min_rows"])] = _SETTINGS["min_rows"].in_process,
    shared: Annotated[str, _option(_SETTINGS["shared"])] = _SETTINGS["shared"].in_process,
    local: Annotated[str, _option(_SETTINGS["local"])] = _SETTINGS["local"].in_process,
    column_scales: Annotated[str, _option(_SETTINGS["column_scales"])] = _SETTINGS["column_scales"].in_process,
    transform: Annotated[str, _option(_SETTINGS["transform"])] = "none",
    seed: Annotated[int, _option(_SEED)] = _SEED.in_process,
    force: Annotated[bool, typer.Option("--force", help="Replace models that are already there.")] = False,
    intervals: Annotated[
        bool, typer.Option(help="Train a second time, without a fifth of the rows, for `dekrr predict --interval`.")
    ] = True,
    classes: Annotated[
        bool,
        typer.Option("--classes", help="The target has classes even if it has numbers. Words are classes anyway."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    network: Annotated[
        str, typer.Option(help="local: this process; mpi: the ranks of mpiexec -n N dekrr ...")
    ] = "local",
) -> None:
    """Train a model for every site in a table, and write the models to a folder.

    Columns may be numbers, True and False, words and dates, with missing values. The table is read in batches, so it
    may be larger than memory. First, a part of the rows is held out to measure errors. Then the models are trained
    on all rows. With the defaults nothing is tuned; where you give several values, or --shared none, the first fit
    chooses, and the second has the same settings.

    A target of words has classes: `dekrr predict` then adds the predicted class and the probability of each. Classes
    are learnt from a table that fits into memory.
    """
    if str(data) == "-" and network != "local":
        raise SettingsError("only one of several ranks has the standard input: give a file")
    with _network_of(network) as ranks, not_left_empty(out), table_at(data) as data:
        tells = ranks is None or ranks.rank == 0
        targets: Any = target[0] if len(target) == 1 else target
        for column in (*target, site, *([weight] if weight else [])):
            require_column(column, open_source(data).columns or [], data)
        wanted = [name.strip() for name in columns.split(",")] if columns else None
        for column in wanted or ():
            require_column(column, open_source(data).columns or [], data)
        if not force and out.exists() and list(out.glob(f"*{SUFFIX}")):
            raise DataError(f"{out} already has models; give another folder, or --force to replace them")
        require_folder(out)
        picked = {"sites": site, "columns": wanted, "sample_weight": weight}
        settings: dict[str, Any] = {
            "n_features": _size("n-features", n_features),
            "features": features,
            "kernel": kernel,
            "sigma": _numbers_or_auto("sigma", sigma),
            "alpha": _numbers_or_auto("alpha", alpha),
            "consensus": _numbers_or_auto("consensus", consensus),
            "topology": topology,
            "n_neighbors": n_neighbors,
            "prediction": prediction,
            "shared": _part("shared", shared),
            "local": _part("local", local),
            "column_scales": None if column_scales.lower() == "none" else _list("column-scales", column_scales),
            "transform": None if transform.lower() == "none" else transform,
            "min_rows": min_rows,
            "random_state": seed,
            "verbose": 0 if quiet or not tells else 1,
            "network": ranks,
            "store_sums": False,  # nothing goes on from this fit
        }
        has_classes, errors = classes or has_words(data, target[0]), None
        if has_classes:
            _require_of_classes(target, settings)
        if holdout:
            given = (data, targets, picked, holdout, settings)
            try:
                errors, tuned = _held_out(*given, tells=tells, has_classes=has_classes)
            except DataError:  # a look at the file itself tells its name, and rows as they are counted there
                if not has_classes:
                    with suppress(_AllRead):
                        look = _Reader(**keywords_of(_Reader, settings | {"verbose": 0, "network": None}))
                        look.fit(data, targets, **picked)
                raise
            settings |= tuned
        with _without_advice(not has_classes and (errors is not None or not tells)):
            fitted = _fitted(data, targets, picked, settings, intervals=intervals, has_classes=has_classes)
        if tells:
            _finish(fitted, out, site, errors, as_json=as_json)
            if errors is not None and not has_classes:
                advise(fitted, *(float(figures[0]) for figures in (errors.own(), errors.union())))


def _network_of(name: str) -> AbstractContextManager[Any]:
    """Return what gives the network of an option, None for this process; the annex with ranks is imported by name."""
    if name not in ("local", "mpi"):
        raise SettingsError(f"--network must be local or mpi; got {name!r}")
    return nullcontext() if name == "local" else import_module("dekrr.cluster.ranks").all_ranks()


def has_words(data: Path, target: str) -> bool:
    """Return whether the first rows of a column are words, which are classes then, and not dates or numbers."""
    for batch in open_source(data).read([target]):
        values = np.asarray(frame_of(batch)[target])
        if values.dtype.kind not in "OUST":
            return False
        try:
            kind = raw_of(values).kind
        except UnusableError:  # numbers with a stray word, for instance, which are refused elsewhere
            return False
        if kind != "empty":
            return kind == "category"
    return False


def _require_of_classes(target: list[str], settings: dict[str, Any]) -> None:
    if len(target) > 1:
        raise SettingsError(f"the target has classes, so that there can be one: give --target {target[0]} alone")
    if settings.pop("transform") is not None:
        raise SettingsError("classes are no numbers that could be changed for training: leave --transform out")
    if settings["network"] is not None:
        raise SettingsError("classes are fitted in one process: leave --network out")


def _fitted(
    given: Any, target: Any, picked: dict[str, Any], settings: dict[str, Any], *, intervals: bool, has_classes: bool
) -> Any:
    """Return an estimator fitted to a file, or to what a function reads in batches; classes take it into memory."""
    if not has_classes:
        regressor = DeKRRRegressor(**keywords_of(DeKRRRegressor, settings), intervals=intervals)
        return regressor.fit(given, target, **picked)
    import pandas as pd

    batches = given() if callable(given) else map(frame_of, open_source(given).read(None))
    every = pd.concat(list(batches), ignore_index=True)
    return DeKRRClassifier(**keywords_of(DeKRRClassifier, settings)).fit(every, target, **picked)


class _AllRead(Exception):
    """All rows of a table could be read."""


class _Reader(DeKRRRegressor):
    """Reads rows as a fit does, counts them, and trains nothing."""

    def _fit(self, rows: Mapping[Hashable, Rows], seed: int) -> None:
        for site in sites_of(rows, self._graph(rows, seed)).values():
            for _ in site.rows.blocks(_ROWS_AT_A_TIME):
                pass
            site.require_rows(self.min_rows)
        raise _AllRead


@contextmanager
def _without_advice(quiet: bool = True) -> Iterator[None]:
    """Have a fit give no advice by errors of its own, where others are shown."""
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore", PoorFitWarning)
        yield


def _write(models: Mapping[Hashable, SiteModel], out: Path) -> None:
    """Write models to a folder, in the place of others."""
    for old in out.glob(f"*{SUFFIX}"):
        old.unlink()
    for model in models.values():
        model.save(out / file_name(model.header.site))


def _held_out(
    data: Path,
    target: Any,
    picked: dict[str, Any],
    share: float,
    settings: dict[str, Any],
    *,
    tells: bool,
    has_classes: bool,
) -> tuple[Errors | None, dict[str, float]]:
    """Return the errors on held-out rows of a fit to the others, where they are told, and the tuned settings."""
    kept, held = (parts_of(data, picked["sites"], share, held_out=part) for part in (False, True))
    with _without_advice(not has_classes):
        trial = _fitted(kept, target, picked, settings, intervals=False, has_classes=has_classes)
    tuned = {name: getattr(trial, f"{name}_") for name in _TUNED} if trial.tuning_ else {}
    if not tells:
        return None, tuned

    def of_known_classes() -> Iterator[Any]:
        for frame in held():
            known = frame[target].isin(trial.classes_.tolist())
            if not known.all():
                rare = ", ".join(map(str, frame[target][~known].unique()[:5]))
                typer.echo(f"note: no error is measured on rows of classes that few rows have: {rare}", err=True)
            yield frame[known].reset_index(drop=True)

    models = {model.header.site: model for model in trial.models_.values()}
    rows = open_source(of_known_classes if has_classes else held).read(None)
    errors = errors_on(models, rows, target, picked["sites"])
    return (None if has_classes and not errors.n_rows else errors), tuned


def _numbers_or_auto(name: str, given: str) -> float | list[float] | str:
    if given == "auto":
        return given
    try:
        numbers = [float(part) for part in given.split(",")]
    except ValueError:
        raise SettingsError(
            f'--{name} must be a number, several separated by commas, or "auto"; got {given!r}'
        ) from None
    return numbers[0] if len(numbers) == 1 else numbers


def _size(name: str, given: str, others: str = '"auto"') -> int | str:
    """Return a number of features, or "auto"."""
    if given == "auto":
        return given
    if not given.isdigit() or not int(given):
        raise SettingsError(f"--{name} must be a number of features, or {others}; got {given!r}")
    return int(given)


def _part(name: str, given: str) -> int | str | None:
    """Return the number of features of a part, "auto", or None."""
    return None if given.lower() == "none" else _size(name, given, '"auto" or "none"')


def _list(name: str, given: str) -> list[float] | str:
    """Return "auto", or several numbers."""
    numbers = _numbers_or_auto(name, given)
    return [numbers] if isinstance(numbers, float) else numbers


def file_name(site: str) -> str:
    """Return a file name for a site: the site's name where a file may be called so."""
    return re.sub(r"[^\w. -]", lambda match: f"%{ord(match[0]):02X}", site) + SUFFIX


def require_column(column: str, there: Sequence[str], data: Path) -> None:
    """Refuse the name of a column that a table does not have."""
    if column not in there:
        raise DataError(f"{data} has no column {column!r}; it has {', '.join(there)}{hint_of(there)}")


def _finish(fitted: Any, out: Path, site: str, errors: Errors | None, *, as_json: bool) -> None:
    """Write the models of a fit, and print what came of it."""
    _write(fitted.models_, out)
    if as_json:
        _print_json(fitted, out, errors)
        return
    console = Console()
    classes = f" of the classes {', '.join(map(str, fitted.classes_))}" if hasattr(fitted, "classes_") else ""
    title = f"{len(fitted.sites_)} models{classes} in {out}"
    if errors is None:
        console.print(f"{title}\n{fitted.fit_summary()}", highlight=False, markup=False, soft_wrap=True)
        if not fitted.validation_:
            console.print("no error was measured; --holdout 0.2 holds out a fifth of the rows to measure it")
    else:
        console.print(errors.table(f"{title}: held-out rows"))
        console.print(f"held out: {errors.words('own')}, {errors.words('union')} on {errors.n_rows} rows")
        settings = ", ".join(f"{name} {getattr(fitted, f'{name}_'):g}" for name in _TUNED)
        console.print(f"{settings}; {fitted.n_rounds_} rounds")
    console.print("Predict new rows with:")
    console.print(f"dekrr predict {out} NEW.csv --site {site}", soft_wrap=True)


def _print_json(fitted: Any, out: Path, errors: Errors | None) -> None:
    """Print what came of a fit as JSON: errors on rows that were held out, where they are known."""
    found: dict[str, Any] = {
        "folder": str(out),
        "method": type(fitted).__name__,
        "rounds": fitted.n_rounds_,
        "settings": {name: getattr(fitted, f"{name}_") for name in _TUNED},
        "sites": {str(label): {"rows": n_rows} for label, n_rows in fitted.n_rows_.items()},
    }
    if errors is not None:
        found["held_out"] = errors.facts(own=True)
    for name, measured in (fitted.validation_ or {}).items():
        found.setdefault("second_training", {})[name] = {
            "rows": sum(measured.n_rows.values()),
            "own": measured.mean_own,
            "alone": measured.mean_alone,
            "union": measured.mean_union,
            "sites": {str(site): {"own": own, "alone": measured.alone.get(site)} for site, own in measured.own.items()},
        }
    print_json(found)
