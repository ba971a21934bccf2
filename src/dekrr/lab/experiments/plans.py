"""The experiments, and the fits that each consists of."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ...errors import SettingsError
from ..data_sets.catalogue import PAPER, PaperSettings
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
    fits: Callable[[PaperSettings], list[dict[str, Any]]]
    data: tuple[str, ...] = AT_HAND
    repeats: int = 10


_TABLE = [{"method": method} for method in TABLE_METHODS]
_ALLOCATIONS = [
    *({"method": method, "allocation": "equal"} for method in ("DKLA", "DKLA-DDRF")),
    *({"method": method, "allocation": how} for method in ("DeKRR-DDRF", "ours") for how in ("equal", "sqrt")),
]
_CURVES = [
    *({"method": method, "solver": solver} for method in ("DeKRR-DDRF", "ours") for solver in ("jacobi", "chebyshev")),
    *({"method": method} for method in ("DKLA", "DKLA-DDRF", "COKE", "AllReduce")),
]


def _fits_of(partition: str, sizes: Iterable[int], kinds: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"partition": partition, "n_features": size, **kind} for size in sizes for kind in kinds]


def _scaling(paper: PaperSettings) -> list[dict[str, Any]]:
    centre = {"n_sites": N_SITES, "n_rows": 10000, "n_features": 60}
    ranges = {"n_sites": (5, 10, 20, 40), "n_rows": (2500, 5000, 10000, 20000), "n_features": (30, 60, 120, 240)}
    sizes = [{**centre, name: value} for name, values in ranges.items() for value in values]
    different = [size for i, size in enumerate(sizes) if size not in sizes[:i]]
    methods = ("DKLA", "DeKRR-DDRF", "ours")
    return [{"partition": "response", "method": method, **size} for size in different for method in methods]


EXPERIMENTS: Mapping[str, Experiment] = {
    "table": Experiment(
        "The main table",
        "The paper's Table 2, own and union RSE.",
        lambda paper: _fits_of("response", [paper.table_features], _TABLE),
    ),
    "response": Experiment(
        "RSE against features, sites split by |y|",
        "The paper's first figure of six panels.",
        lambda paper: _fits_of("response", paper.n_features, _TABLE),
    ),
    "norm": Experiment(
        "RSE against features, sites split by |x|",
        "The paper's second figure of six panels.",
        lambda paper: _fits_of("norm", paper.n_features, _TABLE),
    ),
    "imbalanced": Experiment(
        "Sites of different sizes",
        "The paper's imbalanced setting: who gets how many features.",
        lambda paper: _fits_of("imbalanced", paper.n_features, _ALLOCATIONS),
        ("twitter13813",),
    ),
    "per-site": Experiment(
        "Each site's error",
        "The paper's figure of each site: RSE and, what it really shows, MSE.",
        lambda paper: _fits_of("imbalanced", [100], _ALLOCATIONS),
        ("twitter13813",),
    ),
    "convergence": Experiment(
        "Convergence",
        "Objective and RSE against rounds and bytes.",
        lambda paper: _fits_of("response", [paper.table_features], _CURVES),
        ("houses",),
        1,
    ),
    "scaling": Experiment("Cost", "Time, rounds and bytes against J, N and D.", _scaling, ("houses",), 1),
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
    fits = [fit for fit in experiment.fits(PAPER[data]) if not options.methods or fit["method"] in options.methods]
    sizes = sorted({fit["n_features"] for fit in fits})
    if not options.quick or len(sizes) <= 2:
        return fits
    return [fit for fit in fits if fit["n_features"] in sizes[::2]]


def _task(
    experiment: str,
    data: str,
    fit: dict[str, Any],
    options: Options,
    repetition: int,
    directory: str | os.PathLike[str] | None,
) -> FitTask:
    partition = fit["partition"]
    division = authors_division(experiment, partition)
    authors = options.splits == "authors" and has_authors_split(data, directory, division)
    settings = {
        "n_sites": N_SITES,
        "n_neighbors": N_NEIGHBORS,
        "mix": {"response": PAPER[data].mix, "norm": 0.2}.get(partition, 0.0),
        "n_rows": 0,
        "solver": "",
        "allocation": "equal",
        "max_rounds": ROUNDS,
        **fit,
    }
    if authors and partition == "imbalanced":  # their sites: six, two neighbours each; each one's error is at D = 80
        settings |= {"n_sites": 6, "n_neighbors": 2} | ({"n_features": 80} if division == "per-site" else {})
    if options.quick:
        settings["n_rows"] = min(settings["n_rows"] or _QUICK_ROWS, _QUICK_ROWS)
        settings |= {"n_features": max(10, settings["n_features"] // 2), "max_rounds": _QUICK_ROUNDS}
    return FitTask(
        experiment=experiment,
        data=data,
        protocol=options.protocol,
        splits="authors" if authors else "own",
        repetition=repetition,
        seed=options.seed,
        **settings,
    )
