"""`dekrr compare`: alone, together and pooled on a table."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from ...cli.models import require_column
from ...cli.outputs import print_json, table_at
from ...errors import DataError
from ...tables.sources import open_source
from ..comparing import compare as compared


def compare(
    data: Annotated[Path, typer.Argument(help="A CSV or Parquet file; - reads standard input.")],
    target: Annotated[str, typer.Option(help="The column to predict.")],
    site: Annotated[str, typer.Option("--site", "--sites", help="The column that has the site of each row.")],
    columns: Annotated[
        str | None, typer.Option(help="The columns to predict from, separated by commas; all others by default.")
    ] = None,
    folds: Annotated[int, typer.Option(help="How many folds of each site's rows are held out, one after another.")] = 5,
    test: Annotated[
        float | None, typer.Option(help="Hold out this share of each site's rows once, instead of folds: quicker.")
    ] = None,
    classes: Annotated[
        bool,
        typer.Option("--classes", help="The target has classes even if it has numbers. Words are classes anyway."),
    ] = False,
    leave_out: Annotated[
        list[str] | None,
        typer.Option(help='A site to predict as a newcomer, too; repeat the option for several, or give "all".'),
    ] = None,
    transform: Annotated[
        str, typer.Option(help='What all are trained on instead of the target: "log", for instance; see dekrr fit.')
    ] = "none",
    seed: Annotated[int, typer.Option(help="Of the features that are drawn.")] = 0,
    picture: Annotated[Path | None, typer.Option(help="A file to draw the errors to, such as sites.png.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Compare what each site would do alone with what sites do together, and with all rows in one place.

    Alone is the best of the site's mean, ridge regression and boosted trees. Together is dekrr with its defaults.
    Pooled is the better of ridge regression and boosted trees on all rows, which know the site. All predict the same
    rows, which they have not seen. The RSE of a site is relative to the variance of the site's own rows.
    """
    if picture is not None and not picture.parent.is_dir():
        raise DataError(f"the folder {picture.parent} of {picture.name} does not exist")
    wanted = [name.strip() for name in columns.split(",")] if columns else None
    settings = {} if transform.lower() == "none" else {"transform": transform}
    left = "all" if leave_out == ["all"] else leave_out or ()
    with table_at(data) as path:
        there = open_source(path).columns or []
        for column in (target, site, *(wanted or ())):
            require_column(column, there, path)
        found = compared(
            path, target, site, columns=wanted, folds=folds, test=test, classes=classes or None, leave_out=left,
            random_state=seed, **settings,
        )  # fmt: skip
    if picture is not None:
        from ...plot import comparison

        comparison(found).figure.savefig(picture)
    if as_json:
        print_json(_facts(found))
        return
    _print(found)


def _facts(found: Any) -> dict[str, Any]:
    values = found.to_dict()
    sites = {str(site): {name: column[site] for name, column in values.items()} for site in next(iter(values.values()))}
    return {**found.attrs, "all": sites.pop("all"), "sites": sites}


def _print(found: Any) -> None:
    values, measure = found.to_dict(), found.attrs["measure"]
    table = Table(title=f"{measure} of held-out rows")
    table.add_column("site")
    for name in values:
        table.add_column(name.replace("_", " "), justify="right")
    for site in next(iter(values.values())):
        table.add_row(str(site), *(_cell(values[name][site]) for name in values), end_section=False)
    console = Console()
    console.print(table)
    console.print(found.attrs["verdict"], highlight=False, soft_wrap=True)


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "-" if np.isnan(value) else str(value) if isinstance(value, int) else f"{value:.4f}"
