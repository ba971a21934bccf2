"""`dekrr docs`: the pages of the documentation in a terminal, without a network."""

import re
from contextlib import nullcontext
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from ..errors import DataError

_CHECKOUT = Path(__file__).parents[3] / "docs"
_DOORS = {"tutorials": "tutorial", "how-to": "how-to guide", "explanation": "explanation", "reference": "reference"}


def docs(
    page: Annotated[
        str | None, typer.Argument(help="A page, such as privacy; without it all pages are listed.")
    ] = None,
) -> None:
    """Read the documentation in the terminal."""
    pages = pages_in(_folder())
    console = Console()
    if page is None:
        kinds = kinds_in(_folder())
        table = Table("page", "kind", "about")
        for name, path in sorted(pages.items(), key=lambda page: list(kinds).index(page[0])):
            table.add_row(name, kinds[name], title_of(path))
        console.print(table)
        console.print("dekrr docs PAGE shows a page. In a clone of the repository, make docs builds the whole site.")
        return
    if page not in pages:
        raise DataError(f"there is no page {page!r}; the pages are {', '.join(pages)}")
    with console.pager(styles=True) if console.is_terminal else nullcontext():
        text = pages[page].read_text(encoding="utf-8")
        console.print(Markdown(text.split("---\n", 2)[2] if text.startswith("---\n") else text))  # no front matter


def pages_in(folder: Path) -> dict[str, Path]:
    """Return the pages in a folder by their names; those that the site's build makes are for browsers alone."""
    doors = ("tutorials", "how-to", "explanation", "")
    found = [path for door in doors for path in sorted((folder / door).glob("*.md")) if path.stem != "index"]
    return {path.stem: path for path in found}


def kinds_in(folder: Path) -> dict[str, str]:
    """Return the kind of each page by its name, in the order in which the indexes of tutorials and guides list them."""
    kinds: dict[str, str] = {}
    for door, kind in _DOORS.items():
        listed = re.search(r"```{toctree}\n(.*?)```", (folder / door / "index.md").read_text(encoding="utf-8"), re.S)
        kinds |= {line.split("/")[-1]: kind for line in (listed[1] if listed else "").splitlines()}
    return kinds | {name: "" for name in pages_in(folder) if name not in kinds}


def title_of(path: Path) -> str:
    """Return the first heading of a page."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((line[2:] for line in lines if line.startswith("# ")), path.stem)


def _folder() -> Path:
    installed = Path(str(files("dekrr"))) / "_docs"
    folder = installed if installed.is_dir() else _CHECKOUT
    if not folder.is_dir():
        raise DataError("this installation has no pages; install the wheel, or read docs/ in the repository")
    return folder
