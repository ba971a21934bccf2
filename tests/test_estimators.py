import datetime
import inspect
import pickle
import re
import subprocess
import sys
import warnings
from itertools import pairwise
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import dekrr
from dekrr import (
    AllReduceRegressor,
    CentralizedKRR,
    CentralizedRFF,
    COKERegressor,
    DataError,
    DeKRRClassifier,
    DeKRRRegressor,
    DKLARegressor,
    EnergySelector,
    GreedySelector,
    LocalRegressor,
    SettingsError,
    TopologyError,
)
from dekrr.data import make_sites
from dekrr.estimators.site_regressor import parameters_of, value_of
from dekrr.settings import ALONE
from test_conformance import Postman

X, y, SITES = make_sites(n_sites=5, random_state=0)
X_NEW, Y_NEW, SITES_NEW = make_sites(n_sites=5, random_state=1)
ALL = [
    DeKRRRegressor,
    DKLARegressor,
    COKERegressor,
    AllReduceRegressor,
    LocalRegressor,
    CentralizedKRR,
    CentralizedRFF,
]


def regressor(**changes):
    return DeKRRRegressor(
        **{**ALONE, "n_features": 16, "sigma": 0.3, "alpha": 1e-4, "consensus": 1.0, "random_state": 0, **changes}
    )


# The default DeKRR tunes itself over 90 candidates; the conventions do not depend on how many there are.
QUICK = {"n_features": 10, "folds": 2, "sigma": 1.0, "alpha": (1e-6, 1e-3), "consensus": (0.5, 1.0)}


@parametrize_with_checks([cls(**QUICK) if cls is DeKRRRegressor else cls() for cls in ALL])
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


@pytest.mark.parametrize("cls", ALL)
def test_the_shape_all_share(cls):
    size = {} if cls is CentralizedKRR else {"n_features": 16}
    size |= {"consensus": 1.0} if cls is DeKRRRegressor else {}
    fitted = clone(cls(sigma=0.3, alpha=1e-4, random_state=0, **size)).fit(X, y, sites=SITES)
    assert fitted.sites_ == sorted(set(SITES))
    assert set(fitted.models_) == set(SITES)
    prediction = fitted.predict(X_NEW, sites=SITES_NEW)
    for site in fitted.sites_:
        own = site == SITES_NEW
        np.testing.assert_allclose(prediction[own], fitted.models_[site].predict(X_NEW[own]), atol=1e-12)
    own_rse = np.sum((prediction - Y_NEW) ** 2) / np.sum((Y_NEW - Y_NEW.mean()) ** 2)
    assert fitted.rse(X_NEW, Y_NEW, sites=SITES_NEW) == pytest.approx(own_rse)
    assert fitted.score(X_NEW, Y_NEW, sites=SITES_NEW) == pytest.approx(1 - own_rse)
    union = np.mean([dekrr.rse(Y_NEW, fitted.models_[site].predict(X_NEW, elsewhere=True)) for site in fitted.sites_])
    assert fitted.rse(X_NEW, Y_NEW, metric="union") == pytest.approx(union)
    assert np.isfinite(fitted.objective_)


def test_rows_without_a_site_get_the_mean_of_the_models():
    fitted = regressor().fit(X, y, sites=SITES)
    expected = np.mean([model.predict(X_NEW) for model in fitted.models_.values()], axis=0)
    np.testing.assert_allclose(fitted.predict(X_NEW), expected)


def test_fit_without_sites_deals_rows_out():
    assert regressor(n_sites=7).fit(X, y).sites_ == list(range(7))
    assert regressor(n_sites=7, min_rows=10).fit(X[:25], y[:25]).sites_ == [0, 1]
    assert regressor().fit(X[:5], y[:5]).sites_ == [0]


@pytest.mark.parametrize(
    "label",
    [
        lambda j: j,
        lambda j: f"site {j}",
        lambda j: (j, "x"),
        lambda j: frozenset([j]),
        lambda j: j if j % 2 else str(j),
        lambda j: j / 2,
        lambda j: bool(j % 2),
        lambda j: pd.Timestamp(2020, 1, 1 + j),
    ],
)
def test_any_hashable_label(label):
    index = np.unique(SITES, return_inverse=True)[1]
    labels = [label(int(j)) for j in index]
    fitted = regressor().fit(X, y, sites=labels)
    assert set(fitted.sites_) == set(labels)
    assert np.isfinite(fitted.predict(X, sites=labels)).all()


def test_labels_do_not_matter_but_for_their_random_numbers():
    index = np.unique(SITES, return_inverse=True)[1]
    fits = [
        regressor().fit(X, y, sites=labels) for labels in (index, index.tolist(), pd.Series(index), pl.Series(index))
    ]
    for other in fits[1:]:
        np.testing.assert_array_equal(fits[0].predict(X_NEW), other.predict(X_NEW))


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_frames_with_names(frame):
    columns = ["place", "north", "east"]
    table = frame({name: X[:, k] for k, name in enumerate(columns)})
    fitted = regressor().fit(table, y, sites=SITES)
    assert fitted.feature_names_in_.tolist() == columns
    np.testing.assert_array_equal(fitted.predict(table), fitted.predict(table[columns]))
    model = fitted.models_["station 00"]
    assert model.header.columns == columns
    np.testing.assert_allclose(model.predict(table[columns[::-1]]), model.predict(X))
    with pytest.raises(DataError, match=r"lack columns \['place'\]"):
        model.predict(table[["north", "east"]])
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(table[columns[::-1]])


def test_pipeline_and_grid_search_route_sites():
    with sklearn.config_context(enable_metadata_routing=True):
        inner = regressor().set_fit_request(sites=True).set_score_request(sites=True)
        search = GridSearchCV(
            inner, {"sigma": [0.05, 0.3], "consensus": [0.5, 1.0]}, cv=KFold(3, shuffle=True, random_state=0)
        )
        search.fit(X, y, sites=SITES)
        assert search.best_params_["sigma"] == 0.3
        pipeline = make_pipeline(StandardScaler(), inner.set_predict_request(sites=True))
        pipeline.fit(X, y, sites=SITES)
        assert pipeline.predict(X, sites=SITES).shape == y.shape


def test_a_fold_can_keep_every_site():
    folds = StratifiedKFold(3).split(X, SITES)
    train, test = next(folds)
    fitted = regressor().fit(X[train], y[train], sites=SITES[train])
    assert fitted.rse(X[test], y[test], sites=SITES[test]) < 0.5


def test_features_per_site():
    sizes = {site: 6 + 2 * k for k, site in enumerate(sorted(set(SITES)))}
    by_name = regressor(n_features=sizes).fit(X, y, sites=SITES)
    in_order = regressor(n_features=list(sizes.values())).fit(X, y, sites=SITES)
    assert {site: model.feature_map.n_features for site, model in by_name.models_.items()} == sizes
    np.testing.assert_array_equal(by_name.predict(X), in_order.predict(X))
    with pytest.raises(SettingsError, match="n_features has 2 entries for 5 sites"):
        regressor(n_features=[3, 4]).fit(X, y, sites=SITES)


def test_selector_objects_bring_their_own_settings():
    selector = GreedySelector(sigma=0.3, bandwidths=(1.0, 2.0), pool_ratio=5)
    fitted = regressor(features=selector, sigma="auto").fit(X, y, sites=SITES)
    assert fitted.sigma_ == 0.3
    assert fitted.rse(X, y, sites=SITES) < 0.3
    assert fitted.models_["station 00"].feature_map.n_features == 16


def test_sites_of_very_different_sizes():
    index = np.concatenate([np.zeros(250, int), np.ones(30, int), np.full(20, 2)])
    fitted = regressor(allocation="sqrt").fit(X, y, sites=index)
    assert fitted.rse(X, y, sites=index) < 0.5


def test_neighbourhood_prediction_weighs_own_and_neighbours():
    graph = nx.path_graph(sorted(set(SITES)))
    own, mean = (regressor(topology=graph, prediction=p).fit(X, y, sites=SITES) for p in ("own", "neighborhood"))
    for site in own.sites_:
        around = np.mean([own.models_[p].predict(X_NEW) for p in graph[site]], axis=0)
        expected = (own.models_[site].predict(X_NEW) + around) / 2
        np.testing.assert_allclose(mean.models_[site].predict(X_NEW), expected, atol=1e-12)
    assert mean.traffic_.total_bytes == own.traffic_.total_bytes


def test_scaling_is_undone():
    shifted = regressor().fit(1000 * X + 5, 30 * y - 7, sites=SITES)
    plain = regressor().fit(X, y, sites=SITES)
    np.testing.assert_allclose(shifted.predict(1000 * X_NEW + 5), 30 * plain.predict(X_NEW) - 7, rtol=1e-6)


def test_not_reaching_tol_warns_and_says_how_far():
    with pytest.warns(ConvergenceWarning, match="stopped after 4 rounds at a relative residual of .*, above tol=1e-12"):
        regressor(tol=1e-12, max_rounds=4).fit(X, y, sites=SITES)


def test_history_and_traffic():
    fitted = regressor(tol=0.0, max_rounds=9).fit(X, y, sites=SITES)
    assert fitted.n_rounds_ == 9
    assert fitted.history_["objective"].shape == (10,)
    assert fitted.history_["objective"][-1] == fitted.objective_
    assert set(fitted.traffic_.bytes) == {edge for a, b in fitted.graph_.edges for edge in ((a, b), (b, a))}


# Bad input: each gets an error that says what, where and what to do.


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_missing_values(value):
    bad = pd.DataFrame(X, columns=["place", "north", "east"])
    bad.iloc[7, 1] = value
    if np.isnan(value):
        assert regressor().fit(bad, y, sites=SITES).columns_.names == ["place", "north", "east"]
    else:
        with pytest.raises(DataError, match=rf"row 7 of site '{SITES[7]}', column 'north' is {value}"):
            regressor().fit(bad, y, sites=SITES)
    with pytest.raises(DataError, match=rf"row 7 of site '{SITES[7]}', column 1 is {value}"):
        regressor().fit(bad.to_numpy(), y, sites=SITES)
    fitted = regressor().fit(X, y, sites=SITES)
    with pytest.raises(DataError, match="row 7, column 1"):
        fitted.predict(bad.to_numpy())
    with pytest.raises(DataError, match="row 7, column 1"):
        fitted.models_["station 00"].predict(bad.to_numpy())
    responses = y.copy()
    responses[4] = value
    with pytest.raises(DataError, match=f"row 4 is {value}"):
        regressor().fit(X, responses, sites=SITES)


def test_constant_columns_and_responses():
    constant = np.column_stack([X, np.full(len(X), 3.0)])
    np.testing.assert_allclose(
        regressor(features="plain").fit(constant, y, sites=SITES).score(constant, y, sites=SITES),
        regressor(features="plain").fit(X, y, sites=SITES).score(X, y, sites=SITES),
        atol=0.3,
    )
    flat = regressor().fit(X, np.full(len(X), 5.0), sites=SITES)
    np.testing.assert_allclose(flat.predict(X_NEW), 5.0)


def test_a_site_with_one_row():
    labels = SITES.astype(object)
    labels[0] = "hermit"
    with pytest.raises(DataError, match="site 'hermit' has 1 row, fewer than min_rows=2"):
        regressor(min_rows=2).fit(X, y, sites=labels)
    fitted = regressor().fit(X, y, sites=labels)
    assert np.isfinite(fitted.models_["hermit"].predict(X_NEW)).all()
    assert np.isfinite(LocalRegressor(n_features=16).fit(X, y, sites=labels).predict(X)).all()


def test_zero_rows():
    with pytest.raises(ValueError, match="0 sample"):
        regressor().fit(np.empty((0, 3)), np.empty(0))
    with pytest.raises(TopologyError, match="sites without data: 'ghost'"):
        regressor(topology=[*nx.path_graph(sorted(set(SITES))).edges, ("station 00", "ghost")]).fit(X, y, sites=SITES)


def test_mismatched_lengths():
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        regressor().fit(X, y[:-1], sites=SITES)
    with pytest.raises(DataError, match=f"{len(X) - 1} site labels for {len(X)} rows"):
        regressor().fit(X, y, sites=SITES[:-1])


def test_missing_and_odd_labels():
    labels = SITES.astype(object)
    labels[3] = None
    with pytest.raises(DataError, match="row 3 has no site label"):
        regressor().fit(X, y, sites=labels)
    with pytest.raises(DataError, match="row 0 has no site label"):
        regressor().fit(X, y, sites=np.full(len(X), np.nan))
    with pytest.raises(DataError, match="must be a vector"):
        regressor().fit(X, y, sites=np.zeros((len(X), 2)))
    with pytest.raises(DataError, match="not hashable"):
        regressor().fit(X, y, sites=[[1]] * len(X))


def test_unknown_site_at_predict():
    fitted = regressor().fit(X, y, sites=SITES)
    with pytest.raises(DataError, match=r"unknown sites \['atlantis'\].*the sites are 'station 00'"):
        fitted.predict(X[:1], sites=["atlantis"])


@pytest.mark.parametrize("name", ["sigma", "alpha"])
@pytest.mark.parametrize("value", [0, -1.0, "wide"])
def test_bad_sigma_and_alpha(name, value):
    with pytest.raises(ValueError, match=f"The '{name}' parameter"):
        regressor(**{name: value}).fit(X, y, sites=SITES)


def test_disconnected_graph():
    labels = sorted(set(SITES))
    with pytest.raises(TopologyError, match="falls into 2 parts"):
        regressor(topology=[tuple(labels[:2]), *pairwise(labels[2:])]).fit(X, y, sites=SITES)


def test_more_features_than_the_pool():
    with pytest.raises(SettingsError, match="16 features cannot be chosen from a pool of 8"):
        regressor(features=GreedySelector(pool_ratio=0.5, linear=False)).fit(X, y, sites=SITES)


def test_unknown_metric():
    with pytest.raises(SettingsError, match="unknown metric 'both'"):
        regressor().fit(X, y, sites=SITES).rse(X, y, metric="both")


def test_import_is_light():
    heavy = ("matplotlib", "zenoh", "typer", "rich", "pandas", "pyarrow", "sklearn", "scipy")
    code = f"import sys, dekrr; print([m for m in {heavy!r} if m in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


def test_public_names_are_there():
    assert all(hasattr(dekrr, name) for name in dekrr.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        dekrr.nonsense  # noqa: B018


def test_metrics_take_columns_and_refuse_what_does_not_fit():
    assert dekrr.rse([[0.0], [2.0]], [0.0, 1.0]) == dekrr.rse([0.0, 2.0], [[0.0], [1.0]]) == 0.5
    for y, prediction, reason in (([1, 2, 3], [1], "1 predictions for 3"), ([], [], "no rows to score")):
        with pytest.raises(DataError, match=reason):
            dekrr.rse(y, prediction)


def test_a_pipeline_scores_with_sites():
    with sklearn.config_context(enable_metadata_routing=True):
        routed = regressor().set_fit_request(sites=True).set_score_request(sites=True)
        routed.set_predict_request(sites=True)
        pipeline = make_pipeline(StandardScaler(), routed).fit(X, y, sites=SITES)
        plain = pipeline.score(X, y, sites=SITES)
        assert plain == pytest.approx(1 - pipeline[-1].rse(pipeline[0].transform(X), y, sites=SITES))
        weights = np.linspace(1, 2, len(y))
        weighted = routed.fit(X, y, sites=SITES).score(X, y, sites=SITES, sample_weight=weights)
        assert weighted == pytest.approx(r2_score(y, routed.predict(X, sites=SITES), sample_weight=weights))


def test_a_fit_that_fails_leaves_the_estimator_as_it_was():
    fitted = regressor().fit(X, y, sites=SITES)
    before = dict(fitted.__dict__)
    with pytest.raises(DataError, match="every row has a site of its own, such as 0 and 1"):
        fitted.fit(X[:, :1], y, sites=np.arange(len(y)))
    assert fitted.__dict__ == before


@pytest.mark.parametrize("unit", ["ns", "us", "D"])
def test_dates_are_labels(unit):
    days = (np.datetime64("2020-01-01") + np.unique(SITES, return_inverse=True)[1]).astype(f"datetime64[{unit}]")
    fitted = regressor().fit(X, y, sites=pd.Series(days))
    assert fitted.sites_[0] in (datetime.datetime(2020, 1, 1), datetime.date(2020, 1, 1))
    assert np.isfinite(fitted.predict(X, sites=days)).all()


def test_missing_labels_and_responses_of_pandas():
    labels = pd.Series(SITES.astype(object), dtype="string")
    labels[3] = pd.NA
    with pytest.raises(DataError, match="row 3 has no site label"):
        regressor().fit(X, y, sites=labels)
    with pytest.raises(DataError, match="row 0 is None"):
        regressor().fit(X, [None, *y[1:]], sites=SITES)


@pytest.mark.parametrize("alpha", [1e-4, [1e-4, 1e-3]])
def test_a_selector_brings_its_sigma_whatever_else_is_tuned(alpha):
    selector = EnergySelector(sigma=0.1)
    fitted = regressor(alpha=alpha, sigma="auto", features=selector, store_rows=True).fit(X, y, sites=SITES)
    assert fitted.sigma_ == 0.1
    assert next(iter(fitted.models_.values())).header.sigma == 0.1
    fitted.partial_fit(X[:60], y[:60], sites=["new"] * 60, edges=[("new", fitted.sites_[0])])
    assert "new" in fitted.models_


def test_one_number_of_features_is_shared_out():
    n_features = dict.fromkeys(np.unique(SITES).tolist(), 8)
    with pytest.raises(SettingsError, match="divides one n_features"):
        regressor(n_features=n_features, allocation="sqrt").fit(X, y, sites=SITES)


def holds_rows(regressor):
    """Return whether a pickle has a whole row, or the responses of a site, byte for byte."""
    pickled = pickle.dumps(regressor)
    return any(row.tobytes() in pickled for row in X) or any(
        y[site == SITES].tobytes() in pickled for site in set(SITES)
    )


@pytest.mark.parametrize("cls", [cls for cls in ALL if cls is not CentralizedKRR])
def test_a_fitted_estimator_holds_no_rows(cls):
    size = {"consensus": 1.0} if cls is DeKRRRegressor else {}
    fitted = cls(n_features=16, sigma=0.3, alpha=1e-4, random_state=0, scale=None, **size).fit(X, y, sites=SITES)
    assert not holds_rows(fitted)
    copied = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(copied.predict(X_NEW, SITES_NEW), fitted.predict(X_NEW, SITES_NEW))
    if cls is DeKRRRegressor:
        assert not holds_rows(copied.partial_fit(X_NEW, Y_NEW, sites=SITES_NEW))
        with pytest.raises(SettingsError, match="others sum their rows again, which were not kept"):
            fitted.remove_site("station 02")
        assert not holds_rows(fitted.set_params(**ALONE).fit(X, y, sites=SITES).remove_site("station 02"))


@pytest.mark.parametrize(
    "settings", [{"alpha": (1e-4, 1e-3)}, {"rows_per_feature": 0.1, "n_features": 4}, {"exchange": "features"}]
)
def test_no_rows_are_held_however_it_was_fitted(settings):
    assert not holds_rows(regressor(scale=None, features="energy", min_rows=5, **settings).fit(X, y, sites=SITES))


def test_rows_are_held_where_they_are_asked_for():
    assert holds_rows(regressor(store_rows=True).fit(X, y, sites=SITES))
    table = pd.DataFrame(X, columns=["place", "north", "east"]).assign(y=y, site=SITES)
    fitted = regressor(store_rows=True).fit(table, "y", sites="site")
    assert sum(rows.n_rows for rows in fitted.rows_.values()) == len(y)


def test_a_network_is_given():
    """Not only a class: any function of the graph."""
    made = []

    def connect(neighbors):
        made.append(Postman(neighbors))
        return made[-1]

    expected = regressor().fit(X, y, sites=SITES)
    fitted = regressor(network=connect).fit(X, y, sites=SITES)
    np.testing.assert_array_equal(fitted.predict(X_NEW, SITES_NEW), expected.predict(X_NEW, SITES_NEW))
    assert fitted.traffic_.bytes == expected.traffic_.bytes
    assert set(made[0].neighbors) == set(SITES)
    fitted.partial_fit(X_NEW, Y_NEW, sites=SITES_NEW)
    assert len(made) == 2
    clone(fitted).fit(X, y, sites=SITES).remove_site("station 01")
    assert len(made) == 4


@pytest.mark.parametrize("cls", [DKLARegressor, COKERegressor, AllReduceRegressor])
def test_baselines_are_given_a_network_too(cls):
    settings = {"n_features": 10, "sigma": 0.3, "alpha": 1e-3, "random_state": 0}
    expected = cls(**settings).fit(X, y, sites=SITES)
    fitted = cls(**settings, network=Postman).fit(X, y, sites=SITES)
    np.testing.assert_array_equal(fitted.predict(X_NEW), expected.predict(X_NEW))


def test_all_wrong_parameters_are_told_at_once():
    wrong = {
        "alpha": -1.0,
        "n_features": np.int64(0),
        "features": GreedySelector,
        "wire_precision": "half",
        "bounds": (1,),
    }
    with pytest.raises(SettingsError, match="parameter of DeKRRRegressor are wrong") as caught:
        regressor(**wrong, solver=object(), network="mesh", random_state=-1, kernel=dict).fit(X, y)
    for name in (*wrong, "solver", "network", "random_state", "kernel"):
        assert f"The '{name}' parameter" in str(caught.value) or f"and the '{name}' parameter" in str(caught.value)
        assert f"{name} is " in str(caught.value)
    with pytest.raises(SettingsError, match="'n_features' parameter of DKLARegressor is wrong"):
        DKLARegressor(n_features=[3, 4]).fit(X, y)


@pytest.mark.parametrize("cls", ALL)
def test_parameters_are_those_of_the_table(cls):
    own_defaults = {"features": "plain", "censor_start": 0.5, "n_features": "auto"}
    for name, parameter in parameters_of(cls).items():
        default = value_of(cls(), name)
        assert parameter.entry.in_process == default or own_defaults[name] == default
        assert parameter.entry.mistake(default, objects=parameter.objects) is None
        assert (f"- ``{name}`` : " if parameter.option else f"\n{name} : ") in inspect.getdoc(cls)
        assert parameter.entry.setting.text.split(". ")[0][:60] in " ".join(cls.__doc__.split())
    plain = {name for name, parameter in parameters_of(cls).items() if not parameter.option}
    assert plain == set(cls().get_params()) - {"options"}


@pytest.mark.parametrize("cls", [DeKRRRegressor, DeKRRClassifier])
def test_settings_that_few_need_are_in_one_parameter(cls):
    assert not hasattr(cls(options={"transform": "log"} if cls is DeKRRRegressor else None), "transform")
    assert len(cls().get_params()) <= 25
    assert cls(options={"masks": True}).masks is True
    assert cls(options={"masks": True}).min_rows == 1
    with pytest.warns(FutureWarning, match=r"masks of .* as in options=\{'masks': True\}"):
        made = cls(masks=True, options={"folds": 3})
    assert made.options == {"folds": 3, "masks": True}
    assert clone(made).get_params() == made.get_params()
    with pytest.warns(FutureWarning, match="store_sums of"):
        made.set_params(store_sums=False, sigma=2.0)
    assert (made.store_sums, made.folds, made.sigma) == (False, 3, 2.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        contract = cls(kernel="laplacian", mapping="cossin", allocation="sqrt", self_penalty=0.0, n_sites=3)
    assert contract.options["kernel"] == contract.kernel == "laplacian"
    with pytest.raises(TypeError, match="unexpected keyword argument 'maks'"):
        cls(maks=True)
    with pytest.raises(SettingsError, match="options have no 'maks'; they are "):
        cls(options={"maks": True}).fit([[0.0], [1.0], [2.0]], [0, 1, 1])
    with pytest.raises(SettingsError, match="masks is 3"):
        cls(options={"masks": 3}).fit([[0.0], [1.0], [2.0]], [0, 1, 1])


def test_no_private_module_of_scikit_learn_is_imported():
    source = Path(dekrr.__file__).parent
    assert not [path for path in source.rglob("*.py") if re.search(r"sklearn[.\w]*\._", path.read_text())]


def test_sites_take_features_by_their_rows_and_neighbours_where_nobody_says_how_many():
    X, y, sites = make_sites(n_sites=5, rows_per_site=60, random_state=0)
    kept = (sites != np.unique(sites)[0]) | (np.arange(len(y)) % 2 == 0)
    given = {"sigma": 0.3, "alpha": 1e-4, "consensus": 1.0, "random_state": 0}
    regressor = DeKRRRegressor(**given).fit(X[kept], y[kept], sites=sites[kept])
    assert {label: model.feature_map.n_features for label, model in regressor.models_.items()} == {
        label: regressor.n_rows_[label] // 2 for label in regressor.sites_
    }
    assert len({model.feature_map.n_features for model in regressor.models_.values()}) > 1
    many = DeKRRRegressor(**given)._choosing().sized(dict.fromkeys(range(5), 10**6), nx.complete_graph(5))
    sizes = many.sizes(range(5))
    assert 4 * 8 * 1.5 * sizes[0] ** 2 <= 700_000 < 4 * 8 * 1.5 * (sizes[0] + 1) ** 2
    shared_out = DeKRRRegressor(allocation="sqrt", **given).fit(X, y, sites=sites)
    assert shared_out.models_[shared_out.sites_[0]].feature_map.n_features <= 100
