"""`dekrr fit` and `dekrr predict`: models from a table with a site column, and predictions for new rows."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from ..disk import replacing
from ..errors import DataError, SettingsError
from ..estimators import DeKRRRegressor
from ..estimators.parameters import parameters_of
from ..labels import factorise, names_of
from ..metrics import rse
from ..model import SiteModel, load
from ..rows.batches import inputs_of
from ..rows.sources import PARQUET, open_source
from ..settings import Entry, FeatureSettings, entries
from ..types import Array

SUFFIX = ".safetensors"
_SETTINGS = {name: parameter.entry for name, parameter in parameters_of(DeKRRRegressor).items()}
_SEED = entries(FeatureSettings)["seed"]


def _option(entry: Entry) -> Any:
    """Return the command-line option of a setting."""
    words = entry.words()
    return typer.Option(help=f"{entry.setting.text} It is {words}." if words else entry.setting.text)


def fit(
    data: Annotated[Path, typer.Argument(help="A CSV or Parquet file.")],
    target: Annotated[str, typer.Option(help="The column to predict.")],
    site: Annotated[str, typer.Option(help="The column that says whose row it is.")],
    out: Annotated[Path, typer.Option(help="The folder to write one model per site to.")],
    n_features: Annotated[int, _option(_SETTINGS["n_features"])] = _SETTINGS["n_features"].in_process,
    features: Annotated[str, _option(_SETTINGS["features"])] = _SETTINGS["features"].in_process,
    kernel: Annotated[str, _option(_SETTINGS["kernel"])] = _SETTINGS["kernel"].in_process,
    sigma: Annotated[str, _option(_SETTINGS["sigma"])] = _SETTINGS["sigma"].in_process,
    alpha: Annotated[str, _option(_SETTINGS["alpha"])] = _SETTINGS["alpha"].in_process,
    consensus: Annotated[str, _option(_SETTINGS["consensus"])] = _SETTINGS["consensus"].in_process,
    topology: Annotated[str, _option(_SETTINGS["topology"])] = _SETTINGS["topology"].in_process,
    n_neighbors: Annotated[int, _option(_SETTINGS["n_neighbors"])] = _SETTINGS["n_neighbors"].in_process,
    prediction: Annotated[str, _option(_SETTINGS["prediction"])] = _SETTINGS["prediction"].in_process,
    seed: Annotated[int, _option(_SEED)] = _SEED.in_process,
    force: Annotated[bool, typer.Option("--force", help="Replace models that are already there.")] = False,
) -> None:
    """Train a model for every site of a table and write them to a folder.

    All columns but the target and the site must be numbers. The table is read in batches: it may be larger than
    memory.
    """
    for column in (target, site):
        _require_column(column, open_source(data).columns or [], data)
    if not force and out.exists() and list(out.glob(f"*{SUFFIX}")):
        raise DataError(f"{out} already has models; give another folder, or --force to replace them")
    regressor = DeKRRRegressor(
        n_features=n_features,
        features=features,
        kernel=kernel,
        sigma=_numbers_or_auto("sigma", sigma),
        alpha=_numbers_or_auto("alpha", alpha),
        consensus=_numbers_or_auto("consensus", consensus),
        topology=topology,
        n_neighbors=n_neighbors,
        prediction=prediction,
        random_state=seed,
        store_rows=True,  # for the errors on training rows
    )
    regressor.fit(data, target, sites=site)
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob(f"*{SUFFIX}"):
        old.unlink()
    for model in regressor.models_.values():
        model.save(out / file_name(model.header.site))
    _summary(regressor, out)


def _numbers_or_auto(name: str, given: str) -> float | list[float] | str:
    if given == "auto":
        return given
    try:
        numbers = [float(part) for part in given.split(",")]
    except ValueError:
        raise SettingsError(f'--{name} must be a number, several with commas, or "auto"; got {given!r}') from None
    return numbers[0] if len(numbers) == 1 else numbers


def file_name(site: str) -> str:
    """Return a file name for a site: the site's name where a file may be called so.

    Examples
    --------
    >>> file_name("Gucheng"), file_name("a/b")
    ('Gucheng.safetensors', 'a%2Fb.safetensors')
    """
    return re.sub(r"[^\w. -]", lambda match: f"%{ord(match[0]):02X}", site) + SUFFIX


def _require_column(column: str, there: Sequence[str], data: Path) -> None:
    if column not in there:
        raise DataError(f"{data} has no column {column!r}; it has {', '.join(there)}")


def _summary(regressor: DeKRRRegressor, out: Path) -> None:
    """Print what came of a fit; errors are on the sites' samples, which have all rows of all but large sites."""
    table = Table(title=f"{len(regressor.sites_)} models in {out}")
    for heading in ("site", "rows", "RSE on its training rows", "kB sent"):
        table.add_column(heading, justify="left" if heading == "site" else "right")
    samples = {label: rows.sample for label, rows in regressor.rows_.items()}
    own = {label: regressor.models_[label].predict(sample.X) for label, sample in samples.items()}
    for label, sample in samples.items():
        sent = regressor.traffic_.sent_by(label) / 1e3
        n_rows = regressor.rows_[label].n_rows
        table.add_row(str(label), f"{n_rows}", f"{rse(sample.y, own[label]):.4f}", f"{sent:.0f}")
    console = Console()
    console.print(table)
    X, y = (np.concatenate([getattr(sample, part) for sample in samples.values()]) for part in "Xy")
    own_rse = rse(y, np.concatenate(list(own.values())))
    union_rse = np.mean([rse(y, model.predict(X)) for model in regressor.models_.values()])
    console.print(
        f"sigma {regressor.sigma_:g}, alpha {regressor.alpha_:g}, consensus {regressor.consensus_:g}; "
        f"training RSE: own {own_rse:.4f}, union {union_rse:.4f}; {regressor.n_rounds_} rounds. "
        f"Predict new rows with: dekrr predict {out} NEW.csv"
    )


def predict(
    models: Annotated[Path, typer.Argument(help="A folder that `dekrr fit` wrote, or one model file.")],
    data: Annotated[Path, typer.Argument(help="A CSV or Parquet file of rows.")],
    site: Annotated[str | None, typer.Option(help="The column that says whose row it is.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write; CSV to the terminal if left out.")] = None,
    column: Annotated[str, typer.Option(help="What to call the new column.")] = "prediction",
) -> None:
    """Predict each row of a table by its site's model, or all rows by the mean of the models.

    The table comes back with one more column. It is read and written in batches.
    """
    by_site = _load_all(models)
    with _writer(out) as write:
        for batch in open_source(data).read(None):
            header = next(iter(by_site.values())).header
            rows = inputs_of(batch, header.reading)
            table = batch.table.to_pandas() if hasattr(batch.table, "to_pandas") else batch.table
            if site is None:
                table[column] = np.mean([model.predict_encoded(rows) for model in by_site.values()], axis=0)
            else:
                table[column] = _predict_by_site(rows, table, site, by_site, data)
            write(table)


@contextmanager
def _writer(out: Path | None) -> Iterator[Callable[[Any], None]]:
    """Give a function that appends a table to a file, or prints it; what is there stays until all is written."""
    if out is None:
        yield _csv_appender(lambda text: typer.echo(text, nl=False))
        return
    is_file = not out.is_symlink() and (out.is_file() or not out.exists())
    with replacing(out, private=False) if is_file else nullcontext(out) as target, ExitStack() as stack:
        if out.suffix in PARQUET:
            yield _parquet_appender(target, stack)
        else:
            yield _csv_appender(stack.enter_context(target.open("w", newline="")).write)


def _csv_appender(write: Callable[[str], Any]) -> Callable[[Any], None]:
    header = iter([True])

    def append(table: Any) -> None:
        write(table.to_csv(index=False, header=next(header, False)))

    return append


def _parquet_appender(out: Path, stack: ExitStack) -> Callable[[Any], None]:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    writers: list[Any] = []

    def append(frame: Any) -> None:
        table = pa.Table.from_pandas(frame)
        if not writers:
            writers.append(stack.enter_context(parquet.ParquetWriter(out, table.schema)))
        writers[0].write_table(table.cast(writers[0].schema))

    return append


def _load_all(models: Path) -> dict[str, SiteModel]:
    paths = sorted(models.glob(f"*{SUFFIX}")) if models.is_dir() else [models]
    if not paths:
        raise DataError(f"{models} has no model: no file there ends in {SUFFIX}")
    loaded = [load(path) for path in paths]
    return {model.header.site: model for model in loaded}


def _predict_by_site(rows: Array, table: Any, site: str, by_site: dict[str, SiteModel], data: Path) -> np.ndarray:
    _require_column(site, [str(name) for name in table.columns], data)
    labels, index = factorise(table[site], len(table))
    names = np.array(names_of(labels), dtype=object)[index]
    unknown = sorted(set(names) - set(by_site))
    if unknown:
        raise DataError(f"no model for sites {unknown}; there are {sorted(by_site)}")
    prediction = np.empty(len(table))
    for name, model in by_site.items():
        own = np.asarray(names == name)
        if own.any():
            prediction[own] = model.predict_encoded(rows[own])
    return prediction
