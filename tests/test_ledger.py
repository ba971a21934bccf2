"""What a site remembers of the rows that were in sums, over all runs on a source."""

import threading
from itertools import product

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dekrr.errors import DataError
from dekrr.mesh.ledger import Ask, Cells, Folder, Ledger, _distinct

SECRET = b"secret" * 5
RNG = np.random.default_rng(0)
TABLE = {"u": RNG.normal(size=200), "v": RNG.normal(size=200), "y": RNG.normal(size=200), "c": np.ones(200)}
ASK = Ask(run="june", columns=("u", "v"), targets=("y",), fewest=10)


def cells_of(rows=slice(None), **changed):
    return Cells.of({name: values[rows] for name, values in {**TABLE, **changed}.items()}, SECRET)


def ask(run, **changed):
    return msgspec.structs.replace(ASK, run=run, **changed)


@pytest.fixture
def ledger(tmp_path):
    return Ledger(Folder(tmp_path / "ledger"))


def enter(ledger, asked, rows=slice(None), weights=None, **changed):
    cells = cells_of(rows, **changed)
    ledger.enter(asked, cells, np.ones(cells.n_rows, dtype=bool), weights)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 6)))
def test_repeated_rows_count_as_often_as_they_are_there(rows):
    found = _distinct(np.array(rows, dtype=np.uint64))
    assert len(np.unique(found)) == len(rows)
    assert np.isin(_distinct(np.array(rows[1:], dtype=np.uint64)), found).all()


@settings(max_examples=150, deadline=None)
@given(data=st.data(), runs=st.integers(1, 4))
def test_no_combination_of_admitted_runs_is_over_few_rows(tmp_path_factory, data, runs):
    """Against every combination of sums with small whole numbers, of weighted rows as vectors of their own."""
    ledger, admitted = Ledger(Folder(tmp_path_factory.mktemp("ledger"))), []
    cells = Cells.of({"u": np.arange(8.0)}, SECRET)
    for run in range(runs):
        rows = data.draw(st.sets(st.integers(0, 7), min_size=4 if run == 0 else 1))
        fewest = data.draw(st.integers(1, 4))
        weights = np.array(data.draw(st.lists(st.sampled_from([1.0, 2.0]), min_size=8, max_size=8)))
        if len(rows) < fewest:
            continue  # other guards refuse it
        inside = np.isin(np.arange(8), sorted(rows))
        is_weighted = run > 0 and data.draw(st.booleans())
        asked = Ask(run=str(run), columns=("u",), targets=(), fewest=fewest, weight="w" if is_weighted else "")
        try:
            ledger.enter(asked, cells, inside, weights if is_weighted else None)
        except DataError:
            continue
        admitted.append((fewest, inside * (weights if is_weighted else 1.0)))
    if not admitted:
        return
    for factors in product(range(-2, 3), repeat=len(admitted)):
        used = [one for factor, one in zip(factors, admitted, strict=True) if factor]
        combined = sum((f * rows for f, (_, rows) in zip(factors, admitted, strict=True)), np.zeros(8))
        # As many features as the smallest of these runs has can be told of the difference.
        largest = min([few for few, _ in used], default=0)
        assert not 0 < np.count_nonzero(combined) < min(largest, *(np.count_nonzero(rows) for _, rows in admitted[:1]))


def test_a_row_is_all_its_cells_in_any_order_and_kind_of_file():
    hashes = cells_of().hashes(TABLE)
    turned = cells_of(slice(None, None, -1)).hashes(reversed(list(TABLE)))
    np.testing.assert_array_equal(turned[::-1], hashes)
    as_text = cells_of(u=np.array([repr(float(value)) for value in TABLE["u"]], dtype=object))
    np.testing.assert_array_equal(as_text.hashes(TABLE), hashes)
    other = TABLE["u"].copy()
    other[17] = np.nextafter(other[17], 9)
    assert np.flatnonzero(cells_of(u=other).hashes(TABLE) != hashes).tolist() == [17]
    assert not np.isin(Cells.of(TABLE, b"other").hashes(TABLE), hashes).any()


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"columns": ("u", "v", "c")},  # H6: a constant column
        {"columns": ("u",)},
        {"columns": ("v", "c"), "targets": ("u",)},
        {"fewest": 1},  # H3: a study that needs no more than one row
        {"about": {"bounds": "other", "seed": "1", "sites": "a, b"}},
    ],
)
def test_a_few_new_rows_are_refused_whatever_the_run_asks(ledger, changed):
    enter(ledger, ask("june"), slice(188))
    with pytest.raises(DataError, match="separates 1 row, fewer than 10, that no earlier run had") as error:
        enter(ledger, ask("july", **changed), slice(189))
    assert error.value.code == "history"
    enter(ledger, ask("august", **changed), slice(188))
    enter(ledger, ask("september", **changed), slice(200))


def test_a_column_that_changes_with_every_export_hides_no_row(ledger):
    enter(ledger, ask("june"), slice(188), c=np.ones(200))
    with pytest.raises(DataError, match="separates 1 row, fewer than 10"):
        enter(ledger, ask("july", columns=("u", "v", "c")), slice(189), c=np.full(200, 2.0))


def test_a_source_in_which_most_rows_are_replaced_is_another_one_even_in_coarse_columns(ledger):
    enter(ledger, ask("june", columns=("c",), targets=()), slice(100))
    enter(ledger, ask("july", columns=("c",), targets=()), slice(48, 150))


@pytest.mark.parametrize("lost", ["u", "v"])
@pytest.mark.parametrize("columns", [("c",), ("c", "w")])
def test_a_table_without_a_column_that_a_run_has_read_is_refused(ledger, lost, columns):
    """No view of the earlier run could be compared any more, so that one row more was let through."""
    enter(ledger, ask("june"), slice(188))
    renamed = {("w" if name == lost else name): values[:189] for name, values in TABLE.items()}
    cells = Cells.of(renamed, SECRET)
    with pytest.raises(DataError, match=f"the table lacks '{lost}', which run 'june' has read") as error:
        ledger.enter(ask("july", columns=columns), cells, np.ones(189, dtype=bool))
    assert error.value.code == "history"
    enter(ledger, ask("august"), slice(188))


def test_weights_that_mark_few_rows_are_refused(ledger):
    """H5: a rare flag, coded 1 and 2, as the column of weights."""
    flag = np.where(np.arange(200) < 6, 2.0, 1.0)
    enter(ledger, ask("june"))
    with pytest.raises(DataError, match="separates by their weights 6 rows, fewer than 10"):
        enter(ledger, ask("july", weight="w"), weights=flag, w=flag)
    many = np.where(np.arange(200) < 60, 2.0, 1.0)
    enter(ledger, ask("august", weight="w"), weights=many)


def test_weights_of_the_first_run_are_those_of_the_source(ledger):
    weights = RNG.uniform(1, 2, size=200)
    enter(ledger, ask("june", weight="w"), weights=weights, w=weights)
    enter(ledger, ask("july", weight="w", columns=("u",)), weights=weights, w=weights)
    with pytest.raises(DataError, match="separates by their weights"):
        enter(ledger, ask("august"), w=weights)


def test_the_largest_need_of_any_run_counts(ledger):
    enter(ledger, ask("june", fewest=50), slice(150))
    with pytest.raises(DataError, match="separates 49 rows, fewer than 50"):
        enter(ledger, ask("july", fewest=10), slice(199))


def test_groups_that_small_runs_have_parted_are_too_few_for_a_large_one(ledger):
    enter(ledger, ask("a", fewest=10), slice(100))
    enter(ledger, ask("b", fewest=10), slice(115))
    enter(ledger, ask("c", fewest=50), slice(100))
    with pytest.raises(DataError, match="separates 15 rows, fewer than 50"):
        enter(ledger, ask("d", fewest=50), slice(115))


def test_runs_that_differ_by_many_rows_two_by_two_may_give_one_row_away_together(ledger):
    parts = {"a": range(50), "b": range(80), "c": [*range(50), *range(80, 110)]}
    for run, rows in parts.items():
        enter(ledger, ask(run), list(rows))
    enter(ledger, ask("d"), list(range(110)))
    with pytest.raises(DataError, match="separates 1 row, fewer than 10, that no earlier run had"):
        enter(ledger, ask("e"), list(range(111)))


@pytest.mark.parametrize(("change", "refused"), [(0, None), (1, "1 row,"), (9, "9 rows,"), (10, None), (60, None)])
@pytest.mark.parametrize("grows", [False, True])
def test_a_run_that_differs_by_few_rows_is_refused(ledger, change, refused, grows):
    first, second = (slice(200 - change), slice(200))[:: 1 if grows else -1]
    enter(ledger, ask("june"), first)
    if refused is None:
        enter(ledger, ask("july"), second)
    else:
        with pytest.raises(DataError, match=f"separates {refused}.* 'june'.* Wait for more new rows"):
            enter(ledger, ask("july"), second)


def test_private_runs_do_not_part_rows_and_their_budgets_add_up(ledger):
    enter(ledger, ask("first"), slice(100))
    for run in ("p", "q"):
        private = ask(run, epsilon=1.0, delta=1e-5)
        ledger.refuse_budget(private, 2.5, 1e-4)
        enter(ledger, private, slice(101))
        enter(ledger, private, slice(101))
    assert [entry.run for entry in ledger.entries] == ["first", "p", "q"]
    ledger.refuse_budget(ask("q", epsilon=1.0, delta=1e-5), 2.5, 1e-4)
    with pytest.raises(DataError, match=r"2 runs .* spent epsilon 2 together; 1 more would exceed 2\.5"):
        ledger.refuse_budget(ask("r", columns=("u",), epsilon=1.0, delta=1e-5), 2.5, 1e-4)
    with pytest.raises(DataError, match=r"2 runs .* spent delta 2e-05 together"):
        ledger.refuse_budget(ask("r", epsilon=0.1, delta=1e-5), 2.5, 2.5e-5)


def test_rows_that_stood_alone_stay_out(ledger):
    cells, alone = cells_of(), np.arange(200) == 7
    ledger.enter(ask("june"), cells, ~alone, alone=alone)
    np.testing.assert_array_equal(ledger.withheld(cells_of(slice(None, None, -1)))[::-1], alone)
    ledger.judge(ask("july", columns=("u",)), cells, ~alone)
    with pytest.raises(DataError, match="separates 1 row"):
        ledger.judge(ask("july", columns=("u",)), cells, np.ones(200, dtype=bool))


def test_of_runs_side_by_side_one_is_noted_before_the_other_is_judged(ledger):
    results = []

    def run(name, rows):
        try:
            enter(ledger, ask(name), slice(rows))
            results.append(name)
        except DataError:
            results.append("refused")

    threads = [threading.Thread(target=run, args=(f"{rows}", rows)) for rows in (150, 151, 152, 153)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results.count("refused") == 3
    assert len(ledger.entries) == 1


def test_what_is_kept_is_for_the_owner_alone_and_damage_is_told(ledger, tmp_path):
    enter(ledger, ask("june"))
    for path in (tmp_path / "ledger").iterdir():
        assert path.name == "lock" or path.stat().st_mode & 0o077 == 0
        assert not any(value.tobytes() in path.read_bytes() for value in TABLE["u"])
    for path in (tmp_path / "ledger").glob("*-*"):
        path.write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"lacks its part .*; restore it"):
        enter(ledger, ask("july"))
    (tmp_path / "ledger" / "runs").write_text("{}")
    with pytest.raises(DataError, match="restore it"):
        _ = ledger.entries
