"""Tables of results on a terminal."""

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from ..experiments.tables import Table

_STYLES = {"best": "bold", "off": "yellow", "": ""}


def print_table(table: Table, console: Console) -> None:
    """Print a table of results, with its note below it."""
    shown = RichTable(title=table.title, title_justify="left")
    for i, heading in enumerate(table.columns):
        shown.add_column(heading, justify="left" if i < table.n_labels else "right")
    for row in table.rows:
        shown.add_row(*(Text(cell.text, style=_STYLES[cell.mark]) for cell in row))
    console.print(shown)
    if table.note:
        console.print(table.note, style="dim", highlight=False)
