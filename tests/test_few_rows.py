"""What few rows have in common is in nothing that leaves their site: whole runs of studies, every message kept."""

import json

import numpy as np
import pandas as pd
import pytest

from dekrr.errors import DataError
from dekrr.mesh.files import parse_study
from dekrr.mesh.policy import Policy, refusals
from dekrr.mesh.procedure import procedure_of
from dekrr.mesh.site_rows import SiteRows
from dekrr.networks.local import LocalNetwork
from dekrr.privacy.admission import rare_values
from dekrr.privacy.masks import Identity, Unsigned
from dekrr.protocols.site import Site

SITES = ("a", "b", "c")
GRAPH = {name: tuple(other for other in SITES if other != name) for name in SITES}


def study_of(settings=None, **data):
    given = {"target": "y", "columns": ["u", "v"], **data}
    settings = {"n_features": 10, "shared": 20, "local": "none", "column_scales": "none", "sigma": 1.0} | (
        settings or {}
    )
    head = {"name": "s", "sites": SITES, "source": "rows"}
    tables = ("", head), ("[data]\n", given), ("[settings]\n", settings)
    lines = [
        head + "".join(f"{name} = {json.dumps(value)}\n" for name, value in table.items()) for head, table in tables
    ]
    lines[0] += "expires = 2099-01-01\n"
    return parse_study("".join(lines))


def site_of(folder, name, table, study, run="run"):
    """A site's part in a run of a study, which the usual policy allows and the ledger has noted."""
    assert not refusals(Policy(), study, "a", ["rows"])
    home = folder / name
    (home / "kept").mkdir(parents=True, exist_ok=True)
    table.to_parquet(home / "rows.parquet")
    config = study.site_file(run, name, dict.fromkeys(GRAPH[name], ""), "rows.parquet")
    own = SiteRows(config, home, home / "kept", name.encode() * 32)
    own.judge()
    own.enter()
    return config, own


def run_of(folder, tables, study):
    """Return the messages of a whole run, and each site's rows."""
    heard, rows, procedures = [], {}, {}
    for name, table in tables.items():
        config, own = site_of(folder, name, table, study)
        identity = Identity("run", name.encode() * 32, Unsigned(), GRAPH)
        site = Site(name, GRAPH[name], own.rows, identity=identity, tell=lambda *told: None)

        def procedure(config=config, own=own, site=site):
            ready, columns = yield from own.prepared(site)
            return (yield from procedure_of(config, ready, columns=columns))

        rows[name], procedures[name] = own, procedure()
    LocalNetwork(GRAPH, observers=[heard.append]).run(procedures)
    return heard, rows


def table_of(n_rows, seed):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(rng.uniform(size=(n_rows, 2)), columns=["u", "v"])
    return table.assign(y=np.sin(5 * table["u"]) + table["v"])


@pytest.mark.parametrize(("n_words", "count"), [(15, 3), (30, 3), (30, 9), (30, 10)])
def test_rows_with_a_word_that_few_rows_of_their_site_have_are_in_no_sum(tmp_path, n_words, count):
    """The word has a column of its own, because another site has it often; its products were sums over three rows."""
    words, tables = [f"w{i:02d}" for i in range(n_words)], {}
    for seed, name in enumerate(SITES):
        rng = np.random.default_rng(seed)
        tables[name] = table_of(700, seed).assign(word=rng.choice(words if name == "a" else words[1:], 700))
    tables["b"].loc[7 : 6 + count, "word"] = "w00"
    _, rows = run_of(tmp_path, tables, study_of(columns=["u", "v", "word"], raw=True))
    assert rows["b"]._alone[7 : 7 + count].all() == (count < 10)
    assert rows["b"]._alone.sum() == (count if count < 10 else 0)


def test_rows_without_a_value_that_few_rows_lack_are_in_no_sum_and_nobody_is_told_how_many(tmp_path):
    tables = {name: table_of(303, seed) for seed, name in enumerate(SITES)}
    tables["a"].loc[:60, "v"] = np.nan
    tables["b"].loc[7:9, "v"] = np.nan
    heard, rows = run_of(tmp_path, tables, study_of(raw=True))
    assert np.flatnonzero(rows["b"]._alone).tolist() == [7, 8, 9]
    told = {entry.message.rows.get("b") for entry in heard if type(entry.message).__name__ == "Roll"}
    assert told - {None} == {300}, "the number of all rows would tell how many of them are withheld"


@pytest.mark.parametrize("weight", [2.0, 1e6])
def test_rows_with_a_weight_that_few_rows_have_are_in_no_sum(tmp_path, weight):
    """The sum of weights, which is told, was 303 for 300 rows: three rows had a weight of 2."""
    tables = {name: table_of(300, seed).assign(weight=1.0) for seed, name in enumerate(SITES)}
    tables["b"].loc[7:9, "weight"] = weight
    heard, rows = run_of(tmp_path, tables, study_of(weight="weight"))
    assert np.flatnonzero(rows["b"]._alone).tolist() == [7, 8, 9]
    told = [m.values for _, sender, _, m, _ in heard if sender == "b" and type(m).__name__ == "Total"]
    assert {float(values[0]) for values in told if len(values) == 1} == {297.0}


@pytest.mark.parametrize(("heavy", "is_in"), [(20, False), (150, True)])
def test_rows_that_outweigh_all_others_are_as_many_as_the_shared_part_needs(tmp_path, heavy, is_in):
    """Sums of 63 shared features were sent over rows that were worth 18, and masks did not hide them either."""
    tables = {}
    for seed, name in enumerate(SITES):
        tables[name] = table_of(300, seed).assign(weight=np.random.default_rng(seed).uniform(1, 2, 300))
    tables["b"].loc[: heavy - 1, "weight"] *= 1e6
    study = study_of({"n_features": 2, "shared": 80, "exclude": "none"}, weight="weight")
    if is_in:
        run_of(tmp_path, tables, study)
        return
    with pytest.raises(
        DataError, match=r"has 1. rows, too few for sums of the .. features that all sites share, by its rows' w"
    ):
        run_of(tmp_path, tables, study)


@pytest.mark.parametrize(
    ("n_columns", "count", "is_in"), [(2, 74, False), (2, 75, True), (4, 37, False), (4, 38, True)]
)
def test_the_rows_of_a_value_of_the_target_are_more_numbers_than_there_are_features(
    tmp_path, caplog, n_columns, count, is_in
):
    """Ten rows of each of two sites were found, all of them to 1e-3, from 100 products with a flag of four columns."""
    rng = np.random.default_rng(0)
    names = [f"x{i}" for i in range(n_columns)]
    table = pd.DataFrame(rng.uniform(size=(600, n_columns)), columns=names).assign(flag=np.arange(600) < count)
    study = study_of({"n_features": 100, "shared": "none"}, columns=names, target="flag")
    _, own = site_of(tmp_path, "b", table.astype(float), study)
    assert own._alone[:count].all() == (not is_in)
    assert not own._alone[count:].any()
    told = f"{count} of 600 rows are in no sum: they have a value that few rows have, fewer than 10 of a column"
    assert (told in caplog.text) == (not is_in)


def test_a_rare_value_makes_others_rare():
    one, two = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 0, 0, 0, 1, 1])
    assert rare_values([one, two], np.ones(6, dtype=bool), [2]).sum() == 0
    assert rare_values([one, two], np.ones(6, dtype=bool), [2, 3]).tolist() == [False] * 3 + [True] * 3
    assert rare_values([one, two], np.ones(6, dtype=bool), [3, 2]).sum() == 0


@pytest.mark.parametrize(("count", "parts"), [(0, ("year",)), (1, ("year",)), (9, ("year",)), (10, ("year", "hour"))])
def test_the_hours_of_few_rows_are_told_to_nobody(tmp_path, count, parts):
    tables = {}
    for seed, name in enumerate(SITES):
        table = table_of(300, seed)
        table["when"] = pd.Timestamp("2020-01-06") + pd.to_timedelta(364 * (np.arange(300) % 5), "D")
        tables[name] = table
    tables["b"].loc[7 : 6 + count, "when"] += pd.Timedelta("13h37m")
    heard, _ = run_of(tmp_path, tables, study_of(columns=["u", "v", "when"], raw=True))
    told = [m.columns["when"].parts for _, _, _, m, _ in heard if type(m).__name__ == "RawColumns"]
    assert all((each["hour"] is None) == ("hour" in parts) for each in told[-2:])
