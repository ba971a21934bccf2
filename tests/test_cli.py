import io
import json
import re
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from dekrr import DataError, DeKRRClassifier, DeKRRRegressor, load, rse
from dekrr.cli import app as cli_app
from dekrr.cli import main
from dekrr.cli.app import app
from dekrr.data import make_sites
from dekrr.errors import DekrrWarning, ModelFileError, PoorFitWarning, SettingsError

X, y, SITES = make_sites(n_sites=4, random_state=0)
COLUMNS = ["place", "north", "east"]


@pytest.fixture
def table(tmp_path):
    frame = pd.DataFrame(X, columns=COLUMNS).assign(station=SITES, y=y)
    frame.to_csv(tmp_path / "data.csv", index=False)
    frame.to_parquet(tmp_path / "data.parquet")
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


SMALL = ("--n-features", 12, "--sigma", 0.3, "--alpha", 1e-4, "--consensus", 1)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_fit_and_predict(table, suffix):
    data, models, out = table / f"data.{suffix}", table / "models", table / f"out.{suffix}"
    result = run("fit", data, "--target", "y", "--site", "station", "--out", models, *SMALL)
    assert "4 models" in result.output
    assert sorted(path.name for path in models.iterdir()) == [f"station 0{j}.safetensors" for j in range(4)]
    run("predict", models, data, "--site", "station", "--out", out)
    predicted = pd.read_csv(out) if suffix == "csv" else pd.read_parquet(out)
    settings = {"n_features": 12, "sigma": 0.3, "alpha": 1e-4, "consensus": 1.0, "random_state": 0}
    frame = pd.DataFrame(X, columns=COLUMNS)
    expected = DeKRRRegressor(**settings).fit(frame, y, sites=SITES).predict(frame, sites=SITES)
    np.testing.assert_allclose(predicted["prediction"], expected, atol=1e-9)


@pytest.mark.parametrize("kind", ["csv", "parquet", "csv.gz"])
def test_a_dash_reads_standard_input(table, kind):
    frame = pd.read_csv(table / "data.csv")
    frame.to_csv(table / "data.csv.gz", index=False)
    rows = (table / f"data.{kind}").read_bytes()

    def piped(*arguments):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=rows)
        assert result.exit_code == 0, result.output
        return result.stdout

    models = table / "models"
    fitted = json.loads(piped("fit", "-", "--target", "y", "--site", "station", "--out", models, "--json", *SMALL))
    named = run(
        "fit", table / "data.csv", "--target", "y", "--site", "station", "--out", table / "named", "--json", *SMALL
    )
    assert fitted["held_out"] == json.loads(named.stdout)["held_out"]
    scored = ("--target", "y", "--site", "station", "--json")
    assert json.loads(piped("score", models, "-", *scored)) == json.loads(
        run("score", models, table / "data.csv", *scored).stdout
    )
    predicted = pd.read_csv(io.StringIO(piped("predict", models, "-", "--site", "station")))
    by_name = pd.read_csv(io.StringIO(run("predict", models, table / "data.csv", "--site", "station").stdout))
    np.testing.assert_allclose(predicted["prediction"], by_name["prediction"], rtol=1e-9)
    with pytest.raises(DataError, match="standard input has no column 'x'"):
        CliRunner().invoke(app, ["score", str(models), "-", "--target", "x"], input=rows, catch_exceptions=False)


def test_fit_with_defaults_trains_what_the_estimator_trains(table):
    result = run("fit", table / "data.csv", "--target", "y", "--site", "station", "--out", table / "models")
    assert result.exit_code == 0, result.output
    regressor = DeKRRRegressor(random_state=0).fit(table / "data.csv", "y", sites="station")
    for label, expected in regressor.models_.items():
        found = load(table / "models" / f"{label}.safetensors")
        assert found.feature_map.n_features == expected.feature_map.n_features
        np.testing.assert_allclose(found.predict(X), expected.predict(X), atol=1e-9)


@pytest.mark.parametrize("given", ["many", "0", "-3", "1.5", "none"])
def test_fit_refuses_what_is_no_number_of_features(table, given):
    with pytest.raises(SettingsError, match=f'--n-features must be a number of features, or "auto"; got .{given}'):
        fitted(table, "--n-features", given)


def fitted(table, *more):
    data = table / "data.csv"
    return run("fit", data, "--target", "y", "--sites", "station", "--out", table / "models", *SMALL, *more)


@pytest.mark.parametrize("as_numbers", [False, True])
def test_fit_and_predict_of_classes(table, as_numbers):
    labels = np.array([2, 1, 7]) if as_numbers else np.array(["good", "bad", "fair"])
    truth = labels[np.searchsorted(np.quantile(y, [1 / 3, 2 / 3]), y)]
    frame = pd.read_csv(table / "data.csv").drop(columns="y").assign(quality=truth)
    frame.to_csv(table / "classes.csv", index=False)
    flags = ("--classes",) if as_numbers else ()
    arguments = ("--target", "quality", "--site", "station", "--out", table / "models", *SMALL, *flags)
    result = run("fit", table / "classes.csv", *arguments)
    assert result.exit_code == 0
    words = " ".join(result.output.split())
    figures = r"accuracy ([\d.]+) and log loss ([\d.]+)"
    found = re.search(f"held out: own {figures}, union {figures} on", words)
    held = frame.groupby("station").cumcount()
    held = (np.floor((held + 1) * 0.2) > np.floor(held * 0.2)) & (held >= 20)
    settings = {"n_features": 12, "sigma": 0.3, "alpha": 1e-4, "consensus": 1.0, "random_state": 0}
    trial = DeKRRClassifier(**settings).fit(frame[~held], "quality", sites="station")
    wanted = [
        trial.score(frame[held], "quality", sites="station", metric=metric, loss=loss)
        for metric in ("own", "union")
        for loss in ("accuracy", "log_loss")
    ]
    np.testing.assert_allclose([float(each) for each in found.groups()], wanted, atol=1e-4)
    run("predict", table / "models", table / "classes.csv", "--site", "station", "--out", table / "out.csv")
    every = DeKRRClassifier(**settings).fit(frame, "quality", sites="station")
    assert pd.read_csv(table / "out.csv")["prediction"].tolist() == every.predict(frame, sites="station").tolist()
    assert "log loss" in run("fit", table / "classes.csv", *arguments, "--force", "--holdout", 0).output
    with pytest.raises(SettingsError, match="classes, so that there can be one: give --target quality alone"):
        run("fit", table / "classes.csv", *arguments, "--target", "place", "--force")


def test_a_class_that_few_rows_have_is_learnt(table):
    frame = pd.read_csv(table / "data.csv")
    frame["y"] = np.where(y > 0, "high", "low")
    frame.loc[frame.index[frame["station"] == "station 00"][24], "y"] = "once"  # which is held out
    frame.to_csv(table / "classes.csv", index=False)
    result = run("fit", table / "classes.csv", "--target", "y", "--site", "station", "--out", table / "models", *SMALL)
    assert "note: no error is measured on rows of classes that few rows have: once" in result.stderr
    assert "models of the classes high, low, once" in " ".join(result.output.split())


def test_a_fit_that_is_refused_trains_no_second_time_for_its_text(table, monkeypatch):
    frame = pd.read_csv(table / "data.csv")
    pd.concat([frame, frame.head(25).assign(station="small")]).to_csv(table / "few.csv", index=False)
    frame.assign(y=frame["y"].where(frame.index != 50)).to_csv(table / "gap.csv", index=False)
    trained, train = [], DeKRRRegressor._train

    def counted(self, *given):
        trained.append(self)
        return train(self, *given)

    monkeypatch.setattr(DeKRRRegressor, "_train", counted)
    options = ("--target", "y", "--site", "station", "--out", table / "models", "--min-rows", 25, *SMALL)
    for name, text in (("few.csv", "site 'small' has 24 rows, fewer than min_rows"), ("gap.csv", "row 50, column 'y'")):
        trained.clear()
        with pytest.raises(DataError, match=text):
            run("fit", table / name, *options)
        assert len(trained) <= 1


def test_fit_measures_errors_on_rows_that_it_did_not_see(table):
    result = fitted(table)
    words = " ".join(result.output.split())
    assert "held out" in words
    own, union = map(float, re.search(r"held out: own RSE ([\d.]+), union RSE ([\d.]+)", words).groups())
    assert "--site station" in words
    frame = pd.read_csv(table / "data.csv")
    held = frame.groupby("station").cumcount()
    held = (np.floor((held + 1) * 0.2) > np.floor(held * 0.2)) & (held >= 20)
    settings = {"n_features": 12, "sigma": 0.3, "alpha": 1e-4, "consensus": 1.0, "random_state": 0}
    trial = DeKRRRegressor(**settings).fit(frame[~held], "y", sites="station")
    assert own == pytest.approx(trial.rse(frame[held], "y", sites="station"), abs=1e-4)
    assert union == pytest.approx(trial.rse(frame[held], "y", sites="station", metric="union"), abs=1e-4)
    north = trial.models_["station 00"]
    assert f"{north.header.site} " in words
    union = rse(frame[held]["y"], north.predict(frame[held][COLUMNS], elsewhere=True))
    assert f"{union:.4f}" in words
    words = " ".join(fitted(table, "--force", "--holdout", 0).output.split())
    assert re.search(
        r"held-out RSE: own [\d.]+, alone [\d.]+ on \d+ rows, union [\d.]+ on all of them; .* own RSE", words
    )
    words = " ".join(fitted(table, "--force", "--holdout", 0, "--no-intervals").output.split())
    assert "no error was measured; --holdout 0.2 holds out a fifth of the rows to measure it" in words


@pytest.mark.parametrize(
    ("options", "figures"),
    [((), r"RSE is \S+ \(own\) and \S+ \(union\), and 1 is .* 3 of"), (("--holdout", 0, "--no-intervals"), "^3 of")],
)
def test_fit_warns_of_models_that_are_worse_than_the_mean_once(table, options, figures):
    frame = pd.read_csv(table / "data.csv")
    frame["y"] = np.exp(frame["y"])
    large = frame.groupby("station").head(1).index  # at one site alone, it would be moved to limits
    frame.loc[large, "y"] = 49_454.0
    frame.to_csv(table / "cost.csv", index=False)
    command = ("fit", table / "cost.csv", "--target", "y", "--site", "station", "--out", table / "models", *options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        words = " ".join(run(*command).output.split())
    (told,) = [str(each.message) for each in caught if issubclass(each.category, PoorFitWarning)]
    assert re.search(f"{figures} {len(frame)} rows carry", told, flags=re.IGNORECASE)
    measured = re.search(r"held out: own RSE ([\d.]+)", words)
    assert (measured is None) == bool(options)
    assert measured is None or f"{float(measured[1]):.3g} (own)" in told


def test_warnings_of_dekrr_are_printed_as_one_line_and_others_are_not(capsys):
    cli_app._show_warning(DekrrWarning("few rows"), DekrrWarning, "file", 1)
    cli_app._show_warning(UserWarning("of another library"), UserWarning, "file", 1)
    assert capsys.readouterr().err == "warning: few rows\n"


def test_a_table_in_another_encoding_says_what_to_do_and_leaves_no_folder(table):
    frame = pd.read_csv(table / "data.csv").assign(town="Dülmen")
    frame.to_csv(table / "old.csv", index=False, encoding="latin-1")
    command = ("fit", table / "old.csv", "--target", "y", "--site", "station", "--out", table / "models", *SMALL)
    with pytest.raises(DataError, match=r"text is not UTF-8 .*Save it as CSV UTF-8, or .*encoding='latin-1'"):
        run(*command)
    assert not (table / "models").exists()
    (table / "models").mkdir()
    with pytest.raises(DataError, match="not UTF-8"):
        run(*command)
    assert (table / "models").is_dir()  # which was there before


def test_score(table):
    fitted(table, "--holdout", 0)
    words = " ".join(
        run("score", table / "models", table / "data.csv", "--target", "y", "--site", "station").output.split()
    )
    own, union = map(float, re.search(r"own RSE ([\d.]+), union RSE ([\d.]+) on \d+ rows", words).groups())
    settings = {"n_features": 12, "sigma": 0.3, "alpha": 1e-4, "consensus": 1.0, "random_state": 0}
    expected = DeKRRRegressor(**settings).fit(X, y, sites=SITES)
    assert own == pytest.approx(expected.rse(X, y, sites=SITES), abs=1e-4)
    assert union == pytest.approx(expected.rse(X, y, sites=SITES, metric="union"), abs=1e-4)
    assert "union RSE" in run("score", table / "models", table / "data.csv", "--target", "y").output
    with pytest.raises(DataError, match="has no column 'z'"):
        run("score", table / "models", table / "data.csv", "--target", "z", "--site", "station")


@pytest.mark.parametrize("classes", [["high", "low"], [0, 1, 2], [False, True]])
def test_score_of_models_of_classes(table, classes):
    truth = np.asarray(classes)[np.searchsorted(np.quantile(y, np.arange(1, len(classes)) / len(classes)), y)]
    frame = pd.DataFrame(X, columns=COLUMNS).assign(kind=truth, station=SITES)
    settings = {"n_features": 12, "sigma": 0.3, "alpha": 1e-4, "consensus": 1.0, "random_state": 0}
    classifier = DeKRRClassifier(**settings).fit(frame, "kind", sites="station")
    folder = table / "classes"
    folder.mkdir()
    for label, model in classifier.models_.items():
        model.save(folder / f"{label}.safetensors")
    frame.to_csv(table / "kinds.csv", index=False)
    words = " ".join(run("score", folder, table / "kinds.csv", "--target", "kind", "--site", "station").output.split())
    numbers = r"own accuracy ([\d.]+) and log loss ([\d.]+), union accuracy ([\d.]+) and log loss ([\d.]+) on 240 rows"
    found = [float(number) for number in re.search(numbers, words).groups()]
    expected = [
        classifier.score(frame[COLUMNS], truth, sites=SITES, metric=metric, loss=loss)
        for metric in ("own", "union")
        for loss in ("accuracy", "log_loss")
    ]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    own = SITES == "station 01"
    assert f"{classifier.models_['station 01'].score(frame[COLUMNS][own], truth[own]):.4f}" in words
    assert "union accuracy" in run("score", folder, table / "kinds.csv", "--target", "kind").output
    with pytest.raises(
        DataError, match=r"row 0, column 'station' is 'station 00', which is none of the models' classes"
    ):
        run("score", folder, table / "kinds.csv", "--target", "station")
    with pytest.raises(SettingsError, match="or there are several targets: score models of one fit"):
        run("score", folder, table / "kinds.csv", "--target", "kind", "--target", "station")
    with pytest.raises(DataError, match="has no column 'sort'; it has"):
        run("score", folder, table / "kinds.csv", "--target", "sort")


def test_words_and_missing_values_and_inspect(table):
    frame = pd.read_csv(table / "data.csv")
    frame["wind"] = [["N", "S", None][j % 3] for j in range(len(frame))]
    frame.loc[::7, "east"] = np.nan
    frame.to_csv(table / "data.csv", index=False)
    fitted(table, "--columns", "north, east,wind")
    printed = run("inspect", table / "models").output
    for word in ("station 00", "DeKRRRegressor", "gaussian", "wind=S", "east missing"):
        assert word in printed
    facts = json.loads(run("inspect", table / "models" / "station 01.safetensors", "--json").output)
    assert facts[0]["site"] == "station 01"
    assert [column["column"] for column in facts[0]["columns"]] == ["north", "east", "wind"]
    run("predict", table / "models", table / "data.csv", "--site", "station", "--out", table / "out.tsv")
    assert np.isfinite(pd.read_csv(table / "out.tsv", sep="\t")["prediction"]).all()


def test_what_is_refused_before_any_work(table):
    fitted(table, "--holdout", 0)
    data, models = table / "data.csv", table / "models"
    before = data.read_bytes()
    for out, reason in [
        (data, "is the file that is read"),
        (table / "out.xlsx", r"out.xlsx ends in '.xlsx': tables are written as .csv, .tsv or .parquet"),
        (models / "station 00.safetensors", r"ends in '.safetensors'"),
        (models, "is a folder; give a file"),
        (table / "nowhere" / "out.csv", "nowhere of out.csv does not exist"),
    ]:
        with pytest.raises(DataError, match=reason):
            run("predict", models, data, "--site", "station", "--out", out)
    assert data.read_bytes() == before
    (table / "data.xlsx").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"data.xlsx is not a kind of file that can be read.*Save it as .csv"):
        run("fit", table / "data.xlsx", "--target", "y", "--site", "station", "--out", table / "more")
    with pytest.raises(DataError, match=r"data.csv.models cannot be written to"):
        run("fit", data, "--target", "y", "--site", "station", "--out", data / "models")
    with pytest.raises(DataError, match="has no column 'gust'"):
        run("fit", data, "--target", "y", "--site", "station", "--out", table / "more", "--columns", "gust")
    with pytest.raises(DataError, match="nothing does not exist: give the folder of"):
        run("predict", table / "nothing", data)
    frame = pd.read_csv(data)
    for name, table_of, reason in [
        ("none.csv", frame[:0], "none.csv has no rows"),
        (
            "words.csv",
            frame.assign(y="high"),
            "there is one class, 'high': a classifier needs rows of at least two classes",
        ),
        ("gap.csv", frame.assign(y=frame["y"].where(frame.index != 5)), "row 5, column 'y' is nan; fill or drop NaN"),
        ("lost.csv", frame.assign(station=None), "column 'station'.* row 0 has no site label .nan.; drop such rows"),
        ("many.csv", frame.assign(station=frame.index), "every row has a site of its own, such as 0 and 1"),
    ]:
        table_of.to_csv(table / name, index=False)
        with pytest.raises(DataError, match=reason):
            run("fit", table / name, "--target", "y", "--site", "station", "--out", table / "more", *SMALL, "--quiet")
    frame.to_csv(table / "semi.csv", sep=";", index=False)
    with pytest.raises(DataError, match=r"has no column 'y'; it has .*;y.* are not separated by commas: save it with"):
        run("fit", table / "semi.csv", "--target", "y", "--site", "station", "--out", table / "more")
    with pytest.raises(ModelFileError, match=r"data.csv is damaged, or not a model file: .* and by dekrr fit and"):
        run("predict", data, data)
    with pytest.raises(
        DataError, match=r"no model for sites \['0.*--unknown-sites mean predicts their rows by the mean"
    ):
        run("predict", models, table / "many.csv", "--site", "station")
    with pytest.raises(SettingsError, match="--interval is 90; a coverage is between 0 and 1"):
        run("predict", models, data, "--interval", 90)


def test_intervals(table):
    fitted(table, "--holdout", 0)
    out = table / "out.csv"
    run("predict", table / "models", table / "data.csv", "--site", "station", "--interval", 0.8, "--out", out)
    found = pd.read_csv(out)
    assert (found["prediction_lower"] < found["prediction"]).all()
    assert (found["prediction"] < found["prediction_upper"]).all()
    covered = (found["prediction_lower"] <= found["y"]) & (found["y"] <= found["prediction_upper"])
    assert covered.mean() > 0.7
    run("predict", table / "models", table / "data.csv", "--interval", 0.8, "--out", out)
    assert (
        pd.read_csv(out)["prediction_lower"] <= found["prediction_lower"] + 1e-9
    ).all()  # holds for rows of any site
    fitted(table, "--holdout", 0, "--force", "--no-intervals")
    with pytest.raises(SettingsError, match=r"the models of 'station 00', .* have no intervals: `dekrr fit` without"):
        run("predict", table / "models", table / "data.csv", "--interval", 0.8)


def test_rows_of_unknown_sites(table):
    fitted(table, "--holdout", 0)
    frame = pd.DataFrame(X[:3], columns=COLUMNS).assign(station=["station 00", "atlantis", "station 01"])
    frame.to_csv(table / "new.csv", index=False)
    printed = run("predict", table / "models", table / "new.csv", "--site", "station", "--unknown-sites", "mean").stdout
    mean = run("predict", table / "models", table / "new.csv").stdout
    own, every = (pd.read_csv(io.StringIO(text))["prediction"] for text in (printed, mean))
    assert own[1] == pytest.approx(every[1])
    assert own[0] != pytest.approx(every[0])
    models = [load(path) for path in sorted((table / "models").glob("*.safetensors"))]
    elsewhere = np.mean([model.predict(X[1:2], elsewhere=True) for model in models], axis=0)
    assert every[1] == pytest.approx(elsewhere[0])  # as `unknown_sites="mean"` of an estimator


def test_predict_without_sites_prints_the_mean(table):
    run("fit", table / "data.csv", "--target", "y", "--site", "station", "--out", table / "models", *SMALL)
    printed = run("predict", table / "models", table / "data.csv").stdout
    assert len(printed.splitlines()) == len(X) + 1
    assert printed.splitlines()[0].endswith(",prediction")


def test_models_are_not_replaced_unasked(table):
    arguments = ("fit", table / "data.csv", "--target", "y", "--site", "station", "--out", table / "models", *SMALL)
    run(*arguments)
    with pytest.raises(DataError, match="already has models"):
        run(*arguments)
    assert "4 models" in run(*arguments, "--force").output


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--target", "z", "--site", "station"), "no column 'z'; it has place, north, east, station, y"),
        (("--target", "y", "--site", "place2"), "no column 'place2'"),
        (("--target", "y", "--site", "place"), "every row has a site of its own"),
    ],
)
def test_wrong_columns(table, arguments, reason):
    if arguments == ("--target", "y", "--site", "place"):
        pd.read_csv(table / "data.csv").drop(columns="station").to_csv(table / "data.csv", index=False)
    with pytest.raises(DataError, match=reason):
        run("fit", table / "data.csv", *arguments, "--out", table / "models")


def test_unknown_site_and_empty_folder(table):
    run("fit", table / "data.csv", "--target", "y", "--site", "station", "--out", table / "models", *SMALL)
    pd.DataFrame(X[:2], columns=COLUMNS).assign(station=["x", "y"]).to_csv(table / "new.csv", index=False)
    with pytest.raises(DataError, match=r"no model for sites \['x', 'y'\]"):
        run("predict", table / "models", table / "new.csv", "--site", "station")
    with pytest.raises(DataError, match="has no model"):
        run("predict", table, table / "new.csv")
    with pytest.raises(DataError, match="does not exist"):
        run("predict", table / "models", table / "nothing.csv")


def test_demo(tmp_path):
    result = run("demo", "--out", tmp_path)
    for word in ("own RSE", "union RSE", "rounds", "kB sent", "seconds", "DeKRR-DDRF", "DKLA", "COKE", "Local"):
        assert word in result.output
    assert "less own error than each alone. Models of pooled rows" in " ".join(result.output.split())
    assert (tmp_path / "demo.png").stat().st_size > 10_000


@pytest.mark.slow
def test_demo_on_real_data(data_directory, tmp_path):
    result = run("demo", "--data", "airquality", "--data-dir", data_directory, "--out", tmp_path)
    assert "airquality: 9357 rows" in result.output


def test_demo_without_the_data(tmp_path, monkeypatch):
    monkeypatch.delenv("DEKRR_DATA", raising=False)
    with pytest.raises(DataError, match="set the environment variable DEKRR_DATA"):
        run("demo", "--data", "houses", "--out", tmp_path)
    with pytest.raises(DataError, match="it has no Parquet file"):
        run("demo", "--data", "houses", "--data-dir", tmp_path, "--out", tmp_path)


def test_help_and_version():
    assert "predict" in run("--help").output
    assert run("--version").output.startswith("dekrr 0.")


def modules_after(*arguments):
    """Return the names of all modules that a command has loaded by its end."""
    code = (
        "import atexit, sys; from dekrr.cli import main; "
        "atexit.register(lambda: print(*sys.modules, sep='\\n', file=sys.stderr)); main()"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return done.stdout, set(done.stderr.split())


def test_the_package_can_be_run_as_a_module():
    done = subprocess.run([sys.executable, "-m", "dekrr", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == run("--version").output


def test_the_help_of_fit_is_readable_on_a_narrow_terminal():
    printed = CliRunner().invoke(app, ["fit", "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).output
    lines = printed.splitlines()
    assert len(lines) < 130
    assert max(map(len, lines)) <= 80
    assert "predict; repeat the option for" in printed
    assert "An object may" not in " ".join(printed.split())  # which only Python can give


def test_columns_that_all_models_have_are_shown_once(table):
    fitted(table)
    printed = run("inspect", table / "models").output
    assert printed.count("site: ") == 4
    assert " ".join(printed.split()).count("columns, the same in all 4 models") == 1
    assert printed.count("│ place ") == 1
    one = run("inspect", table / "models" / "station 01.safetensors").output
    assert one.count("│ place ") == 1
    names = [{"column": name} for name in ("a", "b")]
    with pytest.MonkeyPatch.context() as patch:
        told = iter([names[:1], names[1:], names[:1], names[:1]])
        patch.setattr("dekrr.cli.predicting._columns", lambda model: next(told))
        printed = run("inspect", table / "models").output
    assert printed.count("│ a ") == 3
    assert printed.count("│ b ") == 1


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_version_and_help_load_no_command(option):
    printed, modules = modules_after(option)
    assert "dekrr" in printed or "Usage" in printed
    heavy = {"numpy", "scipy", "sklearn", "pandas", "pyarrow", "matplotlib", "networkx", "zenoh", "numba"}
    assert not modules & heavy
    assert {name for name in modules if name.startswith("dekrr.cli.")} == {"dekrr.cli.app", "dekrr.cli.lazy"}
    assert len(modules) < 400


@pytest.mark.parametrize("name", sorted(cli_app.COMMANDS))
def test_the_list_of_commands_says_what_commands_say_of_themselves(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    about = cli_app.COMMANDS[name][1]
    assert about in run("--help").output
    assert about in " ".join(run(name, "--help").output.split())


def test_a_mistyped_command_is_told_what_it_may_mean():
    result = run("predikt")
    assert result.exit_code == 2
    assert "predict" in result.output


def told(*arguments):
    """Return what `dekrr` as a command of its own says on standard error, and its exit code."""
    command = [sys.executable, "-c", "from dekrr.cli import main; main()", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr, done.returncode


def test_brackets_in_an_error_are_shown(table):
    columns = ("--target", "y", "--site", "[/x]", "--out", table / "models")
    said, code = told("fit", table / "data.csv", *columns)
    assert code == 1
    assert said.startswith("error:")
    assert "no column '[/x]'" in said


@pytest.mark.parametrize(
    ("option", "value"), [("--features", "foo"), ("--topology", "blob"), ("--alpha", "0"), ("--consensus", "-1")]
)
def test_a_bad_value_is_one_line(table, option, value, monkeypatch, capsys):
    out = ("--target", "y", "--site", "station", "--out", table / "models")
    monkeypatch.setattr(sys, "argv", ["dekrr", *map(str, ("fit", table / "data.csv", *out, option, value))])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("error:")
    assert "Traceback" not in said


def test_a_missing_package_says_what_to_install():
    missing = ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
    assert cli_app._with_extra(missing) == "No module named 'matplotlib': pip install 'dekrr[plot]'"


def test_sites_named_by_dates_are_found_again(table):
    days = pd.to_datetime("2020-01-01") + pd.to_timedelta(pd.factorize(SITES)[0], unit="D")
    pd.DataFrame(X, columns=COLUMNS).assign(day=days, y=y).to_parquet(table / "days.parquet")
    run("fit", table / "days.parquet", "--target", "y", "--site", "day", "--out", table / "models", *SMALL)
    run("predict", table / "models", table / "days.parquet", "--site", "day", "--out", table / "out.parquet")
    assert np.isfinite(pd.read_parquet(table / "out.parquet")["prediction"]).all()


def test_predictions_are_written_through_a_link(table):
    run("fit", table / "data.csv", "--target", "y", "--site", "station", "--out", table / "models", *SMALL)
    (table / "real.csv").write_text("old")
    (table / "link.csv").symlink_to(table / "real.csv")
    run("predict", table / "models", table / "data.csv", "--out", table / "link.csv")
    assert (table / "link.csv").is_symlink()
    assert len(pd.read_csv(table / "real.csv")) == len(X)


def test_docs_lists_pages_and_shows_one():
    listed = run("docs")
    assert listed.exit_code == 0
    assert "privacy" in listed.output
    assert "Ten minutes with one table" in listed.output
    lines = [line.split("│")[1:3] for line in listed.output.splitlines() if "│" in line]
    kinds = {name.strip(): kind.strip() for name, kind in lines}
    assert kinds["three-sites"] == "tutorial"
    assert kinds["serving"] == kinds["command-line"] == "how-to guide"
    assert kinds["privacy"] == "explanation"
    shown = run("docs", "privacy")
    assert shown.exit_code == 0
    assert len(shown.output) > 5000
    with pytest.raises(DataError, match="no page 'cookery'"):
        run("docs", "cookery")
