"""`dekrr attack`: a neighbour after the rows, against the paper's exchange and against the default one."""

from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..privacy import attack as attacks
from ..types import Array


def attack(
    data: Annotated[list[str] | None, typer.Argument(help="Data sets of the data directory, such as houses.")] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(envvar="DEKRR_DATA", help="Where the data sets are; splits/ in it has the authors' splits."),
    ] = None,
    n_features: Annotated[
        list[int] | None, typer.Option("--n-features", "-D", min=1, help="Features per site; repeat it for several.")
    ] = None,
    sigma: Annotated[list[float] | None, typer.Option(help="Bandwidth; repeat it for several.")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Time for each attack on rows.")] = 60.0,
    sums: Annotated[bool, typer.Option("--sums/--no-sums", help="Attack the default exchange too.")] = True,
    own_rows: Annotated[
        bool, typer.Option("--own-rows/--no-own-rows", help="Let the attacker start from its own rows.")
    ] = True,
    out: Annotated[Path, typer.Option(help="The folder for the picture.")] = Path("attack"),
    seed: Annotated[int, typer.Option(help="Seed of a split that is not the authors'.")] = 0,
) -> None:
    """Play a neighbour that wants the rows, and print what it gets.

    Against exchange="features" (the paper's) it solves for the rows. Against the default exchange it is given more
    than its messages hold: the target's own sums, which it would have to work out from coefficients, and rows of
    the target's kind as a reference. Without data sets it attacks a made-up one.
    """
    console = Console()
    names: list[str | None] = [*data] if data else [None]
    sizes: list[int | None] = [*n_features] if n_features else [None]
    widths: list[float | None] = [*sigma] if sigma else [None]
    problems = [
        attacks.read_problem(name, data_dir, size, width, seed) for name, size, width in product(names, sizes, widths)
    ]
    pictures = []
    from_features, from_sums = _features_table(), _sums_table()
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        for problem in problems:
            task = progress.add_task(f"{problem.name}, features")
            recovery, truth = attacks.attack_features(problem, seconds=seconds, own_rows=own_rows)
            shares = [recovery.share(truth, tolerance) for tolerance in attacks.TOLERANCES]
            from_features.add_row(
                *_named(problem), *(f"{share:.1%}" for share in shares), f"{recovery.seconds:.1f}", str(recovery.starts)
            )
            pictures.append((problem, recovery.rows, truth))
            if sums:
                progress.update(task, description=f"{problem.name}, sums")
                _attack_sums(problem, seconds, from_sums)
            progress.remove_task(task)
    console.print(from_features)
    if sums:
        console.print(from_sums)
        console.print(
            "AUC: how often a member scores above a row that is none; 50 % is guessing.\n"
            "column: median error of a guessed column of a known member, in the unit box.\n"
            "imputed: the same from the other columns, without sums.\n"
            "malicious: AUC for frequencies ten times too high; the guards refuse them, and were off."
        )
    console.print(f"picture: {_draw(pictures, out)}")


def _named(problem: attacks.Problem) -> tuple[str, str, str, str]:
    return problem.name, str(problem.pair()[0].n_rows), str(problem.n_features), f"{problem.sigma:g}"


def _features_table() -> Table:
    table = Table(title='rows from exchange="features", the paper\'s')
    for heading in ("data", "rows", "D", "sigma", "to 1e-3", "to 1e-6", "seconds", "starts"):
        table.add_column(heading, justify="left" if heading == "data" else "right")
    return table


def _sums_table() -> Table:
    table = Table(title="the default exchange: sums and coefficients")
    for heading in ("data", "rows", "D", "sigma", "to 1e-3", "to 1e-6", "AUC", "column", "imputed", "malicious"):
        table.add_column(heading, justify="left" if heading == "data" else "right")
    return table


def _attack_sums(problem: attacks.Problem, seconds: float, table: Table) -> None:
    found = attacks.attack_sums(problem, seconds=seconds)
    honest = attacks.infer(problem, attacks.hear_sums(problem))
    malicious = attacks.infer(problem, attacks.malicious_view(problem), guesses=1)
    table.add_row(
        *_named(problem),
        *(f"{found.shares[tolerance]:.1%}" for tolerance in attacks.TOLERANCES),
        f"{honest.membership.area:.1%}",
        f"{honest.column_error:.3f}",
        f"{honest.imputed_error:.3f}",
        f"{malicious.membership.area:.1%}",
    )


def _draw(pictures: list[tuple[attacks.Problem, Array, Array]], out: Path) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(pictures), figsize=(3.6 * len(pictures), 3.6), squeeze=False)
    for panel, (problem, rows, truth) in zip(panels[0], pictures, strict=True):
        _scatter(panel, problem, rows, truth)
    figure.suptitle("values a neighbour computes")
    figure.tight_layout()
    out.mkdir(parents=True, exist_ok=True)
    path = out / "attack.png"
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def _scatter(panel: Any, problem: attacks.Problem, rows: Array, truth: Array, most: int = 300) -> None:
    right = np.abs(rows - truth).max(axis=1) < attacks.TOLERANCES[0]
    for chosen, colour, label in ((~right, "C3", "missed"), (right, "C0", "recovered")):
        picked = np.flatnonzero(chosen)[:most]
        panel.plot(
            truth[picked].ravel(),
            rows[picked].ravel(),
            ".",
            markersize=2,
            color=colour,
            label=f"{label}: {chosen.sum()} rows",
        )
    panel.set(
        title=f"{problem.name}, D = {problem.n_features}, sigma = {problem.sigma:g}",
        xlabel="true value (all columns)",
        ylabel="computed value",
    )
    panel.legend(markerscale=4, fontsize=8)
