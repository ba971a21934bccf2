"""Series of studies by which a proposer would read a site's rows, and what a site with the usual policy answers.

Each study goes through the parser, the policy and the ledger, as at a standing site; approval is taken as given. Two
runs whose rows differ by few give those rows away, and so does one whose guards are weak. So it is enough to see
whether the studies of a series are all admitted.
"""

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ...errors import DataError
from ...mesh.config import StudyFile
from ...mesh.files import parse_study
from ...mesh.policy import Policy, PolicyError, refusals, refusals_of_run
from ...mesh.site_rows import SiteRows
from .scenes import Scene

_ALONE: dict[str, Any] = {"shared": "none", "local": "none", "column_scales": "none"}
_NUMBERS: dict[str, Any] = {"n_features": 10, "sigma": 1.0, "alpha": 1e-4, "consensus": 1.0}
_SITES = ("a", "b", "c")


class SiteAnswer(NamedTuple):
    """What a site answers to a series: how many studies it takes part in, and why it refuses the first other one."""

    name: str
    admitted: int
    asked: int
    reason: str


class Asked(NamedTuple):
    """A study: its settings, the rows that the site then has, and which columns have which part."""

    settings: dict[str, Any]
    rows: slice = slice(None)
    columns: tuple[str, ...] = ()
    target: str = "y"
    weight: str = ""


def series_of(problem: Scene) -> dict[str, Sequence[Asked]]:
    """Return the series, by what their studies differ in; the last study of each would give rows away."""
    victim = problem.sites[0]
    before, after, more = slice(-20), slice(-18), slice(-2)
    top = float(np.max(victim.X[:, 0]))
    narrow = [[top - 1e-9, *[0.0] * victim.X.shape[1]], [top, *[1.0] * victim.X.shape[1]]]
    tuned = {"sigma": [0.5, 1.0], "folds": 5}
    return {
        "bounds": [Asked({"bounds": narrow})],
        "thresholds": [Asked({"min_rows": 1, "rows_per_feature": 0.0})],
        "short waves": [Asked({"column_scales": [1e6, *[1.0] * (victim.X.shape[1] - 1)]})],
        "seeds": [Asked({"seed": seed}) for seed in range(5)],
        "new rows": [Asked({}, before), Asked({}, after)],
        "new rows, fewer features": [Asked({}, before), Asked({"n_features": 1}, after)],
        "new rows, a column more": [Asked({}, before), Asked({}, after, columns=("one",))],
        "new rows in folds": [Asked(tuned, before), Asked(tuned, more)],
        "weights": [Asked({}), Asked({}, weight="flag")],
        "a rare target": [Asked({}), Asked({}, target="flag")],
    }


def answers(problem: Scene) -> Iterator[SiteAnswer]:
    victim = problem.sites[0]
    names = [f"x{i}" for i in range(victim.X.shape[1])]
    table = pd.DataFrame(victim.X, columns=names).assign(y=victim.y, one=1.0, flag=1.0)
    table.loc[:3, "flag"] = 2.0
    for name, studies in series_of(problem).items():
        with tempfile.TemporaryDirectory() as folder:
            said = [_answer(Path(folder), number, one, table, names) for number, one in enumerate(studies)]
        yield SiteAnswer(name, said.count(""), len(said), next((why for why in said if why), ""))


def _answer(folder: Path, number: int, asked: Asked, table: pd.DataFrame, names: list[str]) -> str:
    """Return why a site refuses a study; empty if it takes part."""
    data = {"target": asked.target, "columns": [*names, *asked.columns], "weight": asked.weight}
    settings = {**_ALONE, **_NUMBERS, **asked.settings}
    head = {"name": f"s{number}", "sites": list(_SITES), "source": "rows"}
    study = parse_study(f"{_toml(head)}expires = 2099-01-01\n[data]\n{_toml(data)}[settings]\n{_toml(settings)}")
    broken = refusals(Policy(), study, "a", ["rows"])
    if broken:
        return broken[0]
    table.iloc[asked.rows].to_parquet(folder / "rows.parquet")
    config = study.site_file(f"run-{number}", "a", {"b": "", "c": ""}, "rows.parquet")
    try:
        own = SiteRows(config, folder, folder, b"secret", rules=partial(_rules, study))
        own.judge()
        own.enter()
    except DataError as error:
        return str(error)
    return ""


def _rules(study: StudyFile, n_rows: int, times: list[float]) -> None:
    if broken := refusals_of_run(Policy(), study, n_rows, times, time.time()):
        raise PolicyError("a", broken)


def _toml(values: dict[str, Any]) -> str:
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())
