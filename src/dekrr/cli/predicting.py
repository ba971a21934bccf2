"""`dekrr predict`, `dekrr score` and `dekrr inspect`: what models say of new rows, how well, and what is in them."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from ..errors import DataError, SettingsError
from ..estimators.model_set import by_owner, intervals_of, words_on_intervals
from ..labels import factorise, listed, names_of
from ..model import SiteClassifier, SiteModel, load
from ..tables.sources import inputs_of, open_source
from ..types import Array
from .models import SUFFIX, require_column
from .outputs import STANDARD_INPUT, print_json, require_output, table_at, table_writer
from .scoring import errors_on, frame_of

Models = Annotated[
    Path, typer.Argument(help="A folder that `dekrr fit` wrote, the folder of a mesh's sites, or one model file.")
]
SeveralModels = Annotated[
    list[Path],
    typer.Argument(help="Model files, folders that `dekrr fit` wrote, or the folder of a mesh's sites; one or more."),
]
SiteColumn = Annotated[str | None, typer.Option("--site", "--sites", help="The column that has the site of each row.")]


def predict(
    models: Models,
    data: Annotated[Path, typer.Argument(help="A CSV or Parquet file of rows; - reads standard input.")],
    site: SiteColumn = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to write, .csv, .tsv or .parquet; CSV to the terminal if left out.")
    ] = None,
    column: Annotated[str, typer.Option(help="What to call the new column.")] = "prediction",
    interval: Annotated[
        float | None,
        typer.Option(help="Add columns with the ends of intervals of this coverage, for instance 0.9."),
    ] = None,
    unknown_sites: Annotated[
        str,
        typer.Option(
            help='What to do with rows of a site without a model: "error", or predict by the "mean" of all models.'
        ),
    ] = "error",
) -> None:
    """Predict each row of a table by its site's model, or all rows by the mean of the models.

    The output is the table with one more column. It is read and written in batches.
    """
    if unknown_sites not in ("error", "mean"):
        raise SettingsError(f'--unknown-sites is {unknown_sites!r}; it must be "error" or "mean"')
    if interval is not None and not 0 < interval < 1:
        raise SettingsError(f"--interval is {interval:g}; a coverage is between 0 and 1, for instance 0.9")
    require_output(out, *(path for path in (data, models) if str(path) != "-"))
    by_site = load_all(models)
    first = next(iter(by_site.values()))
    if interval is not None:
        _require_intervals(by_site)
        known: Any = by_site
        for words in words_on_intervals(known, None, interval):
            typer.echo(f"note: {words}", err=True)
    if site is None and len(by_site) > 1:
        note = f"each row is predicted by the mean of {len(by_site)} models; --site COLUMN uses each site's own model"
        typer.echo(f"note: {note}", err=True)
    n_rows = 0
    with table_at(data) as data, table_writer(out) as write:
        for batch in open_source(data).read(None):
            rows = inputs_of(batch, next(iter(by_site.values())).header.reading)
            table = frame_of(batch)
            owners = _owners(table, site, by_site, data, unknown_sites)
            found = _predictions(rows, owners, by_site)
            ends = None if interval is None else intervals_of(known, rows, owners, interval)
            if first.header.classes is not None:
                _add_classes(table, column, found, owners, by_site)
            else:
                _add_numbers(table, _columns_of(first, column), found, ends)
            write(table)
            n_rows += len(table)
    if out is not None:
        typer.echo(f"{n_rows} rows with predictions in {out}", err=True)


def _owners(table: Any, site: str | None, by_site: dict[str, SiteModel], data: Path, unknown_sites: str) -> np.ndarray:
    """Return the name of the model of each row; the empty name is the mean of all."""
    if site is None:
        return np.full(len(table), "" if len(by_site) > 1 else next(iter(by_site)), dtype=object)
    require_column(site, [str(name) for name in table.columns], data)
    labels, index = factorise(table[site], len(table))
    names = names_of(labels)
    unknown = sorted(set(names) - set(by_site))
    if unknown and unknown_sites == "error":
        raise DataError(
            f"no model for sites {unknown}; there are {sorted(by_site)}. --unknown-sites mean predicts their rows "
            "by the mean of all models"
        )
    found = [name if name in by_site else "" for name in names]
    return np.array(found, dtype=object)[index] if len(found) else np.empty(0, dtype=object)


def _predictions(rows: Array, owners: np.ndarray, by_site: dict[str, SiteModel]) -> Array:
    def of_site(name: str, rows: Array) -> Array:
        if name:
            return np.asarray(by_site[name].predict_encoded(rows))
        return np.asarray(np.mean([model.predict_encoded(rows, elsewhere=True) for model in by_site.values()], axis=0))

    found = by_owner(rows, *factorise(owners, len(rows)), of_site)
    return found.reshape(len(rows), next(iter(by_site.values())).n_outputs)


def _columns_of(model: SiteModel, column: str) -> list[str]:
    """Return the names of the columns of predictions; several have the targets' names, or numbers."""
    outputs = model.header.targets or [str(k) for k in range(model.n_outputs)]
    return [column] if model.n_outputs == 1 else [f"{column}_{output}" for output in outputs]


def _add_numbers(table: Any, names: list[str], found: Array, ends: Array | None) -> None:
    for k, name in enumerate(names):
        table[name] = found[:, k]
        if ends is not None:
            table[f"{name}_lower"], table[f"{name}_upper"] = ends.reshape(len(found), 2, len(names))[:, :, k].T


def _add_classes(table: Any, column: str, found: Array, owners: np.ndarray, by_site: dict[str, SiteModel]) -> None:
    """Add the most probable class of each row, and the probability of each class, from predicted class codes."""
    first = next(iter(by_site.values()))
    known = [model for model in by_site.values() if isinstance(model, SiteClassifier)]
    if len(known) < len(by_site) or any(model.header.classes != first.header.classes for model in known):
        raise DataError("the models have different classes: use models of one fit")

    def of_site(name: str, rows: Array) -> Array:
        model = next((model for model in known if model.header.site == name), known[0])
        return model.probabilities_of(rows[:, 0] if rows.shape[1] == 1 else rows)

    probabilities = by_owner(found, *factorise(owners, len(found)), of_site).reshape(len(found), len(known[0].classes_))
    table[column] = known[0].classes_[np.argmax(probabilities, axis=1)]
    for k, label in enumerate(known[0].classes_.tolist()):
        table[f"{column}_{label}"] = probabilities[:, k]


def _require_intervals(by_site: dict[str, SiteModel]) -> None:
    if all(model.calibration is None for model in by_site.values()):
        raise SettingsError(
            f"the models of {listed(sorted(by_site))} have no intervals: `dekrr fit` without --no-intervals makes them"
        )


def load_all(*models: Path) -> dict[str, SiteModel]:
    """Return the models in folders and files, by the names of their sites.

    A folder is that of `dekrr fit`, of one site of a mesh, of all its sites, or the one that the last is in.
    """
    by_site: dict[str, SiteModel] = {}
    read: dict[str, Path] = {}
    for path in (path for given in models for path in _model_files(given)):
        model = load(path)
        site = model.header.site
        if site in by_site:
            raise DataError(f"{read[site]} and {path} are both models of site {site!r}: give one of them")
        by_site[site], read[site] = model, path
    return by_site


def _model_files(given: Path) -> list[Path]:
    """Return the model files that a path stands for."""
    if not given.exists():
        raise DataError(f"{given} does not exist: give the folder of `dekrr fit --out`, or a model file")
    if given.is_file():
        return [given]
    name = f"model{SUFFIX}"
    patterns = [name] if (given / "site.toml").exists() else [f"*{SUFFIX}", f"*/{name}", f"sites/*/{name}"]
    found = next((paths for pattern in patterns if (paths := sorted(given.glob(pattern)))), [])
    if not found:
        raise DataError(
            f"{given} has no model: no file there ends in {SUFFIX}, and it is no folder of sites that have {name}"
        )
    return found


def score(
    models: SeveralModels,
    data: Annotated[
        Path, typer.Argument(help="A CSV or Parquet file of rows with their responses; - reads standard input.")
    ],
    target: Annotated[list[str], typer.Option(help="The column that was predicted; repeat the option for several.")],
    site: SiteColumn = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Measure the errors of models on a table: own and union relative squared error, and that of each site.

    For models of classes, accuracy and log loss. Without --site, every model is scored on all rows (union).
    """
    by_site = load_all(*models)
    classifiers = [model for model in by_site.values() if isinstance(model, SiteClassifier)]
    if classifiers and (len(classifiers) < len(by_site) or len(target) > 1):
        raise SettingsError(
            "some models predict classes and some numbers, or there are several targets: score models of one fit, "
            "with the one column of classes"
        )
    with table_at(data) as path:
        errors = errors_on(by_site, open_source(path).read(None), target, site)
    shown = data if path == data else STANDARD_INPUT
    if not errors.n_rows:
        raise DataError(f"{shown} has no rows to score")
    if as_json:
        print_json(errors.facts(own=site is not None))
        return
    console = Console()
    union = f"{errors.words('union')} on {errors.n_rows} rows"
    if site is not None:
        console.print(errors.table(f"{len(by_site)} models on {shown}"))
        console.print(f"{errors.words('own')}, {union}")
    else:
        console.print(f"{union}; --site COLUMN adds those of each row's own site")


def inspect(
    models: SeveralModels,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show what is in model files: the site, the method, the settings and the columns."""
    by_site = load_all(*models)
    if as_json:
        print_json([_facts(model) for model in by_site.values()])
        return
    console = Console()
    described = [_facts(model) for model in by_site.values()]
    columns = [facts.pop("columns") for facts in described]
    agree = len(columns) > 1 and all(each == columns[0] for each in columns)
    for facts, own in zip(described, columns, strict=True):
        for name, value in facts.items():
            console.print(f"[bold]{name}[/]: {value}", highlight=False)
        if own and not agree:
            console.print(_table_of_columns(own, "columns"))
        console.print()
    if agree and columns[0]:
        console.print(_table_of_columns(columns[0], f"columns, the same in all {len(columns)} models"))


def _table_of_columns(columns: list[dict[str, Any]], title: str) -> Table:
    table = Table(title=title)
    for heading in columns[0]:
        table.add_column(heading)
    for row in columns:
        table.add_row(*map(str, row.values()))
    return table


def _facts(model: SiteModel) -> dict[str, Any]:
    header = model.header
    facts: dict[str, Any] = {
        "site": header.site,
        "method": header.method,
        "kernel": header.kernel,
        "sigma": header.sigma,
        "features": model.feature_map.n_features,
        "models in the prediction": header.n_members,
        "weights": [round(member.weight, 4) for member in model.members],
        "intervals": model.calibration is not None,
        "scaled": header.scaled,
        "privacy": None if header.privacy is None else msgspec.to_builtins(header.privacy),
        **({"must stay at its site": True} if model.stays_home else {}),
        "target": ", ".join(header.targets or []),
        **({} if header.classes is None else {"classes": header.classes}),
        "format version": header.version,
        "numbers per row": header.n_columns,
    }
    facts["columns"] = _columns(model)
    return facts


def _columns(model: SiteModel) -> list[dict[str, Any]]:
    """Return what is known of the columns: names, kinds, and what they become."""
    header, bounds = model.header, model.scaling.tensors
    if header.encoding is not None:
        return [
            {
                "column": column.name,
                "kind": "left out" if column.kind == "none" else column.kind,
                "becomes": ", ".join(column.names_out[:8]) + (", ..." if len(column.names_out) > 8 else ""),
                "fill": f"{column.fill:.4g}" if column.kind in ("number", "boolean", "datetime") else "",
            }
            for column in header.encoding.columns
        ]
    names = header.columns or [str(j) for j in range(header.n_columns)]
    ends = [bounds[key] for key in ("lower", "upper")] if header.scaled else []
    return [
        {"column": name, "kind": "number"}
        | {word: f"{end[j]:.4g}" for word, end in zip(("lower", "upper"), ends, strict=False)}
        for j, name in enumerate(names)
    ]
