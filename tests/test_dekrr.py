"""The node procedure against the system solved with all rows in one place."""

import pickle
from dataclasses import replace
from typing import NamedTuple

import msgspec
import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from conftest import make_problem, tampered
from dekrr.errors import DataError, MessageError, SettingsError
from dekrr.features import FeatureMap
from dekrr.messages import Coefficients
from dekrr.networks.local import LocalNetwork
from dekrr.protocols import dekrr
from dekrr.protocols.baselines import allreduce, dkla
from dekrr.protocols.preparation import PREPARATIONS, OwnUnits
from dekrr.protocols.run import Tuning
from dekrr.protocols.site import Site, without_exchange
from dekrr.scaling import Scaling, Unscaled
from dekrr.selection import Energy, Greedy, Plain
from dekrr.settings import AllReduceSettings, DeKRRSettings, DifferentialPrivacy, DKLASettings
from dekrr.solvers import Chebyshev, Jacobi, SiteSystem, inverse, make_solver
from dekrr.statistics import Weights, accumulate, assemble, penalty
from dekrr.tables.rows import ArrayRows, RowHash
from dekrr.types import Block


def run(problem, **changes):
    keep_path = changes.pop("keep_path", False)
    common = {
        "alpha": problem.alpha,
        "consensus": problem.consensus,
        "scale": None,
        "min_rows": 1,
        "rows_per_feature": 0,
        "max_leverage": problem.max_leverage,
        "verify_features": False,
        "masks": False,
    }
    chosen = DeKRRSettings(lone_neighbor="warn", **{**common, **changes})
    network = LocalNetwork(problem.graph)
    procedures = {
        name: dekrr.train(site, Plain(sigma=0.5), chosen, keep_path=keep_path) for name, site in problem.sites.items()
    }
    return network.run(procedures), network.traffic


def close(outcomes, solution, tolerance):
    for name, expected in solution.items():
        np.testing.assert_allclose(outcomes[name].coefficients, expected, rtol=0, atol=tolerance)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    n_sites=st.integers(1, 7),
    consensus=st.sampled_from([0.0, 0.25, 1.0, 4.0]),
    solver=st.sampled_from(["jacobi", "chebyshev"]),
    max_leverage=st.sampled_from([0.6, 1.0]),
)
def test_minimiser_is_that_of_the_full_system(seed, n_sites, consensus, solver, max_leverage):
    problem = replace(make_problem(seed, n_sites=n_sites, consensus=consensus), max_leverage=max_leverage)
    assume(all(problem.typical(site).any() for site in problem.sites.values()))  # a site without any refuses
    outcomes, _ = run(problem, solver=solver, self_penalty=0.0, tol=1e-13, max_rounds=20_000)
    close(outcomes, problem.solution(), 1e-8)
    objective = sum(outcome.objective_shares[-1] for outcome in outcomes.values())
    solved = {name: outcome.coefficients for name, outcome in outcomes.items()}
    assert objective == pytest.approx(problem.objective(solved), abs=1e-12)


@pytest.mark.parametrize("solver", ["jacobi", "chebyshev"])
def test_objective_of_every_round_is_the_objective(solver):
    problem = make_problem(3)
    outcomes, _ = run(problem, solver=solver, tol=0.0, max_rounds=5, keep_path=True)
    for k in range(6):
        expected = problem.objective({name: outcome.path[k] for name, outcome in outcomes.items()})
        assert sum(o.objective_shares[k] for o in outcomes.values()) == pytest.approx(expected, abs=1e-12)


def test_sums_give_the_papers_iterates():
    problem = make_problem(1, n_sites=6)
    changes = {"solver": "jacobi", "tol": 0.0, "max_rounds": 200}
    (by_sums, sums_traffic), (by_rows, rows_traffic) = (
        run(problem, exchange=e, **changes) for e in ("sums", "features")
    )
    close(by_sums, {name: outcome.coefficients for name, outcome in by_rows.items()}, 1e-10)
    assert sums_traffic.messages_by_kind["Sums"] == rows_traffic.messages_by_kind["RowFeatures"]
    assert "RowFeatures" not in sums_traffic.messages_by_kind


def test_set_up_traffic_does_not_depend_on_rows():
    few, many = (make_problem(2, rows=rows, features=(4, 5)) for rows in ((12, 13), (600, 601)))
    assert run(few)[1].bytes_by_kind["Sums"] == run(many)[1].bytes_by_kind["Sums"]


@pytest.mark.parametrize("self_penalty", [0.0, 5.0])
@pytest.mark.parametrize("seed", range(5))
def test_objective_never_rises(self_penalty, seed):
    problem = make_problem(seed, consensus=8.0, rows=(40, 60))
    outcomes, _ = run(problem, solver="jacobi", self_penalty=self_penalty, tol=0.0, max_rounds=100)
    objective = np.sum([outcome.objective_shares for outcome in outcomes.values()], axis=0)
    assert np.diff(objective).max() <= 1e-14
    assert objective[-1] < objective[0]


def test_all_sites_stop_in_the_same_round_below_tol():
    problem = make_problem(5, n_sites=7)
    outcomes, _ = run(problem, tol=1e-6)
    assert len({outcome.rounds for outcome in outcomes.values()}) == 1
    assert all(outcome.settled and outcome.relative_residual <= 1e-6 for outcome in outcomes.values())
    tighter, _ = run(problem, tol=1e-9)
    assert tighter["0"].rounds > outcomes["0"].rounds


def test_neighbours_last_coefficients_are_known():
    outcomes, _ = run(make_problem(5))
    for outcome in outcomes.values():
        assert set(outcome.neighbor_coefficients) == set(outcome.neighbor_maps)
        for p, values in outcome.neighbor_coefficients.items():
            np.testing.assert_array_equal(values, outcomes[p].coefficients)


def test_one_site_alone_is_ridge_regression():
    problem = make_problem(0, n_sites=1)
    site = problem.sites["0"]
    outcomes, traffic = run(problem)
    ridge = Ridge(alpha=site.n_rows * problem.alpha, fit_intercept=False).fit(site.feature_map(site.X), site.y)
    np.testing.assert_allclose(outcomes["0"].coefficients, ridge.coef_, atol=1e-8)
    assert outcomes["0"].rounds == 1
    assert traffic.total_bytes == 0


def sites_of_sizes(sizes, n_columns=3):
    rng = np.random.default_rng(0)
    graph = nx.relabel_nodes(nx.cycle_graph(len(sizes)), str)
    rows = [rng.uniform(size=(size, n_columns)) for size in sizes]
    return graph, {str(j): Site(str(j), tuple(graph[str(j)]), ArrayRows(X, X[:, 0])) for j, X in enumerate(rows)}


def test_features_in_proportion_to_the_root_of_the_rows():
    sizes = [25, 100, 400, 900]
    graph, sites = sites_of_sizes(sizes)
    chosen = DeKRRSettings(lone_neighbor="warn", allocation="sqrt", rows_per_feature=0, max_leverage=1)
    outcomes = LocalNetwork(graph).run({n: dekrr.train(s, Energy(26), chosen) for n, s in sites.items()})
    n_features = [outcomes[str(j)].feature_map.n_features for j in range(4)]
    assert n_features == [8, 16, 32, 48]
    assert sum(n_features) == 4 * 26


def test_pairs_of_features_are_shared_out_whole():
    graph, sites = sites_of_sizes([60, 70, 80, 90])
    chosen = DeKRRSettings(lone_neighbor="warn", allocation="sqrt", rows_per_feature=0, max_leverage=1)
    selector = Greedy(10, mapping="cossin", sigma=0.5)
    outcomes = LocalNetwork(graph).run({n: dekrr.train(s, selector, chosen) for n, s in sites.items()})
    n_features = [outcomes[n].feature_map.n_features for n in sorted(sites)]
    assert all(n % 2 == 0 for n in n_features)
    assert abs(sum(n_features) - 40) <= 4


@pytest.mark.parametrize(("mapping", "expected"), [("cos", [15, 20, 20]), ("cossin", [14, 20, 20])])
def test_no_more_greedy_features_than_rows(mapping, expected):
    graph, sites = sites_of_sizes([15, 40, 60])
    chosen = DeKRRSettings(lone_neighbor="warn", rows_per_feature=0, max_leverage=1)
    selector = Greedy(20, sigma=0.5, mapping=mapping)
    outcomes = LocalNetwork(graph).run({n: dekrr.train(s, selector, chosen) for n, s in sites.items()})
    assert [outcomes[n].feature_map.n_features for n in sorted(sites)] == expected


def test_too_few_rows_are_not_summed():
    graph, sites = sites_of_sizes([40, 40, 1])
    with pytest.raises(DataError, match=r"site '2' has 1 row, fewer than min_rows=10.*lower min_rows"):
        LocalNetwork(graph).run(
            {n: dekrr.train(s, Plain(5), DeKRRSettings(lone_neighbor="warn")) for n, s in sites.items()}
        )


def test_sites_with_different_columns_are_named():
    graph, sites = sites_of_sizes([40, 40, 40])
    sites["1"] = Site("1", sites["1"].neighbors, ArrayRows(np.zeros((40, 2)), np.zeros(40)))
    chosen = DeKRRSettings(lone_neighbor="warn", scale="minmax")
    with pytest.raises(MessageError, match=r"site '.' sent Bounds.lower of shape \(.,\), expected \(.,\)"):
        LocalNetwork(graph).run({n: dekrr.train(s, Plain(5), chosen) for n, s in sites.items()})


@pytest.mark.parametrize("tol", [1e-3, 1e-6])
def test_sites_that_do_not_depend_on_each_other_stop_where_they_should(tol):
    X = 2 * np.pi * np.arange(40)[:, None] / 40
    maps = {
        name: FeatureMap.unweighted(np.array([waves]), np.zeros(2))
        for name, waves in (("a", [1.0, 3]), ("b", [2.0, 4]))
    }
    y = X[:, 0] * (6 - X[:, 0])
    chosen = DeKRRSettings(
        lone_neighbor="warn",
        alpha=1e-6,
        scale=None,
        min_rows=1,
        rows_per_feature=0,
        max_leverage=1.0,
        verify_features=False,
        tol=tol,
    )
    sites = [Site(name, (other,), ArrayRows(X, y), feature_map=maps[name]) for name, other in ("ab", "ba")]
    outcomes = LocalNetwork({"a": "b", "b": "a"}).run(
        {site.name: dekrr.train(site, Plain(2), chosen) for site in sites}
    )
    for name, outcome in outcomes.items():
        features = maps[name](X)
        hessian = (1 + 2 * chosen.consensus) / 80 * features.T @ features + chosen.alpha / 2 * np.eye(2)
        assert outcome.settled
        np.testing.assert_allclose(outcome.coefficients, np.linalg.solve(hessian, features.T @ y / 80), rtol=tol)


@pytest.mark.parametrize(("entry", "value"), [((0, 0), np.nan), ((5, 2), np.nan), ((7, 7), np.inf)])
def test_a_system_that_is_not_finite_is_refused(entry, value):
    matrix = np.eye(8)
    matrix[entry] = value
    with pytest.raises(SettingsError, match="too large"):
        inverse(matrix)


@pytest.mark.parametrize("order", ["C", "F"])
def test_the_inverse_is_numpy_s(order):
    half = np.random.default_rng(0).normal(size=(30, 20))
    matrix = np.array(half.T @ half, order=order)
    np.testing.assert_allclose(inverse(matrix), np.linalg.inv(matrix), rtol=1e-9, atol=1e-12)
    with pytest.raises(SettingsError, match="not positive definite"):
        inverse(matrix - 100 * np.eye(20))


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("size", [1e300, 1e308])
def test_who_sends_coefficients_that_overflow_is_named(size):
    def huge(to, message):
        if isinstance(message, Coefficients):
            return Coefficients(np.full_like(message.values, size), message.progress)
        return message

    problem = make_problem(3, n_sites=4)
    guards = {"min_rows": 1, "rows_per_feature": 0, "max_leverage": 1, "masks": False}
    settings = DeKRRSettings(lone_neighbor="warn", **guards, scale=None, verify_features=False)
    procedures = {name: dekrr.train(site, Plain(), settings) for name, site in problem.sites.items()}
    liar = sorted(procedures)[1]
    procedures[liar] = tampered(procedures[liar], huge)
    with pytest.raises(MessageError, match=f"{liar!r} sent coefficients so large"):
        LocalNetwork(problem.graph).run(procedures)


def with_responses(problem, change):
    """Return a problem whose responses are those that `change` makes of each site's."""
    sites = {n: replace(s, rows=ArrayRows(s.X, change(s.X, s.y))) for n, s in problem.sites.items()}
    return replace(problem, sites=sites)


def outputs_of(problem):
    """Return a problem of two outputs, and one of each."""
    outputs = [lambda X, y: y, lambda X, y: 3 * np.cos(y) + X[:, 0]]
    both = with_responses(problem, lambda X, y: np.column_stack([output(X, y) for output in outputs]))
    return both, [with_responses(problem, output) for output in outputs]


def units_of(outcome, apart):
    """Return how much larger each of several outputs is in the units of the run of all than in those of its own run."""
    if isinstance(outcome.scaling, Unscaled):
        return np.ones(len(apart))
    spans = outcome.scaling.upper - outcome.scaling.lower
    return np.array([one.scaling.upper[-1] - one.scaling.lower[-1] for one in apart]) / spans[-len(apart) :]


@pytest.mark.parametrize(
    "changes",
    [
        {"solver": "chebyshev"},
        {"solver": "jacobi"},
        {"scale": "minmax"},
        {"exchange": "features"},
        {"max_leverage": 0.6},
    ],
)
def test_two_outputs_are_two_runs(changes):
    both, single = outputs_of(make_problem(4, n_sites=4))
    together, traffic = run(both, tol=0.0, max_rounds=30, keep_path=True, **changes)
    apart = [run(problem, tol=0.0, max_rounds=30, keep_path=True, **changes)[0] for problem in single]
    tolerance = 1e-12
    for name, outcome in together.items():
        one, other = (outcomes[name] for outcomes in apart)
        units = units_of(outcome, [one, other])
        assert (units.max() > 1) == ("scale" in changes)
        expected = np.column_stack([one.coefficients, other.coefficients]) * units
        assert outcome.coefficients.shape == expected.shape
        np.testing.assert_allclose(outcome.coefficients, expected, rtol=0, atol=tolerance * np.abs(expected).max())
        shares = units**2 @ np.array([one.objective_shares, other.objective_shares])
        np.testing.assert_allclose(outcome.objective_shares, shares, rtol=0, atol=tolerance * np.abs(shares).max())
    assert traffic.messages_by_kind["Coefficients"] > 0


@pytest.mark.parametrize("module", [allreduce, dkla])
def test_two_outputs_are_two_runs_of_the_baselines(module):
    both, single = outputs_of(make_problem(4, n_sites=4))
    rounds = {"max_rounds": 20, "tol": 0.0} if module is dkla else {}
    kind = DKLASettings if module is dkla else AllReduceSettings
    chosen = kind(scale="minmax", rows_per_feature=0, max_leverage=1, **rounds)
    results = []
    for problem in (both, *single):
        procedures = {n: module.train(s, Plain(6, sigma=0.5), chosen) for n, s in problem.sites.items()}
        results.append(LocalNetwork(problem.graph).run(procedures))
    together, *apart = results
    for name, outcome in together.items():
        units = units_of(outcome, [outcomes[name] for outcomes in apart])
        expected = np.column_stack([outcomes[name].coefficients for outcomes in apart]) * units
        np.testing.assert_allclose(outcome.coefficients, expected, rtol=1e-9, atol=1e-9)
        share = units**2 @ [outcomes[name].objective_shares[-1] for outcomes in apart]
        assert outcome.objective_shares[-1] == pytest.approx(share, rel=1e-9)


def test_tuning_two_outputs_adds_up_their_errors():
    both, single = outputs_of(make_problem(6, n_sites=3, rows=(40, 60)))
    tuning = Tuning(sigmas=(0.5, 1.0), alphas=(1e-3, 1e-2), consensuses=(0.5, 1.0), folds=3)
    guards = {"min_rows": 1, "rows_per_feature": 0, "max_leverage": 1.0, "masks": False}
    chosen = DeKRRSettings(lone_neighbor="warn", **guards, scale=None, verify_features=False)
    errors = []

    def by_columns(block):  # folds follow from responses, too, and here all problems need the same
        return RowHash()(Block(block.X, np.zeros(len(block.X))))

    for problem in (both, *single):
        sites = {n: replace(s, feature_map=None, hash_of=by_columns) for n, s in problem.sites.items()}
        procedures = {n: dekrr.train(s, Plain(5, sigma=0.5), chosen, tuning) for n, s in sites.items()}
        errors.append(LocalNetwork(problem.graph).run(procedures)["0"].tuned.errors)
    np.testing.assert_allclose(errors[0], errors[1] + errors[2], rtol=1e-12)


def system_of(own, received, sent, weights):
    return SiteSystem(assemble(own, received, sent, weights), own, received, weights, 1.0)


@pytest.mark.parametrize("solver", ["chebyshev", "jacobi"])
@pytest.mark.parametrize("n_outputs", [1, 2])
def test_a_system_of_weighted_rows_is_that_of_repeated_rows(solver, n_outputs):
    rng = np.random.default_rng(n_outputs)
    maps = {name: FeatureMap.unweighted(rng.normal(size=(2, 5)), rng.uniform(size=5)) for name in "ab"}
    shape = (60,) if n_outputs == 1 else (60, n_outputs)
    weights = {name: rng.integers(1, 4, size=60) for name in "ab"}
    given = {
        name: Block(rng.uniform(size=(60, 2)), rng.normal(size=shape), weights[name].astype(float)) for name in "ab"
    }
    repeated = {name: block.take(np.repeat(np.arange(60), weights[name])) for name, block in given.items()}
    n_rows = sum(block.n_rows for block in repeated.values())
    solved = []
    for blocks in (given, {name: Block(block.X, block.y) for name, block in repeated.items()}):
        systems = {}
        sums = {n: accumulate(ArrayRows(*blocks[n]), maps[n], {o: maps[o]}) for n, o in ("ab", "ba")}
        for name, other in ("ab", "ba"):
            own, sent = sums[name]
            c = penalty(1.0, n_rows, 1)
            received = {other: sums[other][1][name]}
            systems[name] = system_of(own, received, sent, Weights(n_rows, 2, 1e-2, c, {other: c}))
        made = make_solver(solver)
        states = {name: made.start(system, np.zeros_like(system.row.right_side)) for name, system in systems.items()}
        for _ in range(25):
            known = {name: state.coefficients for name, state in states.items()}
            states = {n: made.update(states[n], systems[n].row.residual(known[n], known)) for n in "ab"}
        solved.append((systems, states))
    (systems, states), (same_systems, same_states) = solved
    for name in "ab":
        for actual, expected in (
            (systems[name].row.matrix, same_systems[name].row.matrix),
            (systems[name].row.right_side, same_systems[name].row.right_side),
            (states[name].coefficients, same_states[name].coefficients),
        ):
            np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


@pytest.mark.parametrize("solver", [Chebyshev(), Jacobi()])
def test_a_state_is_all_that_an_update_depends_on(solver):
    """Another solver object, in another process, goes on from a state as if it had been there all the time."""
    problem = make_problem(0, n_sites=1, rows=(40, 41))
    site = problem.sites["0"]
    own, _ = accumulate(site.rows, site.feature_map, {})
    system = system_of(own, {}, {}, Weights(site.n_rows, 1, 1e-3, 0.0, {}))
    residuals = np.random.default_rng(0).normal(size=(6, len(own.moment)))
    states = [solver.start(system, np.zeros_like(own.moment))]
    for residual in residuals:
        states.append(solver.update(states[-1], residual))
    hash(solver)  # it has nothing in it that could change
    for k, residual in enumerate(residuals):
        state = pickle.loads(pickle.dumps(states[k]))
        again = pickle.loads(pickle.dumps(solver)).update(state, residual)
        np.testing.assert_array_equal(again.coefficients, states[k + 1].coefficients)


class Richardson:
    """Small steps along the residual, with nothing inverted: a solver that is not in the library."""

    class State(NamedTuple):
        coefficients: np.ndarray
        rate: float

    def start(self, system, coefficients):
        return self.State(coefficients, 1 / np.abs(system.row.matrix).sum(axis=1).max())

    def update(self, state, residual):
        return state._replace(coefficients=state.coefficients + state.rate * residual)


def test_a_solver_of_one_s_own():
    problem = make_problem(2, n_sites=4, alpha=0.5)
    outcomes, _ = run(problem, solver=Richardson(), tol=1e-12, max_rounds=20_000)
    close(outcomes, problem.solution(), 1e-8)
    same, _ = run(problem, solver=Chebyshev())
    named, _ = run(problem, solver="chebyshev")
    for name in named:
        np.testing.assert_array_equal(same[name].coefficients, named[name].coefficients)


def test_solvers_that_are_not_there():
    problem = make_problem(0)
    with pytest.raises(SettingsError, match="unknown solver 'magic'; choose one of chebyshev, jacobi"):
        run(problem, solver="magic")
    with pytest.raises(SettingsError, match="self_penalty must be a number of at least 0"):
        run(problem, solver="jacobi", self_penalty=-1.0)


def test_the_privacy_budget_is_for_rows_that_count_once():
    problem = make_problem(0, n_sites=1)
    site = problem.sites["0"]
    chosen = DeKRRSettings(scale=None, min_rows=1, privacy=DifferentialPrivacy(1.0))
    heavy = ArrayRows(site.X, site.y, np.full(site.n_rows, 2.0))
    for settings_of_run in (chosen, msgspec.structs.replace(chosen, weighted=True)):
        train = dekrr.train(replace(site, rows=heavy, feature_map=None), Plain(4), settings_of_run)
        with pytest.raises(SettingsError, match="rows that count once"):
            LocalNetwork(problem.graph).run({"0": train})


def test_every_reason_to_refuse_is_told_at_once_and_before_anything_is_sent():
    site = next(iter(make_problem(0).sites.values()))
    chosen = DeKRRSettings(
        lone_neighbor="warn",
        privacy=DifferentialPrivacy(1.0),
        allocation="sqrt",
        bounds=((0.0,), (1.0,)),
        exchange="features",
    )
    tuning = Tuning(sigmas=(0.5, 1.0), alphas=(1e-3,), consensuses=(1.0,))
    with pytest.raises(SettingsError) as refusal:
        next(dekrr.train(replace(site, feature_map=None), Energy(4), chosen, tuning))
    for reason in (
        "bounds must be 4 finite",
        "Energy chooses features from rows",
        'exchange="features" sends features of every row',
        'allocation="sqrt" gives sites different features',
        "tuning would look at rows",
    ):
        assert reason in str(refusal.value)


def test_a_further_policy_is_a_class_and_a_line(monkeypatch):
    class ByTwo(OwnUnits):
        def agree(self, site, roll, agreement=None):
            return without_exchange(Scaling(np.zeros(site.rows.n_columns + 1), np.full(site.rows.n_columns + 1, 2.0)))

    monkeypatch.setitem(PREPARATIONS, None, lambda min_rows: ByTwo())
    problem = make_problem(0)
    outcomes, _ = run(problem, scale=None, max_rounds=3)
    assert all((outcome.scaling.upper == 2).all() for outcome in outcomes.values())


@pytest.mark.parametrize("chooser", [Greedy(4, sigma=0.5), Energy(4, sigma=0.5), Plain(4, sigma=0.5)])
@pytest.mark.parametrize("tuning", [None, Tuning(sigmas=(0.5, 1.0), alphas=(1e-3,), consensuses=(1.0,), folds=2)])
@pytest.mark.parametrize("exchange", ["sums", "features"])
def test_an_output_that_is_0_changes_nothing_about_another(chooser, tuning, exchange):
    problem = make_problem(3, rows=(30, 40))
    chosen = DeKRRSettings(scale=None, min_rows=1, rows_per_feature=0, max_leverage=1, exchange=exchange, masks=False)
    results = []
    for n_outputs in (1, 2):
        sites = {}
        for name, site in problem.sites.items():
            y = site.y if n_outputs == 1 else np.column_stack([site.y, np.zeros(site.n_rows)])
            sites[name] = replace(site, feature_map=None, rows=ArrayRows(site.X, y))
        procedures = {n: dekrr.train(s, chooser, chosen, tuning) for n, s in sites.items()}
        results.append(LocalNetwork(problem.graph).run(procedures))
    one, two = results
    for name in problem.sites:
        np.testing.assert_array_equal(two[name].feature_map.frequencies, one[name].feature_map.frequencies)
        np.testing.assert_allclose(two[name].coefficients[:, 0], one[name].coefficients, rtol=0, atol=1e-10)
        np.testing.assert_array_equal(two[name].coefficients[:, 1], 0)


def test_a_common_weight_is_in_the_sums_and_in_n():
    """With weights of 2 all sums double, and so does N: the coefficients are the same. A row is counted once."""
    problem = make_problem(0)
    heavy = {n: replace(s, rows=ArrayRows(s.X, s.y, np.full(s.n_rows, 2.0))) for n, s in problem.sites.items()}
    guards = {"min_rows": 1, "rows_per_feature": 0, "max_leverage": 1, "verify_features": False}
    chosen, twice = (
        DeKRRSettings(lone_neighbor="warn", alpha=1e-3, scale=None, tol=1e-12, weighted=w, **guards)
        for w in (False, True)
    )
    chooser, network = Plain(sigma=0.5), LocalNetwork(problem.graph)
    weighted = network.run({n: dekrr.train(s, chooser, twice) for n, s in heavy.items()})
    plain = network.run({n: dekrr.train(s, chooser, chosen) for n, s in problem.sites.items()})
    for name, site in problem.sites.items():
        assert weighted[name].roster.rows[name] == site.n_rows
        assert weighted[name].roster.n_counted == 2 * plain[name].roster.n_counted
        np.testing.assert_allclose(weighted[name].coefficients, plain[name].coefficients, rtol=0, atol=1e-8)
