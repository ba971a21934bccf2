"""`dekrr data`: the list of data sets, and downloads of the public ones."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ...errors import DataError
from ...scaling import Scaling
from ..data_sets.catalogue import CATALOGUE
from ..data_sets.loading import fetch, load
from ..data_sets.partitions import PARTITIONS, partition
from ..data_sets.pictures import draw_sites

data = typer.Typer(help="List and download the data sets of the paper.", no_args_is_help=True)
DataDir = Annotated[
    Path | None, typer.Option(envvar="DEKRR_DATA", help="Where the data sets are, or where to put them.")
]


@data.command("list")
def list_data(data_dir: DataDir = None) -> None:
    """List the data sets that are known, and say which of them are in the data directory."""
    table = Table()
    for heading in ("name", "rows", "columns", "here", "before you use it"):
        table.add_column(heading, justify="right" if heading in ("rows", "columns") else "left")
    for name, entry in CATALOGUE.items():
        try:
            found = "yes" if data_dir and load(name, data_dir) else "no"
        except DataError:
            found = "no"
        table.add_row(name, str(entry.n_rows), str(entry.n_columns), found, entry.note)
    Console().print(table)


@data.command("sites")
def show_sites(
    name: Annotated[str, typer.Argument(help="A data set, such as houses.")],
    partition_by: Annotated[str, typer.Option("--partition", help=f"{', '.join(PARTITIONS)}.")] = "response",
    n_sites: Annotated[int, typer.Option(min=1)] = 10,
    mix: Annotated[float, typer.Option(help="The share of rows that is drawn at random.")] = 0.2,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    out: Annotated[Path, typer.Option(help="The picture.")] = Path("sites.png"),
    data_dir: DataDir = None,
) -> None:
    """Draw what every site sees under a partition: y, |x| and the number of rows."""
    import matplotlib

    matplotlib.use("Agg")
    X, y = load(name, data_dir)
    scaling = Scaling.of(X, y)
    X, y = scaling.rows(X), scaling.responses(y)
    sites = partition(partition_by, X, y, n_sites=n_sites, mix=mix, random_state=seed)
    draw_sites(sites, X, y).savefig(out, dpi=150)
    Console(soft_wrap=True).print(f"picture: {out}")


@data.command("fetch")
def fetch_data(
    names: Annotated[list[str], typer.Argument(help="Data sets, such as houses.")], data_dir: DataDir = None
) -> None:
    """Download data sets from their public sources into the data directory, and check them."""
    for name in names:
        Console(soft_wrap=True).print(f"{name}: {fetch(name, data_dir)}, checked")
