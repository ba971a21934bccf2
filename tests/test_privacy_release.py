"""Attacks that a release must pass: they find nothing here, and what they are for where it is there."""

from dataclasses import replace

import numpy as np
import pytest

from dekrr.lab.attacks import members, release
from dekrr.lab.attacks.overhearing import overhear
from dekrr.lab.attacks.release import Difference, from_tuning
from dekrr.lab.attacks.scenes import in_agreed_units, read_problem
from dekrr.messages import Features, Moments, Sums
from dekrr.privacy.masks import MaskError
from dekrr.protocols import cross_validation, dekrr
from dekrr.protocols.exchange import ExactSums
from dekrr.protocols.feature_choice import read_features
from dekrr.settings import DeKRRSettings


@pytest.fixture(scope="module")
def coast():
    return in_agreed_units(read_problem(None, None, 10, 0.5, 0))


def test_agreed_units_are_those_of_a_deployment():
    raw = read_problem(None, None, 10, 0.5, 0)
    X = raw.sites[3].X.copy()
    X[5, 0] = 1e9
    sites = list(raw.sites)
    sites[3] = replace(sites[3], rows=type(sites[3].rows)(X, sites[3].y))
    problem = in_agreed_units(replace(raw, sites=sites), DeKRRSettings(max_leverage=1.0))
    assert problem.sites[3].n_rows == raw.sites[3].n_rows
    assert max(site.X.max() for site in problem.sites) <= 1.25
    withheld = in_agreed_units(replace(raw, sites=sites))
    assert withheld.sites[3].n_rows < raw.sites[3].n_rows
    assert withheld.sites[3].admission(withheld.sites[3].X).all()


@pytest.mark.parametrize("colluders", [1, 4])
def test_a_life_of_runs_gives_no_row_away(coast, colluders):
    hauls = {haul.scenario: haul for haul in release.life(coast, colluders)}
    assert set(hauls) >= {"trained", "tuned", "a site lost", "new rows", "trained again"}
    assert ("tuned, by coefficients" in hauls) == (colluders == 4)
    assert hauls["trained again"].pairs > 20
    assert all((haul.telling, haul.rows) == (0, 0) for haul in hauls.values())


def tuned_run(problem):
    victim, _ = problem.pair()
    sites = {site.name: site for site in problem.sites}
    record, outcomes = overhear(
        problem.sites,
        lambda site: dekrr.train(site, problem.selector(), release.SETTINGS, release.TUNING),
        (victim.name, *victim.neighbors),
    )
    roster, degrees = outcomes[victim.name].roster, {p: len(sites[p].neighbors) for p in victim.neighbors}
    found = from_tuning(record, victim, release.TUNING, roster.n_rows, roster.n_sites, degrees)
    maps = [read_features(victim.name, m) for m in record.between(victim.name, victim.neighbors[0], Features)]
    victim = victim.in_order()
    return victim, found, maps, victim.fold_of(release.TUNING.folds)


def test_coefficients_give_the_sums_over_admitted_rows_and_nothing_beside(coast):
    victim, found, maps, folds = tuned_run(coast)
    assert len(found) == release.TUNING.folds
    for fold, (sums, feature_map) in enumerate(zip(found, maps, strict=False)):
        Z = feature_map(victim.X[folds != fold])
        scale = np.linalg.norm(Z.T @ Z)
        np.testing.assert_allclose(sums.shared, Z.T @ Z, atol=1e-6 * scale)
        np.testing.assert_allclose(sums.moment, Z.T @ victim.y[folds != fold], atol=1e-6 * scale)
        assert np.linalg.norm(sums.own_only) < 1e-6 * scale


def test_rows_in_a_sites_own_fit_alone_would_come_back_from_its_coefficients(coast, monkeypatch):
    """The first fix of the audit's finding, and what broke it."""
    victim, attacker = coast.pair()
    alone = np.array([[0.9, 0.1, 0.4], [0.1, 0.95, 0.7]])
    real_sums, real_assemble, of_target = ExactSums.sums, cross_validation.assemble, []

    def sums(self, start, own_map, offers, run):
        ready = yield from real_sums(self, start, own_map, offers, run)
        if start.site.name == victim.name:
            of_target.append((ready.own, own_map(alone)))
        return ready

    def assemble(own, received, sent, weights):
        row = real_assemble(own, received, sent, weights)
        for known, Z in of_target:
            if known is own:
                row.hessian[...] += Z.T @ Z / weights.n_rows
        return row

    monkeypatch.setattr(ExactSums, "sums", sums)
    monkeypatch.setattr(cross_validation, "assemble", assemble)
    _, found, maps, _ = tuned_run(coast)
    for solved, feature_map in zip(found, maps, strict=False):
        Z = feature_map(alone)
        np.testing.assert_allclose(solved.own_only, Z.T @ Z, atol=1e-6 * np.linalg.norm(solved.shared))
    difference = Difference(maps[0], found[0].own_only, len(alone), 10)
    assert release.rows_of([difference], alone, attacker.X, np.random.default_rng(0)) == len(alone)


def test_what_guards_refuse_gives_rows(coast):
    assert release.retrained(coast, n_runs=4) == 4
    to_3, to_6 = release.from_leaf(coast, 5, 10)
    assert to_3 == to_6 == 5
    assert release.from_leaf(coast, 30, 10)[1] == 0


def test_members_show_in_sums_more_than_under_masks_or_in_the_model(coast):
    heard = {
        "one": members.of_one_site(coast, "station 02"),
        "four": members.of_one_site(coast, "station 02", colluders=4),
        "masked": members.under_masks(coast, "station 02"),
        "model": members.of_model(coast, "station 02"),
    }
    assert heard["one"].area > 0.55
    assert heard["four"].area > heard["one"].area - 0.05
    assert 0.45 < heard["masked"].area < heard["one"].area
    assert 0.45 < heard["model"].area < heard["one"].area + 0.05
    assert all(found.caught_surely <= found.caught for found in heard.values())


def test_the_masked_words_of_a_neighbourhood_are_read_as_its_centre_reads_them(coast):
    centre = coast.sites[3]
    record = members._heard(coast, centre.name, masks=True)
    found = members.unmasked(record, centre)
    X = np.vstack([coast.site(p).X for p in centre.neighbors])
    assert found.left.n_features == members.asked_about(coast, centre.name)
    np.testing.assert_allclose(found.sums, found.left(X).T @ found.left(X), rtol=0, atol=1e-9 * len(X))
    assert not [entry for entry in record.heard if isinstance(entry.message, Moments | Sums)]
    lost = replace(centre, neighbors=centre.neighbors[1:])
    with pytest.raises(MaskError):
        members.unmasked(record, lost)
