"""The commands of `dekrr`, and their common error handling."""

import sys
import warnings
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from ..errors import DekrrError, DekrrWarning
from .lazy import lazy_app

# Homes of commands in dekrr, MODULE or MODULE:ATTRIBUTE, and what --help says of them. A home is imported when its
# command is called: the command line imports no annex.
COMMANDS = {
    "compare": (
        "lab.commands.compare",
        "Compare what each site would do alone with what sites do together, and with all rows in one place.",
    ),
    "fit": ("cli.models", "Train a model for every site in a table, and write the models to a folder."),
    "score": (
        "cli.predicting",
        "Measure the errors of models on a table: own and union relative squared error, and that of each site.",
    ),
    "predict": (
        "cli.predicting",
        "Predict each row of a table by its site's model, or all rows by the mean of the models.",
    ),
    "inspect": ("cli.predicting", "Show what is in model files: the site, the method, the settings and the columns."),
    "serve": ("serving.commands", "Serve predictions over HTTP; a newer model takes over without losing a request."),
    "export": ("serving.commands", "Write a model as an ONNX graph, which runs without dekrr."),
    "demo": ("lab.commands.demo", "Compare every method on ten sites, and draw the network."),
    "docs": ("cli.docs", "Read the documentation in the terminal."),
    "report": (
        "lab.commands.report",
        "Write one self-contained HTML page about results, with figures as files for papers, or about a mesh run.",
    ),
    "node": (
        "mesh.commands.taking_part",
        "Take part in a run as one site, and write model.safetensors; or keep running, and train the approved studies.",
    ),
    "up": ("mesh.commands.up", "Run every site of a network as a process on this machine, and watch them in a table."),
    "status": (
        "mesh.commands.taking_part",
        "Print what running sites on this machine wrote about themselves a second ago.",
    ),
    "data": ("lab.commands.downloads", "List and download the data sets of the paper."),
    "site": ("mesh.commands.setting_up:site_app", "Make the files of a standing site."),
    "study": ("mesh.commands.study:study_app", "Propose, approve and follow studies of standing sites."),
    "audit": ("mesh.commands.study:audit_app", "Check and read this site's audit trail."),
    "relay": ("mesh.commands.study", "Relay frames between sites that accept no connections."),
    "network": ("mesh.commands.setting_up:network_app", "Describe a network of sites and make its keys."),
    "keys": ("mesh.commands.setting_up:keys_app", "Make this site's private key, or a token for callers."),
    "attack": ("lab.commands.attack", "Play curious neighbours that want a site's rows, and print what they learn."),
    "bench": ("lab.commands.bench", "Time fits against scikit-learn, and the paper's algorithm in plain numpy."),
    "reproduce": ("lab.commands.reproduce", "Reproduce the paper's tables and figures."),
}
_EXTRAS = {
    "matplotlib": "plot",
    "onnx": "onnx",
    "jinja2": "report",
    **dict.fromkeys(("pandas", "pyarrow"), "files"),
    **dict.fromkeys(("anyio", "prometheus_client", "starlette", "uvicorn"), "serve"),
    **dict.fromkeys(("tomli_w", "zenoh"), "mesh"),
    **dict.fromkeys(("mpi4py", "pymetis"), "mpi"),
}

app = lazy_app(
    COMMANDS,
    help="Federated learning on tables, for sites that cannot pool their rows.",
    no_args_is_help=True,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"dekrr {version('dekrr')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True)] = False,
) -> None:
    """Federated learning on tables, for sites that cannot pool their rows."""


def run() -> None:
    """Run the command line; print an error of dekrr, of the system or in a value as one line, with its exit code."""
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    try:
        app()
    except Exception as error:
        if not isinstance(error, DekrrError | OSError | ImportError):  # about nothing that the user gave, or has
            raise
        _tell("[bold red]error:[/]", _with_extra(error))
        sys.exit(getattr(error, "exit_code", 1))


def _with_extra(error: BaseException) -> str:
    """Return the text of an error; if a package is missing, with the command that installs it."""
    extra = _EXTRAS.get(error.name or "") if isinstance(error, ModuleNotFoundError) else None
    return f"{error}: pip install 'dekrr[{extra}]'" if extra else str(error)


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    exceptions = sys.modules.get("sklearn.exceptions")  # if it is not imported, it cannot have warned
    others = () if exceptions is None else (exceptions.ConvergenceWarning,)
    if issubclass(category, (DekrrWarning, *others)):
        _tell("[yellow]warning:[/]", str(message))


def _tell(heading: str, text: str) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(heading, escape(text))
