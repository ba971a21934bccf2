"""Sealed frames over a relay that replays, reorders, drops, truncates and changes what it carries."""

import random

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from dekrr.errors import KeysError
from dekrr.mesh import sealing
from dekrr.mesh.identity import SiteIdentity, Trust, revocation_list
from dekrr.mesh.keys import Authority, new_request
from dekrr.mesh.sealing import Seal

OTHER = {"a": "b", "b": "a"}


@pytest.fixture(name="identities", scope="module")
def _identities():
    authority, found = Authority.new("two"), {}
    for name in OTHER:
        key, request = new_request(name, "localhost")
        certificate = x509.load_pem_x509_certificate(authority.sign(x509.load_pem_x509_csr(request)))
        found[name] = SiteIdentity(name, load_pem_private_key(key, None), certificate, Trust(authority.certificate))
    return found


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture(name="clock")
def _clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(sealing, "time", clock)
    return clock


@pytest.fixture(name="nonces")
def _nonces(monkeypatch):
    """Record each key and nonce that seals a text."""
    used, cipher = [], sealing.ChaCha20Poly1305

    class Recorded:
        def __init__(self, key):
            self.key, self.cipher = key, cipher(key)

        def encrypt(self, nonce, data, about):
            used.append((self.key, nonce))
            return self.cipher.encrypt(nonce, data, about)

        def decrypt(self, nonce, data, about):
            return self.cipher.decrypt(nonce, data, about)

    monkeypatch.setattr(sealing, "ChaCha20Poly1305", Recorded)
    return used


class Relay:
    """Two sites and the relay between them, which keeps all that it has carried."""

    def __init__(self, identities, clock):
        self.identities = identities
        self.clock = clock
        self.seals, self.got = {}, {name: [] for name in OTHER}
        self.under_way = {name: [] for name in OTHER}  # by receiver
        self.carried = {name: [] for name in OTHER}
        self.n_refused = 0
        for name in OTHER:
            self.start(name)

    def start(self, name):
        """Start a site, again if it was there before."""

        def put(data):
            self.under_way[OTHER[name]].append(data)
            self.carried[OTHER[name]].append(data)

        self.seals[name] = Seal(lambda: self.identities[name], OTHER[name], "run", put)

    def give(self, name, data):
        """Give bytes to a site."""
        try:
            frame = self.seals[name].take(data)
        except KeysError:
            self.n_refused += 1
            return
        if frame is not None:
            self.got[name].append(frame)

    def deliver(self):
        """Deliver all that is under way, in order."""
        while any(self.under_way.values()):
            for name, wire in self.under_way.items():
                while wire:
                    self.give(name, wire.pop(0))

    def replay(self, name):
        """Give a site all that was ever sent to it."""
        for data in list(self.carried[name]):
            self.give(name, data)
        self.deliver()

    def recovers(self, text):
        """Return whether frames arrive again in both directions, when sites repeat them as a session does."""
        for attempt in range(4):
            self.clock.now += 1.0
            for name in OTHER:
                self.seals[name].send(f"{text} {attempt} to {OTHER[name]}".encode())
            self.deliver()
        return all(f"{text} 3 to {name}".encode() in self.got[name] for name in OTHER)


@pytest.mark.parametrize("restarted", ["a", "b"])
def test_a_replayed_handshake_uses_no_key_and_nonce_twice(identities, clock, nonces, restarted):
    relay = Relay(identities, clock)
    assert relay.recovers("first")
    relay.start(restarted)
    assert relay.recovers("second")
    for name in OTHER:
        before = len(relay.got[name])
        relay.replay(name)
        assert relay.got[name][before:] == []
        relay.clock.now += 1.0
        for sender in OTHER:
            relay.seals[sender].send(b"after the replay of what came to " + name.encode())
        relay.deliver()
    assert len(set(nonces)) == len(nonces) > 16
    assert relay.recovers("third")


def test_a_replayed_offer_or_answer_leaves_the_keys_as_they_are(identities, clock):
    relay = Relay(identities, clock)
    assert relay.recovers("first")
    handshakes = {name: [data for data in relay.carried[name] if data[:1] == b"\x00"] for name in OTHER}
    relay.start("b")
    assert relay.recovers("second")
    for name in OTHER:
        for data in handshakes[name]:
            relay.give(name, data)
            relay.seals["a"].send(b"on")
            relay.seals["b"].send(b"on")
            relay.deliver()
            assert relay.got["a"].pop() == relay.got["b"].pop() == b"on"


@pytest.mark.parametrize("lost", range(4))
def test_a_handshake_of_which_any_part_is_lost_is_made_up_for(identities, clock, lost):
    relay = Relay(identities, clock)
    relay.seals["b"].send(b"call")
    n_carried = 0
    while any(relay.under_way.values()):
        for name, wire in relay.under_way.items():
            while wire:
                data = wire.pop(0)
                if n_carried != lost:
                    relay.give(name, data)
                n_carried += 1
    assert relay.recovers("on")
    assert b"call" in relay.got["a"]


@pytest.mark.parametrize("seed", range(30))
def test_no_relay_reads_repeats_or_makes_a_frame_and_honest_traffic_recovers(identities, clock, nonces, seed):
    relay, draw, sent = Relay(identities, clock), random.Random(seed), {name: [] for name in OTHER}

    def tamper(name):
        wire, old = relay.under_way[name], relay.carried[name]
        what = draw.choice(["deliver", "deliver", "drop", "reorder", "twice", "replay", "reflect", "truncate", "flip"])
        if what in {"replay", "reflect"}:
            known = old if what == "replay" else relay.carried[OTHER[name]]
            for data in draw.sample(known, min(3, len(known))):
                relay.give(name, data)
        elif not wire:
            return
        elif what == "deliver":
            for _ in range(draw.randint(1, 5)):
                if wire:
                    relay.give(name, wire.pop(0))
        elif what == "drop":
            del wire[draw.randrange(len(wire))]
        elif what == "reorder":
            draw.shuffle(wire)
        elif what == "twice":
            wire.append(draw.choice(wire))
        elif what == "truncate":
            data = wire.pop(0)
            relay.give(name, data[: draw.randrange(len(data))])
        else:
            data = bytearray(wire.pop(0))
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            relay.give(name, bytes(data))

    for step in range(300):
        clock.now += draw.choice([0.0, 0.01, 0.2])
        name = draw.choice("ab")
        if draw.random() < 0.3:
            sent[name].append(f"secret {step}".encode())
            relay.seals[name].send(sent[name][-1])
        elif draw.random() < 0.03:
            relay.start(name)
        else:
            tamper(name)
    for name in OTHER:
        assert len(set(relay.got[name])) == len(relay.got[name])
        assert set(relay.got[name]) <= set(sent[OTHER[name]])
        assert not any(b"secret" in data for data in relay.carried[name])
    relay.under_way = {name: [] for name in OTHER}
    assert relay.recovers("at last")
    assert len(set(nonces)) == len(nonces)


def test_an_end_knows_when_the_certificate_of_the_other_was_revoked(clock):
    authority, identities = Authority.new("two"), {}
    for name in OTHER:
        key, request = new_request(name, "localhost")
        certificate = x509.load_pem_x509_certificate(authority.sign(x509.load_pem_x509_csr(request)))
        trust = Trust(authority.certificate)
        identities[name] = SiteIdentity(name, load_pem_private_key(key, None), certificate, trust)
    relay = Relay(identities, clock)
    relay.seals["a"].send(b"text")
    relay.deliver()
    assert relay.got["b"] == [b"text"]
    identities["a"].trust.learn(revocation_list(authority, [identities["b"].certificate], None).decode())
    assert {name: seal.is_revoked for name, seal in relay.seals.items()} == {"a": True, "b": False}
