"""The attacker: what it must get from features of rows, and what from sums."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from dekrr.features import FeatureMap
from dekrr.messages import Coefficients, RowFeatures, Sums
from dekrr.privacy import attack
from dekrr.privacy.overhearing import overhear
from dekrr.privacy.rows import recover_rows
from dekrr.privacy.sums import (
    Membership,
    View,
    advantage,
    fingerprinting_map,
    recovered,
    rows_by_matching,
    rows_in_null_space,
)
from dekrr.protocols import dekrr
from dekrr.selection import EnergySelector

DATA = os.environ.get("DEKRR_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="DEKRR_DATA is not set")


@pytest.fixture(scope="module")
def coast():
    return attack.read_problem(None, None, 20, 0.4, 0)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), n_columns=st.integers(1, 4), sigma=st.floats(0.3, 2.0))
def test_rows_come_back_from_their_features(seed, n_columns, sigma):
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(8, n_columns))
    amplitudes = rng.uniform(0.1, 2, 30)
    feature_map = FeatureMap(rng.normal(size=(n_columns, 30)) / sigma, rng.uniform(0, 7, 30), amplitudes)
    found = recover_rows(feature_map, feature_map(X), seconds=20)
    assert found.solved.all()
    np.testing.assert_allclose(found.rows, X, rtol=0, atol=1e-6)


def test_a_row_that_is_not_solved_is_known_to_be_not():
    rng = np.random.default_rng(0)
    feature_map = FeatureMap.unweighted(rng.normal(size=(3, 20)), rng.uniform(0, 7, 20))
    nonsense = rng.uniform(-1, 1, size=(4, 20)) * feature_map.amplitudes
    assert not recover_rows(feature_map, nonsense, sweeps=2).solved.any()


@pytest.mark.parametrize("own_rows", [True, False])
def test_a_neighbour_gets_all_rows_with_or_without_rows_of_its_own(coast, own_rows):
    found, truth = attack.attack_features(coast, seconds=20, own_rows=own_rows)
    assert found.share(truth, 1e-6) == 1.0


def test_the_attacker_uses_messages_alone(coast):
    """The rows' features that the attack starts from are those that the receiver decoded."""
    selector = EnergySelector(coast.n_features, sigma=coast.sigma)
    record, outcomes = overhear(coast.sites, selector, dekrr.Settings(exchange="features", scale=None, max_rounds=1))
    victim, attacker = coast.pair()
    (rows,) = record.between(victim.name, attacker.name, RowFeatures)
    np.testing.assert_allclose(rows.own, outcomes[victim.name].feature_map(victim.X), atol=1e-12)
    assert record.between(victim.name, attacker.name, Coefficients)
    assert not record.between(victim.name, attacker.name, Sums)


@needs_data
@pytest.mark.parametrize(("name", "n_features", "at_least"), [("houses", 60, 0.75), ("energy", 90, 0.99)])
def test_the_papers_exchange_gives_rows_away(name, n_features, at_least):
    problem = attack.read_problem(name, Path(DATA), n_features, None, 0)
    found, truth = attack.attack_features(problem, seconds=60)
    assert found.share(truth, 1e-6) >= at_least


@needs_data
@pytest.mark.slow
def test_air_quality_too():
    problem = attack.read_problem("airquality", Path(DATA), 70, None, 0)
    found, truth = attack.attack_features(problem, "4", seconds=120)
    assert found.share(truth, 1e-6) >= 0.95


def test_a_view_is_what_the_sums_say(coast):
    victim, attacker = coast.pair()
    view = attack.hear_sums(coast)
    z_p, z_j = view.attackers_map(victim.X), view.targets_map(victim.X)
    np.testing.assert_allclose(view.gram, z_p.T @ z_p, atol=1e-9)
    np.testing.assert_allclose(view.cross, z_p.T @ z_j, atol=1e-9)
    joint = view.joint_map(victim.X)
    np.testing.assert_allclose(view.joint_gram, joint.T @ joint, atol=1e-9)
    assert view.n_rows == victim.n_rows
    assert attacker.name in victim.neighbors


def test_few_rows_come_back_from_sums_and_many_do_not(coast):
    """20 + 20 features: 15 rows leave a null space of 25 dimensions, 170 rows leave none."""
    shares = {count: found.shares[1e-6] for count, found in attack.fewer_rows(coast, [15, 150], seconds=4)}
    assert shares[15] > 0.5
    assert shares[150] == 0.0


def test_more_features_than_rows_is_the_same_for_a_malicious_neighbour(coast):
    victim, attacker = coast.pair()
    small = replace(victim, rows=victim.rows.take(slice(40)))
    problem = replace(coast, sites=[small if site is victim else site for site in coast.sites])
    view = attack.overasking_view(problem, surplus=20)
    begin = np.random.default_rng(0).uniform(size=(300, attacker.X.shape[1]))
    found = rows_in_null_space(view, begin)
    assert recovered(found, small.X, 1e-5, attacker.X) > 0.2


def test_matching_finds_rows_where_equations_exceed_unknowns():
    rng = np.random.default_rng(0)
    maps = [fingerprinting_map(2, 12, 1.0, seed) for seed in (0, 1)]
    X = rng.uniform(size=(4, 2))
    z_p, z_j = maps[0](X), maps[1](X)
    view = View(maps[0], maps[1], z_p.T @ z_p, z_p.T @ z_j, len(X), z_j.T @ z_j)
    best = min((rows_by_matching(view, rng.uniform(size=X.shape), seconds=3) for _ in range(6)), key=lambda r: r[1])
    assert best[1] < 1e-8
    assert recovered(best[0], X, 1e-2, known=np.empty((0, 2))) == 1.0


def test_rows_known_before_do_not_count():
    X = np.array([[0.1, 0.2], [0.3, 0.4]])
    assert recovered(X, X, 1e-3, known=X[:1]) == 0.5


@pytest.mark.parametrize("granted", [False, True])
def test_membership_scores_are_the_likelihood_ratio_written_out(granted):
    rng = np.random.default_rng(1)
    maps = [fingerprinting_map(2, 4, 2.0, seed) for seed in (0, 1)]
    X, y = rng.uniform(size=(30, 2)), rng.uniform(-1, 1, 30)
    reference_X, reference_y = rng.uniform(size=(50, 2)), rng.uniform(-1, 1, 50)

    def phi(rows, responses):
        z_p, z_j = maps[0](rows), maps[1](rows)
        blocks = [z_p[:, :, None] * z_p[:, None], z_p[:, :, None] * z_j[:, None]]
        if granted:
            blocks += [z_j[:, :, None] * z_j[:, None], (responses[:, None] * z_j)[:, :, None]]
        return np.hstack([block.reshape(len(rows), -1) for block in blocks])

    z_p, z_j = maps[0](X), maps[1](X)
    own = {"targets_gram": z_j.T @ z_j, "moment": z_j.T @ y} if granted else {}
    view = View(maps[0], maps[1], z_p.T @ z_p, z_p.T @ z_j, len(X), **own)
    test_X, test_y = rng.uniform(size=(5, 2)), rng.uniform(-1, 1, 5)
    scores = Membership(view, reference_X, reference_y, ridge=0.01).scores(test_X, test_y)

    reference = phi(reference_X, reference_y)
    mean = reference.mean(axis=0)
    spread = (reference - mean).T @ (reference - mean)
    inverse = np.linalg.inv(spread + 0.01 * np.trace(spread) * np.eye(len(spread)))
    centred = phi(test_X, test_y) - mean
    shift = phi(X, y).mean(axis=0) - mean
    expected = centred @ inverse @ shift - np.einsum("ni,ij,nj->n", centred, inverse, centred) / (2 * len(X))
    np.testing.assert_allclose(scores, expected, rtol=1e-6)


def test_high_frequencies_make_membership_plain(coast):
    honest = attack.infer(coast, attack.hear_sums(coast), guesses=1).membership.area
    malicious = attack.infer(coast, attack.malicious_view(coast), guesses=1).membership.area
    assert malicious > max(honest, 0.65)


def test_advantage_of_guessing_is_none():
    rng = np.random.default_rng(0)
    guessed = advantage(rng.normal(size=4000), rng.normal(size=4000))
    assert abs(guessed.area - 0.5) < 0.03
    assert guessed.advantage < 0.06


def test_command_prints_shares_and_draws(tmp_path):
    from dekrr.cli.app import app

    result = CliRunner().invoke(app, ["attack", "-D", "20", "--sigma", "0.5", "--no-sums", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "100.0%" in result.output
    assert (tmp_path / "attack.png").stat().st_size > 1000


def test_command_attacks_sums_too(tmp_path, monkeypatch):
    from dekrr.cli.app import app

    monkeypatch.setenv("COLUMNS", "160")
    result = CliRunner().invoke(app, ["attack", "-D", "10", "--seconds", "2", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    features, sums = [line for line in result.output.splitlines() if "made-up coast" in line]
    assert features.count("100.0%") == 2
    assert sums.count(" 0.0%") == 2
