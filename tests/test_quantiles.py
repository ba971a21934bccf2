"""Bounds by rounded counts: they are quantiles, rows are clipped to them, and nobody's extreme value shows."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dekrr
from dekrr import AllReduceRegressor, CentralizedKRR, DeKRRRegressor
from dekrr.errors import DataError
from dekrr.lab.attacks.overhearing import Overheard
from dekrr.messages import Bounds, Masked, Total
from dekrr.networks.local import LocalNetwork
from dekrr.protocols.masking import Agreement
from dekrr.protocols.online import go_on
from dekrr.protocols.preparation import ROOM, SHARE, AgreedQuantiles, rounded_counts
from dekrr.protocols.roll_call import RollCall
from dekrr.protocols.site import Site
from dekrr.scaling import Scaling
from dekrr.selection import Plain
from dekrr.settings import DeKRRSettings
from dekrr.tables.rows import ArrayRows

PATH = {"a": ("b",), "b": ("a", "c"), "c": ("b",)}


def agree(rows, fewest=10, graph=PATH, masked=False):
    record = Overheard()
    sites = [Site(name, graph[name], rows[name]) for name in graph]
    procedures = {}
    for site in sites:
        roll = RollCall(site)
        agreement = Agreement(site, roll, lone_neighbor="refuse", over_tree=True) if masked else None
        procedures[site.name] = AgreedQuantiles(fewest).agree(site, roll, agreement)
    found = LocalNetwork(graph, observers=[record]).run(procedures)
    return found["a"], record, found


def normal_rows(seed=0, sizes=(400, 300, 200)):
    rng = np.random.default_rng(seed)
    scales = np.array([1.0, 1e-9, 3e4])
    rows = {}
    for name, size in zip(PATH, sizes, strict=True):
        X = np.column_stack([rng.normal(size=(size, 2)), 1e6 + rng.normal(size=size)]) * scales
        rows[name] = ArrayRows(X, rng.standard_t(3, size=size) - 40.0)
    return rows


@given(
    values=st.lists(st.floats(-50, 50), min_size=1, max_size=60),
    edges=st.lists(st.floats(-60, 60), min_size=1, max_size=9),
    fewest=st.integers(1, 12),
)
def test_no_edge_separates_few_rows_and_its_count_depends_on_no_other_edge(values, edges, fewest):
    column, grid = np.array(values)[:, None], np.sort(edges)[:, None]
    counts = rounded_counts(column, grid, fewest).ravel()
    below = np.array([(column < edge).sum() for edge in grid.ravel()])
    assert (np.abs(counts - below) < fewest).all()
    assert (np.diff(counts) >= 0).all()
    for count, edge in zip(counts, grid.ravel(), strict=True):
        assert count in (0, len(values)) or fewest <= count <= len(values) - fewest
        assert rounded_counts(column, np.array([[edge]]), fewest).item() == count


@pytest.mark.parametrize("fewest", [1, 10])
def test_bounds_are_quantiles_of_all_rows(fewest):
    """Against the definition: the innermost point outside which rounded counts have a share of the rows at most."""
    rows = normal_rows()
    scaling, _, found = agree(rows, fewest)
    for other in found.values():
        np.testing.assert_array_equal(scaling.lower, other.lower)
    values = {name: np.column_stack([part.X, part.y]) for name, part in rows.items()}
    pooled = np.vstack(list(values.values()))
    for column in range(pooled.shape[1]):
        points = np.sort(pooled[:, column])
        spans = []
        for sign in (1, -1):
            told = np.zeros(len(points))
            for part in values.values():
                beyond = np.array([(sign * part[:, column] <= sign * point).sum() for point in points])
                told += np.where(beyond <= len(part) / 2, beyond // fewest * fewest, beyond)
            spans.append(points[told > SHARE * len(points)][::sign][0])
        width = spans[1] - spans[0]
        assert spans[0] - width / 16 <= scaling.lower[column] <= spans[0]
        assert spans[1] <= scaling.upper[column] <= spans[1] + width / 16
        n_outside = [(points < scaling.lower[column]).sum(), (points > scaling.upper[column]).sum()]
        assert max(n_outside) <= SHARE * len(points) + (fewest - 1) * len(rows)


def test_no_message_depends_on_a_row_beyond_the_others():
    rows = normal_rows()
    highest = np.argsort(rows["c"].X[:, 0])[-9:]
    _, before, _ = agree(rows)
    moved = rows["c"].X.copy()
    moved[highest, 0] = [9.97e36, 1e300, 7, 8, 9, 1e4, 5.5, 1e9, 1e5]
    _, after, _ = agree({**rows, "c": ArrayRows(moved, rows["c"].y)})
    assert not any(isinstance(entry.message, Bounds) for entry in before.heard)
    told = [[e.message.values for e in record.heard if isinstance(e.message, Total)] for record in (before, after)]
    assert len(told[0]) > 8
    for first, second in zip(*told, strict=True):
        np.testing.assert_array_equal(first, second)
    moved[np.argsort(rows["c"].X[:, 0])[-40:], 0] = 1e4  # as many as may be told
    assert agree({**rows, "c": ArrayRows(moved, rows["c"].y)})[0].upper[0] > 9e3


def test_masked_counts_give_the_same_bounds_and_no_site_learns_counts_of_another():
    rows = normal_rows()
    plain, open_record, _ = agree(rows)
    masked, record, _ = agree(rows, masked=True)
    np.testing.assert_array_equal(masked.lower, plain.lower)
    np.testing.assert_array_equal(masked.upper, plain.upper)
    root = next(e.sender for e in record.heard if isinstance(e.message, Total))
    tree = {e.sender for e in record.heard if isinstance(e.message, Masked)}
    assert tree == set(PATH) - {root}  # what goes up is masked
    totals = [e.message.values for e in open_record.heard if isinstance(e.message, Total) and e.sender == root]
    told = [e.message.values for e in record.heard if isinstance(e.message, Total)]
    assert len(told) == 2 * len(totals) == len([e for e in record.heard if isinstance(e.message, Masked)])
    assert all(any(np.array_equal(values, total) for total in totals) for values in told)  # what comes down is of all
    first = next(e.message.values for e in open_record.heard if isinstance(e.message, Total) and e.sender != root)
    words = [e.message.words for e in record.heard if isinstance(e.message, Masked)]
    again = [e.message.words for e in agree(rows, masked=True)[1].heard if isinstance(e.message, Masked)]
    assert len(words[0]) == len(first) + 1
    for one, other in zip(words, again, strict=True):
        assert np.mean(one == other) < 0.01  # under other keys all words differ, also where a count is 0


def test_a_constant_column_is_constant_and_a_constant_response_is_refused():
    rows = {n: ArrayRows(np.column_stack([r.X[:, 0], np.full(r.n_rows, 7.0)]), r.y) for n, r in normal_rows().items()}
    scaling = agree(rows)[0]
    assert (scaling.rows(np.array([[0.0, 7.0], [0.0, 9.0]]))[:, 1] == 0).all()
    for name, part in rows.items():
        rows[name] = ArrayRows(part.X, np.where(np.arange(part.n_rows) < 5, 3.0, 1.0))
    with pytest.raises(DataError, match="too few responses differ from 1"):
        agree(rows)


def test_a_site_unlike_all_others_refuses_to_be_clipped():
    rows = normal_rows(sizes=(40_000, 300, 15))
    rows["c"] = ArrayRows(rows["c"].X + 100.0, rows["c"].y)
    with pytest.raises(DataError, match=r"100% of the rows of site 'c' lie far outside .* of column 0"):
        agree(rows)


def test_clipped_rows_are_trained_on_and_predicted_alike(tmp_path):
    rng = np.random.default_rng(0)
    X, sites = rng.uniform(size=(300, 2)), np.repeat(["x", "y", "z"], 100)
    y = np.sin(3 * X[:, 0])
    X[7], y[9] = [9.97e36, -5.0], 1e6
    options = {"sigma": 0.5, "alpha": 1e-6, "consensus": 1.0, "n_features": 20, "features": "plain", "random_state": 0}
    model = DeKRRRegressor(scale="quantiles", **options).fit(X, y, sites=sites)
    scaling = model.models_["x"].scaling
    lowest, highest = scaling.limits
    spans = scaling.upper - scaling.lower
    np.testing.assert_allclose(lowest[:2], scaling.lower[:2] - ROOM * spans[:2])
    assert highest[2] == pytest.approx(2 * scaling.upper[2] - scaling.lower[2])
    clipped = np.clip(X, lowest[:2], highest[:2])
    scaled, responses = (clipped - scaling.lower[:2]) / spans[:2], np.clip(y, lowest[2], highest[2])
    # without parts that depend on the order of rows, which differs between the two tables
    alone = options | {
        "shared": None,
        "local": None,
        "column_scales": None,
        "site_effect": None,
    }  # without folds of rows
    clips = DeKRRRegressor(scale="quantiles", **alone).fit(X, y, sites=sites)
    same = DeKRRRegressor(scale=None, **alone).fit(scaled, scaling.responses(responses), sites=sites)
    np.testing.assert_allclose(clips.predict(X, sites), scaling.undo(same.predict(scaled, sites)), atol=1e-9)
    assert np.abs(model.predict(X, sites)).max() < 5
    model.models_["x"].save(tmp_path / "x.safetensors")
    loaded = dekrr.load(tmp_path / "x.safetensors")
    np.testing.assert_array_equal(loaded.predict(X), model.models_["x"].predict(X))
    shared = AllReduceRegressor(scale="quantiles", n_features=20, random_state=0).fit(X, y, sites=sites)
    np.testing.assert_array_equal(shared.models_["x"].scaling.lower, scaling.lower)
    exact = CentralizedKRR(scale="quantiles", sigma=0.5, alpha=1e-4).fit(X, y, sites=sites)
    assert (exact.models_["x"].scaling.upper <= 2).all()


def test_a_site_that_joins_clips_like_the_others():
    rows = normal_rows()
    settings = DeKRRSettings(lone_neighbor="warn", max_rounds=2, tol=0.0, rows_per_feature=0, verify_features=False)
    selector, graph = Plain(6), {**PATH, "c": ("b", "d"), "d": ("c",)}
    from dekrr.protocols import dekrr as method

    sites = {name: Site(name, PATH[name], rows[name]) for name in PATH}
    before = LocalNetwork(PATH).run({name: method.train(site, selector, settings) for name, site in sites.items()})
    sites["d"] = Site("d", graph["d"], normal_rows(1)["a"])
    none = ArrayRows(np.empty((0, 3)), np.empty(0))
    after = LocalNetwork(graph).run(
        {n: go_on(replace(s, neighbors=graph[n]), before.get(n), none, selector, settings) for n, s in sites.items()}
    )
    assert isinstance(after["d"].scaling, Scaling)
    for first, second in zip(after["d"].scaling.limits, before["a"].scaling.limits, strict=True):
        np.testing.assert_array_equal(first, second)
