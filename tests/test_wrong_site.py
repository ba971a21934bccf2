"""One wrong site of five: it is named, and the others lose nothing by it; sites that are only different stay in."""

import warnings

import networkx as nx
import numpy as np
import pytest

from dekrr import DeKRRClassifier, DeKRRRegressor
from dekrr.data import make_sites
from dekrr.errors import DekrrWarning

X, y, SITES = make_sites(n_sites=5, rows_per_site=120, random_state=0)
X_NEW, Y_NEW, SITES_NEW = make_sites(n_sites=5, rows_per_site=300, random_state=100)
WRONG = "station 04"
BAD, HONEST = SITES == WRONG, SITES_NEW != WRONG
ODD = np.random.default_rng(0).random(BAD.sum()) < 0.05
SMALL = {"n_features": 20, "random_state": 0}


def shuffled(values):
    return np.random.default_rng(0).permutation(values)


def garbage(values):
    rng = np.random.default_rng(0)
    return np.where(rng.random(len(values)) < 0.3, 10 * values.std() * rng.normal(size=len(values)), values)


RESPONSES = {
    "times 10": (lambda v: 10 * v, "response is about 7 times the others'"),
    "times 1000": (lambda v: 1000 * v, "response is about 700 times the others'"),
    "a thousandth": (lambda v: v / 1000, "response is about 0.001 times the others'"),
    "999999 for missing": (lambda v: np.where(ODD, 999999.0, v), "response is 999999 in 9 of 138 rows: a code for"),
    "another sign": (lambda v: -v, "response falls where the others' rises"),
    "constant": (lambda v: np.full_like(v, v.mean()), "response is -0.657899 in all 138 rows"),
    "mixed up": (shuffled, "are rows mixed up"),
    "a third garbage": (garbage, "are rows mixed up"),
}
COLUMNS = {
    "times 1000": (lambda v: 1000 * v, "column 'x0' is about 2,000 times the others'"),
    "999999 for missing": (lambda v: np.where(ODD, 999999.0, v), "column 'x0' is 999999 in 9 of 138 rows: a code for"),
}


def fitted(X=X, y=y, sites=SITES, **settings):
    """Return a fitted regressor, and what it warned of sites."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        regressor = DeKRRRegressor(**SMALL, **settings).fit(X, y, sites=sites)
    return regressor, [str(each.message) for each in told if str(each.message).startswith("site ")]


def own_error(regressor):
    return regressor.rse(X_NEW[HONEST], Y_NEW[HONEST], sites=SITES_NEW[HONEST])


@pytest.fixture(scope="module")
def without():
    return fitted(X[~BAD], y[~BAD], SITES[~BAD])[0]


def other_response(change):
    other = y.copy()
    other[BAD] = change(y[BAD])
    return other


@pytest.mark.parametrize("case", RESPONSES)
def test_a_site_with_a_wrong_response_is_named_and_left_out(case, without):
    change, words = RESPONSES[case]
    regressor, told = fitted(y=other_response(change))
    assert list(regressor.left_out_) == [WRONG]
    assert words in regressor.left_out_[WRONG]
    assert len(told) == 1
    assert words in told[0]
    assert "it is left out" in told[0]
    assert own_error(regressor) == own_error(without)  # to the last bit: it is the fit without it
    assert regressor.models_[WRONG].predict(X_NEW[:3]).shape == (3,)
    np.testing.assert_array_equal(regressor.models_["station 00"].predict(X), without.models_["station 00"].predict(X))


@pytest.mark.parametrize("case", COLUMNS)
def test_a_wrong_column_is_named_and_harms_nobody(case):
    change, words = COLUMNS[case]
    other = X.copy()
    other[BAD, 0] = change(X[BAD, 0])
    regressor, told = fitted(other)
    assert len(told) == 1
    assert words in told[0]
    assert own_error(regressor) <= 1.25 * own_error(fitted()[0])  # than with the right column, of which it knows more
    assert own_error(fitted(other, exclude=None)[0]) > 1.5 * own_error(fitted()[0])


def test_a_shift_is_the_sites_level(without):
    regressor, told = fitted(y=other_response(lambda v: v + 10))
    assert not told
    assert not regressor.left_out_
    assert own_error(regressor) <= 1.05 * own_error(without)


def test_a_right_site_changes_no_bit_of_the_fit():
    regressor, told = fitted()
    plain, _ = fitted(exclude=None)
    assert not told
    assert not regressor.left_out_
    assert not plain.contributions_
    np.testing.assert_array_equal(regressor.predict(X_NEW, SITES_NEW), plain.predict(X_NEW, SITES_NEW))
    assert regressor.contributions_.keys() == set(SITES)
    assert regressor.contributions_["station 01"].with_site < regressor.contributions_["station 01"].without_site
    assert regressor.traffic_.total_bytes > plain.traffic_.total_bytes


def test_a_wrong_site_can_be_kept_in():
    regressor, told = fitted(y=other_response(lambda v: 1000 * v), exclude=None)
    assert not told
    assert not regressor.left_out_
    assert own_error(regressor) > 2


@pytest.mark.parametrize("seed", range(4))
def test_sites_with_functions_of_their_own_stay_in_or_lose_nothing(seed):
    rng = np.random.default_rng(seed)
    n_sites = 6
    X, sites = rng.normal(size=(900, 3)), np.arange(900) % n_sites
    slopes = rng.normal(size=(3, n_sites))
    y = np.sin((X @ slopes)[np.arange(900), sites]) + 0.1 * rng.normal(size=900)
    is_new = np.arange(900) // n_sites % 3 == 0
    errors = []
    for exclude in ("harmful", None):
        regressor, _ = fitted(X[~is_new], y[~is_new], sites[~is_new], exclude=exclude)
        errors.append(regressor.rse(X[is_new], y[is_new], sites=sites[is_new]))
    assert errors[0] <= 1.03 * errors[1]


def test_two_wrong_sites_of_eight_are_left_out_one_after_the_other():
    X, y, sites = make_sites(n_sites=8, rows_per_site=200, random_state=3)
    y = np.where(sites == "station 02", 500 * y, np.where(sites == "station 05", -y, y))
    regressor, told = fitted(X, y, sites)
    assert set(regressor.left_out_) == {"station 02", "station 05"}
    assert len(told) == 2
    assert regressor.graph_.number_of_nodes() == 6
    assert len(regressor.models_) == 8


def test_what_is_of_no_one_site_is_of_the_others():
    y = other_response(lambda v: 1000 * v)
    regressor, _ = fitted(y=y)
    everyone = np.mean([regressor.models_[site].predict(X[:5], elsewhere=True) for site in regressor.graph_], axis=0)
    with pytest.warns(DekrrWarning, match="the mean of 4 sites' models"):
        np.testing.assert_allclose(regressor.predict(X[:5]), everyone)
    assert regressor.rse(X_NEW, Y_NEW, metric="union") < 1
    assert WRONG in regressor.sites_
    assert regressor.n_rows_[WRONG] == BAD.sum()
    assert str(regressor.fit_summary())
    more = regressor.partial_fit(X[~BAD], y[~BAD], sites=SITES[~BAD])
    assert more.models_.keys() == set(SITES) == set(more.n_rows_)


def test_a_site_that_holds_the_graph_together_stays_in_and_is_named():
    star = nx.star_graph(4)
    star = nx.relabel_nodes(star, dict(enumerate([WRONG, "station 00", "station 01", "station 02", "station 03"])))
    regressor, told = fitted(y=other_response(lambda v: -v), topology=star)
    assert not regressor.left_out_
    assert "It is in the fit all the same" in told[0]


def test_masks_hide_sums_and_not_the_wrong_site():
    regressor, told = fitted(y=other_response(lambda v: -v), masks=True)
    assert list(regressor.left_out_) == [WRONG]
    assert "falls where the others' rises" in told[0]


def test_a_site_with_other_labels_is_left_out():
    X, y, sites = make_sites(n_sites=5, rows_per_site=400, random_state=0)
    is_high = (y > np.median(y)) != (sites == WRONG)
    with pytest.warns(DekrrWarning, match="'station 04'.*left out"):
        classifier = DeKRRClassifier(**SMALL).fit(X, np.where(is_high, "high", "low"), sites=sites)
    honest = np.where(np.median(y) < Y_NEW, "high", "low")[HONEST]
    assert classifier.score(X_NEW[HONEST], honest, sites=SITES_NEW[HONEST]) > 0.85
    assert classifier.models_.keys() == set(SITES)


def test_several_outputs_and_frames():
    pandas = pytest.importorskip("pandas")
    both = np.column_stack([y, other_response(lambda v: 1000 * v)])
    assert list(fitted(y=both)[0].left_out_) == [WRONG]
    frame = pandas.DataFrame(X, columns=["length", "width", "height"]).assign(
        kind=np.array(["a", "b", None], dtype=object)[np.arange(len(y)) % 3], site=SITES, weight=y
    )
    frame.loc[BAD, "length"] *= 1000
    _, told = fitted(frame, "weight", "site")
    assert "column 'length'" in told[0]
    assert "other units" in told[0]


@pytest.mark.parametrize("rows", [60, 150])
def test_a_look_has_no_more_features_than_rows_outside_a_fold_allow(rows):
    X, y, sites = make_sites(n_sites=3, rows_per_site=rows, random_state=0)
    options = {"rows_per_feature": 1.5}
    fitted = DeKRRRegressor(n_features=8, shared=8, random_state=0, options=options).fit(X, y, sites=sites)
    assert len(fitted.contributions_) == 3
