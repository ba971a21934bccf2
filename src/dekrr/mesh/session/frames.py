"""The frames that travel between two sites, hellos and data, and the checks on their arrival.

- A *hello* has the sender's name, its terms, the sites that it knows to be gone, and the exchange that it waits in.
- A *data* frame has one neighbour's message in one exchange, or says that there is none.
"""

from typing import Any

import msgspec

from ...errors import MessageError
from ...messages import MAX_BYTES, AnyMessage, check, decoder_of
from .interpreter import Interpreter
from .links import evicted, is_known
from .plan import Plan

MAX_FRAME = MAX_BYTES + (1 << 16)  # bytes of a message with its framing
RESERVED = ("alive",)  # not allowed as names of sites: keys have them in the sender's place


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello", forbid_unknown_fields=True):
    """A site's announcement of its state."""

    run: str
    sender: str
    gone: tuple[str, ...]  # the epoch, named by the sites and links that are lost, sorted
    exchange: int  # the exchange whose frames the sender waits for; -1 before the start
    terms: dict[str, str]  # the settings that all sites must agree on
    # the sites that are known to have the same terms, and to have heard the same from all their neighbours; and their
    # neighbours
    agreed: dict[str, tuple[str, ...]]
    asks: int  # the number of this question, counted by the sender from 1; 0 if it wants no hello in return
    answers: int  # the number of the receiver's last question that the sender has heard
    lacks: bool  # whether the sender wants the frames from `exchange` on once more, because they were lost on their way
    finished: bool  # whether the sender knows that all sites have their models
    refusal: str  # the reason why the run cannot start; empty if there is none
    # A code for the rows and settings that the sender starts from. Another code means other rows or settings.
    origin: str


class Data(msgspec.Struct, frozen=True, array_like=True, tag="data", forbid_unknown_fields=True):
    """One neighbour's message in one exchange; None means that it has no message."""

    run: str
    sender: str
    gone: tuple[str, ...]
    exchange: int
    message: AnyMessage | None


Frame = Hello | Data
_encoder = msgspec.msgpack.Encoder()
frame_decoder: msgspec.msgpack.Decoder[Frame] = decoder_of(Frame)


def encode_hello(hello: Hello) -> bytes:
    """Return the bytes of a hello."""
    return _encoder.encode(hello)


def encode_data(plan: Plan, gone: tuple[str, ...], exchange: int, body: bytes | None) -> bytes:
    """Return the bytes of a data frame; `body` is the encoded message."""
    message = None if body is None else msgspec.Raw(body)
    return _encoder.encode(("data", plan.run, plan.name, gone, exchange, message))


def is_data(frame: bytes) -> bool:
    """Return whether bytes begin as a data frame does.

    Examples
    --------
    >>> is_data(msgspec.msgpack.encode(("data", "run", "a", (), 0, None))), is_data(b"hello")
    (True, False)
    """
    return frame[1:6] == b"\xa4data"


class FrameReader:
    """Decodes frames from neighbours, and refuses those that cannot be true.

    `interpreter`: checks messages against the sites of the run.
    """

    def __init__(self, plan: Plan, interpreter: Interpreter[Any]) -> None:
        self._plan = plan
        self._interpreter = interpreter

    def read(self, sender: str, data: bytes) -> Frame:
        """Return the frame in `data`, or raise `MessageError`."""
        if sender not in self._plan.neighbors:
            raise MessageError(f"site {sender!r} is not a neighbour")
        if len(data) > MAX_FRAME:
            raise MessageError(f"a frame of {len(data)} bytes; the limit is {MAX_FRAME}")
        try:
            frame = frame_decoder.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise MessageError(f"not a frame: {error}") from None
        self._check(sender, frame)
        return frame

    def _check(self, sender: str, frame: Frame) -> None:
        plan = self._plan
        if frame.sender != sender:
            raise MessageError(f"a frame in the name of {frame.sender!r}")
        if frame.run != plan.run:
            raise MessageError(f"a frame of run {frame.run!r}; this is run {plan.run!r}")
        if frame.gone and not all(is_known(lost, plan.sites) for lost in frame.gone):
            raise MessageError(f"a frame that declares {sorted(frame.gone)} gone")
        if isinstance(frame, Hello):
            return
        if frame.exchange < 0:
            raise MessageError(f"a frame of exchange {frame.exchange}")
        if frame.message is not None:
            check(frame.message, sender)
            there = plan.sites - evicted(frozenset(frame.gone), {}) if frame.gone else plan.sites
            self._interpreter.check(frame.message, sender, frame.exchange, there)
