"""Nodes whose rows are read and summed over by Dask workers."""

import numpy as np
import pandas as pd
import pytest

from dekrr.cluster import spread
from dekrr.errors import DataError
from dekrr.mesh.config import DataTable, StudyFile
from dekrr.mesh.files import read_site
from dekrr.mesh.ledger import ALL
from dekrr.mesh.site_rows import SiteRows, open_rows
from dekrr.tables.rows import SAMPLE_ROWS
from meshes import COLUMNS, Mesh

distributed = pytest.importorskip("distributed")
N_ROWS = SAMPLE_ROWS + 1500  # more than a sample, so that workers sum


@pytest.fixture(scope="module")
def scheduler():
    options = {"processes": False, "protocol": "tcp", "dashboard_address": None}
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster:
        yield cluster.scheduler_address


def mesh_of(folder, **settings):
    folder.mkdir()
    mesh = Mesh(folder, 3, settings={"features": "plain", "max_leverage": 1.0, **settings})
    rng = np.random.default_rng(5)
    frame = pd.DataFrame(rng.uniform(size=(N_ROWS, 2)), columns=COLUMNS)
    parts = folder / "parts"
    parts.mkdir()
    frame["y"] = np.sin(5 * frame.u) + frame.v
    for k, rows in enumerate(np.array_split(np.arange(N_ROWS), 4)):
        frame.iloc[rows].to_parquet(parts / f"{k}.parquet")
    mesh.edit("s00", "s00.parquet", "parts")
    return mesh


def on_workers(mesh, scheduler):
    mesh.edit("s00", 'scheduler = ""', f'scheduler = "{scheduler}"')


def test_workers_sum_for_a_node_what_it_would_sum_itself(tmp_path, scheduler, monkeypatch):
    models = []
    calls = []
    summed = spread.SpreadRows.summed
    monkeypatch.setattr(spread.SpreadRows, "summed", lambda rows, *how: calls.append(rows) or summed(rows, *how))
    for spreads in (False, True):
        mesh = mesh_of(tmp_path / str(spreads))
        if spreads:
            on_workers(mesh, scheduler)
        nodes, errors = mesh.run_in_threads()
        assert set(errors.values()) == {None}, errors
        assert nodes["s00"].n_rows == N_ROWS
        assert bool(calls) == spreads
        models.append([mesh.model(name) for name in mesh.names])
    new = np.random.default_rng(0).uniform(size=(50, 2))
    for itself, workers in zip(*models, strict=True):
        np.testing.assert_allclose(workers.predict(new), itself.predict(new), rtol=0, atol=1e-9)


def test_history_and_admission_are_over_the_same_rows(tmp_path, scheduler):
    mesh = mesh_of(tmp_path / "net", max_leverage=0.5)
    kept = {}
    for name in ("itself", "workers"):
        if name == "workers":
            on_workers(mesh, scheduler)
        (tmp_path / name).mkdir()
        own = SiteRows(read_site(mesh.home("s00") / "site.toml"), mesh.home("s00"), tmp_path / name, b"s" * 32)
        own.enter()
        kept[name] = own.ledger._read(own.ledger.entries[0].rows[ALL])["rows"]
    assert len(kept["workers"]) > N_ROWS - 50
    assert np.isin(kept["workers"], kept["itself"]).mean() > 0.99


def test_rows_that_change_between_passes_are_noticed(tmp_path, scheduler):
    mesh = mesh_of(tmp_path / "net")
    on_workers(mesh, scheduler)
    rows = open_rows(read_site(mesh.home("s00") / "site.toml"), mesh.home("s00"))
    assert len(rows.digest) == 64
    changed = pd.read_parquet(mesh.folder / "parts" / "2.parquet")
    changed.loc[changed.index[7], "u"] += 1e-9
    changed.to_parquet(mesh.folder / "parts" / "2.parquet")
    with pytest.raises(DataError, match="gave other rows in one pass than in the next"):
        list(rows.blocks(1000))
    with pytest.raises(DataError, match="gave other rows in one pass than in the next"):
        rows.summed(lambda part: part.n_rows, int.__add__)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"scheduler": "tcp://127.0.0.1:9"}, "no Dask scheduler answers at tcp://127.0.0.1:9"),
        ({"scheduler": "tcp://127.0.0.1:9", "file": "rows.csv"}, "is not a Parquet file"),
        ({"scheduler": "tcp://127.0.0.1:9", "classes": ("a", "b")}, "Dask workers cannot read classes"),
    ],
)
def test_what_workers_cannot_do_is_told(tmp_path, monkeypatch, data, text):
    monkeypatch.setattr(spread, "_SCHEDULER_SECONDS", 1)
    pd.DataFrame({"u": [1.0], "y": [1.0]}).to_parquet(tmp_path / "rows.parquet")
    study = StudyFile(
        name="x", source="rows", sites=("a",), expires="2030-01-01", data=DataTable(target="y", columns=("u",))
    )
    config = study.site_file("x", "a", {}, "rows.parquet")
    config = type(config)(**{**_fields(config), "data": DataTable(**{**_fields(config.data), **data})})
    with pytest.raises(DataError, match=text):
        open_rows(config, tmp_path)


def test_a_study_does_not_say_whose_workers_read_rows():
    data = DataTable(target="y", columns=("u",), scheduler="tcp://proposer:8786")
    study = StudyFile(name="x", source="rows", sites=("a",), expires="2030-01-01", data=data)
    assert study.site_file("x", "a", {}, "rows.parquet").data.scheduler == ""
    assert study.site_file("x", "a", {}, "rows.parquet", "tcp://own:8786").data.scheduler == "tcp://own:8786"


def _fields(struct):
    return {name: getattr(struct, name) for name in struct.__struct_fields__}
