"""`dekrr report`: one page with all results."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..experiments.mesh_run import records_in, write_run_report
from ..experiments.report_page import tables_as_markdown, write_report
from ..experiments.running import RESULTS


def report(
    results: Annotated[
        Path,
        typer.Argument(
            exists=True,
            help="What `dekrr reproduce` wrote (the folder, or its results.parquet), or what a mesh wrote: a site's "
            "run.jsonl, or a folder of sites.",
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="The page to write; by default report.html in the folder.")] = None,
    figures: Annotated[
        bool, typer.Option(help="Write the figures as PNG, PDF and SVG too, to the folder's figures/.")
    ] = True,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables to this Markdown file too.")] = None,
) -> None:
    """Write one self-contained HTML page about results, with figures as files for papers, or about a mesh run."""
    console = Console(soft_wrap=True)
    if results.suffix == ".jsonl" or (results.is_dir() and not (results / RESULTS).exists() and records_in(results)):
        console.print(f"page: {write_run_report(results, out)}")
        return
    results = results.parent if results.is_file() else results
    folder = results / "figures" if figures else None
    console.print(f"page: {write_report(results, out, figures=folder)}")
    if markdown is not None:
        markdown.write_text(tables_as_markdown(results), encoding="utf-8")
        console.print(f"tables: {markdown}")
    if folder is not None:
        console.print(f"figures: {folder}")
