"""Frames with words, dates and missing values: what they become, what sites tell each other of them, and errors."""

import datetime
import pickle
import warnings

import narwhals
import networkx as nx
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import dekrr
from dekrr import CentralizedKRR, DataError, DeKRRClassifier, DeKRRRegressor, DifferentialPrivacy, LocalRegressor
from dekrr.errors import SettingsError
from dekrr.estimators.tables import tell_of_leaks
from dekrr.messages import RawColumns, Total
from dekrr.networks.local import LocalNetwork
from dekrr.protocols.preparation import agree_on_columns
from dekrr.protocols.site import Site
from dekrr.tables.columns import Column, Columns, Facts, Raw, is_frame, is_plain, place_in, raw_of, read_raw
from dekrr.tables.rows import ArrayRows

NAMES = ["temp", "wind", "rain", "when", "kind"]


def make_frame(n=600, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "station": rng.choice(["A", "B", "C"], n),
            "temp": rng.normal(10, 8, n),
            "wind": rng.choice(["N", "NE", "S", "W"], n),
            "rain": rng.random(n) < 0.2,
            "when": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 8760, n), unit="h"),
            "kind": pd.Categorical(rng.choice(["urban", "rural"], n)),
        }
    )
    frame["pm"] = np.sin(frame["temp"] / 6) + frame["wind"].map({"N": 0, "NE": 0.5, "S": 2, "W": 3})
    frame.loc[rng.random(n) < 0.1, "temp"] = np.nan
    frame.loc[rng.random(n) < 0.1, "wind"] = None
    return frame


FRAME = make_frame()
SMALL = {"n_features": 12, "sigma": 1.0, "alpha": 1e-4, "consensus": 1.0, "random_state": 0}


def regressor(**changes):
    return DeKRRRegressor(**SMALL | changes)


# One column


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (np.array([1, 2]), "number"),
        (np.array([1.0, np.nan]), "number"),
        (np.array([True, False]), "boolean"),
        (np.array([True, None], dtype=object), "boolean"),
        (np.array(["a", "b"]), "category"),
        (np.array(["a", None], dtype=object), "category"),
        (np.array([1, True, None], dtype=object), "number"),
        (np.array(["2024-01-01", None], dtype=object), "datetime"),
        (np.array(["2024-01-01T12:00:00Z", "2024-01-01 12:30:00+02:00"]), "datetime"),
        (np.array(["2024-13-01"]), "category"),
        (np.array(["12", "7"]), "category"),
        (np.array([datetime.date(2024, 1, 1), None], dtype=object), "datetime"),
        (np.array([datetime.time(6, 30)], dtype=object), "datetime"),
        (np.array([1, 2], dtype="timedelta64[h]"), "number"),
        (np.array([None, np.nan, pd.NA, pd.NaT], dtype=object), "empty"),
    ],
)
def test_kinds(values, kind):
    raw = raw_of(values)
    assert raw.kind == kind
    assert raw.missing.tolist() == [bool(pd.isna(value)) for value in values]


def test_dates_against_pandas():
    dates = pd.Series(pd.date_range("1969-12-30 05:17", periods=900, freq="29h"))
    values = dates.to_numpy().astype("datetime64[us]")
    np.testing.assert_allclose(place_in(values, "hour") * 24, dates.dt.hour + dates.dt.minute / 60)
    np.testing.assert_allclose(place_in(values, "weekday") * 7, dates.dt.weekday)
    np.testing.assert_allclose(place_in(values, "day of year") * 365.2425, dates.dt.dayofyear - 1)
    in_days = np.where(dates.dt.is_leap_year, 366, 365)
    passed = dates.dt.dayofyear - 1 + (dates.dt.hour + dates.dt.minute / 60) / 24
    np.testing.assert_allclose(place_in(values, "year"), dates.dt.year + passed / in_days, rtol=1e-12)


def test_encoding_by_hand():
    columns = Columns(
        (
            Column(name="temp", kind="number", fill=10.0, spread=4.0, missing=True),
            Column(name="wind", kind="category", categories=("E", "N", "S"), missing=True),
            Column(name="when", kind="datetime", fill=2024.0, spread=2.0, parts=("year", "hour")),
            Column(name="kind", kind="category", categories=("rural", "urban")),
        )
    )
    frame = pd.DataFrame(
        {
            "kind": ["urban", "rural", "city"],
            "when": pd.to_datetime(["2024-01-01 06:00", "2026-01-01 00:00", None]),
            "wind": ["N", "X", None],
            "temp": [14.0, None, 6.0],
            "more": [1, 2, 3],
        }
    )
    leap = 0.25 / 366 / 2
    expected = [
        [1, 0, 0, 1, 0, 0, leap, 1, 0, 1],
        [0, 1, 0, 0, 0, 0, 1, 0, 1, 0],
        [-1, 0, 0, 0, 0, 1, 0, 0, 0, 0.5],
    ]
    np.testing.assert_allclose(columns.encode(frame), expected, atol=1e-12)
    assert columns.n_out == len(columns.names_out) == 10
    scales = columns.per_column([0.1, 0.2, 0.3, 1.0, 0.5, 0.1, 0.4, 0.2, 0.1, 0.7])
    np.testing.assert_array_equal(scales, [0.2, 1.0, 0.4, 0.7])


CELLS = {
    "number": st.none() | st.floats(-1e6, 1e6) | st.integers(-5, 5),
    "boolean": st.none() | st.booleans(),
    "category": st.none() | st.text("abc", max_size=2),
    "datetime": st.none() | st.datetimes(),
}


@given(st.data())
def test_any_column_becomes_finite_numbers_at_any_site(data):
    """Training on one part and encoding another gives finite numbers of the same columns."""
    kind = data.draw(st.sampled_from(sorted(CELLS)))
    train, new = (data.draw(st.lists(CELLS[kind], min_size=2, max_size=12)) for _ in range(2))
    raw = {"x": raw_of(np.array([*train, None], dtype=object)[:-1])}
    facts = Facts(["x"])
    facts.add(raw)
    site = Site("a", (), ArrayRows(np.zeros((len(train), 1)), np.zeros(len(train))))
    try:
        columns = LocalNetwork({"a": ()}).run({"a": agree_on_columns(site, facts, 1)})["a"]
    except DataError as error:
        assert "there is no column to predict from" in str(error)  # noqa: PT017
        return
    encoded = columns.encode({"x": np.array([*new, None], dtype=object)[:-1]})
    assert encoded.shape == (len(new), columns.n_out)
    assert np.isfinite(encoded).all()


# What sites agree on


def agreed(frame, graph, min_rows=10, observers=()):
    labels = sorted(frame["station"].unique())
    facts = {}
    for label in labels:
        facts[label] = Facts(NAMES)
        facts[label].add(read_raw(frame[frame["station"] == label], NAMES))
    network = LocalNetwork({label: list(graph[label]) for label in labels}, observers=observers)
    sites = [
        Site(label, tuple(graph[label]), ArrayRows(np.zeros((facts[label].n_rows, 1)), np.zeros(facts[label].n_rows)))
        for label in labels
    ]
    return network.run({site.name: agree_on_columns(site, facts[site.name], min_rows) for site in sites})


def test_all_sites_agree_on_what_all_rows_say():
    frame = make_frame(900)
    frame["station"] = np.random.default_rng(1).choice(list("ABCDEF"), len(frame))
    frame.loc[frame["station"] == "A", "wind"] = "calm"
    graph = nx.path_graph(list("ABCDEF"))
    found = agreed(frame, graph)
    assert len({str(columns) for columns in found.values()}) == 1
    temp, wind, rain, when, kind = found["F"].columns
    counts = frame.groupby("station")["wind"].value_counts()
    assert wind.categories == tuple(sorted({word for (_, word), count in counts.items() if count >= 10}))
    assert temp.missing
    assert wind.missing
    assert not rain.missing
    assert kind.categories == ("rural", "urban")
    assert when.parts == ("year", "day of year", "hour", "weekday")
    quarter, half, three = np.percentile(frame["temp"].dropna(), [25, 50, 75])
    assert abs(temp.fill - half) < 0.2 * (three - quarter)
    assert temp.spread == pytest.approx(three - quarter, rel=0.2)


def test_rare_categories_are_told_to_nobody():
    frame = make_frame()
    rare = frame.index[:9]
    frame.loc[rare, "wind"], frame.loc[rare, "station"] = "secret", "A"
    frame.loc[frame.index[10:14], "rain"] = True
    told = []

    def watch(delivery):
        if isinstance(delivery.message, RawColumns):
            told.append(delivery.message)

    graph = nx.path_graph(list("ABC"))
    columns = agreed(frame, graph, observers=[watch])["C"]
    assert told
    assert not any("secret" in message.columns["wind"].counts for message in told)
    assert all(count % 10 == 0 for message in told for count in message.columns["wind"].counts.values())
    wind = dict(zip(NAMES, columns.columns, strict=True))["wind"]
    assert "secret" not in wind.categories
    raw = read_raw(frame.iloc[:9], ["wind"])["wind"]
    np.testing.assert_array_equal(wind.encode(raw), np.zeros((9, len(wind.names_out))))
    frame.loc[frame.index[9], ["wind", "station"]] = ["secret", "A"]
    assert "secret" in agreed(frame, graph)["C"].columns[1].categories


@pytest.mark.parametrize("n_values", [1, 9])
def test_numbers_that_few_rows_have_are_told_to_nobody(n_values):
    """The middle of one value is that value; a single value far from equal others would be their deviation."""
    told = []

    def watch(delivery):
        if isinstance(delivery.message, Total):
            told.append(delivery.message.values)

    sites, facts = {}, {}
    for name, other in (("a", "b"), ("b", "a")):
        rare, lone = np.full(60, np.nan), np.zeros(60)
        if name == "b":
            rare[:n_values], lone[:n_values] = 4711.0, 4711.0
        facts[name] = Facts(["rare", "lone"])
        facts[name].add(read_raw(pd.DataFrame({"rare": rare, "lone": lone}), ["rare", "lone"]))
        sites[name] = Site(name, (other,), ArrayRows(np.zeros((60, 1)), np.zeros(60)))
    network = LocalNetwork({"a": ["b"], "b": ["a"]}, observers=[watch])
    found = network.run({name: agree_on_columns(site, facts[name], 10) for name, site in sites.items()})
    sent, total = told
    np.testing.assert_array_equal(sent, [3, 60])  # the place and the value of what is not 0
    np.testing.assert_array_equal(total, [0, 0, 0, 120, 0, 0])
    assert [(column.fill, column.spread) for column in found["a"].columns] == [(0.0, 1.0), (0.0, 1.0)]


def test_the_most_frequent_categories_are_kept():
    words = np.repeat([f"{j:03}" for j in range(100)], np.arange(100, 0, -1) + 10)
    facts = Facts(["x"])
    facts.add({"x": Raw("category", words.astype(object))})
    site = Site("a", (), ArrayRows(np.zeros((len(words), 1)), np.zeros(len(words))))
    column = LocalNetwork({"a": ()}).run({"a": agree_on_columns(site, facts, 10)})["a"].columns[0]
    assert column.categories == tuple(f"{j:03}" for j in range(64))


def test_kinds_that_differ_between_sites():
    frame = make_frame()
    frames = {label: frame[frame["station"] == label].drop(columns="station") for label in "ABC"}
    frames["B"] = frames["B"].assign(temp="warm")
    with pytest.raises(DataError, match=r"column 'temp' has (words|numbers) in site '[AB]' and (words|numbers) in"):
        regressor().fit(frames, "pm")


# The front door


@pytest.fixture(scope="module")
def fitted():
    return regressor().fit(FRAME, "pm", sites="station")


def test_names_in_the_place_of_arrays(fitted):
    rows = FRAME[NAMES]
    by_array = regressor().fit(rows, FRAME["pm"], sites=FRAME["station"])
    expected = by_array.predict(rows, sites=FRAME["station"])
    np.testing.assert_allclose(fitted.predict(FRAME, sites="station"), expected)
    np.testing.assert_allclose(fitted.predict(rows, sites=FRAME["station"]), expected)
    assert fitted.score(FRAME, "pm", sites="station") == pytest.approx(
        fitted.score(rows, FRAME["pm"], FRAME["station"])
    )
    for metric in ("own", "union"):
        named = fitted.rse(FRAME, "pm", sites="station", metric=metric)
        assert named == pytest.approx(fitted.rse(FRAME, FRAME["pm"], sites="station", metric=metric))
    assert fitted.rse(FRAME, "pm", sites="station") < 0.3
    assert fitted.feature_names_in_.tolist() == NAMES
    assert fitted.n_features_in_ == 5
    assert list(fitted.get_feature_names_out()) == fitted.columns_.names_out
    assert "wind=NE" in fitted.get_feature_names_out()
    assert fitted.traffic_.messages_by_kind["RawColumns"] > 0


def test_scales_speak_of_the_users_columns(fitted):
    assert fitted.column_scales_.shape == (5,)
    assert fitted.column_scales_.max() == 1
    given = np.array([1.0, 0.9, 0.1, 0.2, 0.3])
    again = regressor(column_scales=given).fit(FRAME, "pm", sites="station")
    np.testing.assert_allclose(again.column_scales_, given)
    again.partial_fit(FRAME, "pm", sites="station")
    np.testing.assert_allclose(again.column_scales_, given)


def raw_against_prepared(raw_table, directory, seed):
    """Return the own RSE on a table with words, dates and 3 % missing values, over that on one prepared by hand."""
    raw, by_hand, _, test = raw_table.tables(seed, 1500, 400, directory)
    settings = raw_table.GIVEN | {"random_state": seed}  # DeKRR alone, so that the encoding makes the difference
    ours = DeKRRRegressor(**settings).fit(raw[~test], "y", sites="station").rse(raw[test], "y", sites="station")
    theirs = DeKRRRegressor(**settings).fit(by_hand[~test], raw["y"][~test], sites=raw["station"][~test])
    return ours / theirs.rse(by_hand[test], raw["y"][test], sites=raw["station"][test])


@pytest.mark.slow
def test_a_raw_table_is_as_good_as_one_prepared_by_hand(data_directory, benchmark_named):
    raw_table = benchmark_named("raw_table")
    assert np.mean([raw_against_prepared(raw_table, data_directory, seed) for seed in range(3)]) < 1.03


def test_numbers_stay_as_they_are():
    frame = FRAME[["station", "rain"]].assign(x=np.arange(len(FRAME)) % 7, pm=FRAME["pm"])
    named = regressor().fit(frame, "pm", sites="station")
    assert not hasattr(named, "columns_")
    plain = regressor().fit(frame[["rain", "x"]].to_numpy(float), FRAME["pm"], sites=FRAME["station"])
    expected = plain.predict(frame[["rain", "x"]].to_numpy(float), sites=FRAME["station"])
    np.testing.assert_array_equal(named.predict(frame, sites="station"), expected)
    assert named.rse(frame, frame["pm"], sites="station", metric="union") > 0
    picked = regressor().fit(FRAME, "pm", sites="station", columns=["rain"])
    assert picked.feature_names_in_.tolist() == ["rain"]


@pytest.mark.parametrize("convert", [pl.from_pandas, lambda frame: pl.from_pandas(frame).to_arrow()])
def test_frames_of_all_libraries_give_the_same_models(fitted, convert):
    other = convert(FRAME)
    assert is_frame(other)
    again = regressor().fit(other, "pm", sites="station")
    assert again.columns_ == fitted.columns_
    np.testing.assert_allclose(again.predict(other, sites="station"), fitted.predict(FRAME, sites="station"))
    model = again.models_["A"]
    np.testing.assert_allclose(model.predict(other), fitted.models_["A"].predict(FRAME))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_files_as_they_are(fitted, tmp_path, suffix):
    path = tmp_path / f"table.{suffix}"
    FRAME.to_csv(path, index=False) if suffix == "csv" else FRAME.to_parquet(path)
    again = regressor().fit(path, "pm", sites="station")
    assert again.columns_ == fitted.columns_
    np.testing.assert_allclose(
        again.predict(path, sites="station"), fitted.predict(FRAME, sites="station"), rtol=1e-6, atol=1e-9
    )
    np.testing.assert_allclose(again.models_["A"].predict(path), fitted.models_["A"].predict(FRAME), atol=1e-9)


def test_a_mapping_of_frames(fitted):
    parts = {label: part.drop(columns="station") for label, part in FRAME.groupby("station")}
    again = regressor().fit(parts, "pm")
    assert again.columns_ == fitted.columns_
    np.testing.assert_allclose(again.models_["B"].predict(FRAME), fitted.models_["B"].predict(FRAME))


def test_the_model_file_has_the_columns(fitted, tmp_path):
    path = tmp_path / "A.safetensors"
    fitted.models_["A"].save(path)
    loaded = dekrr.load(path)
    assert loaded.header.encoding == fitted.columns_
    np.testing.assert_allclose(loaded.predict(FRAME), fitted.models_["A"].predict(FRAME))
    np.testing.assert_allclose(loaded.predict(FRAME[NAMES].to_numpy()), loaded.predict(FRAME))


def test_new_rows_may_be_odd(fitted):
    odd = FRAME.iloc[:4].copy()
    odd["wind"] = ["calm", None, "N", "N"]
    odd["temp"] = [None, 1e9, 3, 4]
    odd["when"] = [None, None, pd.Timestamp("1899-01-01"), pd.Timestamp("2100-01-01")]
    odd["kind"] = "harbour"
    assert np.isfinite(fitted.predict(odd, sites="station")).all()
    with pytest.raises(DataError, match=r"column 'temp' has words .row 0 is 'warm'., but the model was trained on num"):
        fitted.predict(odd.assign(temp="warm"), sites="station")
    with pytest.raises(DataError, match=r"lacks columns \['wind'\]; the model was trained on"):
        fitted.predict(odd.drop(columns="wind"))


def test_partial_fit_and_pickle(fitted):
    again = pickle.loads(pickle.dumps(fitted))
    again.partial_fit(make_frame(90, seed=1), "pm", sites="station")
    assert again.columns_ == fitted.columns_
    assert sum(again.n_rows_.values()) == len(FRAME) + 90


@pytest.mark.parametrize("kind", [LocalRegressor, CentralizedKRR])
def test_other_regressors_take_frames(kind):
    made = kind(n_features=20, alpha=1e-3) if kind is LocalRegressor else kind(alpha=1e-3)
    made.fit(FRAME, "pm", sites="station")
    assert made.rse(FRAME, "pm", sites="station") < 0.2
    assert not hasattr(made.fit(np.random.default_rng(0).random((60, 2)), np.arange(60.0)), "columns_")


def test_column_transformers_keep_working():
    transform = ColumnTransformer(
        [("words", OneHotEncoder(sparse_output=False), ["kind"]), ("numbers", StandardScaler(), ["rain"])]
    )
    pipeline = make_pipeline(transform, regressor())
    pipeline.fit(FRAME, FRAME["pm"], dekrrregressor__sites=FRAME["station"])
    assert np.isfinite(pipeline.predict(FRAME)).all()


# Errors


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"x": [[1]] * 600}, "column 'x' row 0 is of type list; turn it into a number or a word, or drop the column"),
        ({"x": [1, "n/a"] * 300}, "column 'x' has words and numbers: row 1 is 'n/a'"),
        ({"x": [*map(str, range(599)), "n/k"]}, "column 'x' has numbers, but row 599 is 'n/k': leave such cells empty"),
        ({"x": ["long " * 50] * 600}, "column 'x' is free text of up to 250 characters"),
        ({"x": [1j] * 600}, "column 'x' has values of type complex128"),
        ({"temp": [np.inf, 1.0] * 300}, "column 'temp' row 0 is inf; replace infinite values"),
    ],
)
def test_columns_that_cannot_be_used(change, reason):
    with pytest.raises(DataError, match=reason):
        regressor().fit(FRAME.assign(**change), "pm", sites="station")


@pytest.mark.parametrize("words", [["1.2.3", "1.2.4"], ["10/12", "3/4"], ["A-1-2023", "B"], ["31.10.2023", "no date"]])
def test_words_that_are_no_dates_stay_words(words):
    assert raw_of(np.array(words * 3)).kind == "category"


LEAKS = [
    (lambda X: (X.drop(columns="station"), X.pm, X.station), "column 'pm' equals the response, and is predicted from"),
    (lambda X: (X.drop(columns="pm"), X.pm, X.station), "column 'station' has the site of every row.*sites='station'"),
    (lambda X: (X.assign(copy=X.pm), "pm", "station"), "column 'copy' equals the response"),
    (lambda X: (X.assign(row=np.arange(len(X)) + 7), "pm", "station"), "column 'row' looks like a number of each row"),
    (lambda X: (X.sample(frac=1, random_state=0).reset_index(names="id"), "pm", "station"), "column 'id' looks like"),
]


@pytest.mark.parametrize(("given", "reason"), LEAKS)
@pytest.mark.parametrize("convert", [lambda frame: frame, pl.from_pandas])
def test_columns_left_in_by_mistake_are_told(given, reason, convert):
    X, y, sites = given(FRAME)
    with pytest.warns(UserWarning, match=reason):
        regressor(max_rounds=3, tol=1.0).fit(convert(X), y, sites=sites)


def test_classes_left_in_by_mistake_are_told():
    kinds = np.where(FRAME["pm"] > 1, "bad", "good")
    with pytest.warns(UserWarning, match="column 'quality' equals the response"):
        DeKRRClassifier(**SMALL).fit(FRAME.assign(quality=kinds), kinds, sites="station")


def test_innocent_columns_are_not_told_of():
    codes = np.random.default_rng(0).permutation(len(FRAME))  # different whole numbers, but not called a number of rows
    table = FRAME.assign(visitors=codes, twice=2 * FRAME["pm"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        regressor(max_rounds=200, tol=1e-2).fit(table, "pm", sites="station")
        regressor(max_rounds=200, tol=1e-2).fit(table.drop(columns=["pm", "station"]), table["pm"], sites=table.station)


def test_all_columns_that_cannot_be_used_are_named():
    with pytest.raises(DataError, match=r"column 'a' .*; column 'b' "):
        regressor().fit(FRAME.assign(a=[[1]] * 600, b=[{}] * 600), "pm", sites="station")


def test_wrong_names():
    with pytest.raises(DataError, match="the frame has no column 'pm25'; it has 'station', 'temp'"):
        regressor().fit(FRAME, "pm25", sites="station")
    with pytest.raises(DataError, match="the frame has no column 'place'"):
        regressor().fit(FRAME, "pm", sites="place")
    with pytest.raises(DataError, match="the frame has no column 'gust'"):
        regressor().fit(FRAME, "pm", sites="station", columns=["gust"])
    with pytest.raises(SettingsError, match="both the response and the site"):
        regressor().fit(FRAME, "pm", sites="pm")
    with pytest.raises(DataError, match="no column to predict from"):
        regressor().fit(FRAME[["pm", "station"]], "pm", sites="station")
    with pytest.raises(DataError, match="two columns of the name 'temp'"):
        regressor().fit(pd.concat([FRAME, FRAME[["temp"]]], axis=1), "pm", sites="station")
    missing = FRAME.assign(pm=FRAME["pm"].where(FRAME.index != 5))
    with pytest.raises(DataError, match="row 5 is nan"):
        regressor().fit(missing, "pm", sites="station")


def test_sites_that_are_left_out_are_told():
    with pytest.warns(UserWarning, match="sites was left out, so the rows were dealt out to 10 sites"):
        dealt = regressor().fit(FRAME.drop(columns="station"), "pm")
    with pytest.warns(UserWarning, match="predicted by the mean of 10 sites' models"):
        dealt.predict(FRAME)


def test_unknown_sites(fitted):
    with pytest.raises(DataError, match=r"unknown sites \['D'\].*unknown_sites=\"mean\""):
        fitted.predict(FRAME.assign(station="D"), sites="station")
    kind = regressor(unknown_sites="mean").fit(FRAME, "pm", sites="station")
    stranger = kind.predict(FRAME.assign(station=["D"] + ["A"] * 599), sites="station")
    anywhere = [model.predict(FRAME, elsewhere=True) for model in kind.models_.values()]  # a stranger has no level
    np.testing.assert_allclose(stranger[0], np.mean(anywhere, axis=0)[0])
    np.testing.assert_allclose(stranger[1:], kind.models_["A"].predict(FRAME)[1:])


def test_a_private_fit_agrees_on_no_columns():
    """Categories and fill values would be told outside the promise."""
    frame = pd.DataFrame({"wind": ["N", "S"] * 40, "speed": np.linspace(0, 1, 80), "site": ["a", "b"] * 40})
    regressor = DeKRRRegressor(
        n_features=4, features="plain", sigma=1.0, alpha=1e-2, consensus=1.0, bounds=([0, 0, 0], [1, 1, 1]),
        privacy=DifferentialPrivacy(epsilon=4.0), random_state=0,
    )  # fmt: skip
    with pytest.raises(SettingsError, match="with privacy, a frame must have columns of numbers"):
        regressor.fit(frame, np.linspace(0, 1, 80), sites="site")


@pytest.mark.parametrize("kind", ["int64", "Int64", "int8"])
def test_labels_that_are_integers_stay_integers(kind):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"u": rng.random(90), "y": rng.random(90), "station": np.arange(90) % 3})
    frame["station"] = frame["station"].astype(kind)
    settings = {"n_features": 5, "sigma": 1.0, "alpha": 1e-3, "consensus": 1.0, "random_state": 0}
    fitted = DeKRRRegressor(**settings).fit(frame, "y", sites="station")
    assert [model.header.site for model in fitted.models_.values()] == ["0", "1", "2"]
    assert fitted.models_[0].header.targets == ["y"]
    assert fitted.predict(frame, sites="station").shape == (90,)
    assert [type(site) for site in fitted.sites_] == [int] * 3


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, pa.table])
def test_a_table_of_many_columns_is_looked_into_once(kind, monkeypatch):
    """Time is then linear in the columns: looking all names up for each column took most of a fit of 4,000."""
    calls = []
    opened = narwhals.from_native
    monkeypatch.setattr(narwhals, "from_native", lambda *given, **more: calls.append(1) or opened(*given, **more))
    names = [f"c{j}" for j in range(300)]
    table = kind({name: np.arange(60.0) ** (1 + j / 300) for j, name in enumerate(names)})
    assert is_plain(table, names)
    raw = read_raw(table, names)
    tell_of_leaks(table, np.zeros(60), None)
    assert len(calls) == 3
    np.testing.assert_array_equal(raw["c299"].values, np.arange(60.0) ** (1 + 299 / 300))


def test_the_summary_counts_words_that_became_other():
    frame = make_frame()
    typed = [0, 5, 9, 30]
    frame.loc[typed, "wind"] = ["Nn", "n", "Nn", "S "]
    frame.loc[3, "kind"] = None  # no word is none of the categories, and not other
    settings = {"n_features": 10, "sigma": 1.0, "alpha": 1e-3, "consensus": 1.0, "random_state": 0}
    fitted = DeKRRRegressor(**settings).fit(frame, "pm", sites="station")
    assert "words that are no category, and count as other: wind in 4 rows\n" in str(fitted.fit_summary())
    fitted.fit(make_frame(), "pm", sites="station")
    assert "count as other" not in str(fitted.fit_summary())
    fitted.fit(frame[["temp", "pm", "station"]].fillna(0.0), "pm", sites="station")
    assert "count as other" not in str(fitted.fit_summary())


def test_columns_that_were_meant_otherwise_are_told():
    frame = make_frame()[["station", "temp", "pm"]]
    frame["age"] = np.where(np.arange(600) % 2, "1", "") + pd.Series(np.arange(600) % 12).map(str)
    frame["code"] = pd.Series(np.arange(600) % 3).map(str)  # few of them are codes
    frame["never"] = np.nan
    settings = {"n_features": 10, "sigma": 1.0, "alpha": 1e-3, "consensus": 1.0, "random_state": 0}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        DeKRRRegressor(**settings).fit(frame, "pm", sites="station")
    told = [str(each.message) for each in caught if issubclass(each.category, dekrr.errors.DekrrWarning)]
    assert len(told) == 2
    assert "column 'age' has numbers written as text, such as '0', and they became categories" in told[1]
    assert "table['age'] = pd.to_numeric(table['age'])" in told[1]
    assert told[0] == "column 'never' has no value in any row: it says nothing, and is left out"
