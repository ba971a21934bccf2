"""What a site remembers of the rows that were in sums, over runs."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dekrr.errors import DataError
from dekrr.privacy.history import RUNS, History, _distinct
from dekrr.types import Block

RNG = np.random.default_rng(0)
ROWS = Block(RNG.normal(size=(200, 3)), RNG.normal(size=200))


@pytest.fixture
def history(tmp_path):
    return History(tmp_path / "history", b"secret")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 6)))
def test_repeated_rows_count_as_often_as_they_are_there(rows):
    found = _distinct(np.array(rows, dtype=np.uint64))
    assert len(np.unique(found)) == len(rows)
    assert np.isin(_distinct(np.array(rows[1:], dtype=np.uint64)), found).all()


@settings(max_examples=200, deadline=None)
@given(data=st.data(), fewest=st.integers(1, 4), runs=st.integers(1, 4))
def test_no_combination_of_admitted_runs_is_over_few_rows(tmp_path_factory, data, fewest, runs):
    """Against every combination of sums with small whole numbers, of the rows as vectors of their own."""
    history, admitted = History(tmp_path_factory.mktemp("history") / "h", b"secret"), []
    for run in range(runs):
        rows = data.draw(st.sets(st.integers(0, 7), min_size=4 if run == 0 else 1))
        hashes = np.array(sorted(rows), dtype=np.uint64)
        try:
            history.refuse_few_differences(hashes, fewest)
        except DataError:
            continue
        history.note(f"{run}", hashes)
        admitted.append(np.isin(np.arange(8), sorted(rows)).astype(int))
    fewest = min([fewest, *(len(rows) for rows in [np.flatnonzero(admitted[0])])]) if admitted else 0
    for factors in product(range(-2, 3), repeat=len(admitted)):
        combined = sum((f * rows for f, rows in zip(factors, admitted, strict=True)), np.zeros(8, dtype=int))
        assert not 0 < np.count_nonzero(combined) < fewest


def test_the_order_and_the_blocks_of_rows_do_not_matter(history):
    whole = history.hashes([ROWS])
    shuffled = ROWS.take(RNG.permutation(200))
    np.testing.assert_array_equal(history.hashes([shuffled.take(slice(70)), shuffled.take(slice(70, None))]), whole)
    assert len(np.unique(whole)) == 200


def test_hashes_are_of_this_site_alone(tmp_path):
    first, second = (History(tmp_path, secret).hashes([ROWS]) for secret in (b"one", b"two"))
    assert not np.isin(first, second).any()


def test_one_value_of_one_row_makes_another_row(history):
    X = ROWS.X.copy()
    X[17, 2] = np.nextafter(X[17, 2], 9)
    assert len(np.setxor1d(history.hashes([ROWS]), history.hashes([Block(X, ROWS.y)]))) == 2


def test_runs_that_differ_by_many_rows_two_by_two_may_give_one_row_away_together(history):
    first, second, new = ROWS.take(slice(50)), ROWS.take(slice(50, 80)), ROWS.take(slice(80, 111))
    for run, blocks in {"a": [first], "b": [first, second], "c": [first, new.take(slice(30))]}.items():
        rows = history.hashes(blocks)
        history.refuse_few_differences(rows, fewest=10)
        history.note(run, rows)
    history.refuse_few_differences(history.hashes([first, second, new.take(slice(30))]), fewest=10)
    with pytest.raises(DataError, match="separates 1 row, fewer than 10, that no earlier run had"):
        history.refuse_few_differences(history.hashes([first, second, new]), fewest=10)


@pytest.mark.parametrize(("change", "refused"), [(0, None), (1, "1 row,"), (9, "9 rows,"), (10, None), (60, None)])
@pytest.mark.parametrize("grows", [False, True])
def test_a_run_that_differs_by_few_rows_is_refused(history, change, refused, grows):
    fewer = history.hashes([ROWS.take(slice(200 - change))])
    first, second = (fewer, history.hashes([ROWS])) if grows else (history.hashes([ROWS]), fewer)
    history.note("june", first)
    if refused is None:
        history.refuse_few_differences(second, fewest=10)
    else:
        with pytest.raises(DataError, match=f"separates {refused}.* 'june'.* Wait for more new rows"):
            history.refuse_few_differences(second, fewest=10)


def test_all_earlier_runs_count_but_not_private_ones(history):
    history.note("first", history.hashes([ROWS.take(slice(100))]))
    history.note("second", history.hashes([ROWS]))
    history.note("private", history.hashes([ROWS.take(slice(150))]), epsilon=1.0)
    with pytest.raises(DataError, match=r"separates 1 row, .* the last of them 'second'"):
        history.refuse_few_differences(history.hashes([ROWS.take(slice(101))]), fewest=10)
    history.refuse_few_differences(history.hashes([ROWS.take(slice(151))]), fewest=10)


def test_budgets_add_up_to_a_cap_and_a_resumed_run_spends_once(history):
    rows = history.hashes([ROWS])
    for run in ("a", "b"):
        history.refuse_budget(run, 1.0, most=2.5)
        history.note(run, rows, epsilon=1.0)
        history.note(run, rows, epsilon=1.0)
    assert [entry.run for entry in history.entries] == ["a", "b"]
    history.refuse_budget("b", 1.0, most=2.5)
    with pytest.raises(DataError, match=r"2 runs .* spent epsilon 2 together; 1 more would exceed 2\.5"):
        history.refuse_budget("c", 1.0, most=2.5)


def test_budgets_of_runs_with_other_columns_add_up_too(history, tmp_path):
    other = History(tmp_path / "other", b"secret")
    other.note("a", other.hashes([Block(ROWS.X[:, :2], ROWS.y)]), epsilon=2.0)
    history.refuse_budget("a", 1.0, most=2.5)
    with pytest.raises(DataError, match=r"1 run with differential privacy .* spent epsilon 2 together; 1 more"):
        history.refuse_budget("a", 1.0, most=2.5, also=[other])


def test_what_is_kept_is_for_the_owner_alone_and_damage_is_told(history, tmp_path):
    history.note("june", history.hashes([ROWS]))
    for path in (tmp_path / "history").iterdir():
        assert path.stat().st_mode & 0o077 == 0
        assert not any(row.tobytes() in path.read_bytes() for row in ROWS.X)
    other = next(path for path in (tmp_path / "history").iterdir() if path.name != RUNS)
    other.write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"cannot be read: .*; restore it"):
        history.refuse_few_differences(history.hashes([ROWS]), fewest=10)
    (tmp_path / "history" / RUNS).write_text("{}")
    with pytest.raises(DataError, match="restore it"):
        _ = history.entries
