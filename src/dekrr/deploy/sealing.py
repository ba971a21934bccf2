"""Frames sealed from end to end between two neighbours, whoever carries them.

The two ends exchange ephemeral keys (X25519), each signed under the certificate of its site for this neighbour and this
channel. Frames are then encrypted and authenticated with ChaCha20-Poly1305, under one key for each direction. A frame's
number is part of its nonce and must grow, so that no frame counts twice. Whoever carries frames sees sizes and names.
A site that starts again makes new keys, so that keys of the past are gone with the process.
"""

import struct
import time
from collections.abc import Callable

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ..errors import KeysError
from ..networks.session.frames import is_data
from .identity import Identity, is_signed

_HANDSHAKE, _SEALED = b"\x00", b"\x01"
_HEAD = struct.Struct(">4sQ")  # which key, and the number of the frame
_AGAIN = 1.0  # seconds between two handshakes with a neighbour that does not answer
_MOST_WAITING = 1024  # frames that wait for a key


class Handshake(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One end's ephemeral key.

    Parameters
    ----------
    key : bytes
    heard : bytes
        The other end's ephemeral key, as far as it is known.
    certificate : str
    signature : str
        Of the channel, the two names and the key.
    """

    key: bytes
    heard: bytes
    certificate: str
    signature: str


class Seal:
    """One end of a sealed channel to a neighbour.

    Parameters
    ----------
    identity : callable
        Returns the site's identity; it changes when the certificate is renewed.
    neighbor : str
    channel : str
        Both ends name the same channel.
    put : callable
        Sends bytes to the neighbour.
    """

    def __init__(
        self, identity: Callable[[], Identity], neighbor: str, channel: str, put: Callable[[bytes], None]
    ) -> None:
        self._get_identity = identity
        self._neighbor = neighbor
        self._channel = channel
        self._put = put
        self._private = X25519PrivateKey.generate()
        self._public = self._private.public_key().public_bytes_raw()
        self._theirs = b""
        self._ciphers: tuple[bytes, ChaCha20Poly1305, ChaCha20Poly1305] | None = None
        self._n_sent = self._n_heard = 0
        self._waiting: list[bytes] = []
        self._said = float("-inf")

    @property
    def _identity(self) -> Identity:
        return self._get_identity()

    def greet(self, *, at_once: bool = False) -> None:
        """Send this end's key, unless that was done a moment ago."""
        if not at_once and time.monotonic() - self._said < _AGAIN:
            return
        self._said = time.monotonic()
        signature = self._identity.sign(self._signed(self._identity.site, self._neighbor, self._public))
        shake = Handshake(self._public, self._theirs, self._identity.pem, signature)
        self._put(_HANDSHAKE + msgspec.msgpack.encode(shake))

    @property
    def is_open(self) -> bool:
        """Whether both ends have their keys."""
        return self._ciphers is not None

    def send(self, frame: bytes) -> None:
        """Seal and send a frame; it waits until there is a key."""
        if self._ciphers is None:
            self._waiting = [*self._waiting[-_MOST_WAITING:], frame]
            self.greet()
            return
        name, cipher, _ = self._ciphers
        self._n_sent += 1
        head = _HEAD.pack(name, self._n_sent)
        self._put(_SEALED + head + cipher.encrypt(head, frame, None))

    def take(self, data: bytes) -> bytes | None:
        """Return the frame in what a neighbour sent; None for a handshake, or for a frame of another key.

        Raises
        ------
        KeysError
            When somebody else has made or changed it.
        """
        kind, rest = data[:1], data[1:]
        if kind == _HANDSHAKE:
            self._shake(rest)
            return None
        if kind != _SEALED or len(rest) < _HEAD.size:
            raise KeysError(f"what came in the name of {self._neighbor!r} is not a sealed frame")
        head, sealed = rest[: _HEAD.size], rest[_HEAD.size :]
        name, number = _HEAD.unpack(head)
        if self._ciphers is None or name != self._ciphers[0]:
            self.greet()  # it is sealed for a process that is no more
            return None
        if number <= self._n_heard:
            raise KeysError(f"a frame of {self._neighbor!r} came twice")
        try:
            frame = self._ciphers[2].decrypt(head, sealed, None)
        except InvalidTag:
            raise KeysError(f"a frame in the name of {self._neighbor!r} was not sealed by it") from None
        self._n_heard = number
        return frame

    def _shake(self, data: bytes) -> None:
        try:
            shake = msgspec.msgpack.decode(data, type=Handshake)
        except msgspec.MsgspecError:
            raise KeysError(f"a handshake in the name of {self._neighbor!r} that cannot be read") from None
        certificate = self._identity.trust.check(shake.certificate, self._neighbor)
        signed = self._signed(self._neighbor, self._identity.site, shake.key)
        if not is_signed(certificate, signed, shake.signature):
            raise KeysError(f"a handshake in the name of {self._neighbor!r} with a wrong signature")
        if shake.key != self._theirs:
            self._agree(shake.key)
        if shake.heard != self._public:
            self.greet(at_once=time.monotonic() - self._said > _AGAIN / 10)
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for frame in waiting:
                self.send(frame)

    def _agree(self, key: bytes) -> None:
        secret = self._private.exchange(X25519PublicKey.from_public_bytes(key))
        ends = sorted([(self._identity.site, self._public), (self._neighbor, key)])
        about = msgspec.msgpack.encode([self._channel, ends])
        material = HKDF(algorithm=hashes.SHA256(), length=68, salt=None, info=about).derive(secret)
        first, second = ChaCha20Poly1305(material[4:36]), ChaCha20Poly1305(material[36:])
        out, back = (first, second) if self._identity.site < self._neighbor else (second, first)
        self._theirs, self._ciphers, self._n_sent, self._n_heard = key, (material[:4], out, back), 0, 0

    def _signed(self, sender: str, receiver: str, key: bytes) -> bytes:
        return b"dekrr handshake 1\n" + msgspec.msgpack.encode([self._channel, sender, receiver, key])


class DataSeal(Seal):
    """One end of a way on which data frames are sealed, and hellos are not: they say why two sites do not agree."""

    def send(self, frame: bytes) -> None:
        """Send a frame, sealed if it has data."""
        if is_data(frame):
            super().send(frame)
        else:
            self._put(frame)

    def take(self, data: bytes) -> bytes | None:
        """Return the frame in what a neighbour sent; data must be sealed."""
        if data[:1] in (_HANDSHAKE, _SEALED):
            return super().take(data)
        if is_data(data):
            raise KeysError(f"data in the name of {self._neighbor!r} that are not sealed")
        return data
