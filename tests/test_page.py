"""The page of a node and of a trial network, and that of the service: in a real browser, and over plain HTTP."""

import http.client
import json
import logging
import re
import subprocess
import sys
import time

import httpx
import msgspec
import numpy as np
import pytest

from browsers import STICKING_OUT, WIDTHS, is_bright, launched, new_tab
from consortium import Consortium, wait_until
from dekrr.errors import NetworkError
from dekrr.mesh.files import digest_of, read_site, read_standing
from dekrr.mesh.identity import SiteIdentity
from dekrr.mesh.page import Page, SiteView
from dekrr.mesh.record import RECORD, Finished, Log, Record, logger
from dekrr.mesh.session.events import Exchanged, Gone, Refused
from dekrr.mesh.status import NeighborStatus, Status, of_one_run
from dekrr.mesh.studies.book import Book
from dekrr.mesh.studies.items import Proposal
from dekrr.serving.current import CurrentModel
from dekrr.serving.guards import Limits, new_token
from meshes import Mesh, free_ports
from test_serving import make_model, running

YEAR = 365 * 86400
STUDIES = [
    {
        "name": "air-quality",
        "proposer": "station-01",
        "state": "approved",
        "waits for": [],
        "versions": [
            {
                "number": 3,
                "time": 1.8e9,
                "validation error": None,
                "current": False,
                "state": "failed",
                "reason": "cut off",
            },
            {"number": 2, "time": 1.79e9, "validation error": 0.01234, "current": True, "state": "done", "reason": ""},
            {"number": 1, "time": 1.78e9, "validation error": 0.0145, "current": False, "state": "done", "reason": ""},
        ],
    },
    {
        "name": "ozone",
        "proposer": "station-02",
        "state": "waits for station-00",
        "waits for": ["station-00"],
        "versions": [],
    },
]


def status_of(site, neighbors, **changes):
    around = {name: {"state": "up", "waited for": False, "bytes sent": 12_345 * k} for k, name in enumerate(neighbors)}
    return {
        "run": "air-2026",
        "site": site,
        "phase": "training",
        "gone": [],
        "lost": [],
        "exchange": 40,
        "round": 35,
        "residual": 3.2e-5,
        "seconds waiting": 1.5,
        "message bytes sent": 1_234_567,
        "wire bytes sent": 1_400_000,
        "neighbors": around,
        **changes,
    }


def state_of(site, neighbors, *, now, certificate=YEAR, **changes):
    """Return the state of a site as `SiteView.sites` gives it."""
    curve = [[round_, 10 ** (-0.12 * round_)] for round_ in range(1, 36)]
    events = [
        {"time": now - 60, "event": "started", "text": "rows 4210"},
        {"time": now - 50, "event": "refused", "text": "sender <img src=x onerror=alert(1)>; reason no certificate"},
    ]
    run = {"run": "air-2025", "rounds": 61, "settled": True, "sites": 8, "rows of all sites": 32_000}
    return {
        "site": site,
        "run": "air-2026",
        "neighbors": neighbors,
        "status": status_of(site, neighbors),
        "curves": [curve],
        "events": events,
        "runs": [{**run, "time": now - 1e6, "held-out error": 0.0123, "held-out": 0.0123}],
        "ending": None,
        "certificate": now + certificate,
        **changes,
    }


def network_states(n_sites=8):
    """Return the states of a ring of sites: one has failed, one waits, one's certificate ends soon."""
    now = time.time()
    names = [f"station-{k:02d}" for k in range(n_sites)]
    around = {name: [names[k - 1], names[(k + 1) % n_sites]] for k, name in enumerate(names)}
    states = [state_of(name, around[name], now=now) for name in names]
    states[2]["status"] = None
    states[2]["ending"] = {"code": 3, "reason": "station-07 did not show up within 600 seconds"}
    waiting = states[3]["status"]["neighbors"]
    waiting[names[2]] |= {"state": "away", "waited for": True}
    states[5]["certificate"] = now + 9.5 * 86400
    states[6]["certificate"] = now - 86400
    return states


@pytest.fixture(scope="module")
def browser():
    yield from launched()


@pytest.fixture
def network_page():
    page = Page(0, "network air-2026", network_states, lambda: STUDIES)
    yield page
    page.close()


@pytest.fixture
def node_page():
    neighbors = ["station-01", "station-02", "station-03", "station-04"]
    page = Page(0, "station-00", lambda: [state_of("station-00", neighbors, now=time.time())])
    yield page
    page.close()


def look_at(browser, url, width, **options):
    """Return a tab that shows a page which loads nothing from elsewhere, and whose parts all fit."""
    tab, complaints, requests = new_tab(browser, width, **options)
    tab.goto(url)
    tab.get_by_text("Live").wait_for(timeout=30_000)
    assert [asked for asked in requests if not asked.startswith((url, "data:"))] == []
    assert complaints == []
    assert tab.evaluate(STICKING_OUT) == []
    return tab


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_of_a_network(network_page, browser, width, scheme):
    tab = look_at(browser, network_page.url, width, color_scheme=scheme)
    assert is_bright(tab) == (scheme == "light")
    assert tab.get_by_role("heading", name="network air-2026").is_visible()
    sites = tab.locator("#sites tbody tr")
    assert sites.count() == 8
    assert "exit 3" in sites.nth(2).inner_text()
    assert "station-07 did not show up" in sites.nth(2).inner_text()
    assert "station-02" in sites.nth(3).locator("[data-label='waits for']").inner_text()
    assert "in 9 days" in sites.nth(5).inner_text()
    assert "ended" in sites.nth(6).inner_text()
    assert tab.locator("#graph circle").count() == 8
    assert tab.locator("#graph line").count() == 8
    assert tab.locator("#graph line.away").count() == 1
    assert tab.locator("#curve polyline").count() == 8
    assert "station-00" in tab.locator("#approval tbody").inner_text()
    assert tab.locator("#studies").get_by_text("current").is_visible()
    assert "0.0123" in tab.locator("#studies").inner_text()
    assert "failed cut off" in tab.locator("#studies").inner_text()
    assert "air-2025" in tab.locator("#runs").inner_text()
    assert "0.0123" in tab.locator("#runs").inner_text()
    assert tab.get_by_text("<img src=x").first.is_visible()
    tab.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_of_a_node(node_page, browser, width):
    tab = look_at(browser, node_page.url, width)
    assert "4 of 4" in tab.locator("#facts").inner_text()
    assert tab.locator("#traffic details[open]").count() == 1
    assert "12.3 kB" in tab.locator("#traffic").inner_text()
    assert not tab.locator("#approval").is_visible()
    assert not tab.locator("#studies").is_visible()
    tab.close()


def test_the_page_of_a_node_that_was_started_again_and_is_alone(browser):
    """Frames are counted from the last start, messages from the start of the run; and nobody is there to run with."""
    state = state_of("a", ["b", "c"], now=time.time())
    status = status_of("a", ["b", "c"], phase="running", **{"message bytes sent": 162_000, "wire bytes sent": 9_900})
    for about in status["neighbors"].values():
        about["state"] = "away"
    run = {**state["runs"][0], "held-out": "RSE 0.1235 on 120 rows"}
    page = Page(0, "a", lambda: [{**state, "status": status, "runs": [run]}])
    try:
        tab = look_at(browser, page.url, next(iter(WIDTHS)))
        told = tab.locator("#facts").inner_text()
        assert "162 kB" in told
        assert "of it messages" not in told
        assert "waiting, no neighbour is up" in told
        assert "waiting, no neighbour is up" in tab.locator("#sites tbody").inner_text()
        assert "RSE 0.1235 on 120 rows" in tab.locator("#runs").inner_text()
        tab.close()
    finally:
        page.close()


def standing_status(n_runs):
    """Return the status of a standing site, as `StandingSite.status`."""
    digest = "0123456789abcdef" + "0" * 48
    versions = [
        {"number": 1, "state": "done", "reason": "", "time": 1.79e9},
        {"number": 2, "state": "running", "reason": "", "time": 1.8e9},
        {"number": 3, "state": "failed", "reason": "this run separates 3 rows", "time": 1.8e9},
    ]
    run = status_of("a", ["b", "c"], run="0123456789abcdef-2")
    runs = [run, {**run, "run": "ffff-1", "round": 3, "residual": None}][:n_runs]
    return {
        "site": "a",
        "run": "",
        "time": time.time(),
        "neighbors": {"b": "up", "c": "away"},
        "certificate days left": 12.3,
        "studies": [
            {"study": "air-01234567", "digest": digest, "proposer": "b", "state": "approved", "here": "approve",
             "why": "run 3 has failed at a: this run separates 3 rows",
             "sites": ["a", "b", "c"], "versions": versions, "current": 1},
            {"study": "ozone-89abcdef", "digest": "8" * 64, "proposer": "c", "state": "waits for a, b", "here": "",
             "why": "b (policy): masks",
             "sites": ["a", "b", "c"], "versions": [], "current": None},
        ],
        "runs": runs,
        "audit lines": 7,
    }  # fmt: skip


@pytest.mark.parametrize("n_runs", [0, 1, 2])
def test_the_page_of_a_standing_site(tmp_path, browser, n_runs):
    for number, line in ((1, '{"time":1,"event":"finished","run":"x","rounds":9,"held-out error":0.125}'), (2, CURVE)):
        place = tmp_path / "studies" / "air-01234567" / "versions" / str(number)
        place.mkdir(parents=True)
        (place / "run.jsonl").write_text(f"{line}\n")
    view = SiteView(lambda: standing_status(n_runs), tmp_path)
    logging.getLogger("dekrr.test").addHandler(view)
    logging.getLogger("dekrr.test").warning("a refused something of c")
    page = Page(0, "a", view.sites, view.studies)
    try:
        tab = look_at(browser, page.url, "desktop" if n_runs else "phone")
        assert "1 of 2" in tab.locator("#facts").inner_text()
        phase = {0: "standing", 1: "training", 2: "2 runs"}[n_runs]
        assert phase in tab.locator("#facts").inner_text()
        assert tab.locator("#under-way").is_visible() == (n_runs > 0)
        assert tab.locator("#under-way tbody tr").count() == n_runs
        assert tab.locator("#curve polyline").count() == min(n_runs, 1)
        if n_runs:
            assert "air-01234567, run 2" in tab.locator("#under-way").inner_text()
            points = tab.locator("#curve polyline").first.get_attribute("points").split()
            assert len(points) == 4
        assert "a, b" in tab.locator("#approval").inner_text()
        assert "0.125" in tab.locator("#studies").inner_text()
        assert tab.locator("#studies").inner_text().count("this run separates 3 rows") == 1
        assert "b (policy): masks" in tab.locator("#studies").inner_text()
        assert "in 12 days" in tab.locator("#sites").inner_text()
        assert tab.get_by_text("a refused something of c").is_visible()
        tab.close()
    finally:
        page.close()
        logging.getLogger("dekrr.test").removeHandler(view)


CURVE = "\n".join(
    json.dumps({"time": k, "event": "exchange", "exchange": k, "round": k, "residual": residual}, separators=(",", ":"))
    for k, residual in enumerate([None, 0.5, 0.25, 0.125])
)


def test_the_keyboard_opens_what_stays_open(network_page, browser):
    tab = look_at(browser, network_page.url, "desktop")
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.tagName") == "SUMMARY"
    outline = tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    tab.keyboard.press("Enter")
    first = tab.locator("#traffic details").first
    assert first.get_attribute("open") is not None
    with tab.expect_response("**/state.json"):
        pass
    with tab.expect_response("**/state.json"):
        pass
    assert first.get_attribute("open") is not None
    assert tab.evaluate("document.activeElement.tagName") == "SUMMARY"
    for _ in range(8):
        tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "box scroll"
    tab.close()


def test_the_page_follows_and_says_when_nobody_answers(browser):
    states = [state_of("a", ["b"], now=time.time())]
    page = Page(0, "a", lambda: states)
    tab = look_at(browser, page.url, "phone")
    states[0]["status"] = status_of("a", ["b"], round=77, phase="finished")
    tab.locator("#facts").get_by_text("77").wait_for(timeout=30_000)
    tab.locator("#facts").get_by_text("finished").wait_for(timeout=30_000)
    page.close()
    tab.get_by_text("No answer since").wait_for(timeout=60_000)
    assert tab.locator("#facts").get_by_text("77").is_visible()
    tab.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_of_the_service(tmp_path, browser, width):
    make_model().save(tmp_path / "m.safetensors")
    new = {"tokens": tmp_path / "tokens"}
    token = new_token(new["tokens"], "anna")
    with running(tmp_path / "m.safetensors", Limits(), **new) as port:
        tab, _, requests = new_tab(browser, width)
        url = f"http://127.0.0.1:{port}/"
        tab.goto(url)
        tab.get_by_label("This service needs a token").fill("wrong")
        tab.keyboard.press("Enter")
        tab.get_by_text("the token is not known here").wait_for(timeout=30_000)
        tab.get_by_label("This service needs a token").fill(token)
        tab.keyboard.press("Enter")
        tab.get_by_role("heading", name="Predictions of here").wait_for(timeout=30_000)
        assert tab.evaluate(STICKING_OUT) == []
        assert "wi,dth" in tab.locator("#columns").inner_text()
        tab.get_by_role("button", name="Predict").press("Enter")
        tab.locator("#answer.good").wait_for(timeout=30_000)
        rows = json.loads(tab.get_by_label("Rows").input_value())["rows"]
        wanted = make_model().predict(np.array([list(rows[0].values())]))
        found = json.loads(tab.locator("#answer").inner_text())["predictions"]
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
        tab.get_by_label("Format").select_option("text/csv")
        tab.get_by_role("button", name="Predict").click()
        tab.locator("#answer").get_by_text("prediction").wait_for(timeout=30_000)
        tab.get_by_label("Rows").fill("length\n1\n")
        tab.get_by_role("button", name="Predict").click()
        tab.locator("#answer.bad").wait_for(timeout=30_000)
        assert "lacks the column 'wi,dth'" in tab.locator("#answer").inner_text()
        assert tab.evaluate(STICKING_OUT) == []
        assert [asked for asked in requests if not asked.startswith((url, "data:"))] == []
        tab.close()


def test_the_page_answers_this_machine_alone(node_page):
    host = node_page.url.removeprefix("http://").rstrip("/")
    for named, status in ((host, 200), ("localhost", 200), ("evil.example", 421), ("127.0.0.1.evil.example", 421)):
        connection = http.client.HTTPConnection(host)
        connection.request("GET", "/state.json", headers={"Host": named})
        assert connection.getresponse().status == status
        connection.close()
    assert httpx.get(f"{node_page.url}secret").status_code == 404
    assert httpx.post(node_page.url).status_code == 501
    assert "script-src 'sha256-" in httpx.get(node_page.url).headers["content-security-policy"]
    with pytest.raises(NetworkError, match="cannot be served"):
        Page(int(host.partition(":")[2]), "other", list)


def test_what_a_view_collects(tmp_path):
    mesh = Mesh(tmp_path, 3)
    home = mesh.home("s00")
    config, runs = read_site(home / "site.toml"), []
    view = SiteView(lambda: of_one_run(config, home, runs[0] if runs else None), home)
    record, log = Record(home / RECORD), Log("s00")
    logger.addHandler(view)
    (state,) = view.sites()
    assert state["status"] is None
    assert 364 < (state["certificate"] - time.time()) / 86400 < 366
    about = {"s01": NeighborStatus(state="up", waited_for=True, bytes_sent=5)}
    status = Status(
        run="test", site="s00", phase="training", gone=["s02"], lost=[], exchange=9, round=3, residual=None,
        seconds_waiting=0.5, message_bytes_sent=5, wire_bytes_sent=9, neighbors=about,
    )  # fmt: skip
    runs.append(msgspec.to_builtins(status))
    for round_ in range(2000):
        record(Exchanged(exchange=round_ + 5, round=round_, residual=None if round_ < 3 else 2.0**-round_))
    for listener in (record, log):
        listener(Refused(sender="x", reason="no certificate"))
        listener(Gone(sites=["s02"], links=[], reason="silent", exchange=8))
    (state,) = view.sites()
    (curve,) = state["curves"]
    assert 300 < len(curve) <= 800
    assert curve[0][0] == 3
    assert curve[-1][0] > 900  # the residuals after it are 0
    assert [event["event"] for event in state["events"]] == ["refused", "gone"]
    assert (
        state["events"][1]["text"] == "sites s02; links ; reason silent; exchange 8"
        or "s02" in state["events"][1]["text"]
    )
    assert state["status"]["neighbors"]["s01"] == {"state": "up", "waited for": True, "bytes sent": 5}
    finished = Finished(
        **{name: getattr(status, name) for name in status.__struct_fields__}, rounds=7, settled=True,
        relative_residual=1e-9, objective_share=0.1, sites=2, rows_of_all_sites=120, held_out_error=0.25,
    )  # fmt: skip
    record(finished)
    view.end(0, "")
    logger.removeHandler(view)
    (run,) = view.sites()[0]["runs"]
    assert (run["run"], run["rounds"], run["held-out error"]) == ("test", 7, 0.25)


def test_a_study_on_the_page_and_behind_the_service(tmp_path):
    """Two standing sites: the page shows what waits for approval, then the version; the service follows `current`."""
    two = Consortium(tmp_path, ["a", "b"])
    path = two.home("a") / "site.toml"
    (port,) = free_ports(1)
    path.write_text(f"{path.read_text()}\n[page]\nport = {port}\n")
    text = two.study().read_text()
    Book(two.home("b"), identity(two, "b")).say(Proposal(text=text, time=time.time()))
    digest = digest_of(text)
    Book(two.home("b"), identity(two, "b")).decide(digest, "approve", "", "person")
    process = two.process("a")
    other = two.process("b")
    try:
        log = two.home("a") / "log"
        wait_until(lambda: log.exists() and "the page of a: http" in log.read_text())
        url = f"{re.search(r'the page of a: (.*)', log.read_text())[1]}state.json"
        assert url == f"http://127.0.0.1:{port}/state.json"
        following(url, lambda state: [study for study in state["studies"] if study["waits for"] == ["a"]])
        Book(two.home("a"), identity(two, "a")).decide(digest, "approve", "", "person")
        state = following(url, lambda state: [v for v in state["studies"][0]["versions"] if v["state"] == "done"])
        assert state["studies"][0]["state"] == "approved"
        assert [v["current"] for v in state["studies"][0]["versions"]] == [True]
        assert state["sites"][0]["status"]["neighbors"]["b"]["state"] == "up"
        served = CurrentModel(two.versions("a").folder, 10)
        np.testing.assert_array_equal(served.version.model.coefficients, two.model("a").coefficients)
        again = two.versions("a").folder / "versions" / "2"
        again.mkdir()
        make_model().save(again / "model.safetensors")
        two.versions("a").use(2)
        assert served.refresh()
        assert served.version.path.parent.name == "2"
    finally:
        for one in (process, other):
            one.terminate()
        for one in (process, other):
            one.wait(60)


def identity(consortium, name):
    return SiteIdentity.of(read_standing(consortium.home(name) / "site.toml"), consortium.home(name))


def following(url, wanted, seconds=100):
    """Return the first state for which something is found."""
    until = time.monotonic() + seconds
    while True:
        state = httpx.get(url).json()
        if wanted(state):
            return state
        assert time.monotonic() < until, state
        time.sleep(0.2)


def test_a_node_and_a_network_serve_their_pages(tmp_path):
    """`dekrr up` prints its page's address; a node has one where its file says so; both tell of the run."""
    mesh = Mesh(tmp_path, 3)
    (port,) = free_ports(1)
    path = mesh.home("s00") / "site.toml"
    path.write_text(f"{path.read_text()}\n[page]\nport = {port}\n")
    command = [sys.executable, "-c", "from dekrr.cli import main; main()", "up", str(tmp_path / "network.toml")]
    process = subprocess.Popen(
        [*command, "--folder", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    seen, of_node = [], []
    try:
        url = process.stdout.readline().split()[-1]
        while process.poll() is None:
            try:
                seen.append(httpx.get(f"{url}state.json").json())
                of_node.append(httpx.get(f"http://127.0.0.1:{port}/state.json").json())
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        assert process.wait(60) == 0, process.stdout.read()
    finally:
        process.kill()
    assert [site["site"] for site in seen[-1]["sites"]] == ["s00", "s01", "s02"]
    assert seen[-1]["title"] == "network test"
    events = {event["event"] for state in seen for site in state["sites"] for event in site["events"]}
    assert {"started", "agreed"} <= events
    assert [len(state["sites"]) for state in of_node][-1] == 1
    assert of_node[-1]["sites"][0]["status"]["site"] == "s00"
    mistaken = path.read_text().replace(f"port = {port}", "port = 99999")
    path.write_text(mistaken)
    with pytest.raises(Exception, match=r"page\.port"):
        read_site(path)
