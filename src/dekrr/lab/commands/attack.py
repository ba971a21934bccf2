"""`dekrr attack`: neighbours that attack the rows, under the paper's exchange and under the default exchange."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ...errors import DataError
from ...types import Array
from ..attacks import campaign as attacks
from ..attacks import members as tests
from ..attacks import release, series
from ..attacks.scenes import Scene, in_agreed_units, problem_of_table, read_problem
from ..attacks.sums import Advantage
from ..attacks.views import View

_FILES = (".csv", ".tsv", ".gz", ".parquet", ".pq")
_MOST_DRAWN = 300  # rows of a picture


def attack(
    data: Annotated[
        list[str] | None,
        typer.Argument(help="Data sets in the data directory, such as houses; or CSV or Parquet files of your own."),
    ] = None,
    target: Annotated[str, typer.Option(help="For a file of your own: the column to predict.")] = "",
    site: Annotated[str, typer.Option("--site", help="For a file of your own: the column with the sites.")] = "",
    columns: Annotated[
        str, typer.Option(help="For a file of your own: columns of numbers, separated by commas; all by default.")
    ] = "",
    data_dir: Annotated[
        Path | None,
        typer.Option(envvar="DEKRR_DATA", help="Where the data sets are; splits/ in it has the authors' splits."),
    ] = None,
    n_features: Annotated[
        list[int] | None,
        typer.Option("--n-features", "-D", min=1, help="Features per site; repeat the option for several."),
    ] = None,
    sigma: Annotated[list[float] | None, typer.Option(help="Bandwidth; repeat the option for several.")] = None,
    effort: Annotated[float, typer.Option(min=1, help="CPU seconds for each attack on rows.")] = 60.0,
    sums: Annotated[bool, typer.Option("--sums/--no-sums", help="Attack the default exchange too.")] = True,
    members: Annotated[
        bool,
        typer.Option("--members/--no-members", help="Test membership with shadow data sets, with and without masks."),
    ] = True,
    targets: Annotated[int, typer.Option(min=1, help="Sites whose members are tested.")] = 3,
    shortlist_rows: Annotated[
        float,
        typer.Option(min=0, help="Rows of the neighbours for each feature that a site asks about; 0 means no limit."),
    ] = tests.SETTINGS.shortlist_rows,
    studies: Annotated[
        bool, typer.Option("--studies/--no-studies", help="Propose series of studies to a site with the usual policy.")
    ] = True,
    features: Annotated[bool, typer.Option("--features/--no-features", help="Attack the paper's exchange.")] = True,
    colluders: Annotated[
        int, typer.Option(min=1, max=4, help="Neighbours that pool what they received in the default exchange.")
    ] = 4,
    tuned: Annotated[
        bool,
        typer.Option(
            "--tuned/--no-tuned", help="Let them have the messages of tuning too, where the guards allow tuning."
        ),
    ] = True,
    own_rows: Annotated[
        bool, typer.Option("--own-rows/--no-own-rows", help="Let the attacker start from its own rows.")
    ] = True,
    out: Annotated[Path, typer.Option(help="The folder for the picture.")] = Path("attack"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of a split that is not the authors'.")] = 0,
) -> None:
    """Play curious neighbours that want a site's rows, and print what they learn.

    Against exchange="features" (the paper's) one neighbour solves for the rows. Against the default exchange
    neighbours use all sums of a whole run under a deployment's guards. They are given more than their messages hold:
    the target's own sums, which they would have to work out from coefficients, and rows of the target's kind as a
    reference. If no data set is named, they attack a made-up one. Of a file of your own, half of each site's rows
    train, and the others are the non-members; its sites form a ring.
    """
    import matplotlib.pyplot  # noqa: F401 - a missing package is reported before the computation

    console = Console()
    names: list[str | None] = [*data] if data else [None]
    sizes: list[int | None] = [*n_features] if n_features else [None]
    widths: list[float | None] = [*sigma] if sigma else [None]
    problems = [
        problem_of_table(Path(name), target, site, [*filter(None, columns.split(","))], size, width, seed)
        if name is not None and _is_own(name, target, site)
        else read_problem(name, data_dir, size, width, seed)
        for name, size, width in product(names, sizes, widths)
    ]
    pictures: list[tuple[Scene, Array, Array]] = []
    tables: dict[str, list[dict[str, str]]] = {}
    notes: list[str] = []
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f} of {task.total:.0f} CPU seconds"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        task = progress.add_task("", total=effort)

        def report(seconds: float) -> None:
            progress.update(task, completed=seconds)

        def add(title: str, rows: Iterable[dict[str, str]]) -> None:
            progress.reset(task, description=f"{problem.name}, {title}")
            tables.setdefault(title, []).extend(rows)

        for problem in problems:
            if studies:
                add("series of studies, by what they differ in", _answers(problem))
            if features:
                add(
                    'rows from exchange="features", the paper\'s',
                    _from_features(problem, effort, own_rows, report, pictures),
                )
            problem = in_agreed_units(problem) if sums or members else problem  # as a deployment's sums have the rows
            if sums:
                view, heard = _hear(problem, colluders, tuned, notes)
                add(
                    "rows from the default exchange",
                    _rows_from_sums(problem, view, heard, colluders, effort, seed, report),
                )
                add("members of the default exchange", _inferred(problem, view, heard, colluders))
                add(_RELEASE, _released(problem, colluders))
            if members:
                add(_SHADOWS, _members(problem, colluders, targets, shortlist_rows, seed))
    for title, rows in tables.items():
        table = Table(title=title)
        for heading in rows[0]:
            table.add_column(heading, justify="left" if heading in _WORDS else "right")
        for row in rows:
            table.add_row(*row.values())
        console.print(table)
        if title in _LEGENDS:
            console.print(_LEGENDS[title], *(notes if title == _RELEASE else ()), sep="\n")
    if pictures:
        console.print(f"picture: {_draw(pictures, out)}")


_RELEASE, _SHADOWS = "attacks that a release must pass", "members by shadow data sets"
_WORDS = ("data", "series", "the first refusal", "attack", "what is heard")  # columns of words
_LEGENDS = {
    _RELEASE: "to 1e-3, to 1e-6: rows recovered, and rows matched that are not in the sums, which is chance.\nsums: "
    "numbers that the neighbours have.  misfit: that of the best match; near 0 it found other rows.\nAUC: how often a "
    "member scores above a non-member; 50 % is guessing.\ncolumn: median error of a guessed column of a known member, "
    "in the unit box.\nimputed: the same from the other columns, without sums.\nliars: AUC for the longest frequencies "
    "of their pools, as many as the guards allow.\ntelling: pairs of sums of the same features that differ by fewer "
    "rows than there are features.\nrefused: what a deployment's guards refuse, and what it would reveal.",
    _SHADOWS: "members of a site against as many other rows of its kind, by shadow data sets (LiRA).\nmean over the "
    "targets, with the least and the largest; caught: members found at 1 % and 0.1 % false alarms.",
}


def _is_own(name: str, target: str, site: str) -> bool:
    """Return whether a name is that of a file, which needs the names of two columns."""
    if target and site:
        return True
    if Path(name).suffix in _FILES or target or site:
        raise DataError(
            f"{name}: for a file of your own, give --target and --site, the columns with responses and sites"
        )
    return False


def _hear(problem: Scene, colluders: int, tuned: bool, notes: list[str]) -> tuple[View, str]:
    """Return the neighbours' view, and "tuned" or "trained".

    The view includes the tuning if that is wanted and the guards do not refuse it.
    """
    if tuned:
        try:
            return attacks.hear(problem, tuned=True, colluders=colluders), "tuned"
        except DataError as refusal:
            notes.append(f"{problem.name}: tuning is refused, so they have only the messages of training: {refusal}")
    return attacks.hear(problem, colluders=colluders), "trained"


def _named(problem: Scene) -> dict[str, str]:
    rows, sigma = str(problem.pair()[0].n_rows), f"{problem.sigma:g}"
    return {"data": problem.name, "rows": rows, "D": str(problem.n_features), "sigma": sigma}


def _to(tolerance: float) -> str:
    return f"to {tolerance:.0e}".replace("e-0", "e-")


def _answers(problem: Scene) -> Iterator[dict[str, str]]:
    for answer in series.answers(problem):
        yield {
            "data": problem.name,
            "series": answer.name,
            "admitted": f"{answer.admitted} of {answer.asked}",
            "the first refusal": answer.reason.partition(": the sums")[0],
        }


def _from_features(
    problem: Scene, effort: float, own_rows: bool, report: attacks.Report, pictures: list[tuple[Scene, Array, Array]]
) -> Iterator[dict[str, str]]:
    recovery, truth = attacks.attack_features(problem, seconds=effort, own_rows=own_rows, report=report)
    shares = {_to(tolerance): f"{recovery.share(truth, tolerance):.1%}" for tolerance in attacks.TOLERANCES}
    pictures.append((problem, recovery.rows, truth))
    yield _named(problem) | shares | {"seconds": f"{recovery.seconds:.1f}", "starts": str(recovery.starts)}


def _rows_from_sums(
    problem: Scene, view: View, heard: str, colluders: int, effort: float, seed: int, report: attacks.Report
) -> Iterator[dict[str, str]]:
    victim, _ = problem.pair()
    known = [problem.site(name) for name in victim.neighbors[:colluders]]
    X, y = np.vstack([site.X for site in known]), np.concatenate([site.y for site in known])
    spare = problem.spare[victim.name][0]
    found = attacks.rows_from_sums(view, victim, X, y, spare, seconds=effort, seed=seed, report=report)
    yield {
        **_named(problem),
        "run": heard,
        "neighbours": str(colluders),
        "sums": f"{view.n_sums:,}",
        **{_to(each): f"{found.shares[each]:.1%}, {found.chance[each]:.1%}" for each in attacks.TOLERANCES},
        "misfit": f"{found.misfit:.0e}",
        "CPU seconds": f"{found.seconds:.0f}",
        "starts": f"{found.starts:,}",
    }


def _released(problem: Scene, colluders: int) -> Iterator[dict[str, str]]:
    def row(attack: str, count: int, pairs: str, telling: str, rows: str) -> dict[str, str]:
        shown = {"neighbours": str(count), "pairs": pairs, "telling": telling, "rows to 1e-6": rows}
        return {**_named(problem), "attack": attack, **shown}

    for count in sorted({1, colluders}):
        for haul in release.life(problem, count):
            yield row(haul.scenario, count, str(haul.pairs), str(haul.telling), str(haul.rows))
    runs = 12
    rows = f"{release.retrained(problem, n_runs=runs)} of {runs}"
    yield row("again after each new row (refused)", 1, "", "", rows)
    for n_rows, is_refused in ((problem.n_features // 2, True), (3 * problem.n_features, False)):
        n_found = release.from_leaf(problem, n_rows, problem.n_features)[1]
        yield row(f"a leaf of {n_rows} rows" + " (refused)" * is_refused, 1, "", "", f"{n_found} of {n_rows}")


def _members(
    problem: Scene, colluders: int, n_targets: int, shortlist_rows: float, seed: int
) -> Iterator[dict[str, str]]:
    settings = msgspec.structs.replace(tests.SETTINGS, shortlist_rows=shortlist_rows)
    names = [site.name for site in problem.sites]
    targets = [names[i * len(names) // n_targets] for i in range(min(n_targets, len(names)))]
    asked = str(tests.asked_about(problem, problem.site(targets[0]).neighbors[0], settings))
    one_site = partial(tests.of_one_site, problem, settings=settings, seed=seed)
    runs: list[tuple[str, str, Callable[[str], Advantage]]] = [
        *(("sums of one site (no masks)", str(n), partial(one_site, colluders=n)) for n in sorted({1, colluders})),
        ("sums of a neighbourhood (masks)", "1", partial(tests.under_masks, problem, settings=settings, seed=seed)),
        ("the same, by linear algebra", "1", partial(tests.by_algebra, problem, settings=settings)),
        ("sums over all sites (root), by linear algebra", "1", partial(tests.by_algebra, problem, of_root=True)),
        ("the final model", "all", partial(tests.of_model, problem, seed=seed)),
    ]
    for heard, count, test in runs:
        found = [test(target) for target in targets]
        yield {
            "data": problem.name,
            "D": str(problem.n_features),
            "asked about": asked,
            "what is heard": heard,
            "neighbours": count,
            "targets": str(len(found)),
            "AUC": _ranged([each.area for each in found], "{:.0%}"),
            "advantage": _ranged([each.advantage for each in found], "{:.2f}"),
            "caught at 1 %": _ranged([each.caught for each in found], "{:.1%}"),
            "at 0.1 %": _ranged([each.caught_surely for each in found], "{:.1%}"),
        }


def _ranged(values: list[float], form: str) -> str:
    mean, least, largest = (form.format(value) for value in (np.mean(values), min(values), max(values)))
    return f"{mean} ({least} to {largest})" if len(values) > 1 else mean


def _inferred(problem: Scene, view: View, heard: str, colluders: int) -> Iterator[dict[str, str]]:
    """Yield what more and more neighbours learn after training, and last what they learn with the tuning."""
    lies = attacks.hear(problem, forger=attacks.fingerprinting(problem), colluders=colluders, granted=False)
    liars = attacks.infer(problem, lies, guesses=0)
    counts = sorted({1, min(2, colluders), colluders})
    views = [(partial(attacks.hear, problem, colluders=count), "trained", count) for count in counts]
    if heard == "tuned":
        views.append((lambda: view, heard, colluders))  # type: ignore[arg-type]
    for of, what, count in views:
        curious = attacks.infer(problem, of(), guesses=20)
        yield {
            **_named(problem),
            "run": what,
            "neighbours": str(count),
            "AUC": f"{curious.membership.area:.1%}",
            "advantage": f"{curious.membership.advantage:.2f}",
            "caught at 1 %": f"{curious.membership.caught:.1%}",
            "column": f"{curious.column_error:.3f}",
            "imputed": f"{curious.imputed_error:.3f}",
            "liars": f"{liars.membership.area:.1%}" if count == colluders else "",
        }


def _draw(pictures: list[tuple[Scene, Array, Array]], out: Path) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(pictures), figsize=(3.6 * len(pictures), 3.6), squeeze=False)
    for panel, (problem, rows, truth) in zip(panels[0], pictures, strict=True):
        right = np.abs(rows - truth).max(axis=1) < attacks.TOLERANCES[0]
        for chosen, colour, label in ((~right, "C3", "missed"), (right, "C0", "recovered")):
            picked = np.flatnonzero(chosen)[:_MOST_DRAWN]
            places, name = (truth[picked].ravel(), rows[picked].ravel()), f"{label}: {chosen.sum()} rows"
            panel.plot(*places, ".", markersize=2, color=colour, label=name)
        panel.set_title(f"{problem.name}, D = {problem.n_features}, sigma = {problem.sigma:g}")
        panel.set(xlabel="true value (all columns)", ylabel="computed value")
        panel.legend(markerscale=4, fontsize=8)
    figure.suptitle("values a neighbour computes")
    figure.tight_layout()
    out.mkdir(parents=True, exist_ok=True)
    path = out / "attack.png"
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path
