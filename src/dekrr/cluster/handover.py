"""Messages between sites of one process: checked like those of a wire, and counted in bytes, without the copies."""

import threading
from typing import Any

import msgspec
import numpy as np

from .. import messages
from ..errors import MessageError
from ..messages import SHAPE, AnyMessage, Message, code_of, decoded, finite

_SMALL = 1 << 14  # bytes of an array that is copied even inside a process


class _Handover(threading.local):
    """Encodes a message without its arrays, and decodes it with them."""

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []
        self._extra = 0  # bytes of the arrays as they would be encoded, less those that stand for them
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._keep)
        self._decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage, ext_hook=self._give)

    def __call__(self, message: Message, sender: str) -> tuple[AnyMessage, int]:
        self._arrays, self._extra = [], 0
        try:
            data = self._encoder.encode(message)
            size = len(data) + self._extra
            if size > messages.MAX_BYTES:
                raise MessageError(f"site {sender!r} sent {size} bytes; the limit is {messages.MAX_BYTES}", sender)
            return decoded(self._decoder, data, sender), size
        finally:
            self._arrays = []

    def _keep(self, value: Any) -> msgspec.msgpack.Ext:
        code = code_of(value)
        stand_in = len(self._arrays).to_bytes(4, "little")
        self._arrays.append(_settled(value))
        size = value.nbytes + (SHAPE.size if value.ndim == 2 else 0)
        self._extra += size + _extension_header(size) - len(stand_in) - _extension_header(len(stand_in))
        return msgspec.msgpack.Ext(code, stand_in)

    def _give(self, code: int, data: memoryview) -> np.ndarray:
        return finite(self._arrays[int.from_bytes(data, "little")])


def _extension_header(size: int) -> int:
    """Return the bytes that MessagePack puts before the data of an extension."""
    return 2 if size in (1, 2, 4, 8, 16) else 3 if size < 1 << 8 else 4 if size < 1 << 16 else 6


def _settled(array: np.ndarray) -> np.ndarray:
    """Return an array that nobody can write to any more: the same where it is large and has no other owner."""
    if array.nbytes > _SMALL and array.flags.owndata and array.flags.c_contiguous:
        array.flags.writeable = False
        return array
    copy = np.array(array, order="C")
    copy.flags.writeable = False
    return copy


_handover = _Handover()


def hand_over(message: Message, sender: str) -> tuple[AnyMessage, int]:
    """Return a message as its receiver in the same process gets it, and the bytes that it would have on the wire.

    Everything but the arrays is encoded and decoded, and all checks on arrival are made. A large array is handed over
    as it is. Nobody can write to it any more, the sender included. Other arrays are copied.

    Examples
    --------
    >>> from dekrr.messages import Sums, encode
    >>> message = Sums(np.ones(5000), np.ones((3, 3)))
    >>> received, n_bytes = hand_over(message, "a")
    >>> received.gram is message.gram, received.cross is message.cross, n_bytes == len(encode(message))
    (True, False, True)
    """
    return _handover(message, sender)
