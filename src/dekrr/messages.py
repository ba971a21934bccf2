"""All messages that may leave a site, and the checks on their arrival.

Messages are msgspec structs, encoded as MessagePack. An array travels as a MessagePack extension. The code of the
extension says whether the array is a vector or a matrix, and its element type. The data are the shape (for a matrix)
and the numbers. Decoding checks the kind of message, the code, that shape and number of bytes agree, and that every
number is finite. `expect` then checks what only the receiver knows: the kind of message that is due, and the shapes of
its arrays. Nothing is ever unpickled.
"""

import itertools
import math
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Self, TypeVar

import msgspec
import numpy as np

from .errors import MessageError

MAX_BYTES = 1 << 28
_EXTENSIONS = {  # code: (number of dimensions, element type)
    code: (n_dimensions, np.dtype(name))
    for code, (n_dimensions, name) in enumerate([*itertools.product((1, 2), ("<f8", "<f4", "|i1")), (1, "<u8")])
}
_CODES = {extension: code for code, extension in _EXTENSIONS.items()}
SHAPE = struct.Struct("<2I")  # the shape of a matrix
_MOST_BITS = 32
_SMALLEST_UNIT, _LARGEST_UNIT = 2.0**-900, 2.0**900


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base class of all messages; a message travels as an array whose first entry is its kind."""


class Roll(Message, frozen=True, tag="roll"):
    """One flooding step of the roll call.

    `rows` maps each site that the sender has newly heard of to its number of rows. `farthest` is the diameter: the
    largest distance, in hops, between two sites. `height` is the height of the spanning tree: the largest distance from
    the root. Each is as far as the sender knows, or 0.
    """

    rows: dict[str, int]
    farthest: int
    height: int


class Tally(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The counts over a branch of a spanning tree.

    They are the number of sites, the number of rows, the sum of the square roots of the sites' numbers of rows, the
    site with the fewest rows and the site with the most rows, each with its number of rows, and the branch's height.
    """

    sites: int
    rows: int
    roots: float
    fewest: tuple[int, str]
    most: tuple[int, str]
    height: int


class Branch(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The counts of a branch of a spanning tree, and the edges of its sites.

    Of an edge's two ends the site whose name sorts first reports the edge.
    """

    tally: Tally
    edges: list[tuple[str, str]]


class Census(Message, frozen=True, tag="census"):
    """One step of the roll call in a large network, which counts sites over a spanning tree.

    `root` is the site whose name sorts first, as far as the sender knows. `depth` is the sender's distance from the
    root in hops, and `parent` is its neighbour on the way to the root. The parent alone gets `branch`, as soon as all
    of the sender's branch is counted. `whole` has the counts of the network and `diameter` the largest distance between
    two sites; both come down from the root.
    """

    root: str
    depth: int
    parent: str | None
    branch: Branch | None = None
    whole: Tally | None = None
    diameter: int = 0

    @property
    def tallies(self) -> list[Tally]:
        """All counts in the message."""
        tallies = [self.whole, self.branch.tally if self.branch is not None else None]
        return [tally for tally in tallies if tally is not None]


class ToldColumn(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What is known about a column of raw tables: its kind, and a site that has it.

    `absent` says whether a site's table has no such column. `n_known` counts the rows with a value, `n_missing` those
    without, and `counts` those of each category: each in multiples of `min_rows` of a site's rows, so that fewer rows
    are not told. `parts` has the parts of dates: None where they
    differ, or the only value. `orders` says whether the day or the month comes first in dates, each with a site that
    has them so. A column of the kind "refused" has in `site` why it cannot be used; one of the kind "none" is left out.
    """

    kind: str
    site: str
    absent: bool
    n_known: int
    n_missing: int
    counts: dict[str, int]
    parts: dict[str, float | None]
    orders: dict[str, str]


class RawColumns(Message, frozen=True, tag="columns"):
    """What is known about the columns of raw tables, by name: of a branch on the way up the tree, of all sites down."""

    columns: dict[str, ToldColumn]


class Bounds(Message, frozen=True, tag="bounds"):
    """The smallest and largest values known to the sender, one per column and one for the response."""

    lower: np.ndarray
    upper: np.ndarray


class Features(Message, frozen=True, tag="features"):
    """The sender's feature map and its number of neighbours."""

    frequencies: np.ndarray
    phases: np.ndarray
    amplitudes: np.ndarray
    n_neighbors: int


class Chosen(Message, frozen=True, tag="chosen"):
    """The sender's feature map, as the seed of its pool and the indices of the candidates that it chose.

    The receiver draws the pool again, which proves the origin of the features. The message also takes fewer bytes. The
    pool is drawn for `n_features` features; a shortlist has more candidates than that. Phases and amplitudes are empty
    where the chosen candidates keep those of the pool.
    """

    seed: int
    n_features: int
    indices: list[int]
    phases: np.ndarray
    amplitudes: np.ndarray
    n_neighbors: int


Offer = Features | Chosen


class Shortlist(Message, frozen=True, tag="shortlist"):
    """The candidates that the sender wants its neighbours' sums over. Its choice comes later, in its own message."""

    candidates: Offer


class Degree(Message, frozen=True, tag="degree"):
    """The sender's current number of neighbours."""

    n_neighbors: int


class Sums(Message, frozen=True, tag="sums"):
    """Sums over the sender's rows of the receiver's features: gram (B_jp, packed) and cross (C_jp).

    Where all sites share their features, C_jp equals B_jp, and `cross` is empty.
    """

    gram: np.ndarray
    cross: np.ndarray


class Moments(Message, frozen=True, tag="moments"):
    """Sums over the sender's rows of the receiver's shortlist: gram (Z'Z, packed) and moment (Z'y)."""

    gram: np.ndarray
    moment: np.ndarray


class RowFeatures(Message, frozen=True, tag="rows"):
    """The paper's exchange, for comparison: both maps' features of each of the sender's rows."""

    own: np.ndarray
    receivers: np.ndarray


class Coefficients(Message, frozen=True, tag="theta"):
    """The sender's coefficients, or a change to be added to them, and its data for the stopping rule.

    `progress` has the residuals and scales of the stopping rule. `step` is the unit of the values.
    """

    values: np.ndarray
    progress: tuple[float, ...]
    step: float = 1.0


class Unchanged(Message, frozen=True, tag="same"):
    """The sender's coefficients differ too little from the last ones that it sent (censoring)."""

    progress: tuple[float, ...]


class Total(Message, frozen=True, tag="total"):
    """A partial sum on its way up a spanning tree, or the full sum on its way down."""

    values: np.ndarray


class Rounded(Message, frozen=True, tag="rounded"):
    """What a `Total` is, in a network of many sites, in as few bits as its use allows.

    The vector is in rows; the numbers of a row are integers times its unit, each in as many bits as the largest needs
    (`widths`, 1 to 32). `data` has the rows of one width after those of smaller widths: first the whole octets of each
    number, from its lowest, and then the bits that are left. `beside` are the last numbers of the vector, in double
    precision.
    """

    data: bytes
    widths: list[int]
    units: np.ndarray
    beside: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray, lengths: np.ndarray, units: np.ndarray, beside: np.ndarray) -> Self:
        """Return numbers in rows of such lengths, none of them 0, in these units, or larger ones if need be."""
        largest = np.maximum.reduceat(np.abs(values), np.cumsum(lengths) - lengths)
        units = np.maximum(units, np.ldexp(largest, 2 - _MOST_BITS))
        integers = np.rint(values / np.repeat(units, lengths))
        widths = 1 + np.frexp(np.rint(largest / units))[1]  # with a bit for the sign
        octets, width_of = integers.astype("<i4").view(np.uint8).reshape(-1, 4), np.repeat(widths, lengths)
        data = bytearray()
        for width in np.unique(widths):
            own, (n_octets, n_bits) = octets[width_of == width], divmod(int(width), 8)
            data += own[:, :n_octets].tobytes()
            if n_bits:
                bits = np.unpackbits(own[:, n_octets : n_octets + 1], axis=1, count=n_bits, bitorder="little")
                data += np.packbits(bits).data
        return cls(bytes(data), widths.tolist(), units, beside)

    @classmethod
    def coarse(cls, values: np.ndarray, n_bits: int) -> Self:
        """Return numbers as parts of the largest."""
        unit = np.abs(values).max(initial=_SMALLEST_UNIT) / (1 << n_bits - 1)
        return cls.of(values, np.array([len(values)]), np.array([unit]), np.empty(0))

    def numbers(self, lengths: np.ndarray, sender: str) -> np.ndarray:
        """Return the numbers of rows of such lengths."""
        widths, n_of_width = np.array(self.widths), np.zeros(_MOST_BITS + 1, dtype=np.intp)
        if len(widths) == len(lengths):
            np.add.at(n_of_width, widths, lengths)
        n_octets, n_bits = np.divmod(np.arange(_MOST_BITS + 1), 8)
        sizes = n_of_width * n_octets - (-n_of_width * n_bits // 8)
        if len(widths) != len(lengths) or sizes.sum() != len(self.data):
            raise MessageError(f"site {sender!r} sent {len(self.data)} bytes of numbers in {len(widths)} rows", sender)
        data, width_of = np.frombuffer(self.data, np.uint8), np.repeat(widths, lengths)
        integers, start = np.empty(len(width_of), dtype="<i4"), 0
        for width in np.unique(widths):
            count, whole, rest = n_of_width[width], n_octets[width], n_bits[width]
            middle, end = start + count * whole, start + sizes[width]
            octets = np.zeros((count, 4), np.uint8)
            octets[:, :whole] = data[start:middle].reshape(count, whole)
            if rest:
                bits = np.unpackbits(data[middle:end], count=count * rest).reshape(-1, rest)
                octets[:, whole] = np.packbits(bits, axis=1, bitorder="little")[:, 0]
            unused = _MOST_BITS - int(width)
            integers[width_of == width] = octets.view("<i4").ravel() << unused >> unused  # which keeps the sign
            start = end
        return np.asarray(integers * np.repeat(self.units, lengths))


class MaskKey(Message, frozen=True, tag="key"):
    """The sender's public key for masks, its neighbours, and the proof that both are its own."""

    public: bytes
    neighbors: list[str]
    proof: bytes


class MaskKeys(Message, frozen=True, tag="keys"):
    """The keys of the sender's other neighbours, which the receiver shares masks with; see `dekrr.privacy.masks`."""

    keys: dict[str, MaskKey]


class Magnitudes(Message, frozen=True, tag="sizes"):
    """The largest exponents of two that the sender has heard of, its own at first: what masked sums must have room for.

    They bound a site's number of rows and its responses, which are public where bounds have been agreed on.
    """

    exponents: list[int]


class Masked(Message, frozen=True, tag="masked"):
    """A sum over the sender's rows in fixed point, under masks that cancel in the sum over several sites."""

    words: np.ndarray


class MaskedRound(Message, frozen=True, tag="round"):
    """A round's coefficients and, masked, their products with sums over the sender's rows; see `MaskedRounds`."""

    coefficients: Coefficients | Unchanged
    words: np.ndarray


AnyMessage = (
    Roll
    | Census
    | RawColumns
    | Bounds
    | Features
    | Chosen
    | Shortlist
    | Degree
    | Sums
    | Moments
    | RowFeatures
    | Coefficients
    | Unchanged
    | Total
    | Rounded
    | MaskKey
    | MaskKeys
    | Magnitudes
    | Masked
    | MaskedRound
)
Kind = TypeVar("Kind", bound=Message)


def code_of(value: Any) -> int:
    """Return the code of an array's extension."""
    code = _CODES.get((value.ndim, value.dtype)) if isinstance(value, np.ndarray) else None
    if code is None:
        raise NotImplementedError(
            f"a message cannot carry {type(value).__name__} of type {getattr(value, 'dtype', '')}"
        )
    return code


def to_wire(value: Any) -> msgspec.msgpack.Ext:
    """Return what stands for an array in an encoded message."""
    code = code_of(value)
    data = np.ascontiguousarray(value).data
    return msgspec.msgpack.Ext(code, data if value.ndim == 1 else SHAPE.pack(*value.shape) + data)


def _from_wire(code: int, data: memoryview) -> np.ndarray:
    if code not in _EXTENSIONS:
        raise ValueError(f"an extension of code {code}, which is not that of an array")
    n_dimensions, dtype = _EXTENSIONS[code]
    return finite(np.frombuffer(bytes(data), dtype) if n_dimensions == 1 else _read_matrix(bytes(data), dtype))


def finite(array: np.ndarray) -> np.ndarray:
    """Return an array of finite numbers; raise ValueError for any other."""
    is_finite = np.isfinite(array)
    if is_finite.size and not is_finite.item(is_finite.argmin()):
        raise ValueError("an array has NaN or infinite values")
    return array


def _read_matrix(data: bytes, dtype: np.dtype) -> np.ndarray:
    if len(data) < SHAPE.size:
        raise ValueError("a matrix without its shape")
    shape = SHAPE.unpack_from(data)
    size, expected = len(data) - SHAPE.size, math.prod(shape) * dtype.itemsize
    if size != expected:
        raise ValueError(f"{size} bytes of data where shape {shape} needs {expected}")
    return np.frombuffer(data, dtype, offset=SHAPE.size).reshape(shape)


_encoder = msgspec.msgpack.Encoder(enc_hook=to_wire)


def decoder_of(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return a decoder for a type that contains messages. The caller must pass each decoded message to `check`."""
    return msgspec.msgpack.Decoder(kind, ext_hook=_from_wire)


_decoder: msgspec.msgpack.Decoder[AnyMessage] = decoder_of(AnyMessage)


def encode(message: Message) -> bytes:
    """Return the bytes of a message."""
    return _encoder.encode(message)


def decode(data: bytes, sender: str) -> AnyMessage:
    """Return the message in `data`, or raise a `MessageError` that names `sender` and the fault."""
    if len(data) > MAX_BYTES:
        raise MessageError(f"site {sender!r} sent {len(data)} bytes; the limit is {MAX_BYTES}", sender)
    return decoded(_decoder, data, sender)


def decoded(decoder: msgspec.msgpack.Decoder[AnyMessage], data: bytes, sender: str) -> AnyMessage:
    """Return the message in some bytes, after the checks that need no other knowledge."""
    try:
        message = decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MessageError(f"site {sender!r} sent something that is not a message: {error}", sender) from None
    check(message, sender)
    return message


def check(message: AnyMessage, sender: str) -> None:
    """Raise `MessageError` if a number outside the arrays is not finite, or if the parts do not fit each other.

    Only coefficients and totals may travel in single precision, and only masked sums as words.
    """
    if isinstance(message, Shortlist):
        message = message.candidates
    if isinstance(message, (Masked, MaskedRound)):
        if message.words.dtype != np.uint64:
            raise MessageError(f"site {sender!r} sent masked sums as {message.words.dtype}, expected uint64", sender)
        if isinstance(message, Masked):
            return
        message = message.coefficients
    if isinstance(message, (Coefficients, Unchanged)):
        if not all(map(math.isfinite, message.progress)):
            raise MessageError(f"site {sender!r} sent progress that is NaN or infinite", sender)
        if isinstance(message, Coefficients) and not math.isfinite(message.step):
            raise MessageError(f"site {sender!r} sent a step that is NaN or infinite", sender)
        if isinstance(message, Coefficients) and message.values.dtype == np.uint64:
            raise MessageError(f"site {sender!r} sent coefficients as uint64, which only masked sums are", sender)
        return
    if isinstance(message, Rounded) and not (
        message.units.shape == (len(message.widths),)
        and message.beside.ndim == 1
        and all(1 <= width <= _MOST_BITS for width in message.widths)
        and np.all((message.units > 0) & (message.units < _LARGEST_UNIT))
    ):
        raise MessageError(f"site {sender!r} sent numbers in fixed point whose parts do not fit each other", sender)
    for field in message.__struct_fields__:
        value = getattr(message, field)
        if isinstance(value, np.ndarray) and value.dtype != np.float64:
            if isinstance(message, Total) and value.dtype == np.float32:
                continue
            name = type(message).__name__
            raise MessageError(f"site {sender!r} sent {name}.{field} as {value.dtype}, expected float64", sender)
    if isinstance(message, Features):
        size = message.frequencies.shape[1:]
        if len(size) != 1 or message.phases.shape != size or message.amplitudes.shape != size:
            raise MessageError(f"site {sender!r} sent features whose parts do not fit each other", sender)


def expect(
    inbox: Mapping[str, AnyMessage], kind: type[Kind], **shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Kind]:
    """Return the inbox after a check that every message is of `kind` and that its arrays have the expected shapes.

    These are by field name and by sender from whom a message is due; -1 stands for any length.
    """
    known = {sender: expect_kind(sender, message, kind) for sender, message in inbox.items()}
    for field, wanted in shapes.items():
        expect_senders(known, wanted)
        for sender, message in known.items():
            expect_shape(sender, message, field, wanted[sender])
    return known


def expect_senders(inbox: Mapping[str, Any], due: Iterable[str]) -> None:
    """Raise `MessageError` unless the senders in the inbox are exactly those from whom a message is due."""
    for sender in sorted(inbox.keys() ^ due):
        what = "a message where none is due" if sender in inbox else "nothing where a message is due"
        raise MessageError(f"site {sender!r} sent {what}; do all sites run the same procedure and version?", sender)


def expect_kind(sender: str, message: AnyMessage, kind: type[Kind]) -> Kind:
    """Return the message after a check that it is of `kind`."""
    if not isinstance(message, kind):
        raise MessageError(
            f"site {sender!r} sent {type(message).__name__} where {kind.__name__} is due; "
            "do all sites run the same procedure and version?",
            sender,
        )
    return message


def expect_shape(sender: str, message: Message, field: str, due: tuple[int, ...]) -> None:
    """Raise `MessageError` unless the array `field` has the shape `due`; -1 stands for any length."""
    shape = getattr(message, field).shape
    if shape == due:
        return
    if len(shape) != len(due) or any(wanted not in (-1, size) for wanted, size in zip(due, shape, strict=True)):
        name = type(message).__name__
        raise MessageError(f"site {sender!r} sent {name}.{field} of shape {shape}, expected {due}", sender)


def residual_of(message: Message) -> float | None:
    """Return the relative residual that a round's message tells (NaN if none yet); None for other messages."""
    if isinstance(message, MaskedRound):
        message = message.coefficients
    if not isinstance(message, Coefficients | Unchanged):
        return None
    residual, scale = message.progress[-2:] or (0.0, 0.0)
    return residual / scale if scale else float("nan")
