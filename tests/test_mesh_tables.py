"""Tables as people have them, over the mesh: words, dates and missing values, and models that take them."""

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import dekrr
from dekrr import DeKRRClassifier, DeKRRRegressor
from dekrr.cli.app import app
from dekrr.errors import DataError, SettingsError
from dekrr.estimators.network import seed_of
from dekrr.mesh.files import read_site
from dekrr.mesh.ledger import ALL
from dekrr.mesh.node import MODEL
from dekrr.mesh.site_rows import SiteRows
from dekrr.networks.local import LocalNetwork
from dekrr.protocols.site import Site
from meshes import Mesh, wait_until

COLUMNS = ["wind", "when", "gust", "wet"]
SETTINGS = {"n_features": 12, "seed": seed_of(0), "max_leverage": 1.0, "lone_neighbor": "refuse"}


def raw_table(k, n_rows=150):
    """Return the raw table of a site: words (one of them rare), dates, numbers with gaps, booleans."""
    rng = np.random.default_rng(k)
    wind = rng.choice(["N", "E", "S"], n_rows).astype(object)
    wind[:3] = "NNE by N"
    gust = rng.gamma(2.0, 3.0, n_rows)
    hours = rng.integers(0, 24 * 300, n_rows)
    when = pd.Timestamp("2020-01-01") + pd.to_timedelta(hours, unit="h")
    wet = rng.random(n_rows) < 0.3
    y = np.where(wind == "N", 2.0, -1.0) + np.sqrt(gust) + np.sin(2 * np.pi * (hours % 24) / 24) + wet + 0.1 * k
    gust[rng.choice(n_rows, 15, replace=False)] = np.nan
    return pd.DataFrame({"wind": wind, "when": when, "gust": gust, "wet": wet, "y": y + 0.1 * rng.normal(size=n_rows)})


def mesh_of(folder, n_sites=3, settings=None, suffix="csv", raw=True, **more):
    data = {"columns": COLUMNS, "raw": raw}
    mesh = Mesh(folder, n_sites, settings={**SETTINGS, **(settings or {})}, defaults=True, data=data, **more)
    mesh.tables = {name: raw_table(k) for k, name in enumerate(mesh.names)}
    for name, table in mesh.tables.items():
        if suffix == "csv":
            table.to_csv(mesh.folder / f"{name}.csv", index=False)
        else:
            table.to_parquet(mesh.folder / f"{name}.parquet")
        mesh.edit(name, f"{name}.parquet", f"{name}.{suffix}")
    return mesh


def estimated(mesh, **changes):
    frame = pd.concat([table.assign(station=name) for name, table in mesh.tables.items()], ignore_index=True)
    edges = [tuple(sorted(edge)) for edge in mesh.graph.edges]
    regressor = DeKRRRegressor(n_features=12, topology=edges, random_state=0, deployment=True, **changes)
    regressor.set_params(rows_per_feature=1.5)
    return regressor.fit(frame, "y", sites="station", columns=COLUMNS)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_nodes_train_on_raw_tables_what_the_estimator_trains(tmp_path, suffix, open_folds):
    mesh = mesh_of(tmp_path, suffix=suffix)
    _, errors = mesh.run_in_threads()
    assert set(errors.values()) == {None}, errors
    reference = estimated(mesh)
    new = raw_table(99).drop(columns="y")
    new.loc[:4, "wind"] = "W"  # not seen in training
    new.loc[5:9, "wind"] = None
    for name in mesh.names:
        model = dekrr.load(mesh.home(name) / MODEL)
        assert model.header.encoding == reference.columns_
        assert "NNE by N" not in str(model.header.encoding)  # told to nobody: too few rows have it
        np.testing.assert_allclose(model.predict(new), reference.models_[name].predict(new), rtol=0, atol=1e-9)
    new.to_csv(tmp_path / "new.csv", index=False)
    command = ["predict", str(mesh.home("s00") / MODEL), str(tmp_path / "new.csv"), "--out", str(tmp_path / "out.csv")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    expected = reference.models_["s00"].predict(new)
    np.testing.assert_allclose(pd.read_csv(tmp_path / "out.csv").prediction, expected, rtol=1e-9)


def test_rows_that_stand_alone_are_in_no_sum_of_this_run_and_the_next(tmp_path):
    mesh = mesh_of(tmp_path, settings={"max_leverage": 0.45, "shared": 8})
    nodes, errors = mesh.run_in_threads()
    assert set(errors.values()) == {None}, errors
    kept = {path.name.split("-")[0] for path in mesh.home("s00").iterdir()}
    assert {"columns", "admission", "ledger"} <= kept
    (first,) = nodes["s00"]._own.ledger.entries
    table = mesh.tables["s00"]
    assert 100 < first.n_rows < len(table)
    for name in mesh.names:  # a second run, in which a further category has become frequent at one site
        (mesh.home(name) / MODEL).unlink()
        mesh.edit(name, 'run = "test"', 'run = "again"')
    longer = pd.concat([table, raw_table(7, 500).assign(wind="W")], ignore_index=True)
    longer.to_csv(mesh.folder / "s00.csv", index=False)
    nodes, errors = mesh.run_in_threads()
    assert set(errors.values()) == {None}, errors
    encoding = mesh.model("s00").header.encoding
    assert "W" in encoding.columns[0].categories
    own = nodes["s00"]._own
    assert [entry.run for entry in own.ledger.entries] == ["test", "again"]
    rows = own.ledger._read(own.ledger.entries[1].rows[ALL])["rows"]
    assert np.isin(own.ledger._read(first.rows[ALL])["rows"], rows).all()  # those that were in sums are in sums again
    numbers = encoding.encode(longer[COLUMNS])
    listed = own._listed(own._kept_columns(), encoding)
    assert listed(numbers).sum() == len(rows)
    assert listed(numbers)[: len(table)].sum() == first.n_rows


def test_columns_are_agreed_on_anew_without_a_lost_site_and_rows_are_judged_as_before(tmp_path):
    mesh = mesh_of(tmp_path, n_sites=3, settings={"max_leverage": 0.45})
    mesh.tables["s02"].assign(wind="W").to_csv(mesh.folder / "s02.csv", index=False)  # only this site has it
    homes = {name: mesh.home(name) for name in mesh.names}
    own = {
        name: SiteRows(read_site(homes[name] / "site.toml"), homes[name], homes[name], b"secret") for name in mesh.names
    }

    def epoch(names):
        graph = {name: [other for other in names if other != name] for name in names}
        sites = {name: Site(name, tuple(graph[name]), own[name].rows) for name in names}
        return LocalNetwork(graph).run({name: own[name].prepared(site) for name, site in sites.items()})

    first, second = epoch(mesh.names), epoch(["s00", "s01"])
    assert "W" in first["s00"][1].columns[0].categories
    assert "W" not in second["s00"][1].columns[0].categories
    for name in ("s00", "s01"):
        (before, _), (after, _) = first[name], second[name]
        admitted = [site.admission(site.rows.sample.X) for site in (before, after)]
        np.testing.assert_array_equal(*admitted)
        np.testing.assert_array_equal(*(site.hash_of(site.rows.sample.arrays()) for site in (before, after)))
        assert 100 < admitted[0].sum() < 150
        assert len(own[name].ledger.entries) == 1


@pytest.mark.slow
def test_a_site_that_is_lost_in_a_raw_run_leaves_models_of_the_others_columns(tmp_path):
    """Its category, which no other site has, is in no model that the others end with."""
    mesh = mesh_of(tmp_path, n_sites=4, settings={"max_rounds": 400, "tol": 0.0, "lone_neighbor": "warn"}, patience=4.0)
    mesh.tables["s03"] = mesh.tables["s03"].assign(wind="W")
    mesh.tables["s03"].to_csv(mesh.folder / "s03.csv", index=False)
    processes = {name: mesh.process(name) for name in mesh.names}

    def in_rounds(name):
        path = mesh.home(name) / "run.jsonl"
        return path.exists() and any(event.get("round", 0) > 2 for event in mesh.events(name))

    wait_until(lambda: all(in_rounds(name) for name in mesh.names))
    processes["s03"].kill()
    processes["s03"].join()
    left = [name for name in mesh.names if name != "s03"]
    new = raw_table(99).drop(columns="y")
    new.loc[:4, "wind"] = "W"
    for name in left:
        processes[name].join(120)
        assert processes[name].exitcode == 0, (mesh.home(name) / "log").read_text()
        finished = next(event for event in reversed(mesh.events(name)) if event["event"] == "finished")
        assert finished["gone"] == ["s03"]
        model = mesh.model(name)
        assert set(model.header.encoding.columns[0].categories) == {"N", "E", "S"}
        found = model.predict(new)
        truth = raw_table(99)["y"].to_numpy() - 9.9  # what a site's number adds
        assert np.mean((found - truth)[5:] ** 2) < 0.2 * truth.var()


def test_what_is_wrong_with_raw_tables_is_said(tmp_path):
    mesh = mesh_of(tmp_path, raw=False)
    with pytest.raises(DataError, match=r"column 'wind' is 'NNE by N', not a number.*write raw = true in \[data\]"):
        mesh.node("s00")
    mesh.edit("s00", "raw = false", "raw = true")
    path = mesh.home("s00") / "site.toml"
    text = path.read_text()
    for line, words in {
        "bounds = [[0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]": "raw columns are encoded as others",
        "column_scales = [1.0, 0.5]": "column_scales has 2 numbers for 4 columns",
        'features = "plain"\nprivacy = { epsilon = 1.0 }': "with privacy columns must be numbers",
    }.items():
        path.write_text(text.replace("[settings]\n", f"[settings]\n{line}\n"))
        with pytest.raises(SettingsError) as refusal:
            read_site(path)
        assert words in str(refusal.value)


@pytest.mark.parametrize("labels", [["no", "yes"], ["calm", "breeze", "gale"]])
def test_nodes_predict_classes_as_the_classifier_does(tmp_path, labels, open_folds):
    data = {"target": "kind", "columns": ["gust", "wet"], "classes": labels}
    settings = {**SETTINGS, "n_features": 8, "shared": 8, "scale": "minmax", "lone_neighbor": "warn"}
    mesh = Mesh(tmp_path, 3, settings=settings, defaults=True, data=data)
    tables = {}
    for k, name in enumerate(mesh.names):
        table = raw_table(k, 200).fillna({"gust": 4.0})
        places = np.searchsorted(np.quantile(table.y, np.arange(1, len(labels)) / len(labels)), table.y)
        tables[name] = table.assign(kind=np.asarray(labels)[places], wet=table.wet.astype(float))
        tables[name].to_csv(mesh.folder / f"{name}.csv", index=False)
        mesh.edit(name, f"{name}.parquet", f"{name}.csv")
    _, errors = mesh.run_in_threads()
    assert set(errors.values()) == {None}, errors
    frame = pd.concat([table.assign(station=name) for name, table in tables.items()], ignore_index=True)
    edges = [tuple(sorted(edge)) for edge in mesh.graph.edges]
    kept = {"masks": True, "verify_features": True, "rows_per_feature": 1.5}
    classifier = DeKRRClassifier(n_features=8, shared=8, topology=edges, random_state=0, options=kept)
    with pytest.MonkeyPatch.context() as patch:  # the nodes admit all rows
        patch.setattr("dekrr.protocols.site.Site.withholding", lambda site, max_leverage: site)
        classifier.fit(frame, "kind", sites="station", columns=["gust", "wet"])
    new = raw_table(50, 60).fillna({"gust": 4.0}).assign(wet=1.0)[["gust", "wet"]]
    for name in mesh.names:
        model, expected = dekrr.load(mesh.home(name) / MODEL), classifier.models_[name]
        assert model.header.method == "DeKRRClassifier"
        assert model.header.targets == ["kind"]
        np.testing.assert_array_equal(model.classes_, classifier.classes_)
        np.testing.assert_allclose(model.predict_proba(new), expected.predict_proba(new), rtol=0, atol=1e-9)
        np.testing.assert_array_equal(model.predict(new), expected.predict(new))
    tables["s00"].assign(kind="storm").to_csv(mesh.folder / "s00.csv", index=False)
    with pytest.raises(DataError, match=r"row 0 has 'storm', which is none of the classes"):
        mesh.node("s00", force=True)
    mesh.edit("s00", "[settings]\n", "[settings]\nintervals = true\n")
    with pytest.raises(SettingsError) as refusal:
        read_site(mesh.home("s00") / "site.toml")
    assert "classes have prediction sets" in str(refusal.value)
