"""`dekrr reproduce`: the paper's tables and figures, redone."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from ..data_sets.loading import require
from ..experiments.fits import PROTOCOLS, SPLITS
from ..experiments.paper_tables import Table, tables_of
from ..experiments.plans import EXPERIMENTS, Options, plan, run_name
from ..experiments.running import Results, execute, task_of
from .progress import progress_of

_STYLES = {"best": "bold", "off": "yellow", "": ""}
reproduce = typer.Typer(help="Reproduce the paper's tables and figures.", no_args_is_help=True)

Data = Annotated[
    list[str] | None, typer.Option(help="A data set; repeat the option for more. By default those of the experiment.")
]
DataDir = Annotated[Path | None, typer.Option(envvar="DEKRR_DATA", help="Where the data sets are.")]
Out = Annotated[Path, typer.Option(help="The folder for the results. Fits that it already has are not repeated.")]
Methods = Annotated[list[str] | None, typer.Option(help="A method; repeat the option for more. By default all.")]
Repeats = Annotated[int | None, typer.Option(min=1, help="Repetitions; by default those of the experiment.")]
Jobs = Annotated[int, typer.Option(help="Fits at a time; -1 for one per processor.")]
Protocol = Annotated[
    str, typer.Option(help=f"{' or '.join(PROTOCOLS)}: settings tuned on training rows, or the paper's own.")
]
Splits = Annotated[
    str,
    typer.Option(
        help=f"{' or '.join(SPLITS)}: whose division of rows among sites is used, where the authors have one."
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of the splits and of the features.")]
Quick = Annotated[bool, typer.Option("--quick", help="A small run: 2000 rows, half of the features, 2 repetitions.")]


def _command(name: str, help_text: str) -> None:
    @reproduce.command(name, help=help_text)
    def command(
        data: Data = None,
        data_dir: DataDir = None,
        out: Out = Path("results"),
        method: Methods = None,
        repeats: Repeats = None,
        jobs: Jobs = -1,
        protocol: Protocol = "honest",
        splits: Splits = "own",
        seed: Seed = 0,
        quick: Quick = False,
    ) -> None:
        options = Options(
            data=tuple(data or ()),
            methods=tuple(method or ()),
            repeats=repeats or 0,
            protocol=protocol,
            splits=splits,
            seed=seed,
            quick=quick,
        )
        _run_all(name, options, Results(out), data_dir, jobs)


for _name, _experiment in EXPERIMENTS.items():
    _command(_name, f"{_experiment.title}. {_experiment.about}")
_command("all", "All of these experiments, one after another.")


def command_line(name: str, options: Options) -> str:
    """Return the command line of an experiment with these options."""
    words = ["dekrr", "reproduce", name]
    words += [word for data in options.data for word in ("--data", data)]
    words += [word for method in options.methods for word in ("--method", method)]
    for key in ("repeats", "protocol", "splits", "seed"):
        if getattr(options, key) != getattr(Options(), key):
            words += [f"--{key}", str(getattr(options, key))]
    return shlex.join(words + (["--quick"] if options.quick else []))


def _run_all(name: str, options: Options, results: Results, directory: Path | None, jobs: int) -> None:
    names = list(EXPERIMENTS) if name == "all" else [name]
    out = results.folder
    try:
        for experiment in names:
            run = run_name(experiment, options.protocol, quick=options.quick, seed=options.seed)
            results.note_command(run, command_line(experiment, options))
            _run(experiment, options, results, directory, jobs)
    except KeyboardInterrupt:
        Console(stderr=True).print(f"stopped; what is done is in {out}, and the same command continues from there")
        sys.exit(130)
    Console().print(f"results: {out}; pictures and tables in one page: dekrr report {out}")


def _run(name: str, options: Options, results: Results, directory: Path | None, jobs: int) -> None:
    tasks = plan(name, options, directory)
    for data in dict.fromkeys(task.data for task in tasks if task.splits == "own"):
        require(data, directory)
    results.take_over(tasks)
    total = len(results.waiting(tasks))
    with progress_of(name, total) as show_done:

        def show(task: Any, left: int) -> None:
            show_done(total - left, f"{task.data} {task.method}")

        folder = os.fspath(directory) if directory is not None else None
        execute(tasks, results, directory=folder, jobs=jobs, after_each=show)
    keys = set(tasks)
    rows = [row for row in results.rows if task_of(row) in keys]
    for table in tables_of(name, rows):
        _print(table, Console())


def _print(table: Table, console: Console) -> None:
    shown = RichTable(title=table.title, title_justify="left")
    for i, heading in enumerate(table.columns):
        shown.add_column(heading, justify="left" if i < table.n_labels else "right")
    for row in table.rows:
        shown.add_row(*(Text(cell.text, style=_STYLES[cell.mark]) for cell in row))
    console.print(shown)
    if table.note:
        console.print(table.note, style="dim", highlight=False)
