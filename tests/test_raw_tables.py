"""Tables as people have them: small sites, dates of every form, identifiers, columns that some sites lack."""

import datetime
import warnings

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from msgspec.structs import replace

import dekrr
from dekrr import DataError, DeKRRClassifier, DeKRRRegressor
from dekrr.errors import DekrrWarning, MessageError
from dekrr.messages import RawColumns, ToldColumn
from dekrr.networks.local import LocalNetwork
from dekrr.protocols.preparation import agree_on_columns
from dekrr.protocols.roll_call import roll_call
from dekrr.protocols.site import Site
from dekrr.serving.bodies import CSV, JSON, RowReader
from dekrr.tables.columns import Column, Columns, Facts, dates_of_numbers, dates_of_words, raw_of, read_raw
from dekrr.tables.rows import ArrayRows

SMALL = {"n_features": 8, "sigma": 1.0, "alpha": 1e-3, "consensus": 1.0, "random_state": 0}
QUICK = SMALL | {"shared": None, "local": None, "column_scales": None}


def regressor(**changes):
    return DeKRRRegressor(**QUICK | changes)


def table_of(n=240, n_sites=4, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"site": [f"s{j % n_sites}" for j in range(n)], "x": rng.normal(size=n)})
    frame["when"] = pd.Timestamp("2014-01-01") + pd.to_timedelta(rng.integers(0, 600, n), unit="D")
    frame["target"] = np.sin(frame["x"]) + frame["when"].dt.month / 12
    return frame


def agreed(tables, min_rows=1):
    """Return what the columns of sites become, which must be the same at all of them."""
    graph = nx.path_graph(sorted(tables))
    names = list(dict.fromkeys(name for table in tables.values() for name in table.columns))
    facts = {}
    for name, table in tables.items():
        facts[name] = Facts(names)
        facts[name].add(read_raw(table, list(table.columns)), f"the table of {name}")
    rows = {name: ArrayRows(np.zeros((len(table), 1)), np.zeros(len(table))) for name, table in tables.items()}
    sites = {name: Site(name, tuple(graph[name]), rows[name]) for name in graph}
    network = LocalNetwork({name: list(graph[name]) for name in graph})
    found = network.run({name: agree_on_columns(site, facts[name], min_rows) for name, site in sites.items()})
    assert len({str(columns) for columns in found.values()}) == 1
    return next(iter(found.values()))


# Small sites


def test_every_site_with_a_row_takes_part():
    sizes = {"one": 1, "two": 2, "five": 5, "many": 60, "more": 80}
    rng = np.random.default_rng(0)
    X = rng.normal(size=(sum(sizes.values()), 3))
    y, labels = np.sin(X[:, 0]), np.repeat(list(sizes), list(sizes.values()))
    fitted = DeKRRRegressor(random_state=0).fit(X, y, sites=labels)
    assert fitted.n_rows_ == sizes
    assert fitted.rse(X, y, sites=labels) < 0.1
    assert np.isfinite(fitted.models_["one"].predict(X)).all()
    assert "one" in str(fitted.fit_summary())
    classes = DeKRRClassifier(random_state=0).fit(X, y > 0, sites=labels)
    assert np.isfinite(classes.predict_proba(X, sites=labels)).all()


def test_a_deployment_names_all_small_sites_and_what_can_be_done():
    labels = np.r_[np.repeat(["a", "b"], 40), ["tiny"] * 3, ["small"] * 7]
    X = np.random.default_rng(0).random((90, 2))
    with pytest.raises(DataError) as refused:
        regressor(deployment=True).fit(X, X[:, 0], sites=labels)
    for words in (
        "would refuse 2 of 4 sites",
        "site 'small' has 7 rows, fewer than min_rows=10; site 'tiny' has 3 rows, fewer than min_rows=10",
        "Join such sites to others, as in sites.replace({'small': 'a', 'tiny': 'a'}), or drop their rows",
    ):
        assert words in str(refused.value)
    with pytest.raises(DataError, match="site 'small' has 7 rows; site 'tiny' has 3 rows, fewer than min_rows=8"):
        regressor(min_rows=8).fit(X, X[:, 0], sites=labels)
    raw = pd.DataFrame({"word": np.where(X[:, 0] > 0.5, "a", "b"), "y": X[:, 1], "site": labels})
    with pytest.raises(DataError, match="site 'small' has 7 rows; site 'tiny' has 3 rows, fewer than min_rows=10"):
        regressor(deployment=True).fit(raw, "y", sites="site")


# Dates


FORMS = [
    "%d-%m-%Y",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%m/%d/%y",
    "%d.%m.%Y",
    "%d.%m.%y",
    "%Y%m%dT%H%M%S",
    "%Y%m%d",
    "%Y/%m/%d",
    "%Y-%m-%d",
    "%d %b %Y",
    "%d-%b-%y",
    "%B %d, %Y",
    "%Y-%m-%dT%H:%M:%SZ",
    "%d.%m.%Y %H:%M",
    "%m/%d/%Y %I:%M:%S %p",
]


@pytest.mark.parametrize("form", FORMS)
def test_dates_against_pandas(form):
    """All days of two years, written in a form, are read as pandas reads them by that form."""
    dates = pd.Series(pd.date_range("2013-01-01 13:45:30", periods=730, freq="D"))
    words = dates.dt.strftime(form)
    raw = raw_of(words.to_numpy(object))
    assert raw.kind == "datetime"
    assert raw.short == ("%y" in form)
    assert raw.order == {"%d": "day", "%m": "month"}.get(form[:2] if "%b" not in form else "", "")
    np.testing.assert_array_equal(
        raw.values, pd.to_datetime(words, format=form).dt.tz_localize(None).to_numpy("M8[us]")
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["2014-10", "2015-01"], ["2014-10-01", "2015-01-01"]),
        (["Oct 2014", "January 2015"], ["2014-10-01", "2015-01-01"]),
        (["13:45", "3:05"], ["1970-01-01T13:45", "1970-01-01T03:05"]),
        (["13:45:30", "03:05:07.25"], ["1970-01-01T13:45:30", "1970-01-01T03:05:07.250"]),
        (["1:45 PM", "12:05 am"], ["1970-01-01T13:45", "1970-01-01T00:05"]),
        (["29/02/2016", "1/3/2016"], ["2016-02-29", "2016-03-01"]),
        (["1/1/68", "31/12/69"], ["2068-01-01", "1969-12-31"]),
    ],
)
def test_more_forms_of_dates(words, expected):
    np.testing.assert_array_equal(raw_of(np.array(words, dtype=object)).values, np.array(expected, dtype="M8[us]"))


@pytest.mark.parametrize(
    "words",
    [
        ["2014-13"], ["20141313"], ["25:00"], ["30/02/2016"], ["31/31/2016"], ["99/10/13"], ["13:45", "2014-10-13"],
        ["13 Octopus 2014x"], ["1.2.3"], ["10/12"], ["2014-10-13", "soon"], ["13 pm"], ["0:30 pm"], ["1700-01"],
    ],
)  # fmt: skip
def test_words_that_are_no_dates(words):
    assert dates_of_words(words) is None
    assert raw_of(np.array(words, dtype=object)).kind == "category"


def test_numbers_that_are_dates():
    days = pd.Series(pd.date_range("1999-12-01", "2001-03-02"))
    numbers = days.dt.strftime("%Y%m%d").astype(float).to_numpy()
    np.testing.assert_array_equal(dates_of_numbers(numbers), days.to_numpy("M8[us]"))
    for odd in (20230229.0, 20230001.0, 20231301.0, 20230100.0, 20230101.5, 17000101.0, 5.0):
        assert dates_of_numbers(np.array([20230101.0, odd])) is None
    frame = pd.DataFrame({"day": numbers.astype(int), "word": "a"})
    assert agreed({"a": frame, "b": frame}).columns[0].kind == "datetime"
    assert agreed({"a": frame, "b": frame.assign(day=7)}).columns[0].kind == "number"
    day = agreed({"a": frame}).columns[0]
    np.testing.assert_allclose(
        day.encode(raw_of(np.array([20000229]))), day.encode(raw_of(np.array([datetime.date(2000, 2, 29)])))
    )
    with pytest.raises(DataError, match=r"column 'day' has numbers .row 0 is .*7.*trained on dates"):
        day.encode(raw_of(np.array([7.0])))


OPEN = pd.DataFrame({"when": ["02/03/2014", "05/06/2014", "11/12/2014"]})


@pytest.mark.parametrize(("settles", "order"), [("13/02/2014", "day"), ("02/13/2014", "month")])
def test_one_site_settles_for_all_whether_the_day_or_the_month_comes_first(settles, order):
    tables = {"a": OPEN, "b": OPEN, "c": OPEN.assign(when=["01/01/2014", settles, "01/02/2014"])}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        column = agreed(tables).columns[0]
    assert (column.kind, column.order) == ("datetime", order)
    form = "%d/%m/%Y" if order == "day" else "%m/%d/%Y"
    as_dates = OPEN.assign(when=pd.to_datetime(OPEN["when"], format=form))
    columns = Columns((column,))
    np.testing.assert_allclose(columns.encode(OPEN), columns.encode(as_dates))
    all_rows = pd.to_datetime(pd.concat([table["when"] for table in tables.values()]), format=form)
    assert abs(column.fill - 2014 - np.mean(all_rows.dt.day_of_year) / 365) < 0.1
    other = settles[3:6] + settles[:3] + settles[6:]
    with pytest.raises(
        DataError, match=rf"dates with the .* first .row 0 is '{other}'.* trained on dates with the {order}"
    ):
        columns.encode(pd.DataFrame({"when": [other]}))


def test_an_order_that_nobody_settles_is_assumed_and_told():
    with pytest.warns(DekrrWarning, match=r"column 'when' has dates that could .* the day was taken .*dayfirst=False"):
        column = agreed({"a": OPEN, "b": OPEN}).columns[0]
    assert column.order == "day"


def test_orders_that_contradict_each_other_are_refused():
    day, month = OPEN.assign(when="13/02/2014"), OPEN.assign(when="02/13/2014")
    with pytest.raises(
        DataError, match="'when' has dates with the day first in site 'a' and with the month first in site 'c'"
    ):
        agreed({"a": day, "b": OPEN, "c": month})
    with pytest.raises(
        DataError, match=r"day first, such as '13/02/2014' in row 0, and with the month first, .* in row 3"
    ):
        read_raw(pd.concat([day, month]), ["when"])


def test_a_stray_word_among_dates_is_named():
    frame = table_of().assign(when=lambda frame: frame["when"].dt.strftime("%d/%m/%Y"))
    frame.loc[7, "when"] = "unknown"
    with pytest.raises(DataError, match="column 'when' has dates, but row 7 is 'unknown': leave such cells empty"):
        regressor().fit(frame, "target", sites="site")


def test_parts_that_differ_between_sites_alone_are_kept():
    tables = {name: pd.DataFrame({"when": [f"{hour}:00"] * 3}) for name, hour in (("a", 8), ("b", 12), ("c", 17))}
    assert agreed(tables).columns[0].parts == ("hour",)
    assert agreed({"a": tables["a"], "b": tables["a"]}).columns[0].parts == ("year",)


@pytest.mark.parametrize("form", ["%d-%m-%Y", "%m/%d/%Y", "%Y%m%dT%H%M%S", "%Y-%m"])
@pytest.mark.parametrize("kind", ["frame", "file", "mapping"])
def test_a_written_date_is_as_good_as_a_real_one(form, kind, tmp_path):
    frame = table_of().assign(word="a")
    if form == "%Y-%m":
        frame["when"] = frame["when"].dt.to_period("M").dt.to_timestamp()
    written = frame.assign(when=frame["when"].dt.strftime(form))
    expected = regressor().fit(frame, "target", sites="site")
    given = written
    if kind == "file":
        given = tmp_path / "table.csv"
        written.to_csv(given, index=False)
    if kind == "mapping":
        given = {site: part.drop(columns="site") for site, part in written.groupby("site")}
    fitted = regressor().fit(given, "target", sites=None if kind == "mapping" else "site")
    np.testing.assert_allclose(fitted.predict(written, sites="site"), expected.predict(frame, sites="site"), atol=1e-9)
    path = tmp_path / "s1.safetensors"
    fitted.models_["s1"].save(path)
    few = written[written["site"] == "s1"].iloc[:3]
    loaded = dekrr.load(path).predict(few)
    np.testing.assert_allclose(loaded, fitted.predict(few, sites="site"))


# Words


def test_a_column_of_identifiers_is_left_out_and_told(tmp_path):
    frame = table_of().assign(name=[f"patient {j}" for j in range(240)], never=None)
    with pytest.warns(DekrrWarning, match="column 'name' is left out: nearly every row has a word of its own there"):
        fitted = regressor().fit(frame, "target", sites="site")
    plain = regressor().fit(frame.drop(columns=["name", "never"]), "target", sites="site")
    expected = plain.predict(frame, sites="site")
    np.testing.assert_allclose(fitted.predict(frame, sites="site"), expected)
    np.testing.assert_allclose(fitted.predict(frame.drop(columns=["name", "never"]), sites="site"), expected)
    assert fitted.feature_names_in_.tolist() == ["x", "when", "name", "never"]
    assert fitted.columns_.names_out == plain.columns_.names_out
    path = tmp_path / "s0.safetensors"
    fitted.models_["s0"].save(path)
    rows = frame[["x", "when", "name", "never"]]
    np.testing.assert_allclose(dekrr.load(path).predict(rows), dekrr.load(path).predict(rows.to_numpy(object)))
    with pytest.raises(DataError, match="there is no column to predict from: column 'name' is left out"):
        regressor().fit(frame[["name", "site", "target"]], "target", sites="site")


def test_the_service_takes_written_dates_and_needs_no_identifiers():
    frame = table_of().assign(name=[f"patient {j}" for j in range(240)])
    frame["when"] = frame["when"].dt.strftime("%d/%m/%Y")
    with pytest.warns(DekrrWarning, match="column 'name' is left out"):
        model = regressor().fit(frame, "target", sites="site").models_["s0"]
    read = RowReader(model, max_rows=5)
    assert [column.name for column in read.columns] == ["x", "when"]
    for body, kind in ((b'{"rows": [{"x": 1.5, "when": "02/03/2014"}]}', JSON), (b"x,when\n1.5,02/03/2014\n", CSV)):
        expected = model.predict(pd.DataFrame({"x": [1.5], "when": [pd.Timestamp("2014-03-02")]}))
        np.testing.assert_allclose(model.predict(read(body, kind)), expected)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"kind": "liquid"}, "a column 'x' that cannot exist"),
        ({"n_missing": -1}, "a column 'x' that cannot exist"),
        ({"parts": {"century": None}}, "a column 'x' that cannot exist"),
        ({"orders": {"day": "x" * 1000}}, "a column 'x' that cannot exist"),
        ({"counts": {"word": -5}}, "categories of 'x' that cannot exist"),
        ({"counts": {f"{j}": 1 for j in range(1001)}}, "categories of 'x' that cannot exist"),
    ],
)
def test_what_a_liar_tells_of_columns_is_refused(wrong, reason):
    told = ToldColumn("category", "site 'b'", False, 4, 0, {"N": 4}, {}, {})
    facts = Facts(["x"])
    facts.add(read_raw({"x": np.array(["N", "S"] * 5)}, ["x"]))

    def liar(site):
        roster = yield from roll_call(site)
        assert roster.parent == "a"
        yield {"a": RawColumns({"x": replace(told, **wrong)})}

    rows = ArrayRows(np.zeros((10, 1)), np.zeros(10))
    sites = {"a": Site("a", ("b",), rows), "b": Site("b", ("a",), rows)}
    with pytest.raises(MessageError, match=f"site 'b' describes {reason}"):
        LocalNetwork({"a": ["b"], "b": ["a"]}).run({"a": agree_on_columns(sites["a"], facts, 1), "b": liar(sites["b"])})


def test_rare_categories_are_pooled_by_the_rows_of_all_sites():
    """A word that each site has in a few rows is a category; one that a small site has alone in two rows is none."""
    words = {name: ["N"] * 200 + ["S"] * 196 + ["calm"] * 4 for name in "abc"}
    words["d"] = ["N", "S", "odd", "odd"]
    column = agreed({name: pd.DataFrame({"wind": own}) for name, own in words.items()}).columns[0]
    assert column.categories == ("N", "S", "calm")
    few = {name: pd.DataFrame({"wind": ["N", "S", "N", "S", "E"]}) for name in "abcd"}
    assert agreed(few).columns[0].categories == ("E", "N", "S")


def test_words_that_sites_share_are_no_identifiers():
    """Every row of a site has its own word, but all sites have the same words."""
    weeks = pd.DataFrame({"week": [f"week {j}" for j in range(40)]})
    assert len(agreed(dict.fromkeys("abcdefghijkl", weeks)).columns[0].categories) == 40


def test_many_words_of_many_rows_are_no_identifiers():
    words = pd.DataFrame({"word": np.repeat([f"w{j}" for j in range(1500)], 12)})
    assert len(agreed({"a": words}).columns[0].categories) == 64
    few = pd.DataFrame({"word": [f"name {j}" for j in range(90)] + ["John", "Jane"] * 2, "x": 1.0})
    with pytest.warns(DekrrWarning, match="column 'word' is left out"):
        assert agreed({"a": few}).columns[0].kind == "none"


# Columns that sites lack


def test_columns_without_values_at_some_sites():
    frame = table_of().assign(word="a", wind=np.where(np.arange(240) % 3, "N", "S"), depth=np.arange(240.0))
    frame.loc[frame["site"] == "s1", ["wind", "when", "depth"]] = None
    fitted = regressor().fit(frame, "target", sites="site")
    kinds = {column.name: column.kind for column in fitted.columns_.columns}
    assert kinds == {"x": "number", "when": "datetime", "word": "category", "wind": "category", "depth": "number"}
    assert np.isfinite(fitted.predict(frame, sites="site")).all()
    parts = {site: part.drop(columns="site") for site, part in frame.groupby("site")}
    again = regressor().fit(parts, "target")
    assert again.columns_ == fitted.columns_


def test_columns_that_some_sites_do_not_have(tmp_path):
    frame = table_of().assign(word="a", depth=np.arange(240.0))
    parts = {site: part.drop(columns="site") for site, part in frame.groupby("site")}
    parts["s1"] = parts["s1"].drop(columns=["depth", "when"])
    with pytest.warns(DekrrWarning, match=r"columns 'when', 'depth' are not in the tables of all sites .*'s1'"):
        fitted = regressor().fit(parts, "target")
    assert {column.name for column in fitted.columns_.columns if column.absent} == {"depth", "when"}
    path = tmp_path / "s1.safetensors"
    fitted.models_["s1"].save(path)
    lacking = dekrr.load(path).predict(parts["s1"])
    np.testing.assert_allclose(lacking, fitted.models_["s1"].predict(parts["s1"].assign(depth=np.nan, when=None)))
    np.testing.assert_allclose(fitted.predict({"s1": parts["s1"]}), lacking)
    with pytest.raises(DataError, match=r"lacks columns \['x'\]"):
        fitted.models_["s1"].predict(parts["s1"].drop(columns="x"))


def test_numbers_too_can_be_in_the_tables_of_some_sites_alone():
    frame = table_of().drop(columns="when").assign(depth=np.arange(240.0))
    parts = {site: part.drop(columns="site") for site, part in frame.groupby("site")}
    parts["s0"] = parts["s0"].drop(columns="depth")
    with pytest.warns(DekrrWarning, match="columns 'depth' are not in the tables of all sites"):
        fitted = regressor().fit(parts, "target")
    assert fitted.columns_.names_out == ["x", "depth", "depth missing"]


# Defects


def test_missing_numbers_are_filled_by_rows_from_everywhere():
    """The table is sorted, and has more rows than a site keeps."""
    facts = Facts(["x"])
    for part in np.array_split(np.linspace(0, 100, 60_000), 6):
        facts.add(read_raw({"x": part}, ["x"]))
    middle, spread = facts.columns["x"].middle()
    assert abs(middle - 50) <= 1
    assert abs(spread - 50) <= 1


def test_predictions_read_a_frame_alike_however_sites_are_given():
    frame = table_of().assign(more="not for the model")
    for columns in (["x"], ["x", "when"]):
        fitted = regressor(intervals=True).fit(frame, "target", sites="site", columns=columns)
        expected = fitted.predict(frame, sites="site")
        np.testing.assert_allclose(fitted.predict(frame, sites=frame["site"]), expected)
        np.testing.assert_allclose(fitted.predict(frame[frame.columns[::-1]], sites=frame["site"].to_numpy()), expected)
        ends = fitted.predict_interval(frame, sites=frame["site"])
        np.testing.assert_allclose(ends, fitted.predict_interval(frame, sites="site"))
        assert fitted.score(frame, frame["target"], sites=frame["site"]) > 0


# Real tables


TABLES = [
    "airbnb_cities", "exam_london", "heart_hospitals", "kc_house_zips", "life_expectancy_countries", "maize_texas_locs",
    "nhs_ae_trusts", "parkinsons_patients", "txhousing_cities", "walmart_stores", "weather_aus_humid",
    "weather_aus_rain",
]  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_real_tables_are_fitted_as_they_are(data_directory, name, tmp_path):
    path = data_directory / "sites" / f"{name}.parquet"
    if not path.exists():
        pytest.skip(f"needs {path}")
    table = pd.read_parquet(path)
    sites = table["site"].unique()[:12]
    table = table[table["site"].isin(sites)].groupby("site").head(30)
    kind = DeKRRClassifier if name in ("weather_aus_rain", "heart_hospitals") else DeKRRRegressor
    fitted = kind(n_features=10, random_state=0).fit(table, "target", sites="site")
    rows = table.drop(columns="target")
    predicted = fitted.predict(rows, sites="site")
    assert len(predicted) == len(table)
    if kind is DeKRRRegressor:
        assert np.isfinite(predicted).all()
    if name == "kc_house_zips":
        assert fitted.columns_.columns[0].kind == "datetime"
    model = fitted.models_[sites[0]]
    model.save(tmp_path / "model.safetensors")
    own = rows[rows["site"] == sites[0]]
    np.testing.assert_array_equal(dekrr.load(tmp_path / "model.safetensors").predict(own), model.predict(own))


def test_a_column_says_what_it_needs():
    with pytest.raises(DataError, match=r"lacks columns \['x'\]; the model was trained on \['x'\]"):
        Columns((Column(name="x", kind="number"), Column(name="id", kind="none"))).encode({"y": np.ones(3)})
