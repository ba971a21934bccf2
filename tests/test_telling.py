"""What a fit tells of joining: alone beside own and union, sites that gain and lose, and errors between sites."""

import re
import warnings

import networkx as nx
import numpy as np
import pandas as pd
import pytest

from dekrr import DeKRRClassifier, DeKRRRegressor, rse
from dekrr.data import make_sites
from dekrr.errors import PoorFitWarning
from dekrr.estimators import model_set
from dekrr.estimators.model_set import (
    HeldOutErrors,
    PlainFrame,
    as_frame,
    mean_excess,
    tell_of_joining,
    tell_of_poor_fit,
)
from dekrr.metrics import excess
from dekrr.settings import ALONE

NAN = float("nan")


def table_of(n_sites=6, n_rows=60, seed=0, level=5.0):
    """Return a table whose sites have levels of their own, and the same curve."""
    rng = np.random.default_rng(seed)
    site = np.repeat([f"s{k:02d}" for k in range(n_sites)], n_rows)
    a, b = rng.uniform(-1, 1, size=(2, len(site)))
    levels = np.repeat(rng.normal(scale=level, size=n_sites), n_rows)
    y = levels + np.sin(2 * a) + b * (levels > 0) + 0.2 * rng.normal(size=len(site))
    return pd.DataFrame({"a": a, "b": b, "site": site, "y": y})


def advice_of(do):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = do()
    return result, [str(each.message) for each in caught if issubclass(each.category, PoorFitWarning)]


@pytest.fixture(scope="module")
def fitted():
    regressor, told = advice_of(lambda: DeKRRRegressor(random_state=0).fit(table_of(), "y", sites="site"))
    assert not told
    return regressor


def test_the_summary_has_alone_beside_own_and_union(fitted):
    errors = fitted.validation_["RSE"]
    text = str(fitted.fit_summary())
    assert f"own {errors.mean_own:.4g}, alone {errors.mean_alone:.4g} on {sum(errors.n_rows.values())} rows" in text
    assert "divide by the variance over the rows of all sites" in text
    assert f"held-out RSE within sites: own {errors.within_own:.4g}, alone {errors.within_alone:.4g}" in text
    heading = next(line.split() for line in text.splitlines() if line.startswith("site "))
    assert "own RSE alone RSE alone by union RSE" in " ".join(heading)
    row = next(line for line in text.splitlines() if line.startswith("s03 "))
    assert row.split()[-4:-1] == [f"{errors.own['s03']:.4g}", f"{errors.alone['s03']:.4g}", errors.kind_alone["s03"]]
    assert f"{len(errors.gaining)} of 6 sites gain" in text
    assert "alone RSE" in fitted.fit_summary()._repr_html_()


def test_errors_within_sites_are_a_mean_of_those_of_sites(fitted):
    """Squared errors of all sites over squared deviations of all sites: by the sites' own errors and variances."""
    errors = fitted.validation_["RSE"]
    assert min(errors.own.values()) < errors.within_own < max(errors.own.values())
    assert errors.mean_own < 0.2 * errors.within_own  # sites differ
    for site, (more, _) in errors.excess.items():
        assert more == pytest.approx(errors.own[site] - errors.alone[site])
    assert set(errors.gaining) | set(errors.losing) == set(errors.own)
    assert errors.total_excess == mean_excess(errors.excess.values())


def test_the_excess_of_losses_is_that_of_repeated_rows():
    rng = np.random.default_rng(0)
    one, two = rng.random((2, 50))
    mean, error = excess(one, two)
    assert mean == pytest.approx((one - two).mean())
    assert error == pytest.approx((one - two).std(ddof=1) / np.sqrt(50))
    assert excess(one, two, np.full(50, 3.0)) == pytest.approx((mean, error))
    assert excess(one[:1], two[:1])[1] == np.inf


def test_of_many_sites_the_summary_shows_those_that_gain_and_lose_most(fitted, monkeypatch):
    monkeypatch.setattr(model_set, "_SHOWN_SITES", 5)
    monkeypatch.setattr(model_set, "_ENDS", 1)
    errors, found = fitted.validation_["RSE"], fitted.fit_summary()
    assert list(found.sites) == [*errors.gaining[:1], *errors.losing[:1]]
    assert "the 1 that gain most by joining, then the" in found.facts["sites below"]
    ratios = [errors.own[site] / errors.alone[site] for site in errors.own]
    assert ", ".join(f"{value:.2f}" for value in np.quantile(ratios, [0.25, 0.5, 0.75])) in found.facts["joining"]


def rounds_of(graph):
    """Return how many rounds a small fit takes on a graph, and what the summary says of them."""
    X, y, sites = make_sites(n_sites=len(graph), rows_per_site=15, random_state=0)
    graph = nx.relabel_nodes(graph, dict(enumerate(np.unique(sites).tolist())))
    numbers = {
        "n_features": 8,
        "features": "plain",
        "sigma": 0.3,
        "alpha": 1e-4,
        "consensus": 1.0,
        **dict.fromkeys(ALONE),
    }
    regressor = DeKRRRegressor(topology=graph, random_state=0, **numbers).fit(X, y, sites=sites)
    return regressor.n_rounds_, regressor.fit_summary().facts["rounds"]


def test_the_summary_names_few_edges_that_halve_the_rounds():
    path = nx.path_graph(60)
    before, text = rounds_of(path)
    edges = [tuple(map(int, pair)) for pair in re.findall(r"'station (\d+)' - 'station (\d+)'", text)]
    assert text.startswith(f"{before} (half as many with the edges ")
    assert text.endswith(": some sites are 59 hops apart)")
    assert 0 < len(edges) <= np.sqrt(60)
    path.add_edges_from(edges)
    after, text = rounds_of(path)
    assert after <= before / 2
    assert text == str(after)


def errors_with(own, alone, error):
    sites = [f"p{k}" for k in range(len(own))]
    own, alone = dict(zip(sites, own, strict=True)), dict(zip(sites, alone, strict=True))
    more = {site: (own[site] - alone[site], error) for site in sites}
    n_rows, kinds = dict.fromkeys(sites, 20), dict.fromkeys(sites, "ridge")
    return HeldOutErrors(n_rows, own, 0.01, 0, {}, NAN, alone, 0.005, kinds, 0.8, 0.4, more)


@pytest.mark.parametrize(
    ("own", "alone", "error", "told"),
    [
        ([0.9, 0.7, 0.5], [0.3, 0.4, 0.6], 0.1, True),
        ([0.9, 0.7, 0.5], [0.3, 0.4, 0.6], 0.2, False),  # noise
        ([0.9, 0.5, 0.5], [0.3, 0.6, 0.6], 0.01, False),  # one site of three
        ([0.505, 0.505, 0.505], [0.5, 0.5, 0.5], 0.0001, False),  # one per cent
    ],
)
def test_a_fit_whose_sites_would_mostly_do_better_alone_is_told_where_it_is_no_noise(own, alone, error, told):
    _, found = advice_of(lambda: tell_of_joining(errors_with(own, alone, error)))
    assert len(found) == told
    if told:
        assert found[0].startswith("2 of 3 sites would do better alone: the RSE of their own held-out rows is 0.8 ")
        assert "'p0' 0.9, alone 0.3 by ridge regression; 'p1' 0.7, alone 0.4 by ridge" in found[0]


def test_a_fit_without_levels_and_trees_is_told_that_sites_do_better_alone():
    table = table_of(n_sites=8, n_rows=40)
    table["y"] += 0.5 * np.random.default_rng(1).normal(size=len(table))
    bare = DeKRRRegressor(site_effect=None, local=None, random_state=0)
    _, told = advice_of(lambda: bare.fit(table[["b", "site", "y"]], "y", sites="site"))
    errors = bare.validation_["RSE"]
    assert any(f"{len(errors.losing)} of 8 sites would do better alone" in text for text in told)
    assert any(f"{errors.losing[0]!r} {errors.own[errors.losing[0]]:.3g}, alone" in text for text in told)


def test_classes_are_told_by_log_loss():
    table = table_of(n_sites=3, n_rows=80, level=0.5)
    table["y"] = np.where(table["y"] > table["y"].median(), "high", "low")
    fitted = DeKRRClassifier(n_features=20, random_state=0).fit(table, "y", sites="site")
    text = str(fitted.fit_summary())
    assert "alone log loss" in text
    assert "Quartiles of own / alone log loss" in text
    errors = fitted.validation_["log loss"]
    for site, (more, _) in errors.excess.items():
        assert more == pytest.approx(errors.own[site] - errors.alone[site])
    assert np.isnan(errors.within_own)
    matrix = fitted.cross_site_errors(table, "y", sites="site")
    own = table["site"] == "s01"
    assert matrix.loc["s01", "s01"] == pytest.approx(fitted.score(table[own], "y", sites="site", loss="log_loss"))


def test_no_model_is_said_to_be_of_use_where_a_site_alone_does_better():
    _, (told,) = advice_of(lambda: tell_of_poor_fit(0.5, 1.4, (0.1, 500), 0.3))
    assert "of no use for rows of other sites; a site alone has 0.3 on its own rows. Give sites to predict" in told


def test_cross_site_errors_have_models_in_rows_and_sites_in_columns(fitted):
    new = table_of(seed=1)
    found = fitted.cross_site_errors(new, "y", sites="site")
    assert list(found.index) == list(found.columns) == fitted.sites_
    for model in ("s00", "s04"):
        for site in ("s00", "s04"):
            rows = new[new["site"] == site]
            predicted = fitted.models_[model].predict(rows, elsewhere=model != site)
            assert found.loc[model, site] == pytest.approx(rse(rows["y"], predicted))
    arrays = fitted.cross_site_errors(new[["a", "b"]], new["y"].to_numpy(), sites=new["site"])
    assert np.allclose(arrays, found)
    newcomer = fitted.cross_site_errors(new.assign(site="new"), "y", sites="site")
    assert newcomer.shape == (6, 1)


def test_without_pandas_a_plain_table_stands_for_a_frame(monkeypatch):
    monkeypatch.setattr("dekrr.estimators.model_set.find_spec", lambda name: None)
    found = as_frame({"a": [0.5, NAN], "kind": ["mean", "trees"]}, ["x", "y"], "site", verdict="join")
    assert isinstance(found, PlainFrame)
    assert found.attrs == {"verdict": "join"}
    assert found["kind"] == {"x": "mean", "y": "trees"}
    assert len(found) == 2
    assert str(found).splitlines() == ["     a   kind", "x  0.5   mean", "y  nan  trees"]
