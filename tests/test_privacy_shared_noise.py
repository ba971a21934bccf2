"""Distributed noise: its variance, the accountant, what colluders see, and what is refused."""

import pickle
from dataclasses import replace

import msgspec
import networkx as nx
import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from dekrr import DeKRRRegressor, DifferentialPrivacy
from dekrr.errors import SettingsError
from dekrr.lab.attacks.overhearing import Overheard
from dekrr.mesh.vault import FileVault
from dekrr.messages import Masked, Sums, Total, encode
from dekrr.model import Header, model_of
from dekrr.networks.local import LocalNetwork
from dekrr.privacy import mechanism
from dekrr.privacy.masks import Identity, derived_secret
from dekrr.privacy.mechanism import SENSITIVITY, GaussianSums, SharedNoise, pack
from dekrr.protocols import dekrr, training
from dekrr.protocols.exchange import shared_features
from dekrr.protocols.site import Site
from dekrr.selection import Plain
from dekrr.settings import ALONE, DeKRRSettings
from dekrr.statistics import OwnSums
from dekrr.tables.rows import ArrayRows
from epsilon import gaussian_epsilon

pytest.importorskip("opendp", reason="the extra dp is not installed")

D = 8
SETTINGS = DeKRRSettings(
    scale=None, alpha=1e-5, min_rows=1, rows_per_feature=0, privacy=DifferentialPrivacy(2.0, colluders=2)
)


def ring(n_sites=7, n_rows=50):
    graph = nx.relabel_nodes(nx.cycle_graph(n_sites), {i: f"s{i}" for i in range(n_sites)})
    rng = np.random.default_rng(0)
    return {
        name: Site(name, tuple(graph[name]), ArrayRows(rng.uniform(size=(n_rows, 2)), rng.uniform(-1, 1, n_rows)))
        for name in graph
    }


def run(sites, settings=SETTINGS, observers=()):
    network = LocalNetwork({name: site.neighbors for name, site in sites.items()}, observers=observers)
    return network.run({name: dekrr.train(site, Plain(D, sigma=0.5), settings) for name, site in sites.items()})


def exact_total(sites):
    features = shared_features(Plain(D, sigma=0.5), 2, 0)
    Z = np.vstack([features(site.X) for site in sites.values()])
    y = np.concatenate([site.y for site in sites.values()])
    return pack(Z.T @ Z, Z.T @ y), Z, y


def test_the_sum_over_honest_sites_has_all_of_the_noise():
    """h sites of a component, each with its share, against the scale that every site adds alone."""
    privacy = DifferentialPrivacy(1.0, colluders=3)
    noise = SharedNoise(privacy, 1000, n_partners=7, n_sites=20, shape=(30,))
    assert noise.n_honest == 5
    alone = GaussianSums(replace_colluders(privacy), 1000).spent.noise_scale
    assert noise.scale == pytest.approx(alone, rel=1e-5)
    nothing = OwnSums(np.zeros((30, 30)), np.zeros(30), 0.0)
    sums = np.sum([[noise.perturb(nothing) for _ in range(noise.n_honest)] for _ in range(40)], axis=1)
    n = sums.size
    assert sums.std() == pytest.approx(noise.scale, rel=5 / np.sqrt(2 * n))
    assert abs(sums.mean()) < 5 * noise.scale / np.sqrt(n)
    single = np.concatenate([noise.perturb(nothing) for _ in range(40)])
    assert single.std() == pytest.approx(noise.scale / np.sqrt(5), rel=5 / np.sqrt(2 * single.size))
    steps = sums / noise.grid
    np.testing.assert_array_equal(steps, np.rint(steps))  # no bit below the grid
    assert len(np.unique(np.mod(steps, 64))) == 64  # and every bit of the grid has noise


def replace_colluders(privacy):
    return DifferentialPrivacy(privacy.epsilon, privacy.delta)


@pytest.mark.parametrize("epsilon", [0.3, 2.0, 8.0])
@pytest.mark.parametrize("size", [2, 100])
def test_the_accountant_by_an_independent_formula(epsilon, size):
    """Balle and Wang's exact curve of the Gaussian mechanism, for the sensitivity with its rounding."""
    noise = SharedNoise(DifferentialPrivacy(epsilon, 1e-6, colluders=1), 1000, 4, 10, (size,))
    entries = size * (size + 1) // 2 + size
    moved = SENSITIVITY + 2 * np.sqrt(entries) * noise.grid / 2
    assert noise.spent.sensitivity >= moved
    assert noise.spent.epsilon <= epsilon
    assert gaussian_epsilon(noise.spent.sensitivity / noise.scale, 1e-6) <= epsilon


def test_rounding_is_within_what_the_sensitivity_allows(monkeypatch):
    noise = SharedNoise(DifferentialPrivacy(1.0, colluders=1), 1000, 4, 10, (D,))
    monkeypatch.setattr(mechanism, "_discrete_gaussian", lambda scale: lambda steps: steps)
    rng = np.random.default_rng(1)
    sums = OwnSums(np.cov(rng.normal(size=(D, 40))), rng.normal(size=D), 0.0)
    error = noise.perturb(sums) - pack(sums.gram, sums.moment)
    assert 0 < np.linalg.norm(error) <= noise.grid / 2 * np.sqrt(error.size)


def test_without_its_noise_it_is_the_ridge_regression_of_all_rows(monkeypatch):
    monkeypatch.setattr(mechanism, "_discrete_gaussian", lambda scale: lambda steps: steps)
    monkeypatch.setattr(mechanism, "RIDGE_OF_SHARES", 0.0)
    sites = ring()
    found = run(sites, msgspec.structs.replace(SETTINGS, tol=1e-10))
    _, Z, y = exact_total(sites)
    expected = np.linalg.solve(Z.T @ Z / len(y) + SETTINGS.alpha * np.eye(D), Z.T @ y / len(y))
    for outcome in found.values():
        np.testing.assert_allclose(outcome.coefficients, expected, rtol=1e-5, atol=1e-5)
        assert outcome.privacy.mechanism.startswith("discrete Gaussian shared by 3 sites")  # 4 partners, 2 colluders


def test_only_masked_sums_go_up_and_the_total_has_the_noise_of_all():
    totals = []
    for _ in range(30):
        sites = ring()  # with new vaults: a site sends the same words again in the same run
        record = Overheard()
        run(sites, msgspec.structs.replace(SETTINGS, max_rounds=1, tol=0.0), [record])
        assert not [e for e in record.heard if isinstance(e.message, Sums)]
        told = [e.message.values for e in record.heard if isinstance(e.message, Total)]
        assert all(np.array_equal(values, told[0]) for values in told)
        assert len([e for e in record.heard if isinstance(e.message, Masked)]) == len(sites) - 1
        totals.append(told[0])
    noise = SharedNoise(SETTINGS.privacy, 50, 4, 7, (D,))
    errors = np.array(totals) - exact_total(sites)[0]
    assert errors.std() == pytest.approx(noise.share * np.sqrt(7), rel=5 / np.sqrt(2 * errors.size))
    assert errors.std(axis=0).min() > 0.5 * noise.scale  # every run has noise of its own
    assert errors.std() > noise.scale


def test_colluders_around_a_site_are_refused():
    with pytest.raises(SettingsError, match="shares masks with 4 others, so 5 colluding sites could see"):
        run(ring(), msgspec.structs.replace(SETTINGS, privacy=DifferentialPrivacy(2.0, colluders=5)))
    with pytest.raises(SettingsError, match=r"delta=0\.1 promises nothing"):
        run(ring(), msgspec.structs.replace(SETTINGS, privacy=DifferentialPrivacy(2.0, 0.1, colluders=1)))


def test_colluders_see_the_noise_of_the_honest_sites_alone(monkeypatch):
    """Of five sites that all share masks two pool what they know: what is left is the sum over the other three."""
    drawn, real = [], SharedNoise.perturb

    def perturb(self, sums):
        drawn.append((sums, real(self, sums)))
        return drawn[-1][1]

    monkeypatch.setattr(SharedNoise, "perturb", perturb)
    names = [f"s{i}" for i in range(5)]
    sites = {n: replace(s, neighbors=tuple(sorted({*names} - {n}))) for n, s in ring(5).items()}
    record = Overheard()
    run(sites, msgspec.structs.replace(SETTINGS, max_rounds=1, tol=0.0), [record])
    total = next(e.message.values for e in record.heard if isinstance(e.message, Total))
    honest = [
        noisy for sums, noisy in drawn if not any(np.array_equal(sums.moment, drawn[k][0].moment) for k in (0, 1))
    ]
    assert len(honest) == 3
    np.testing.assert_array_equal(total - drawn[0][1] - drawn[1][1], np.sum(honest, axis=0))
    noise = SharedNoise(SETTINGS.privacy, 50, 4, 5, (D,))
    assert noise.share**2 * len(honest) == pytest.approx(noise.scale**2)


def constant_release(monkeypatch):
    """Replace what sites release by a constant, which no row has a part in."""

    def sums_of(like):
        rng = np.random.default_rng(7)
        Z = rng.normal(size=(50, len(like.moment))) / 3
        return Z.T @ Z, Z.T @ rng.uniform(-1, 1, size=(50, *like.moment.shape[1:]))

    def on_the_grid(self, sums):
        return np.rint(pack(*sums_of(sums)) / self.grid) * self.grid

    monkeypatch.setattr(SharedNoise, "perturb", on_the_grid)
    monkeypatch.setattr(GaussianSums, "perturb", lambda self, sums: OwnSums(*sums_of(sums), 0.0))


@pytest.mark.parametrize("colluders", [None, 1])
@pytest.mark.parametrize("outputs", [(), (2,)], ids=["one", "two"])
@pytest.mark.parametrize("changes", [{}, {"scale": None}, {"max_leverage": 0.5, "rows_per_feature": 20.0}], ids=str)
def test_nothing_but_the_release_depends_on_rows(monkeypatch, colluders, outputs, changes):
    """With a constant in its place, all messages are the same to the last bit, whatever rows the sites have."""
    constant_release(monkeypatch)
    bounds = (0.0, 0.0, *[-1.0] * (len(outputs) + 1)), (1.0,) * (3 + len(outputs))
    settings = DeKRRSettings(
        alpha=1e-3,
        bounds=bounds,
        shared=None,
        local=None,
        column_scales=None,
        privacy=DifferentialPrivacy(2.0, colluders=colluders),
        **changes,
    )
    heard = []
    for seed, size in ((1, 1.0), (2, 1e30)):
        rng = np.random.default_rng(seed)
        sites = {}
        for name, site in ring(5).items():
            rows = ArrayRows(size * rng.normal(size=(50, 2)), size * rng.normal(size=(50, *outputs)))
            sites[name] = replace(site, rows=rows, identity=Identity("run", derived_secret(b"secret", name)))
        record = Overheard()
        run(sites, settings, [record])
        heard.append([(e.sender, e.receiver, encode(e.message)) for e in record.heard])
    assert len(heard[0]) > 50
    assert heard[0] == heard[1]


class Stubborn(LinearRegression):
    """Fails for some rows, and not for others."""

    def fit(self, X, y, sample_weight=None):
        if y[0] > y[1]:
            raise ValueError("these rows will not do")
        return super().fit(X, y, sample_weight)


@pytest.mark.parametrize("colluders", [None, 1])
@pytest.mark.parametrize("local", ["auto", Stubborn()], ids=["trees", "stubborn"])
def test_what_a_site_adds_at_home_shows_in_nothing_that_leaves(monkeypatch, colluders, local):
    """Neither in a message nor in the model that may be passed on, though the rows are quite unlike."""
    constant_release(monkeypatch)
    settings = DeKRRSettings(
        alpha=1e-3,
        bounds=((0.0, 0.0, -1.0), (1.0, 1.0, 1.0)),
        **(ALONE | {"local": local}),
        privacy=DifferentialPrivacy(2.0, colluders=colluders),
    )
    heard, passed_on, at_home, told = [], [], [], []
    header = Header(site="s0", method="DeKRRRegressor", kernel="gaussian", sigma=0.5, n_columns=2)
    for seed, size in ((1, 0.0), (2, 3.0), (3, 1e20)):
        rng = np.random.default_rng(seed)
        sites = {}
        for name, site in ring(5).items():
            X = rng.uniform(size=(60, 2))
            rows = ArrayRows(X, size * (X[:, 0] + rng.uniform(size=60)))
            identity = Identity("run", derived_secret(b"secret", name))
            sites[name] = replace(site, rows=rows, identity=identity, tell=lambda text, *_: told.append(text))
        record = Overheard()
        network = LocalNetwork({name: site.neighbors for name, site in sites.items()}, observers=[record])
        trainings = {name: training.train(s, Plain(D, sigma=0.5), settings) for name, s in sites.items()}
        model = model_of(network.run(trainings)["s0"], header, "neighborhood")
        heard.append([(e.sender, e.receiver, encode(e.message)) for e in record.heard])
        passed_on.append(model.without_local().to_bytes())
        at_home.append(model.predict(rng.uniform(size=(9, 2))))
        assert model.stays_home == (model.home is not None)
    assert len(heard[0]) > 50
    assert heard[0] == heard[1] == heard[2]
    assert passed_on[0] == passed_on[1] == passed_on[2]
    assert not np.allclose(at_home[0], at_home[1])
    assert any("these rows will not do" in text for text in told) == (local != "auto")


@pytest.mark.parametrize("colluders", [None, 1])
def test_nothing_in_a_private_estimator_depends_on_rows_but_the_release(monkeypatch, colluders):
    constant_release(monkeypatch)
    states = []
    for seed in (1, 2):
        rng = np.random.default_rng(seed)
        X = rng.uniform(size=(300, 2))
        model = DeKRRRegressor(
            features="plain",
            n_features=8,
            sigma=0.5,
            alpha=1e-3,
            consensus=1.0,
            random_state=0,
            bounds=((0.0, 0.0, -1.0), (1.0, 1.0, 1.0)),
            privacy=DifferentialPrivacy(1.0, colluders=colluders),
            local=None,
        )
        states.append(model.fit(X, rng.uniform(-1, 1, 300), sites=np.repeat(np.arange(5), 60)).__getstate__())
    assert {k: pickle.dumps(v) for k, v in states[0].items()} == {k: pickle.dumps(v) for k, v in states[1].items()}


def test_a_site_sends_once_for_one_roster(tmp_path):
    sites = {
        name: replace(
            site,
            vault=FileVault(tmp_path / name, b"secret"),
            identity=Identity("run", derived_secret(b"secret", name)),
        )
        for name, site in ring().items()
    }
    heard = []
    for _ in range(2):  # a site that resumes sends the same words
        record = Overheard()
        fresh = {n: replace(s, vault=FileVault(tmp_path / n, b"secret")) for n, s in sites.items()}
        run(fresh, SETTINGS, [record])
        heard.append([e.message.words for e in record.heard if isinstance(e.message, Masked)])
    for first, second in zip(*heard, strict=True):
        np.testing.assert_array_equal(first, second)
    left = {n: replace(s, neighbors=tuple(p for p in s.neighbors if p != "s3")) for n, s in sites.items() if n != "s3"}
    with pytest.raises(SettingsError, match="budget of this run is spent"):
        run(left, msgspec.structs.replace(SETTINGS, privacy=DifferentialPrivacy(2.0, colluders=1)))


def test_the_estimator_shares_noise_and_all_sites_have_one_model():
    rng = np.random.default_rng(0)
    X, sites = rng.uniform(size=(3000, 2)), np.repeat(np.arange(6), 500)
    y = np.sin(3 * X[:, 0])
    options = {"features": "plain", "n_features": 20, "sigma": 0.5, "alpha": 1e-6, "consensus": 3.0, "random_state": 0}
    bounds = ((0.0, 0.0, -1.0), (1.0, 1.0, 1.0))
    privacy = DifferentialPrivacy(4.0, colluders=1)
    model = DeKRRRegressor(privacy=privacy, bounds=bounds, **options).fit(X, y, sites=sites)
    assert model.rse(X, y, sites=sites) < 0.15
    assert "shared by 5 sites" in model.models_[0].header.privacy.mechanism
    one = [model.models_[site].predict(X[:20], elsewhere=True) for site in range(6)]
    np.testing.assert_allclose(one, np.broadcast_to(one[0], (6, 20)), atol=1e-4)
