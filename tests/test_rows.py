"""Rows from files, datasets, lazy frames and batches against the same rows in memory."""

import gc
import itertools
import pickle
import tracemalloc
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from typer.testing import CliRunner

from dekrr import (
    AllReduceRegressor,
    CentralizedKRR,
    CentralizedRFF,
    COKERegressor,
    DataError,
    DeKRRRegressor,
    DifferentialPrivacy,
    DKLARegressor,
    FeatureMap,
    LocalRegressor,
    SettingsError,
)
from dekrr.cli.app import app
from dekrr.mesh.config import DataTable, SiteFile
from dekrr.mesh.node import Node
from dekrr.networks.local import LocalNetwork
from dekrr.protocols.dekrr import train
from dekrr.protocols.site import Site
from dekrr.scaling import UNSCALED, Scaling
from dekrr.selection import Greedy
from dekrr.settings import ALONE, DeKRRSettings
from dekrr.statistics import accumulate
from dekrr.tables import rows as rows_module
from dekrr.tables import sources as sources_module
from dekrr.tables.rows import ArrayRows, ChainedRows, Survey
from dekrr.tables.sources import StreamedRows, open_source, split_by_site
from dekrr.types import Block

COLUMNS = ["place", "north", "east"]
RNG = np.random.default_rng(0)
LABELS = ["north", "south", "west"]
SITES = RNG.permutation(np.repeat(LABELS, [70, 90, 60]))
X = RNG.uniform(-3, 5, size=(len(SITES), 3))
Y = 2 + np.sin(X[:, 0]) * X[:, 1] + 0.1 * RNG.normal(size=len(X))
TABLE = pd.DataFrame(X, columns=COLUMNS).assign(power=Y, station=SITES)
FIXED = {**ALONE, "n_features": 12, "sigma": 0.5, "alpha": 1e-4, "consensus": 1.0, "random_state": 0}


class Counted:
    """Batches of pairs or tables that know how often they were asked for, and how many were taken."""

    def __init__(self, batches):
        self.batches = batches
        self.passes = 0

    def __call__(self):
        self.passes += 1
        return iter(self.batches)


@pytest.fixture
def small_sample(monkeypatch):
    """Have sites of these tests be large ones, whose sample leaves rows out."""
    monkeypatch.setattr(rows_module, "SAMPLE_ROWS", 40)


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(sources_module, "BATCH_ROWS", 17)


def part(label):
    return TABLE[label == TABLE["station"]].drop(columns="station")


def pairs(label, size=13):
    frame = part(label)
    rows, responses = frame[COLUMNS].to_numpy(), frame["power"].to_numpy()
    return [(rows[a : a + size], responses[a : a + size]) for a in range(0, len(rows), size)]


def source_of(kind, label, folder):
    frame = part(label)
    path = folder / f"{label}.parquet"
    frame.to_parquet(path, row_group_size=29)
    if kind == "csv":
        frame.to_csv(folder / f"{label}.csv", index=False)
        return str(folder / f"{label}.csv")
    if kind == "packed tsv":
        frame.to_csv(folder / f"{label}.tsv.gz", index=False, sep="\t")
        return folder / f"{label}.tsv.gz"
    if kind in ("folder", "paths"):
        (folder / label).mkdir()
        frame[:31].to_parquet(folder / label / "0.parquet")
        frame[31:].to_parquet(folder / label / "1.parquet")
        return folder / label if kind == "folder" else [folder / label / "0.parquet", str(folder / label / "1.parquet")]
    return {
        "parquet": path,
        "dataset": ds.dataset(path),
        "lazy frame": pl.scan_parquet(path).select(*COLUMNS, "power"),
        "frame": frame,
        "polars frame": pl.DataFrame(frame),
        "arrow table": pa.Table.from_pandas(frame),
        "columns": {name: frame[name].to_numpy() for name in frame},
        "function of pairs": lambda: iter(pairs(label)),
        "list of tables": [frame[:5], pl.DataFrame(frame[5:50]), pa.RecordBatch.from_pandas(frame[50:])],
    }[kind]


KINDS = [
    "csv", "packed tsv", "folder", "paths", "parquet", "dataset", "lazy frame", "frame", "polars frame", "arrow table",
    "columns", "function of pairs", "list of tables",
]  # fmt: skip


def same_coefficients(actual, expected, tolerance=1e-8):
    assert actual.sites_ == expected.sites_
    for label in expected.sites_:
        theirs = expected.models_[label].coefficients
        scale = np.abs(theirs).max()
        np.testing.assert_allclose(actual.models_[label].coefficients, theirs, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("features", ["plain", "greedy"])
def test_every_kind_of_source_gives_the_models_of_the_same_rows_in_memory(
    kind, features, tmp_path, small_sample, small_batches
):
    expected = DeKRRRegressor(features=features, **FIXED).fit(TABLE[COLUMNS], Y, sites=SITES)
    sources = {label: source_of(kind, label, tmp_path) for label in LABELS}
    named = "power" if kind != "function of pairs" else None
    regressor = DeKRRRegressor(features=features, **FIXED).fit(sources, named)
    same_coefficients(regressor, expected)
    assert regressor.n_features_in_ == 3
    if named:
        assert list(regressor.feature_names_in_) == COLUMNS
    prediction = regressor.predict(sources)
    in_order = pd.concat([part(label) for label in LABELS])[COLUMNS]
    labels = np.repeat(LABELS, [len(part(label)) for label in LABELS])
    np.testing.assert_allclose(prediction, expected.predict(in_order, sites=labels), rtol=1e-8)
    model = regressor.models_["south"]
    np.testing.assert_allclose(model.predict(sources["west"]), model.predict(part("west")[COLUMNS].to_numpy()))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_one_table_with_a_site_column(suffix, tmp_path, small_sample, small_batches):
    path = tmp_path / f"all.{suffix}"
    TABLE.to_csv(path, index=False) if suffix == "csv" else TABLE.to_parquet(path)
    expected = DeKRRRegressor(**FIXED).fit(TABLE[COLUMNS], Y, sites=SITES)
    regressor = DeKRRRegressor(**FIXED).fit(path, "power", sites="station")
    same_coefficients(regressor, expected)
    for sites in ("station", SITES):
        prediction = regressor.predict(path, sites=sites)
        np.testing.assert_allclose(prediction, expected.predict(TABLE[COLUMNS], sites=SITES), rtol=1e-8)
    np.testing.assert_allclose(regressor.predict(path), expected.predict(TABLE[COLUMNS]), rtol=1e-8)
    for metric in ("own", "union"):
        error = regressor.rse(path, "power", sites="station", metric=metric)
        assert metric == "union" or regressor.score(path, "power", sites="station") == pytest.approx(1 - error)
        assert error == pytest.approx(expected.rse(TABLE[COLUMNS], Y, sites=SITES, metric=metric), rel=1e-8)


def test_tuning_from_samples_is_the_same_from_disk(tmp_path, small_sample, small_batches):
    grid = {**FIXED, "alpha": (1e-4, 1e-2), "consensus": (0.25, 1.0), "folds": 2, "allocation": "sqrt"}
    expected = DeKRRRegressor(**grid).fit(TABLE[COLUMNS], Y, sites=SITES)
    regressor = DeKRRRegressor(**grid).fit({label: source_of("csv", label, tmp_path) for label in LABELS}, "power")
    same_coefficients(regressor, expected)
    np.testing.assert_allclose(regressor.tuning_["error"], expected.tuning_["error"], rtol=1e-8)


@pytest.mark.parametrize(
    "regressor", [DKLARegressor, COKERegressor, AllReduceRegressor, LocalRegressor, CentralizedRFF]
)
@pytest.mark.parametrize("features", ["plain", "energy"])
def test_the_other_methods(regressor, features, tmp_path, small_sample, small_batches):
    arguments = {"features": features, "n_features": 10, "alpha": 1e-3, "random_state": 0}
    if hasattr(regressor, "max_rounds"):
        arguments |= {"max_rounds": 50, "tol": 0.0}
    expected = regressor(**arguments).fit(TABLE[COLUMNS], Y, sites=SITES)
    streamed = regressor(**arguments).fit({name: source_of("parquet", name, tmp_path) for name in LABELS}, "power")
    same_coefficients(streamed, expected)


@st.composite
def batched_rows(draw):
    sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(sum))
    seed = draw(st.integers(0, 1000))
    rng = np.random.default_rng(seed)
    rows, responses = rng.normal(size=(sum(sizes), 2)), rng.normal(size=sum(sizes))
    ends = np.cumsum(sizes)
    return rows, responses, [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def rough(rows, responses):
    """Return arrays as they might come: of another type, out of order in memory."""
    return np.asfortranarray(rows), responses.tolist()


@settings(max_examples=60, deadline=None)
@given(batched_rows(), st.integers(1, 50), st.integers(1, 30))
def test_sums_over_batches_are_sums_over_rows(batched, block, sample_rows):
    rows, responses, slices = batched
    source = open_source(lambda: iter([rough(rows[s], responses[s]) for s in slices]))
    streamed = StreamedRows(source, 2, None, seed=3)
    maps = [FeatureMap.unweighted(np.random.default_rng(k).normal(size=(2, 3 + k)), np.arange(3.0 + k)) for k in (0, 1)]
    scaling = Scaling(np.full(3, -5.0), np.full(3, 5.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dekrr.statistics.rows_per_block", lambda width: block)
        patch.setattr(rows_module, "SAMPLE_ROWS", sample_rows)
        own, cross = accumulate(streamed.scaled(scaling), maps[0], {"b": maps[1]})
        surveyed = Survey(seed=3)
        surveyed.add(Block(rows, responses))
        for actual, expected in ((streamed.survey, surveyed), (ArrayRows(rows, responses, seed=3), surveyed)):
            np.testing.assert_array_equal(actual.bounds.lower, [*rows.min(axis=0), responses.min()])
            np.testing.assert_array_equal(actual.bounds.upper, [*rows.max(axis=0), responses.max()])
            np.testing.assert_array_equal(actual.sample.X, expected.sample.X)
            np.testing.assert_array_equal(actual.sample.y, expected.sample.y)
    Z, other, t = maps[0](scaling.rows(rows)), maps[1](scaling.rows(rows)), scaling.responses(responses)
    close = {"rtol": 1e-12, "atol": 1e-12 * len(t)}
    np.testing.assert_allclose(own.gram, Z.T @ Z, **close)
    np.testing.assert_allclose(own.moment, Z.T @ t, **close)
    np.testing.assert_allclose(own.response_energy, t @ t, **close)
    np.testing.assert_allclose(cross["b"].gram, (other.T @ other)[np.triu_indices(other.shape[1])], **close)
    np.testing.assert_allclose(cross["b"].cross, other.T @ Z, **close)
    assert streamed.n_rows == len(rows)


def test_the_sample_is_uniform():
    n_rows, size, times = 60, 15, 4000
    counts = np.zeros(n_rows)
    numbers = np.arange(float(n_rows))
    for seed in range(times):
        survey = Survey(seed, size)
        for some in np.array_split(numbers, [7, 20, 21, 44]):
            survey.add(Block(some[:, None], some))
        drawn = survey.sample.y.astype(int)
        assert len(set(drawn)) == size
        assert (np.diff(drawn) > 0).all()
        counts[drawn] += 1
    # A row is in a sample with probability p; times * p * (1 - p) is the variance of its count.
    p = size / n_rows
    statistic = np.sum((counts - times * p) ** 2) / (times * p * (1 - p)) * (n_rows - 1) / n_rows
    assert 1e-4 < stats.chi2.sf(statistic, n_rows - 1) < 1 - 1e-4
    assert survey.expansion == n_rows / size


def test_a_sample_stands_for_all_rows(small_sample):
    rows = ArrayRows(X, Y, seed=1)
    assert rows.sample.n_rows == 40
    feature_map = FeatureMap.unweighted(np.zeros((3, 2)), np.zeros(2))
    own, _ = accumulate(rows.sample, feature_map, {})
    np.testing.assert_allclose(own.gram, len(X))
    assert rows.scaled(rows.bounds).sample.X.min() >= 0


BOUNDS = (np.append(X.min(axis=0), Y.min()) - 1, np.append(X.max(axis=0), Y.max()) + 1)


@pytest.mark.parametrize(
    ("regressor", "passes"),
    [
        (DeKRRRegressor(**FIXED), 2),
        (DeKRRRegressor(features="plain", **FIXED), 2),
        (DeKRRRegressor(bounds=BOUNDS, **FIXED), 2),
        (DeKRRRegressor(**{**FIXED, "alpha": (1e-4, 1e-2), "folds": 2}), 2),
        (DeKRRRegressor(features="plain", bounds=BOUNDS, **FIXED), 1),
        (DeKRRRegressor(features="plain", scale=None, **FIXED), 1),
        (DeKRRRegressor(features="plain", bounds=BOUNDS, privacy=DifferentialPrivacy(5.0), **FIXED), 2),
        (AllReduceRegressor(n_features=10), 2),
        (AllReduceRegressor(n_features=10, scale=None), 1),
        (DKLARegressor(n_features=10, features="energy", max_rounds=20, tol=0), 2),
    ],
)
def test_passes_over_the_rows(regressor, passes, small_sample):
    sources = {label: Counted(pairs(label)) for label in LABELS}
    regressor.fit(sources)
    assert {label: source.passes for label, source in sources.items()} == dict.fromkeys(LABELS, passes)


def test_few_rows_are_read_once():
    sources = {label: Counted(pairs(label)) for label in LABELS}
    regressor = DeKRRRegressor(**FIXED).fit(sources)
    assert [source.passes for source in sources.values()] == [1, 1, 1]
    same_coefficients(regressor, DeKRRRegressor(**FIXED).fit(X, Y, sites=SITES))


def test_one_pass_counts_rows_before_anything_about_them_is_sent():
    few = {**{label: Counted(pairs(label)) for label in LABELS[:2]}, "west": Counted([pairs("west")[0]])}
    regressor = DeKRRRegressor(features="plain", scale=None, min_rows=20, **FIXED)
    with pytest.raises(DataError, match="'west' has 13 rows, fewer than min_rows=20"):
        regressor.fit(few)


def test_what_a_caller_does_to_the_rows_afterwards_changes_nothing():
    in_order, new = np.sort(SITES), np.repeat("new", 30)
    given, more = X.copy(), X[:30].copy()
    fitted = DeKRRRegressor(scale=None, store_rows=True, **FIXED).fit(given, Y, sites=in_order)
    expected = DeKRRRegressor(scale=None, store_rows=True, **FIXED).fit(X, Y, sites=in_order)
    given[:] = 0.0
    for regressor, rows in ((fitted, more), (expected, X[:30])):
        regressor.partial_fit(rows, Y[:30], sites=new, edges=[("new", LABELS[0])])
    more[:] = 0.0
    for regressor in (fitted, expected):
        regressor.partial_fit(X[:30], Y[:30], sites=np.repeat("last", 30), edges=[("last", "new")])
    np.testing.assert_array_equal(fitted.predict(X[:30], new), expected.predict(X[:30], new))


def test_new_rows_from_sources(small_sample, tmp_path):
    half = np.arange(len(X)) % 2 == 0
    tight = {**FIXED, "tol": 1e-12, "max_rounds": 5000, "store_rows": True}
    expected = DeKRRRegressor(**tight).fit(X[half], Y[half], sites=SITES[half])
    expected.partial_fit(X[~half], Y[~half], sites=SITES[~half])
    TABLE[half].to_parquet(tmp_path / "old.parquet")
    regressor = DeKRRRegressor(**tight).fit(tmp_path / "old.parquet", "power", sites="station")
    new = {label: part(label)[~half[label == TABLE["station"]]] for label in LABELS}
    regressor.partial_fit(new, "power")
    same_coefficients(regressor, expected)
    edges = [("east", "north")]
    regressor.partial_fit({"east": TABLE[:50].drop(columns="station")}, "power", edges=edges)
    expected.partial_fit(X[:50], Y[:50], sites=["east"] * 50, edges=edges)
    same_coefficients(regressor, expected)


def test_columns_that_are_wanted_and_in_another_order(tmp_path):
    expected = DeKRRRegressor(**FIXED).fit(TABLE[["east", "place"]], Y, sites=SITES)
    regressor = DeKRRRegressor(**FIXED).fit(TABLE[::1], "power", sites="station", columns=["east", "place"])
    same_coefficients(regressor, expected)
    sources = {label: part(label)[["power", *COLUMNS[::-1]]] if label == "south" else part(label) for label in LABELS}
    same_coefficients(DeKRRRegressor(**FIXED).fit(sources, "power"), DeKRRRegressor(**FIXED).fit(X, Y, sites=SITES))


def test_an_index_that_pandas_wrote_is_no_column(tmp_path):
    frame = TABLE.set_index(RNG.permutation(len(TABLE)))
    frame.to_parquet(tmp_path / "all.parquet")
    assert open_source(tmp_path / "all.parquet").columns == [*COLUMNS, "power", "station"]


def broken(column, row, value):
    frame = TABLE.copy()
    frame[column] = frame[column].astype(object if isinstance(value, str) else float)
    frame.loc[row, column] = value
    return frame


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (broken("north", 100, np.inf), r"all\.\w+: column 'north' row 100 is inf; replace infinite values"),
        (broken("power", 33, np.inf), r"all\.\w+: row 33, column 'power' is inf"),
        (TABLE.drop(columns="power"), r"all\.\w+ has no column 'power'; it has place, north, east, station"),
        (TABLE.assign(power="high"), r"all\.\w+: row 0, column 'power' is 'high', not a number"),
        (TABLE.assign(station=[*SITES[:-1], None]), r"all\.\w+, column 'station', after row \d+: row \d+ has no site"),
        (TABLE[:0], "no sites|no rows"),
    ],
)
def test_errors_say_where(suffix, frame, reason, tmp_path, small_batches):
    path = tmp_path / f"all.{suffix}"
    frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
    with pytest.raises(DataError, match=reason):
        DeKRRRegressor(**FIXED).fit(path, "power", sites="station")


def test_text_among_numbers_of_a_csv_file(tmp_path, small_batches):
    path = tmp_path / "north.csv"
    broken("east", 150, "n/k").drop(columns="station").to_csv(path, index=False)
    with pytest.raises(DataError, match=r"north\.csv: column 'east' has numbers first.* with words, such as 'n/k'"):
        LocalRegressor(n_features=5).fit({"north": path}, "power")


class Changing:
    def __init__(self):
        self.more = itertools.count(3)

    def __iter__(self):
        return iter(pairs("north")[: next(self.more)])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (({"north": "nowhere.parquet"}, "power"), "nowhere.parquet does not exist"),
        (({"north": iter(pairs("north"))},), "can be read only once"),
        (({"north": 5}, "power"), "cannot be read from an object of type int"),
        (({"north": []}, "power"), "gave no batch"),
        (({}, "power"), "there are no sites"),
        (({"north": part("north")[["power"]]}, "power"), "no column to predict from"),
        (({"north": part("north")},), "say which is the response"),
        (({"north": part("north")}, Y), "y is the name of the response's column"),
        (({"north": part("north")}, "power", "station"), "leave sites out"),
        (({"north": part("north")}, "power", SITES), "leave sites out"),
        (({"north": [(X, Y[:5])]},), "220 rows and 5 responses"),
        (({"north": [(X, Y), (X[:, :2], Y)]},), "expected rows of 3 columns, got an array of shape"),
        (({"north": pairs("north"), "south": [np.zeros(3)]},), "a batch must be a table or a pair"),
        (({"north": TABLE.assign(east=1j)}, "power"), "column 'east' has values of type complex128"),
        (({"north": [(np.where(np.isin(X, X[3, 1]), np.nan, X), Y)]},), "row 3, column 1 is nan"),
        (({"north": Changing()},), "rows in one pass and .* in the next"),
    ],
)
def test_wrong_sources(arguments, reason, small_sample):
    with pytest.raises(DataError, match=reason):
        LocalRegressor(n_features=5).fit(*arguments)


def test_what_needs_rows_in_memory_says_so(small_sample):
    sources = {label: part(label) for label in LABELS}
    with pytest.raises(SettingsError, match='exchange="features" sends features of every row'):
        DeKRRRegressor(exchange="features", **FIXED).fit(sources, "power")
    with pytest.raises(SettingsError, match="holds all rows in memory"):
        CentralizedKRR().fit(sources, "power")
    with pytest.raises(SettingsError, match="columns are names, which a frame or a source"):
        CentralizedKRR().fit(X, Y, columns=["a"])
    with pytest.raises(SettingsError, match="not available all at once"):
        StreamedRows(open_source(part("north")), COLUMNS, "power").arrays()


def test_a_folder_without_parquet(tmp_path):
    with pytest.raises(DataError, match="has no Parquet file"):
        open_source(tmp_path)
    (tmp_path / "bad.parquet").write_bytes(b"no parquet")
    with pytest.raises(DataError, match=r"bad\.parquet cannot be read as a table"):
        list(open_source(tmp_path).columns)


def test_predictions_of_one_pass_take_iterators():
    regressor = DeKRRRegressor(**FIXED).fit(X, Y, sites=SITES)
    model = regressor.models_["north"]
    halves = [X[:100], X[100:]]
    np.testing.assert_allclose(model.predict(iter(halves)), model.predict(X))
    np.testing.assert_allclose(regressor.predict(halves), regressor.predict(X))
    with pytest.raises(DataError, match="230 site labels for 220 rows"):
        regressor.predict(halves, sites=["north"] * 230)
    with pytest.raises(DataError, match="unknown sites"):
        regressor.predict({"nowhere": halves})


def test_labels_of_several_files(tmp_path):
    TABLE[:90].to_parquet(tmp_path / "0.parquet")
    TABLE[90:].to_csv(tmp_path / "1.csv", index=False)
    files = [tmp_path / "0.parquet", tmp_path / "1.csv"]
    regressor = DeKRRRegressor(**FIXED).fit(files, "power", sites="station")
    expected = DeKRRRegressor(**FIXED).fit(TABLE[COLUMNS], Y, sites=SITES)
    for sites in ("station", SITES):
        prediction = regressor.predict(files, sites=sites)
        np.testing.assert_allclose(prediction, expected.predict(TABLE[COLUMNS], sites=SITES), rtol=1e-8)


def test_chained_rows():
    chained = ChainedRows([ArrayRows(X[:100], Y[:100]), ArrayRows(X[100:], Y[100:])])
    assert chained.n_rows == len(Y)
    np.testing.assert_array_equal(chained.arrays().X, X)
    np.testing.assert_array_equal(chained.sample.X, X)
    np.testing.assert_array_equal(chained.bounds.upper, Scaling.of(X, Y).upper)


def test_files_in_float32_are_summed_in_float64(tmp_path, small_sample):
    single = TABLE.astype(dict.fromkeys([*COLUMNS, "power"], np.float32))
    parquet.write_table(pa.Table.from_pandas(single), tmp_path / "all.parquet")
    regressor = DeKRRRegressor(**FIXED).fit(tmp_path / "all.parquet", "power", sites="station")
    exact = single[[*COLUMNS, "power"]].to_numpy(np.float64)
    same_coefficients(regressor, DeKRRRegressor(**FIXED).fit(exact[:, :3], exact[:, 3], sites=SITES))


def site_file(path, **settings):
    return SiteFile(
        run="trial", site="north", method="dekrr", listen="127.0.0.1:1", sites=("north",), neighbors={},
        data=DataTable(target="power", columns=tuple(COLUMNS), file=path.name), settings=settings,
    )  # fmt: skip


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_node_reads_its_file_in_batches(suffix, tmp_path, small_sample, small_batches):
    path = tmp_path / f"north.{suffix}"
    TABLE.to_csv(path, index=False) if suffix == "csv" else TABLE.to_parquet(path)
    alone = dict.fromkeys(ALONE, "none")
    settings = {"sigma": 0.5, "alpha": 1e-3, "consensus": 1.0, "n_features": 10, "seed": 4, "scale": "minmax", **alone}
    node = Node(site_file(path, **settings), tmp_path, insecure=True)
    site = Site("north", (), ArrayRows(X, Y, seed=0), seed=4)
    selector = Greedy(10, sigma=0.5)
    (expected,) = (
        LocalNetwork({"north": []})
        .run({"north": train(site, selector, DeKRRSettings(lone_neighbor="warn", alpha=1e-3, scale="minmax"))})
        .values()
    )
    (outcome,) = LocalNetwork({"north": []}).run({"north": node._procedure((), None)}).values()
    np.testing.assert_allclose(outcome.coefficients, expected.coefficients, rtol=1e-8)
    digest = node.session.plan.digest
    with pytest.raises(DataError, match="is this site running already"):
        Node(node.config, tmp_path, insecure=True)
    node._journal.close()
    other = Node(site_file(path, seed=4), tmp_path, insecure=True)
    assert other.session.plan.digest != digest
    other._journal.close()
    changed = broken("north", 200, 0.25)
    changed.to_csv(path, index=False) if suffix == "csv" else changed.to_parquet(path)
    assert Node(node.config, tmp_path, insecure=True).session.plan.digest != digest


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (TABLE.drop(columns=["north", "power"]), "has no columns north, power; it has place, east, station"),
        (broken("power", 219, np.nan), "row 219, column 'power' is nan"),
        (TABLE[:0], "has no rows"),
    ],
)
def test_mistakes_in_a_nodes_file_are_told_at_once(frame, reason, tmp_path):
    frame.to_parquet(tmp_path / "north.parquet")
    with pytest.raises(DataError, match=reason):
        Node(site_file(tmp_path / "north.parquet"), tmp_path, insecure=True)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_predictions_on_the_command_line_go_through_in_batches(suffix, tmp_path, small_batches):
    data, out = tmp_path / f"data.{suffix}", tmp_path / f"out.{suffix}"
    TABLE.to_csv(data, index=False) if suffix == "csv" else TABLE.to_parquet(data)
    settings = ["--n-features", "12", "--sigma", "0.5", "--alpha", "1e-4", "--consensus", "1"]
    settings += ["--shared", "none", "--local", "none", "--column-scales", "none"]
    columns = ["--target", "power", "--site", "station"]
    run = CliRunner().invoke
    shown = run(app, ["fit", str(data), *columns, "--out", str(tmp_path / "models"), *settings], catch_exceptions=False)
    expected = DeKRRRegressor(**FIXED).fit(TABLE[COLUMNS], Y, sites=SITES)
    assert "held out: own RSE" in " ".join(shown.output.split())
    run(app, ["predict", str(tmp_path / "models"), str(data), "--site", "station", "--out", str(out)])
    predicted = pd.read_csv(out) if suffix == "csv" else pd.read_parquet(out)
    assert list(predicted.columns) == [*COLUMNS, "power", "station", "prediction"]
    np.testing.assert_allclose(predicted["prediction"], expected.predict(TABLE[COLUMNS], sites=SITES), rtol=1e-8)
    before = out.read_bytes()
    run(app, ["predict", str(tmp_path / "models"), str(out), "--site", "station", "--out", str(out)])
    assert out.read_bytes() == before
    bad = broken("north", 100, np.nan)
    bad.to_csv(data, index=False) if suffix == "csv" else bad.to_parquet(data)
    failed = run(app, ["predict", str(tmp_path / "models"), str(data), "--out", str(out)])
    assert f"{data}: row 100, column north is nan" in str(failed.exception)
    assert out.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {data.name, out.name, "models"}
    assert out.stat().st_mode & 0o777 == data.stat().st_mode & 0o777


@pytest.mark.parametrize("text", ["u,v,y\n1,2,3,9\n4,5,6,7\n", "u,v,y\n1,2,3\n4,5,6,7,8\n", "u,v,y,w\n1,2,3,9,7\n"])
def test_rows_that_are_longer_than_the_header_are_refused(tmp_path, text):
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(DataError, match=r"bad\.csv cannot be read as a table.*fields"):
        list(StreamedRows(open_source(tmp_path / "bad.csv"), ["u", "v"], "y").blocks(10))


def test_labels_that_are_numbers_here_and_words_there_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sources_module, "BATCH_ROWS", 50)
    labels = np.repeat(["1", "2", "x"], [60, 60, 60])
    table = pd.DataFrame({"u": np.linspace(0, 1, 180), "y": np.linspace(1, 2, 180), "site": labels})
    table.to_csv(tmp_path / "sites.csv", index=False)
    with pytest.raises(DataError, match="make all of them words"):
        DeKRRRegressor(**FIXED).fit(tmp_path / "sites.csv", "y", sites="site")


def test_batches_may_come_in_the_same_memory():
    def batches():
        shared = np.empty((20, 3)), np.empty(20)
        for start in range(0, len(Y) - len(Y) % 20, 20):
            shared[0][:], shared[1][:] = X[start : start + 20], Y[start : start + 20]
            yield shared

    rows = StreamedRows(open_source(batches), 3, None)
    joined = [np.concatenate(parts) for parts in zip(*(block[:2] for block in rows.blocks(50)), strict=True)]
    np.testing.assert_array_equal(joined[0], X[: len(joined[0])])
    np.testing.assert_array_equal(joined[1], Y[: len(joined[1])])


def test_frames_and_numbered_columns_are_sources_wherever_a_site_column_is_named():
    frame = pd.DataFrame(X).assign(y=Y, site=SITES)
    fitted = DeKRRRegressor(**FIXED).fit(frame, "y", sites="site", columns=["0", "1", "2"])
    expected = DeKRRRegressor(**FIXED).fit(X, Y, sites=SITES)
    np.testing.assert_allclose(fitted.predict(frame, sites="site"), expected.predict(X, SITES), rtol=1e-9)


@pytest.mark.parametrize("columns", ["place", ["place", "power"]])
def test_columns_to_predict_from_are_a_list_without_the_response(columns):
    with pytest.raises(SettingsError, match="without the response"):
        DeKRRRegressor(**FIXED).fit(TABLE, "power", sites="station", columns=columns)


def table_of_sites(n_sites=24, n_batches=40, batch_rows=600):
    """Return batches of a table whose rows are dealt out to sites at random."""
    rng = np.random.default_rng(5)
    for _ in range(n_batches):
        rows = rng.uniform(size=(batch_rows, 2))
        sites = rng.integers(n_sites, size=batch_rows)
        yield {"u": rows[:, 0], "v": rows[:, 1], "y": rows.sum(axis=1), "site": sites}


def test_one_table_is_read_once_whatever_the_number_of_sites(small_sample):
    batches = list(table_of_sites())
    table = Counted(batches)
    regressor = DeKRRRegressor(**FIXED).fit(table, "y", sites="site")
    assert table.passes == 1
    whole = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    rows = np.column_stack([whole["u"], whole["v"]])
    same_coefficients(regressor, DeKRRRegressor(**FIXED).fit(rows, whole["y"], sites=whole["site"]))


def sites_of_table(batches=table_of_sites):
    return split_by_site(open_source(batches), ["u", "v"], "y", "site", seed=0)


@pytest.mark.parametrize("size", [1, 1 << 26])
def test_the_temporary_file_of_a_table_is_closed(tmp_path, monkeypatch, size):
    monkeypatch.setattr(rows_module, "SAMPLE_ROWS", 20)
    monkeypatch.setattr("dekrr.tables.sources._IN_MEMORY", size)
    TABLE.to_csv(tmp_path / "rows.csv", index=False)
    gc.collect()  # what earlier tests left would warn below
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        rows = split_by_site(open_source(tmp_path / "rows.csv"), COLUMNS, "power", "station", 0)
        spool = next(iter(rows.values()))._spool
        assert "north" in spool
        file, name = spool._file, f"name={spool._file.name}"
        del rows, spool
        gc.collect()
        assert file.closed
    assert not [each for each in told if issubclass(each.category, ResourceWarning) and name in str(each.message)]


def test_one_table_takes_the_memory_of_samples_and_a_batch(small_sample, monkeypatch):
    monkeypatch.setattr("dekrr.tables.sources._IN_MEMORY", 1)

    def read_all():
        for site in sites_of_table().values():
            assert sum(block.n_rows for block in site.blocks(100)) == site.n_rows

    read_all()  # a first time fills Python's lists of free tuples, which are no memory of the table
    tracemalloc.start()
    read_all()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * 600 * 3 * 8 / 2


def test_a_copy_of_a_site_s_rows_reads_the_table_again(small_sample):
    batches = list(table_of_sites(n_sites=3))
    sites = sites_of_table(batches)
    for label, site in pickle.loads(pickle.dumps(sites)).items():
        expected, again = (list(rows.blocks(70)) for rows in (sites[label], site))
        assert [block.n_rows for block in expected] == [block.n_rows for block in again]
        np.testing.assert_array_equal(again[1].X, expected[1].X)
        np.testing.assert_array_equal(again[1].y, expected[1].y)


def test_a_temporary_folder_that_is_full_is_named(small_sample, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.SpooledTemporaryFile.write", full)
    with pytest.raises(DataError, match=r"temporary files, .*No space left.*TMPDIR"):
        sites_of_table()


def test_chains_of_chains_are_flat():
    parts = [ArrayRows(X[k : k + 1], Y[k : k + 1]) for k in range(len(Y))] * 10
    chain = parts[0]
    for part in parts[1:]:
        chain = ChainedRows([chain, part])
    assert chain.n_rows == len(parts)
    np.testing.assert_array_equal(chain.arrays().y, np.tile(Y, 10))


def weighted_and_repeated(n_outputs=1, seed=0):
    """Return rows with weights that are whole numbers, and the same rows as often as those say."""
    rng = np.random.default_rng(seed)
    rows, responses = rng.uniform(size=(90, 3)), rng.normal(size=(90, n_outputs))
    responses = responses[:, 0] if n_outputs == 1 else responses
    weight = rng.integers(0, 5, size=90).astype(float)
    times = weight.astype(int)
    return ArrayRows(rows, responses, weight), ArrayRows(np.repeat(rows, times, 0), np.repeat(responses, times, 0))


@pytest.mark.parametrize("n_outputs", [1, 2])
@pytest.mark.parametrize("block", [7, 1000])
def test_weights_that_are_whole_numbers_are_repeated_rows(n_outputs, block, monkeypatch):
    monkeypatch.setattr("dekrr.statistics.rows_per_block", lambda width: block)
    weighted, repeated = weighted_and_repeated(n_outputs)
    maps = [FeatureMap.unweighted(RNG.normal(size=(3, 4 + k)), np.arange(4.0 + k)) for k in (0, 1)]
    (own, cross), (same_own, same_cross) = (accumulate(rows, maps[0], {"b": maps[1]}) for rows in (weighted, repeated))
    for actual, expected in (
        (own.gram, same_own.gram),
        (own.moment, same_own.moment),
        (own.response_energy, same_own.response_energy),
        (cross["b"].gram, same_cross["b"].gram),
        (cross["b"].cross, same_cross["b"].cross),
    ):
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


def test_sums_of_two_outputs_are_two_sums():
    both = ArrayRows(X, np.column_stack([Y, np.cos(Y)]))
    feature_map = FeatureMap.unweighted(RNG.normal(size=(3, 5)), np.arange(5.0))
    sums = accumulate(both, feature_map, {})[0]
    single = [accumulate(ArrayRows(X, both.y[:, k]), feature_map, {})[0] for k in (0, 1)]
    assert sums.moment.shape == (5, 2)
    np.testing.assert_allclose(sums.moment, np.column_stack([one.moment for one in single]), rtol=1e-12, atol=1e-12)
    assert sums.response_energy == pytest.approx(sum(one.response_energy for one in single), rel=1e-12)
    nothing = accumulate(both.take(slice(0, 0)), feature_map, {})[0]
    np.testing.assert_array_equal(sums.plus(nothing).moment, sums.moment)


def test_weights_and_outputs_come_from_sources_and_go_into_samples(small_sample, small_batches):
    frame = TABLE.assign(other=np.cos(Y), often=np.arange(len(Y)) % 3 + 1)
    streamed = StreamedRows(open_source(frame), COLUMNS, ["power", "other"], weight="often", seed=2)
    expected = ArrayRows(X, np.column_stack([Y, np.cos(Y)]), frame["often"].to_numpy(float), seed=2)
    scaling = streamed.bounds
    np.testing.assert_array_equal(scaling.lower, [*X.min(axis=0), Y.min(), np.cos(Y).min()])
    for rows in (streamed.sample, streamed.scaled(scaling).sample):
        assert rows.n_rows == 40
        assert rows.y.shape == (40, 2)
    for actual, same in zip(streamed.sample.arrays(), expected.sample.arrays(), strict=True):
        np.testing.assert_array_equal(actual, same)
    for block, other in zip(streamed.scaled(scaling).blocks(50), expected.scaled(scaling).blocks(50), strict=True):
        for actual, same in zip(block, other, strict=True):
            np.testing.assert_array_equal(actual, same)
        assert block.y.min() >= -1
    pairs = StreamedRows(open_source([(X, expected.y)]), 3, None)
    np.testing.assert_array_equal(next(pairs.blocks(1000)).y, expected.y)
    chained = ChainedRows([expected.take(slice(0, 100)), expected.take(slice(100, None))])
    np.testing.assert_array_equal(chained.arrays().weight, frame["often"])


def test_scaling_of_several_outputs_is_that_of_each():
    both = np.column_stack([Y, 5 * np.cos(Y)])
    scaling = Scaling.of(X, both)
    for k in (0, 1):
        single = Scaling.of(X, both[:, k])
        np.testing.assert_array_equal(scaling.rows(X), single.rows(X))
        np.testing.assert_array_equal(scaling.responses(both)[:, k], single.responses(both[:, k]))
        np.testing.assert_array_equal(scaling.undo(both)[:, k], single.undo(both[:, k]))
    rows = ArrayRows(X, both)
    assert rows.scaled(UNSCALED) is rows
