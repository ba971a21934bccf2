"""The authors' reference code, entry by entry. numpy agrees with every one to about 1e-14."""

from pathlib import Path

import numpy as np
import pytest

from dekrr.features import FeatureMap
from dekrr.networks.local import LocalNetwork
from dekrr.protocols import dekrr
from dekrr.protocols.baselines import dkla
from dekrr.protocols.site import Site
from dekrr.selection import Energy, Plain, Pool
from dekrr.settings import DeKRRSettings, DKLASettings
from dekrr.statistics import Weights, accumulate, assemble, penalty
from dekrr.tables.rows import ArrayRows

TOLERANCE = 1e-10
GOLDEN = np.load(Path(__file__).with_name("golden.npz"))
NAMES = [str(j) for j in range(int(GOLDEN["n_nodes"]))]
NEIGHBORS = {name: tuple(str(p) for p in GOLDEN[f"neighbors_{name}"]) for name in NAMES}
MAPS = {name: FeatureMap.unweighted(GOLDEN[f"frequencies_{name}"], GOLDEN[f"phases_{name}"]) for name in NAMES}
ROWS = {name: ArrayRows(GOLDEN[f"X_{name}"], GOLDEN[f"y_{name}"]) for name in NAMES}
ALPHA, CONSENSUS = float(GOLDEN["alpha"]), float(GOLDEN["c"])
N_ROWS = sum(len(GOLDEN[f"y_{name}"]) for name in NAMES)


def close(actual, name):
    np.testing.assert_allclose(actual, GOLDEN[name], rtol=0, atol=TOLERANCE)


def sites(with_maps=True):
    return [Site(n, NEIGHBORS[n], ROWS[n], feature_map=MAPS[n] if with_maps else None) for n in NAMES]


def pooled_rse(coefficients, maps, part):
    errors, responses = [], []
    for name in NAMES:
        y = GOLDEN[f"y{part}_{name}"]
        errors.append(maps[name](GOLDEN[f"X{part}_{name}"]) @ coefficients[name] - y)
        responses.append(y)
    errors, responses = np.concatenate(errors), np.concatenate(responses)
    return np.sum(errors**2) / np.sum((responses - responses.mean()) ** 2)


def block_rows():
    sums = {n: accumulate(ROWS[n], MAPS[n], {p: MAPS[p] for p in NEIGHBORS[n]}) for n in NAMES}
    for name in NAMES:
        own, sent = sums[name]
        received = {p: sums[p][1][name] for p in NEIGHBORS[name]}
        weights = Weights(
            N_ROWS,
            len(NAMES),
            ALPHA,
            penalty(CONSENSUS, N_ROWS, len(NEIGHBORS[name])),
            {p: penalty(CONSENSUS, N_ROWS, len(NEIGHBORS[p])) for p in NEIGHBORS[name]},
        )
        yield name, own, weights, assemble(own, received, sent, weights)


def test_system_matrices():
    for name, own, weights, row in block_rows():
        self_penalty = 5 * weights.own_penalty * own.gram
        close(N_ROWS * (row.hessian + self_penalty), f"dekrr_system_{name}")
        close(N_ROWS * self_penalty, f"dekrr_self_{name}")
        close(N_ROWS * row.right_side, f"dekrr_rhs_{name}")
        ends = np.cumsum([MAPS[p].n_features for p in row.neighbors])
        for p, coupling in zip(row.neighbors, np.split(row.couplings, ends[:-1], axis=1), strict=True):
            close(N_ROWS * coupling, f"dekrr_coupling_{name}_{p}")


@pytest.fixture(scope="module")
def outcomes():
    settings = DeKRRSettings(
        lone_neighbor="warn",
        alpha=ALPHA,
        consensus=CONSENSUS,
        solver="jacobi",
        self_penalty=5.0,
        tol=0.0,
        max_rounds=1500,
        scale=None,
        rows_per_feature=0.0,
        verify_features=False,
    )
    selector = Plain(sigma=float(GOLDEN["sigma"]))
    return LocalNetwork(NEIGHBORS).run(
        {site.name: dekrr.train(site, selector, settings, keep_path=True) for site in sites()}
    )


@pytest.mark.parametrize("rounds", [1, 2, 10, 100, 1500])
def test_coefficients_after(outcomes, rounds):
    for name in NAMES:
        close(outcomes[name].path[rounds], f"dekrr_theta_{name}_iter{rounds}")


@pytest.mark.parametrize(("part", "curve"), [("", "dekrr_train_rse"), ("_test", "dekrr_test_rse")])
def test_rse_curve(outcomes, part, curve):
    rses = [pooled_rse({n: outcomes[n].path[k] for n in NAMES}, MAPS, part) for k in range(1501)]
    close(rses, curve)


def test_energy_scores_and_choice():
    pool = Pool(GOLDEN["energy_frequencies"], GOLDEN["energy_phases"])
    scores = Energy(n_features=8).scores(pool, GOLDEN["X_0"], GOLDEN["y_0"])
    close(scores, "energy_scores")
    chosen = Energy(n_features=8, redraw_phases=False).choose(
        pool, GOLDEN["X_0"], GOLDEN["y_0"], np.random.default_rng(0)
    )
    np.testing.assert_array_equal(chosen.frequencies, pool.frequencies[:, GOLDEN["energy_selected"]])


@pytest.fixture(scope="module")
def dkla_outcomes():
    shared = FeatureMap.unweighted(GOLDEN["dkla_frequencies"], GOLDEN["dkla_phases"])
    guards = {"rows_per_feature": 0, "max_leverage": 1}
    settings = DKLASettings(alpha=ALPHA, rho=1e-4, rho_period=200, tol=0.0, max_rounds=1000, scale=None, **guards)
    return shared, LocalNetwork(NEIGHBORS).run(
        {
            site.name: dkla.train(site, Plain(), settings, shared=shared, keep_path=True)
            for site in sites(with_maps=False)
        }
    )


@pytest.mark.parametrize("rounds", [1, 10, 199, 200, 1000])
def test_dkla_after(dkla_outcomes, rounds):
    _, outcomes = dkla_outcomes
    for name in NAMES:
        close(outcomes[name].path[rounds], f"dkla_theta_{name}_iter{rounds}")
        close(outcomes[name].dual_path[rounds], f"dkla_gamma_{name}_iter{rounds}")


@pytest.mark.parametrize(("part", "curve"), [("", "dkla_train_rse"), ("_test", "dkla_test_rse")])
def test_dkla_rse_curve(dkla_outcomes, part, curve):
    shared, outcomes = dkla_outcomes
    maps = dict.fromkeys(NAMES, shared)
    close([pooled_rse({n: outcomes[n].path[k] for n in NAMES}, maps, part) for k in range(1001)], curve)
