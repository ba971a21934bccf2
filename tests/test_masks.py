"""Masked sums: right to the last digits, and a single message tells nothing."""

from dataclasses import replace

import msgspec
import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dekrr.errors import KeysError, MessageError, SettingsError
from dekrr.features import FeatureMap
from dekrr.lab.attacks.overhearing import Overheard
from dekrr.messages import (
    Coefficients,
    Features,
    Magnitudes,
    Masked,
    MaskedRound,
    MaskKey,
    MaskKeys,
    Moments,
    Sums,
    Total,
    decode,
    encode,
)
from dekrr.networks.local import LocalNetwork
from dekrr.privacy.masks import (
    FixedPoint,
    Identity,
    KeyPair,
    MaskError,
    Pads,
    derived_secret,
    exponent_of,
    hidden,
    revealed,
)
from dekrr.protocols import dekrr
from dekrr.protocols.baselines import allreduce
from dekrr.protocols.calibration import keep_intervals
from dekrr.protocols.cross_validation import n_products
from dekrr.protocols.masking import Agreement
from dekrr.protocols.online import go_on
from dekrr.protocols.roll_call import RollCall
from dekrr.protocols.run import Tuning
from dekrr.protocols.site import Site
from dekrr.protocols.spanning_tree import Tree
from dekrr.protocols.training import SecondTraining, train
from dekrr.scaling import Scaling
from dekrr.selection import Energy, Greedy, Plain
from dekrr.settings import AllReduceSettings, DeKRRSettings, Wire
from dekrr.statistics import unpack_symmetric
from dekrr.tables.rows import ArrayRows

GRAPHS = {
    "complete": nx.complete_graph(4),
    "ring": nx.circulant_graph(7, [1, 2]),
    "path": nx.path_graph(4),
    "star": nx.star_graph(3),
    "pair": nx.path_graph(2),
    "alone": nx.empty_graph(1),
}
GUARDS = {"min_rows": 1, "rows_per_feature": 0, "max_leverage": 1, "masks": False}
SETTINGS = DeKRRSettings(**GUARDS, lone_neighbor="warn", alpha=1e-5, tol=1e-7, verify_features=False)
quiet = pytest.mark.filterwarnings("ignore:site .* is the only neighbour")


def rows_of(name, n_rows=40, scale=1.0):
    rng = np.random.default_rng([ord(c) for c in name])
    X = rng.uniform(size=(n_rows, 3))
    return ArrayRows(X, scale * (np.sin(4 * X[:, 0]) + X[:, 1] * rng.uniform()))


def sites_of(graph, n_rows=40, scale=1.0, **more):
    graph = nx.relabel_nodes(graph, {i: f"s{i}" for i in graph})
    return {name: Site(name, tuple(graph[name]), rows_of(name, n_rows, scale), **more) for name in graph}


def run_all(sites, procedure, observers=()):
    network = LocalNetwork({name: site.neighbors for name, site in sites.items()}, observers=observers)
    return network.run({name: procedure(site) for name, site in sites.items()}), network


def assert_same(masked, plain, tolerance=1e-9):
    for name, outcome in plain.items():
        X = np.random.default_rng(0).uniform(size=(50, 3))
        np.testing.assert_array_equal(masked[name].feature_map.frequencies, outcome.feature_map.frequencies)
        expected = outcome.feature_map(X) @ outcome.coefficients
        got = masked[name].feature_map(X) @ masked[name].coefficients
        np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * np.abs(expected).max())
        assert masked[name].rounds == outcome.rounds


def with_masks(settings):
    return msgspec.structs.replace(settings, masks=True)


@quiet
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("selector", [Greedy(8, sigma=0.5), Plain(8, mapping="cossin"), Energy(7)])
def test_models_equal_those_without_masks(graph, selector):
    sites = sites_of(GRAPHS[graph])
    plain, masked = (
        run_all(sites, lambda site, s=s: dekrr.train(site, selector, s))[0] for s in (SETTINGS, with_masks(SETTINGS))
    )
    assert_same(masked, plain)


SOME = [
    {"solver": "jacobi", "self_penalty": 2.0},
    {"scale": None},
    {"allocation": "sqrt"},
    {"wire": Wire(precision="int8")},
    {"wire": Wire(censor_start=0.01)},
    {"verify_features": True, "consensus": 8.0},
]


@quiet
@pytest.mark.parametrize("changes", SOME, ids=str)
@pytest.mark.parametrize("graph", ["ring", "path"])
def test_settings_under_masks(graph, changes):
    sites = sites_of(GRAPHS[graph], scale=1e5 if changes.get("scale", 1) is None else 1.0)
    chosen = msgspec.structs.replace(SETTINGS, tol=1e-4, **changes)
    plain, masked = (
        run_all(sites, lambda site, s=s: dekrr.train(site, Greedy(8, sigma=0.5), s))[0]
        for s in (chosen, with_masks(chosen))
    )
    if "wire" in changes:  # what neighbours cannot see is estimated, so that the last round may be another
        for outcome in (*plain.values(), *masked.values()):
            outcome.rounds = 0
        assert_same(masked, plain, 1e-2)
    else:
        assert_same(masked, plain)


@quiet
@pytest.mark.parametrize("graph", ["complete", "path"])
def test_several_outputs_and_weights_under_masks(graph):
    sites = sites_of(GRAPHS[graph])
    rng = np.random.default_rng(3)
    for name, site in sites.items():
        y = np.column_stack([site.y, site.X[:, 2] ** 2])
        sites[name] = replace(site, rows=ArrayRows(site.X, y, weight=1000 * rng.uniform(size=len(y))))
    weighted = msgspec.structs.replace(SETTINGS, weighted=True)
    for chosen in (weighted, msgspec.structs.replace(weighted, scale=None)):
        plain, masked = (
            run_all(sites, lambda site, s=s: dekrr.train(site, Greedy(8, sigma=0.5), s))[0]
            for s in (chosen, with_masks(chosen))
        )
        assert_same(masked, plain)


@quiet
@pytest.mark.parametrize("graph", ["ring", "star"])
def test_tuning_under_masks_chooses_the_same(graph):
    tuning = Tuning(sigmas=(0.25, 1.0), alphas=(1e-9, 1e-3), consensuses=(0.25, 2.0), folds=3)
    sites = sites_of(GRAPHS[graph])
    plain, masked = (
        run_all(sites, lambda site, s=s: dekrr.train(site, Greedy(6), s, tuning))[0]
        for s in (SETTINGS, with_masks(SETTINGS))
    )
    assert_same(masked, plain)
    for name, outcome in plain.items():
        np.testing.assert_allclose(masked[name].tuned.errors, outcome.tuned.errors, rtol=1e-9)
        assert masked[name].tuned.errors[0] == masked["s0"].tuned.errors[0]


@quiet
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("scale", ["minmax", None])
def test_allreduce_under_masks(graph, scale):
    chosen = AllReduceSettings(**GUARDS, scale=scale, lone_neighbor="warn")
    sites = sites_of(GRAPHS[graph], scale=1e4)
    plain, masked = (
        run_all(sites, lambda site, s=s: allreduce.train(site, Plain(9), s))[0] for s in (chosen, with_masks(chosen))
    )
    assert_same(masked, plain)
    for name, outcome in plain.items():
        np.testing.assert_allclose(masked[name].objective_shares, outcome.objective_shares, rtol=1e-9)


@quiet
def test_online_updates_under_masks():
    """New rows, a site that joins and one that leaves: sums are sent anew with the neighbours' new numbers."""
    before = sites_of(GRAPHS["path"])
    after_graph = nx.Graph([("s0", "s1"), ("s1", "s2"), ("s2", "new"), ("new", "s0")])  # s3 has left

    def fit_and_go_on(chosen):
        outcomes, _ = run_all(before, lambda site: dekrr.train(site, Greedy(8, sigma=0.5), chosen))

        def procedure(site):
            new = rows_of("more", 30) if site.name == "s1" else ArrayRows(np.empty((0, 3)), np.empty(0))
            old = before[site.name].rows if site.name in before else rows_of("new")
            rows = ArrayRows(np.vstack([old.X, new.X]), np.append(old.y, new.y))
            return go_on(replace(site, rows=rows), outcomes.get(site.name), new, Greedy(8, sigma=0.5), chosen)

        sites = {n: Site(n, tuple(after_graph[n]), rows_of(n)) for n in after_graph}
        return run_all(sites, procedure)[0]

    plain, masked = fit_and_go_on(SETTINGS), fit_and_go_on(with_masks(SETTINGS))
    assert_same(masked, plain)


def test_an_update_keeps_to_masks():
    sites = sites_of(GRAPHS["complete"])
    outcomes, _ = run_all(sites, lambda site: dekrr.train(site, Plain(5), SETTINGS))
    nothing = ArrayRows(np.empty((0, 3)), np.empty(0))
    with pytest.raises(SettingsError, match="the first fit had masks=False"):
        run_all(sites, lambda site: go_on(site, outcomes[site.name], nothing, Plain(5), with_masks(SETTINGS)))


def test_features_of_rows_cannot_be_masked():
    chosen = msgspec.structs.replace(with_masks(SETTINGS), exchange="features")
    with pytest.raises(SettingsError, match="which masks cannot hide"):
        run_all(sites_of(GRAPHS["pair"]), lambda site: dekrr.train(site, Plain(5), chosen))


# The arithmetic


@settings(max_examples=60, deadline=None)
@given(st.integers(-5, 40), st.integers(1, 9), st.integers(0, 2**32))
def test_fixed_point_sums(exponent, n_terms, seed):
    """A sum in fixed point is the sum to as many digits as doubles have of the largest number, and masks cancel."""
    rng = np.random.default_rng(seed)
    values = rng.uniform(-1, 1, size=(n_terms, 5)) * 2.0**exponent
    point = FixedPoint(exponent, n_terms)
    names = [f"s{i}" for i in range(n_terms)]
    keys = {frozenset((a, b)): rng.bytes(32) for a in names for b in names}
    pads = [Pads(a, [(b, keys[frozenset((a, b))]) for b in names if b != a]) for a in names]
    numbers = [0, 1, 7, 500]
    for number in numbers:
        words = [hidden(own, point, pad, number) for own, pad in zip(values, pads, strict=True)]
        got = revealed(np.add.reduce(words), point)
        np.testing.assert_allclose(got, values.sum(axis=0), rtol=0, atol=n_terms * 2.0 ** (exponent - 52))


def test_numbers_that_do_not_fit_are_refused_in_words():
    with pytest.raises(SettingsError, match=r"is 1025, and 1024 is the most that fits.*Raise alpha"):
        FixedPoint(10, 2).words(np.array([1025.0]))
    with pytest.raises(SettingsError, match="nan"):
        FixedPoint(10, 2).words(np.array([np.nan]))


def test_no_mask_is_used_twice():
    pads = Pads("a", [("b", bytes(32))])
    first = pads.words(3, 100)
    for number in (3, 2):
        with pytest.raises(MaskError, match="used already"):
            pads.words(number, 100)
    assert not np.intersect1d(first, pads.words(4, 100)).size
    assert not np.intersect1d(first, Pads("a", [("b", bytes(32))]).words(3, 101)).size


@pytest.mark.parametrize(("scale", "outputs"), [("minmax", 2), ("quantiles", 1)])
def test_no_mask_is_used_twice_in_a_run_of_two_trainings(monkeypatch, scale, outputs):
    """A node's keys are the same in all of a run; so every agreement on keys must have another context."""
    used, real = [], Pads.words

    def words(self, number, size):
        used.extend((key, number, size) for key, adds in self._keys if adds)
        return real(self, number, size)

    monkeypatch.setattr(Pads, "words", words)
    sites = {}
    for name, site in sites_of(GRAPHS["complete"], n_rows=60).items():
        rows = ArrayRows(site.X, np.column_stack([site.y] * outputs) if outputs > 1 else site.y)
        sites[name] = replace(site, rows=rows, identity=Identity("run", derived_secret(b"secret", name)))
    settings = msgspec.structs.replace(SETTINGS, masks=True, scale=scale, allocation="sqrt", max_rounds=4, tol=0.0)
    second = SecondTraining(keep_intervals, fits_shared=False)
    run_all(sites, lambda site: train(site, Greedy(4), settings, prediction="own", second=second))
    assert len(used) > 100
    assert len(used) == len(set(used))


def test_a_mask_that_is_left_is_noticed():
    point, key = FixedPoint(3, 2), bytes(32)
    words = hidden(np.ones(2), point, Pads("a", [("b", key)]), 0) + hidden(np.ones(2), point, Pads("b", []), 0)
    with pytest.raises(MaskError, match="masks are left in a sum"):
        revealed(words, point)


def test_derived_secrets_differ():
    secrets = {derived_secret(b"s", "run", label) for label in ("", "a", "b")} | {derived_secret(b"t", "run", "a")}
    assert len(secrets) == 4
    assert KeyPair(min(secrets)).public != KeyPair(max(secrets)).public


def test_words_travel_as_words_alone():
    words = np.array([1, 2**64 - 1], dtype=np.uint64)
    assert decode(encode(Masked(words)), "a").words.tolist() == words.tolist()
    heard = decode(encode(MaskedRound(Coefficients(np.ones(2), (0.0,)), words)), "a")
    assert heard.words.tolist() == words.tolist()
    for bad in (Masked(np.ones(2)), MaskedRound(Coefficients(np.ones(2), ()), np.ones(2)), Total(words)):
        with pytest.raises(MessageError, match="expected"):
            decode(encode(bad), "a")
    for bad in (Coefficients(words, ()), MaskedRound(Coefficients(np.ones(2), (np.nan,)), words)):
        with pytest.raises(MessageError, match="site 'a' sent"):
            decode(encode(bad), "a")


# What a centre sees


class Replayed(Identity):
    """Always the same private key, so that two runs have the same masks; for tests alone."""

    def __init__(self, name):
        super().__init__("run", derived_secret(b"test", name))


def heard_by(centre, sites, chosen, selector=None):
    record = Overheard()
    run_all(sites, lambda site: dekrr.train(site, selector or Plain(6), chosen), [record])
    return [entry for entry in record.heard if entry.receiver == centre]


def test_the_centre_hears_the_sum_alone():
    """Neighbours swap their rows: with fresh masks on top, the centre hears what any neighbours of that sum send.

    One mask r between two neighbours p and q is m_p = v_p + r, m_q = v_q - r. Other rows with the same sum v_p + v_q
    give the same pair of messages under the mask r + v_p - v'_p, which is as likely as r. Constructed here: what two
    neighbours send when they swap rows, and their stream is shifted by the difference, is what they sent before.
    """
    point, rng = FixedPoint(6, 2), np.random.default_rng(0)
    first, second = rng.uniform(size=(2, 8))
    stream = rng.integers(0, 2**64, size=9, dtype=np.uint64, endpoint=False)

    class Shifted(Pads):
        def __init__(self, words):
            self._words = words

        def words(self, number, size):
            return self._words

    shift = np.append(point.words(first) - point.words(second), np.uint64(0))
    before = hidden(first, point, Shifted(stream), 0), hidden(second, point, Shifted(-stream), 0)
    after = hidden(second, point, Shifted(stream + shift), 0), hidden(first, point, Shifted(-stream - shift), 0)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)


def test_single_messages_do_not_depend_on_rows_but_their_sum_does():
    """Two networks whose neighbourhood sums agree: the words differ between keys, their sums do not."""
    sites = sites_of(GRAPHS["complete"])
    swapped = dict(sites)
    for one, other in (("s1", "s2"), ("s2", "s1")):
        swapped[one] = replace(sites[one], rows=sites[other].rows)
    chosen = msgspec.structs.replace(with_masks(SETTINGS), scale=None, max_rounds=1)

    def first_words(which):
        with_keys = {n: replace(s, identity=Replayed(n)) for n, s in which.items()}
        return {e.sender: e.message.words for e in heard_by("s0", with_keys, chosen) if isinstance(e.message, Masked)}

    before, after = first_words(sites), first_words(swapped)
    assert before.keys() == {"s1", "s2", "s3"}
    np.testing.assert_array_equal(before["s3"], after["s3"])  # the same rows and keys
    for name in ("s1", "s2"):
        assert np.mean(before[name][:-1] == after[name][:-1]) < 0.01
    total = [np.add.reduce(list(words.values())).view(np.int64) for words in (before, after)]
    np.testing.assert_allclose(total[0], total[1], rtol=0, atol=4096)  # rounding of doubles; a word has 62 bits
    fresh = {n: replace(s, identity=Identity()) for n, s in sites.items()}
    again = {e.sender: e.message.words for e in heard_by("s0", fresh, chosen) if isinstance(e.message, Masked)}
    assert all(np.mean(again[name] == before[name]) < 0.01 for name in before)


def test_masked_words_look_uniform():
    """Every bit of a masked word is a fair coin, though the numbers under it are small and mostly alike."""
    point, n = FixedPoint(20, 2), 4000
    words = hidden(np.full(n, 3.0), point, Pads("a", [("b", bytes(range(32)))]), 0)
    ones = np.array([np.mean((words >> np.uint64(bit)) & np.uint64(1)) for bit in range(64)])
    assert np.abs(ones - 0.5).max() < 5 * 0.5 / np.sqrt(n)
    assert np.unique(words).size == n + 1


@quiet
@pytest.mark.parametrize("selector", [Greedy(6), Plain(6)])
@pytest.mark.parametrize("graph", ["ring", "path"])
def test_no_sum_of_a_single_site_travels(selector, graph):
    tuning = Tuning(sigmas=(0.5, 1.0), alphas=(1e-3,), consensuses=(1.0,), folds=3)
    for graph_of_run in (graph, "star"):
        for entry in heard_by("s0", sites_of(GRAPHS[graph_of_run]), with_masks(SETTINGS), selector):
            assert not isinstance(entry.message, Sums | Moments)
    record = Overheard()
    run_all(sites_of(GRAPHS[graph]), lambda site: dekrr.train(site, selector, with_masks(SETTINGS), tuning), [record])
    assert not [entry for entry in record.heard if isinstance(entry.message, Sums | Moments)]


def test_partial_sums_over_a_tree_tell_nothing():
    """What a leaf sends its parent under masks has nothing to do with its sums, and other keys give other words."""
    chosen = AllReduceSettings(
        min_rows=1, rows_per_feature=0, max_leverage=1, scale=None, masks=True, lone_neighbor="warn"
    )

    def up(identities):
        sites = {n: replace(s, identity=identities(n)) for n, s in sites_of(GRAPHS["star"]).items()}
        record = Overheard()
        run_all(sites, lambda site: allreduce.train(site, Plain(6), chosen), [record])
        return [entry.message.words for entry in record.heard if isinstance(entry.message, Masked)]

    first, second = up(lambda name: Identity()), up(lambda name: Identity())
    assert len(first) == 3
    for one, other in zip(first, second, strict=True):
        assert np.mean(one == other) < 0.01


# Who is told what


def test_the_only_neighbor_is_told_or_refuses():
    with pytest.warns(UserWarning, match="site 's1' is the only neighbour of 's0'"):
        run_all(sites_of(GRAPHS["path"]), lambda site: dekrr.train(site, Plain(5), with_masks(SETTINGS)))
    told = []
    sites = sites_of(GRAPHS["star"], tell=told.append)
    run_all(sites, lambda site: dekrr.train(site, Plain(5), with_masks(SETTINGS)))
    assert len(told) == 1
    assert "site 's0' is the only neighbour of 's1' and 's2' and 's3'" in told[0]
    refusing = msgspec.structs.replace(with_masks(SETTINGS), lone_neighbor="refuse")
    with pytest.raises(SettingsError, match='or set lone_neighbor="warn"'):
        run_all(sites_of(GRAPHS["star"]), lambda site: dekrr.train(site, Plain(5), refusing))
    run_all(sites_of(GRAPHS["complete"]), lambda site: dekrr.train(site, Plain(5), refusing))


class Stamp:
    """A proof that can be checked and forged by those who know the word."""

    def sign(self, statement):
        return b"stamp:" + statement

    def verify(self, site, statement, proof):
        if proof != b"stamp:" + statement:
            raise KeysError(f"not signed by site {site!r}")


def tampered(procedure, change):
    """Drive a procedure, and change what it sends."""
    outbox = next(procedure)
    while True:
        try:
            outbox = procedure.send((yield {p: change(p, message) for p, message in outbox.items()}))
        except StopIteration as stop:
            return stop.value


def run_with_liar(change, graph="complete", **more):
    sites = sites_of(GRAPHS[graph], identity=Identity("run 1", signer=Stamp()), **more)

    def procedure(site):
        honest = dekrr.train(site, Plain(5), with_masks(SETTINGS))
        return tampered(honest, change) if site.name == "s0" else honest

    return run_all(sites, procedure)


def test_a_centre_in_the_middle_is_noticed():
    """s0 passes on a key of its own as that of s2: s1 refuses it, names s2, and blames s0."""
    mine = KeyPair(bytes(range(32))).public

    def change(receiver, message):
        if isinstance(message, MaskKeys) and receiver == "s1":
            forged = msgspec.structs.replace(message.keys["s2"], public=mine)
            return MaskKeys({**message.keys, "s2": forged})
        return message

    with pytest.raises(MessageError, match="site 's0' sent a key for masks as that of 's2': not signed") as caught:
        run_with_liar(change)
    assert caught.value.sender == "s0"


def test_a_key_of_another_run_or_site_is_refused():
    def other_run(receiver, message):
        if isinstance(message, MaskKey):
            return msgspec.structs.replace(message, proof=message.proof.replace(b"run 1", b"run 0"))
        return message

    with pytest.raises(MessageError, match="site 's0' sent a key for masks as that of 's0'"):
        run_with_liar(other_run)

    def fewer(receiver, message):
        if isinstance(message, MaskKeys) and receiver == "s1":
            return MaskKeys({name: key for name, key in message.keys.items() if name != "s2"})
        return message

    with pytest.raises(MessageError, match="site 's0' passed on keys of sites that are not its neighbours"):
        run_with_liar(fewer)

    def stranger(receiver, message):  # s3 is no neighbour of s0 in a path, and says so itself
        if isinstance(message, MaskKey):
            return msgspec.structs.replace(message, neighbors=["s1", "s3"])
        return message

    with pytest.raises(MessageError, match="site 's0' sent a key for masks"):
        run_with_liar(stranger, "path", tell=lambda text: None)


def test_wrong_words_do_not_become_a_model():
    def change(receiver, message):
        return Masked(message.words + np.uint64(1)) if isinstance(message, Masked) else message

    with pytest.raises(MaskError, match="masks are left in a sum"):
        run_with_liar(change)


def test_responses_beyond_all_bounds_are_refused_in_words(monkeypatch):
    monkeypatch.setattr(Scaling, "clipping", lambda lower, upper, n_columns: Scaling(lower, upper))
    chosen = msgspec.structs.replace(with_masks(SETTINGS), bounds=((0.0,) * 4, (1.0,) * 4))
    sites = sites_of(GRAPHS["complete"], scale=1e9)
    with pytest.raises(SettingsError, match="a number of a masked sum is"):
        run_all(sites, lambda site: dekrr.train(site, Greedy(5), chosen))


def lying(procedure, names, order):
    """Follow a centre's procedure, but tell some neighbours its features in another order."""
    outbox = next(procedure)
    while True:
        if any(isinstance(message, Features) for message in outbox.values()):
            changed = {}
            for p, message in outbox.items():
                parts = message.frequencies[:, order], message.phases[order], message.amplitudes[order]
                changed[p] = Features(*parts, message.n_neighbors) if p in names else message
            outbox = changed
        inbox = yield outbox
        try:
            outbox = procedure.send(inbox)
        except StopIteration as stop:
            return stop.value


def heard_of_choice(order, size=6):
    """Return what the centre s0 of four sites adds up to after it told s2 and s3 another order, and s1's rows."""
    sites, record = sites_of(GRAPHS["complete"]), Overheard()
    settings = msgspec.structs.replace(SETTINGS, masks=True, scale=None, max_rounds=1, tol=0.0)
    network = LocalNetwork({name: site.neighbors for name, site in sites.items()}, observers=[record])
    procedures = {name: dekrr.train(site, Plain(size, sigma=0.5), settings) for name, site in sites.items()}
    procedures["s0"] = lying(procedures["s0"], ("s2", "s3"), order)
    error = None
    try:
        network.run(procedures)
    except MaskError as found:
        error = found
    words = np.add.reduce([record.between(p, "s0", Masked)[0].words for p in ("s1", "s2", "s3")])
    rows = exponent_of(160.0)
    (told,) = record.between("s0", "s1", Features)
    return FixedPoint(rows + 2, 3).numbers(words[:-1]), told, sites["s1"], error


@pytest.mark.parametrize("is_bound", [False, True])
def test_a_centre_that_tells_neighbors_different_features_learns_nothing(monkeypatch, is_bound):
    """Two sums about the same features, once in another order for some neighbours, differ by one neighbour's sums."""
    if not is_bound:
        monkeypatch.setattr(Pads, "bind", lambda self, digest: None)
    order = np.roll(np.arange(6), 1)
    honest, told, site, _ = heard_of_choice(np.arange(6))
    lied, _, _, error = heard_of_choice(order)
    Z = FeatureMap(told.frequencies, told.phases, told.amplitudes / told.amplitudes)(site.X)
    own = Z.T @ Z / 3
    whole = unpack_symmetric(honest, 6)
    difference = unpack_symmetric(lied, 6) - whole[np.ix_(order, order)]
    expected = own - own[np.ix_(order, order)]
    if is_bound:
        assert isinstance(error, MaskError)
        assert np.median(np.abs(difference - expected)) > 100  # random words, where rows give 10 at most
    else:
        assert error is None
        np.testing.assert_allclose(difference, expected, atol=1e-9)  # of s1 alone


def test_masks_depend_on_every_result_that_comes_down_the_tree():
    sites = sites_of(nx.path_graph(3))

    def procedure(site):
        roll = RollCall(site)
        masks = yield from Agreement(site, roll, lone_neighbor="warn", over_tree=True).masks()
        tree = Tree((yield from roll.roster()), masks)
        first = yield from tree.sum(np.ones(3), 4.0)
        return first, (yield from tree.sum(first, 16.0))

    found, _ = run_all(sites, procedure)
    for first, second in found.values():
        np.testing.assert_array_equal(first, [3.0] * 3)
        np.testing.assert_array_equal(second, [9.0] * 3)

    def changed(made, name):
        outbox = next(made)
        while True:
            if name == "s0":  # the root tells another total than it has
                outbox = {p: Total(m.values + 1.0) if isinstance(m, Total) else m for p, m in outbox.items()}
            try:
                outbox = made.send((yield outbox))
            except StopIteration as stop:
                return stop.value

    with pytest.raises(MaskError, match="masks are left"):
        run_all(sites, lambda site: changed(procedure(site), site.name))


# A centre that names fewer neighbours than it has


def heard_from_groups(groups, graph):
    """Return the sums of groups of neighbours that s0 names as all it has, the true ones, and how the run ended."""
    sites, record = sites_of(GRAPHS["ring"], tell=lambda text: None), Overheard()
    known = {name: site.neighbors for name, site in sites.items()} if graph else None
    sites = {n: replace(s, identity=Identity("run 1", signer=Stamp(), graph=known)) for n, s in sites.items()}
    chosen = msgspec.structs.replace(with_masks(SETTINGS), scale=None, max_rounds=1)
    group_of = {name: group for group in groups for name in group}

    def change(receiver, message):
        if isinstance(message, MaskKey):  # signed by s0 itself
            lie = sorted(group_of[receiver])
            return MaskKey(message.public, lie, Identity("run 1", signer=Stamp()).announce("s0", lie, message.public))
        if isinstance(message, MaskKeys):
            return MaskKeys({q: key for q, key in message.keys.items() if q in group_of[receiver]})
        return message

    def procedure(site):
        honest = dekrr.train(site, Plain(6), chosen)
        return tampered(honest, change) if site.name == "s0" else honest

    error = None
    try:
        run_all(sites, procedure, [record])
    except MessageError as found:
        error = found
    if error is not None:
        return None, None, error
    (told,) = record.between("s0", "s1", Features)
    features = FeatureMap(told.frequencies, told.phases, np.ones(6))
    own = {n: np.asarray(features(site.X).T @ features(site.X)) / len(site.neighbors) for n, site in sites.items()}
    got = []
    for group in groups:
        words = np.add.reduce([record.between(p, "s0", Masked)[0].words for p in group])
        got.append(unpack_symmetric(FixedPoint(exponent_of(280.0) + 2, len(group)).numbers(words[:-1]), 6))
    return got, [sum(own[p] for p in group) for group in groups], error


@pytest.mark.parametrize("groups", [[("s1", "s2"), ("s5", "s6")], [("s1",), ("s2",), ("s5",), ("s6",)]], ids=str)
@pytest.mark.parametrize("graph", [False, True], ids=["believed", "known"])
def test_a_centre_that_names_fewer_neighbors_than_it_has_is_refused(groups, graph):
    """Where sites are believed who their neighbours are, a centre has the exact sums of pairs, or of single sites."""
    got, true, error = heard_from_groups(groups, graph)
    if graph:
        assert error.sender == "s0"
        assert "it names the neighbours s" in str(error)
        assert "but before the run s1, s2, s5, s6" in str(error)
    else:
        assert error is None
        np.testing.assert_allclose(got, true, atol=1e-9)


# What a curious centre can solve for

MANY = Tuning(sigmas=(0.5,), alphas=(1e-6, 1e-4, 1e-3, 1e-2), consensuses=(0.25, 1.0, 4.0), folds=2)


def test_many_tuned_values_let_a_curious_centre_solve_for_each_neighbor():
    """sum_p C_jp theta_p of all rounds and alphas, and all theta_p, are linear equations for every C_jp."""
    sites, record = sites_of(GRAPHS["ring"], tell=lambda text: None), Overheard()
    chosen = msgspec.structs.replace(with_masks(SETTINGS), scale=None)
    run_all(sites, lambda site: dekrr.train(site, Plain(5, sigma=0.5), chosen, MANY), [record])
    around, n_alphas = sites["s0"].neighbors, len(MANY.alphas)
    n_rounds = n_products(MANY) // n_alphas
    rounds = {p: record.between(p, "s0", MaskedRound)[:n_rounds] for p in around}
    told = [m.exponents for p in around for m in record.between(p, "s0", Magnitudes)]
    exponents = np.max([each for each in told if len(each) == 2], axis=0)  # the others are about rounds
    point = FixedPoint(int(exponents.sum()) + 9, len(around))
    known, sums = [], []
    for each in zip(*rounds.values(), strict=True):
        known.append(np.hstack([message.coefficients.values[:n_alphas] for message in each]))  # of the first fold
        total = revealed(np.add.reduce([message.words for message in each]), point)
        sums.append(total.reshape(MANY.folds, n_alphas, 5)[0])
    solved = np.linalg.lstsq(np.vstack(known), np.vstack(sums), rcond=1e-13)[0].T
    maps = {p: record.between(p, "s0" if p != "s0" else "s1", Features)[0] for p in ("s0", *around)}
    for place, p in enumerate(around):
        site, own, theirs = sites[p], maps["s0"], maps[p]
        inside = site.rows.take(site.fold_of(MANY.folds) != 0)
        left = FeatureMap(own.frequencies, own.phases, np.ones(5))(inside.X)
        right = FeatureMap(theirs.frequencies, theirs.phases, theirs.amplitudes)(inside.X)
        found = solved[:, 5 * place : 5 * place + 5] * len(site.neighbors)
        np.testing.assert_allclose(found, left.T @ right, atol=1e-6)  # of p alone


def test_a_site_is_told_that_tuning_shows_its_sums_or_refuses():
    told = []
    few = msgspec.structs.replace(MANY, alphas=(1e-3,), consensuses=(1.0,))
    assert n_products(few) < 15 < n_products(MANY)
    for tuning in (few, MANY):
        sites = sites_of(GRAPHS["ring"], tell=told.append)
        told.clear()
        run_all(sites, lambda site, t=tuning: dekrr.train(site, Plain(5), with_masks(SETTINGS), t))
        assert len(told) == (7 if tuning is MANY else 0)
    expected = (
        f"site 's0' sends {n_products(MANY)} masked products with the same sums over its rows. From these 's1' and"
    )
    assert any(text.startswith(expected) for text in told)
    refusing = msgspec.structs.replace(with_masks(SETTINGS), lone_neighbor="refuse")
    with pytest.raises(SettingsError, match=r"masks do not hide them.*Give fewer values of alpha and consensus"):
        run_all(sites_of(GRAPHS["ring"]), lambda site: dekrr.train(site, Plain(5), refusing, MANY))
    with pytest.raises(SettingsError, match="with all but one of its other neighbours, can solve"):
        run_all(sites_of(GRAPHS["ring"]), lambda site: dekrr.train(site, Plain(5), refusing, few))
    refusing = msgspec.structs.replace(refusing, tol=0.0)
    outcomes, _ = run_all(sites_of(GRAPHS["ring"]), lambda site: dekrr.train(site, Plain(12), refusing, few))
    assert {outcome.rounds for outcome in outcomes.values()} == {12 - n_products(few)}  # those of tuning count


@pytest.mark.parametrize("outputs", [1, 2])
def test_no_neighbor_gets_more_products_than_a_site_has_features(outputs):
    """However long rounds would go on, C_jp of a single neighbour is no combination of what is sent."""
    chosen = msgspec.structs.replace(with_masks(SETTINGS), lone_neighbor="refuse", tol=0.0, max_rounds=50)
    sites, record = sites_of(GRAPHS["complete"]), Overheard()
    if outputs == 2:
        sites = {
            name: replace(site, rows=ArrayRows(site.X, np.column_stack([site.y, -site.y]), seed=0))
            for name, site in sites.items()
        }
    outcomes, _ = run_all(sites, lambda site: dekrr.train(site, Plain(5 if site.name != "s1" else 4), chosen), [record])
    assert {outcome.rounds for outcome in outcomes.values()} == {4 // outputs}
    assert all(outcome.ended_by.startswith("masks") and not outcome.settled for outcome in outcomes.values())
    assert len(record.between("s2", "s0", MaskedRound)) == 4 // outputs
    open_ones = msgspec.structs.replace(chosen, lone_neighbor="warn")
    outcomes, _ = run_all(sites_of(GRAPHS["complete"]), lambda site: dekrr.train(site, Plain(5), open_ones))
    assert {outcome.rounds for outcome in outcomes.values()} == {50}


@pytest.mark.parametrize("n_runs", [1, 2])
def test_runs_that_differ_in_alpha_alone_add_up_to_the_sums_of_one_neighbor(n_runs):
    """Each run ends in time; C_jp is that of the run before, and the products of both together are enough."""
    n_features, known, sums = 6, [], []
    names = ("s0", "s1", "s2")
    for alpha in (1e-5, 1e-2)[:n_runs]:
        sites, record = sites_of(nx.complete_graph(3)), Overheard()
        chosen = msgspec.structs.replace(with_masks(SETTINGS), scale=None, tol=0.0, alpha=alpha)
        chosen = msgspec.structs.replace(chosen, lone_neighbor="refuse", max_rounds=50)
        run_all(sites, lambda site, s=chosen: dekrr.train(site, Plain(n_features, sigma=0.5), s), [record])
        told = [m.exponents for p in names[1:] for m in record.between(p, "s0", Magnitudes)]
        point = FixedPoint(int(np.max([each for each in told if len(each) == 2], axis=0).sum()) + 9, 2)
        for each in zip(*(record.between(p, "s0", MaskedRound) for p in names[1:]), strict=True):
            known.append(np.concatenate([message.coefficients.values for message in each]))
            sums.append(revealed(np.add.reduce([message.words for message in each]), point))
    solved = np.linalg.lstsq(np.array(known), np.array(sums), rcond=1e-14)[0]
    own, theirs = record.between("s0", "s1", Features)[0], record.between("s1", "s0", Features)[0]
    left = FeatureMap(own.frequencies, own.phases, np.ones(n_features))(sites["s1"].X)
    right = FeatureMap(theirs.frequencies, theirs.phases, theirs.amplitudes)(sites["s1"].X)
    error = np.abs(2 * solved[:n_features].T - left.T @ right).max()
    assert error < 1e-3 if n_runs == 2 else error > 1


def test_one_site_that_refuses_ends_the_rounds_of_all():
    def procedure(site):
        lone = "refuse" if site.name == "s2" else "warn"
        chosen = msgspec.structs.replace(with_masks(SETTINGS), lone_neighbor=lone, tol=0.0, max_rounds=50)
        return dekrr.train(site, Plain(6), chosen)

    outcomes, _ = run_all(sites_of(GRAPHS["complete"]), procedure)
    assert {outcome.rounds for outcome in outcomes.values()} == {6}
