"""What a site refuses, and features that prove where they come from."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from conftest import tampered
from dekrr import DeKRRRegressor
from dekrr.data import make_sites
from dekrr.errors import DataError, MessageError, SettingsError
from dekrr.features import FeatureMap
from dekrr.lab.attacks.overhearing import Overheard
from dekrr.messages import Chosen, Features, Moments, Shortlist, Sums, Tally, decode, encode
from dekrr.networks.local import LocalNetwork
from dekrr.privacy import admission
from dekrr.privacy.admission import learn
from dekrr.privacy.masks import Identity, derived_secret
from dekrr.protocols import dekrr, training
from dekrr.protocols.baselines.shared import share_features
from dekrr.protocols.calibration import keep_intervals
from dekrr.protocols.cross_validation import folds_to_hold_out
from dekrr.protocols.roll_call import RollCall, Roster
from dekrr.protocols.run import Offers, Start, Tuning
from dekrr.protocols.site import Site
from dekrr.protocols.training import SecondTraining
from dekrr.scaling import UNSCALED
from dekrr.selection import CHOOSERS, Energy, Greedy, Plain
from dekrr.settings import ALONE, GRIDS, DeKRRSettings
from dekrr.statistics import accumulate, unpack_symmetric
from dekrr.tables.rows import ArrayRows, ChainedRows, rows_per_feature_outside

RING = {"a": ("b", "c"), "b": ("a", "c"), "c": ("a", "b")}


def sites(n_rows=60, **changes):
    rng = np.random.default_rng(0)
    return [
        Site(name, neighbors, ArrayRows(rng.uniform(size=(n_rows, 2)), rng.uniform(-1, 1, n_rows)), seed=3, **changes)
        for name, neighbors in RING.items()
    ]


def unmasked(**changes):
    """Return settings of a deployment, without masks: these tests look at what single sites send."""
    return DeKRRSettings(**{"masks": False, **changes})


def run(all_sites, selector, **changes):
    record = Overheard()
    network = LocalNetwork(RING, observers=[record])
    changes = {"scale": None, "tol": 0.0, "max_rounds": 5, **changes}
    outcomes = network.run({site.name: dekrr.train(site, selector, unmasked(**changes)) for site in all_sites})
    return outcomes, record


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(CHOOSERS)),
    mapping=st.sampled_from(["cos", "cossin"]),
    n_features=st.integers(1, 10),
    seed=st.integers(0, 2**31),
    site=st.text(min_size=1, max_size=5),
)
def test_a_proof_gives_the_same_map(name, mapping, n_features, seed, site):
    rng = np.random.default_rng(1)
    X, y = rng.uniform(size=(30, 3)), rng.uniform(-1, 1, 30)
    selector = CHOOSERS[name](2 * n_features, mapping=mapping, bandwidths=(1.0, 2.0))
    chosen = selector.select(X, y, admission.site_rng(seed, site))
    proof = admission.prove(selector, chosen, seed, site, 2)
    redrawn = admission.redraw(selector, decode(encode(proof), site), seed, site, 3)
    for part in ("frequencies", "phases", "amplitudes"):
        np.testing.assert_array_equal(getattr(redrawn, part), getattr(chosen, part))


@pytest.mark.parametrize("features", ["plain", "greedy", "energy", "leverage"])
def test_verified_features_train_the_same_models_for_fewer_bytes(features):
    X, y, labels = make_sites(n_sites=4, random_state=0)
    shared = {"n_features": 12, "features": features, "sigma": 0.5, "random_state": 0}
    plain = DeKRRRegressor(**shared).fit(X, y, sites=labels)
    verified = DeKRRRegressor(**shared, verify_features=True).fit(X, y, sites=labels)
    np.testing.assert_allclose(verified.predict(X, sites=labels), plain.predict(X, sites=labels), atol=1e-9)
    assert 0 < verified.traffic_.bytes_by_kind["Chosen"] < plain.traffic_.bytes_by_kind["Features"]
    assert verified.traffic_.bytes_by_kind["Features"] == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 4}, "seed 4"),
        ({"indices": [0, 10_000]}, "outside its pool"),
        ({"indices": [-1, 0]}, "outside its pool"),
        ({"indices": []}, "no features"),
        ({"n_features": 3}, "a pool that it says is for 3"),
        ({"n_features": 0}, "a pool that it says is for 0"),
        ({"phases": np.zeros(5)}, "5 phases"),
    ],
)
def test_a_false_proof_is_refused(change, words):
    selector = Energy(2)
    proof = {
        "seed": 3,
        "n_features": 2,
        "indices": [0, 1],
        "phases": np.empty(0),
        "amplitudes": np.empty(0),
        "n_neighbors": 2,
    }
    with pytest.raises(MessageError, match=words):
        admission.redraw(selector, Chosen(**(proof | change)), 3, "b", 2)


def test_features_from_elsewhere_cannot_be_proved():
    brought = FeatureMap.unweighted(np.ones((2, 4)), np.zeros(4))
    with pytest.raises(SettingsError, match="not in the pool"):
        run(sites(feature_map=brought), Energy(4), verify_features=True)


@pytest.mark.parametrize(
    ("kernel", "law"), [("gaussian", None), ("cauchy", stats.laplace), ("laplacian", stats.cauchy)]
)
def test_honest_frequencies_pass(kernel, law):
    selector = Energy(50, kernel=kernel, sigma=0.3, bandwidths=(0.5, 4.0))
    limit = selector.longest_frequency(5, admission.ONE_IN)
    pool = selector.draw_pool(5, np.random.default_rng(0))
    admission.check_frequencies({"b": pool.keep(np.arange(pool.n_candidates))}, selector, 5)
    if law is not None:
        assert 2 * law.sf(limit * 0.15 / np.sqrt(5)) * 5 == pytest.approx(1e-12, rel=1e-3)


@settings(max_examples=60, deadline=None)
@given(
    kernel=st.sampled_from(["gaussian", "cauchy", "laplacian"]),
    sigma=st.floats(0.05, 1000),
    n_columns=st.integers(1, 60),
    max_columns=st.sampled_from([1, 2, 4, None]),
    seed=st.integers(0, 1000),
)
def test_honest_candidates_of_few_columns_pass_and_much_longer_ones_do_not(kernel, sigma, n_columns, max_columns, seed):
    selector = Greedy(30, kernel=kernel, sigma=sigma, max_columns=max_columns)
    limit = selector.longest_frequency(n_columns, admission.ONE_IN)
    pool = selector.draw_pool(n_columns, np.random.default_rng(seed))
    admission.check_frequencies({"b": pool.feature_map}, selector, n_columns)
    if kernel == "gaussian":
        assert limit <= max(8 * np.sqrt(n_columns) / sigma, 0.02)


class Malicious:
    """A procedure that answers like a site but sends a map of its own making."""

    def __init__(self, feature_map):
        self.feature_map = feature_map

    def train(self, site, selector, run_settings):
        procedure = dekrr.train(site, selector, run_settings)
        outbox = next(procedure)
        while True:
            forged = {p: self._forge(message) for p, message in outbox.items()}
            try:
                outbox = procedure.send((yield forged))
            except StopIteration as stop:
                return stop.value

    def _forge(self, message):
        if isinstance(message, Shortlist):
            return Shortlist(self._forge(message.candidates))
        if not isinstance(message, Features):
            return message
        forged = self.feature_map
        return Features(forged.frequencies, forged.phases, forged.amplitudes, message.n_neighbors)


def attack_with(feature_map, selector=None, **changes):
    run_settings = unmasked(scale=None, **{"verify_features": False, **changes})
    selector = selector or Greedy(6, sigma=0.5)
    first, *others = sites()
    procedures = {site.name: dekrr.train(site, selector, run_settings) for site in others}
    procedures["a"] = Malicious(feature_map).train(first, selector, run_settings)
    return LocalNetwork(RING).run(procedures)


def test_a_neighbour_after_single_rows_is_refused():
    rng = np.random.default_rng(0)
    high = FeatureMap.unweighted(rng.normal(scale=100, size=(2, 6)), np.zeros(6))
    with pytest.raises(MessageError, match="'a' sent a frequency of length"):
        attack_with(high)


def test_by_default_frequencies_have_to_be_proved():
    """Frequencies of a neighbour's own choice, however short, can be laid out so that sums give rows away."""
    short = FeatureMap.unweighted(np.full((2, 6), 0.1), np.zeros(6))

    class Unproved(Malicious):
        def _forge(self, message):
            return (
                Features(short.frequencies, short.phases, short.amplitudes, 2) if type(message) is Chosen else message
            )

    first, *others = sites()
    selector = Greedy(6, sigma=0.5)
    procedures = {site.name: dekrr.train(site, selector, unmasked(scale=None)) for site in others}
    procedures["a"] = Unproved(short).train(first, selector, unmasked(scale=None))
    with pytest.raises(MessageError, match="'a' sent Features where Chosen is due"):
        LocalNetwork(RING).run(procedures)


def test_a_neighbour_that_asks_for_more_features_than_rows_is_refused():
    rng = np.random.default_rng(0)
    wide = FeatureMap.unweighted(rng.normal(size=(2, 80)), np.zeros(80))
    with pytest.raises(DataError, match="too few for sums of its 6 features and the 80 of site 'a'"):
        attack_with(wide, Greedy(6, sigma=0.5, shortlist=1.0))
    with pytest.raises(DataError, match="too few for sums of the 80 features that site 'a' has on its shortlist"):
        attack_with(wide)


@settings(max_examples=15, deadline=None)
@given(
    n_rows=st.integers(24, 90),
    mapping=st.sampled_from(["cos", "cossin"]),
    rows_per_feature=st.floats(0.5, 2.0),
    tuned=st.booleans(),
)
def test_honest_shortlists_fit_the_rows_of_all_neighbours(n_rows, mapping, rows_per_feature, tuned):
    """Sites shorten their shortlists by the rows that the roll call tells, so that no neighbour has to refuse."""
    tuning = Tuning(sigmas=(0.5, 1.0), alphas=(1e-3,), consensuses=(1.0,), folds=2) if tuned else None
    few, *others = sites(n_rows=90)
    few = replace(few, rows=few.rows.take(slice(n_rows)))
    selector = Greedy(6, sigma=0.5, mapping=mapping, shortlist=8.0)
    run_settings = unmasked(
        scale=None, max_rounds=2, tol=0.0, rows_per_feature=rows_per_feature, max_leverage=1, verify_features=False
    )
    record = Overheard()
    network = LocalNetwork(RING, observers=[record])
    procedures = {s.name: dekrr.train(s, selector, run_settings, tuning) for s in (few, *others)}
    too_few = n_rows < 12 * rows_per_feature
    if tuned:  # a site does not hold out a fold that is far smaller than the other
        held = folds_to_hold_out(few, few.rows, run_settings, 2)
        outside = [n_rows - int(np.sum(held == fold)) for fold in range(2)]
        too_few = any(n < 12 * rows_per_feature_outside(rows_per_feature, n, n_rows, 2) for n in outside)
    if too_few:
        with pytest.raises(DataError, match="too few"):
            network.run(procedures)
        return
    network.run(procedures)
    lengths = [m.candidates.frequencies.shape[1] for m in record.between("b", "a", Shortlist)]
    assert 6 <= lengths[-1] <= n_rows / (2 * rows_per_feature)
    lengths += [m.frequencies.shape[1] for m in record.between("b", "a", Features)]
    assert all(length <= n_rows / (2 * rows_per_feature) for length in lengths)
    assert len(record.between("a", "b", Moments)) == (5 if tuned else 1)


def test_rows_of_a_fold_count_where_folds_are_tuned():
    """Sums over all rows but a fold's, with the same features, differ by sums over one fold."""
    tuning = Tuning(sigmas=(0.5,), alphas=(1e-3, 1e-2), consensuses=(1.0,), folds=5)
    run_settings = unmasked(scale=None, rows_per_feature=1.5)
    for n_rows, refused in ((90, False), (89, True)):
        procedures = {s.name: dekrr.train(s, Energy(6), run_settings, tuning) for s in sites(n_rows=n_rows)}
        if refused:
            with pytest.raises(DataError, match="too few"):
                LocalNetwork(RING).run(procedures)
        else:
            LocalNetwork(RING).run(procedures)


@pytest.mark.parametrize(("n_rows", "folds"), [(50, 5), (49, 4), (20, 2), (19, None)])
def test_min_rows_counts_a_folds_rows_while_tuning(n_rows, folds):
    """With the guards on there are as many folds as have min_rows rows at the smallest site, and two at least."""
    tuning = Tuning(sigmas=(0.5,), alphas=(1e-3, 1e-2), consensuses=(1.0,), folds=5)
    run_settings = unmasked(scale=None, rows_per_feature=0.1, max_leverage=1, max_rounds=2, tol=0.0)
    few, *others = sites(n_rows=60)
    few = replace(few, rows=few.rows.take(slice(n_rows)))
    record = Overheard()
    network = LocalNetwork(RING, observers=[record])
    procedures = {s.name: dekrr.train(s, Energy(4), run_settings, tuning) for s in (few, *others)}
    if folds is None:
        with pytest.raises(DataError, match="'a' has 19 rows, too few for two folds of min_rows=10"):
            network.run(procedures)
        assert not record.between("a", "b", Sums)
        return
    network.run(procedures)
    assert len(record.between("a", "b", Sums)) == folds + 1
    off = msgspec.structs.replace(run_settings, rows_per_feature=0.0)
    record = Overheard()
    network = LocalNetwork(RING, observers=[record])
    network.run({s.name: dekrr.train(s, Energy(4), off, tuning) for s in (few, *others)})
    assert len(record.between("a", "b", Sums)) == 6


def test_maps_of_tuning_are_counted_and_allowed():
    tuning = Tuning(sigmas=GRIDS["sigma"], alphas=GRIDS["alpha"], consensuses=GRIDS["consensus"])
    assert tuning.n_maps == 42 <= DeKRRSettings().max_maps
    tuning = Tuning(sigmas=(0.5, 1.0), alphas=(1e-3,), consensuses=(1.0,), folds=3)
    all_sites = sites(n_rows=90)
    run_settings = unmasked(scale=None, max_maps=tuning.n_maps)
    selector = Greedy(6)
    LocalNetwork(RING).run({s.name: dekrr.train(s, selector, run_settings, tuning) for s in all_sites})
    assert 8 < len(all_sites[0].ledger.maps["b"]) <= tuning.n_maps
    again = {s.name: dekrr.train(s, selector, unmasked(scale=None, max_maps=5), tuning) for s in sites(90)}
    with pytest.raises(MessageError, match="max_maps=5"):
        LocalNetwork(RING).run(again)


@pytest.mark.parametrize("verify", [False, True])
def test_a_site_that_joins_is_checked_like_the_others(verify):
    X, y, labels = make_sites(n_sites=4, random_state=0)
    regressor = DeKRRRegressor(
        n_features=8, sigma=0.5, alpha=1e-3, consensus=1.0, verify_features=verify, rows_per_feature=1.5, random_state=0
    )
    regressor.set_params(store_rows=True, **ALONE).fit(X, y, sites=labels)
    with pytest.raises(DataError, match="has 12 rows, too few"):
        regressor.partial_fit(X[:12], y[:12], sites=labels[:12])
    edges = [("harbour", label) for label in regressor.sites_[:2]]
    regressor.partial_fit(X[:40], y[:40], sites=["harbour"] * 40, edges=edges)
    kinds = regressor.traffic_.messages_by_kind
    assert (kinds["Chosen"], kinds["Features"]) == ((4, 0) if verify else (0, 4))


def test_rows_per_feature_counts_both_maps():
    run(sites(n_rows=18), Energy(6), rows_per_feature=1.5, max_leverage=1)
    with pytest.raises(DataError, match="18 here"):
        run(sites(n_rows=17), Energy(6), rows_per_feature=1.5, max_leverage=1)
    run(sites(n_rows=12), Energy(6), rows_per_feature=0.0, max_leverage=1)


def test_maps_are_counted_over_a_run():
    site = sites()[0]
    maps = [FeatureMap.unweighted(np.full((2, 3), float(i)), np.zeros(3)) for i in range(3)]
    for feature_map in (maps[0], maps[1], maps[0]):
        site.ledger.admit({"b": feature_map}, most=2)
    site.ledger.admit({"c": maps[2]}, most=2)
    with pytest.raises(MessageError, match=r"'b' asks for sums of its feature map number 3 .* max_maps=2"):
        site.ledger.admit({"b": maps[2]}, most=2)
    again = replace(site, seed=8)
    assert again.ledger is site.ledger


def test_a_second_map_in_one_run_is_counted_by_the_exchange_itself():
    site = sites()[0]
    run_settings = unmasked(max_maps=1)
    for seed, refused in ((0, False), (1, True)):
        rng = np.random.default_rng(seed)
        maps = {p: FeatureMap.unweighted(rng.normal(size=(2, 3)), np.zeros(3)) for p in site.neighbors}
        run_ = dekrr.plan(Plain(3), run_settings)
        start = Start(site, site.rows, UNSCALED, RollCall(site))
        procedure = run_.exchange.sums(start, maps["b"], Offers(maps, {}, {}), run_)
        if refused:
            with pytest.raises(MessageError, match="max_maps=1"):
                next(procedure)
        else:
            assert set(next(procedure)) == {"b", "c"}


def test_flooded_frequencies_are_checked_too():
    site = sites()[0]
    whole = Tally(len(RING), 60 * len(RING), 20.0, (60, min(RING)), (60, max(RING)), height=1)
    roster = Roster(dict.fromkeys(RING, 60), whole, diameter=1, root="a", depth=0, parent=None)
    procedure = share_features(site, site.rows, Energy(6, sigma=0.5), roster, "b")
    assert next(procedure) == {}
    rng = np.random.default_rng(0)
    high = FeatureMap.unweighted(rng.normal(scale=100, size=(2, 6)), np.zeros(6))
    with pytest.raises(MessageError, match="'b' sent a frequency of length"):
        procedure.send({"b": Features(high.frequencies, high.phases, high.amplitudes, 2)})


def crowd_and_one_far_away(n_rows=200, seed=2):
    rng = np.random.default_rng(seed)
    X = np.vstack([rng.normal(0.5, 0.05, size=(n_rows - 1, 2)), [[3.0, -2.0]]])
    return ArrayRows(X, rng.uniform(-1, 1, n_rows)), FeatureMap.unweighted(rng.normal(size=(2, 4)), rng.uniform(size=4))


def test_no_sum_that_leaves_a_site_has_a_row_that_stands_alone():
    rows, feature_map = crowd_and_one_far_away()
    everywhere = [Site(name, RING[name], rows, feature_map=feature_map) for name in RING]
    _, record = run(everywhere, Energy(4), verify_features=False)
    features = feature_map(rows.X[:-1])
    expected = features.T @ features
    sums = record.between("a", "b", Sums)
    assert len(sums) == 1
    np.testing.assert_allclose(unpack_symmetric(sums[0].gram, 4), expected, atol=1e-9)
    np.testing.assert_allclose(sums[0].cross, expected, atol=1e-9)


@pytest.mark.parametrize("chained", [False, True])
def test_withheld_rows_are_in_no_sum(chained):
    rows, feature_map = crowd_and_one_far_away()
    rule = learn(rows, 0.9)
    admitted = (ChainedRows([rows]) if chained else rows).admitted(rule)
    kept = rule(rows.X)
    assert not kept[-1]
    assert admitted.n_rows == kept.sum() > 190
    own, others = accumulate(admitted, feature_map, {"b": feature_map})
    features = feature_map(rows.X[kept])
    np.testing.assert_allclose(own.gram, features.T @ features, atol=1e-9)
    np.testing.assert_allclose(own.moment, features.T @ rows.y[kept], atol=1e-9)
    np.testing.assert_allclose(unpack_symmetric(others["b"].gram, 4), own.gram, atol=1e-9)


@pytest.mark.parametrize(
    "changes", [{}, {"masks": False}, {"masks": False, "rows_per_feature": 0.0}, {"intervals": True}], ids=str
)
def test_what_a_withheld_row_says_is_in_no_message_and_in_no_model_of_another_site(changes):
    """Not even by way of the local part, which is fitted to it, and whose errors tell all weights of candidates."""
    heard, models = [], []
    second = SecondTraining(keep_intervals, fits_shared=False) if "intervals" in changes else None
    changes = {name: value for name, value in changes.items() if name != "intervals"}
    given = {"bounds": ((0, 0, -3), (1, 1, 3)), "shared": 8, "masks": True, "rows_per_feature": 1.5} | changes
    given = DeKRRSettings(min_rows=10, max_leverage=0.999, lone_neighbor="warn", **given)
    for said in (1.0, -2.0):
        everyone, rng = {}, np.random.default_rng(0)
        for name, neighbors in RING.items():
            X = rng.uniform(size=(240, 2))
            y = np.sin(5 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=240)
            if name == "a":
                X[:3], y[:3] = [[40.0, -30.0], [-25.0, 60.0], [90.0, 90.0]], said
            identity = Identity("run", derived_secret(b"secret", name))
            everyone[name] = Site(name, neighbors, ArrayRows(X, y), identity=identity, tell=lambda *text: None)
        record = Overheard()
        outcomes = LocalNetwork(RING, observers=[record]).run(
            {n: training.train(one, Plain(8, sigma=0.5), given, second=second) for n, one in everyone.items()}
        )
        assert not outcomes["a"].admission(everyone["a"].X[:3]).any()
        heard.append([(entry.sender, entry.receiver, encode(entry.message)) for entry in record.heard])
        models.append({n: outcome.home.local.tensors() for n, outcome in outcomes.items()})
    assert heard[0] == heard[1]
    alike = [
        n for n in RING if all(np.array_equal(a, b) for a, b in zip(*(m[n].values() for m in models), strict=True))
    ]
    assert alike == ["b", "c"], "and the row is in its own site's local part"


def test_the_rule_is_about_a_row_alone_and_the_same_rows_give_the_same_rule():
    rows, _ = crowd_and_one_far_away()
    rule, again = learn(rows, 0.9), learn(rows, 0.9)
    every = rule(rows.X)
    np.testing.assert_array_equal(again(rows.X), every)
    np.testing.assert_array_equal(np.concatenate([rule(rows.X[i : i + 1]) for i in range(rows.n_rows)]), every)
    assert not rule(np.array([[10.0, 10.0], [-50.0, 0.5]])).any()


def test_the_rule_is_kept_and_later_rows_are_judged_by_it(tmp_path):
    rows, _ = crowd_and_one_far_away()
    path = tmp_path / "rule.safetensors"
    first = admission.kept(path, lambda: learn(rows, 0.9), 2)
    assert path.stat().st_mode & 0o077 == 0
    later = admission.kept(path, lambda: pytest.fail("a second rule"), 2)
    other = np.random.default_rng(5).normal(0.5, 0.1, size=(500, 2))
    np.testing.assert_array_equal(first(other), later(other))
    with pytest.raises(DataError, match="about rows of 2 columns, not of 3"):
        admission.kept(path, lambda: first, 3)
    path.write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"cannot be read: .*; restore it"):
        admission.kept(path, lambda: first, 2)


def test_sums_over_the_few_rows_that_do_not_stand_alone_are_refused():
    """Heavy tails: at first there are rows enough for the features, but most are alone with some of them."""
    rng = np.random.default_rng(1)
    rows = ArrayRows(np.exp(2 * rng.normal(size=(60, 3))), rng.uniform(-1, 1, 60))
    maps = [FeatureMap.unweighted(0.3 * rng.normal(size=(3, 16)), rng.uniform(size=16)) for _ in range(3)]
    everywhere = [Site(name, RING[name], rows, feature_map=m) for name, m in zip(RING, maps, strict=True)]
    with pytest.raises(DataError, match="of which stand alone, too few for sums"):
        run(everywhere, Energy(16), verify_features=False)


@pytest.mark.parametrize("amplitude", [1e-7, 1e-3, 1.0, 1e3, 1e7])
def test_who_stands_alone_does_not_depend_on_amplitudes(amplitude):
    rng = np.random.default_rng(0)
    X = rng.uniform(0.4, 0.6, size=(400, 3))
    X[5], X[6] = (1, 0, 1), (0, 1, 0)
    rows = ArrayRows(X, X.sum(axis=1))
    plain = FeatureMap.unweighted(rng.normal(size=(3, 30)) * 5, rng.uniform(0, 6, 30))
    amplitudes = plain.amplitudes.copy()
    amplitudes[0] *= amplitude
    changed = FeatureMap(plain.frequencies, plain.phases, amplitudes)
    alone = admission._stands_alone(rows, plain)
    assert 1 < alone.sum() < 100
    np.testing.assert_array_equal(admission._stands_alone(rows, changed), alone)
    assert alone[[5, 6]].all()


@pytest.mark.parametrize("verify", [False, True])
def test_amplitudes_that_no_feature_has_are_refused(verify):
    def larger(to, message):
        if isinstance(message, Features | Chosen):
            return msgspec.structs.replace(message, amplitudes=np.full(8, 1e200))
        return message

    settings = unmasked(scale=None, verify_features=verify)
    procedures = {site.name: dekrr.train(site, Energy(8), settings) for site in sites()}
    procedures["b"] = tampered(procedures["b"], larger)
    with pytest.raises(MessageError, match="'b' sent an amplitude of 1e\\+200, which no feature has"):
        LocalNetwork(RING).run(procedures)


@pytest.mark.parametrize("n_neighbors", [0, -1])
def test_a_neighbour_has_at_least_this_one(n_neighbors):
    def alone(to, message):
        if isinstance(message, Chosen):
            return msgspec.structs.replace(message, n_neighbors=n_neighbors)
        return message

    settings = unmasked(scale=None)
    procedures = {site.name: dekrr.train(site, Energy(8), settings) for site in sites()}
    procedures["b"] = tampered(procedures["b"], alone)
    with pytest.raises(MessageError, match=f"'b' says that it has {n_neighbors} neighbours"):
        LocalNetwork(RING).run(procedures)


def test_a_pool_that_is_too_large_to_draw_is_refused():
    proof = Chosen(3, 10**6, list(range(10**6)), np.empty(0), np.empty(0), 1)
    assert admission.redraw(Energy(8), Chosen(3, 8, list(range(8)), np.empty(0), np.empty(0), 1), 3, "b", 10)
    with pytest.raises(MessageError, match="too large to draw"):
        admission.redraw(Energy(8), proof, 3, "b", 10)


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("make_selector", [Energy, Greedy])
def test_more_features_than_agreed_are_refused(make_selector, verify):
    settings = unmasked(scale=None, verify_features=verify, max_features=8)
    agreed = {site.name: dekrr.train(site, make_selector(8), settings) for site in sites(n_rows=90)}
    assert LocalNetwork(RING).run(agreed)["a"].feature_map.n_features == 8
    procedures = {site.name: dekrr.train(site, make_selector(8), settings) for site in sites(n_rows=90)}
    procedures["b"] = dekrr.train(sites(n_rows=90)[1], make_selector(14), settings)
    with pytest.raises(MessageError, match=r"'b' sent .* features; the limit is"):
        LocalNetwork(RING).run(procedures)


def test_a_choice_is_no_shortlist_and_a_shortlist_is_no_choice():
    def chosen_at_once(receiver, message):
        return message.candidates if isinstance(message, Shortlist) else message

    def never_chosen(receiver, message):
        return Shortlist(message) if isinstance(message, Features) else message

    settings = unmasked(scale=None, verify_features=False)
    for selector, change, reason in (
        (Greedy(4, sigma=0.5), chosen_at_once, "'b' sent Features where Shortlist is due"),
        (Energy(4), never_chosen, "'b' sent Shortlist where Features is due"),
    ):
        procedures = {site.name: dekrr.train(site, selector, settings) for site in sites()}
        procedures["b"] = tampered(procedures["b"], change)
        with pytest.raises(MessageError, match=reason):
            LocalNetwork(RING).run(procedures)
