"""The attacker: what it must get from features of rows, and what from sums."""

import os
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from dekrr.errors import DataError, SettingsError
from dekrr.features import FeatureMap
from dekrr.lab.attacks import campaign as attack
from dekrr.lab.attacks import members, series
from dekrr.lab.attacks.overhearing import overhear
from dekrr.lab.attacks.recovery import recover_rows
from dekrr.lab.attacks.scenes import problem_of_table, read_problem
from dekrr.lab.attacks.sums import Membership, NullSpace, advantage, recovered, rows_by_matching, rows_in_null_space
from dekrr.lab.attacks.views import View, fold_blocks, of_rows, summed
from dekrr.messages import Coefficients, RowFeatures, Sums
from dekrr.privacy.admission import learn
from dekrr.protocols import dekrr
from dekrr.selection import Energy
from dekrr.settings import GRIDS, DeKRRSettings
from dekrr.tables.rows import ArrayRows
from lattice import Lattice, attack_by_lattice

ONE_FOLD = np.ones(1, dtype=bool)
DATA = os.environ.get("DEKRR_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="DEKRR_DATA is not set")


def frequencies_of(n_columns, n_features, scale, seed):
    rng = np.random.default_rng(seed)
    return FeatureMap.unweighted(rng.normal(scale=scale, size=(n_columns, n_features)), rng.uniform(0, 7, n_features))


@pytest.fixture(scope="module")
def coast():
    return read_problem(None, None, 20, 0.4, 0)


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
    selector = Energy(coast.n_features, sigma=coast.sigma)
    run = DeKRRSettings(masks=False, exchange="features", scale=None, max_rounds=1)
    record, outcomes = overhear(coast.sites, lambda site: dekrr.train(site, selector, run))
    victim, attacker = coast.pair()
    (rows,) = record.between(victim.name, attacker.name, RowFeatures)
    np.testing.assert_allclose(rows.own, outcomes[victim.name].feature_map(victim.X), atol=1e-12)
    assert record.between(victim.name, attacker.name, Coefficients)
    assert not record.between(victim.name, attacker.name, Sums)


@needs_data
@pytest.mark.parametrize(("name", "n_features", "at_least"), [("houses", 60, 0.75), ("energy", 90, 0.99)])
def test_the_papers_exchange_gives_rows_away(name, n_features, at_least):
    problem = read_problem(name, Path(DATA), n_features, None, 0)
    found, truth = attack.attack_features(problem, seconds=60)
    assert found.share(truth, 1e-6) >= at_least


@needs_data
@pytest.mark.slow
def test_air_quality_too():
    problem = read_problem("airquality", Path(DATA), 70, None, 0)
    found, truth = attack.attack_features(problem, "4", seconds=120)
    assert found.share(truth, 1e-6) >= 0.95


@pytest.mark.parametrize("tuned", [False, True])
@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("granted", [False, True])
def test_a_view_is_every_sum_that_neighbours_heard(coast, tuned, verify, granted):
    """Every block is the sum over the target's own rows of the folds it says, by maps from messages alone."""
    victim, _ = coast.pair()
    run_settings = msgspec.structs.replace(attack.UNGUARDED, verify_features=verify)
    view = attack.hear(coast, settings=run_settings, tuned=tuned, colluders=2, granted=granted)
    fold_of = victim.fold_of(len(view.fold_sizes))
    assert view.n_rows == victim.n_rows
    n_phases = 5 * len(GRIDS["sigma"]) + 1 if tuned else 1
    assert len(view.blocks) == 2 * 4 * n_phases
    for block in view.blocks:
        rows = block.folds[fold_of]
        assert rows.sum() == view.rows_in(block)
        expected = summed(block.left, block.right, victim.X[rows], victim.y[rows], block.folds)
        np.testing.assert_allclose(block.sums, expected.sums, atol=1e-7)


def test_what_is_granted_has_no_withheld_rows(coast):
    victim, _ = coast.pair()
    X = victim.X.copy()
    X[5] = 1e9
    odd = replace(coast, sites=[replace(victim, rows=ArrayRows(X, victim.y)), *coast.sites[1:]])
    settings = msgspec.structs.replace(attack.GUARDED, rows_per_feature=0)
    admitted = odd.admitted(settings.max_leverage).sites[0]
    assert admitted.n_rows < victim.n_rows
    assert not (admitted.X == 1e9).any()
    view = attack.hear(odd, settings=settings, granted=True)
    assert view.n_rows == admitted.n_rows
    for block in view.blocks:
        expected = summed(block.left, block.right, admitted.X, admitted.y, block.folds)
        np.testing.assert_allclose(block.sums, expected.sums, atol=1e-7)


def test_differences_of_folds_are_sums_over_a_fold(coast):
    victim, _ = coast.pair()
    view = attack.hear(coast, settings=attack.UNGUARDED, tuned=True)
    fold_of = victim.fold_of(5)
    singles = list(fold_blocks(view))
    assert {int(np.flatnonzero(block.folds)[0]) for block in singles} == set(range(5))
    assert len({block.label for block in singles}) > 3
    for block in singles:
        features = block.left(victim.X[block.folds[fold_of]])
        np.testing.assert_allclose(block.sums, features.T @ features, atol=1e-6)


def fewer_rows(problem, counts, *, seconds, seed=0):
    """Yield each of `counts` and the rows recovered from sums when the target has that many rows, without guards."""
    victim, attacker = problem.pair()
    order = np.random.default_rng(seed).permutation(victim.n_rows)
    for count in counts:
        small = replace(victim, rows=ArrayRows(victim.X[order[:count]], victim.y[order[:count]]))
        sites = [small if site is victim else site for site in problem.sites]
        shrunk = replace(problem, sites=sites)
        view = attack.hear(shrunk, settings=attack.UNGUARDED)
        spare = problem.spare[victim.name][0]
        yield count, attack.rows_from_sums(view, small, attacker.X, attacker.y, spare, seconds=seconds, seed=seed)


def test_few_rows_come_back_from_sums_and_many_do_not(coast):
    """20 + 20 features: 15 rows leave a null space of 25 dimensions, 150 rows leave none."""
    shares = {count: found.shares[1e-6] for count, found in fewer_rows(coast, [15, 150], seconds=4)}
    assert shares[15] > 0.5
    assert shares[150] == 0.0


def test_more_features_than_rows_leave_a_null_space():
    rng = np.random.default_rng(0)
    wide = FeatureMap.unweighted(rng.normal(scale=4, size=(2, 60)), rng.uniform(0, 7, 60))
    X = rng.uniform(size=(25, 2))
    space = NullSpace(summed(wide, wide, X, X[:, 0], ONE_FOLD))
    found = rows_in_null_space(wide, space.directions(1e-11), rng.uniform(size=(300, 2)))
    assert recovered(found, X, 1e-5, np.empty((0, 2))) > 0.8
    assert not len(rows_in_null_space(wide, space.directions(1e-11)[:, :2], rng.uniform(size=(3, 2))))


def test_a_row_that_stands_alone_shows_unless_it_is_left_out():
    """Many rows in a corner and one far away: the directions of least weight lead to it, in sums with it."""
    rng = np.random.default_rng(0)
    smooth = FeatureMap.unweighted(rng.normal(size=(3, 60)), rng.uniform(0, 7, 60))
    X = np.vstack([0.3 * rng.uniform(size=(800, 3)), [[0.8, 0.9, 0.7]]])
    every = ArrayRows(X, X[:, 0])
    typical = every.admitted(learn(every, 0.95)).X
    assert not (typical == X[-1]).all(axis=1).any()
    assert len(typical) > 0.95 * len(X)
    starts = rng.uniform(size=(300, 3))
    distances = []
    for rows in (X, typical):
        space = NullSpace(summed(smooth, smooth, rows, rows[:, 0], ONE_FOLD))
        found = rows_in_null_space(smooth, space.directions(1e-6), starts)
        distances.append(np.abs(found - X[-1]).max(axis=1).min())
    assert distances[0] < 1e-3
    assert distances[1] > 1e-2
    assert learn(every, 1.0)(X).all()


def test_matching_finds_rows_where_equations_exceed_unknowns():
    rng = np.random.default_rng(0)
    maps = [frequencies_of(2, 12, 1.0, seed) for seed in (0, 1)]
    X, y = rng.uniform(size=(4, 2)), rng.uniform(-1, 1, 4)
    blocks = [summed(*pair, X, y, ONE_FOLD) for pair in [(maps[0], maps[0]), (*maps,), (maps[0], None)]]
    view = View(blocks, (4,))
    best = min(
        (rows_by_matching(view, rng.uniform(size=X.shape), np.zeros(4), seconds=3) for _ in range(6)),
        key=lambda result: result[1],
    )
    assert best[1] < 1e-8
    assert recovered(best[0], X, 1e-2, known=np.empty((0, 2))) == 1.0


def test_values_are_moved_to_known_ones():
    known = np.array([[0.0, 0.5], [0.4, 0.9]])
    moved = attack.snapped(np.array([[0.19, 0.71], [0.9, 0.1]]), known)
    np.testing.assert_array_equal(moved, [[0.0, 0.9], [0.4, 0.5]])


def test_a_lattice_gives_rows_back_without_a_start():
    """500 rows, sums of 420 features: less than one a row."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(500, 3))
    lattice = Lattice.within(3, (0, 2), 6, 8, limit=150.0)
    capacities = [200, 220]
    maps = lattice.maps(capacities)
    assert max(np.linalg.norm(m.frequencies, axis=0).max() for m in maps) <= 150.0
    assert all(m.n_features <= capacity for m, capacity in zip(maps, capacities, strict=True))
    phi = lattice.moments(capacities, [m(X).T @ m(X) for m in maps])
    found = lattice.rows(phi, len(X))
    assert recovered(found, X, 1e-3, np.empty((0, 3))) > 0.9
    with pytest.raises(SettingsError, match="too small"):
        lattice.maps([200])


def test_frequencies_of_a_neighbours_own_choice_give_rows_away_and_are_refused(coast):
    """Limits on rows and features allow the lattice; the proof of features and leverages, both the default, do not."""
    smaller = replace(coast, n_features=8)
    found = attack_by_lattice(smaller, fine=4, coarse=6, n_lattice_columns=2)
    assert found.shares[1e-3] > 0.1
    assert found.chance[1e-3] < 0.02
    with pytest.raises(SettingsError, match="not in the pool"):
        attack_by_lattice(smaller, fine=4, coarse=6, n_lattice_columns=2, settings=attack.GUARDED)
    unproved = msgspec.structs.replace(attack.GUARDED, verify_features=False)
    with pytest.raises(DataError, match="of which stand alone"):
        attack_by_lattice(smaller, fine=4, coarse=6, n_lattice_columns=2, settings=unproved)


def test_rows_known_before_do_not_count():
    X = np.array([[0.1, 0.2], [0.3, 0.4]])
    assert recovered(X, X, 1e-3, known=X[:1]) == 0.5


@pytest.mark.parametrize("n_folds", [1, 3])
def test_membership_scores_are_the_likelihood_ratio_written_out(n_folds):
    """With folds, of sums over all rows and over all but a fold's; a row may be in any."""
    rng = np.random.default_rng(1)
    z_p, z_j = (frequencies_of(2, 4, 2.0, seed) for seed in (0, 1))
    X, y = rng.uniform(size=(30, 2)), rng.uniform(-1, 1, 30)
    reference_X, reference_y = rng.uniform(size=(50, 2)), rng.uniform(-1, 1, 50)
    fold_of = np.arange(30) % n_folds
    masks = [np.ones(n_folds, dtype=bool), *(np.arange(n_folds) != f for f in range(n_folds - 1))]
    blocks = [
        summed(left, right, X[mask[fold_of]], y[mask[fold_of]], mask)
        for mask in masks
        for left, right in ((z_p, z_p), (z_p, z_j), (z_j, None))
    ]

    def phi(rows, responses, fold):
        parts = []
        for block in blocks:
            left, right = of_rows(block, rows, responses)
            ref_left, ref_right = of_rows(block, reference_X, reference_y)
            energy = np.mean(np.sum(ref_left**2, axis=1) * np.sum(ref_right**2, axis=1))
            products = (left[:, :, None] * right[:, None]).reshape(len(rows), -1) / np.sqrt(energy)
            parts.append(products * block.folds[fold])
        return np.hstack(parts)

    sizes = np.bincount(fold_of)
    test_X, test_y = rng.uniform(size=(5, 2)), rng.uniform(-1, 1, 5)
    total = sum(phi(X[fold_of == f], y[fold_of == f], f).sum(axis=0) for f in range(n_folds))
    references = [phi(reference_X, reference_y, f) for f in range(n_folds)]
    excess = total - sum(n * r.mean(axis=0) for n, r in zip(sizes, references, strict=True))
    spread = sum(n * np.cov(r.T, bias=True) for n, r in zip(sizes, references, strict=True))
    inverse = np.linalg.inv(spread + 0.01 * np.trace(spread) * np.eye(len(spread)))
    ratios = []
    for f in range(n_folds):
        moved = phi(test_X, test_y, f) - references[f].mean(axis=0)
        ratios.append(moved @ inverse @ excess - np.einsum("ni,ij,nj->n", moved, inverse, moved) / 2)
    expected = np.log(np.sum(np.exp(ratios) * (sizes / 30)[:, None], axis=0))
    scores = Membership(View(blocks, tuple(sizes)), reference_X, reference_y, ridge=0.01).scores(test_X, test_y)
    np.testing.assert_allclose(scores, expected, rtol=1e-6, atol=1e-9)


def test_members_of_few_rows_are_told_from_others(coast):
    victim, _ = coast.pair()
    small = replace(victim, rows=victim.rows.take(slice(40)))
    problem = replace(coast, sites=[small if site is victim else site for site in coast.sites])
    few = attack.infer(problem, attack.hear(problem, settings=attack.UNGUARDED), guesses=0).membership
    many = attack.infer(coast, attack.hear(coast, settings=attack.UNGUARDED), guesses=0).membership
    assert few.area > max(many.area, 0.75)


def test_liars_keep_to_what_verification_allows(coast):
    smaller = replace(coast, n_features=8)
    view = attack.hear(smaller, forger=attack.fingerprinting(smaller), colluders=2, granted=False)
    honest = attack.hear(smaller, colluders=2, granted=False)
    assert view.n_sums > honest.n_sums
    shortlist = view.blocks[0].left
    assert shortlist.n_features == smaller.longest_shortlist(smaller.pair()[1])
    drawn = smaller.selector().draw_pool(shortlist.n_columns, smaller.pair()[1].rng()).frequencies
    assert np.linalg.norm(shortlist.frequencies, axis=0).max() == np.linalg.norm(drawn, axis=0).max()
    unguarded = attack.hear(
        smaller, forger=attack.fingerprinting(smaller), colluders=2, granted=False, settings=attack.UNGUARDED
    )
    lied, told, lied_unguarded = (
        attack.infer(smaller, each, guesses=0).membership.area for each in (view, honest, unguarded)
    )
    assert 0.5 < lied < told  # lies that pass are no better than the truth, and than the same lies without the guards
    assert lied <= lied_unguarded


def test_advantage_of_guessing_is_none():
    rng = np.random.default_rng(0)
    guessed = advantage(rng.normal(size=4000), rng.normal(size=4000))
    assert abs(guessed.area - 0.5) < 0.03
    assert guessed.advantage < 0.06


def test_command_prints_shares_and_draws(tmp_path):
    from dekrr.cli.app import app

    options = ["-D", "20", "--sigma", "0.5", "--no-sums", "--no-members", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["attack", *options])
    assert result.exit_code == 0, result.output
    assert "100.0%" in result.output
    assert (tmp_path / "attack.png").stat().st_size > 1000


@pytest.mark.slow  # the command on a table of one's own takes the same way
def test_command_attacks_sums_too(tmp_path, monkeypatch):
    from dekrr.cli.app import app

    monkeypatch.setenv("COLUMNS", "200")
    options = ["-D", "10", "--effort", "2", "--colluders", "2", "--no-studies", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["attack", *options])
    assert result.exit_code == 0, result.output
    features, sums, *others = [line for line in result.output.splitlines() if "│ made-up coast" in line]
    assert features.count("100.0%") == 2
    assert sums.count(" 0.0%, 0.0%") == 2
    cells = [re.split(r"\s*│\s*", line) for line in others]
    for scenario in ("tuned", "a site lost", "new rows", "trained again"):
        assert [cell[6] for cell in cells if cell[5] == scenario and cell[9] == "0"] == ["1", "2"]  # neighbours
    assert any("refused" in line and "5 of 5" in line for line in others)
    heard = [cell[4] for cell in cells if cell[6] == "3"]
    by_algebra = ["the same, by linear algebra", "sums over all sites (root), by linear algebra"]
    of_sums = ["sums of one site (no masks)"] * 2 + ["sums of a neighbourhood (masks)", *by_algebra]
    assert heard == [*of_sums, "the final model"]


def own_table(path, n_sites, n_rows=200):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"age": rng.integers(18, 95, n_sites * n_rows), "severity": rng.gamma(2, 1.5, n_sites * n_rows)}
    )
    table["cost"] = np.sin(table["age"] / 20) + table["severity"] + rng.normal(0, 0.1, len(table))
    table = table.assign(ward="x", hospital=np.repeat([f"H{k}" for k in range(n_sites)], n_rows))
    table.loc[::50, "severity"] = np.nan
    table.to_csv(path, index=False)
    return table


def test_the_command_attacks_a_table_of_ones_own(tmp_path, monkeypatch):
    from dekrr.cli.app import app

    monkeypatch.setenv("COLUMNS", "200")
    own_table(tmp_path / "own.csv", 4)
    words = [str(tmp_path / "own.csv"), "--target", "cost", "--site", "hospital", "-D", "10", "--targets", "1"]
    words += ["--effort", "1", "--no-features", "--no-tuned", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["attack", *words])
    assert result.exit_code == 0, result.output
    rows = [re.split(r"\s*│\s*", line) for line in result.output.splitlines() if "│ own.csv" in line]
    assert {"a site lost", "trained again", "the final model"} <= {cell for row in rows for cell in row}
    (refused,) = (row for row in rows if "again after each new row (refused)" in row)
    assert refused[-2] == "12 of 12"


def test_a_problem_of_a_table_has_its_rows_without_gaps_and_all_mistakes_are_named(tmp_path):
    path = tmp_path / "own.csv"
    table = own_table(path, 4).dropna()
    problem = problem_of_table(path, "cost", "hospital")
    assert [site.name for site in problem.sites] == ["H0", "H1", "H2", "H3"]
    rows = {site.name: site.n_rows + len(problem.spare[site.name][0]) for site in problem.sites}
    assert rows == table["hospital"].value_counts().to_dict()
    assert {site.rows.n_columns for site in problem.sites} == {2}
    assert problem_of_table(path, "cost", "hospital", ["age"]).sites[0].rows.n_columns == 1
    for words, match in (
        (("costs", "hospital"), "has no column costs; it has age"),
        (("ward", "hospital"), "columns of numbers, not on ward"),
        (("cost", "hospital", ["ward"]), "columns of numbers, not on ward"),
        (("cost", "ward"), "1 sites; an attack needs at least 4 sites"),
        (("cost", "age"), r"too few rows without gaps at .* more; an attack needs"),
    ):
        with pytest.raises(DataError, match=match):
            problem_of_table(path, *words)
    from dekrr.cli.app import app

    assert "give --target and --site" in str(CliRunner().invoke(app, ["attack", str(path)]).exception)


def test_the_usual_policy_admits_no_series_of_studies_to_its_end(coast):
    for answer in series.answers(coast):
        assert answer.admitted < answer.asked, answer
        assert answer.reason


def test_who_holds_the_pool_tells_members_by_linear_algebra(coast):
    """Masks do not prevent it; only noise does."""
    target = coast.sites[0].name
    assert members.by_algebra(coast, target).advantage > 0.35
    assert members.by_algebra(coast, target, of_root=True).advantage > 0.15
