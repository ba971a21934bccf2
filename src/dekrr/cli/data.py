"""`dekrr data`: what data sets there are, and downloads of the public ones."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ..data import CATALOGUE, fetch, load
from ..errors import DataError

data = typer.Typer(help="List and download the data sets of the paper.", no_args_is_help=True)
DataDir = Annotated[Path | None, typer.Option(envvar="DEKRR_DATA", help="Where the data sets are, or shall go.")]


@data.command("list")
def list_data(data_dir: DataDir = None) -> None:
    """Say which data sets are known, and which of them are in the data directory."""
    table = Table()
    for heading in ("name", "rows", "columns", "here", "know before use"):
        table.add_column(heading, justify="right" if heading in ("rows", "columns") else "left")
    for name, entry in CATALOGUE.items():
        try:
            found = "yes" if data_dir and load(name, data_dir) else "no"
        except DataError:
            found = "no"
        table.add_row(name, str(entry.n_rows), str(entry.n_columns), found, entry.note)
    Console().print(table)


@data.command("fetch")
def fetch_data(
    names: Annotated[list[str], typer.Argument(help="Data sets, such as houses.")], data_dir: DataDir = None
) -> None:
    """Download data sets from their public sources into the data directory, and check them."""
    for name in names:
        Console(soft_wrap=True).print(f"{name}: {fetch(name, data_dir)}, checked")
