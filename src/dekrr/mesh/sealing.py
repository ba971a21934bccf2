"""Frames sealed from end to end between two neighbours, whoever carries them.

The end whose name sorts first makes an *offer*, a fresh X25519 key; the other end calls for one. The *answer* has
another fresh key, the *confirmation* none. Answer and confirmation are signed under the sites' certificates over the
whole transcript: the channel, both names and both fresh keys. So nothing of an earlier handshake fits a later one:

- An offer counts for one answer; then its private key is gone. An answer to any other offer is ignored.
- The end that answers makes its key for this offer, and uses it only after a confirmation that is signed over it. A
  replayed offer costs it a signature, and changes no key that is in use.

Frames are encrypted and authenticated with ChaCha20-Poly1305, with one key for each direction and handshake. A frame's
number is its nonce; the sender counts up and the receiver takes larger numbers only. No key is ever made a second time,
so no key meets a nonce twice. A lost, late or changed frame is the loss of this one frame: the session asks for it
again. Whoever carries frames sees sizes and names, and can stop them.

Why not TLS over memory buffers: it needs a stream without gaps, and a carrier loses frames whenever a link is down. TLS
would need numbers, the recognition of gaps and a new handshake after each on top, and keys in files.
"""

import struct
import time
from collections.abc import Callable

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ..errors import KeysError
from .identity import SiteIdentity, is_signed
from .session.frames import is_data

_HANDSHAKE, _SEALED = b"\x00", b"\x01"
_NAME = 8  # bytes that name the keys of a handshake
_HEAD = struct.Struct(f">{_NAME}sQ")  # which keys, and the number of the frame
_NONCE = struct.Struct(">4xQ")
_AGAIN = 0.1  # seconds between two handshakes that this end begins
_MOST_WAITING = 1024  # frames that wait for a key


class Asking(msgspec.Struct, frozen=True, array_like=True, tag="call", forbid_unknown_fields=True):
    """The other end's request for an offer."""


class Offer(msgspec.Struct, frozen=True, array_like=True, tag="offer", forbid_unknown_fields=True):
    """The fresh key of the end whose name sorts first."""

    key: bytes


class Answer(msgspec.Struct, frozen=True, array_like=True, tag="answer", forbid_unknown_fields=True):
    """The fresh key of the other end, for an offer, with its signature of both keys."""

    offer: bytes
    key: bytes
    certificate: str
    signature: str


class Confirm(msgspec.Struct, frozen=True, array_like=True, tag="confirm", forbid_unknown_fields=True):
    """The signature of both keys by the end that made the offer."""

    name: bytes
    certificate: str
    signature: str


class _Keys:
    """The keys of one handshake, one for each direction, and how many frames each has sealed."""

    def __init__(self, secret: bytes, transcript: bytes, *, is_first: bool) -> None:
        material = HKDF(algorithm=hashes.SHA256(), length=_NAME + 64, salt=None, info=transcript).derive(secret)
        first, second = ChaCha20Poly1305(material[_NAME:-32]), ChaCha20Poly1305(material[-32:])
        self.name = material[:_NAME]
        self._out, self._back = (first, second) if is_first else (second, first)
        self._n_sent = self._n_heard = 0

    def seal(self, frame: bytes) -> bytes:
        self._n_sent += 1
        head = _HEAD.pack(self.name, self._n_sent)
        return head + self._out.encrypt(_NONCE.pack(self._n_sent), frame, head)

    def open(self, sealed: bytes, neighbor: str) -> bytes:
        head = sealed[: _HEAD.size]
        number = _HEAD.unpack(head)[1]
        if number <= self._n_heard:
            raise KeysError(f"a frame of {neighbor!r} came twice, or after a later one")
        try:
            frame = self._back.decrypt(_NONCE.pack(number), sealed[_HEAD.size :], head)
        except InvalidTag:
            raise KeysError(f"a frame in the name of {neighbor!r} was not sealed by it") from None
        self._n_heard = number
        return frame


class Sealing:
    """One end of a way to a neighbour; this one seals nothing."""

    def __init__(self, put: Callable[[bytes], None]) -> None:
        self._put = put

    @property
    def is_revoked(self) -> bool:
        """Whether the certificate that the neighbour has shown, if it had to, was revoked since."""
        return False

    def greet(self) -> None:
        """Begin a handshake, if the way has one."""

    def send(self, frame: bytes) -> None:
        """Send a frame."""
        self._put(frame)

    def take(self, data: bytes) -> bytes | None:
        """Return the frame in what a neighbour sent, if there is one."""
        return data


class Seal(Sealing):
    """One end of a sealed way to a neighbour.

    `identity`: returns the site's identity; it changes when the certificate is renewed. `channel`: both ends name the
    same channel.
    """

    def __init__(
        self, identity: Callable[[], SiteIdentity], neighbor: str, channel: str, put: Callable[[bytes], None]
    ) -> None:
        super().__init__(put)
        self._get_identity = identity
        self._neighbor = neighbor
        self._channel = channel
        self._is_first = self._identity.site < neighbor
        self._private: X25519PrivateKey | None = None  # of the offer that is not answered yet
        self._last: Answer | Confirm | None = None  # it may be lost, and is sent again then
        self._agreed: _Keys | None = None  # of an answer that is not confirmed yet
        self._keys: _Keys | None = None
        self._before: _Keys | None = None  # frames may be under way that were sealed before a new handshake
        self._waiting: list[bytes] = []
        self._said = float("-inf")
        self._theirs: x509.Certificate | None = None  # of the last handshake

    @property
    def is_revoked(self) -> bool:
        """Whether the certificate that the neighbour has shown was revoked since."""
        return self._theirs is not None and self._identity.trust.has_revoked(self._theirs)

    @property
    def _identity(self) -> SiteIdentity:
        return self._get_identity()

    def greet(self) -> None:
        """Begin a handshake, or ask the neighbour to, unless that was done a moment ago."""
        if time.monotonic() - self._said < _AGAIN:
            return
        self._said = time.monotonic()
        if not self._is_first:
            self._say(Asking())
            return
        self._private = self._private or X25519PrivateKey.generate()
        self._say(Offer(self._private.public_key().public_bytes_raw()))

    def send(self, frame: bytes) -> None:
        """Seal and send a frame; it waits until there is a key."""
        if self._keys is None:
            self._waiting = [*self._waiting[-_MOST_WAITING:], frame]
            self.greet()
        else:
            self._put(_SEALED + self._keys.seal(frame))

    def take(self, data: bytes) -> bytes | None:
        """Return the frame in what a neighbour sent; None for a handshake, or for a frame under keys that are gone.

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
        name = rest[:_NAME]
        if self._keys is not None and name == self._keys.name:
            frame = self._keys.open(rest, self._neighbor)
            self._before = None
            return frame
        if self._before is not None and name == self._before.name:
            return self._before.open(rest, self._neighbor)
        if self._agreed is not None and name == self._agreed.name and self._last is not None:
            self._say(self._last)  # the confirmation is lost: the neighbour sends it again
        else:
            self.greet()  # it is sealed for a process that is no more
        return None

    def _say(self, message: Asking | Offer | Answer | Confirm) -> None:
        self._put(_HANDSHAKE + msgspec.msgpack.encode(message))

    def _shake(self, data: bytes) -> None:
        try:
            message = msgspec.msgpack.decode(data, type=Asking | Offer | Answer | Confirm)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise KeysError(f"a handshake in the name of {self._neighbor!r} that cannot be read") from None
        if self._is_first and isinstance(message, Asking):
            self.greet()
        elif self._is_first and isinstance(message, Answer):
            self._take_answer(message)
        elif not self._is_first and isinstance(message, Offer):
            self._take_offer(message)
        elif not self._is_first and isinstance(message, Confirm):
            self._take_confirmation(message)
        else:
            raise KeysError(f"a handshake in the name of {self._neighbor!r} that is this site's part")

    def _take_offer(self, offer: Offer) -> None:
        if not (isinstance(self._last, Answer) and self._last.offer == offer.key):
            private = X25519PrivateKey.generate()
            public = private.public_key().public_bytes_raw()
            transcript = self._transcript(offer.key, public)
            self._agreed = self._keys_of(private, offer.key, transcript)
            signature = self._identity.sign(b"answer" + transcript)
            self._last = Answer(offer.key, public, self._identity.pem, signature)
        self._say(self._last)

    def _take_answer(self, answer: Answer) -> None:
        if self._private is None or answer.offer != self._private.public_key().public_bytes_raw():
            if self._last is not None:
                self._say(self._last)  # an answer to an earlier offer; the neighbour may lack the confirmation
            return
        transcript = self._transcript(answer.offer, answer.key)
        self._check(b"answer" + transcript, answer)
        keys = self._keys_of(self._private, answer.key, transcript)
        self._private = None
        self._last = Confirm(keys.name, self._identity.pem, self._identity.sign(b"confirm" + transcript))
        self._say(self._last)
        self._use(keys)

    def _take_confirmation(self, confirm: Confirm) -> None:
        if self._keys is not None and confirm.name == self._keys.name:
            return
        if self._agreed is None or not isinstance(self._last, Answer) or confirm.name != self._agreed.name:
            self.greet()  # it confirms an answer of a process that is no more
            return
        self._check(b"confirm" + self._transcript(self._last.offer, self._last.key), confirm)
        keys, self._agreed = self._agreed, None
        self._use(keys)

    def _check(self, signed: bytes, message: Answer | Confirm) -> None:
        certificate = self._identity.trust.check(message.certificate, self._neighbor)
        if not is_signed(certificate, signed, message.signature):
            raise KeysError(f"a handshake in the name of {self._neighbor!r} with a wrong signature")
        self._theirs = certificate

    def _keys_of(self, private: X25519PrivateKey, public: bytes, transcript: bytes) -> _Keys:
        try:
            secret = private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise KeysError(f"a handshake in the name of {self._neighbor!r} with a key that is none") from None
        return _Keys(secret, transcript, is_first=self._is_first)

    def _use(self, keys: _Keys) -> None:
        self._before, self._keys = self._keys, keys
        waiting, self._waiting = self._waiting, []
        for frame in waiting:
            self.send(frame)

    def _transcript(self, offer: bytes, answer: bytes) -> bytes:
        first, second = sorted([self._identity.site, self._neighbor])
        return b"dekrr seal 2\n" + msgspec.msgpack.encode([self._channel, first, second, offer, answer])


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
