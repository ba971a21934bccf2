"""The audit must pass the mechanism that ships and catch ones that are broken."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dekrr.attacks.audit import (
    _upper,
    audit,
    canaries,
    everything_sent,
    gaussian_epsilon,
    released,
    released_to_colluders,
)
from dekrr.privacy.mechanism import SENSITIVITY, GaussianSums, clip_responses, pack
from dekrr.privacy.shared_noise import SharedNoise
from dekrr.protocols import exchange
from dekrr.protocols.exchange import shared_features
from dekrr.protocols.site import Site
from dekrr.rows import ArrayRows
from dekrr.scaling import Scaling
from dekrr.selection import Plain
from dekrr.settings import DifferentialPrivacy
from dekrr.statistics import OwnSums, accumulate

PRIVACY = DifferentialPrivacy(1.0, 1e-3)
SIGMA, N_FEATURES = 0.5, 2


@given(count=st.integers(0, 49), level=st.floats(0.6, 0.999))
def test_clopper_pearson_is_the_rate_at_which_so_few_are_that_rare(count, level):
    assert stats.binom.cdf(count, 50, _upper(count, 50, level)) == pytest.approx(1 - level, rel=1e-6)


def test_gaussian_epsilon_is_where_the_curve_meets_delta():
    """Against the definition: the largest p - e^epsilon q over thresholds is delta."""
    epsilon = gaussian_epsilon(0.7, 1e-3)
    cuts = np.linspace(-5, 12, 20_001)
    gap = stats.norm.sf(cuts - 0.7) - np.exp(epsilon) * stats.norm.sf(cuts)
    assert gap.max() == pytest.approx(1e-3, rel=1e-3)


def test_bounds_of_a_known_mechanism_hold():
    rng = np.random.default_rng(0)
    for shift in (0.5, 2.0):
        found = audit(lambda x: x + rng.normal(size=3), np.zeros(3), np.array([0.0, shift, 0.0]), runs=4000, delta=1e-3)
        assert found.lower_bound < gaussian_epsilon(shift, 1e-3)
        assert 0.5 * gaussian_epsilon(shift, 1e-3) < found.gaussian_bound < gaussian_epsilon(shift, 1e-3)


def test_a_release_without_noise_is_caught():
    rng = np.random.default_rng(0)
    found = audit(lambda x: np.append(rng.normal(size=2), x), 0.0, 1.0, runs=400, delta=1e-3)
    assert found.lower_bound > 3


def worst_case():
    """Two data sets that differ in one row, as far as one row can move the sums."""
    feature_map = shared_features(Plain(N_FEATURES, sigma=SIGMA), 1, 0)
    step = np.pi / 3 / abs(feature_map.frequencies[0, 0])
    X = np.linspace(0, 1, 200)[:, None]
    y = np.sin(3 * X[:, 0])
    pair = [(np.vstack([X, [[x]]]), np.append(y, r)) for x, r in ((0.1, 1.0), (0.1 + step, -1.0))]
    return feature_map, X, y, pair


def mechanism_of(sensitivity):
    feature_map, _, _, pair = worst_case()
    noise = GaussianSums(PRIVACY, 201, sensitivity)

    def release(rows):
        sums, _ = accumulate(ArrayRows(rows[0], clip_responses(rows[1])), feature_map, {})
        released = noise.perturb(sums)
        return pack(released.gram, released.moment)

    return release, pair


@pytest.mark.slow
def test_the_mechanism_passes_and_half_the_sensitivity_is_caught():
    release, pair = mechanism_of(SENSITIVITY)
    found = audit(release, *pair, runs=6000, delta=PRIVACY.delta)
    assert found.lower_bound <= PRIVACY.epsilon
    assert 0.3 < found.gaussian_bound <= PRIVACY.epsilon
    release, pair = mechanism_of(SENSITIVITY / 2)
    assert audit(release, *pair, runs=6000, delta=PRIVACY.delta).gaussian_bound > PRIVACY.epsilon


class WithoutNoiseOnTheMoment(GaussianSums):
    """Reasons that m never leaves the site; but coefficients, which do, give it away."""

    def perturb(self, sums):
        return OwnSums(super().perturb(sums).gram, sums.moment, 0.0)


def test_the_first_coefficients_give_the_moment_away(monkeypatch):
    monkeypatch.setattr(exchange, "GaussianSums", WithoutNoiseOnTheMoment)
    _, X, y, (rows, _) = worst_case()
    release = everything_sent(PRIVACY, Site("other", ("target",), ArrayRows(X, y)), n_features=N_FEATURES, sigma=SIGMA)
    features = shared_features(Plain(N_FEATURES, sigma=SIGMA), X.shape[1], seed=0)(rows[0])
    moment = features.T @ rows[1] / (len(rows[1]) + len(y))
    np.testing.assert_allclose(release(rows)[-N_FEATURES:], moment, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_a_whole_run_passes_and_a_leak_through_coefficients_is_caught(monkeypatch):
    _, X, y, pair = worst_case()
    release = everything_sent(PRIVACY, Site("other", ("target",), ArrayRows(X, y)), n_features=N_FEATURES, sigma=SIGMA)
    found = audit(release, *pair, runs=600, delta=PRIVACY.delta)
    assert max(found.lower_bound, found.gaussian_bound) <= PRIVACY.epsilon
    monkeypatch.setattr(exchange, "GaussianSums", WithoutNoiseOnTheMoment)
    assert audit(release, *pair, runs=300, delta=PRIVACY.delta).lower_bound > 2 * PRIVACY.epsilon


CANARIES = ["ordinary", "at the bounds", "beyond the bounds", "fill values", "fill values of x"]


@pytest.mark.parametrize("name", CANARIES)
def test_no_canary_moves_the_release_by_more_than_the_sensitivity(name, monkeypatch):
    monkeypatch.setattr(GaussianSums, "perturb", lambda self, sums: sums)
    feature_map = shared_features(Plain(N_FEATURES, sigma=0.1), 1, 0)
    first, second = map(released(PRIVACY, feature_map, 201), canaries(feature_map)[name])
    assert np.linalg.norm(first - second) <= SENSITIVITY
    if name == "ordinary":
        assert np.linalg.norm(first - second) > 0.999 * SENSITIVITY


def test_without_clipped_columns_a_fill_value_moves_it_further(monkeypatch):
    """What an outside audit found in release 0.1."""
    monkeypatch.setattr(GaussianSums, "perturb", lambda self, sums: sums)
    monkeypatch.setattr(exchange, "clip_columns", lambda X, frequencies: X)
    monkeypatch.setattr(Scaling, "clipping", lambda lower, upper, n_columns: Scaling(lower, upper))
    moved = []
    for seed in range(20):
        feature_map = shared_features(Plain(N_FEATURES, sigma=0.1), 1, seed)
        first, second = map(released(PRIVACY, feature_map, 201), canaries(feature_map)["fill values of x"])
        moved.append(np.linalg.norm(first - second))
    assert max(moved) > 1.05 * SENSITIVITY


@pytest.mark.slow
@pytest.mark.parametrize("name", CANARIES)
def test_the_audit_of_every_canary_stays_below_the_promise(name):
    feature_map = shared_features(Plain(N_FEATURES, sigma=0.1), 1, 0)
    found = audit(released(PRIVACY, feature_map, 201), *canaries(feature_map)[name], runs=4000, delta=PRIVACY.delta)
    assert max(found.lower_bound, found.gaussian_bound) <= PRIVACY.epsilon


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ordinary", "beyond the bounds", "fill values of x"])
def test_what_colluders_see_of_shared_noise_stays_below_the_promise(name):
    feature_map = shared_features(Plain(N_FEATURES, sigma=0.1), 1, 0)
    privacy = DifferentialPrivacy(1.0, 1e-3, colluders=2)
    release = released_to_colluders(privacy, feature_map, 201, n_partners=4)
    found = audit(release, *canaries(feature_map)[name], runs=2000, delta=1e-3)
    assert max(found.lower_bound, found.gaussian_bound) <= 1.0


@pytest.mark.slow
def test_shares_for_more_honest_sites_than_there_are_would_be_caught(monkeypatch):
    """Shares as if nobody colluded, 9 of them, where 8 of the 9 sites pool what they know."""
    feature_map = shared_features(Plain(N_FEATURES, sigma=0.1), 1, 0)
    privacy = DifferentialPrivacy(1.0, 1e-3, colluders=8)
    real = SharedNoise.__init__

    def forgetful(self, *given):
        real(self, *given)
        self.share = self.scale / 3

    monkeypatch.setattr(SharedNoise, "__init__", forgetful)
    release = released_to_colluders(privacy, feature_map, 201, n_partners=8)
    assert audit(release, *canaries(feature_map)["ordinary"], runs=2000, delta=1e-3).gaussian_bound > 1.0
