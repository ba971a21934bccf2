"""A site guards itself: what a study can ask for, and what a site says of a run that failed."""

import json
import re
import time
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest

import dekrr
from consortium import ALONE, Consortium, Standing, wait_until
from dekrr.errors import DataError, DekrrError, KeysError, LossError, MessageError, NotNumbersError, SettingsError
from dekrr.mesh.files import digest_of, parse_study, read_standing
from dekrr.mesh.ledger import PastRun
from dekrr.mesh.node import Node
from dekrr.mesh.policy import Policy, PolicyError, SourcePolicy, read_policy, refusals, refusals_of_run
from dekrr.mesh.site_rows import SiteRows
from dekrr.mesh.studies.failure_reports import WORDS, outward
from dekrr.mesh.studies.in_words import in_words
from dekrr.mesh.studies.items import Proposal
from dekrr.mesh.study_run import StudyRun

SECRET = "Clark 1952-11-30"
NUMBER = 86753.0625
HEAD = (
    'name = "s"\nsites = ["a", "b", "c"]\nsource = "rows"\nexpires = 2099-01-01\nstart_patience = 3.0\nmethod = "{}"\n'
)
BOUNDS = {"u": (0.0, 1.0), "v": (0.0, 1.0), "y": (-2.0, 2.0)}
PRIVATE = (
    'features = "plain"\nsigma = 1.0\nalpha = 0.1\nconsensus = 1.0\nbounds = [[0, 0, -2], [1, 1, 2]]\n'
    "[settings.privacy]\nepsilon = {}\n"
)


def study_of(settings="", data='target = "y"\ncolumns = ["u", "v"]', method="dekrr"):
    return parse_study(f"{HEAD.format(method)}[data]\n{data}\n[settings]\n{settings}\n")


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ("bounds = [[0.5, 0, -2], [0.500000001, 1, 2]]", "sources.rows.bounds: narrower than this site's: it has u wi"),
        ("min_rows = 1", "least_min_rows: 1 is less than 10; leave min_rows out, or give at least 10"),
        ("rows_per_feature = 0.0", "least_rows_per_feature: 0 is less than 1.5"),
        ("max_leverage = 1.0", "most_leverage: 1 is more than 0.999"),
        ("max_maps = 65", "most_maps: 65 is more than 64"),
        (f"sigma = {list(range(1, 9))}\n{ALONE}", "most_maps: 82 is more than 64; leave max_maps out and tune over fe"),
        ("shortlist_rows = 0.0", "least_shortlist_rows: 0 is less than 30"),
        ("sigma = 1e-9", "least_sigma: 1e-09 is less than 0.05"),
        (f"sigma = [1.0, 1e-9]\n{ALONE}", "least_sigma: 1e-09 is less than 0.05"),
        ("column_scales = [1.0, 1e6]", "least_sigma: 1, over a column scale of 1e+06, is less than 0.05"),
        ("sigma = 0.1\ncolumn_scales = [3.0, 1e-6]", "least_sigma: 0.1, over a column scale of 3, is less than"),
        ('scale = "minmax"', "scale: 'minmax' tells values of single rows; leave scale out"),
        (f'scale = "none"\n{ALONE}', "scale: None tells values of single rows"),
        ("masks = false", "masks: the study sets masks = false"),
        ("verify_features = false", "verify_features: the study sets verify_features = false"),
        (PRIVATE.format("20.0\nmax_epsilon = 100.0"), "sources.rows.total_epsilon: 20 is more than 10"),
        (PRIVATE.format("1.0").replace("[[0, 0,", "[[0.1, 0,"), "sources.rows.bounds: narrower than this site's"),
    ],
)
def test_no_study_weakens_a_site(settings, rule):
    policy = Policy(sources={"rows": SourcePolicy(bounds=BOUNDS)})
    (broken,) = refusals(policy, study_of(settings), "a", ["rows"])
    assert broken.startswith(rule)
    assert not refusals(policy, study_of(), "a", ["rows"])


@pytest.mark.parametrize("method", ["dkla", "allreduce"])
@pytest.mark.parametrize(("settings", "rule"), [("min_rows = 1", "least_min_rows"), ('scale = "minmax"', "scale")])
def test_the_other_methods_have_the_same_guards(method, settings, rule):
    policy = Policy(methods=("dkla", "allreduce"))
    (broken,) = refusals(policy, study_of(f"sigma = 1.0\n{settings}", method=method), "a", ["rows"])
    assert broken.startswith(rule)
    assert not refusals(policy, study_of("sigma = 1.0", method=method), "a", ["rows"])


def test_a_method_without_masks_is_refused_unless_the_site_has_named_it():
    """By the coefficients of DKLA's rounds, each neighbour works out a site's own sums."""
    assert refusals(Policy(), study_of("sigma = 1.0", method="dkla"), "a", ["rows"])[0].startswith("methods: dkla")


def test_bounds_are_those_that_the_site_wrote_or_wider():
    study = study_of("bounds = [[0, -1, -2], [1, 1, 2.5]]")
    assert not refusals(Policy(sources={"rows": SourcePolicy(bounds=BOUNDS)}), study, "a", ["rows"])
    (broken,) = refusals(Policy(), study, "a", ["rows"])
    assert broken.startswith("sources.rows.bounds: this site's policy has none of u, v, y; leave bounds out")


def test_bounds_of_several_targets_are_one_for_each():
    policy = Policy(sources={"rows": SourcePolicy(bounds=BOUNDS | {"z": (0.0, 9.0)})})
    data = 'target = ["y", "z"]\ncolumns = ["u", "v"]'
    assert not refusals(policy, study_of("bounds = [[0, 0, -2, 0], [1, 1, 2, 9]]", data), "a", ["rows"])
    (broken,) = refusals(policy, study_of("bounds = [[0, 0, -2, 0], [1, 1, 2, 8]]", data), "a", ["rows"])
    assert "z within 0 and 9" in broken


@pytest.mark.parametrize(
    "settings",
    ["min_rows = 20", "rows_per_feature = 3.0", "max_leverage = 0.9", "max_maps = 8", "shortlist_rows = 60.0"],
)
def test_a_study_may_ask_for_stricter_guards_and_a_site_may_write_other_ones(tmp_path, settings):
    assert not refusals(Policy(), study_of(settings), "a", ["rows"])
    (tmp_path / "policy.toml").write_text(
        "least_min_rows = 30\nleast_rows_per_feature = 4.0\nmost_leverage = 0.5\nmost_maps = 4\n"
        "least_shortlist_rows = 90.0\n[sources.rows]\ntotal_epsilon = 2.0\n[sources.rows.bounds]\nu = [0, 1]\n"
    )
    policy = read_policy(tmp_path / "policy.toml")
    assert policy.sources["rows"].bounds == {"u": (0.0, 1.0)}
    assert len(refusals(policy, study_of(settings), "a", ["rows"])) == 5


@pytest.mark.parametrize(
    ("promise", "rule"),
    [("1.0\ndelta = 0.00099", "most_delta"), ("1.0\ndelta = 1e-7", None), ("1.0\ncolluders = 1", None)],
)
def test_a_promise_with_a_large_delta_is_refused_when_the_rows_are_counted(promise, rule):
    study = study_of(PRIVATE.format(promise))
    policy = Policy(sources={"rows": SourcePolicy(bounds=BOUNDS)})
    assert not refusals(policy, study, "a", ["rows"])
    broken = refusals_of_run(policy, study, 1000, [], time.time())
    assert [text.split(":")[0] for text in broken] == ([rule] if rule else [])


def test_shared_noise_holds_against_half_of_the_other_sites():
    five = study_of(PRIVATE.format("1.0\ncolluders = 1"))
    five = msgspec.structs.replace(five, sites=tuple("abcde"))
    policy = Policy(sources={"rows": SourcePolicy(bounds=BOUNDS)})
    assert refusals(policy, five, "a", ["rows"]) == [
        "least_colluders: 1 is less than 2; give more, or leave colluders out"
    ]
    assert not refusals(msgspec.structs.replace(policy, least_colluders=1), five, "a", ["rows"])


def kinds_of(kind):
    yield kind
    for one in kind.__subclasses__():
        yield from kinds_of(one)


def all_errors():
    for kind in dict.fromkeys(kinds_of(DekrrError)):
        # what a service answers is no error of a study, and other tests of the session may have imported it
        if kind.__module__.startswith("dekrr") and "serving" not in kind.__module__ and kind is not PolicyError:
            yield kind(f"row 3, column 'u' is {SECRET!r}")
    yield NotNumbersError(SECRET).about("u")
    yield NotNumbersError(SECRET).about(SECRET)
    yield DataError(SECRET).about("u", SECRET)
    yield MessageError(SECRET, SECRET)
    yield FileNotFoundError(2, "No such file", f"/data/{SECRET}.csv")
    yield ValueError(SECRET)
    yield PolicyError("a", [f"sources.rows.least_rows: {SECRET}"])


@pytest.mark.parametrize("error", list(all_errors()), ids=lambda error: type(error).__name__)
def test_nothing_of_an_error_is_told_but_its_code_and_a_column_of_the_study(error):
    told = outward(error, study_of(), "a")
    assert "Clark" not in told
    assert told.split(":")[0] in WORDS
    assert ("'u'" in told) == (getattr(error, "column", None) == "u")


def test_every_code_of_the_library_has_words_of_its_own():
    text = "".join(path.read_text("utf-8") for path in Path(dekrr.__file__).parent.rglob("*.py"))
    codes = {*re.findall(r'\bcode(?: = |=)"([a-z-]+)"', text), *re.findall(r'\.about\([^()"]*, "([a-z-]+)"', text)}
    assert {"loss", "history", "transform", "classes", "column-missing"} <= codes <= WORDS.keys()
    assert all(outward(kind("x"), study_of(), "a").startswith(f"{kind.code}:") for kind in (LossError, KeysError))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A site that stands, without its neighbours."""
    consortium = Consortium(tmp_path_factory.mktemp("site"), ["a", "b", "c"])
    standing = consortium.open("a")
    yield consortium, standing
    standing._carrier.close()  # a thread of an open link would keep the process


@pytest.mark.parametrize("second", ["rows.parquet", "./../a/rows.parquet", "link.parquet", "."])
def test_rows_have_one_source_so_that_they_have_one_ledger(tmp_path, second):
    """A second name for a file was a second account, of runs, of rows and of the privacy budget."""
    home = Consortium(tmp_path, ["a", "b", "c"]).home("a")
    (home / "link.parquet").symlink_to(home / "rows.parquet")
    text = (home / "site.toml").read_text()
    assert "[sources]\n" in text
    (home / "site.toml").write_text(text.replace("[sources]\n", f'[sources]\nmore = "{second}"\n'))
    with pytest.raises(SettingsError, match=r"has the rows of sources\.(rows|more): .* give them one name"):
        read_standing(home / "site.toml")


def text_cell(table, column):
    table[column] = table[column].astype(object)
    table.loc[7, column] = SECRET


def text_cells(table, column):
    table.loc[7:16, column] = SECRET


def number_cell(table, column):
    table.loc[7, column] = -NUMBER


def mixed_cell(table, column):
    values = [{SECRET: 1}] * len(table)
    table[column] = values


def of_both_orders(table, column):
    table[column] = [f"1/31/{SECRET[6:10]}" if i % 2 else "31/1/2020" for i in range(len(table))]


def long_text(table, column):
    table[column] = [f"{SECRET} {i} " + "and so on " * 40 for i in range(len(table))]


def of_bytes(table, column):
    table[column] = [SECRET.encode()] * len(table)


def cell_of(value):
    def change(table, column):
        table.loc[7, column] = value

    return change


DATES = 'target = "y"\ncolumns = ["u", "when"]\nraw = true'
RAW = 'target = "y"\ncolumns = ["u", "v"]\nraw = true'
WEIGHT = 'target = "y"\ncolumns = ["u"]\nweight = "v"'
CLASSES = 'target = "y"\ncolumns = ["u", "v"]\nclasses = ["low", "high"]'
PLAIN = 'target = "y"\ncolumns = ["u", "v"]'


@pytest.mark.parametrize(
    ("data", "change", "column", "code"),
    [
        (PLAIN, text_cell, "u", "column-not-numbers"),
        (PLAIN, text_cell, "v", "column-not-numbers"),
        (PLAIN, text_cell, "y", "column-not-numbers"),
        (RAW, text_cell, "y", "column-not-numbers"),
        (RAW, mixed_cell, "u", "column-unusable"),
        (RAW, text_cell, "u", "column-unusable"),
        (DATES, text_cell, "when", "column-unusable"),
        (WEIGHT, text_cell, "v", "column-not-numbers"),
        (WEIGHT, number_cell, "v", "weights"),
        (CLASSES, text_cells, "y", "classes"),
        (PLAIN, lambda table, column: table.pop(column), "u", "column-missing"),
        (PLAIN, None, "u", "rows"),
        (DATES, of_both_orders, "when", "column-unusable"),
        (RAW, long_text, "u", "column-unusable"),
        (RAW, of_bytes, "v", "column-unusable"),
        (RAW, cell_of(np.inf), "u", "column-unusable"),
        (RAW, cell_of(8.67530625e200), "v", "column-unusable"),
        (PLAIN, cell_of(np.nan), "u", "column-not-numbers"),
        (RAW, cell_of(np.nan), "y", "column-not-numbers"),
        (WEIGHT, cell_of(np.nan), "v", "column-not-numbers"),
    ],
)
def test_a_secret_in_a_cell_is_in_no_report(site, data, change, column, code):
    consortium, standing = site
    path = consortium.home("a") / "rows.csv"
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.uniform(size=(80, 3)), columns=["u", "v", "y"])
    table["when"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(80), "D")
    if data == CLASSES:
        table["y"] = np.where(table["y"] > 0.5, "low", "high")
    path = consortium.home("a") / "rows.parquet"
    path.unlink(missing_ok=True)
    path.with_suffix(".csv").unlink(missing_ok=True)
    (consortium.home("a") / "kept" / "rows" / "ledger" / "tries").unlink(missing_ok=True)
    if change is not None:
        change(table, column)
        is_mixed = change in (text_cell, of_both_orders, long_text)
        path = path.with_suffix(".csv" if is_mixed else ".parquet")
        table.to_csv(path, index=False) if is_mixed else table.to_parquet(path)
    standing.config = msgspec.structs.replace(standing.config, sources={"rows": path.name})
    text = f"{HEAD.format('dekrr')}# {code} {column} {getattr(change, '__name__', '')}\n[data]\n{data}\n"
    standing.book.say(Proposal(text=text, time=time.time()))
    state = standing.book.studies[digest_of(text)]
    versions = standing.versions(state)
    StudyRun(standing, state, 1, versions)._run()
    report = state.reports["a", 1]
    assert report.outcome == "failed"
    assert report.reason.startswith(f"{code}:"), (report.reason, versions.states[0].reason)
    left = b"".join(msgspec.json.encode(item) for item in standing.book.get(standing.book.ids))
    for secret in (SECRET, "Clark", "86753", "8.6753", "1952", str(consortium.folder), "row 7"):
        assert secret.encode() not in left
    assert versions.get(1).told == report.reason  # what is reported if it could not be when the run ended


@pytest.mark.parametrize("error", [SettingsError(f"a number of a masked sum is {NUMBER}"), RuntimeError(SECRET)])
def test_an_error_in_mid_run_tells_nothing(site, monkeypatch, error):
    consortium, standing = site
    rng = np.random.default_rng(0)
    pd.DataFrame(rng.uniform(size=(80, 3)), columns=["u", "v", "y"]).to_parquet(consortium.home("a") / "rows.parquet")
    standing.config = msgspec.structs.replace(standing.config, sources={"rows": "rows.parquet"})

    def fails(node):
        node.close()
        raise error

    monkeypatch.setattr(Node, "run", fails)
    text = f"{HEAD.format('dekrr')}# {type(error)}\n[data]\n{PLAIN}\n[settings]\nn_features = 10\n{ALONE}"
    standing.book.say(Proposal(text=text, time=time.time()))
    state = standing.book.studies[digest_of(text)]
    versions = standing.versions(state)
    StudyRun(standing, state, 1, versions)._run()
    assert state.reports["a", 1].reason.split(":")[0] in ("settings", "error")
    assert "86753" not in state.reports["a", 1].reason
    assert "Clark" not in state.reports["a", 1].reason


def test_no_byte_that_leaves_has_a_secret_of_a_run_that_failed(tmp_path):
    consortium = Consortium(tmp_path, ["a", "b", "c"])
    path = consortium.home("b") / "rows.parquet"
    table = pd.read_parquet(path)
    text_cell(table, "v")
    table["v"] = table["v"].astype(str)
    table.to_parquet(path)
    text = consortium.study().read_text()
    left = []
    with Standing(consortium) as sites:
        for site in sites.values():

            def leaves(channel, to, frame, before=site._carrier._leaves):
                left.append(frame)
                before(channel, to, frame)

            site._carrier._leaves = leaves
        digest = digest_of(text)
        sites["a"].book.say(Proposal(text=text, time=time.time()))
        wait_until(lambda: all(digest in site.book.studies for site in sites.values()))
        for site in sites.values():
            site.book.decide(digest, "approve", "", "test")
        wait_until(lambda: len(sites["a"].book.studies[digest].reports) == 3)
        assert "column-not-numbers" in sites["a"].book.studies[digest].reports["b", 1].reason
    assert left
    assert not [frame for frame in left if b"Clark" in frame or b"rows.parquet" in frame]
    assert SECRET in consortium.versions("b").states[0].reason


def site_rows(folder, run, table, columns=("u", "v"), weight="", target="y", classes=(), **settings):
    """A site's part in a run of a study over a table."""
    table.to_parquet(folder / "rows.parquet")
    data = f'target = "{target}"\ncolumns = {json.dumps(list(columns))}\nweight = "{weight}"'
    data += f"\nclasses = {json.dumps(list(classes))}"
    given = {"n_features": 10, **settings}
    given = {"shared": "none", "local": "none", "column_scales": "none", **given}
    study = study_of("".join(f"{name} = {json.dumps(value)}\n" for name, value in given.items()), data)
    return SiteRows(study.site_file(run, "a", {"b": ""}, "rows.parquet"), folder, folder / "kept", b"s" * 32)


@pytest.fixture
def grown(tmp_path):
    """A folder, and 200 rows with a constant and a rare flag; the first run had 190 of them."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.uniform(size=(200, 3)), columns=["u", "v", "y"])
    table = table.assign(one=1.0, flag=np.where(np.arange(200) < 4, 2.0, 1.0))
    (tmp_path / "kept").mkdir()
    site_rows(tmp_path, "first", table[:190]).enter()
    return tmp_path, table


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"columns": ("u", "v", "one")},
        {"columns": ("v",)},
        {"seed": 7},
        {"bounds": [[0, 0, 0], [2, 2, 2]]},
        {"weight": "one"},
        {"n_features": 1, "min_rows": 10},
    ],
)
def test_new_rows_are_refused_whatever_a_study_asks_about_them(grown, asked):
    folder, table = grown
    with pytest.raises(DataError, match="separates 2 rows, fewer than 75"):
        site_rows(folder, "second", table[:192], **asked).judge()
    site_rows(folder, "second", table[:190], **asked).judge()


@pytest.mark.parametrize(
    ("asked", "fewest"),
    [
        ({"sigma": [0.5, 1.0], "folds": 4}, 4 * 15),
        ({"intervals": True}, 5 * 15),
        ({"shared": 1, "column_scales": "none"}, 5 * 10),
        ({"shared": 1, "columns": ("u", "v", "one")}, 5 * 12),
    ],
)
def test_a_fold_of_new_rows_is_as_many_as_a_sum_needs(tmp_path, asked, fewest):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.uniform(size=(400, 3)), columns=["u", "v", "y"]).assign(one=1.0)
    (tmp_path / "kept").mkdir()
    site_rows(tmp_path, "first", table[:200], **asked).enter()
    with pytest.raises(DataError, match=f"fewer than {fewest}, that no earlier run had"):
        site_rows(tmp_path, "second", table[: 199 + fewest], **asked).judge()
    site_rows(tmp_path, "second", table[: 210 + fewest], **asked).judge()  # a few of them stand alone


def test_refusals_are_no_oracle_that_can_be_asked_for_ever(site, monkeypatch):
    """Whether ten rows have none of the classes that a study names is told, but only so often."""
    consortium, standing = site
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.uniform(size=(80, 2)), columns=["u", "v"]).assign(y="a")
    table.loc[7:16, "y"] = "rare"
    table.to_parquet(consortium.home("a") / "rows.parquet")
    standing.config = msgspec.structs.replace(standing.config, sources={"rows": "rows.parquet"})
    monkeypatch.setattr(standing, "policy", Policy(sources={"rows": SourcePolicy(runs_per_month=1)}))
    (consortium.home("a") / "kept" / "rows" / "ledger" / "tries").unlink(missing_ok=True)
    told = []
    for number in range(7):
        data = f'target = "y"\ncolumns = ["u", "v"]\nclasses = ["a", "{number}"]'
        text = f"{HEAD.format('dekrr')}\n[data]\n{data}\n"
        standing.book.say(Proposal(text=text, time=time.time()))
        state = standing.book.studies[digest_of(text)]
        StudyRun(standing, state, 1, standing.versions(state))._run()
        told.append(state.reports["a", 1].reason.split(":")[0])
    assert told == ["classes"] * 5 + ["policy"] * 2


@pytest.mark.parametrize("count", [0, 1, 9, 10])
def test_few_rows_of_no_named_class_are_in_no_sum_and_refuse_nothing(tmp_path, caplog, count):
    """A study of the classes 0 to t, and of fewer, found the largest value of a column, which one row had."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.uniform(size=(300, 2)), columns=["u", "v"])
    table["age"] = np.where(np.arange(300) < count, 103, 30 + np.arange(300) % 30)
    (tmp_path / "kept").mkdir()

    def asked():
        own = site_rows(tmp_path, f"s{count}", table, target="age", classes=range(103))
        own.judge()
        return own

    if count >= 10:
        with pytest.raises(DataError, match="row 0 has 103, which is none of the classes 0, 1, ") as refusal:
            asked()
        assert refusal.value.code == "classes"
        return
    own = asked()
    assert own.rows.n_rows == 300, "the number of rows, which is told, would say how many there are"
    assert own.rows.admitted(own._admission).n_rows <= 300 - count
    assert not own._admission(table[["u", "v"]].to_numpy()[:count]).any()
    assert (f"{count} such rows, fewer than 10, are in no sum" in caplog.text) == (count > 0)
    own.enter()
    every = site_rows(tmp_path, "all", table, target="age")
    assert not every._admission(table[["u", "v"]].to_numpy()[:count]).any(), "what was withheld once stays out"


@pytest.mark.parametrize("role", ["target", "column"])
@pytest.mark.parametrize("count", [1, 3, 9, 10])
def test_rows_with_a_rare_value_are_in_no_sum(tmp_path, role, count):
    """With the site's own bounds of a flag, Z'y gave the sum of the features of one to nine flagged rows, exactly."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.uniform(size=(300, 3)), columns=["u", "v", "y"])
    table["flag"] = np.where(np.arange(300) % 2, 1.0, 0.0)
    table.loc[range(17, 17 + count), "flag"] = 2.0
    (tmp_path / "kept").mkdir()
    columns = ("u", "v") if role == "target" else ("u", "v", "flag")
    asked = {"bounds": [[0.0] * (len(columns) + 1), [2.0] * (len(columns) + 1)], "columns": columns}
    own = site_rows(tmp_path, "first", table, target="flag" if role == "target" else "y", **asked)
    own.judge()
    inside = own.rows.admitted(own._admission).sample
    values = inside.y if role == "target" else inside.X[:, 2]
    assert (values == 2).sum() == (count if count >= 10 else 0)
    own.enter()
    assert own.ledger.entries[0].n_rows == inside.n_rows
    other = site_rows(tmp_path, "second", table, columns=("u", "v"))
    other.judge()
    assert other.rows.admitted(other._admission).n_rows <= inside.n_rows  # what was withheld once stays out


def test_a_study_of_a_rare_value_after_others_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.uniform(size=(300, 3)), columns=["u", "v", "y"]).assign(flag=0.0)
    table.loc[:2, "flag"] = 1.0
    (tmp_path / "kept").mkdir()
    site_rows(tmp_path, "first", table).enter()
    with pytest.raises(DataError, match="separates 3 rows"):
        site_rows(tmp_path, "second", table, target="flag", bounds=[[0.0] * 3, [1.0] * 3]).judge()


def test_a_rare_flag_as_a_column_of_weights_is_refused(grown):
    folder, table = grown
    with pytest.raises(DataError, match="separates 4 rows, fewer than 75"):
        site_rows(folder, "second", table[:190], weight="flag").judge()


@pytest.mark.parametrize(("more", "n_admitted"), [("", 2), ("\ndelta = 1e-6", 2), ("\nmax_epsilon = 1000.0", 2)])
def test_a_series_of_private_studies_ends_with_the_total_of_the_site(tmp_path, more, n_admitted):
    """Thirty of thirty runs at epsilon 5 were admitted when a study could say what it may spend."""
    rng = np.random.default_rng(0)
    pd.DataFrame(rng.uniform(size=(200, 3)), columns=["u", "v", "y"]).to_parquet(tmp_path / "rows.parquet")
    (tmp_path / "kept").mkdir()
    policy, answers = Policy(sources={"rows": SourcePolicy(bounds=BOUNDS)}), []
    for number in range(30):
        study = study_of(f"seed = {number}\n{PRIVATE.format('5.0' + more)}", method="dekrr")
        assert not refusals(policy, study, "a", ["rows"])
        config = study.site_file(f"run-{number}", "a", {"b": "", "c": ""}, "rows.parquet")
        total = policy.sources["rows"].total_epsilon
        try:
            SiteRows(config, tmp_path, tmp_path / "kept", b"s" * 32, total_epsilon=total).enter()
        except DataError as error:
            answers.append(error.code)
        else:
            answers.append("")
    assert answers == [""] * n_admitted + ["budget"] * (30 - n_admitted)


def test_two_first_runs_at_once_are_judged_one_after_the_other(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.uniform(size=(200, 3)), columns=["u", "v", "y"])
    (tmp_path / "kept").mkdir()
    first, second = (site_rows(tmp_path, f"{n}", table[:n]) for n in (190, 191))
    for own in (first, second):
        own.judge()  # none has been noted yet
    first.enter()
    with pytest.raises(DataError, match="separates 1 row"):
        second.enter()


def test_a_run_that_failed_before_anything_left_is_no_history(site):
    consortium, standing = site
    rng = np.random.default_rng(0)
    pd.DataFrame(rng.uniform(size=(80, 3)), columns=["u", "v", "y"]).to_parquet(consortium.home("a") / "rows.parquet")
    standing.config = msgspec.structs.replace(standing.config, sources={"rows": "rows.parquet"})
    text = f"{HEAD.format('dekrr')}# alone\n[data]\n{PLAIN}\n[settings]\nn_features = 10\n{ALONE}"
    standing.book.say(Proposal(text=text, time=time.time()))
    state = standing.book.studies[digest_of(text)]
    StudyRun(standing, state, 1, standing.versions(state))._run()
    assert state.reports["a", 1].reason.startswith("absence")
    assert not (consortium.home("a") / "kept" / "rows" / "ledger" / "runs").exists()


def test_a_person_is_told_in_words_what_is_unlike_earlier_studies():
    policy, study = Policy(), study_of("n_features = 10\n" + ALONE)
    first = " ".join(in_words(study, policy, [], 0.0))
    for words in (
        "It reads of rows: u, v; it predicts y.",
        "at least 10 rows",
        "first study",
        "0 of at most 4",
        "At worst",
    ):
        assert words in first
    about = study.terms("", study.sites)
    entry = PastRun(run="x", time=0.0, rows={}, n_rows=80, fewest=15, about=about)
    again = " ".join(in_words(study, policy, [entry], 0.0))
    assert "what an earlier study" in again
    assert "an earlier run of this seed" in again
    other = study_of("n_features = 10\nseed = 3\n" + ALONE, 'target = "y"\ncolumns = ["u"]\nweight = "v"')
    told = " ".join(in_words(other, policy, [entry], 0.0))
    for words in ("columns is u, and was u, v", "weight is v, and was none", "seed is 3, and was 0", "1 of at most 4"):
        assert words in told
    assert "an earlier run of this seed" not in told
