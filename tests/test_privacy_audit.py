"""The audit must pass the mechanism that ships and catch ones that are broken."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dekrr.lab.attacks.overhearing import Overheard
from dekrr.messages import Coefficients, Sums
from dekrr.networks.local import LocalNetwork
from dekrr.privacy.mechanism import SENSITIVITY, GaussianSums, SharedNoise, clip_responses, pack
from dekrr.protocols import dekrr, exchange
from dekrr.protocols.exchange import shared_features, sum_and_digest
from dekrr.protocols.preparation import public_scaling
from dekrr.protocols.site import Site
from dekrr.scaling import Scaling
from dekrr.selection import Plain
from dekrr.settings import DeKRRSettings, DifferentialPrivacy
from dekrr.statistics import OwnSums, accumulate, pack_symmetric, penalty, unpack_symmetric
from dekrr.tables.rows import ArrayRows
from epsilon import _upper, audit, gaussian_epsilon

PRIVACY = DifferentialPrivacy(1.0, 1e-3)
SIGMA, N_FEATURES = 0.5, 2


def everything_sent(privacy, neighbor, *, n_features, sigma):
    """Return a function that maps rows (X, y) of a site to all that its neighbour sees in a private run of two sites.

    That is the sums, the coefficients of the first rounds, and what follows from them: the first coefficients are
    (H + U)^-1 d. The neighbour has both sites' sums, so that it knows H + U, and hence d.
    """
    settings = DeKRRSettings(
        privacy=privacy, scale=None, tol=0.0, max_rounds=2, solver="jacobi", self_penalty=0.0, alpha=1e-3, min_rows=1
    )
    selector = Plain(n_features, sigma=sigma)

    def release(rows):
        target = Site("target", ("other",), ArrayRows(*rows), seed=neighbor.seed)
        record = Overheard()
        network = LocalNetwork({"target": ["other"], "other": ["target"]}, observers=[record])
        outcomes = network.run({site.name: dekrr.train(site, selector, settings) for site in (target, neighbor)})
        sums = {
            sender: unpack_symmetric(record.between(sender, receiver, Sums)[0].gram, n_features)
            for sender, receiver in (("target", "other"), ("other", "target"))
        }
        coefficients = [m.values for m in record.between("target", "other", Coefficients)]
        n_rows = outcomes["other"].roster.n_rows
        pull = penalty(settings.consensus, n_rows, 1)
        ridge = settings.alpha / 2 + GaussianSums(privacy, len(rows[1])).ridge(n_features) / n_rows
        hessian = (1 / n_rows + pull) * sums["target"] + pull * sums["other"] + ridge * np.eye(n_features)
        return np.concatenate([pack_symmetric(sums["target"]), *coefficients, hessian @ coefficients[0]])

    return release


def canaries(feature_map, n_rows=200):
    """Return pairs of neighbouring data sets of one column, with bounds 0 and 1 of the column, and -1 and 1 of y.

    The pairs differ in one row: in an ordinary one as far as the sensitivity allows, or in one that is at the bounds,
    beyond them, or a fill value in the place of a measurement (9.97e36 is that of netCDF).
    """
    X = np.linspace(0, 1, n_rows)[:, None]
    y = np.sin(3 * X[:, 0])
    turn = np.pi / 3 / abs(float(feature_map.frequencies[0, 0]))
    fill = 9.969209968386869e36
    rows = {
        "ordinary": ((0.1, 1.0), (0.1 + turn, -1.0)),
        "at the bounds": ((0.0, -1.0), (1.0, 1.0)),
        "beyond the bounds": ((-7.3, -50.0), (12.8, 50.0)),
        "fill values": ((fill, fill), (0.1, -1.0)),
        "fill values of x": ((fill, 1.0), (-fill, -1.0)),
    }
    return {
        name: tuple((np.vstack([X, [[value]]]), np.append(y, response)) for value, response in pair)
        for name, pair in rows.items()
    }


def released(privacy, feature_map, n_rows):
    """Return a function that maps rows (X, y) to what a site releases of them, by public bounds 0, 1 and -1, 1.

    It is the code of a run: public scaling, clipping, sums and noise.
    """
    mechanism = GaussianSums(privacy, n_rows)
    n_columns = feature_map.n_columns
    scaling = public_scaling(((0.0,) * n_columns + (-1.0,), (1.0,) * (n_columns + 1)), n_columns)

    def release(rows):
        exact, _ = sum_and_digest(ArrayRows(*rows).scaled(scaling), feature_map, {})
        noisy = mechanism.perturb(exact)
        return pack(noisy.gram, noisy.moment)

    return release


def released_to_colluders(privacy, feature_map, n_rows, n_partners):
    """Return a function that maps rows (X, y) of a site to the most that colluding sites see of them by shared noise.

    That is the sum over the fewest honest sites that share masks. The other honest sites have no rows here: what rows
    they have moves the sum by as much, whatever the site's rows are.
    """
    n_columns, size = feature_map.n_columns, feature_map.n_features
    noise = SharedNoise(privacy, n_rows, n_partners, n_partners + 1, (size,))
    scaling = public_scaling(((0.0,) * n_columns + (-1.0,), (1.0,) * (n_columns + 1)), n_columns)
    nothing = OwnSums(np.zeros((size, size)), np.zeros(size), 0.0)

    def release(rows):
        exact, _ = sum_and_digest(ArrayRows(*rows).scaled(scaling), feature_map, {})
        return np.asarray(sum((noise.perturb(nothing) for _ in range(noise.n_honest - 1)), noise.perturb(exact)))

    return release


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
