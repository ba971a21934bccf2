"""No two sums tell a row: what any two sums that left a site differ by is nothing, or a sum over many rows.

Runs of every method are recorded, with tuning, after the loss of a site, with a site that joined and new rows, and
again with other features. Of all sums that a site sent about the same features, whoever they went to, every difference
has rank 0 or as many dimensions as features.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest

from dekrr.errors import DataError
from dekrr.lab.attacks.overhearing import Overheard
from dekrr.messages import Features, Moments, Shortlist, Sums, Total
from dekrr.networks.local import LocalNetwork
from dekrr.protocols import dekrr, training
from dekrr.protocols.baselines import allreduce, dkla
from dekrr.protocols.feature_choice import read_features
from dekrr.protocols.online import go_on
from dekrr.protocols.run import Tuning
from dekrr.protocols.site import Site
from dekrr.selection import Energy, Greedy, Plain
from dekrr.settings import AllReduceSettings, DeKRRSettings, DKLASettings
from dekrr.statistics import unpack_symmetric
from dekrr.tables.rows import ArrayRows

GRAPH = {"a": ("b", "c", "d"), "b": ("a", "c"), "c": ("a", "b", "d"), "d": ("a", "c")}
SETTINGS = DeKRRSettings(masks=False, scale=None, max_leverage=0.9, verify_features=False, tol=0.0, max_rounds=2)
TUNING = Tuning(sigmas=(0.5, 1.0), alphas=(1e-3,), consensuses=(1.0,), folds=3)


def heavy_tails(n_rows, seed):
    """Return rows among which some stand alone: those that a guard may want to leave out."""
    rng = np.random.default_rng(seed)
    X = np.exp(rng.normal(size=(n_rows, 3))) / 20
    return ArrayRows(X, np.sin(20 * X[:, 0]) + rng.normal(scale=0.1, size=n_rows))


def sites_of(graph, n_rows=150, **changes):
    return {name: Site(name, graph[name], heavy_tails(n_rows, ord(name)), **changes) for name in graph}


@dataclass
class SentSum:
    """Z'Z over a sender's rows, with amplitudes divided out, and its features by frequency and phase."""

    keys: list
    gram: np.ndarray


def sent_by(record, sender, known=None):
    """Return all sums about features that a site sent in a recorded run; `known` are maps from before it."""
    asked, found = dict(known or {}), []
    for entry in record.heard:
        offer = entry.message.candidates if isinstance(entry.message, Shortlist) else entry.message
        if isinstance(offer, Features) and entry.receiver == sender:
            asked[entry.sender] = read_features(entry.sender, offer)
        if isinstance(entry.message, Moments | Sums) and entry.sender == sender:
            feature_map = asked[entry.receiver]
            gram = unpack_symmetric(entry.message.gram, feature_map.n_features)
            columns = np.vstack([feature_map.frequencies, feature_map.phases]).T
            weights = feature_map.amplitudes
            found.append(
                SentSum([c.tobytes() for c in np.ascontiguousarray(columns)], gram / np.outer(weights, weights))
            )
    return found


def telling_differences(sums):
    """Return the ranks and sizes of differences that are sums over few rows."""
    told = []
    for i, first in enumerate(sums):
        for second in sums[i + 1 :]:
            places = {key: place for place, key in enumerate(second.keys)}
            shared = [(place, places[key]) for place, key in enumerate(first.keys) if key in places]
            if len(shared) < 2:
                continue
            left, right = (np.array(side) for side in zip(*shared, strict=True))
            whole = first.gram[np.ix_(left, left)]
            difference = whole - second.gram[np.ix_(right, right)]
            values, vectors = np.linalg.eigh(whole)
            there = values > 1e-8 * values[-1]
            whitening = vectors[:, there] / np.sqrt(values[there])
            rank = int(np.sum(np.abs(np.linalg.eigvalsh(whitening.T @ difference @ whitening)) > 1e-6))
            full = int(there.sum())
            if 0 < rank < full:
                told.append((rank, full))
    return told


def recorded(graph, procedures):
    record = Overheard()
    return LocalNetwork(graph, observers=[record]).run(procedures), record


@pytest.mark.parametrize("selector", [Greedy(6, sigma=0.5), Plain(6, sigma=0.5), Energy(6)])
@pytest.mark.parametrize("tuning", [None, TUNING])
def test_no_difference_tells_a_row(selector, tuning):
    sites = sites_of(GRAPH)
    procedures = {n: dekrr.train(s, selector, SETTINGS, tuning) for n, s in sites.items()}
    outcomes, record = recorded(GRAPH, procedures)
    history = {name: sent_by(record, name) for name in GRAPH}
    withheld = [int((~outcomes[name].admission(site.X)).sum()) for name, site in sites.items()]
    assert max(withheld) > 0  # otherwise this test could not fail

    without_d = {name: tuple(p for p in GRAPH[name] if p != "d") for name in "abc"}
    kept = {
        n: replace(s, neighbors=without_d[n], feature_map=outcomes[n].feature_map) for n, s in sites.items() if n != "d"
    }
    _, record = recorded(without_d, {n: dekrr.train(s, selector, SETTINGS) for n, s in kept.items()})
    for name in without_d:
        history[name] += sent_by(record, name)

    joined = {**GRAPH, "a": (*GRAPH["a"], "e"), "e": ("a",)}
    grown, procedures = sites_of(joined), {}
    for name, site in grown.items():
        new = heavy_tails(80, 7) if name == "b" else ArrayRows(np.empty((0, 3)), np.empty(0))
        rows = ArrayRows(np.vstack([site.X, new.X]), np.append(site.y, new.y))
        procedures[name] = go_on(replace(site, rows=rows), outcomes.get(name), new, selector, SETTINGS)
    _, record = recorded(joined, procedures)
    for name in GRAPH:
        history[name] += sent_by(record, name, outcomes[name].neighbor_maps)

    again = {n: replace(s, seed=s.seed, admission=outcomes[n].admission) for n, s in sites.items()}
    smaller = selector.replace(n_features=5)
    _, record = recorded(GRAPH, {n: dekrr.train(s, smaller, SETTINGS) for n, s in again.items()})
    for name in GRAPH:
        history[name] += sent_by(record, name)
        assert len(history[name]) > 4
        assert telling_differences(history[name]) == []


@pytest.mark.parametrize("method", [allreduce, dkla])
def test_shared_features_have_sums_over_admitted_rows_and_over_enough_of_them(method):
    graph = {"a": ("b",), "b": ("a", "c"), "c": ("b",)}
    sites = sites_of(graph)
    kind = partial(AllReduceSettings, masks=False) if method is allreduce else DKLASettings
    settings = kind(scale=None, max_leverage=0.9)
    outcomes, record = recorded(graph, {n: method.train(s, Plain(6), settings) for n, s in sites.items()})
    shared = outcomes["c"].feature_map
    admitted = sites["c"].withholding(settings.max_leverage).rows
    assert admitted.n_rows < sites["c"].n_rows
    assert outcomes["a"].roster.rows["c"] == admitted.n_rows
    if method is allreduce:
        from_leaf = record.between("c", "b", Total)[0].values
        features = shared(admitted.X)
        np.testing.assert_allclose(unpack_symmetric(from_leaf[:21], 6), features.T @ features, atol=1e-9)
    few = sites_of(graph, n_rows=17)
    with pytest.raises(DataError, match=r"too few for sums of the 6 features that all sites share"):
        recorded(graph, {n: method.train(s, Plain(6), settings) for n, s in few.items()})


@pytest.mark.parametrize(
    ("n_rows", "n_columns", "fewest"), [(45, 3, 12), (55, 3, 12), (55, 2, 10), (75, 3, 12), (120, 2, 16)]
)
@pytest.mark.parametrize("ratio", [None, 3.0])
def test_sums_of_shared_features_differ_by_no_row_or_by_many(n_rows, n_columns, fewest, ratio):
    """y'y ends every sum of shared features, without the site's level where it has one.

    Column scales are learnt without a fold, if it has enough rows.
    """
    rng = np.random.default_rng(0)
    graph = {"a": ("b",), "b": ("a",)}
    rows = {name: rng.random((n_rows, n_columns)) for name in graph}
    sites = {name: Site(name, graph[name], ArrayRows(X, np.sin(6 * X[:, 0]))) for name, X in rows.items()}
    settings = DeKRRSettings(
        masks=False,
        scale=None,
        rows_per_feature=1.5,
        max_leverage=1.0,
        tol=0.0,
        max_rounds=2,
        site_effect=ratio,
        local=None,
    )
    _, record = recorded(graph, {n: training.train_parts(s, Greedy(5, sigma=None), settings) for n, s in sites.items()})
    y, fold_of = sites["b"].y, sites["b"].fold_of(5)
    sums = [each.values for each in record.between("b", "a", Total)]
    energy = -1 if ratio is None else -2  # with levels, the level's share of a mean comes last
    of_features = [values for values in sums if len(values) > 30 and np.isclose(values[energy], y @ y, rtol=0.5)]
    assert len(of_features) == 5  # four of column scales, and the shared part
    for fold, values in zip((0, 1, 1, 1, None), of_features, strict=True):
        held = fold_of == fold
        kept = y[~held] if fewest <= held.sum() <= 0.3 * n_rows else y
        if ratio is None:
            expected = [kept @ kept]
        else:
            expected = [kept @ kept - kept.sum() ** 2 / (len(kept) + ratio), len(kept) / (len(kept) + ratio)]
        np.testing.assert_allclose(values[energy:], expected, atol=1e-9)
