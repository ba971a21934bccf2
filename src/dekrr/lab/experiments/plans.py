"""The experiments, and the fits that each consists of."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ...errors import SettingsError
from ..data_sets.catalogue import PAPER
from ..data_sets.splits import has_authors_split
from .fits import METHODS, PROTOCOLS, SPLITS, TABLE_METHODS, FitTask, authors_division

AT_HAND = ("houses", "airquality", "energy", "twitter13813", "tomshardware")
N_SITES, N_NEIGHBORS, ROUNDS = 10, 4, 1500
_QUICK_ROWS, _QUICK_ROUNDS, _QUICK_REPEATS = 2000, 300, 2


class Options(msgspec.Struct, frozen=True, kw_only=True):
    data: tuple[str, ...] = ()  # empty, as the next ones: the default of the experiment
    methods: tuple[str, ...] = ()
    repeats: int = 0
    protocol: str = "honest"
    splits: str = "own"  # "authors" takes the authors' files where the data directory has them
    seed: int = 0
    quick: bool = False  # two repetitions on 2000 rows, half of the features, and at most 300 rounds

    def __post_init__(self) -> None:
        for value, known in ((self.protocol, PROTOCOLS), (self.splits, SPLITS)):
            if value not in known:
                raise SettingsError(f"{value!r} is unknown; choose one of {', '.join(known)}")
        strangers = set(self.methods) - set(METHODS)
        if strangers:
            raise SettingsError(f"unknown method {sorted(strangers)[0]!r}; choose from {', '.join(METHODS)}")
        if self.splits == "authors" and (self.protocol != "paper" or self.quick):
            raise SettingsError('the authors\' splits are scaled their way: use them with protocol "paper", not quick')
        if self.repeats < 0:
            raise SettingsError(f"repeats must be positive, got {self.repeats}")


@dataclass(frozen=True)
class Experiment:
    """One experiment: a command of `dekrr reproduce`; `fits` gives the settings in which fits on a data set differ."""

    title: str
    about: str
    data: tuple[str, ...]
    repeats: int
    fits: Callable[[str], Iterator[dict[str, Any]]]


def _table(data: str) -> Iterator[dict[str, Any]]:
    for method in TABLE_METHODS:
        yield {"partition": "response", "n_features": PAPER[data].table_features, "method": method}


def _against_features(partition: str) -> Callable[[str], Iterator[dict[str, Any]]]:
    def fits(data: str) -> Iterator[dict[str, Any]]:
        for n_features in PAPER[data].n_features:
            for method in TABLE_METHODS:
                yield {"partition": partition, "n_features": n_features, "method": method}

    return fits


def _imbalanced(data: str) -> Iterator[dict[str, Any]]:
    for n_features in PAPER[data].n_features:
        yield from _allocations(n_features)


def _per_site(data: str) -> Iterator[dict[str, Any]]:
    yield from _allocations(100)


def _allocations(n_features: int) -> Iterator[dict[str, Any]]:
    for method, allocation in (
        ("DKLA", "equal"),
        ("DKLA-DDRF", "equal"),
        ("DeKRR-DDRF", "equal"),
        ("DeKRR-DDRF", "sqrt"),
        ("ours", "equal"),
        ("ours", "sqrt"),
    ):
        yield {"partition": "imbalanced", "n_features": n_features, "method": method, "allocation": allocation}


def _convergence(data: str) -> Iterator[dict[str, Any]]:
    for method, solver in (
        ("DeKRR-DDRF", "jacobi"),
        ("DeKRR-DDRF", "chebyshev"),
        ("ours", "jacobi"),
        ("ours", "chebyshev"),
        ("DKLA", ""),
        ("DKLA-DDRF", ""),
        ("COKE", ""),
        ("AllReduce", ""),
    ):
        n_features = PAPER[data].table_features
        yield {"partition": "response", "n_features": n_features, "method": method, "solver": solver}


def _scaling(data: str) -> Iterator[dict[str, Any]]:
    centre = {"n_sites": N_SITES, "n_rows": 10000, "n_features": 60}
    ranges = {"n_sites": (5, 10, 20, 40), "n_rows": (2500, 5000, 10000, 20000), "n_features": (30, 60, 120, 240)}
    seen: list[dict[str, Any]] = []
    for name, values in ranges.items():
        for value in values:
            settings = {**centre, name: value}
            if settings in seen:
                continue
            seen.append(settings)
            for method in ("DKLA", "DeKRR-DDRF", "ours"):
                yield {"partition": "response", "method": method, **settings}


EXPERIMENTS: Mapping[str, Experiment] = {
    "table": Experiment("The main table", "The paper's Table 2, own and union RSE.", AT_HAND, 10, _table),
    "response": Experiment(
        "RSE against features, sites split by |y|",
        "The paper's first figure of six panels.",
        AT_HAND,
        10,
        _against_features("response"),
    ),
    "norm": Experiment(
        "RSE against features, sites split by |x|",
        "The paper's second figure of six panels.",
        AT_HAND,
        10,
        _against_features("norm"),
    ),
    "imbalanced": Experiment(
        "Sites of different sizes",
        "The paper's imbalanced setting: who gets how many features.",
        ("twitter13813",),
        10,
        _imbalanced,
    ),
    "per-site": Experiment(
        "Each site's error",
        "The paper's figure of each site: RSE and, what it really shows, MSE.",
        ("twitter13813",),
        10,
        _per_site,
    ),
    "convergence": Experiment(
        "Convergence", "Objective and RSE against rounds and bytes.", ("houses",), 1, _convergence
    ),
    "scaling": Experiment("Cost", "Time, rounds and bytes against J, N and D.", ("houses",), 1, _scaling),
}


def run_name(experiment: str, protocol: str, *, quick: bool, seed: int) -> str:
    """Return the name of a run; rows of the same run share tables and a section of the report.

    Examples
    --------
    >>> run_name("table", "honest", quick=True, seed=0)
    'table-honest-quick-0'
    """
    return f"{experiment}-{protocol}{'-quick' if quick else ''}-{seed}"


def run_of(row: Mapping[str, Any]) -> str:
    return run_name(row["experiment"], row["protocol"], quick=is_quick(row), seed=row["seed"])


def is_quick(row: Mapping[str, Any]) -> bool:
    return bool(row["max_rounds"] < ROUNDS)


def plan(name: str, options: Options, directory: str | os.PathLike[str] | None = None) -> list[FitTask]:
    """Return the tasks of an experiment, in the order of their execution.

    All fits of one repetition come before the next repetition. A run that is stopped early has fewer repetitions, but
    all data sets.
    """
    experiment = EXPERIMENTS[name]
    repeats = options.repeats or (min(_QUICK_REPEATS, experiment.repeats) if options.quick else experiment.repeats)
    chosen = options.data or experiment.data
    strangers = [data for data in chosen if data not in PAPER]
    if strangers:
        raise SettingsError(f"the paper has no settings for {strangers[0]!r}; choose from {', '.join(PAPER)}")
    return [
        _task(name, data, fit, options, repetition, directory)
        for repetition in range(repeats)
        for data in chosen
        for fit in _fits(experiment, data, options)
    ]


def _fits(experiment: Experiment, data: str, options: Options) -> list[dict[str, Any]]:
    fits = [fit for fit in experiment.fits(data) if not options.methods or fit["method"] in options.methods]
    return _fewer(fits) if options.quick else fits


def _task(
    experiment: str,
    data: str,
    fit: dict[str, Any],
    options: Options,
    repetition: int,
    directory: str | os.PathLike[str] | None,
) -> FitTask:
    division = authors_division(experiment, fit["partition"])
    authors = options.splits == "authors" and has_authors_split(data, directory, division)
    if authors and fit["partition"] == "imbalanced":
        fit = {**fit, **_AUTHORS_IMBALANCED, **({"n_features": 80} if division == "per-site" else {})}
    quick = {
        "n_rows": min(fit.get("n_rows") or _QUICK_ROWS, _QUICK_ROWS),
        "n_features": max(10, fit["n_features"] // 2),
    }
    mix = {"response": PAPER[data].mix, "norm": 0.2}.get(fit["partition"], 0.0)
    settings = {
        "n_sites": N_SITES,
        "n_neighbors": N_NEIGHBORS,
        "mix": mix,
        "n_rows": 0,
        "solver": "",
        "allocation": "equal",
        "max_rounds": _QUICK_ROUNDS if options.quick else ROUNDS,
        **fit,
        **(quick if options.quick else {}),
    }
    return FitTask(
        experiment=experiment,
        data=data,
        protocol=options.protocol,
        splits="authors" if authors else "own",
        repetition=repetition,
        seed=options.seed,
        **settings,
    )


# The authors' files with sites of unequal sizes have six, two neighbours each; each site's error is theirs at D = 80.
_AUTHORS_IMBALANCED = {"n_sites": 6, "n_neighbors": 2}


def _fewer(fits: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep every second number of features, if there are more than two."""
    sizes = sorted({fit["n_features"] for fit in fits})
    kept = sizes[::2] if len(sizes) > 2 else sizes
    return [fit for fit in fits if fit["n_features"] in kept]
