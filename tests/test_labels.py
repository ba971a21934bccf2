import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dekrr.labels import factorise, places_of

FEW = st.integers(-128, -120) | st.integers(120, 127)


@given(arrays(np.int8, st.integers(0, 300), elements=FEW))
def test_numbers_close_to_each_other_are_counted_as_they_would_be_sorted(values):
    check(values)


@given(arrays(np.uint64, st.integers(1, 20), elements=st.integers(0, 2**64 - 1)))
def test_numbers_far_from_each_other(values):
    check(values)


@pytest.mark.parametrize("low", [0, 2**63 - 3, 2**64 - 6])
def test_the_largest_numbers_that_there_are(low):
    check(np.array([low + n for n in (3, 1, 5, 1, 3, 4)], dtype=np.uint64))


def check(values):
    labels, index = factorise(values, len(values))
    unique, inverse = np.unique(values, return_inverse=True)
    assert labels == unique.tolist()
    assert all(type(label) is int for label in labels)
    np.testing.assert_array_equal(index, inverse)
    places = places_of(index, len(labels))
    assert len(places) == len(labels)
    for label, rows in zip(labels, places, strict=True):
        np.testing.assert_array_equal(rows, np.flatnonzero(values == np.asarray(label, dtype=values.dtype)))
