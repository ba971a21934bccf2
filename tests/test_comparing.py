"""Alone, together and pooled on one table, in Python and on the command line; and rows far outside training."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner

import dekrr
from dekrr import DeKRRRegressor, LocalRegressor, rse
from dekrr.cli.app import app
from dekrr.data import make_sites
from dekrr.errors import DataError, DekrrWarning, SettingsError
from dekrr.lab.comparing import _dealt, _hashes
from dekrr.lab.yardsticks import _PENALTIES, Task, _ridge, best, losses_of

SMALL = {"n_features": 20, "random_state": 0}


def table_of(n_sites=5, n_rows=50, seed=0, level=3.0, same=True):
    """Return a table whose sites have levels of their own, and the same curve or each another."""
    rng = np.random.default_rng(seed)
    place = np.repeat(np.arange(n_sites), n_rows)
    a, b = rng.uniform(-1, 1, size=(2, len(place)))
    turn = np.zeros(n_sites) if same else rng.uniform(0, 6, size=n_sites)
    y = rng.normal(scale=level, size=n_sites)[place] + np.sin(3 * a + turn[place]) + 0.2 * rng.normal(size=len(place))
    words = np.where(b > 0, "wet", "dry")
    return pd.DataFrame({"a": a, "sky": words, "site": [f"s{k}" for k in place], "y": y})


@pytest.fixture(scope="module")
def found():
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)  # it gives no keyword that goes
        return dekrr.compare(table_of(), "y", "site", folds=3, **SMALL)


def test_sites_that_share_a_curve_gain_by_joining(found):
    assert list(found.index) == ["s0", "s1", "s2", "s3", "s4", "all"]
    assert list(found.columns) == ["rows", "alone", "alone_by", "together", "pooled", "pooled_by"]
    assert found["rows"].tolist() == [50] * 5 + [250]
    assert set(found["alone_by"]) <= {"mean", "ridge", "trees"}
    assert found.loc["all", "together"] < found.loc["all", "alone"]
    verdict, better = found.attrs["verdict"], (found["together"] < found["alone"])[:-1].sum()
    assert verdict.startswith(f"Join: together has less error than alone at {better} of 5 sites")
    assert f"the RSE is {found.loc['all', 'together']:.3g} together, {found.loc['all', 'alone']:.3g} alone" in verdict


def test_the_errors_together_are_those_of_the_estimator_on_the_same_folds(found):
    table = table_of()
    X, y, index = table[["a", "sky"]], table["y"].to_numpy(), pd.factorize(table["site"])[0]
    fold_of, predicted = _dealt(_hashes(X, y), index, 3), np.empty(len(y))
    for fold in range(3):
        regressor = DeKRRRegressor(**SMALL).fit(table[fold_of != fold], "y", sites="site")
        predicted[fold_of == fold] = regressor.predict(table[fold_of == fold], sites="site")
    assert found.loc["all", "together"] == pytest.approx(rse(y, predicted))
    own = index == 2
    assert found.loc["s2", "together"] == pytest.approx(rse(y[own], predicted[own]))


def test_a_transform_is_one_of_all():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=240), "site": np.arange(240) % 4})
    table["y"] = np.exp(3 * table.a + rng.normal(0, 0.1, 240))
    plain = dekrr.compare(table, "y", "site", test=0.25, **SMALL)
    of_logarithm = dekrr.compare(table, "y", "site", test=0.25, transform="log", **SMALL)
    for way in ("alone", "together", "pooled"):
        assert of_logarithm.loc["all", way] < plain.loc["all", way]


def test_sites_of_noise_lose_nothing_by_joining():
    verdicts = set()
    for seed in range(3):
        rng = np.random.default_rng(seed)
        table = pd.DataFrame({"a": rng.random(200), "y": rng.normal(size=200), "site": np.arange(200) % 4})
        found = dekrr.compare(table, "y", "site", test=0.25, **SMALL)
        verdicts.add(found.attrs["verdict"].split(":")[0])
        assert found.loc["all", "rows"] == pytest.approx(50, abs=4)
        assert found.loc["all", "together"] < min(1.05, found.loc["all", "alone"])
    assert "Joining changes little" in verdicts
    assert "Stay alone" not in verdicts


def test_a_site_that_may_join_is_predicted_without_its_rows():
    table = table_of(level=0.0, n_sites=4)
    found = dekrr.compare(table, "y", "site", test=0.25, leave_out=["s1"], **SMALL)
    new = table["site"] == "s1"
    others = DeKRRRegressor(**SMALL).fit(table[~new], "y", sites="site")
    predicted = np.mean([model.predict(table[new], elsewhere=True) for model in others.models_.values()], axis=0)
    assert found.loc["s1", "left_out"] == pytest.approx(rse(table["y"][new], predicted))
    assert found["left_out"].isna().sum() == 4
    with pytest.raises(DataError, match="unknown sites 's9'"):
        dekrr.compare(table, "y", "site", test=0.25, leave_out=["s9"], **SMALL)


def test_classes_are_compared_by_log_loss():
    table = table_of(n_sites=3, n_rows=60)
    table["y"] = np.where(table["y"] > table["y"].median(), "high", "low")
    found = dekrr.compare(table, "y", "site", test=0.25, **SMALL)
    assert found.attrs["measure"] == "log loss"
    assert set(found["pooled_by"]) <= {"logistic", "trees"}
    assert np.isfinite(found[["alone", "together", "pooled"]]).all().all()
    assert found.loc["all", "together"] < np.log(2)


def test_a_target_of_two_values_is_told_to_be_compared_as_a_number():
    table = table_of(n_sites=3, n_rows=40)
    table["y"] = (table["y"] > table["y"].median()).astype(int)
    with pytest.warns(DekrrWarning, match="two values alone, 0 and 1.*classes=True"):
        as_numbers = dekrr.compare(table, "y", "site", test=0.25, **SMALL)
    as_classes = dekrr.compare(table, "y", "site", test=0.25, classes=True, **SMALL)
    assert (as_numbers.attrs["measure"], as_classes.attrs["measure"]) == ("RSE", "log loss")


def test_a_site_of_one_row_is_never_tested_and_takes_part():
    table = pd.concat([table_of(n_sites=3, n_rows=40), table_of(n_sites=1, n_rows=1).assign(site="one")])
    found = dekrr.compare(table, "y", "site", test=0.5, **SMALL)
    assert found.loc["one", "rows"] == 0
    assert np.isnan(found.loc["one", "alone"])
    assert " of 3 sites" in found.attrs["verdict"]


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"test": 0.7}, SettingsError, "test is the share of rows to hold out"),
        ({"folds": 1}, SettingsError, "folds is 1"),
        ({"table": table_of().assign(site="only")}, DataError, "there is only one site, 'only'"),
        ({"table": table_of().to_numpy()[:, :1]}, DataError, "names of columns need a frame"),
        ({"table": table_of().assign(y=np.nan)}, DataError, "missing or infinite values"),
    ],
)
def test_mistakes(given, error, told):
    with pytest.raises(error, match=told):
        dekrr.compare(**{"table": table_of(), "target": "y", "sites": "site", **SMALL, **given})


def test_folds_keep_equal_rows_together_and_leave_every_site_some():
    table = pd.concat([table_of(n_rows=7), table_of(n_rows=7)])
    X, index = table[["a", "sky"]], pd.factorize(table["site"])[0]
    fold_of = _dealt(_hashes(X, table["y"].to_numpy()), index, 5)
    assert (fold_of[:35] == fold_of[35:]).all()
    for place in range(5):
        assert np.ptp(np.bincount(fold_of[index == place], minlength=5)) <= 2
    order = np.random.default_rng(0).permutation(70)
    again = _dealt(_hashes(X.iloc[order], table["y"].to_numpy()[order]), index[order], 5)
    assert (again == fold_of[order]).all()


def test_ridge_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    X, folds = rng.normal(size=(60, 4)) * [1, 10, 0.1, 0], np.arange(60) % 5
    y = X @ [1.0, 0.1, 3.0, 0.0] + rng.normal(size=60)
    task = Task(X, y, folds, 0, np.zeros(60, dtype=int))
    loss, predictor = _ridge(task)
    by_hand = []
    for penalty in _PENALTIES:
        out = np.empty(60)
        for fold in range(5):
            scaler = StandardScaler().fit(X[folds != fold])
            model = Ridge(alpha=penalty).fit(scaler.transform(X[folds != fold]), y[folds != fold])
            out[folds == fold] = model.predict(scaler.transform(X[folds == fold]))
        by_hand.append(np.mean((out - y) ** 2))
    assert loss == pytest.approx(min(by_hand))
    model = Ridge(alpha=_PENALTIES[np.argmin(by_hand)]).fit(StandardScaler().fit_transform(X), y)
    np.testing.assert_allclose(predictor()(X, task.site), model.predict(StandardScaler().fit_transform(X)))


def test_pooled_yardsticks_know_the_site():
    rng = np.random.default_rng(0)
    site = np.arange(600) % 6
    X, y = rng.random((600, 1)), 10.0 * site + 0.1 * rng.normal(size=600)
    task = Task(X, y, rng.integers(5, size=600), 0, site, 6)
    for mean in (True, False):
        kind, predict = best(task, mean=mean)
        assert kind in ("ridge", "trees")
        assert losses_of(y, predict(X, site), 0).mean() < 0.1


def test_the_command_prints_a_table_and_json_and_draws(tmp_path):
    table_of(n_sites=3, n_rows=40).to_csv(tmp_path / "rows.csv", index=False)
    arguments = ["compare", str(tmp_path / "rows.csv"), "--target", "y", "--site", "site", "--test", "0.25"]
    result = CliRunner().invoke(app, [*arguments, "--picture", str(tmp_path / "sites.png")], catch_exceptions=False)
    assert "together has less error than alone at" in result.output
    assert (tmp_path / "sites.png").read_bytes().startswith(b"\x89PNG")
    told = CliRunner().invoke(app, [*arguments, "--json", "--leave-out", "s1"], catch_exceptions=False)
    facts = json.loads(told.stdout)
    assert set(facts["sites"]) == {"s0", "s1", "s2"}
    assert facts["measure"] == "RSE"
    assert facts["all"]["left_out"] is None
    assert facts["sites"]["s1"]["left_out"] > 0
    found = dekrr.compare(tmp_path / "rows.csv", "y", "site", test=0.25, random_state=0)
    assert facts["all"]["together"] == pytest.approx(found.loc["all", "together"])
    assert facts["verdict"] == found.attrs["verdict"]


def test_many_sites_are_drawn_together_against_alone(found):
    many = pd.concat([found.iloc[:5]] * 8, ignore_index=True)
    many.attrs.update(found.attrs)
    axes = dekrr.plot.comparison(many)
    assert axes.get_xlabel() == "RSE alone"
    assert len(dekrr.plot.comparison(found).get_yticks()) == 5


def test_real_sites(data_directory):
    path = data_directory / "sites" / "heart_hospitals.parquet"
    if not path.exists():
        pytest.skip(f"needs {path.name} in {path.parent}")
    table = pd.read_parquet(path)
    target, site = table.columns[-1], table.columns[0]
    for name in table.columns:
        site = name if table[name].dtype.kind in "OU" and table[name].nunique() <= 6 else site
    target = [name for name in table.columns if name != site][-1]
    found = dekrr.compare(table.dropna(subset=[target]), target, site, test=0.25, random_state=0)
    assert np.isfinite(found.loc["all", ["alone", "together", "pooled"]].astype(float)).all()


def told_by(do, kind="rows lie far outside"):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        do()
    return [str(one.message) for one in caught if issubclass(one.category, DekrrWarning) and kind in str(one.message)]


def test_sites_alone_have_bounds_of_their_own():
    X, y, stations = make_sites(random_state=0)
    alone = LocalRegressor(n_features=10, sigma=0.3, alpha=1e-4, random_state=0).fit(X, y, sites=stations)
    assert not told_by(lambda: alone.predict(X, sites=stations))  # other sites' rows are no guide to what is far


def test_rows_far_outside_training_are_told_once_in_a_call():
    table = table_of(n_sites=3)
    regressor = DeKRRRegressor(**SMALL).fit(table, "y", sites="site")
    low, high = table["a"].min(), table["a"].max()
    few = table.copy()
    few.loc[0, "a"] = high + 0.2 * (high - low)  # one row of 150, by a fifth of the span
    many = table.assign(a=table["a"] + (high - low))
    assert not told_by(lambda: regressor.predict(table, sites="site"))
    assert not told_by(lambda: regressor.predict(few, sites="site"))
    far = int((many["a"] > high + 0.1 * (high - low)).sum())
    (told,) = told_by(lambda: regressor.predict(many, sites="site"))
    assert told.startswith(f"{far} of 150 rows lie far outside what the models were trained on, in 'a' ({far})")
    assert len(told_by(lambda: regressor.predict_interval(many, sites="site"))) == 1
    few.loc[0, "a"] = high + 5 * (high - low)
    (told,) = told_by(lambda: regressor.predict(few, sites="site"))
    assert told.startswith("1 of 150 rows")
    unscaled = DeKRRRegressor(scale=None, sigma=0.3, **SMALL).fit(table[["a"]], table["y"], sites=table["site"])
    assert not told_by(lambda: unscaled.predict(many[["a"]], sites=table["site"]))


def test_fit_and_score_print_json(tmp_path):
    table = table_of(n_sites=3, n_rows=60)
    table.to_csv(tmp_path / "rows.csv", index=False)
    common = [str(tmp_path / "rows.csv"), "--target", "y", "--site", "site", "--json"]
    fit = CliRunner().invoke(
        app,
        ["fit", *common, "--out", str(tmp_path / "models"), "--n-features", "20", "--quiet"],
        catch_exceptions=False,
    )
    facts = json.loads(fit.stdout)
    assert facts["sites"] == {f"s{k}": {"rows": 60} for k in range(3)}
    assert set(facts["held_out"]["sites"]) == set(facts["second_training"]["RSE"]["sites"]) == {"s0", "s1", "s2"}
    score = CliRunner().invoke(app, ["score", str(tmp_path / "models"), *common], catch_exceptions=False)
    found = json.loads(score.stdout)
    predicted = DeKRRRegressor(**SMALL).fit(tmp_path / "rows.csv", "y", sites="site").predict(table, sites="site")
    assert found["own"] == pytest.approx(rse(table["y"], predicted), rel=1e-6)
    assert found["rows"] == 180


def test_json_of_classes_has_the_figures_of_each_site_and_no_nan(tmp_path):
    table = table_of(n_sites=3, n_rows=60)
    table.assign(y=np.where(table["y"] > table["y"].median(), "high", "low")).to_csv(tmp_path / "rows.csv", index=False)
    common = [str(tmp_path / "rows.csv"), "--target", "y", "--site", "site", "--json"]
    out = ["--out", str(tmp_path / "models"), "--n-features", "20", "--quiet"]

    def printed(*arguments):
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        return json.loads(result.stdout, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))

    fitted = printed("fit", *common, *out)["held_out"]
    scored = printed("score", str(tmp_path / "models"), *common)
    for found in (fitted, scored):
        assert found["measure"] == "accuracy and log loss"
        assert set(found["sites"]) == {"s0", "s1", "s2"}
        assert all(set(each["own"]) == {"accuracy", "log loss"} for each in found["sites"].values())
    one = table[table["site"] == "s0"].assign(y=1.0)  # of a response that does not vary there is no relative error
    one.to_csv(tmp_path / "rows.csv", index=False)
    table.to_csv(tmp_path / "all.csv", index=False)
    printed("fit", str(tmp_path / "all.csv"), *common[1:], *out, "--force")
    assert printed("score", str(tmp_path / "models"), *common)["union"] is None
