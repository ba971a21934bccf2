"""Several targets, and weights of rows, over the mesh and on the command line."""

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from dekrr import load
from dekrr.cli.app import app
from dekrr.data import make_sites
from dekrr.errors import SettingsError
from dekrr.mesh.files import read_site
from meshes import COLUMNS, Mesh

EXACT = {"tol": 1e-12, "rows_per_feature": 0.0, "max_leverage": 1.0}


def tables(mesh, *, repeated):
    """Return each site's table with two targets, and weights or as many rows."""
    found = {}
    for k, name in enumerate(mesh.names):
        X, y = mesh.rows[name]
        times = np.random.default_rng(k).integers(1, 4, len(y))
        table = pd.DataFrame(X, columns=COLUMNS).assign(y=y, z=1e3 * np.cos(4 * X[:, 0]) * X[:, 1], often=times)
        found[name] = table.loc[np.repeat(np.arange(len(y)), times)].assign(often=1) if repeated else table
    return found


def coefficients(folder, *, repeated, method="dekrr", target='["y", "z"]'):
    folder.mkdir()
    settings = EXACT if method == "dekrr" else {"rows_per_feature": 0.0, "max_leverage": 1.0, "features": "plain"}
    mesh = Mesh(folder, 3, method=method, settings={**settings, "scale": "minmax"})
    for name, table in tables(mesh, repeated=repeated).items():
        table.to_parquet(mesh.folder / f"{name}.parquet")
        mesh.edit(name, 'target = "y"', f"target = {target}")
        mesh.edit(name, 'weight = ""', 'weight = "often"')
    _, errors = mesh.run_in_threads()
    assert set(errors.values()) == {None}, errors
    return {name: mesh.model(name) for name in mesh.names}


@pytest.mark.parametrize("method", ["dekrr", "allreduce"])
def test_integer_weights_are_repeated_rows_over_the_mesh(tmp_path, method):
    weighted = coefficients(tmp_path / "weighted", repeated=False, method=method)
    repeated = coefficients(tmp_path / "repeated", repeated=True, method=method)
    X = np.random.default_rng(9).uniform(size=(50, 2))
    for name, model in weighted.items():
        assert model.predict(X).shape == (50, 2)
        np.testing.assert_allclose(model.predict(X), repeated[name].predict(X), rtol=1e-9, atol=1e-9)


def test_mistakes_in_targets_and_weights_are_told_at_once(tmp_path):
    mesh = Mesh(tmp_path, 2)
    mesh.edit("s00", 'target = "y"', 'target = ["y", "u", "y"]')
    mesh.edit("s00", 'weight = ""', 'weight = "v"')
    with pytest.raises(SettingsError) as refusal:
        read_site(mesh.home("s00") / "site.toml")
    for words in ("has the target 'u'", "target 'y' appears more than once", "data.weight is 'v'"):
        assert words in str(refusal.value)


def test_several_targets_and_weights_on_the_command_line(tmp_path):
    X, y, sites = make_sites(n_sites=3, rows_per_site=90, random_state=0)
    table = pd.DataFrame(X, columns=["place", "north", "east"])
    table = table.assign(power=y, heat=100 * np.cos(X[:, 0]), often=1 + np.arange(len(y)) % 3, station=sites)
    table.to_csv(tmp_path / "rows.csv", index=False)
    run = CliRunner().invoke
    data, models, out = (str(tmp_path / name) for name in ("rows.csv", "models", "new.csv"))
    targets = ["--target", "power", "--target", "heat", "--site", "station"]
    given = ["--sigma", "0.5", "--alpha", "1e-4", "--consensus", "1", "--n-features", "20", "--quiet"]
    result = run(app, ["fit", data, *targets, "--weight", "often", "--out", models, *given])
    assert result.exit_code == 0, result.output
    model = load(next((tmp_path / "models").glob("*.safetensors")))
    assert model.n_outputs == 2
    assert model.n_features_in_ == 3
    result = run(app, ["predict", models, data, "--site", "station", "--out", out, "--interval", "0.9"])
    assert result.exit_code == 0, result.output
    new = pd.read_csv(out)
    assert ((new.prediction_power_lower <= new.power) & (new.power <= new.prediction_power_upper)).mean() > 0.8
    assert (new.prediction_heat_upper > new.prediction_heat_lower).all()
    result = run(app, ["score", models, data, *targets])
    assert result.exit_code == 0, result.output
    assert "own RSE" in result.output
    result = run(app, ["score", models, data, "--target", "power", "--site", "station"])
    assert result.exit_code != 0
