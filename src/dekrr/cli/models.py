"""`dekrr fit` and `dekrr predict`: models from a table with a site column, and predictions for new rows."""

import re
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from ..data import read_table
from ..errors import DataError, SettingsError
from ..estimators import DeKRRRegressor
from ..model import SiteModel, load

SUFFIX = ".safetensors"


def fit(
    data: Annotated[Path, typer.Argument(help="A CSV or Parquet file.")],
    target: Annotated[str, typer.Option(help="The column to predict.")],
    site: Annotated[str, typer.Option(help="The column that says whose row it is.")],
    out: Annotated[Path, typer.Option(help="The folder to write one model per site to.")],
    n_features: Annotated[int, typer.Option(min=1, help="Features per site.")] = 100,
    features: Annotated[str, typer.Option(help="plain, energy, leverage, surrogate or greedy.")] = "greedy",
    kernel: Annotated[str, typer.Option(help="gaussian, laplacian or cauchy.")] = "gaussian",
    sigma: Annotated[str, typer.Option(help="Bandwidth, in columns scaled to [0, 1]; auto is tuned.")] = "auto",
    alpha: Annotated[str, typer.Option(help="Regularisation; auto is tuned.")] = "auto",
    consensus: Annotated[str, typer.Option(help="Weight of the agreement with neighbours; auto is tuned.")] = "auto",
    topology: Annotated[str, typer.Option(help="ring, complete, grid, star, random_regular, ...")] = "ring",
    n_neighbors: Annotated[int, typer.Option(help="Neighbours of a site, where the topology leaves it open.")] = 4,
    prediction: Annotated[str, typer.Option(help="neighborhood or own.")] = "neighborhood",
    seed: Annotated[int, typer.Option(help="Seed of the random features.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace models that are already there.")] = False,
) -> None:
    """Train a model for every site of a table and write them to a folder.

    All columns but the target and the site must be numbers.
    """
    table = read_table(data)
    for column in (target, site):
        if column not in table.columns:
            raise DataError(f"{data} has no column {column!r}; it has {', '.join(map(str, table.columns))}")
    rows = table.drop(columns=[target, site])
    _require_numbers(rows, data)
    if not force and out.exists() and list(out.glob(f"*{SUFFIX}")):
        raise DataError(f"{out} already has models; give another folder, or --force to replace them")
    regressor = DeKRRRegressor(
        n_features=n_features,
        features=features,
        kernel=kernel,
        sigma=_number_or_auto("sigma", sigma),
        alpha=_number_or_auto("alpha", alpha),
        consensus=_number_or_auto("consensus", consensus),
        topology=topology,
        n_neighbors=n_neighbors,
        prediction=prediction,
        random_state=seed,
    )
    regressor.fit(rows, table[target], sites=table[site])
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob(f"*{SUFFIX}"):
        old.unlink()
    for model in regressor.models_.values():
        model.save(out / file_name(model.header.site))
    _summary(regressor, rows, table[target], table[site], out)


def _number_or_auto(name: str, given: str) -> float | str:
    if given == "auto":
        return given
    try:
        return float(given)
    except ValueError:
        raise SettingsError(f'--{name} must be a number or "auto", got {given!r}') from None


def file_name(site: str) -> str:
    """Return a file name for a site: the site's name where a file may be called so.

    Examples
    --------
    >>> file_name("Gucheng"), file_name("a/b")
    ('Gucheng.safetensors', 'a%2Fb.safetensors')
    """
    return re.sub(r"[^\w. -]", lambda match: f"%{ord(match[0]):02X}", site) + SUFFIX


def _require_numbers(rows: Any, data: Path) -> None:
    words = [str(name) for name, kind in rows.dtypes.items() if not np.issubdtype(np.dtype(kind.type), np.number)]
    if words:
        raise DataError(f"{data}: columns {', '.join(words)} are not numbers; drop or encode them")


def _summary(regressor: DeKRRRegressor, rows: Any, y: Any, sites: Any, out: Path) -> None:
    table = Table(title=f"{len(regressor.sites_)} models in {out}")
    for heading in ("site", "rows", "RSE on its training rows", "kB sent"):
        table.add_column(heading, justify="left" if heading == "site" else "right")
    for label in regressor.sites_:
        own = np.asarray(sites == label)
        error = regressor.rse(rows[own], y[own], sites=sites[own])
        sent = regressor.traffic_.sent_by(label) / 1e3
        table.add_row(str(label), f"{own.sum()}", f"{error:.4f}", f"{sent:.0f}")
    console = Console()
    console.print(table)
    own_rse, union_rse = (regressor.rse(rows, y, sites=sites, metric=metric) for metric in ("own", "union"))
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

    The table comes back with one more column.
    """
    table = read_table(data)
    by_site = _load_all(models)
    if site is None:
        table[column] = np.mean([model.predict(table) for model in by_site.values()], axis=0)
    else:
        table[column] = _predict_by_site(table, site, by_site, data)
    if out is None:
        typer.echo(table.to_csv(index=False), nl=False)
    elif out.suffix in (".parquet", ".pq"):
        table.to_parquet(out)
    else:
        table.to_csv(out, index=False)


def _load_all(models: Path) -> dict[str, SiteModel]:
    paths = sorted(models.glob(f"*{SUFFIX}")) if models.is_dir() else [models]
    if not paths:
        raise DataError(f"{models} has no model: no file there ends in {SUFFIX}")
    loaded = [load(path) for path in paths]
    return {model.header.site: model for model in loaded}


def _predict_by_site(table: Any, site: str, by_site: dict[str, SiteModel], data: Path) -> np.ndarray:
    if site not in table.columns:
        raise DataError(f"{data} has no column {site!r}; it has {', '.join(map(str, table.columns))}")
    names = table[site].map(lambda label: label if isinstance(label, str) else repr(label))
    unknown = sorted(set(names) - set(by_site))
    if unknown:
        raise DataError(f"no model for sites {unknown}; there are {sorted(by_site)}")
    prediction = np.empty(len(table))
    for name, model in by_site.items():
        own = np.asarray(names == name)
        if own.any():
            prediction[own] = model.predict(table[own])
    return prediction
