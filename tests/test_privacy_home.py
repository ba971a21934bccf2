"""What a site adds at home in a private run: it is there, it is sent to nobody, and noise cannot spoil it."""

import warnings

import numpy as np
import pytest

from dekrr import DeKRRClassifier, DeKRRRegressor, DifferentialPrivacy, load
from dekrr.errors import DataError, SettingsError
from dekrr.parts.local import LocalFits
from dekrr.privacy.mechanism import GaussianSums
from dekrr.protocols.home import shrunk_mean
from dekrr.statistics import OwnSums

pytest.importorskip("opendp", reason="the extra dp is not installed")

pytestmark = pytest.mark.filterwarnings("ignore:differential privacy with epsilon")
NUMBERS = {"n_features": 10, "sigma": 0.5, "alpha": 1e-3, "consensus": 1.0, "features": "plain", "random_state": 0}
BOUNDS = ((0.0, 0.0, 0.0), (1.0, 1.0, 6.0))


def steps(seed, n_rows=900):
    """Steps that trees find and few waves do not, and a level for each of three sites."""
    rng = np.random.default_rng(seed)
    X, sites = rng.uniform(size=(n_rows, 2)), np.arange(n_rows) % 3
    return X, (X[:, 0] > 0.5) + 2.0 * (X[:, 1] > 0.3) + sites + 0.1 * rng.normal(size=n_rows), sites


def test_a_private_model_has_a_local_part_and_says_that_it_stays_at_home(tmp_path):
    X, y, sites = steps(0)
    fitted = DeKRRRegressor(**NUMBERS, bounds=BOUNDS, privacy=1.0).fit(X, y, sites=sites)
    alone = DeKRRRegressor(**NUMBERS, bounds=BOUNDS, privacy=1.0, local=None).fit(X, y, sites=sites)
    new, y_new, new_sites = steps(1)
    assert fitted.rse(new, y_new, sites=new_sites) < 0.05 < 0.3 < alone.rse(new, y_new, sites=new_sites)
    model = fitted.models_[0]
    assert model.stays_home
    assert not alone.models_[0].stays_home
    with pytest.warns(UserWarning, match="must stay at site '0'"):
        model.save(tmp_path / "home.safetensors")
    assert load(tmp_path / "home.safetensors").stays_home
    assert b"must stay at site 0" in model.to_bytes()
    passed_on = model.without_local()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        passed_on.save(tmp_path / "out.safetensors")
    loaded = load(tmp_path / "out.safetensors")
    assert not loaded.stays_home
    assert b"must stay" not in passed_on.to_bytes()
    assert loaded.home is None
    np.testing.assert_array_equal(loaded.predict(new), model.predict(new, elsewhere=True))


@pytest.mark.parametrize("size", [0.0, 1e3], ids=["nothing", "nonsense"])
def test_noise_cannot_spoil_what_a_site_has_alone(monkeypatch, size):
    def nonsense(self, sums):
        rng = np.random.default_rng(1)
        return OwnSums(np.eye(len(sums.moment)), size * rng.normal(size=sums.moment.shape), 0.0)

    found = []
    fitted = LocalFits.fitted
    monkeypatch.setattr(GaussianSums, "perturb", nonsense)
    monkeypatch.setattr(LocalFits, "fitted", lambda *given: found.append(fitted(*given)) or found[-1])
    X, y, sites = steps(0)
    model = DeKRRRegressor(**NUMBERS, bounds=BOUNDS, privacy=1.0).fit(X, y, sites=sites)
    new, y_new, new_sites = steps(1)
    trees = [each.part(np.array([0.0, 0.0, 1.0, 0.0])) for each in found]
    scaling = model.models_[0].scaling
    by_site = [part(scaling.rows(new), np.zeros((len(new), 1)))[:, 0] for part in trees]
    of_trees = np.mean((scaling.undo(np.choose(new_sites, by_site)) - y_new) ** 2)
    of_model = np.mean((model.predict(new, sites=new_sites) - y_new) ** 2)
    assert of_model < 1.03 * of_trees


def test_a_mean_is_shrunk_by_what_of_it_is_chance():
    rng = np.random.default_rng(0)
    level = rng.normal(size=4000)
    rows = level[:, None] + 2 * rng.normal(size=(4000, 8))
    found = np.array([shrunk_mean(one[:, None])[0] for one in rows])
    plain = rows.mean(axis=1)
    assert np.mean((found - level) ** 2) < np.mean((plain - level) ** 2)
    assert np.all(np.abs(found) <= np.abs(plain))
    np.testing.assert_array_equal(shrunk_mean(np.ones((1, 2))), np.zeros(2))
    np.testing.assert_allclose(shrunk_mean(np.full((5, 1), 2.0)), [2.0])


def test_a_number_is_short_for_a_promise():
    X, y, sites = steps(0, 300)
    short = DeKRRRegressor(**NUMBERS, bounds=BOUNDS, privacy=2.0).fit(X, y, sites=sites)
    assert short.run_settings().privacy == DifferentialPrivacy(2.0)
    assert short.models_[0].header.privacy.epsilon <= 2.0
    assert short.get_params()["privacy"] == 2.0
    for bad in (0.0, -1.0, "much", 100.0):
        with pytest.raises(SettingsError, match=r"privacy|max_epsilon"):
            DeKRRRegressor(**NUMBERS, bounds=BOUNDS, privacy=bad).fit(X, y, sites=sites)


def test_a_private_fit_needs_bounds_and_a_number_alone():
    X, y, sites = steps(0, 300)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*would look at rows")
        fitted = DeKRRRegressor(bounds=BOUNDS, privacy=1.0, random_state=0).fit(X, y, sites=sites)
    given = {"features": "plain", "n_features": 100, "sigma": np.sqrt(2 / 6), "alpha": 1e-6, "consensus": 3.0}
    same = DeKRRRegressor(bounds=BOUNDS, privacy=1.0, random_state=0, **given).fit(X, y, sites=sites)
    assert (fitted.sigma_, fitted.alpha_, fitted.consensus_) == (same.sigma_, same.alpha_, same.consensus_)
    np.testing.assert_array_equal(fitted.models_[0].feature_map.frequencies, same.models_[0].feature_map.frequencies)


def test_classes_are_named_and_not_read_from_rows():
    X, y, sites = steps(0, 300)
    words = np.where(y > np.median(y), "high", "low")
    bounds = ((0.0,) * 5, (1.0,) * 5)
    with pytest.raises(SettingsError, match="with privacy, name the classes"):
        DeKRRClassifier(**NUMBERS, bounds=bounds, privacy=5.0).fit(X, words, sites=sites)
    named = DeKRRClassifier(**NUMBERS, bounds=bounds, privacy=5.0, classes=["low", "rare", "high"])
    shapes = []
    for rare in (0, 1):  # whether one row has the class
        given = words.copy()
        given[:rare] = "rare"
        shapes.append(named.fit(X, given, sites=sites).models_[0].without_local().predict_proba(X).shape)
    assert shapes == [(300, 3), (300, 3)]
    assert named.score(X, words, sites=sites) > 0.8
    with pytest.raises(DataError, match=r"rows have the classes \['high'\]"):
        named.set_params(classes=["low", "rare"]).fit(X, words, sites=sites)
    with pytest.raises(SettingsError, match="classes"):
        named.set_params(classes=["low"]).fit(X, words, sites=sites)
    open_one = DeKRRClassifier(**NUMBERS, classes=["low", "rare", "high"]).fit(X, words, sites=sites)
    assert open_one.predict_proba(X[:2], sites=sites[:2]).shape == (2, 3)
