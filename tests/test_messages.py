import re
import struct

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from dekrr import messages, statistics
from dekrr.errors import MessageError
from dekrr.mesh.reading import MessageReader

numbers = arrays(np.float64, array_shapes(max_dims=2, max_side=6), elements=st.floats(-1e9, 1e9))


@given(numbers, st.tuples(st.floats(0, 1e9), st.floats(0, 1e9)))
def test_round_trip(values, progress):
    sent = messages.Coefficients(values, progress)
    received = messages.decode(messages.encode(sent), "a")
    assert isinstance(received, messages.Coefficients)
    np.testing.assert_array_equal(received.values, values)
    assert received.progress == progress


@given(st.binary(max_size=200))
def test_noise_is_refused_with_the_senders_name(data):
    with pytest.raises(MessageError, match="site 'mallory'"):
        messages.decode(data, "mallory")


def wire(code, data, kind="total"):
    return msgspec.msgpack.encode([kind, msgspec.msgpack.Ext(code, data)])


def shaped(*shape):
    return struct.pack("<2I", *shape)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (wire(0, b"\0" * 7), "multiple of element size"),
        (wire(0, np.array([np.nan]).tobytes()), "NaN or infinite"),
        (wire(0, np.array([np.inf]).tobytes()), "NaN or infinite"),
        (wire(4, shaped(1, 1) + np.array([np.nan], "<f4").tobytes()), "NaN or infinite"),
        (wire(7, b"\0" * 8), "extension of code 7"),
        (wire(-2, b"\0" * 8), "extension of code -2"),
        (wire(-1, b"\0" * 8), "Expected"),
        (wire(3, b"\0" * 7), "a matrix without its shape"),
        (wire(3, shaped(1, 2) + b"\0" * 8), "8 bytes of data where shape \\(1, 2\\) needs 16"),
        (wire(3, shaped(2**32 - 1, 2**32 - 1)), "needs"),
        (wire(0, np.zeros(1).tobytes(), kind="exec"), "exec"),
        (wire(0, b"", kind="same"), "Expected"),
        (msgspec.msgpack.encode(["total", [1.0]]), "Expected"),
        (msgspec.msgpack.encode(["total"]), "at least length 2"),
        (msgspec.msgpack.encode({"type": "total"}), "Expected `array`"),
        (b"", "truncated"),
    ],
)
def test_hostile_messages(data, reason):
    with pytest.raises(MessageError, match="site 'mallory' sent something that is not a message") as caught:
        messages.decode(data, "mallory")
    assert re.search(reason, str(caught.value)), str(caught.value)


def test_too_large(monkeypatch):
    monkeypatch.setattr(messages, "MAX_BYTES", 10)
    with pytest.raises(MessageError, match="site 'mallory' sent 11 bytes; the limit is 10"):
        messages.decode(b"0" * 11, "mallory")


def test_only_float64_leaves():
    with pytest.raises(NotImplementedError, match="cannot carry ndarray of type object"):
        messages.encode(messages.Total(np.array([object()])))


def test_expect_kind_and_shape():
    inbox = {"b": messages.Total(np.zeros(3))}
    assert messages.expect(inbox, messages.Total, values={"b": (-1,)}) == inbox
    with pytest.raises(MessageError, match="site 'b' sent Total where Sums is due"):
        messages.expect(inbox, messages.Sums)
    with pytest.raises(MessageError, match=r"site 'b' sent Total.values of shape \(3,\), expected \(4,\)"):
        messages.expect(inbox, messages.Total, values={"b": (4,)})
    with pytest.raises(MessageError, match="expected"):
        messages.expect(inbox, messages.Total, values={"b": (3, 1)})


@given(st.integers(0, 8))
def test_symmetric_packing(size):
    half = np.random.default_rng(size).normal(size=(size, size))
    matrix = half + half.T
    packed = statistics.pack_symmetric(matrix)
    assert packed.shape == (size * (size + 1) // 2,)
    np.testing.assert_array_equal(statistics.unpack_symmetric(packed, size), matrix)


@pytest.mark.parametrize("dtype", [np.float32, np.int8])
def test_coefficients_and_totals_alone_may_have_fewer_digits(dtype):
    messages.decode(messages.encode(messages.Coefficients(np.zeros(2, dtype=dtype), (0.0, 0.0))), "a")
    for message in (
        messages.Sums(np.zeros(3, dtype=dtype), np.zeros((2, 2))),
        messages.Features(np.zeros((1, 2)), np.zeros(2), np.zeros(2, dtype=dtype), 1),
        *([messages.Total(np.zeros(2, dtype=dtype))] if dtype is np.int8 else []),
    ):
        with pytest.raises(MessageError, match=f"'a' sent {type(message).__name__}.* as {np.dtype(dtype)}"):
            messages.decode(messages.encode(message), "a")


@given(st.integers(0, 2**31), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_numbers_in_fixed_point_are_off_by_half_a_unit(seed, lengths):
    rng, lengths = np.random.default_rng(seed), np.array(lengths)
    values, units = rng.normal(size=lengths.sum()) * 10 ** rng.uniform(-3, 3), 10 ** rng.uniform(-5, 5, len(lengths))
    message = messages.Rounded.of(values, lengths, units, np.zeros(1))
    heard = messages.decode(messages.encode(message), "a")
    most = np.repeat(units, lengths) / 2 + 2.0**-29 * np.abs(values).max()
    assert np.all(np.abs(heard.numbers(lengths, "a") - values) <= most)
    with pytest.raises(MessageError, match=r"'a' sent .* bytes of numbers"):
        heard.numbers(lengths + 40, "a")


@pytest.mark.parametrize(
    ("widths", "units", "beside"),
    [([0], [1.0], []), ([33], [1.0], []), ([8, 8], [1.0], []), ([8], [0.0], []), ([8], [-1.0], []), ([8], [1e300], [])],
)
def test_fixed_point_whose_parts_do_not_fit_is_refused(widths, units, beside):
    message = messages.Rounded(b"abc", widths, np.array(units), np.array(beside))
    with pytest.raises(MessageError, match="'a' sent numbers in fixed point"):
        messages.decode(messages.encode(message), "a")


def test_of_several_who_owe_a_message_the_first_is_named():
    for _ in range(3):
        with pytest.raises(MessageError, match="'a' sent nothing"):
            messages.expect_senders({}, {"c", "a", "b"})


@pytest.mark.parametrize(
    "offer",
    [
        messages.Features(np.ones((2, 3)), np.zeros(3), np.ones(3), 1),
        messages.Chosen(7, 3, [0, 2, 5], np.empty(0), np.empty(0), 1),
    ],
)
def test_a_shortlist_is_a_kind_of_its_own_that_carries_a_map_or_a_proof(offer):
    data = messages.encode(messages.Shortlist(offer))
    received = messages.decode(data, "a")
    assert isinstance(received, messages.Shortlist)
    assert messages.encode(received) == data
    assert messages.encode(received.candidates) == messages.encode(offer)
    reader = MessageReader()
    assert [reader.is_choice(message) for message in (received, offer)] == [False, True]
    assert [reader.is_exact(message) for message in (received, offer)] == [True, True]


@pytest.mark.parametrize(
    ("offer", "reason"),
    [
        (messages.Features(np.ones((2, 3)), np.zeros(2), np.ones(3), 1), "parts do not fit"),
        (messages.Features(np.ones((2, 3)), np.zeros(3), np.ones(3, np.float32), 1), "Features.amplitudes as float32"),
        (messages.Chosen(7, 3, [0], np.zeros(1, np.int8), np.empty(0), 1), "Chosen.phases as int8"),
        (messages.Total(np.zeros(1)), "Invalid value 'total'"),
    ],
)
def test_what_is_in_a_shortlist_is_checked(offer, reason):
    with pytest.raises(MessageError, match=f"site 'a' .*{reason}"):
        messages.decode(messages.encode(messages.Shortlist(offer)), "a")
