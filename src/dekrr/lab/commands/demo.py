"""`dekrr demo`: all methods of the library on one problem, in one table and one picture."""

import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from ... import estimators, plot
from ...metrics import rse
from ...scaling import Scaling
from ...settings import ALONE
from ...synthetic import make_sites
from ...types import Array
from ..data_sets.loading import load
from ..data_sets.partitions import by_response, halves
from ..yardsticks import Task, best
from .progress import progress_of


@dataclass(frozen=True)
class DemoData:
    title: str
    train: tuple[Array, Array, np.ndarray]
    test: tuple[Array, Array, np.ndarray]
    settings: dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One line of the table; the yardsticks have neither a regressor nor predictions for other sites' rows."""

    method: str
    own: float
    seconds: float
    regressor: Any = None
    union: float = np.nan


def demo(
    data: Annotated[str | None, typer.Option(help="A data set in the data directory, such as houses.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(envvar="DEKRR_DATA", help="Where the data sets are, as Parquet files.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder for the picture.")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the split and of the features.")] = 0,
) -> None:
    """Compare every method on ten sites, and draw the network.

    Without --data it makes up ten stations along a coast, each of which sees its own stretch. The ten
    sites form a ring with four neighbours each.
    """
    import matplotlib.pyplot  # noqa: F401 - a missing package is reported before the computation

    problem = _built_in(seed) if data is None else _from_file(data, data_dir, seed)
    console = Console()
    console.print(problem.title)
    rows = [*_yardsticks(problem), *_fit_all(problem, seed)]
    console.print(_table(rows))
    console.print(_meaning(*rows[:3]))
    console.print(
        "RSE: squared error over variance, on test rows. own: each row by its site's\nmodel; union: every site's "
        "model on all rows, mean over sites. kB: sent by a\nsite. alone: the best of mean, ridge and trees at each "
        "site; pooled: the better\nof ridge and trees on all rows, which know the site."
    )
    console.print(f"picture: {_draw(problem, rows, out)}")


def _built_in(seed: int) -> DemoData:
    train, test = (make_sites(random_state=seed + part) for part in (0, 1))
    settings = {"n_features": 30, "sigma": 0.3, "alpha": 1e-4}
    return DemoData("10 stations along a coast, 60 rows each on average, 3 columns", train, test, settings)


def _from_file(name: str, directory: Path | None, seed: int) -> DemoData:
    X, y = load(name, directory)
    sites = by_response(Scaling.of(X, y).responses(y), random_state=seed)
    train = halves(sites, random_state=seed)
    title = f"{name}: {len(y)} rows, {X.shape[1]} columns, sorted by |y| over 10 sites; half to train, half to test"
    settings = {"n_features": 60, "sigma": 0.25, "alpha": 1e-6}
    return DemoData(title, (X[train], y[train], sites[train]), (X[~train], y[~train], sites[~train]), settings)


def _methods(settings: dict[str, Any], seed: int) -> Iterator[tuple[str, Any]]:
    shared = {**settings, "random_state": seed}
    exact = {key: value for key, value in shared.items() if key != "n_features"}
    yield "together: DeKRR", estimators.DeKRRRegressor(n_features=shared["n_features"], random_state=seed)
    yield "DeKRR alone, not tuned", estimators.DeKRRRegressor(**shared, **ALONE, consensus=1.0)
    paper: dict[str, Any] = {"features": "energy", "prediction": "own", "solver": "jacobi", "tol": 0, "max_rounds": 200}
    yield "DeKRR-DDRF (the paper)", estimators.DeKRRRegressor(**shared, **ALONE, consensus=1.0, **paper)
    yield "AllReduce, energy", estimators.AllReduceRegressor(**shared, features="energy")
    yield "AllReduce, plain", estimators.AllReduceRegressor(**shared)
    yield "DKLA-DDRF", estimators.DKLARegressor(**shared, features="energy", tol=1e-4)
    yield "DKLA", estimators.DKLARegressor(**shared, tol=1e-4)
    yield "COKE", estimators.COKERegressor(**shared, tol=1e-4)
    yield "Local, greedy", estimators.LocalRegressor(**shared)
    yield "centralised features", estimators.CentralizedRFF(**shared)
    yield "centralised exact KRR", estimators.CentralizedKRR(**exact)


def _yardsticks(problem: DemoData) -> Iterator[Row]:
    """Yield what the sites would have alone, and what a centre with all rows would have."""
    (X, y, sites), (X_new, y_new, new_sites) = problem.train, problem.test
    labels, numbers = np.unique(sites, return_inverse=True)
    task = Task(X, y, np.random.default_rng(0).integers(5, size=len(y)), 0, numbers, len(labels))
    new = np.searchsorted(labels, new_sites)
    start = time.perf_counter()
    alone = np.empty(len(y_new))
    for number in range(len(labels)):
        predict = best(replace(task.take(numbers == number), n_sites=1), mean=True)[1]
        alone[new == number] = predict(X_new[new == number], new[new == number])
    yield Row("alone", rse(y_new, alone), time.perf_counter() - start)
    start = time.perf_counter()
    pooled = best(task, mean=False)[1](X_new, new)
    yield Row("pooled", rse(y_new, pooled), time.perf_counter() - start)


def _meaning(alone: Row, pooled: Row, together: Row) -> str:
    """Return in a line what the first figures say."""
    gain = 1 - together.own / alone.own
    joins = f"Together these sites have {abs(gain):.0%} {'less' if gain > 0 else 'more'} own error than each alone"
    more = pooled.own / together.own - 1
    return f"{joins}. Models of pooled rows would have {abs(more):.0%} {'more' if more > 0 else 'less'} than together."


def _fit_all(problem: DemoData, seed: int) -> list[Row]:
    methods = list(_methods(problem.settings, seed))
    X, y, sites = problem.test
    rows = []
    with progress_of("demo", len(methods)) as show_done, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for method, regressor in methods:
            start = time.perf_counter()
            regressor.fit(*problem.train[:2], sites=problem.train[2])
            seconds = time.perf_counter() - start
            own, union = (regressor.rse(X, y, sites=sites, metric=metric) for metric in ("own", "union"))
            rows.append(Row(method, own, seconds, regressor, union))
            show_done(len(rows), method)
    return rows


def _table(rows: list[Row]) -> Table:
    table = Table()
    for heading in ("method", "own RSE", "union RSE", "rounds", "kB sent", "seconds"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for row in rows:
        traffic = getattr(row.regressor, "traffic_", None)
        rounds = getattr(row.regressor, "n_rounds_", 0)
        kilobytes = traffic.total_bytes / len(row.regressor.sites_) / 1e3 if traffic else 0.0
        table.add_row(
            row.method,
            f"{row.own:.3f}",
            "-" if np.isnan(row.union) else f"{row.union:.3f}",
            str(rounds) if rounds else "-",
            f"{kilobytes:.0f}" if kilobytes else "-",
            f"{row.seconds:.2f}",
        )
    return table


def _draw(problem: DemoData, rows: list[Row], out: Path) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = ("together", "DeKRR-DDRF", "Local")
    ours, paper, local = (next(row for row in rows if row.method.startswith(name)) for name in shown)
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(16, 5), layout="constrained")
    plot.sites(ours.regressor, *problem.test, ax=left).set(title="Who talks to whom")
    _draw_convergence(middle, problem, ours.regressor)
    width = 0.27
    for i, row in enumerate((ours, paper, local)):
        errors = _per_site(row.regressor, problem)
        right.bar(np.arange(len(errors)) + (i - 1) * width, list(errors.values()), width, label=row.method)
    right.set_xticks(range(len(errors)), [str(site).removeprefix("station ") for site in errors])
    right.set(xlabel="site", ylabel="RSE on the site's test rows", title="Each site's own model")
    right.legend(frameon=False)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "demo.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _per_site(regressor: Any, problem: DemoData) -> dict[Any, float]:
    X, y, sites = problem.test
    return {site: rse(y[sites == site], regressor.models_[site].predict(X[sites == site])) for site in regressor.sites_}


def _draw_convergence(axes: Any, problem: DemoData, ours: Any) -> None:
    X, y, sites = problem.train
    chosen = {"sigma": ours.sigma_, "alpha": ours.alpha_, "consensus": ours.consensus_}
    settings = {**ours.get_params(), **chosen, "tol": 0.0}
    best = estimators.DeKRRRegressor(**{**settings, "max_rounds": 400}).fit(X, y, sites=sites).objective_
    for solver, label in (("jacobi", "jacobi (the paper's)"), ("chebyshev", "chebyshev")):
        path = estimators.DeKRRRegressor(**{**settings, "max_rounds": 60, "solver": solver}).fit(X, y, sites=sites)
        objective = path.history_["objective"]
        gap = np.maximum(objective - best, 1e-16) / (objective[0] - best)
        axes.semilogy(path.history_["round"], gap, label=label)
    axes.set(xlabel="round", ylabel="relative objective gap", title="Convergence", ylim=(1e-10, 1.5))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
