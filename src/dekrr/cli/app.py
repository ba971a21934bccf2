"""The commands of `dekrr`, and what they share."""

import sys
import warnings
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import InvalidParameterError

from ..errors import DekrrError
from .attack import attack
from .bench import bench
from .data import data
from .demo import demo
from .models import fit, predict
from .network import keys_app, network_app
from .node import node, status, up
from .report import report
from .reproduce import reproduce

_EXTRAS = {
    "matplotlib": "plot",
    "pandas": "files",
    "pyarrow": "files",
    "jinja2": "report",
    "zenoh": "mesh",
    "tomli_w": "mesh",
}

app = typer.Typer(
    help="Kernel ridge regression across sites that cannot pool their data.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
app.command()(attack)
app.command()(bench)
app.command()(demo)
app.command()(fit)
app.command()(predict)
app.command()(report)
app.add_typer(data, name="data")
app.add_typer(reproduce, name="reproduce")
app.add_typer(network_app, name="network")
app.add_typer(keys_app, name="keys")
app.command()(node)
app.command()(up)
app.command()(status)


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"dekrr {version('dekrr')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True)] = False,
) -> None:
    """Kernel ridge regression across sites that cannot pool their data."""


def run() -> None:
    """Run the command line; an error of dekrr's own, of the system, or in a value is one line and exit code 1."""
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    try:
        app()
    except (DekrrError, OSError, ImportError, InvalidParameterError) as error:
        _tell("[bold red]error:[/]", _with_extra(error))
        sys.exit(getattr(error, "exit_code", 1))


def _with_extra(error: BaseException) -> str:
    """Return what an error says, and for a package that is missing what to install."""
    extra = _EXTRAS.get(error.name or "") if isinstance(error, ModuleNotFoundError) else None
    return f"{error}: pip install 'dekrr[{extra}]'" if extra else str(error)


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    if issubclass(category, ConvergenceWarning):
        _tell("[yellow]warning:[/]", str(message))


def _tell(heading: str, text: str) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(heading, escape(text))
