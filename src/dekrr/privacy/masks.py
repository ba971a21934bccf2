"""Masked sums: a site learns a sum over its neighbourhood, and no single neighbour's part of it.

The *centre* j wants S = sum_p v_p over its neighbours p. Every v_p is a vector of numbers in fixed point: words modulo
2^64. Each pair of neighbours p, q of j has a key k_pq that j does not have. A generator expands the key to a stream of
words r_pq. The neighbour whose name sorts first adds the stream to its words and the other one subtracts it:

    m_p = v_p + sum_{q > p} r_pq - sum_{q < p} r_qp   (mod 2^64),        sum_p m_p = sum_p v_p = S.

The idea is that of Bonawitz et al. (Practical secure aggregation for privacy-preserving machine learning, CCS 2017),
for the neighbourhoods of a graph. There are no shares to recover a lost neighbour's masks: a lost neighbour means a new
epoch with new keys.

**What is hidden.** Let h of the n neighbours be honest, and let the centre have all that the others know: their words,
keys and streams. Replace the streams between honest neighbours by independent uniform words. Take a spanning tree of
the honest neighbours. Given all other streams, the h - 1 streams along the tree map one-to-one to any h - 1 of the
honest neighbours' masked vectors. So these are uniform and independent of the rows, and the last one is what the sum
leaves. The joint law of all m_p depends on the honest v_p only through their sum. A generator that cannot be told from
uniform words (ChaCha20 under a key of X25519 and HKDF) makes that a statement about bounded attackers. It follows:

- An honest-but-curious centre learns S and nothing else. With other rows at the neighbours but the same S, it receives
  messages of the same law.
- A centre that colludes with all but two neighbours learns the sum over these two. It learns everything of a single
  honest neighbour; then there is nothing to hide behind. The same holds for a centre with one neighbour.
- A neighbour learns nothing about another neighbour: it receives public keys only.
- What the sums of several exchanges tell together is not hidden. The products of the rounds are sum_p C_jp theta_p.
  The centre knows all theta_p. After as many products as its neighbours have features together it can solve for every
  C_jp. Tuning sends that many, and a malicious centre can make a training last that long. The section on masks in
  docs/explanation/privacy-evidence.md has figures.

**The keys.** A site has one key pair for an epoch of a run. Its public key goes to its neighbours, and every centre
passes its neighbours' public keys on to each other. `Signer` proves whose a public key is. So a centre that replaces a
key to be in the middle is noticed. Without certificates (all sites in one process) nothing is proved.

**The neighbourhood.** A malicious centre could tell two of four neighbours that it has no others, and the other two the
same. It would then have the sums of both pairs. Or it tells each of them that it is its only neighbour. So a site
compares the neighbours that a centre signs for with those that all sites told before the run began (`Identity.graph`).

**What the masks are bound to.** A sum hides its terms only if all terms are about the same. A malicious centre could
tell one neighbour its features in one order and the others in another one. Sums of both kinds, over the same rows,
differ by G_p[C] - G_p[C'] of that neighbour alone. So the keys of all further masks for a centre are hashed with what
the centre told of its features, as each neighbour heard it. The keys of all masks are hashed with every result that
comes down the tree. Where a centre, or a site of the tree, tells different sites different things, no mask cancels from
then on, and what it gets are random words.

**The labels.** No word of a stream is used twice. A stream is named by the run, the epoch, the public keys of the pair
and of the centre (by its key), and by a number that must grow from sum to sum (by its nonce). A site that loses its
checkpoint and goes through an epoch again has the same keys. From the same messages of its neighbours it makes the same
words. A malicious centre could then send it other features, and learn a difference of its sums.
"""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec
import numpy as np

from ..errors import DekrrError, KeysError, SettingsError
from ..types import Array

_BITS = 62  # of a word for the sum; one is the sign's, and one is spare
_AHEAD = 2048  # words of a stream that are made at a time, for several small sums
_VERSION = b"dekrr masks 1"


class MaskError(DekrrError):
    """Masks do not cancel, or a mask would be used twice."""


@dataclass(frozen=True)
class FixedPoint:
    """Numbers as words modulo 2^64, such that a sum of `n_terms` of them fits."""

    exponent: int  # no number is larger than 2^exponent
    n_terms: int

    @property
    def bits(self) -> int:
        """How many bits a word has after the point; numbers are rounded to 2^-bits."""
        return _BITS - self.exponent - max(self.n_terms - 1, 0).bit_length()

    def words(self, values: Array) -> np.ndarray:
        """Return numbers as words; raise `SettingsError` for numbers that are too large."""
        largest = float(np.max(np.abs(values), initial=0.0))
        if not largest <= 2.0**self.exponent:
            raise SettingsError(
                f"a number of a masked sum is {largest:.4g}, and {2.0**self.exponent:.4g} is the most that fits: the "
                "iteration does not converge, or responses are far outside the agreed bounds. Raise alpha, scale "
                "rows and responses, or set masks=False"
            )
        return np.rint(np.ldexp(values, self.bits)).astype(np.int64).view(np.uint64)

    def numbers(self, words: np.ndarray) -> Array:
        """Return the numbers of a sum of words."""
        return np.asarray(np.ldexp(words.view(np.int64).astype(np.float64), -self.bits))


class Signer(Protocol):
    """Proves that a statement is a site's own."""

    def sign(self, statement: bytes) -> bytes:
        """Return the proof that this site makes the statement."""

    def verify(self, site: str, statement: bytes, proof: bytes) -> None:
        """Raise `KeysError` unless the proof shows that `site` makes the statement."""


class Unsigned:
    """Proves nothing: where the channel itself tells who speaks, and all sites are in one process."""

    def sign(self, statement: bytes) -> bytes:
        """Return no proof."""
        return b""

    def verify(self, site: str, statement: bytes, proof: bytes) -> None:
        """Accept any statement that comes without a proof."""
        if proof:
            raise KeysError(f"the key of site {site!r} is signed, but this site has no authority to check it by")


@dataclass(frozen=True)
class Identity:
    """What a site brings to the agreement on keys."""

    context: str = ""  # the run and its epoch: the same at all sites, and never again
    # 32 secret bytes, of this context alone. A site that repeats an epoch must have the same. None draws new ones.
    private: bytes | None = field(default=None, repr=False)
    signer: Signer = field(default_factory=Unsigned)
    # who is whose neighbour in this context, as the site knows it. None where nothing is known: then sites are believed
    # who their neighbours are.
    graph: Mapping[str, Sequence[str]] | None = None

    def within(self, purpose: str) -> "Identity":
        """Return the identity for a further agreement on keys in the same run: its masks are others."""
        return replace(self, context=f"{self.context}, {purpose}")

    def keys(self) -> "KeyPair":
        """Return the site's key pair in this context."""
        return KeyPair(self.private if self.private is not None else secrets.token_bytes(32))

    def announce(self, site: str, neighbors: Sequence[str], public: bytes) -> bytes:
        """Return the proof that a public key, and these neighbours, are this site's."""
        return self.signer.sign(self._statement(site, neighbors, public))

    def verify(self, site: str, neighbors: Sequence[str], public: bytes, proof: bytes) -> None:
        """Raise `KeysError` unless a public key and these neighbours are those of `site` in this context.

        A centre that names fewer neighbours than it has would learn sums over these few.
        """
        self.signer.verify(site, self._statement(site, neighbors, public), proof)
        if self.graph is not None and sorted(neighbors) != sorted(self.graph.get(site, ())):
            told = ", ".join(sorted(self.graph.get(site, ()))) or "none"
            raise KeysError(f"it names the neighbours {', '.join(sorted(neighbors))}, but before the run {told}")

    def _statement(self, site: str, neighbors: Sequence[str], public: bytes) -> bytes:
        return _VERSION + msgspec.msgpack.encode([self.context, site, sorted(neighbors), public])


class KeyPair:
    """An X25519 key pair, of 32 private bytes."""

    def __init__(self, private: bytes) -> None:
        try:
            from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
        except ImportError:
            raise ImportError("masks need the package cryptography: pip install 'dekrr[masks]'") from None
        self._private = X25519PrivateKey.from_private_bytes(private)
        self.public: bytes = self._private.public_key().public_bytes_raw()

    def shared(self, public: bytes, label: Sequence[str]) -> bytes:
        """Return the key that this site and the owner of `public` share for a label; raise ValueError for a bad key."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        agreed = self._private.exchange(X25519PublicKey.from_public_bytes(public))
        info = msgspec.msgpack.encode([*label, sorted([self.public, public])])
        return HKDF(SHA256(), 32, salt=_VERSION, info=info).derive(agreed)


class Pads:
    """What one site adds to its words for one centre: its streams with all partners, added or subtracted.

    A partner may be there several times, with different keys.
    """

    def __init__(self, own: str, keys: Sequence[tuple[str, bytes]]) -> None:
        self._keys = [(key, own < partner) for partner, key in keys]
        self._last = -1
        self._made: dict[int, tuple[int, np.ndarray]] = {}  # by size: which block of a stream, and its words

    def bind(self, digest: bytes) -> None:
        """Make all further words depend on something that all partners were told; where they differ, nothing cancels.

        A digest has at most 64 bytes.
        """
        self._keys = [(hashlib.blake2b(digest, key=key, digest_size=32).digest(), adds) for key, adds in self._keys]
        self._made = {}

    def words(self, number: int, size: int) -> np.ndarray:
        """Return the words to add to sum number `number`, shape (size,); numbers must grow."""
        if number <= self._last:
            raise MaskError(f"the masks of sum {number} are used already; the last was {self._last}")
        self._last = number
        ahead = max(1, _AHEAD // max(size, 1))
        block, row = divmod(number, ahead)
        made = self._made.get(size)
        if made is None or made[0] != block:
            total = np.zeros((ahead, size), dtype=np.uint64)
            for key, adds in self._keys:
                stream = _stream(key, block, size, ahead * size).reshape(ahead, size)
                total = total + stream if adds else total - stream
            self._made = {size: (block, total)}
            made = block, total
        return np.asarray(made[1][row])


def _stream(key: bytes, block: int, size: int, count: int) -> np.ndarray:
    """Return `count` words of the stream that is named by a key, a block and the size of its sums."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    nonce = bytes(4) + block.to_bytes(8, "little") + size.to_bytes(4, "little")
    stream = Cipher(ChaCha20(key, nonce), None).encryptor().update(bytes(8 * count))
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64, copy=False)


def hidden(values: Array, point: FixedPoint, pads: Pads, number: int) -> np.ndarray:
    """Return numbers as masked words, shape (values.size + 1,).

    The last word is a 1, masked like the others. The sum of these words must be the number of terms; otherwise a mask
    is left in the sum.
    """
    words = np.append(point.words(values.ravel()), np.uint64(1))
    return np.asarray(words + pads.words(number, len(words)))


def revealed(words: np.ndarray, point: FixedPoint) -> Array:
    """Return the numbers of a sum of masked words; raise `MaskError` where a mask is left in it."""
    if int(words[-1]) != point.n_terms:
        raise MaskError(
            "masks are left in a sum: a neighbour sent another sum's words, or has other partners or keys than the "
            "others; do all sites run the same procedure and version?"
        )
    return point.numbers(words[:-1])


def derived_secret(secret: bytes, *labels: str) -> bytes:
    """Return 32 bytes that depend on a secret and on labels, and tell nothing about the secret."""
    return hashlib.blake2b(
        msgspec.msgpack.encode(list(labels)), key=hashlib.sha256(secret).digest(), digest_size=32
    ).digest()


def exponent_of(largest: float) -> int:
    """Return the least e with 2^e >= largest; 0 for a number of 1 or less."""
    return int(np.ceil(np.log2(largest))) if largest > 1 else 0


def partners(names: Mapping[str, bytes], keys: KeyPair, label: Sequence[str]) -> list[tuple[str, bytes]]:
    """Return each partner, of these public keys, with the key that is shared with it for run, epoch and centre."""
    return [(name, keys.shared(public, label)) for name, public in sorted(names.items())]
