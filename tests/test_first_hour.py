"""The mistakes of a new user's first hour, and what each of them is told: what is wrong, where, and what to do.

Those of raw columns are in test_frames.py, those of the command line in test_cli.py, and those of cross-validation in
test_model_selection.py.
"""

import os
import pickle

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from safetensors.numpy import save_file
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from dekrr import DataError, DeKRRClassifier, DeKRRRegressor, load
from dekrr.errors import ModelFileError, SettingsError

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(RNG.random((90, 2)), columns=["sun", "wind"])
FRAME["sky"] = RNG.choice(["clear", "cloudy"], 90)
FRAME["station"] = np.repeat(["north", "south", "west"], 30)
FRAME["power"] = np.sin(3 * FRAME["sun"]) + FRAME["wind"]
X, y, SITES = FRAME[["sun", "wind"]].to_numpy(), FRAME["power"].to_numpy(), FRAME["station"].to_numpy()
NORTH, SOUTH = FRAME[FRAME["station"] == "north"], FRAME[FRAME["station"] == "south"]


def regressor(**changes):
    settings = {"n_features": 6, "sigma": 0.5, "alpha": 1e-4, "consensus": 1.0, "random_state": 0}
    return DeKRRRegressor(**settings | changes)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((FRAME, "powr", "station"), "the frame has no column 'powr'; it has 'sun', 'wind', 'sky', 'station', 'power'"),
        ((FRAME, "power", "site"), "the frame has no column 'site'; it has"),
        ((FRAME, "power", "power"), "'power' cannot be both the response and the site"),
        (
            (FRAME, "power", ["station"]),
            r"sites=\['station'\] is a list; for the column of this name give sites='station'",
        ),
        ((FRAME, None, "station"), "y is None: give an array, or the name of the column to predict"),
        ((FRAME, "sky", "station"), "the response of row 0 is '[a-z]+': a regressor predicts numbers; DeKRRClassifier"),
        (
            (FRAME.assign(power=FRAME["power"].map(str)), "power", "station"),
            r"the response of row 0 is '[\d.]+', a number written as text: make all of them numbers, .*pd.to_numeric",
        ),
        (
            (FRAME.assign(sun=FRAME["sun"].map(str)), "power", "station"),
            r"column 'sun' has numbers written as text, such as '.*' in row 0: make them numbers, .*pd.to_numeric",
        ),
        ((FRAME[:0], "power", "station"), "the frame has no rows"),
        ((FRAME[["sun"]], y, SITES[:-1]), "89 site labels for 90 rows; give one label per row"),
        (
            (FRAME[["sun"]], y, FRAME[["station"]]),
            r"must be a vector, got an array of shape \(90, 1\); give one column",
        ),
        (
            ([NORTH, SOUTH], "power"),
            "a list of 2 tables does not say which site each belongs to: give a mapping, as in fit",
        ),
        (({"north": (NORTH[["sun"]], NORTH["power"])},), "put the response into the table, and give its name"),
        (({"north": NORTH, "south": SOUTH},), "say which is the response, as in fit"),
        (({"north": NORTH, "south": SOUTH}, y), "for sources, y is the name of the response's column; got ndarray"),
        (
            ({"north": NORTH, "south": SOUTH}, "power", SITES),
            "a mapping of site to source already says which site has which rows",
        ),
        (({},), "there are no sites"),
        ((X, "power", SITES), "y='power' is the name of a column, but the rows are an array: give y as an array"),
        ((X, y, "station"), "sites='station' is one word: give the site of every row, or rows in a frame"),
        ((X, np.where(np.arange(90) == 4, np.nan, y), SITES), r"Input y contains NaN or infinity: row 4 is nan"),
        ((np.where(X[3, 1] == X, np.nan, X), y, SITES), "row 3 of site 'north', column 1 is nan .1 such values in all"),
        (
            (FRAME[["sun", "sky"]].to_numpy(), y, SITES),
            "column 1 of the array is '[a-z]+', not a number: give the rows as",
        ),
        (
            (X, y, [f"row {k}" for k in range(90)]),
            "every row has a site of its own, such as 'row 0' and 'row 1': sites",
        ),
        (("nowhere.csv", "power", "station"), "nowhere.csv does not exist"),
    ],
)
def test_mistakes_in_fit(arguments, reason):
    with pytest.raises(DataError if "both" not in reason else SettingsError, match=reason):
        regressor().fit(*arguments)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sigma": "big"}, "sigma is 'big'; it must be a positive number, several of them, or \"auto\""),
        ({"n_features": 0}, "n_features is 0; it must be an integer of at least 1"),
        ({"features": "best"}, "features is 'best'; it must be one of 'auto', 'plain', 'energy'"),
        ({"topology": "mesh"}, "topology is 'mesh'; it must be one of 'auto', 'ring'"),
        ({"unknown_sites": "skip"}, "unknown_sites is 'skip'; it must be one of 'error', 'mean'"),
        (
            {"sigma": -1, "alpha": 0},
            "the 'alpha' parameter and the 'sigma' parameter|'alpha' parameter .* 'sigma' param",
        ),
        ({"verbose": -1}, "verbose is -1; it must be an integer of at least 0"),
    ],
)
def test_mistakes_in_settings(changes, reason):
    with pytest.raises(SettingsError, match=reason):
        regressor(**changes).fit(X, y, sites=SITES)


def test_mistakes_that_scikit_learn_words():
    with pytest.raises(NotFittedError, match="not fitted yet"):
        regressor().predict(X)
    with pytest.raises(ValueError, match="Expected 2D array"):
        regressor().fit(y, y, sites=SITES)
    with pytest.raises(TypeError, match=r"Sparse data.*OneHotEncoder\(sparse_output=False\)"):
        regressor().fit(scipy.sparse.csr_matrix(X), y, sites=SITES)
    with pytest.raises(TypeError, match="unexpected keyword argument 'site'"):
        regressor().fit(FRAME, "power", site="station")


@pytest.fixture(scope="module")
def fitted():
    return regressor().fit(FRAME, "power", sites="station")


def test_mistakes_in_predictions(fitted):
    with pytest.raises(DataError, match=r"lacks columns \['sky'\]; the model was trained on \['sun', 'wind', 'sky'\]"):
        fitted.predict(FRAME[["sun", "wind"]], sites=SITES)
    with pytest.raises(DataError, match="has no column 'site'; it has sun, wind"):
        fitted.predict(FRAME, sites="site")
    with pytest.raises(DataError, match="sites='north' is one word"):
        regressor().fit(X, y, sites=SITES).predict(X, sites="north")
    with pytest.raises(DataError, match=r"unknown sites \['nort'\]: .*the sites are 'north', 'south', 'west'"):
        fitted.predict(FRAME.assign(station="nort"), sites="station")
    with pytest.raises(KeyError, match="'nort' is not a site; the sites are 'north', 'south', 'west'"):
        fitted.models_["nort"]
    with pytest.raises(SettingsError, match="unknown metric 'both'"):
        fitted.rse(FRAME, "power", sites="station", metric="both")
    with pytest.raises(
        DataError, match=r"column 'sun' has words .row 0 is 'much'., but the model was trained on numbers"
    ):
        fitted.models_["north"].predict(FRAME.assign(sun="much"))
    with pytest.raises(ValueError, match="X has 1 features, but DeKRRRegressor is expecting 2"):
        regressor().fit(X, y, sites=SITES).predict(X[:, :1], sites=SITES)
    with pytest.raises(DataError, match=r"column 1 of the array is '[a-z]+', not a number"):
        regressor().fit(X, y, sites=SITES).predict(FRAME[["sun", "sky"]].to_numpy(), sites=SITES)


def test_mistakes_with_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere.safetensors"):
        load(tmp_path / "nowhere.safetensors")
    (tmp_path / "table.xlsx").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"table.xlsx is not a kind of file that can be read.*Save it as .csv"):
        regressor().fit(tmp_path / "table.xlsx", "power", sites="station")
    FRAME.to_csv(tmp_path / "table.csv", index=False)
    with pytest.raises(DataError, match=r"table.csv has no column 'powr'; it has"):
        regressor().fit(tmp_path / "table.csv", "powr", sites="station")


def test_missing_sites_are_told_by_column_and_row():
    with pytest.raises(DataError, match="column 'station': row 2 has no site label; drop such rows, or fill it in"):
        regressor().fit(FRAME.assign(station=FRAME["station"].where(FRAME.index != 2)), "power", sites="station")


def test_a_mapping_of_site_to_arrays_is_understood():
    pairs = {label: (X[label == SITES], y[label == SITES]) for label in np.unique(SITES)}
    again, usual = regressor().fit(pairs), regressor().fit(X, y, sites=SITES)
    np.testing.assert_allclose(again.models_["south"].predict(X), usual.models_["south"].predict(X), atol=1e-9)


# A prototype is what deploys


def test_a_deployment_names_every_site_that_it_would_refuse():
    with pytest.raises(
        DataError,
        match=r"would refuse 3 of 3 sites: site 'north' has 30 rows where sums of its 20 features and a neighbour's 20 "
        r"need 60 .rows_per_feature=1.5.; site 'south' .*Join such sites to others, .*or use a smaller n_features",
    ):
        regressor(n_features=20, deployment=True).fit(X, y, sites=SITES)
    small = np.where(np.arange(90) < 5, "tiny", SITES)
    with pytest.raises(DataError, match="would refuse 1 of 4 sites: site 'tiny' has 5 rows, fewer than min_rows=10"):
        regressor(deployment=True).fit(X, y, sites=small)
    with pytest.raises(DataError, match="24 of them in a fold of tuning"):
        regressor(deployment=True, n_features=9, alpha=[1e-4, 1e-3]).fit(X, y, sites=SITES)
    with pytest.raises(SettingsError, match="exchange is 'features'; between organisations it must be 'sums'"):
        regressor(deployment=True, exchange="features").fit(X, y, sites=SITES)


def lonely(n_distinct):
    """Return rows of one column: some that occur once, and the others at five places."""
    rng = np.random.default_rng(n_distinct)
    return np.concatenate([rng.random(n_distinct), rng.choice(np.linspace(0, 1, 5), 220 - n_distinct)])


def test_a_deployment_foresees_rows_that_stand_alone_among_features():
    x = np.concatenate([np.repeat(np.linspace(0, 1, 44), 5), lonely(50), lonely(45)])[:, None]
    labels = np.repeat(["north", "south", "west"], 220)
    alone = {"features": "plain", "shared": None, "local": None, "column_scales": None, "deployment": True}
    narrow = regressor(n_features=60, sigma=0.003, **alone)
    with pytest.raises(DataError) as refused:
        narrow.fit(x, np.sin(5 * x[:, 0]), sites=labels)
    for word in (
        "a deployment would refuse 2 of 3 sites",
        "site 'south' has 220 rows, of which 50 have a leverage near 1 among its 60 features and the 60 of site",
        "site 'west' has 220 rows, of which 45 have a leverage near 1",
        "where sums need 180 others (rows_per_feature=1.5): use a larger sigma or fewer features, which lowers "
        "leverages",
    ):
        assert word in str(refused.value)
    wide = regressor(n_features=60, sigma=0.5, **alone).fit(x, np.sin(5 * x[:, 0]), sites=labels)
    assert not any(verdict.reason for verdict in wide.deployment_.values())


def test_a_refusal_in_the_run_of_a_deployment_says_that_it_is_one(monkeypatch):
    from dekrr.mesh import prototype

    monkeypatch.setattr(prototype, "_standing_alone", lambda *given: {})
    grid = np.repeat(np.linspace(0, 1, 44), 5)
    x = np.concatenate([grid, lonely(50), grid])[:, None]
    alone = {"features": "plain", "shared": None, "local": None, "column_scales": None, "deployment": True}
    with pytest.raises(
        DataError, match=r"a deployment would refuse this run: site '1' has 220 rows, 5[0-9] of which stand"
    ):
        regressor(n_features=60, sigma=0.003, **alone).fit(x, np.sin(5 * x[:, 0]), sites=np.repeat([0, 1, 2], 220))


def test_a_deployment_has_its_own_defaults():
    rows = np.random.default_rng(1).random((600, 2))
    table = rows, rows.sum(axis=1)
    labels = np.repeat(["north", "south", "west"], 200)
    fitted = regressor(deployment=True).fit(*table, sites=labels)
    settings, usual = fitted.run_settings(), regressor().run_settings()
    assert settings.rows_per_feature > 0 == usual.rows_per_feature
    assert settings.max_leverage < 1 == usual.max_leverage
    assert settings.verify_features
    assert settings.max_features == 6
    assert {verdict.n_rows for verdict in fitted.deployment_.values()} == {200}
    given = regressor(deployment=True, rows_per_feature=2.0).run_settings()
    assert given.rows_per_feature == 2.0
    with pytest.warns(UserWarning, match=r"need other names than 'a b': up to 63 ASCII letters \(a to z\)"):
        regressor(deployment=True).fit(*table, sites=np.where(labels == "north", "a b", labels))


def spoilt(column, row, value):
    """Return the frame with another value in a cell, whose column then has any objects."""
    return FRAME.assign(**{column: [value if k == row else old for k, old in enumerate(FRAME[column])]})


TABLES = {site: part[["sun", "wind", "power"]] for site, part in FRAME.groupby("station")}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            (spoilt("power", 7, np.nan), "power", "station"),
            "Input y contains NaN or infinity: row 7 is nan .1 in all.; drop",
        ),
        (
            (spoilt("power", 7, np.inf), "power", "station"),
            "Input y contains NaN or infinity: row 7 is inf .1 in all.; drop",
        ),
        (
            (FRAME.assign(power=pd.date_range("2024-01-01", periods=90)), "power", "station"),
            "the responses are of type datetime64.*: a regressor predicts numbers; make them so, as in hours since",
        ),
        (
            (FRAME.assign(power=FRAME["power"] * 1e200), "power", "station"),
            "the response of row 0 is too large to compute with: give it in another unit",
        ),
        ((pd.concat([FRAME, FRAME[["sun"]]], axis=1), "power", "station"), "two columns of the name 'sun'; rename one"),
        ((pd.concat([FRAME, FRAME[["power"]]], axis=1), "power", "station"), "two columns of the name 'power'; rename"),
        (
            (spoilt("sun", 5, "n/a"), "power", "station"),
            "column 'sun' has words and numbers: row 5 is 'n/a'. Replace the words by None where numbers are",
        ),
        (
            (FRAME.assign(sky=[pd.Timestamp("2024-01-01")] * 89 + ["soon"]), "power", "station"),
            "column 'sky' has dates and other values: row 89 is 'soon'. Make these None where a date is not known",
        ),
        (
            (FRAME.assign(sky=[[1]] * 90), "power", "station"),
            "column 'sky' row 0 is of type list; turn it into a number or a word, or drop",
        ),
        (
            (FRAME.assign(sun=FRAME["sun"] * 1e300), "power", "station"),
            "column 'sun' row 0 is .*, too large to compute with; give the column in another unit, or its logarithm",
        ),
        ((FRAME.assign(sun=[10**400] * 90), "power", "station"), "column 'sun' row 0 is inf; replace infinite values"),
        (
            (X * 1e200, y, SITES),
            "row 0 of site 'north', column 0 is .*, too large to compute with: give the column in another unit",
        ),
        (
            (X, y, np.where(np.arange(90) == 5, np.nan, 1.0)),
            "row 5 has no site label .nan.; drop such rows, or fill it",
        ),
        (
            (FRAME[["power", "station"]], "power", "station"),
            "no column to predict from beside the response, the site and the weight: give it some, or name them",
        ),
        (
            (TABLES | {"south": TABLES["south"].assign(wind="much")}, "power"),
            "column 'wind' has numbers in .*'north'.* and words in .*'south'.*: make it the same everywhere, or",
        ),
        (
            ({"north": X[:30]}, y[:30]),
            "y is the name of the response's column; got ndarray. .* a mapping of site to the pair .X, y., and no y",
        ),
    ],
)
def test_more_mistakes_in_fit(arguments, reason):
    with pytest.raises(DataError, match=reason):
        regressor().fit(*arguments)


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (
            np.where(np.arange(90) == 4, -1, 1),
            "sample_weight: row 4 has the weight -1; a weight is a finite number of at",
        ),
        (
            np.where(np.arange(90) == 4, np.nan, 1),
            "sample_weight: row 4 has the weight nan; a weight is a finite number",
        ),
        (np.zeros(90), "all rows have the weight zero: give at least one row a positive sample_weight"),
        ((SITES != "west").astype(float), "all rows of site 'west' have weight zero: leave the site out, or give it"),
        (np.ones(5), r"sample_weight has the shape \(5,\) for 90 rows; give one weight per row"),
        ("count", "the frame has no column 'count'; it has"),
        ("sky", "sample_weight: row 0 has '[a-z]+', which is not a number; give how often each row counts"),
    ],
)
def test_mistakes_in_weights(weight, reason):
    with pytest.raises(DataError, match=reason):
        regressor().fit(FRAME, "power", sites="station", sample_weight=weight)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (["sun", "rain"], "the frame has no column 'rain'; it has"),
        ("sun", "columns are the names of the columns to predict from, without the response and the site; got 'sun'"),
        (["sun", "power"], r"columns are the names of the columns to predict from, .*; got \['sun', 'power'\]"),
        ([], "no column to predict from"),
    ],
)
def test_mistakes_in_columns(columns, reason):
    with pytest.raises((DataError, SettingsError), match=reason):
        regressor().fit(FRAME, "power", sites="station", columns=columns)


def test_tables_that_people_have_are_taken_as_they_are():
    """Zones of dates, booleans with gaps, categories without rows, large identifiers, Polars, and other orders."""
    import polars as pl

    frame = FRAME.assign(
        when=pd.date_range("2024-01-01", periods=90, freq="h", tz="Europe/Berlin"),
        wet=pd.array([True, False, None] * 30, dtype="boolean"),
        sky=pd.Categorical(FRAME["sky"], categories=["clear", "cloudy", "rain"]),
        code=np.arange(90) + 2**62,
    )
    fitted = regressor().fit(frame, "power", sites="station")
    names = list(fitted.get_feature_names_out())
    assert "sky=rain" not in names
    assert "wet missing" in names
    assert "when hour sin" in names
    expected = fitted.predict(frame, sites="station")
    assert np.isfinite(expected).all()
    for other in (frame[frame.columns[::-1]], frame.assign(more=1), pl.from_pandas(frame)):
        np.testing.assert_allclose(fitted.predict(other, sites="station"), expected, atol=1e-9)
    one = frame[fitted.feature_names_in_].iloc[0].tolist()
    np.testing.assert_allclose(fitted.predict([one], sites=["north"]), expected[:1], atol=1e-9)
    pair = regressor().fit(
        pl.from_pandas(FRAME[["sun", "wind"]]), pl.Series(y.tolist()), sites=pl.Series(SITES.tolist())
    )
    np.testing.assert_allclose(pair.predict(X, sites=SITES), regressor().fit(X, y, sites=SITES).predict(X, sites=SITES))
    assert regressor().fit(FRAME.assign(power=y > 1), "power", sites="station").score(FRAME, y > 1, sites="station") > 0


def test_mistakes_with_model_files(fitted, tmp_path):
    model = fitted.models_["north"]
    with pytest.raises(IsADirectoryError, match=r"is a folder: give a file in it, such as .*model.safetensors"):
        model.save(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"the folder .*nowhere of m.safetensors does not exist: make it first"):
        model.save(tmp_path / "nowhere" / "m.safetensors")
    with pytest.raises(ModelFileError, match=r"is a folder: give one of its model files, which end in .safetensors"):
        load(tmp_path)
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(fitted))
    FRAME.to_csv(tmp_path / "table.csv")
    (tmp_path / "empty.safetensors").write_bytes(b"")
    for name in ("model.pkl", "table.csv", "empty.safetensors"):
        reason = rf"{name} is damaged, or not a model file: it does not begin as one\. .* by models_.site..save"
        with pytest.raises(ModelFileError, match=reason):
            load(tmp_path / name)
    save_file({"a": np.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(ModelFileError, match=r"^\S+other.safetensors is a safetensors file, but not a dekrr model"):
        load(tmp_path / "other.safetensors")


def test_a_folder_that_cannot_be_written_to_is_named(fitted, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError, match=r"the folder .* of m.safetensors cannot be written to: give another one"):
        fitted.models_["north"].save(tmp_path / "m.safetensors")


def test_pickles_and_clones_of_estimators(fitted):
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(FRAME, sites="station"), fitted.predict(FRAME, sites="station"))
    with pytest.raises(NotFittedError, match="not fitted yet"):
        clone(fitted).fit_summary()


KINDS = FRAME.assign(kind=np.where(FRAME["power"] > FRAME["power"].median(), "high", "low"))
OF_KINDS = ["sun", "wind", "sky"]


def classifier():
    return DeKRRClassifier(n_features=6, sigma=0.5, alpha=1e-4, consensus=1.0, random_state=0)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            (KINDS.assign(kind="a"), "kind", "station"),
            "there is one class, 'a': a classifier needs rows of at least two",
        ),
        (
            (KINDS.assign(kind=KINDS["kind"].where(KINDS.index != 4)), "kind", "station"),
            'row 4 has no class .1 in all.; drop such rows, or give them a class of their own, such as "unknown"',
        ),
        ((X, [None, *KINDS["kind"][1:]], SITES), "row 0 has no class .1 in all.; drop such rows"),
        (
            (KINDS, "power", "station"),
            "Unknown label type: continuous. .* such as .*: DeKRRRegressor predicts numbers, and a classifier takes",
        ),
        ((KINDS, "sort", "station"), "the frame has no column 'sort'; it has"),
        ((KINDS, None, "station"), "DeKRRClassifier requires y to be passed"),
        (
            ("table.csv", "kind", "station"),
            "a classifier takes arrays and frames, not files or mappings: read them into",
        ),
    ],
)
def test_mistakes_with_classes(arguments, reason):
    with pytest.raises(DataError, match=reason):
        classifier().fit(*arguments)


def test_mistakes_with_predictions_of_classes():
    fitted = classifier().fit(KINDS, "kind", sites="station", columns=OF_KINDS)
    with pytest.raises(
        DataError, match="y='kind' is the name of a column, but the rows are not a frame: give the class of"
    ):
        classifier().fit(X, KINDS["kind"], sites=SITES).score(X, "kind", sites=SITES)
    by_name = fitted.predict_set(KINDS, sites="station")
    np.testing.assert_array_equal(by_name, fitted.predict_set(KINDS[OF_KINDS], sites=SITES))
    assert fitted.score(KINDS, "kind", sites="station") == fitted.score(KINDS[OF_KINDS], KINDS["kind"], sites=SITES)
    union = {"metric": "union", "loss": "log_loss"}
    assert fitted.score(KINDS, "kind", "station", **union) == fitted.score(
        KINDS[OF_KINDS], KINDS["kind"], SITES, **union
    )
    alone = classifier().fit(X, KINDS["kind"], sites=["here"] * 90)
    np.testing.assert_array_equal(alone.predict_set(X), alone.models_["here"].predict_set(X))
