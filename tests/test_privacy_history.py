"""What a site remembers of the rows that were in sums, over runs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dekrr.errors import DataError
from dekrr.privacy.history import RUNS, History, _n_different
from dekrr.types import Block

RNG = np.random.default_rng(0)
ROWS = Block(RNG.normal(size=(200, 3)), RNG.normal(size=200))


@pytest.fixture
def history(tmp_path):
    return History(tmp_path / "history", b"secret")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 6)), st.lists(st.integers(0, 6)))
def test_differences_count_repeated_rows(first, second):
    expected = sum(abs(first.count(value) - second.count(value)) for value in set(first + second))
    assert _n_different(*(np.sort(np.array(part, dtype=np.uint64)) for part in (first, second))) == expected


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
    assert _n_different(history.hashes([ROWS]), history.hashes([Block(X, ROWS.y)])) == 2


@pytest.mark.parametrize(("change", "refused"), [(0, None), (1, "1 row,"), (9, "9 rows,"), (10, None), (60, None)])
@pytest.mark.parametrize("grows", [False, True])
def test_a_run_that_differs_by_few_rows_is_refused(history, change, refused, grows):
    fewer = history.hashes([ROWS.take(slice(200 - change))])
    first, second = (fewer, history.hashes([ROWS])) if grows else (history.hashes([ROWS]), fewer)
    history.note("june", first)
    if refused is None:
        history.refuse_few_differences(second, fewest=10)
    else:
        with pytest.raises(DataError, match=f"differ from those of run 'june' by {refused}.* Wait for more new rows"):
            history.refuse_few_differences(second, fewest=10)


def test_all_earlier_runs_count_but_not_private_ones(history):
    history.note("first", history.hashes([ROWS.take(slice(100))]))
    history.note("second", history.hashes([ROWS]))
    history.note("private", history.hashes([ROWS.take(slice(150))]), epsilon=1.0)
    with pytest.raises(DataError, match="run 'first'"):
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
    with pytest.raises(DataError, match=r"2 private runs .* spent epsilon 2 together; 1 more would exceed 2\.5"):
        history.refuse_budget("c", 1.0, most=2.5)


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
