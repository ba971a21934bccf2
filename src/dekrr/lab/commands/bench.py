"""`dekrr bench`: the speed of fits on this machine, as ratios within one run."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from ...errors import DataError, SettingsError
from ..experiments.running import replace_file
from ..experiments.speed import FIGURES, TimedFigure, machine

_NOISE = 1.25  # a ratio that is worse by a smaller factor does not count as slower


class Bench(msgspec.Struct, frozen=True):
    """The figures of one run, and the machine that they were measured on."""

    machine: dict[str, object]
    figures: list[TimedFigure]


def bench(
    only: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(FIGURES)}; repeat the option for more.")
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="DEKRR_DATA", help="Where the data sets are; without them, made-up rows of the same shape."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller problems, in about half a minute.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write the figures to this JSON file, each as soon as it is measured.")
    ] = None,
    compare: Annotated[Path | None, typer.Option(help="Compare with the figures in this JSON file.")] = None,
) -> None:
    """Time fits against scikit-learn, and the paper's algorithm in plain numpy."""
    unknown = [name for name in only or () if name not in FIGURES]
    if unknown:
        raise SettingsError(f"unknown figures {', '.join(unknown)}; choose from {', '.join(FIGURES)}")
    before = {figure.name: figure for figure in read(compare).figures} if compare else {}
    console = Console()
    about = machine()
    console.print(", ".join(f"{key} {value}" for key, value in about.items()))
    table = Table("figure", "ratio", "seconds", *(["before"] if compare else []))
    figures: list[TimedFigure] = []
    for name in only or FIGURES:
        with Console(stderr=True).status(f"timing {name}"):
            for figure in FIGURES[name](data_dir, quick=quick):
                figures.append(figure)
                if out is not None:
                    write(out, Bench(about, figures))
                table.add_row(*_row(figure), *([_change(figure, before.get(figure.name))] if compare else []))
    console.print(table)
    if out is not None:
        console.print(f"figures: {out}")


def write(path: Path, bench: Bench) -> None:
    """Write all figures so far to a file, so that a run that ends early keeps its figures."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, msgspec.json.format(msgspec.json.encode(bench)))


def read(path: Path) -> Bench:
    """Return the figures from a file that `dekrr bench --out` wrote."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Bench)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; dekrr bench --out {path} writes it") from None
    except msgspec.MsgspecError as error:
        raise DataError(f"{path} has no figures of dekrr bench: {error}") from None


def _row(figure: TimedFigure) -> tuple[str, str, str]:
    seconds = ", ".join(f"{name} {value:.3g}" for name, value in figure.seconds.items())
    return figure.name, f"{figure.ratio:.3g}", seconds


def _change(figure: TimedFigure, before: TimedFigure | None) -> str:
    if before is None:
        return "-"
    worse = before.ratio / figure.ratio if figure.better == "higher" else figure.ratio / before.ratio
    word = " slower" if worse > _NOISE else " faster" if worse < 1 / _NOISE else ""
    return f"{before.ratio:.3g}{word}"
