"""Sites larger than one machine: rows in Dask DataFrames."""

import os
import signal
import threading
import time

import numpy as np
import pandas as pd
import pytest

from dekrr import DeKRRRegressor, LocalRegressor
from dekrr.cluster.spread import SpreadRows, SpreadSource
from dekrr.data import make_sites
from dekrr.errors import DataError
from dekrr.scaling import Scaling
from dekrr.selection import Plain
from dekrr.statistics import accumulate
from dekrr.tables.rows import SAMPLE_ROWS, ArrayRows

dask = pytest.importorskip("dask")
dd = pytest.importorskip("dask.dataframe")

COLUMNS = ["a", "b", "c"]
SETTINGS = {"n_features": 12, "sigma": 0.3, "alpha": 1e-4, "consensus": 1.0, "random_state": 0}


@pytest.fixture(autouse=True)
def in_this_process():
    with dask.config.set(scheduler="threads", num_workers=2):
        yield


def frame_of(n_rows, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.uniform(size=(n_rows, 3)), columns=COLUMNS)
    return frame.assign(y=np.sin(4 * frame.a) + frame.b, w=rng.uniform(0.5, 2, size=n_rows))


def spread(frame, n_partitions=5, **options):
    return SpreadRows(SpreadSource(dd.from_pandas(frame, npartitions=n_partitions)), COLUMNS, "y", **options)


def in_memory(frame, weight=None):
    return ArrayRows(frame[COLUMNS].to_numpy(), frame.y.to_numpy(), weight)


@pytest.mark.parametrize("n_partitions", [1, 9, 70])
@pytest.mark.parametrize("weight", [None, "w"])
def test_sums_are_those_of_rows_in_memory(n_partitions, weight):
    frame = frame_of(2000)
    rng = np.random.default_rng(0)
    own, other = (Plain(size, sigma=0.5).select(np.empty((0, 3)), np.empty(0), rng) for size in (15, 8))
    rows = spread(frame, n_partitions, weight=weight)
    expected = in_memory(frame, None if weight is None else frame.w.to_numpy())
    scaling = Scaling.of(expected.X, expected.y)
    for spread_rows, known in ((rows, expected), (rows.scaled(scaling), expected.scaled(scaling))):
        sums, cross = accumulate(spread_rows, own, {"p": other})
        expected_sums, expected_cross = accumulate(known, own, {"p": other})
        np.testing.assert_allclose(sums.gram, expected_sums.gram, rtol=1e-12)
        np.testing.assert_allclose(sums.moment, expected_sums.moment, rtol=1e-10)
        assert sums.response_energy == pytest.approx(expected_sums.response_energy, rel=1e-12)
        np.testing.assert_allclose(cross["p"].cross, expected_cross["p"].cross, rtol=1e-10, atol=1e-10)
    assert rows.n_rows == 2000
    np.testing.assert_array_equal(rows.bounds.upper, expected.bounds.upper)
    np.testing.assert_array_equal(rows.bounds.lower, expected.bounds.lower)
    assert rows.weights == pytest.approx(expected.weights)


def test_a_small_site_is_its_own_sample_in_order():
    frame = frame_of(500)
    np.testing.assert_array_equal(spread(frame).sample.X, frame[COLUMNS].to_numpy())
    admitted = spread(frame).admitted(lambda X: X[:, 0] > 0.5)
    assert admitted.n_rows == (frame.a > 0.5).sum()


def test_the_sample_of_a_large_site_is_random_and_does_not_depend_on_the_scheduler():
    frame = frame_of(3 * SAMPLE_ROWS)
    sample = spread(frame, 7).sample
    assert sample.n_rows == SAMPLE_ROWS
    assert sample.expansion == 3.0
    places = {value: row for row, value in enumerate(frame.a)}
    rows = np.array([places[value] for value in sample.X[:, 0]])
    assert (np.diff(rows) > 0).all()
    parts = np.bincount(rows * 7 // len(frame), minlength=7)
    assert (np.abs(parts - SAMPLE_ROWS / 7) < 5 * np.sqrt(SAMPLE_ROWS / 7)).all()
    with dask.config.set(scheduler="synchronous"):
        np.testing.assert_array_equal(spread(frame, 7).sample.X, sample.X)


def frames_of_sites():
    X, y, sites = make_sites(n_sites=4, random_state=0)
    frame = pd.DataFrame(X, columns=COLUMNS).assign(y=y, site=sites)
    return {site: own.drop(columns="site").reset_index(drop=True) for site, own in frame.groupby("site")}


@pytest.mark.parametrize(
    "settings", [{"features": "plain", "scale": None}, {"features": "greedy", "alpha": [1e-5, 1e-3]}]
)
def test_fits_updates_and_predictions_are_those_of_rows_in_memory(settings):
    frames = frames_of_sites()
    spread_frames = {site: dd.from_pandas(own, npartitions=3) for site, own in frames.items()}
    ours, known = (DeKRRRegressor(**SETTINGS | settings) for _ in range(2))
    ours.fit(spread_frames, "y")
    known.fit(frames, "y")
    for step in range(2):
        for site, own in frames.items():
            expected = known.models_[site].predict(own)
            np.testing.assert_allclose(ours.models_[site].predict(own), expected, atol=1e-7)
            lazily = ours.models_[site].predict(spread_frames[site])
            assert hasattr(lazily, "dask")
            np.testing.assert_allclose(lazily.compute().to_numpy(), expected, atol=1e-7)
        assert ours.n_rows_ == known.n_rows_
        if step == 0:
            ours.partial_fit(spread_frames, "y")
            known.partial_fit(frames, "y")


def test_predictions_by_a_column_of_sites_are_lazy_too():
    frames = frames_of_sites()
    regressor = DeKRRRegressor(**SETTINGS).fit(frames, "y")
    table = pd.concat([own.assign(station=site) for site, own in frames.items()], ignore_index=True)
    lazily = regressor.predict(dd.from_pandas(table, npartitions=3), sites="station")
    np.testing.assert_allclose(lazily.compute().to_numpy(), regressor.predict(table, sites="station"))


@pytest.mark.parametrize("backend", ["numpy", "pyarrow"])
def test_one_frame_with_a_column_of_sites_is_a_frame_for_each(tmp_path, backend):
    """Also of Arrow's types. Most partitions have rows of some sites only."""
    frames = frames_of_sites()
    table = pd.concat([own.assign(station=site) for site, own in frames.items()], ignore_index=True)
    table.to_parquet(tmp_path / "table.parquet", row_group_size=50)
    options = {} if backend == "numpy" else {"dtype_backend": "pyarrow"}
    together = dd.read_parquet(tmp_path / "table.parquet", split_row_groups=True, blocksize=None, **options)
    assert together.npartitions > 3
    settings = SETTINGS | {"features": "plain"}
    ours = DeKRRRegressor(**settings).fit(together, "y", sites="station")
    apart = DeKRRRegressor(**settings).fit(frames, "y")
    assert ours.n_rows_ == apart.n_rows_
    for site, own in frames.items():
        np.testing.assert_allclose(ours.models_[site].predict(own), apart.models_[site].predict(own), atol=1e-7)
    ours.partial_fit(together, "y", sites="station")
    assert ours.n_rows_ == {site: 2 * n for site, n in apart.n_rows_.items()}


def test_what_cannot_be_done_is_said():
    frames = frames_of_sites()
    table = pd.concat([own.assign(station=site) for site, own in frames.items()], ignore_index=True)
    with pytest.raises(DataError, match="has no column 'town'; it has a, b, c, y, station"):
        DeKRRRegressor(**SETTINGS).fit(dd.from_pandas(table, npartitions=3), "y", sites="town")
    nowhere = table.assign(station=table.station.where(table.index != 7))
    with pytest.raises(DataError, match="has rows without a site in column 'station'"):
        DeKRRRegressor(**SETTINGS).fit(dd.from_pandas(nowhere, npartitions=3), "y", sites="station")
    with pytest.raises(DataError, match="say which is the response"):
        LocalRegressor(n_features=5).fit({"a": dd.from_pandas(frame_of(50), npartitions=2)})
    bad = frame_of(60)
    bad.loc[45, "b"] = np.inf
    with pytest.raises(DataError, match=r"the Dask frame: column 'b' row 45 is inf"):
        DeKRRRegressor(**SETTINGS).fit({"a": dd.from_pandas(bad.drop(columns="w"), npartitions=4)}, "y")


@pytest.mark.slow
def test_a_worker_that_dies_changes_nothing(tmp_path):
    distributed = pytest.importorskip("distributed")
    sites = {}
    for i, site in enumerate("ab"):
        frame_of(60_000, i).drop(columns="w").to_parquet(tmp_path / f"{site}.parquet", row_group_size=5000)
        sites[site] = dd.read_parquet(tmp_path / f"{site}.parquet", split_row_groups=True, blocksize=None)
    settings = {**SETTINGS, "features": "greedy", "n_features": 60}
    expected = DeKRRRegressor(**settings).fit(sites, "y")
    local = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "local_directory": str(tmp_path)}
    with distributed.LocalCluster(**local) as cluster, distributed.Client(cluster) as client:
        killed = []

        def kill():
            while not client.processing() or not any(client.processing().values()):
                time.sleep(0.01)
            victim = next(iter(cluster.workers.values())).pid
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)

        thread = threading.Thread(target=kill, daemon=True)
        thread.start()
        ours = DeKRRRegressor(**settings).fit(sites, "y")
        thread.join(60)
        assert killed
    for site in sites:
        np.testing.assert_array_equal(ours.models_[site].coefficients, expected.models_[site].coefficients)
