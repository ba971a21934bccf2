"""Standing sites: studies, policies, statements, sealed frames and the audit trail."""

import errno
import json
import logging
import time
from typing import get_args

import msgspec
import numpy as np
import pandas as pd
import pytest
from cryptography import x509
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from consortium import ALONE, WARN, Consortium, Standing, wait_until
from dekrr import load
from dekrr.cli.app import app
from dekrr.disk import LockedFile
from dekrr.errors import DataError, KeysError, SettingsError
from dekrr.mesh.audit_trail import TRAIL, AuditTrail, read, verify
from dekrr.mesh.files import digest_of, parse_study, read_standing, to_toml
from dekrr.mesh.identity import REVOKED, SiteIdentity, revocation_list
from dekrr.mesh.node import SECRET, kept_secret
from dekrr.mesh.page import SiteView
from dekrr.mesh.policy import Policy, SourcePolicy, read_policy, refusals, refusals_of_run
from dekrr.mesh.procedure import procedure_of
from dekrr.mesh.reveals import REVEALS, describe
from dekrr.mesh.sealing import DataSeal, Seal
from dekrr.mesh.site_rows import row_hash
from dekrr.mesh.store import Store
from dekrr.mesh.studies.book import Book
from dekrr.mesh.studies.describe import describe_rows
from dekrr.mesh.studies.gossip import Gossip
from dekrr.mesh.studies.items import Decision, Item, Proposal, Revocations, sign
from dekrr.mesh.studies.model_gate import Figures, figures, why_held_back
from dekrr.mesh.studies.preview import preview
from dekrr.mesh.studies.versions import Versions
from dekrr.messages import AnyMessage, Degree, encode
from dekrr.model import members_of
from dekrr.networks.local import LocalNetwork
from dekrr.privacy.admission import kept
from dekrr.protocols.site import Site
from dekrr.serving.current import find_model
from dekrr.tables.rows import ArrayRows
from soak_studies import Play


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    return Consortium(tmp_path_factory.mktemp("three"), ["a", "b", "c"])


@pytest.fixture
def consortium(tmp_path, three):
    """A fresh copy of three sites with their keys."""
    return three.copied_to(tmp_path / "sites")


def identity(consortium, name):
    return SiteIdentity.of(read_standing(consortium.home(name) / "site.toml"), consortium.home(name))


def book(consortium, name):
    return Book(consortium.home(name), identity(consortium, name))


def propose(consortium, *, by="a", **options):
    text = consortium.study(**options).read_text()
    book(consortium, by).say(Proposal(text=text, time=time.time()))
    return digest_of(text)


def approve(consortium, digest, names=None):
    for name in names or consortium.names:
        book(consortium, name).decide(digest, "approve", "", "test")


def expected(consortium, study, names, maps=None):
    """The models of the same study on the local network, with given features or those that it chooses."""
    graph = {n: sorted({b if a == n else a for a, b in consortium.edges if n in (a, b)} & set(names)) for n in names}
    procedures = {}
    for name in names:
        config = study.site_file("x", name, dict.fromkeys(graph[name], ""), "")
        features = config.features()
        table = pd.read_parquet(consortium.home(name) / "rows.parquet")
        rows = ArrayRows(table[["u", "v"]].to_numpy(), table["y"].to_numpy())
        (rule,) = (consortium.home(name) / "kept" / "rows").glob("admission-*")  # of the first run, for all runs
        hash_of = row_hash(kept_secret(consortium.home(name) / "kept" / "rows" / SECRET), config.data.columns)
        chosen = {"feature_map": (maps or {}).get(name), "admission": kept(rule, None, 2), "hash_of": hash_of}
        site = Site(name, tuple(graph[name]), rows, seed=features.seed, **chosen)
        procedures[name] = procedure_of(config, site)
    return LocalNetwork(graph).run(procedures)


def check_models(consortium, name="air", names=None):
    study = parse_study((consortium.folder / f"{name}.toml").read_text())
    for site, outcome in expected(consortium, study, names or consortium.names).items():
        model = consortium.model(site, name)
        np.testing.assert_allclose(model.coefficients, outcome.coefficients, rtol=0, atol=1e-9)
        members = members_of(outcome, "neighborhood")
        for own, other in zip(model.members, members, strict=True):
            np.testing.assert_allclose(own.coefficients, other.coefficients, rtol=0, atol=1e-9)


def test_a_study_from_proposal_to_retraining_and_back(consortium):
    digest = propose(consortium, parts="shared = 10\n")
    with Standing(consortium) as sites:
        wait_until(lambda: all(digest in site.book.studies for site in sites.values()))
        approve(consortium, digest, ["a", "b"])
        wait_until(lambda: sites["c"].book.studies[digest].state == "waits for c")
        time.sleep(1.0)
        for name in consortium.names:
            assert not (consortium.home(name) / "studies").exists(), "a run began before all had approved"
            assert not (consortium.home(name) / "kept").exists()
        approve(consortium, digest, ["c"])
        wait_until(consortium.done(1))
        check_models(consortium)
        first = consortium.model("a").coefficients
        for name in consortium.names:
            path = consortium.home(name) / "rows.parquet"
            table = pd.read_parquet(path)
            pd.concat([table, table.sample(60, random_state=1) * 0.9]).to_parquet(path)
        assert "calls for run 2" in consortium.command("b", "run", "air")
        wait_until(consortium.done(2))
        check_models(consortium)
        assert np.abs(consortium.model("a").coefficients - first).max() > 1e-6
        wait_until(lambda: len(sites["c"].book.studies[digest].reports) == 6)
    assert "current is version 1" in consortium.command("a", "use", "air", "1")
    np.testing.assert_array_equal(consortium.model("a").coefficients, first)
    assert (
        find_model(consortium.versions("a").folder) == consortium.versions("a").place(1).resolve() / "model.safetensors"
    )
    assert "1 done, 2 done" in consortium.command("a", "list")
    assert "there are 1, 2" in consortium.command("a", "use", "air", "3", code=1)
    for name in consortium.names:
        assert "is whole" in consortium.command(name, "audit", "verify")
        trail = list(read(consortium.home(name) / TRAIL, identity(consortium, name).trust, name))
        left = [entry for entry in trail if entry["kind"] == "left"]
        assert {entry["to"] for entry in left} == set(consortium.names) - {name}
        assert {"Masked", "MaskedRound", "hello", "statements"} <= {entry["message"] for entry in left}
        assert {entry["message"] for entry in left} <= set(REVEALS)
        record = consortium.versions(name).place(2) / "run.jsonl"
        finished = next(json.loads(line) for line in record.read_text().splitlines() if '"finished"' in line)
        run = sum(e["bytes"] for e in left if e["run"].endswith("-2") and e["message"] not in ("hello", "nothing"))
        assert run >= finished["message bytes sent"]
    with Standing(consortium, ["a"]):  # what was decided while no process ran is in the trail when one runs
        wait_until(lambda: "version used" in (consortium.home("a") / TRAIL).read_text())
        consortium.command("a", "use", "air", "2", "--reason", "it was right")
        wait_until(lambda: "it was right" in (consortium.home("a") / TRAIL).read_text())
    trail = list(read(consortium.home("a") / TRAIL, identity(consortium, "a").trust, "a"))
    assert [entry["run"] for entry in trail if entry["kind"] == "version used"] == [1, 2]
    page = consortium.folder / "page.html"
    consortium.command("a", "audit", "report", "--out", page)
    assert "version used" in page.read_text()
    proposal = next(line for line in page.read_text().split("<tr>") if "<td>proposal</td>" in line)
    assert f"study air, digest {digest}, about nothing, sites a b c, source rows, columns u v, target y" in proposal
    consortium.command("c", "audit", "report", "--out", page)
    assert "What left this site" in page.read_text()


@pytest.mark.parametrize("parts", [ALONE, 'shared = 10\ncolumn_scales = "none"\n'], ids=["agreed part", "all parts"])
def test_a_warm_start_keeps_features_and_takes_fewer_rounds_to_the_same_model(consortium, parts):
    """The second runs of two studies that differ in `warm` alone, after new rows."""
    consortium.allow_any_rounds()  # rounds end when they have settled
    kinds = {"warm": "warm = true", "cold": ""}
    digests = [propose(consortium, name=name, more=more, parts=parts + WARN) for name, more in kinds.items()]
    with Standing(consortium) as sites:
        wait_until(lambda: all(digest in site.book.studies for digest in digests for site in sites.values()))
        for digest in digests:
            approve(consortium, digest)
        wait_until(lambda: consortium.done(1, "warm")() and consortium.done(1, "cold")())
        first = {name: load(consortium.versions(name, "warm").place(1) / "model.safetensors") for name in "abc"}
        for name in consortium.names:
            path = consortium.home(name) / "rows.parquet"
            table = pd.read_parquet(path)
            pd.concat([table, table.sample(60, random_state=1) * 0.9999]).to_parquet(path)
        for study in ("warm", "cold"):
            consortium.command("b", "run", study)
        wait_until(lambda: consortium.done(2, "warm")() and consortium.done(2, "cold")())
    check_models(consortium, "cold")
    study = parse_study((consortium.folder / "warm.toml").read_text())
    maps = {name: consortium.model(name, "warm").feature_map for name in "abc"}
    for name in "abc":
        np.testing.assert_array_equal(maps[name].frequencies, first[name].feature_map.frequencies)
    for name, outcome in expected(consortium, study, consortium.names, maps).items():  # it starts from 0
        found = consortium.model(name, "warm").coefficients
        np.testing.assert_allclose(found, outcome.coefficients, rtol=0, atol=1e-4 * abs(found).max())
    rounds = {}
    for name in ("warm", "cold"):
        record = (consortium.versions("a", name).place(2) / "run.jsonl").read_text().splitlines()
        rounds[name] = next(json.loads(line) for line in record if '"finished"' in line)["rounds"]
    if parts == ALONE:  # a shared part fits the new rows anew, and changes what is left to the agreed part
        assert rounds["warm"] < rounds["cold"]


def test_a_study_that_cannot_start_warm_is_refused_with_the_reasons(consortium):
    good = consortium.study(more="warm = true", parts='column_scales = "none"\n').read_text()
    assert parse_study(good).warm
    reasons = {
        "sigma = 0.5": ('sigma = "auto"', "sigma, alpha and consensus are found anew"),
        "alpha = 1e-3": ("alpha = [1e-3, 1e-2]", "sigma, alpha and consensus are found anew"),
        'column_scales = "none"': ("", "features are drawn in column scales"),
        'target = "y"': ('target = "y"\nraw = true', "what raw columns become"),
        "n_features = 10": ("n_features = 10\nintervals = true", "classes and intervals have a second training"),
    }
    for old, (new, reason) in reasons.items():
        assert old in good
        with pytest.raises(SettingsError, match=f"warm: {reason}.*or leave warm out"):
            parse_study(good.replace(old, new))
        parse_study(good.replace(old, new).replace("warm = true", ""))


def test_two_studies_at_once_and_one_that_is_stopped(consortium):
    consortium.allow_any_rounds()
    propose(consortium, name="long", by="b", more="about = 'x'", parts=ALONE + WARN)
    text = (consortium.folder / "long.toml").read_text() + "tol = 0.0\nmax_rounds = 100000\n"
    book(consortium, "b").say(Proposal(text=text, time=time.time()))
    long, air = digest_of(text), propose(consortium)
    with Standing(consortium) as sites:
        wait_until(lambda: all({long, air} <= set(site.book.studies) for site in sites.values()))
        approve(consortium, long)
        wait_until(lambda: any(run["round"] > 5 for site in sites.values() for run in site.status()["runs"]))
        approve(consortium, air)
        wait_until(consortium.done(1))
        assert any(run["round"] > 5 for run in sites["a"].status()["runs"])
        label = sites["c"].book.studies[long].label
        consortium.command("c", "stop", label, "--reason", "enough")
        wait_until(lambda: not any(site.status()["runs"] for site in sites.values()))
        assert sites["a"].book.studies[long].state == "stopped by c"
        (state,) = consortium.versions("a", "long").states
        assert state.state == "failed"
        assert "stopped by c" in state.reason
    check_models(consortium)


def test_new_rows_call_for_a_run_and_too_few_are_refused(consortium):
    digest = propose(consortium, more="new_rows = 1", start_patience=20.0)
    approve(consortium, digest)
    with Standing(consortium) as sites:
        wait_until(consortium.done(1))
        path = consortium.home("b") / "rows.parquet"
        table = pd.read_parquet(path)
        pd.concat([table, table.head(9) + 0.01]).to_parquet(path)
        wait_until(lambda: sites["b"]._row_counts.latest(sites["b"].book.studies[digest].study) == 89, 40)
        time.sleep(1.0)
        assert sites["a"].book.studies[digest].number == 1, "others were told that so few rows came"
        pd.concat([table, table.head(12) + 0.01]).to_parquet(path)
        wait_until(lambda: sites["a"].book.studies[digest].number == 2, 40)
        wait_until(lambda: [s.state for s in consortium.versions("a").states] == ["done", "failed"])
        wait_until(lambda: "at b: history: " in consortium.versions("a").states[1].reason)
        assert "separates 12 rows, fewer than" in consortium.versions("b").states[1].reason
        assert consortium.versions("a").current == 1


def test_a_model_that_a_site_in_other_units_has_ruined_is_held_back(consortium, logged):
    digest = propose(consortium, parts='exclude = "none"\n')
    approve(consortium, digest)
    with Standing(consortium) as sites:
        wait_until(consortium.done(1), 60)
        path = consortium.home("c") / "rows.parquet"
        table = pd.read_parquet(path)
        table.assign(y=1000 * table["y"]).to_parquet(path)
        consortium.command("a", "run", "air")
        wait_until(lambda: all(consortium.versions(name).get(2) is not None for name in "abc"), 60)
        wait_until(lambda: all(consortium.versions(name).get(2).state != "running" for name in "abc"), 100)
        for name in "ab":
            two = consortium.versions(name).get(2)
            assert two.state == "held back", two
            assert "that of the model in use" in two.reason
            assert consortium.versions(name).current == 1
            assert find_model(consortium.versions(name).folder).parent.name == "1", "what is served stays"
        (study,) = sites["a"].status()["studies"]
        assert study["why"].startswith("run 2 has been held back at a: its RSE on own rows is")
        wait_until(lambda: sites["a"].book.studies[digest].reports.get(("b", 2)))
        assert sites["a"].book.studies[digest].reports["b", 2].reason == "", "figures of a site stay there"
        assert "held back" in consortium.command("a", "show", "air")
        consortium.command("a", "use", "air", "2", "--reason", "looked at it")
        assert consortium.versions("a").current == 2
    assert [line for line in logged if "the model of run 2 of air-" in line and "is held back" in line]
    kinds = [entry["kind"] for entry in read(consortium.home("b") / TRAIL, identity(consortium, "b").trust, "b")]
    assert kinds.count("held back") == 1


@pytest.mark.parametrize(
    ("policy", "figures", "reason"),
    [
        (Policy(), None, ""),
        (Policy(), Figures("held-out RSE", 0.2, None, 1.0, 400), ""),
        (Policy(), Figures("held-out RSE", 0.2, 0.19, 0.18, 400), ""),
        (Policy(), Figures("held-out RSE", 0.4, 0.19, 1.0, 400), "model in use"),
        (Policy(), Figures("held-out RSE", 2e-9, None, 9e-10, 145), ""),
        (Policy(), Figures("held-out RSE", 0.3, 0.3, 0.2, 400), "this site alone"),
        (Policy(), Figures("held-out RSE", 0.3, 0.3, 0.2, 9), ""),
        (Policy(), Figures("held-out RSE", float("nan"), None, 1.0, 400), "this site alone"),
        (Policy(tolerance=1.0), Figures("held-out RSE", 0.4, 0.25, 1.0, 400), ""),
        (Policy(accept="any"), Figures("held-out RSE", 9.0, 0.1, 1.0, 400), ""),
        (Policy(accept="person"), Figures("held-out RSE", 0.1, 0.2, 1.0, 400), "a person decides"),
    ],
)
def test_what_a_gate_lets_pass(policy, figures, reason):
    why = why_held_back(policy, figures)
    assert reason in why
    assert bool(why) == bool(reason)


def test_a_gate_puts_nothing_down_to_chance_if_a_site_looked_wrong():
    held_out = Figures("held-out RSE", 0.2, 0.19, 0.18, 400)
    assert "model in use" in why_held_back(Policy(), held_out, looked_wrong=True)
    assert not why_held_back(Policy(), held_out._replace(new=0.19), looked_wrong=True)
    on_own = Figures("RSE on own rows", 0.1, 0.2, 1.0, 400, 0.05)
    assert "looked wrong" in why_held_back(Policy(), on_own, looked_wrong=True)
    assert not why_held_back(Policy(), on_own._replace(used=None), looked_wrong=True), "alone is all that there is"
    assert not why_held_back(Policy(accept="any"), on_own, looked_wrong=True)


def test_the_figures_of_a_gate_are_held_out_ones_where_a_record_has_them(consortium):
    versions = Versions(consortium.home("a") / "studies" / "air-1")
    for number, error in ((1, 0.2), (2, 0.3)):
        place = versions.place(number)
        place.mkdir(parents=True)
        (place / "model.safetensors").touch()
        more = ', "held-out RSE alone": 0.25' if number == 2 else ""
        (place / "run.jsonl").write_text(
            '{"event":"exchange"}\n' + f'{{"event":"finished", "held-out RSE": {error}, "held-out rows": 50{more}}}\n'
        )
    versions.use(1)
    study = parse_study(consortium.study().read_text())
    config = study.site_file("x", "a", {}, str(consortium.home("a") / "rows.parquet"))
    found = figures(config, consortium.home("a"), versions, 2)
    assert found == Figures("held-out RSE", 0.3, 0.2, 0.25, 50)
    record = versions.place(2) / "run.jsonl"
    record.write_text('{"event":"finished", "rounds": 0, "rounds ended by": "a loss: b, before the agreed part"}\n')
    why = why_held_back(Policy(), figures(config, consortium.home("a"), versions, 2))
    assert why.startswith("its run was cut short by a loss: b")


def test_a_run_with_intervals_is_judged_by_held_out_rows_and_by_what_the_site_has_alone(consortium):
    rng = np.random.default_rng(5)
    for name in "abc":
        table = pd.DataFrame(rng.uniform(size=(400, 2)), columns=["u", "v"])
        noisy = np.sin(5 * table["u"]) + table["v"] + 0.2 * rng.normal(size=400)
        table.assign(y=noisy, secret=1.0).to_parquet(consortium.home(name) / "rows.parquet")
    digest = propose(consortium, parts='intervals = true\nsite_effect = "none"\n')
    approve(consortium, digest)
    with Standing(consortium) as sites:
        wait_until(lambda: all(site.status()["studies"][0]["versions"] for site in sites.values()), 60)
        wait_until(lambda: all(consortium.versions(name).get(1).state != "running" for name in "abc"), 100)
        config = sites["a"].file_of_run(sites["a"].book.studies[digest], 1)
    found = figures(config, consortium.home("a"), consortium.versions("a"), 1)
    assert found.what == "held-out RSE"
    assert 0 < found.new < 1
    assert 0 < found.alone < 1, "the best of mean, ridge and trees"
    assert found.n_rows > 10


def test_a_policy_decides_and_a_refusal_names_its_rule(consortium, logged):
    for name in "ab":
        (consortium.home(name) / "policy.toml").write_text('approval = "policy"\n')
    (consortium.home("c") / "policy.toml").write_text('approval = "policy"\n[sources.rows]\nnever = ["v"]\n')
    digest = propose(consortium)
    with Standing(consortium) as sites:
        wait_until(lambda: len(sites["a"].book.studies[digest].decisions) == 3)
        state = sites["a"].book.studies[digest]
        assert state.state == "refused by c"
        assert state.decisions["c"].reason == "sources.rows.never: v"
        assert state.decisions["a"].by == "policy"
        wait_until(lambda: [text for text in logged if text.startswith("a: c refuses study air-")])
        assert [text for text in logged if text.endswith("policy: sources.rows.never: v")]
    assert "c (policy): sources.rows.never: v" in consortium.command("a", "list")
    said = consortium.command("c", "approve", "air", "--digest", digest[:8], code=1)
    assert "sources.rows.never: v" in said
    assert "not 00000000" in consortium.command("a", "approve", "air", "--digest", "00000000", code=1)


@pytest.fixture
def logged():
    """Everything that is logged under the name dekrr."""
    texts, handler, logger = [], logging.Handler(logging.INFO), logging.getLogger("dekrr")
    handler.emit = lambda record: texts.append(record.getMessage())
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield texts
    logger.removeHandler(handler)
    logger.setLevel(level)


def lines(text):
    return " ".join(text.split())


def test_a_rule_about_rows_refuses_the_run_and_all_sites_hear_why(consortium, logged):
    for name in "abc":
        (consortium.home(name) / "policy.toml").write_text('approval = "policy"\n')
    (consortium.home("b") / "policy.toml").write_text('approval = "policy"\n[sources.rows]\nleast_rows = 1000\n')
    digest = propose(consortium)
    with Standing(consortium) as sites:
        wait_until(lambda: len(sites["a"].book.studies[digest].reports) == 3)
        reports = sites["a"].book.studies[digest].reports
        detail = "the policy of b refuses the run: sources.rows.least_rows: 80 is less than 1000"
        why = "policy: its policy refuses the run: sources.rows.least_rows; the log of b has the details"
        assert all(why in report.reason for report in reports.values())
        wait_until(lambda: why in (consortium.home("a") / "state.json").read_text())
        reported = why
        for name, why in (("b", detail), ("a", reported)):
            assert f"run 1 has failed at b: {why}"[:100] in lines(consortium.command(name, "list"))
            shown = consortium.command(name, "show", "air")
            assert f"b: failed: {why}" in shown
            assert "c: failed, because it has failed at b" in shown
            status = CliRunner().invoke(app, ["status", str(consortium.home(name) / "site.toml")])
            assert why in status.output, status.output
            (study,) = SiteView(sites[name].status, consortium.home(name)).studies()
            assert why in study["why"]
            assert why in study["versions"][0]["reason"]
        assert [text for text in logged if text.startswith("b: run 1 of air-") and text.endswith(f"here: {detail}")]
        assert [text for text in logged if text.startswith("a: run 1 of air-") and text.endswith(f"at b: {reported}")]
        assert [text for text in logged if text.startswith("c begins run 1 of air-")]
        assert not [text for text in logged if "failed at a: run 1" in text or "failed at c: run 1" in text]
        trail = list(read(consortium.home("b") / TRAIL, identity(consortium, "b").trust, "b"))
    assert not [entry for entry in trail if entry["kind"] == "left" and entry["message"] != "statements"]


STUDY = parse_study(
    """name = "air"
sites = ["a", "b", "c"]
source = "rows"
expires = 2031-01-01
data = { target = "y", columns = ["u", "v"] }
settings = { n_features = 20, privacy = { epsilon = 2.0 }, features = "plain", bounds = [[0, 0, 0], [1, 1, 1]],
  sigma = 1.0, alpha = 0.1, consensus = 1.0 }
""".replace("\n  sigma", " sigma")
)


BOUNDS = {"u": (0.0, 1.0), "v": (0.0, 1.0), "y": (0.0, 1.0)}
PRIVATE = (
    'features = "plain"\nbounds = [[0, 0], [1, 1]]\nsigma = 1.0\nalpha = 0.1\nconsensus = 1.0\n'
    "[settings.privacy]\nepsilon = 2.0\n{}"
)


@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        (Policy(proposers=("b",)), "proposers: a is not among those"),
        (Policy(methods=("dkla",)), "methods: dekrr is not among dkla"),
        (Policy(most_features=19), "most_features: 20 is more than 19"),
        (Policy(masks=True), "masks: with differential privacy, noise takes the place of masks"),
        (Policy(most_epsilon=1.0), "most_epsilon: 2.0, and at most 1"),
        (Policy(least_rows_per_feature=2.0), "least_rows_per_feature: 1.5 is less than 2"),
        (Policy(longest_days=30), "longest_days: it expires in"),
        (Policy(sources={"rows": SourcePolicy(never=("y",))}), "sources.rows.never: y"),
        (Policy(sources={"rows": SourcePolicy(columns=("u", "y"))}), "sources.rows.columns: v not among those"),
    ],
)
def test_every_rule_refuses_what_breaks_it_and_nothing_else(policy, rule):
    of_rows = msgspec.structs.replace(policy.sources.get("rows", SourcePolicy()), bounds=BOUNDS)
    (broken,) = refusals(msgspec.structs.replace(policy, sources={"rows": of_rows}), STUDY, "a", ["rows"])
    assert broken.startswith(rule)
    usual = Policy(sources={"rows": SourcePolicy(bounds=BOUNDS)})
    assert not refusals(usual, STUDY, "a", ["rows"])
    assert refusals(usual, STUDY, "a", ["other"]) == ["this site has no data source 'rows'"]


@pytest.mark.parametrize(("shared", "n_broken"), [('"auto"', 1), ("40", 1), ("30", 0), ('"none"', 0)])
def test_the_rule_about_features_is_about_those_of_the_shared_part_too(shared, n_broken):
    study = parse_study(
        'name = "air"\nsites = ["a", "b", "c"]\nsource = "rows"\nexpires = 2031-01-01\n'
        f'[data]\ntarget = "y"\ncolumns = ["u"]\n[settings]\nn_features = 20\nshared = {shared}\n'
    )
    assert len(refusals(Policy(most_features=30), study, "a", ["rows"])) == n_broken


@pytest.mark.parametrize(
    ("method", "settings", "policy", "rule"),
    [
        ("dekrr", "", Policy(masks=True, most_epsilon=0.0, least_rows_per_feature=1.5), None),
        ("allreduce", "sigma = 1.0", Policy(masks=True), None),
        ("dekrr", "masks = true", Policy(masks=True), None),
        ("dekrr", "masks = false", Policy(masks=True), "masks: the study sets masks = false"),
        ("allreduce", "sigma = 1.0\nmasks = false", Policy(masks=True), "masks: the study sets masks = false"),
        ("dkla", "sigma = 1.0", Policy(masks=True, methods=("dkla",)), "masks: dkla has no masks"),
        ("dekrr", PRIVATE.format("colluders = 1"), Policy(masks=True, most_epsilon=2.0), None),
        ("dekrr", "masks = true\n" + PRIVATE.format("delta = 1e-7"), Policy(masks=True), "masks: with differential"),
        ("dekrr", "", Policy(most_epsilon=1.0), "most_epsilon: no differential privacy"),
        ("dekrr", PRIVATE.format("delta = 1e-7"), Policy(most_features=100), None),
        ("dekrr", PRIVATE.format("delta = 1e-7"), Policy(most_features=99), "most_features: 100 is more than 99"),
        ("dekrr", ALONE + 'allocation = "sqrt"', Policy(most_features=200), "most_features: with allocation = "),
        ("dekrr", ALONE + 'allocation = "sqrt"\nmax_features = 200', Policy(most_features=200), None),
        ("dekrr", ALONE + "max_features = 201", Policy(most_features=200), "most_features: with allocation = "),
        ("dekrr", "", Policy(least_rows_per_feature=1.6), "least_rows_per_feature: 1.5 is less than 1.6"),
    ],
)
def test_rules_hold_for_what_a_run_does_and_not_for_what_a_study_writes(method, settings, policy, rule):
    study = parse_study(
        f'name = "air"\nsites = ["a", "b", "c"]\nsource = "rows"\nexpires = 2031-01-01\nmethod = "{method}"\n'
        f'[data]\ntarget = "y"\ncolumns = ["u"]\n[settings]\n{settings}\n'
    )
    policy = msgspec.structs.replace(policy, sources={"rows": SourcePolicy(bounds=BOUNDS)})
    assert [text[: len(rule or "")] for text in refusals(policy, study, "a", ["rows"])] == ([rule] if rule else [])


def test_rules_about_a_run():
    policy = Policy(sources={"rows": SourcePolicy(least_rows=10, runs_per_month=2)})
    day = 86400.0
    assert not refusals_of_run(policy, STUDY, 10, [0.0, 60 * day], 60 * day)
    broken = refusals_of_run(policy, STUDY, 9, [50 * day, 55 * day], 60 * day)
    assert [text.split(":")[0] for text in broken] == ["sources.rows.least_rows", "sources.rows.runs_per_month"]


def test_mistakes_in_a_policy_and_in_a_study_are_all_named(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text('aproval = "policy"\nmost_features = "x"\n[sources.rows]\nnevr = []\n')
    with pytest.raises(SettingsError, match=r"(?s)aproval.*most_features.*nevr"):
        read_policy(path)
    with pytest.raises(SettingsError, match=r"(?s)sites: a study has at least two.*settings.sigm"):
        parse_study(
            'name="s"\nsites=["a"]\nsource="r"\nexpires=2030-01-01\n[data]\ntarget="y"\ncolumns=["u"]\n[settings]\nsigm=1'
        )


def test_a_statement_counts_under_its_own_valid_certificate_alone(consortium, tmp_path):
    a, b = identity(consortium, "a"), identity(consortium, "b")
    item = sign(Decision("d" * 64, "approve", "", "x", time.time()), a)
    assert item.check(b.trust, time.time()).says == "approve"
    for bad in (
        msgspec.structs.replace(item, site="b"),
        msgspec.structs.replace(item, said=item.said.replace("approve", "refuse")),
        msgspec.structs.replace(item, certificate=b.pem),
        sign(Decision("d" * 64, "approve", "", "x", time.time() + 10**7), a),
        sign(Decision("d" * 64, "approve", "", "x", time.time() - 10**9), a),
        msgspec.structs.replace(item, said='{"type":"decision"}'),
    ):
        with pytest.raises(KeysError):
            bad.check(b.trust, time.time())
    (tmp_path / "other").mkdir()
    stranger = Consortium(tmp_path / "other", ["a", "b"])
    with pytest.raises(KeysError, match="authority has not signed"):
        sign(Decision("d" * 64, "approve", "", "x", time.time()), identity(stranger, "a")).check(b.trust, time.time())


def test_a_revoked_certificate_counts_no_more_and_sites_pass_the_list_on(consortium):
    digest = propose(consortium)
    approve(consortium, digest)
    ours = book(consortium, "a")
    for name in "bc":
        for item in book(consortium, name).get(book(consortium, name).ids):
            ours.add(item)
    assert ours.studies[digest].state == "approved"
    revoked = revocation_list(consortium.authority, [identity(consortium, "b").certificate], None)
    news = sign(Revocations(revoked.decode(), time.time()), identity(consortium, "c"))
    assert ours.add(news)
    assert ours.studies[digest].state == "waits for b"
    with pytest.raises(KeysError, match="is revoked"):
        ours.add(sign(Decision(digest, "approve", "", "x", time.time()), identity(consortium, "b")))
    assert Book(consortium.home("a"), identity(consortium, "a")).studies[digest].state == "waits for b"
    with pytest.raises(KeysError, match="not signed"):
        ours.identity.trust.learn(revoked.decode().replace("M", "N", 3))
    (consortium.home("a") / REVOKED).write_bytes(revoked)
    assert identity(consortium, "a").trust.has_revoked(identity(consortium, "b").certificate)
    older = x509.load_pem_x509_crl(revoked)
    newer = revocation_list(consortium.authority, [identity(consortium, "c").certificate], older)
    assert len(x509.load_pem_x509_crl(newer)) == 2
    trust = identity(consortium, "a").trust
    assert trust.learn(newer.decode())
    assert not trust.learn(revoked.decode())


def test_statements_pass_over_a_path_whatever_the_order(consortium):
    digest = propose(consortium)
    approve(consortium, digest)
    books = {name: book(consortium, name) for name in "abc"}
    gossips = {name: Gossip(one, lambda *_: None) for name, one in books.items()}
    for _ in range(4):
        for one, other in (("a", "b"), ("c", "b"), ("b", "a"), ("b", "c")):
            waiting = [(one, other, gossips[one].tell())]
            while waiting:
                sender, receiver, frame = waiting.pop()
                answers, _ = gossips[receiver].take(sender, frame)
                waiting += [(receiver, sender, answer) for answer in answers]
    assert books["a"].ids == books["b"].ids == books["c"].ids
    assert len(books["a"].ids) == 4
    assert {one.studies[digest].state for one in books.values()} == {"approved"}


@settings(max_examples=50, deadline=None)
@given(noise=st.binary(max_size=60))
def test_gossip_takes_any_bytes(noise, three):
    refused = []
    gossip = Gossip(book(three, "a"), lambda *what: refused.append(what))
    gossip.take("b", noise)
    assert gossip.take("b", b"\x92\xa5items\x90") == ([], [])


def sealed_pair(consortium):
    wires = {"a": [], "b": []}
    a = Seal(lambda: identity(consortium, "a"), "b", "run", wires["a"].append)
    b = Seal(lambda: identity(consortium, "b"), "a", "run", wires["b"].append)
    return a, b, wires


def deliver(a, b, wires):
    got = []
    while wires["a"] or wires["b"]:
        for name, seal in (("a", b), ("b", a)):
            while wires[name]:
                frame = seal.take(wires[name].pop(0))
                got += [] if frame is None else [frame]
    return got


def test_frames_are_sealed_between_neighbours(consortium):
    a, b, wires = sealed_pair(consortium)
    a.send(b"one")
    a.send(b"two")
    assert deliver(a, b, wires) == [b"one", b"two"]
    b.send(b"three" * 100)
    (sealed,) = wires["b"]
    assert b"three" not in sealed
    assert a.take(sealed) == b"three" * 100
    with pytest.raises(KeysError, match="came twice"):
        a.take(sealed)
    a.send(b"four")
    changed = bytearray(wires["a"].pop())
    changed[-1] ^= 1
    with pytest.raises(KeysError, match="not sealed by it"):
        b.take(bytes(changed))
    with pytest.raises(KeysError, match="not a sealed frame"):
        b.take(b"")


def test_data_are_sealed_for_no_holder_of_a_revoked_certificate_and_hellos_are_plain(consortium):
    ours, wires = identity(consortium, "a"), {"a": [], "b": []}
    old, key = identity(consortium, "b"), (consortium.home("b") / "key.pem").read_bytes()
    consortium.give_keys("b", consortium.hosts["b"])
    ours.trust.learn(revocation_list(consortium.authority, [old.certificate], None).decode())
    assert (consortium.home("b") / "key.pem").read_bytes() == key
    a = DataSeal(lambda: ours, "b", "run", wires["a"].append)
    thief = DataSeal(lambda: old, "a", "run", wires["b"].append)
    b = DataSeal(lambda: identity(consortium, "b"), "a", "run", wires["b"].append)
    hello, data = (msgspec.msgpack.encode([kind, "run", "a"]) for kind in ("hello", "data"))
    a.send(hello)
    assert wires["a"].pop() == hello
    assert b.take(hello) == hello
    with pytest.raises(KeysError, match="data in the name of 'a' that are not sealed"):
        b.take(data)
    a.send(data)
    assert data not in wires["a"]
    thief.take(wires["a"][0])
    with pytest.raises(KeysError, match="is revoked"):
        a.take(wires["b"].pop())
    assert deliver(a, b, wires) == [data]


def test_a_neighbour_that_starts_again_gets_new_keys_and_no_stranger_does(consortium):
    a, b, wires = sealed_pair(consortium)
    a.send(b"one")
    assert deliver(a, b, wires) == [b"one"]
    again = Seal(lambda: identity(consortium, "b"), "a", "run", wires["b"].append)
    a.send(b"lost")
    time.sleep(0.15)
    assert deliver(a, again, wires) == []
    a.send(b"two")
    assert deliver(a, again, wires) == [b"two"]
    stranger = Seal(lambda: identity(consortium, "c"), "a", "run", wires["b"].append)
    time.sleep(0.15)
    a.greet()
    stranger.take(wires["a"][0])
    with pytest.raises(KeysError, match="certificate of 'c', used in the name of 'b'"):
        a.take(wires["b"].pop())
    elsewhere = Seal(lambda: identity(consortium, "b"), "a", "other run", wires["b"].append)
    elsewhere.take(wires["a"][0])
    with pytest.raises(KeysError, match="wrong signature"):
        a.take(wires["b"].pop())


def lines_of(path):
    return path.read_bytes().splitlines(keepends=True)


def test_an_audit_trail_that_was_changed_is_found_out(consortium, tmp_path):
    a = identity(consortium, "a")
    path = tmp_path / TRAIL
    for _ in range(2):
        trail = AuditTrail(path, a)
        for number in range(5):
            trail.add("left", to="b", message="Sums", bytes=number)
        trail.close()
    heads = [(trail.n_lines, trail.head)]
    assert verify(path, a.trust, "a", heads) == (1, trail.n_lines, 0)
    entries = list(read(path, a.trust, "a", heads))
    assert [entry["bytes"] for entry in entries if entry["kind"] == "left"] == [0, 1, 2, 3, 4] * 2
    lines = lines_of(path)
    for place in range(len(lines) - 1):
        for changed in (
            [*lines[:place], *lines[place + 1 :]],
            [
                *lines[:place],
                lines[place].replace(b'"to": "b"', b'"to": "c"').replace(b"seal", b"left"),
                *lines[place + 1 :],
            ],
            [*lines[:place], lines[place + 1], lines[place], *lines[place + 2 :]],
            [*lines[: place + 1], lines[place], *lines[place + 1 :]],
        ):
            if changed != lines:
                path.write_bytes(b"".join(changed))
                with pytest.raises(DataError, match=r"line|report") as refusal:
                    verify(path, a.trust, "a", [(trail.n_lines, trail.head)])
                differs = [number for number, (new, old) in enumerate(zip(changed, lines, strict=False)) if new != old]
                if len(changed) == len(lines) and differs == [place] and b'"c"' in changed[place]:
                    last = place + 2 == len(lines)  # nothing confirms the last line
                    named = f"line {place + 1} or line {place + 2}" if last else f"line {place + 1}"
                    assert f"{named} is not what was written" in str(refusal.value)
                elif len(changed) != len(lines):
                    assert f"line {place + 1 + (len(changed) > len(lines))} has the number" in str(refusal.value)
    path.write_bytes(b"".join(lines[:7]))
    with pytest.raises(DataError, match="a report of this site names line"):
        verify(path, a.trust, "a", [(trail.n_lines, trail.head)])
    path.write_bytes(b"".join(lines))
    with pytest.raises(DataError, match="in the name of 'b'"):
        verify(path, a.trust, "b")


def test_a_trail_that_was_cut_short_by_a_crash_goes_on(consortium, tmp_path):
    a = identity(consortium, "a")
    path = tmp_path / TRAIL
    AuditTrail(path, a).close()
    trail = AuditTrail(path, a)
    trail.add("left", to="b")
    trail.write()
    trail._file.close()
    assert verify(path, a.trust, "a")[2] == 1
    with path.open("ab") as file:
        file.write(b'{"half')
    AuditTrail(path, a).close()
    assert verify(path, a.trust, "a")[2] == 0
    assert [entry["kind"] for entry in read(path, a.trust, "a")].count("left") == 1
    path.write_bytes(path.read_bytes().replace(b'"left"', b'"lift"'))
    with pytest.raises(DataError, match="was changed"):
        AuditTrail(path, a)


def test_a_preview_lists_what_a_run_sends(consortium):
    digest = propose(consortium)
    study = parse_study((consortium.folder / "air.toml").read_text())
    config = read_standing(consortium.home("a") / "site.toml")
    shown = preview(study, config, consortium.home("a"))
    assert {line.to for line in shown.lines} == {"b", "c"}
    assert not (consortium.home("a") / "kept").exists()
    approve(consortium, digest)
    with Standing(consortium):
        wait_until(consortium.done(1))
    trail = list(read(consortium.home("a") / TRAIL, identity(consortium, "a").trust, "a"))
    left = {(entry["to"], entry["message"]) for entry in trail if entry["kind"] == "left"}
    messages = {(to, kind) for to, kind in left if kind not in ("hello", "nothing", "statements")}
    assert messages == {(line.to, line.message) for line in shown.lines}
    assert "MaskedRound" in consortium.command("a", "preview", "air")


def weather(n_rows, seed):
    """Return a raw table in which columns depend on each other: hours, and words and gaps that go with them."""
    rng = np.random.default_rng(seed)
    hours = np.arange(n_rows)
    sky = np.where(hours % 24 < 12, rng.choice(["clear", "mist"], n_rows), rng.choice(["cloudy", "rain"], n_rows))
    wind = np.where(np.isin(sky, ["mist", "clear"]), rng.choice(["N", "NE", "E"], n_rows), "SW")
    speed = np.where(wind == "SW", 8.0, 2.0) + rng.gamma(2.0, size=n_rows)
    speed[rng.uniform(size=n_rows) < 0.05] = np.nan
    table = pd.DataFrame({"measured": pd.Timestamp("2023-01-01") + pd.to_timedelta(hours * 7, unit="h")})
    return table.assign(sky=sky, wind=wind, speed=speed, y=np.nan_to_num(speed) + (sky == "rain"))


def test_a_proposal_that_this_sites_rows_do_not_allow_is_refused_before_others_see_it(consortium):
    path = consortium.study()
    path.write_text(path.read_text().replace("n_features = 10", "n_features = 60"))
    said = consortium.command("a", "propose", path, code=1)
    assert "feature" in said
    assert Store(consortium.home("a")).rows("SELECT count(*) FROM statement") == [(0,)]


def test_a_table_with_semicolons_is_told_from_one_without_columns(consortium):
    table = pd.read_parquet(consortium.home("a") / "rows.parquet")
    table.to_csv(consortium.home("a") / "rows.csv", sep=";", index=False)
    path = consortium.home("a") / "site.toml"
    path.write_text(path.read_text().replace("rows.parquet", "rows.csv"))
    told = consortium.command("a", "propose", consortium.study(), code=1)
    assert "are not separated by commas: save it with commas" in " ".join(told.split())


def test_a_table_of_a_sites_rows_has_no_figure_of_few_rows_and_is_sent_only_if_its_policy_says_so(consortium):
    home, path = consortium.home("a"), consortium.study()
    table = pd.read_parquet(home / "rows.parquet")
    table["v"] = table["v"] * 100 + 1000
    table.loc[3, "v"] = 1e9
    table.loc[7:10, "v"] = np.nan
    table.to_parquet(home / "rows.parquet")
    study, config = parse_study(path.read_text()), read_standing(home / "site.toml")
    before = describe_rows(study, config, home, Policy())
    u, v, _ = before
    assert (u.present, u.missing, v.missing) == ("80", "fewer than 10", "fewer than 10")
    assert 1030 <= float(v.mean) <= 1070, "one value of a thousand million does not show"
    pd.concat([table, table.head(3)]).to_parquet(home / "rows.parquet")
    assert describe_rows(study, config, home, Policy())[0].present == u.present
    assert {one.present for one in describe_rows(study, config, home, Policy(least_min_rows=90))} == {"fewer than 90"}
    assert describe_rows(study, config, home, Policy(least_min_rows=40))[0].mean == "too few values"
    assert v.mean in consortium.command("a", "describe", path)
    book = Book(home, identity(consortium, "a"))
    book.say(Proposal(path.read_text(), time.time()))
    digest = digest_of(path.read_text())
    consortium.command("a", "approve", "air", "--digest", digest[:8], "--reason", "fine")
    book.refresh()
    assert book.studies[digest].decisions["a"].reason == "fine"
    (home / "policy.toml").write_text("[sources.rows]\ndescribe = true\n")
    assert "the other sites are told: rows here: u 80" in consortium.command(
        "a", "approve", "air", "--digest", digest[:8], "--reason", "fine"
    )
    book.refresh()
    assert book.studies[digest].decisions["a"].reason.startswith("fine; rows here: u 80, missing fewer than 10, mean")


def test_a_preview_of_a_raw_study_runs_where_the_study_does(consortium):
    for k, name in enumerate(consortium.names):
        weather(700, k).to_parquet(consortium.home(name) / "rows.parquet")
    columns = ["measured", "sky", "wind", "speed"]
    text = consortium.study(parts="intervals = true\n").read_text()
    text = text.replace('columns = ["u", "v"]', f"columns = {json.dumps(columns)}\nraw = true")
    text = text.replace("n_features = 10", "n_features = 20").replace('features = "energy"\n', "")
    config = read_standing(consortium.home("a") / "site.toml")
    shown = preview(parse_study(text), config, consortium.home("a"))
    assert shown.n_rows == 700
    assert {"RawColumns", "Chosen", "MaskedRound"} <= {line.message for line in shown.lines}
    book(consortium, "a").say(Proposal(text=text, time=time.time()))
    approve(consortium, digest_of(text))
    with Standing(consortium):
        wait_until(consortium.done(1))
    trail = list(read(consortium.home("a") / TRAIL, identity(consortium, "a").trust, "a"))
    left = {(entry["to"], entry["message"]) for entry in trail if entry["kind"] == "left"}
    messages = {(to, kind) for to, kind in left if kind not in ("hello", "nothing", "statements")}
    assert messages == {(line.to, line.message) for line in shown.lines}


def test_a_preview_says_that_rows_are_made_up_where_those_are_refused(consortium, monkeypatch):
    config = read_standing(consortium.home("a") / "site.toml")
    study = parse_study(consortium.study().read_text())
    few = ArrayRows(np.random.default_rng(0).uniform(size=(12, 2)), np.zeros(12))
    monkeypatch.setattr("dekrr.mesh.studies.preview._made_up", lambda *_: few)
    with pytest.raises(DataError, match=r"the made-up rows that stand for site '[bc]'.*12 rows, too few"):
        preview(study, config, consortium.home("a"))
    study = parse_study(consortium.study().read_text().replace("n_features = 10", "n_features = 60"))
    with pytest.raises(DataError, match=r"^site 'a' has 80 rows"):
        preview(study, config, consortium.home("a"))


def test_a_study_that_has_ended_does_not_block_its_name(consortium):
    first = propose(consortium)
    book(consortium, "a").decide(first, "refuse", "too long", "test")
    said = consortium.command("a", "propose", consortium.study(more="every_hours = 1"))
    second = digest_of((consortium.folder / "air.toml").read_text())
    assert "dekrr study preview air," in said
    assert f"dekrr study approve air --digest {second[:8]}" in said
    assert book(consortium, "a").find("air").digest == second
    assert "a approves" in consortium.command("a", "approve", "air", "--digest", second[:8])
    third = propose(consortium, more="every_hours = 2")  # now two are open: the digest tells which
    with pytest.raises(SettingsError, match="several studies are called 'air'.*air-" + third[:8]):
        book(consortium, "a").find("air")
    assert f"a approves air-{third[:8]}" in consortium.command("a", "approve", "air", "--digest", third[:8])
    with pytest.raises(SettingsError, match="several studies are called 'air'"):
        book(consortium, "a").find("air", "00000000")
    fourth = consortium.command("a", "propose", consortium.study(more="every_hours = 3"))
    digest = digest_of((consortium.folder / "air.toml").read_text())
    assert f"dekrr study preview air-{digest[:8]}," in fourth


def test_what_each_kind_of_message_reveals_is_said():
    assert {kind.__name__ for kind in get_args(AnyMessage)} <= set(REVEALS)


def test_a_frame_is_described_as_it_is():
    frame = msgspec.msgpack.encode(["data", "run", "a", [], 7, msgspec.Raw(encode(Degree(2)))])
    assert describe(frame)["message"] == "Degree"
    assert describe(frame)["exchange"] == 7
    assert describe(msgspec.msgpack.encode(["data", "run", "a", [], 7, None]))["message"] == "nothing"
    assert describe(msgspec.msgpack.encode(["hello", "run"]))["message"] == "hello"


def test_what_is_written_into_the_store_of_statements_must_prove_itself(consortium):
    digest = propose(consortium)
    store = Store(consortium.home("a"))
    forged = Item("b", msgspec.json.encode(Decision(digest, "approve", "", "x", time.time())).decode(), "no", "no")
    for name, data in ((forged.id, msgspec.json.encode(forged)), ("rubbish", b"{")):
        store.write("INSERT INTO statement (id, item) VALUES (?, ?)", name, data)
    assert book(consortium, "a").studies[digest].decisions == {}


def test_a_certificate_is_renewed_while_a_run_is_under_way(consortium):
    consortium.allow_any_rounds()
    text = consortium.study(parts=ALONE + WARN).read_text() + "tol = 0.0\nmax_rounds = 4000\n"
    (consortium.folder / "air.toml").write_text(text)
    book(consortium, "a").say(Proposal(text=text, time=time.time()))
    approve(consortium, digest_of(text))
    consortium.give_keys("b", consortium.hosts["b"], days=3)
    with Standing(consortium) as sites:
        assert sites["b"].status()["certificate days left"] < 4
        wait_until(lambda: any(run["round"] > 20 for run in sites["b"].status()["runs"]))
        consortium.give_keys("b", consortium.hosts["b"], days=300)
        wait_until(lambda: sites["b"].status()["certificate days left"] > 200)
        wait_until(consortium.done(1), 100)
    check_models(consortium)
    trail = list(read(consortium.home("b") / TRAIL, identity(consortium, "b").trust, "b"))
    kinds = [entry["kind"] for entry in trail]
    assert "certificate ends" in kinds
    assert "certificate renewed" in kinds


def test_a_standing_site_that_was_killed_goes_on_with_its_runs(consortium):
    consortium.allow_any_rounds()
    text = consortium.study(patience=30.0, parts=ALONE + WARN).read_text() + "tol = 0.0\nmax_rounds = 3000\n"
    (consortium.folder / "air.toml").write_text(text)
    book(consortium, "a").say(Proposal(text=text, time=time.time()))
    approve(consortium, digest_of(text))
    processes = [consortium.process("b")]
    try:
        with Standing(consortium, ["a", "c"]) as sites:
            wait_until(lambda: any(run["round"] > 20 for run in sites["a"].status()["runs"]))
            processes[0].kill()
            processes[0].wait()
            processes.append(consortium.process("b"))
            wait_until(consortium.done(1), 100)
            processes[1].terminate()
            assert processes[1].wait(60) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
    log = (consortium.home("b") / "log").read_text()
    for line in (
        "b begins run 1 of air-",
        "b goes on with run 1",
        "b has the model of run 1",
        "b is stopped by SIGTERM",
    ):
        assert line in log, log
    check_models(consortium)
    assert "is whole" in consortium.command("b", "audit", "verify")


def test_a_certificate_is_revoked_and_renewed_by_commands(consortium, tmp_path):
    network = tmp_path / "network.toml"
    entries = [{"name": name, "endpoint": host, "data": "rows"} for name, host in consortium.hosts.items()]
    network.write_text(
        to_toml({"run": "r", "method": "dekrr", "data": {"target": "y", "columns": ["u"]}, "site": entries})
    )
    runner = CliRunner()
    certificate = consortium.home("b") / "certificate.pem"
    words = ["network", "revoke", network, certificate, "--authority", consortium.folder]
    done = runner.invoke(app, list(map(str, words)))
    assert done.exit_code == 0, done.output
    consortium.command("a", "revoke", consortium.folder / REVOKED)
    ours = book(consortium, "a")
    assert ours.identity.trust.has_revoked(identity(consortium, "b").certificate)
    request = consortium.home("b") / "request.pem"
    words = ["network", "sign", network, request, "--authority", consortium.folder, "--out", tmp_path / "new.pem"]
    done = runner.invoke(app, list(map(str, words)))
    assert done.exit_code == 0, done.output
    (tmp_path / "new.pem").rename(certificate)
    assert not ours.identity.trust.has_revoked(identity(consortium, "b").certificate)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_schedule_of_faults(tmp_path):
    """One seed of the soak, `python tests/soak_studies.py`."""
    assert Play(tmp_path, 1).run()["done"] > 0


def test_a_full_disk_delays_lines_of_the_trail_and_loses_none(consortium, tmp_path, monkeypatch):
    a = identity(consortium, "a")
    path = tmp_path / TRAIL
    trail = AuditTrail(path, a)
    write = LockedFile.write

    def full(file, data, at):
        write(file, data[:10], at)
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(LockedFile, "write", full)
    with pytest.raises(OSError, match="no space"):
        trail.decide("left", to="b")
    assert verify(path, a.trust, "a")[2] == 0
    trail.close()
    again = AuditTrail(path, a)
    monkeypatch.setattr(LockedFile, "write", write)
    again.decide("left", to="c")
    again.close()
    assert verify(path, a.trust, "a")[2] == 0
    assert [entry["kind"] for entry in read(path, a.trust, "a") if entry["kind"] != "seal"] == [
        "begun",
        "opened",
        "left",
    ]
