"""Differential privacy: the sensitivity, the calibration, the run, and what it refuses."""

import errno
import warnings
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from sklearn import clone
from sklearn.model_selection import cross_val_score

from dekrr import DeKRRRegressor, DifferentialPrivacy, disk, load
from dekrr.data import make_sites
from dekrr.errors import DataError, MessageError, SettingsError
from dekrr.features import FeatureMap
from dekrr.lab.attacks.overhearing import Overheard
from dekrr.mesh.vault import FileVault
from dekrr.messages import Bounds, Coefficients, Features, RowFeatures, Sums
from dekrr.networks.local import LocalNetwork
from dekrr.privacy import mechanism
from dekrr.privacy.mechanism import SENSITIVITY, GaussianSums, nearest_positive, pack, unpack
from dekrr.protocols import dekrr
from dekrr.protocols.exchange import shared_features
from dekrr.protocols.run import Tuning
from dekrr.protocols.site import Site
from dekrr.selection import Energy, Plain
from dekrr.settings import DeKRRSettings
from dekrr.statistics import OwnSums, accumulate
from dekrr.tables.rows import ArrayRows
from epsilon import gaussian_epsilon

pytest.importorskip("opendp", reason="the extra dp is not installed")

PATH = {"a": ("b",), "b": ("a", "c"), "c": ("b",)}


def exact_sums(feature_map, X, y):
    rows = ArrayRows(mechanism.clip_columns(X, feature_map.frequencies), mechanism.clip_responses(y))
    sums, _ = accumulate(rows, feature_map, {})
    return pack(sums.gram, sums.moment)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n_pairs=st.integers(1, 6),
    sigma=st.floats(0.05, 5),
    responses=st.tuples(st.floats(-50, 50), st.floats(-50, 50)),
    distance=st.floats(0, 10) | st.sampled_from([1e15, 1e16, 1e18, 9.97e36, 1e300]),  # 9.97e36: a netCDF fill value
)
def test_no_replaced_row_moves_the_sums_by_more_than_the_sensitivity(seed, n_pairs, sigma, responses, distance):
    rng = np.random.default_rng(seed)
    feature_map = shared_features(Plain(2 * n_pairs, sigma=sigma), 2, seed)
    X, y = rng.uniform(size=(5, 2)), rng.uniform(-2, 2, 5)
    other_X, other_y = X.copy(), y.copy()
    other_X[2] += distance * rng.normal(size=2)
    y[2], other_y[2] = responses
    moved = np.linalg.norm(exact_sums(feature_map, X, y) - exact_sums(feature_map, other_X, other_y))
    assert moved <= SENSITIVITY


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_values_that_are_no_numbers_are_turned_away(value, coast):
    with pytest.raises(DataError, match="NaN or infinite"):
        mechanism.clip_columns(np.array([[0.5, value]]), np.ones((2, 4)))
    X, y, labels = coast
    X = X.copy()
    X[3, 0] = value
    with pytest.raises((DataError, ValueError), match=r"(?i)nan|inf"):
        DeKRRRegressor(n_features=8, features="plain", **PRIVATE).fit(X, y, sites=labels)


def test_the_sensitivity_is_attained():
    """One pair, rows a sixth of a turn apart, responses 1 and -1: k = 1/2."""
    feature_map = shared_features(Plain(2), 1, 0)
    step = np.pi / 3 / abs(feature_map.frequencies[0, 0])
    sums = [exact_sums(feature_map, np.array([[x]]), np.array([y])) for x, y in ((0.0, 1.0), (step, -1.0))]
    assert np.linalg.norm(sums[0] - sums[1]) == pytest.approx(np.sqrt(4.5), rel=1e-9)


@given(size=st.integers(1, 8), seed=st.integers(0, 1000))
def test_packing_keeps_norms_and_is_undone(size, seed):
    rng = np.random.default_rng(seed)
    gram, moment = rng.normal(size=(size, size)), rng.normal(size=size)
    gram = gram + gram.T
    packed = pack(gram, moment)
    assert np.linalg.norm(packed) == pytest.approx(np.sqrt(np.sum(gram**2) + np.sum(moment**2)))
    back = unpack(packed, (size,))
    np.testing.assert_allclose(back[0], gram, atol=1e-12)
    np.testing.assert_allclose(back[1], moment)


@given(size=st.integers(1, 6), seed=st.integers(0, 1000))
def test_nearest_positive_is_nearer_than_any_other_tried(size, seed):
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(size, size))
    matrix = matrix + matrix.T
    nearest = nearest_positive(matrix)
    assert np.linalg.eigvalsh(nearest)[0] >= -1e-9
    for _ in range(5):
        root = rng.normal(size=(size, size))
        assert np.linalg.norm(nearest - matrix) <= np.linalg.norm(root @ root.T - matrix) + 1e-9


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0, 8.0])
def test_the_noise_suffices_by_an_independent_formula(epsilon):
    """OpenDP goes through concentrated privacy; Balle and Wang's exact curve must allow its scale, not much less."""
    spent = GaussianSums(DifferentialPrivacy(epsilon, 1e-5), 1000).spent
    true_epsilon = gaussian_epsilon(spent.sensitivity / spent.noise_scale, 1e-5)
    assert 0.85 * epsilon < true_epsilon <= epsilon
    assert spent.epsilon <= epsilon
    assert spent.delta == pytest.approx(1e-5)


def test_the_noise_has_the_scale_that_it_says():
    noise = GaussianSums(DifferentialPrivacy(1.0, 1e-4), 1000)
    size = 30
    gram = 1e6 * np.eye(size)
    released = noise.perturb(OwnSums(gram, np.zeros(size), 0.0))
    errors = pack(released.gram - gram, released.moment)
    assert errors.std() == pytest.approx(noise.spent.noise_scale, rel=0.15)
    assert abs(errors.mean()) < 4 * noise.spent.noise_scale / np.sqrt(errors.size)
    again = noise.perturb(OwnSums(gram, np.zeros(size), 0.0))
    assert not np.array_equal(again.moment, released.moment)


def test_delta_by_default_and_delta_that_promises_nothing():
    assert GaussianSums(DifferentialPrivacy(1.0), 500).spent.delta == pytest.approx(500**-2)
    with pytest.raises(SettingsError, match="promises nothing"):
        GaussianSums(DifferentialPrivacy(1.0, 0.01), 500)


@pytest.mark.parametrize("values", [(0.0, None), (-1.0, None), (np.inf, None), (1.0, 0.0), (1.0, 1.0)])
def test_budgets_that_make_no_sense(values):
    with pytest.raises(SettingsError, match=r"epsilon|delta"):
        DifferentialPrivacy(*values)


def test_settings_with_a_budget_survive_a_configuration_file():
    settings_ = DeKRRSettings(privacy=DifferentialPrivacy(2.0, 1e-6), bounds=((0.0, 0.0), (1.0, 1.0)))
    assert msgspec.json.decode(msgspec.json.encode(settings_), type=DeKRRSettings) == settings_
    with pytest.raises(msgspec.ValidationError, match="epsilon"):
        msgspec.json.decode(b'{"privacy": {"epsilon": -1.0}}', type=DeKRRSettings)


def sites(seed=0, n_rows=150):
    rng = np.random.default_rng(seed)
    return [
        Site(name, neighbors, ArrayRows(rng.uniform(size=(n_rows, 2)), rng.uniform(-1, 1, n_rows)), seed=5)
        for name, neighbors in PATH.items()
    ]


def run(all_sites, privacy, selector=None, **changes):
    record = Overheard()
    network = LocalNetwork(PATH, observers=[record])
    changes = {"scale": None, "tol": 0.0, "max_rounds": 8, "alpha": 1e-4, "privacy": privacy, **changes}
    selector = selector or Plain(8, sigma=0.5)
    procedures = {site.name: dekrr.train(site, selector, DeKRRSettings(**changes)) for site in all_sites}
    return network.run(procedures), record


def test_without_its_noise_it_is_the_plain_method_on_shared_features(monkeypatch):
    monkeypatch.setattr(GaussianSums, "perturb", lambda self, sums: sums)
    monkeypatch.setattr(mechanism, "RIDGE", 0.0)
    private, _ = run(sites(), DifferentialPrivacy(1.0))
    shared = shared_features(Plain(8, sigma=0.5), 2, 5)
    brought = [Site(s.name, s.neighbors, s.rows, seed=5, feature_map=shared) for s in sites()]
    plain, _ = run(brought, None, Plain(8, sigma=0.5, mapping="cossin"), verify_features=False, lone_neighbor="warn")
    for name in PATH:
        np.testing.assert_allclose(private[name].coefficients, plain[name].coefficients, atol=1e-9)


def test_only_perturbed_sums_and_coefficients_leave(monkeypatch):
    """With the mechanism's output fixed, two different sets of rows send the very same messages."""
    fixed = OwnSums(10 * np.eye(8), np.arange(8.0), 0.0)
    monkeypatch.setattr(GaussianSums, "perturb", lambda self, sums: fixed)
    records = [run(sites(seed), DifferentialPrivacy(1.0))[1].heard for seed in (0, 1)]
    assert len(records[0]) == len(records[1])
    kinds = {type(entry.message) for entry in records[0]}
    assert {Sums, Coefficients, Features} <= kinds
    assert not kinds & {RowFeatures, Bounds}
    for one, other in zip(*records, strict=True):
        for field in one.message.__struct_fields__:
            np.testing.assert_equal(getattr(one.message, field), getattr(other.message, field))


def test_the_sums_that_leave_are_noisy_and_semidefinite():
    outcomes, record = run(sites(), DifferentialPrivacy(1.0))
    (sent,) = record.between("b", "a", Sums)
    (also,) = record.between("b", "c", Sums)
    np.testing.assert_array_equal(sent.gram, also.gram)
    site = sites()[1]
    exact, _ = accumulate(site.rows, outcomes["b"].feature_map, {})
    gram = mechanism.unpack_symmetric(sent.gram, 8)
    assert np.abs(gram - exact.gram).max() > 0.1
    assert np.linalg.eigvalsh(gram)[0] > -1e-9


def test_a_neighbour_with_other_features_is_refused():
    strange = [*sites()[:2], Site("c", ("b",), ArrayRows(np.zeros((150, 2)), np.zeros(150)), seed=6)]
    with pytest.raises(MessageError, match="'c' has other features"):
        run(strange, DifferentialPrivacy(1.0))


@pytest.mark.parametrize(
    ("selector", "changes", "words"),
    [
        (Energy(8), {}, "chooses features from rows"),
        (None, {"scale": "minmax"}, "public bounds"),
        (None, {"exchange": "features"}, "features of every row"),
        (None, {"allocation": "sqrt"}, "different features"),
    ],
)
def test_a_run_that_cannot_keep_its_budget_does_not_start(selector, changes, words):
    record = Overheard()
    network = LocalNetwork(PATH, observers=[record])
    settings_ = DeKRRSettings(**({"scale": None, "privacy": DifferentialPrivacy(1.0)} | changes))
    procedures = {s.name: dekrr.train(s, selector or Plain(8), settings_) for s in sites()}
    with pytest.raises(SettingsError, match=words):
        network.run(procedures)
    assert not record.heard


def test_a_map_of_ones_own_does_not_start_either():
    brought = FeatureMap.unweighted(np.ones((2, 8)), np.zeros(8))
    mine = [Site(s.name, s.neighbors, s.rows, feature_map=brought) for s in sites()]
    with pytest.raises(SettingsError, match="its own feature map"):
        run(mine, DifferentialPrivacy(1.0))


def test_resuming_sends_the_same_sums_again(tmp_path):
    def with_vaults():
        return [replace(site, vault=FileVault(tmp_path / site.name, b"secret")) for site in sites()]

    first, _ = run(with_vaults(), DifferentialPrivacy(1.0))
    again, _ = run(with_vaults(), DifferentialPrivacy(1.0))
    fresh, _ = run(sites(), DifferentialPrivacy(1.0))
    for name in PATH:
        np.testing.assert_array_equal(again[name].coefficients, first[name].coefficients)
        assert not np.allclose(fresh[name].coefficients, first[name].coefficients)
    shared = shared_features(Plain(8, sigma=0.5), 2, 5)
    resumed, _ = run([replace(site, feature_map=shared) for site in with_vaults()], DifferentialPrivacy(1.0))
    np.testing.assert_array_equal(resumed["a"].coefficients, first["a"].coefficients)


@pytest.mark.parametrize("change", ["budget", "rows"])
def test_a_second_release_in_one_run_is_refused(change, tmp_path):
    kept = [replace(site, vault=FileVault(tmp_path / site.name, b"secret")) for site in sites()]
    run(kept, DifferentialPrivacy(1.0))
    other = [replace(site, rows=ArrayRows(site.X, site.y / 2)) for site in kept] if change == "rows" else kept
    with pytest.raises(SettingsError, match="budget of this run is spent"):
        run(other, DifferentialPrivacy(2.0 if change == "budget" else 1.0))


def test_a_damaged_vault_is_not_replaced_by_new_noise(tmp_path):
    kept = [replace(site, vault=FileVault(tmp_path / site.name, b"secret")) for site in sites()]
    (tmp_path / "b").write_bytes(b"damaged")
    with pytest.raises(DataError, match="cannot resume"):
        run(kept, DifferentialPrivacy(1.0))


def test_a_release_that_cannot_be_kept_is_not_made_and_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(disk.os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        run(
            [replace(site, vault=FileVault(tmp_path / site.name, b"secret")) for site in sites()],
            DifferentialPrivacy(1.0),
        )
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def coast():
    return make_sites(n_sites=5, rows_per_site=2000, random_state=0)


BOUNDS = ([-0.6, 0, 0, -3.5], [1.6, 1, 1, 3.5])
PRIVATE = {
    "sigma": 1.0,
    "alpha": 1e-6,
    "consensus": 1.0,
    "bounds": BOUNDS,
    "privacy": DifferentialPrivacy(8.0),
    "random_state": 0,
}


def test_estimator_learns_under_privacy_and_says_what_it_spent(coast, tmp_path, monkeypatch):
    """With noise of the calibrated scale from a fixed seed; another test has OpenDP's own."""
    X, y, labels = coast
    rng = np.random.default_rng(0)

    def seeded(self, sums):
        packed = pack(sums.gram, sums.moment)
        noisy = packed + rng.normal(scale=self.spent.noise_scale, size=packed.shape)
        gram, moment = unpack(noisy, sums.moment.shape)
        return OwnSums(nearest_positive(gram), moment, 0.0)

    monkeypatch.setattr(GaussianSums, "perturb", seeded)
    shared = {
        "n_features": 20,
        "features": "plain",
        "sigma": 0.5,
        "alpha": 1e-6,
        "bounds": BOUNDS,
        "random_state": 0,
        "consensus": 3.0,
        "prediction": "own",
        "local": None,
    }
    private = DeKRRRegressor(**shared, privacy=DifferentialPrivacy(8.0)).fit(X, y, sites=labels)
    plain = DeKRRRegressor(**shared, mapping="cossin").fit(X, y, sites=labels)
    assert private.rse(X, y, sites=labels) < 0.5
    assert plain.rse(X, y, sites=labels) < private.rse(X, y, sites=labels)
    model = private.models_[private.sites_[0]]
    model.save(tmp_path / "model.safetensors")
    spent = load(tmp_path / "model.safetensors").header.privacy
    assert spent == model.header.privacy
    assert spent.epsilon <= 8.0
    assert plain.models_[plain.sites_[0]].header.privacy is None


def test_estimator_leaves_greedy_features_with_a_warning(coast):
    X, y, labels = coast
    regressor = DeKRRRegressor(n_features=7, features="greedy", **PRIVATE)
    with pytest.warns(UserWarning, match="would look at rows"):
        regressor.fit(X, y, sites=labels)
    maps = [model.feature_map for model in regressor.models_.values()]
    assert maps[0].n_features == 8
    for feature_map in maps[1:]:
        np.testing.assert_array_equal(feature_map.frequencies, maps[0].frequencies)


def test_a_budget_does_not_pay_for_tuning(coast):
    X, y, labels = coast
    for name in ("sigma", "alpha", "consensus"):
        regressor = DeKRRRegressor(n_features=8, features="plain", **(PRIVATE | {name: [0.5, 1.0]}))
        with pytest.raises(SettingsError, match=f"with privacy give {name} as one number"):
            regressor.fit(X, y, sites=labels)
    tuning = Tuning(sigmas=(0.5, 1.0), alphas=(1e-4,), consensuses=(1.0,))
    settings_ = DeKRRSettings(scale=None, privacy=DifferentialPrivacy(1.0))
    record = Overheard()
    network = LocalNetwork(PATH, observers=[record])
    with pytest.raises(SettingsError, match="tuning would look at rows"):
        network.run({s.name: dekrr.train(s, Plain(8), settings_, tuning) for s in sites()})
    assert not record.heard


def test_a_budget_pays_for_one_release_of_the_estimator(coast):
    X, y, labels = coast
    regressor = DeKRRRegressor(n_features=8, features="plain", **PRIVATE).fit(X, y, sites=labels)
    before = regressor.predict(X[:5])
    with pytest.raises(SettingsError, match="budget is spent"):
        regressor.partial_fit(X[:100], y[:100], sites=labels[:100])
    with pytest.raises(SettingsError, match="budget is spent"):
        regressor.remove_site(regressor.sites_[0])
    np.testing.assert_array_equal(regressor.predict(X[:5]), before)


def test_rows_that_were_promised_privacy_stay_private(coast):
    """Without the parameter, the second fit would send exact sums."""
    X, y, labels = coast
    regressor = DeKRRRegressor(n_features=8, features="plain", **PRIVATE).fit(X, y, sites=labels)
    regressor.set_params(privacy=None)
    with pytest.raises(SettingsError, match="budget is spent"):
        regressor.partial_fit(X[:100], y[:100], sites=labels[:100])
    with pytest.raises(SettingsError, match="budget is spent"):
        regressor.remove_site(regressor.sites_[0])
    open_first = DeKRRRegressor(n_features=8, features="plain", **(PRIVATE | {"privacy": None})).fit(X, y, sites=labels)
    with pytest.raises(SettingsError, match="sent sums without noise"):
        open_first.set_params(privacy=PRIVATE["privacy"]).partial_fit(X, y, sites=labels)


def test_public_bounds_replace_the_agreed_ones(coast):
    X, y, labels = coast
    regressor = DeKRRRegressor(n_features=10, sigma=0.5, bounds=BOUNDS, random_state=0).fit(X, y, sites=labels)
    assert regressor.traffic_.messages_by_kind["Bounds"] == 0
    np.testing.assert_array_equal(regressor.models_[regressor.sites_[0]].scaling.lower, BOUNDS[0])


@pytest.mark.parametrize(
    ("bounds", "words"),
    [(([0.0], [1.0]), "4 finite"), (([0, 0, 0, 1], [1, 1, 1, 1]), "entry 3"), (([0.0],), "pair")],
)
def test_bounds_that_make_no_sense(coast, bounds, words):
    X, y, labels = coast
    with pytest.raises(SettingsError, match=words):
        DeKRRRegressor(bounds=bounds).fit(X, y, sites=labels)


def test_a_large_epsilon_must_be_asked_for_by_name():
    with pytest.raises(SettingsError, match="promises next to nothing"):
        DifferentialPrivacy(1000.0)
    assert DifferentialPrivacy(1000.0, max_epsilon=1e4).epsilon == 1000.0


def test_delta_is_at_most_one_in_the_square_of_the_rows():
    assert DifferentialPrivacy(1.0).delta_for(1000) <= 1e-6


def test_a_kept_release_tells_nothing_of_rows_without_the_secret(tmp_path):
    with pytest.raises(SettingsError, match="needs the site's secret"):
        FileVault(tmp_path / "release", b"")
    sums = OwnSums(np.eye(2), np.ones(2), 0.0)
    keys = []
    for name in ("one", "two"):
        FileVault(tmp_path / name, name.encode()).once(b"rows", lambda: sums)
        with safe_open(tmp_path / name, framework="numpy") as file:
            keys.append(file.metadata()["key"])
    assert keys[0] != keys[1]
    assert b"rows".hex() not in keys


def test_repeated_fits_and_cross_validation_tell_what_they_spent_together(coast):
    X, y, labels = coast
    X = X + 1e-3  # rows that no other test has fitted
    regressor = DeKRRRegressor(n_features=8, features="plain", **PRIVATE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        regressor.fit(X, y, sites=labels)
    epsilon = PRIVATE["privacy"].epsilon
    with pytest.warns(UserWarning, match=f"2 fits .* together spent epsilon {2 * epsilon:g}"):
        clone(regressor).fit(X[:300], y[:300], sites=labels[:300])
    with pytest.warns(UserWarning, match=f"3 fits .* together spent epsilon {3 * epsilon:g}") as told:
        cross_val_score(regressor, X + 1.0, y, params={"sites": labels}, cv=4)
    assert not any("4 fits" in str(warning.message) for warning in told)
