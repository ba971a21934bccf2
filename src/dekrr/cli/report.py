"""`dekrr report`: all results on one page."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..experiments.report import tables_as_markdown, write_report


def report(
    results: Annotated[
        Path, typer.Argument(help="The folder that `dekrr reproduce` wrote to, or its results.parquet.")
    ],
    out: Annotated[Path | None, typer.Option(help="The page; report.html in the folder if left out.")] = None,
    figures: Annotated[
        bool, typer.Option(help="Write the figures as PNG, PDF and SVG too, to the folder's figures/.")
    ] = True,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables to this Markdown file too.")] = None,
) -> None:
    """Write one self-contained HTML page of tables and figures, and the figures as files for papers."""
    results = results.parent if results.is_file() else results
    folder = results / "figures" if figures else None
    console = Console(soft_wrap=True)
    console.print(f"page: {write_report(results, out, figures=folder)}")
    if markdown is not None:
        markdown.write_text(tables_as_markdown(results), encoding="utf-8")
        console.print(f"tables: {markdown}")
    if folder is not None:
        console.print(f"figures: {folder}")
