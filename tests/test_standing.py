"""Standing sites that stay for years: what they keep stays small, and whatever fails once is tried again."""

import ctypes
import gc
import io
import json
import logging
import os
import re
import resource
import shutil
import socket
import sqlite3
import sys
import threading
import tracemalloc
from collections import deque
from pathlib import Path

import httpx
import pandas as pd
import pytest
from typer.testing import CliRunner

from consortium import Consortium, wait_until
from dekrr import disk
from dekrr.cli.app import app
from dekrr.disk import LockedFile
from dekrr.errors import DataError, NetworkError
from dekrr.mesh import audit_trail, keys, standing
from dekrr.mesh import store as store_module
from dekrr.mesh.audit_trail import TRAIL, AuditTrail, read, verify
from dekrr.mesh.commands import taking_part
from dekrr.mesh.files import digest_of, read_standing
from dekrr.mesh.identity import SiteIdentity, revocation_list
from dekrr.mesh.monitoring import serve
from dekrr.mesh.policy import Policy, SourcePolicy, read_policy
from dekrr.mesh.record import JsonFormatter, log_to
from dekrr.mesh.store import STORE, Store
from dekrr.mesh.studies import book as book_module
from dekrr.mesh.studies import versions as versions_module
from dekrr.mesh.studies.book import LAST, Book
from dekrr.mesh.studies.gossip import Gossip
from dekrr.mesh.studies.items import Call, Decision, Proposal, Report, Revocations, sign
from wires import JumpingClock, Town

HOUR, DAY = 3600.0, 86400.0
SIZE = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    made = Consortium(tmp_path_factory.mktemp("three"), ["a", "b", "c"])
    for name in made.names:
        made.give_keys(name, made.hosts[name], days=1000)
    return made


@pytest.fixture
def consortium(tmp_path, three):
    return three.copied_to(tmp_path / "sites")


@pytest.fixture
def clock():
    return JumpingClock()


def identity(consortium, name):
    return SiteIdentity.of(read_standing(consortium.home(name) / "site.toml"), consortium.home(name))


def said(consortium, clock, n_runs, more=""):
    """Return what three sites say about a study of so many runs."""
    signers = {name: identity(consortium, name) for name in "abc"}
    text = consortium.study(more=more).read_text()
    digest, items = digest_of(text), [sign(Proposal(text, clock.time()), signers["a"])]
    for name, signer in signers.items():
        for says in ("refuse", "approve"):
            clock.jump(1.0)
            items.append(sign(Decision(digest, says, "", "test", clock.time()), signer))
        for number in range(1, n_runs + 1):
            items.append(sign(Report(digest, number, "model", "", number, "", clock.time()), signer))
            if name == "b" and number > 1:
                items.append(sign(Call(digest, number, "", clock.time()), signer))
    return digest, items


def test_statements_of_many_runs_stay_few_and_the_same_in_every_order(consortium, clock):
    digest, items = said(consortium, clock, 3 * LAST)
    books = [Book(consortium.home(name), identity(consortium, name), clock=clock) for name in "abc"]
    for _ in range(2):  # what came while a site seemed to refuse the study is asked for again within a day
        for item in items:
            books[0].add(item)
        for item in reversed(items):
            books[1].add(item)
        for item in items[::3] + items[1::3] + items[2::3]:
            books[2].add(item)
        for book in books:
            book.compact()
    assert len(books[0].ids) == 1 + 3 + 4 * LAST
    for book in books:
        assert book.ids == books[0].ids
        assert book.studies[digest].number == 3 * LAST
        assert book.studies[digest].state == "approved"
    again = Book(consortium.home("b"), identity(consortium, "b"), clock=clock)
    assert (again.ids, again.studies[digest].number) == (books[0].ids, 3 * LAST)
    assert Store(consortium.home("b")).rows("SELECT count(*) FROM statement") == [(len(books[0].ids),)]


def test_statements_of_a_study_that_has_ended_are_compacted_and_forgotten_a_year_after_it_expires(consortium, clock):
    text = (
        consortium.study()
        .read_text()
        .replace("2099-01-01", f"{pd.Timestamp(clock.time() + 9 * DAY, unit='s'):%Y-%m-%d}")
    )
    a, digest = identity(consortium, "a"), digest_of(text)
    book = Book(consortium.home("a"), a, clock=clock)
    book.say(Proposal(text, clock.time()))
    book.decide(digest, "approve", "", "test")
    for number in range(1, 6):
        book.say(Call(digest, number, "", clock.time()))
        book.say(Report(digest, number, "model", "", 0, "", clock.time()))
    kept = book.get(book.ids)
    book.compact()
    assert len(book.ids) == 12
    clock.jump(11 * DAY)
    book.compact()
    assert [type(item.body).__name__ for item in book.get(book.ids)].count("Report") == 1
    assert len(book.ids) == 3
    assert book.studies[digest].state != "approved"
    clock.jump(367 * DAY)
    book.compact()
    assert (book.ids, book.studies) == (frozenset(), {})
    assert Store(consortium.home("a")).rows("SELECT count(*) FROM statement") == [(0,)]
    assert not book.add(kept[0]), "a neighbour that forgets later brings it back"


def test_sites_agree_on_what_to_keep_and_then_fall_silent(consortium, clock):
    _, items = said(consortium, clock, LAST + 5)
    books = {name: Book(consortium.home(name), identity(consortium, name), clock=clock) for name in "ab"}
    for item in items:
        books["a"].add(item)
    for item in items[: len(items) // 2]:
        books["b"].add(item)
    gossips = {name: Gossip(book, lambda *_: None) for name, book in books.items()}
    for _ in range(10):
        frames = [("a", "b", gossips["a"].tell()), ("b", "a", gossips["b"].tell())]
        n_frames = 0
        while frames:
            sender, receiver, frame = frames.pop(0)
            answers, _ = gossips[receiver].take(sender, frame)
            frames += [(receiver, sender, answer) for answer in answers]
            n_frames += len(answers)
    assert books["a"].ids == books["b"].ids
    assert n_frames == 0
    assert len(gossips["a"].tell()) < 100
    for gossip in gossips.values():
        gossip.news()
    new = books["a"].say(Proposal(consortium.study("water").read_text(), clock.time()))
    (frame,) = gossips["a"].news()
    assert gossips["b"].take("a", frame) == ([], [new])
    assert gossips["b"].take("a", gossips["a"].tell()) == ([], []), "what has changed is sent, and no list of all ids"


def test_a_newer_list_of_revoked_certificates_takes_the_place_of_older_ones(consortium, clock):
    a = identity(consortium, "a")
    book = Book(consortium.home("a"), a, clock=clock)
    first = revocation_list(consortium.authority, [identity(consortium, "b").certificate], None)
    book.say(Revocations(first.decode(), clock.time()))
    second = revocation_list(consortium.authority, [identity(consortium, "c").certificate], a.trust.revocations)
    book.say(Revocations(second.decode(), clock.time()))
    clock.jump(1.0)
    book.say(Revocations(first.decode(), clock.time()))
    (kept,) = book.get(book.ids)
    assert kept.body.pem == second.decode()


def test_an_idle_site_writes_nothing_to_its_audit_trail(consortium, monkeypatch):
    town = Town(consortium, monkeypatch)
    book = town.sites["a"].book
    book.say(Proposal(consortium.study().read_text(), town.clock.time()))
    town.turn(30)
    assert all(len(site.book.studies) == 1 for site in town.sites.values())
    before = {name: site.trail.n_lines for name, site in town.sites.items()}
    town.turn(200, seconds=6.0)
    assert before == {name: site.trail.n_lines for name, site in town.sites.items()}


def long_trail(path, signer, n_lines):
    trail = AuditTrail(path, signer)
    for number in range(n_lines):
        trail.add("left", to="b", message="Sums", bytes=number, digest="0" * 64)
        if number % 100 == 0:
            trail.seal()
    trail.close()
    return trail


def test_a_long_trail_is_packed_and_verified_in_constant_memory(consortium, tmp_path, monkeypatch):
    monkeypatch.setattr(audit_trail, "_LONGEST", 100_000)
    a, path = identity(consortium, "a"), tmp_path / TRAIL
    peaks = []
    for n_lines in (1500, 6000):
        trail = long_trail(path, a, n_lines)
        tracemalloc.start()
        assert verify(path, a.trust, "a", [(trail.n_lines, trail.head)]) == (1, trail.n_lines, 0)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]
    packed = sorted(tmp_path.glob("audit-*.gz"), key=lambda file: int(file.name.split("-")[1]))
    assert len(packed) > 10
    assert path.stat().st_size < 150_000
    read_bytes = []
    opened = audit_trail._texts
    monkeypatch.setattr(audit_trail, "_texts", lambda file: read_bytes.append(file) or opened(file))
    AuditTrail(path, a).close()
    assert set(read_bytes) <= {path, packed[-1]}, "a start reads older files"
    packed[0].rename(tmp_path / "elsewhere")
    first, _, unsigned = verify(path, a.trust, "a", [(1, "moved away with its file")])
    assert (first, unsigned) == (int(packed[1].name.split("-")[1]), 0)
    packed[3].unlink()
    with pytest.raises(DataError, match="a line was added, left out or moved"):
        verify(path, a.trust, "a")


def test_a_crash_while_a_trail_is_packed_loses_no_line_and_doubles_none(consortium, tmp_path, monkeypatch):
    monkeypatch.setattr(audit_trail, "_LONGEST", 20_000)
    a, path = identity(consortium, "a"), tmp_path / TRAIL
    truncate = audit_trail.LockedFile.truncate

    def crash(file, size):
        if size == 0 and file.size:
            raise OSError("killed")
        truncate(file, size)

    trail = AuditTrail(path, a)
    with monkeypatch.context() as patched:
        patched.setattr(audit_trail.LockedFile, "truncate", crash)
        with pytest.raises(OSError, match="killed"):
            deque(trail.decide("left", to="b", bytes=number) for number in range(10_000))
    trail._file.close()
    n_lines = trail.n_lines
    assert verify(path, a.trust, "a") == (1, n_lines, 0)
    again = AuditTrail(path, a)
    again.close()
    assert verify(path, a.trust, "a") == (1, n_lines + 2, 0)
    assert [entry["line"] for entry in read(path, a.trust, "a")] == list(range(1, n_lines + 3))


def test_what_other_threads_read_is_replaced_and_not_changed(consortium, clock):
    digest, items = said(consortium, clock, 1)
    book = Book(consortium.home("a"), identity(consortium, "a"), clock=clock)
    for item in items:
        book.add(item)
    state, studies = book.studies[digest], book.studies
    seen = (state.reports, state.calls, state.decisions)
    before = [dict(one) for one in seen]
    book.say(Report(digest, 2, "model", "", 1, "", clock.time()))
    book.say(Call(digest, 2, "", clock.time()))
    book.decide(digest, "stop", "", "test")
    book.say(Proposal(consortium.study("water").read_text(), clock.time()))
    assert [dict(one) for one in seen] == before
    assert len(studies) == 1


def approved(consortium, town, name="air", more=""):
    text = consortium.study(name, more=more).read_text()
    book = town.sites["a"].book
    book.say(Proposal(text, town.clock.time()))
    town.turn(10)
    for site in town.sites.values():
        site.book.decide(digest_of(text), "approve", "", "test")
    return digest_of(text)


def test_runs_that_have_ended_are_released_and_old_versions_removed(consortium, monkeypatch):
    for name in "abc":
        path = consortium.home(name) / "site.toml"
        path.write_text("keep_versions = 3\n" + path.read_text())
    town = Town(consortium, monkeypatch)
    digest = approved(consortium, town, more="every_hours = 1")
    town.turn(10)
    consortium.versions("a").choose(1, "somebody", "the first")
    for _ in range(8):
        town.turn(8)
        town.clock.jump(1.1 * HOUR)
    town.turn(4)
    site = town.sites["a"]
    assert site.book.studies[digest].number > 6
    assert site._runs == {}
    states = consortium.versions("a").states
    assert [one.number for one in states] == [1, *(one.number for one in states[-3:])]
    folders = sorted(int(path.name) for path in (consortium.versions("a").folder / "versions").iterdir())
    assert folders == [one.number for one in states]


def test_new_rows_are_counted_after_a_restart_and_not_in_the_main_loop(consortium, monkeypatch):
    town = Town(consortium, monkeypatch)
    digest = approved(consortium, town, more="new_rows = 5")
    town.turn(10)
    path = consortium.home("b") / "rows.parquet"
    table = pd.read_parquet(path)
    town.restart("b")
    pd.concat([table, table.head(12) + 0.01]).to_parquet(path)
    town.turn(2, seconds=20.0)
    counting = town.sites["b"]._row_counts._threads["rows"]
    counting.join(30)
    town.turn(5, seconds=20.0)
    assert town.sites["b"].book.studies[digest].number == 2
    assert town.sites["b"]._row_counts._threads["rows"] is counting, "an unchanged file is read again and again"


def test_a_study_that_breaks_the_program_does_not_stop_the_others(consortium, monkeypatch, caplog):
    town = Town(consortium, monkeypatch)
    bad = approved(consortium, town, "bad")
    site = town.sites["a"]
    begin = site._begin_if_due

    def breaks(state):
        if state.digest == bad:
            raise RuntimeError("dictionary changed size during iteration")
        begin(state)

    monkeypatch.setattr(site, "_begin_if_due", breaks)
    with caplog.at_level("WARNING", "dekrr"):
        approved(consortium, town, "good")
        town.turn(20)
    assert consortium.done(1, "good")()
    told = [record for record in caplog.records if "a waits: bad-" in record.getMessage()]
    assert len(told) == 1, "told once a minute"
    assert "RuntimeError: dictionary changed size" in told[0].getMessage()
    assert told[0].exc_info


def test_a_renewal_that_fails_is_tried_again(consortium, monkeypatch, caplog):
    town = Town(consortium, monkeypatch)
    site, tries = town.sites["b"], []

    def renew(new):
        tries.append(new)
        if len(tries) < 3:
            raise NetworkError("the address is in use")
        site._carrier.identity = new

    monkeypatch.setattr(site._carrier, "renew", renew)
    town.turn(5)
    path = consortium.home("b") / "certificate.pem"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with caplog.at_level("WARNING", "dekrr"):
        town.turn(5)
    assert not tries
    assert "the new certificate is not used" in caplog.text
    consortium.give_keys("b", consortium.hosts["b"], days=900)
    town.turn(20)
    assert len(tries) == 3
    assert site.book.identity is tries[-1]
    kinds = [entry["kind"] for entry in read(consortium.home("b") / TRAIL, site.book.identity.trust, "b")]
    assert kinds.count("certificate renewed") == 1


def test_a_store_says_what_is_wrong_with_it(tmp_path):
    store = Store(tmp_path)
    assert (tmp_path / STORE).stat().st_mode & 0o077 == 0
    store.write("PRAGMA user_version = 99")
    with pytest.raises(DataError, match="a newer one wrote it"):
        Store(tmp_path)
    store.close()
    (tmp_path / STORE).write_bytes(b"this is no store" * 1000)
    with pytest.raises(DataError, match=r"cannot be read: .*restore it"):
        Store(tmp_path)


def test_a_site_without_a_store_brings_its_files(consortium, clock):
    import msgspec

    digest, items = said(consortium, clock, 3)
    home = consortium.home("a")
    (home / "statements").mkdir()
    for item in items:
        (home / "statements" / f"{item.id}.json").write_bytes(msgspec.json.encode(item))
    place = home / "studies" / f"air-{digest[:8]}" / "versions" / "3"
    place.mkdir(parents=True)
    (place / "state.json").write_text('{"number": 3, "state": "done", "reason": "", "time": 5.0}')
    (place.parent / "4").mkdir()
    (place.parent / "4" / "state.json").write_bytes(b"damaged")
    (place / "model.safetensors").touch()
    (place.parent.parent / "current").symlink_to("versions/3")
    book = Book(home, identity(consortium, "a"), clock=clock)
    assert book.studies[digest].state == "approved"
    versions = consortium.versions("a")
    assert [(one.number, one.state) for one in versions.states] == [(3, "done")]
    assert versions.current == 3
    assert versions.unreported == []


def test_a_run_that_is_taken_up_late_does_not_replace_a_newer_model(consortium, monkeypatch):
    town = Town(consortium, monkeypatch)
    approved(consortium, town, more="every_hours = 1")
    for _ in range(3):
        town.turn(8)
        town.clock.jump(1.1 * HOUR)
    versions = consortium.versions("a")
    newest = versions.current
    assert newest >= 3
    place = versions.place(1)
    (place / "state.json").write_bytes(b"damaged")  # as older versions of dekrr had it
    versions.note(1, "running")
    town.turn(8)
    assert versions.get(1).state == "done"
    assert versions.current >= newest


def test_a_proposal_that_waits_for_a_person_is_logged_once_and_calls_the_hook(consortium, monkeypatch, caplog):
    home = consortium.home("b")
    path, told = home / "site.toml", home / "told"
    program = "import sys; open('told', 'a').write(str(sys.argv[1:]))"
    path.write_text(f"hook = {json.dumps([sys.executable, '-c', program])}\n" + path.read_text())
    town = Town(consortium, monkeypatch)
    with caplog.at_level("WARNING", "dekrr"):
        town.sites["a"].book.say(Proposal(consortium.study().read_text(), town.clock.time()))
        town.turn(40)
    lines = [record.getMessage() for record in caplog.records if "b: study air-" in record.getMessage()]
    assert len(lines) == 1
    assert "waits for a person here" in lines[0]
    wait_until(told.exists)
    label = town.sites["b"].status()["waits for a person"][0]
    wait_until(lambda: told.read_text() == str(["proposal", label]))
    town.sites["b"].book.decide(digest_of(consortium.study().read_text()), "approve", "", "test")
    town.turn(2)
    assert town.sites["b"].status()["waits for a person"] == []


def test_a_policy_that_was_tightened_withdraws_what_was_approved_and_says_why(consortium, monkeypatch):
    town = Town(consortium, monkeypatch)
    digest = approved(consortium, town, more="every_hours = 1")
    town.turn(20)
    assert town.sites["a"].book.studies[digest].state == "approved"
    (consortium.home("b") / "policy.toml").write_text("most_features = 3\n")
    town.turn(20)
    decision = town.sites["a"].book.studies[digest].decisions["b"]
    assert (decision.says, decision.by) == ("refuse", "policy")
    assert decision.reason.startswith("the policy has changed: most_features")
    number = town.sites["a"].book.studies[digest].number
    town.clock.jump(2 * HOUR)
    town.turn(20)
    assert town.sites["a"].book.studies[digest].number == number


def test_a_standing_site_has_metrics_and_tells_whether_it_lives_and_is_ready(consortium, monkeypatch):
    town = Town(consortium, monkeypatch)
    site = town.sites["a"]
    approved(consortium, town)
    town.turn(10)
    served = serve(0, site.status)
    try:
        assert httpx.get(f"{served.url}health").json()["lives"]
        answer = httpx.get(f"{served.url}ready")
        assert answer.status_code == 503
        assert answer.json()["why not ready"] == ["b is away", "c is away"]
        for neighbor in "bc":
            site._see(neighbor, True)
        assert httpx.get(f"{served.url}ready").status_code == 200
        text = httpx.get(f"{served.url}metrics").text
        label = site.book.studies.popitem()[1].label
        for line in (
            "dekrr_ready 1.0",
            'dekrr_neighbor_up{neighbor="b"} 1.0',
            'dekrr_studies{state="approved"} 1.0',
            f'dekrr_current_version{{study="{label}"}} 1.0',
            f'dekrr_last_run{{state="done",study="{label}"}} 1.0',
            f'dekrr_held_back{{study="{label}"}} 0.0',
        ):
            assert line in text, text
        monkeypatch.setattr(site, "_act", lambda: 1 / 0)
        town.turn(1)
        assert "division by zero" in httpx.get(f"{served.url}ready").text
        town.clock.jump(100)
        assert httpx.get(f"{served.url}health").status_code == 503
        assert httpx.get(f"{served.url}other").status_code == 404
    finally:
        served.close()


def test_a_neighbour_whose_certificate_was_revoked_is_not_up(consortium, monkeypatch):
    town = Town(consortium, monkeypatch)
    site, known = town.sites["a"], identity(consortium, "b").certificate
    town.wires["certificates"] = {"b": known}
    for neighbor in "bc":
        site._see(neighbor, True)
    town.turn(10)
    assert site.status()["neighbors"] == {"b": "up", "c": "up"}
    revoked = revocation_list(consortium.authority, [known], None).decode()
    town.sites["c"].book.say(Revocations(revoked, town.clock.time()))
    town.turn(10)
    assert site.status()["neighbors"] == {"b": "revoked", "c": "up"}
    assert site.health()["why not ready"] == ["b is revoked"]


def test_rows_that_were_replaced_after_an_approval_are_noticed(consortium, monkeypatch, caplog):
    town = Town(consortium, monkeypatch, JumpingClock())
    path = consortium.home("b") / "rows.parquet"
    text = consortium.study().read_text()
    town.sites["a"].book.say(Proposal(text, town.clock.time()))
    town.turn(10)
    for site in town.sites.values():
        site.book.decide(digest_of(text), "approve", "", "test")
    later = town.clock.time() + 1.0
    os.utime(path, (later, later))
    with caplog.at_level("WARNING", "dekrr"):
        town.turn(20)
    reason = "the rows of rows were written after the study was approved here"
    told = [record.getMessage() for record in caplog.records]
    assert [line[:5] for line in told if reason in line] == ["b: ru"]
    trails = {name: read(consortium.home(name) / TRAIL, identity(consortium, name).trust, name) for name in "abc"}
    kinds = {name: [entry["kind"] for entry in trail] for name, trail in trails.items()}
    assert {name: kinds[name].count("rows changed") for name in "abc"} == {"a": 0, "b": 1, "c": 0}
    assert consortium.versions("b").get(1).reason == reason
    assert consortium.versions("a").get(1).reason == ""


def test_half_open_connections_do_not_keep_a_watcher_from_the_health_of_a_site():
    served = serve(0, lambda: {"health": {"lives": True, "why not ready": []}})
    before, opened = threading.active_count(), []
    try:
        for _ in range(400):  # with 1,100 of 1,024 descriptors it was tried by hand
            opened.append(socket.create_connection(("127.0.0.1", int(served.url[:-1].rpartition(":")[2]))))
            opened[-1].sendall(b"GET /health HTTP/1.1\r\nHost: 127")
        wait_until(lambda: threading.active_count() <= before + 110)
        assert httpx.get(f"{served.url}health").json()["lives"]
    finally:
        for connection in opened:
            connection.close()
        served.close()


def test_a_standing_site_refuses_the_options_of_a_single_run(consortium):
    done = CliRunner().invoke(app, ["node", str(consortium.home("a") / "site.toml"), "--fresh", "--insecure"])
    assert done.exit_code
    assert "--insecure, --fresh: for a single run" in str(done.exception)


def test_the_files_of_a_site_are_written_by_a_command_and_its_policy_explains_the_defaults(consortium, tmp_path):
    words = ["site", "init", "clinic", "--out", str(tmp_path / "clinic"), "--listen", "127.0.0.1:7447"]
    words += ["--neighbor", "hospital=relay", "--neighbor", "ward=", "--relay", "r:1", "--source", "patients=p.csv"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.exception
    found = read_standing(tmp_path / "clinic" / "site.toml")
    assert (found.neighbors, found.sources) == ({"hospital": "relay", "ward": ""}, {"patients": "p.csv"})
    path = tmp_path / "clinic" / "policy.toml"
    assert read_policy(path) == Policy(sources={"patients": SourcePolicy()})
    path.write_text(re.sub(r"^# (\w+ = )", r"\1", path.read_text(), flags=re.M))
    assert read_policy(path) == Policy(sources={"patients": SourcePolicy()}), "every default is as it is explained"
    named = set(re.findall(r"^(\w+) =", path.read_text(), flags=re.M))
    known = {*Policy.__struct_fields__, *SourcePolicy.__struct_fields__}
    assert known - named == {"sources", "bounds"}
    (tmp_path / "authority.pem").write_bytes(consortium.authority.pem)
    signed = consortium.authority.sign(keys.read_request(tmp_path / "clinic" / "request.pem"))
    (tmp_path / "clinic" / "certificate.pem").write_bytes(signed)
    (tmp_path / "clinic" / "authority.pem").write_bytes(consortium.authority.pem)
    assert SiteIdentity.of(found, tmp_path / "clinic").site == "clinic"
    assert "already" in str(CliRunner().invoke(app, words).exception)
    other = [*words[:3], "--out", str(tmp_path / "other"), *words[7:], "--host", "h"]
    assert "neither this site nor ward" in str(CliRunner().invoke(app, other).exception)
    assert not (tmp_path / "other" / "site.toml").exists()


def test_json_lines_of_a_run_name_its_level_its_study_and_its_number(consortium, monkeypatch, caplog):
    town = Town(consortium, monkeypatch)
    with caplog.at_level("INFO", "dekrr"):
        approved(consortium, town)
        town.turn(20)
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    label = consortium.versions("a").folder.name
    begun = [line for line in lines if "begins run 1" in line["message"]]
    assert len(begun) == 3
    assert all((line["level"], line["study"], line["number"]) == ("INFO", label, 1) for line in begun)


def test_every_line_of_a_json_log_is_json_also_that_of_the_page(consortium, monkeypatch):
    logger, stream = logging.getLogger("dekrr"), io.StringIO()
    for name in ("handlers", "propagate"):
        monkeypatch.setattr(logger, name, getattr(logger, name))
    level = logger.level
    try:
        log_to(stream, as_json=True)
        home = consortium.home("a")
        taking_part._show(dict, read_standing(home / "site.toml"), home, (None, 0))
    finally:
        logger.setLevel(level)
    (line,) = map(json.loads, stream.getvalue().splitlines())
    assert line["message"].startswith("the page of a: http://127.0.0.1:")
    assert line["level"] == "INFO"


def test_systemd_is_told_that_a_site_lives(consortium, monkeypatch, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
        way.bind(str(tmp_path / "s"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "s"))
        town = Town(consortium, monkeypatch)
        town.turn(1)
        way.settimeout(10)
        assert way.recv(100) == b"READY=1\nWATCHDOG=1"


_ARENA_MAX = -8  # of mallopt


def memory():
    """Return the megabytes of this process."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def statements_of_turns(site, town):
    """Return how many statements of SQL a site needs for ten turns in which nothing happens."""
    counted = []
    site._store._connection.set_trace_callback(counted.append)
    town.turn(10)
    site._store._connection.set_trace_callback(None)
    return len(counted)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("days", [12, pytest.param(365, marks=[pytest.mark.slow, pytest.mark.timeout(3000)])])
def test_a_year(consortium, monkeypatch, days):
    """20 studies, a run an hour, restarts, upgrades, renewals, studies that end and new ones: only the trail grows."""
    ctypes.CDLL(None).mallopt(_ARENA_MAX, 2)  # as the units of `packaging` have it
    monkeypatch.setattr(store_module, "_SYNCHRONOUS", "OFF")
    monkeypatch.setattr(LockedFile, "synchronise", lambda file: None)
    for module in (disk, versions_module):
        monkeypatch.setattr(module, "synchronise", lambda path: None)
    for name in "abc":
        path = consortium.home(name) / "site.toml"
        path.write_text("keep_versions = 2\n" + path.read_text())
        (consortium.home(name) / "policy.toml").write_text('approval = "policy"\n')
    monkeypatch.setattr(standing, "_STATE_EVERY", DAY)
    if days < 100:
        monkeypatch.setattr(book_module, "LAST", 3)
    versions = list(store_module._VERSIONS)
    monkeypatch.setattr(store_module, "_VERSIONS", versions)
    town = Town(consortium, monkeypatch)
    town.meetings.n_frames = 75  # to each of two neighbours, as in a run with default settings

    def propose(name):
        text = consortium.study(name, more="every_hours = 20").read_text()
        town.sites["a"].book.say(Proposal(text, town.clock.time()))
        return digest_of(text)

    digests = [propose(f"study{number}") for number in range(5 if days < 100 else 20)]
    seen = []
    steps = round(days * DAY / (20 * HOUR))
    for step in range(steps):
        town.turn(8, seconds=6.0)
        town.clock.jump(20 * HOUR)
        if step % max(steps // 12, 1) == 0:
            versions.append(f"CREATE TABLE upgrade{step} (number INTEGER)")  # one site after the other has it
            town.restart("abc"[len(versions) % 3])
            consortium.give_keys("b", consortium.hosts["b"], days=1000 + step)
            town.sites["c"].book.decide(digests.pop(0), "stop", "enough", "test")
            digests.append(propose(f"new{step}"))
            town.turn(6, seconds=6.0)
            books = [len(site.book.ids) for site in town.sites.values()]
            size = Store(consortium.home("a")).rows(SIZE)
            seen.append((memory(), max(books), size[0][0], statements_of_turns(town.sites["a"], town)))
            print(step, seen[-1], folder_size(consortium.home("a")), flush=True)  # shown if it fails
    assert sum(town.meetings.met.values()) > 2.7 * len(digests) * steps, "fewer than nearly one run an hour and site"
    last = seen[-1]
    assert max(used for used, *_ in seen[1:]) < seen[1][0] + 20, "three sites, once each study has all runs it keeps"
    most = (4 + 6 * book_module.LAST) * len(digests) + 10 * len(seen)  # each of three sites calls and reports
    assert last[1] <= most, "statements of each study that runs, and a few of each that has ended"
    assert last[2] < 5000 * most
    assert {site._store._version for site in town.sites.values()} == set(range(len(versions) - 2, len(versions) + 1))
    turns = [quiet[3] for quiet in seen]  # a run that begins in between needs some hundred more
    assert min(turns[-4:]) < 1.3 * min(turns[1:5]) + 50, "once each study has all runs it keeps"
    assert folder_size(consortium.home("a"), "studies") < 3e6
    assert folder_size(consortium.home("a")) < 200e6 * days / 365 + 20e6
    first, end, _ = verify(consortium.home("a") / TRAIL, town.sites["a"].book.identity.trust, "a")
    assert (first, end) == (1, town.sites["a"].trail.n_lines)
    town.turn(8, seconds=6.0)
    for site in town.sites.values():
        site.book.compact()
    assert {site.book.ids for site in town.sites.values()} == {town.sites["a"].book.ids}


def folder_size(folder, under="."):
    return sum(path.lstat().st_size for path in (folder / under).rglob("*"))


def test_a_file_that_is_closed_while_threads_use_it_is_an_error_at_most(tmp_path):
    """SQLite crashes the process where one thread closes a connection that another one is using."""
    for _ in range(20):
        store, met = Store(tmp_path), []

        def write(store=store, met=met):
            try:
                for number in range(10**6):
                    store.write("INSERT OR REPLACE INTO use (id, number) VALUES ('a', ?)", number)
            except OSError as error:
                met.append(str(error))

        threads = [threading.Thread(target=write) for _ in range(3)]
        for thread in threads:
            thread.start()
        store.close()
        for thread in threads:
            thread.join(30)
        assert len(met) == 3
        assert all("closed" in text for text in met)


def test_a_site_comes_back_from_a_backup_and_with_a_new_key(consortium, monkeypatch, tmp_path):
    """As the page on studies says: the neighbours pass on what was said since, by this site, too."""
    town = Town(consortium, monkeypatch)
    approved(consortium, town)
    town.turn(10)
    home, (digest,) = consortium.home("b"), town.sites["b"].book.studies
    copy = sqlite3.connect(tmp_path / "copy.sqlite")
    there = sqlite3.connect(home / STORE)
    there.backup(copy)
    there.close()
    copy.close()
    town.sites["b"].book.decide(digest, "stop", "after the backup", "test")
    town.turn(10)
    said = town.sites["a"].book.ids
    town.sites["b"].trail.close()
    town.sites["b"]._store.close()
    for path in home.glob(f"{STORE}*"):
        path.unlink()
    shutil.copy(tmp_path / "copy.sqlite", home / STORE)
    for name in (keys.KEY, keys.REQUEST, keys.CERTIFICATE):
        (home / name).unlink()
    consortium.give_keys("b", consortium.hosts["b"], days=1000)
    town.start("b")
    assert said - town.sites["b"].book.ids
    town.turn(10)
    assert town.sites["b"].book.ids == said
    assert town.sites["b"].book.studies[digest].state == "stopped by b"
    town.sites["b"].book.decide(digest, "refuse", "with the new key", "test")
    town.turn(10)
    assert town.sites["c"].book.studies[digest].state == "refused by b"
    verify(home / TRAIL, town.sites["b"].book.identity.trust, "b")
