"""Peers that should not be there, against a running node over real TLS."""

import contextlib
import datetime
import json
import socket
import ssl
import threading

import msgspec
import numpy as np
import pytest
import zenoh

from dekrr.mesh import keys
from dekrr.mesh.addresses import Link, zenoh_config
from dekrr.mesh.files import read_site
from dekrr.mesh.keys import Keys
from dekrr.mesh.record import Started
from dekrr.mesh.session.events import Refused
from dekrr.messages import MAX_BYTES, Coefficients, Roll, Total, encode
from meshes import Mesh, run_command, wait_until

BASE = "dekrr/test"


class Victim:
    """A node of a network of two, whose neighbour has not started."""

    def __init__(self, folder):
        self.mesh = Mesh(folder, 2)
        self.node = self.mesh.node("s00")
        self.told = []
        self.node.listeners.append(self.told.append)
        self.thread = threading.Thread(target=self.node.run, daemon=True)
        self.thread.start()
        self.endpoint = self.node.config.listen
        wait_until(lambda: any(isinstance(event, Started) for event in self.told))
        wait_until(lambda: can_connect(self.endpoint))

    def refusals(self):
        return [event.reason for event in self.told if isinstance(event, Refused)]

    def identity(self, name, **options):
        """Make keys in the name of a site, signed by whom and for how long the options say."""
        home = self.mesh.folder / f"hostile-{name}-{len(options)}"
        home.mkdir()
        self.mesh.give_keys(home, name, **options)
        return Keys(self.mesh.folder / keys.AUTHORITY_CERTIFICATE, home / keys.CERTIFICATE, home / keys.KEY)

    def then_the_run_goes_well(self, meanwhile=lambda: None):
        """Start the real neighbour, and see that nothing was harmed; `meanwhile` is called until it has ended."""
        assert self.thread.is_alive()
        errors = {}
        neighbor = threading.Thread(target=lambda: errors.update(self.mesh.run_in_threads(["s01"])[1]))
        neighbor.start()
        while neighbor.is_alive():  # run_in_threads has a deadline
            meanwhile()
            neighbor.join(0.05)
        assert errors == {"s01": None}
        self.thread.join(30)
        assert not self.thread.is_alive()
        assert self.mesh.check_models(self.mesh.names) == {frozenset()}


@pytest.fixture
def victim(tmp_path):
    return Victim(tmp_path)


@contextlib.contextmanager
def attacking(victim, identity, name="s01"):
    """Connect to the victim with an identity; gives the Zenoh session, or None where it is not let in."""
    link = Link(name, "127.0.0.1:0", {"s00": victim.endpoint}, identity)
    config = zenoh_config(link)
    config.pop("access_control", None)
    config["listen"]["endpoints"] = []
    config["mode"] = "client"
    config["connect"] = {"endpoints": [f"tls/{victim.endpoint}"], "timeout_ms": 1500, "exit_on_failure": True}
    if not identity.certificate.exists():
        for key in ("connect_private_key", "connect_certificate", "listen_private_key", "listen_certificate"):
            del config["transport"]["link"]["tls"][key]
        config["transport"]["link"]["tls"]["enable_mtls"] = False
    try:
        peer = zenoh.open(zenoh.Config.from_json5(json.dumps(config)))
    except zenoh.ZError:
        yield None
        return
    yield peer
    peer.close()


def put(peer, puts):
    for key, frame in puts:
        peer.put(key, frame, congestion_control=zenoh.CongestionControl.BLOCK)


MESSAGE = encode(Total(np.zeros(1)))


def frame(sender, body=MESSAGE, run="test", exchange=0, gone=()):
    return msgspec.msgpack.encode(["data", run, sender, gone, exchange, msgspec.Raw(body)])


FORGED = [(f"{BASE}/{name}/s00", frame(name)) for name in ("s00", "s01", "s02")]


def test_no_certificate(victim):
    nobody = Keys(*[victim.mesh.folder / name for name in (keys.AUTHORITY_CERTIFICATE, "no", "no")])
    with attacking(victim, nobody) as peer:
        assert peer is None
        victim.then_the_run_goes_well()
    assert victim.refusals() == []


def test_a_foreign_authority(victim):
    with attacking(victim, victim.identity("s01", authority=keys.Authority.new("foreign"))) as peer:
        assert peer is None
        victim.then_the_run_goes_well()
    assert victim.refusals() == []


def test_an_expired_certificate(victim):
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=30)
    with attacking(victim, victim.identity("s01", days=2, start=start)) as peer:
        assert peer is None
        victim.then_the_run_goes_well()
    assert victim.refusals() == []


def test_who_fails_in_the_handshake_is_told_once_with_the_reason(tmp_path):
    mesh = Mesh(tmp_path, 2)
    node = mesh.process("s00", run_command)
    endpoint = read_site(mesh.home("s00") / "site.toml").listen
    wait_until(lambda: can_connect(endpoint))
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=30)
    kinds = {"foreign": {"authority": keys.Authority.new("foreign")}, "expired": {"days": 2, "start": start}}
    for kind, options in kinds.items():
        (tmp_path / kind).mkdir()
        mesh.give_keys(tmp_path / kind, "s01", **options)
    for kind in ("", "", "foreign", "foreign", "expired", "expired"):
        shake_hands(endpoint, tmp_path / kind if kind else None)
    reasons = ["peer sent no certificates", "UnknownIssuer", "certificate expired"]

    def told():
        return [event["reason"] for event in mesh.events("s00") if event["event"] == "refused"]

    wait_until(lambda: len(told()) >= 3)
    assert mesh.run_in_threads(["s01"])[1] == {"s01": None}
    node.join(30)
    assert node.exitcode == 0
    assert [sum(reason in text for text in told()) for reason in reasons] == [1, 1, 1]
    assert "UnknownIssuer" in (mesh.home("s00") / "said").read_text()


def can_connect(endpoint):
    try:
        socket.create_connection(endpoint.split(":"), 1).close()
    except OSError:
        return False
    return True


def shake_hands(endpoint, home):
    """Try TLS with the certificate in a folder, or without one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if home is not None:
        context.load_cert_chain(home / keys.CERTIFICATE, home / keys.KEY)
    with contextlib.suppress(OSError), context.wrap_socket(socket.create_connection(endpoint.split(":"), 5)) as peer:
        peer.recv(1)


def test_a_valid_certificate_of_no_neighbour(victim):
    with attacking(victim, victim.identity("s02"), name="s02") as peer:
        put(peer, FORGED)
        victim.then_the_run_goes_well(meanwhile=lambda: put(peer, FORGED))
    assert victim.refusals() == []


def test_a_neighbour_that_sends_rubbish(victim):
    nan = encode(Coefficients(np.full(2, np.nan), (0.0, 0.0)))
    rubbish = {
        "Expected `array`, got `int`": b"rubbish",
        "in the name of": frame("s00"),
        "of run 'last year'": frame("s01", run="last year"),
        "malformed": frame("s01", b"\xc1"),
        "NaN": frame("s01", nan),
        "cannot exist": frame("s01", encode(Roll({"mallory": 5}, 0, 0))),
    }
    puts = [(f"{BASE}/s01/s00", each) for each in rubbish.values() for _ in range(3)]
    puts += [(f"{BASE}/s02/s00", frame("s02")), (f"{BASE}/s00/s01", frame("s00"))]
    with attacking(victim, victim.identity("s01")) as peer:
        wait_until(lambda: put(peer, puts) or len(victim.refusals()) >= len(rubbish), 10)
    assert len(victim.refusals()) == len(rubbish)
    for reason in rubbish:
        assert sum(reason in told for told in victim.refusals()) == 1
    victim.then_the_run_goes_well()


@pytest.mark.slow
def test_a_neighbour_that_sends_a_gigabyte(victim):
    with attacking(victim, victim.identity("s01")) as peer:
        put(peer, [(f"{BASE}/s01/s00", bytes(1 << 30))])
    victim.then_the_run_goes_well()
    assert victim.refusals() == []


def test_messages_have_a_largest_size():
    link = Link("s00", "127.0.0.1:1", {}, None)
    assert zenoh_config(link)["transport"]["link"]["rx"]["max_message_size"] < 1.01 * MAX_BYTES
