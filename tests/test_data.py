import http.server
import io
import tarfile
import threading
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from typer.testing import CliRunner

from dekrr import data
from dekrr.cli.app import app
from dekrr.errors import DataError, SettingsError
from dekrr.lab.data_sets import catalogue, loading, splits

seeds = st.integers(0, 2**16)


def rows(n, seed, d=3):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.normal(size=n)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["response", "norm", "imbalanced", "iid"]), st.integers(60, 400), st.integers(2, 9), seeds)
def test_every_row_has_a_site_and_sites_have_their_sizes(name, n_rows, n_sites, seed):
    X, y = rows(n_rows, seed)
    sites = data.partition(name, X, y, n_sites=n_sites, mix=0.2, random_state=seed)
    counts = np.bincount(sites, minlength=n_sites)
    shares = np.full(n_sites, 1 / n_sites)
    if name == "imbalanced":
        shares = (2 * np.arange(1, n_sites + 1) - 1) / n_sites**2
    assert counts.sum() == n_rows
    assert np.abs(counts - shares * n_rows).max() <= 2


@settings(max_examples=40, deadline=None)
@given(st.integers(40, 300), st.integers(2, 8), seeds)
def test_without_mix_sites_are_sorted(n_rows, n_sites, seed):
    X, y = rows(n_rows, seed)
    for key, sites in (
        (np.abs(y), data.by_response(y, n_sites, mix=0.0)),
        (np.linalg.norm(X, axis=1), data.by_norm(X, n_sites, mix=0.0)),
        (-X[:, 0], data.by_column(X[:, 0], n_sites)),
    ):
        for j in range(n_sites - 1):
            assert key[sites == j].min() >= key[sites == j + 1].max()


@given(seeds)
@settings(max_examples=10, deadline=None)
def test_mix_is_the_share_of_rows_that_ignore_the_order(seed):
    y = np.arange(1, 2001, dtype=float)
    ordered = data.by_response(y, 10, mix=0.0)
    moved = np.mean(data.by_response(y, 10, mix=0.4, random_state=seed) != ordered)
    assert 0.25 < moved < 0.5
    everything = data.by_response(y, 10, mix=1.0, random_state=seed)
    assert abs(np.corrcoef(everything, y)[0, 1]) < 0.1


@given(st.floats(0.05, 50), st.integers(2, 8), seeds)
@settings(max_examples=30, deadline=None)
def test_dirichlet_divides_all_rows(concentration, n_sites, seed):
    _, y = rows(500, seed)
    sites = data.dirichlet(y, n_sites, concentration, mix=0.1, random_state=seed)
    assert len(sites) == 500
    assert sites.min() >= 0
    assert sites.max() < n_sites


def test_dirichlet_skews_more_with_less_concentration():
    _, y = rows(5000, 0)

    def spread(concentration):
        sites = data.dirichlet(y, 5, concentration, random_state=1)
        return np.std([y[sites == j].mean() for j in range(5) if (sites == j).any()])

    assert spread(0.1) > 5 * spread(1000.0)


def test_by_column_with_mix_keeps_the_sizes():
    labels = np.repeat(["a", "b", "c"], [10, 200, 90])
    sites = data.by_column(labels, mix=0.5, random_state=0)
    assert np.bincount(sites).tolist() == [10, 200, 90]
    assert (sites != data.by_column(labels)).mean() > 0.1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda X, y: data.partition("random", X, y), "unknown partition 'random'"),
        (lambda X, y: data.by_response(y, mix=1.5), "between 0 and 1"),
        (lambda X, y: data.by_response(y[:3]), "3 rows cannot be divided over 10 sites"),
        (lambda X, y: data.dirichlet(y, concentration=0), "must be positive"),
    ],
)
def test_partitions_refuse_nonsense(call, words):
    X, y = rows(50, 0)
    with pytest.raises((DataError, SettingsError), match=words):
        call(X, y)


def test_a_picture_of_what_every_site_sees():
    X, y = rows(200, 0)
    figure = data.draw_sites(data.by_response(y, 5), X, y)
    assert [axes.get_title() for axes in figure.axes] == ["y at each site", "|x| at each site", "rows"]
    assert [patch.get_height() for patch in figure.axes[2].patches] == [40] * 5


def houses_lines(n=5):
    rng = np.random.default_rng(0)
    return rng.uniform(1, 9, size=(n, 9)).round(3)


def test_houses_reads_alike_in_all_its_forms(tmp_path):
    table = houses_lines()  # MedInc .. Longitude, y
    forms = {}
    original = table[:, [7, 6, 1, 2, 3, 4, 5, 0, 8]]
    forms["cal_housing.data"] = "\n".join(",".join(map(str, row)) for row in original)
    statlib = "\n".join("  ".join(f"{v:.6e}" for v in row) for row in table[:, [8, *range(8)]])
    forms["cadata.txt"] = "S&P Letters Data\nWe collected information on 20,640 observations\n\n" + statlib
    forms["cadata"] = "\n".join(f"{row[8]} " + " ".join(f"{i + 1}:{v}" for i, v in enumerate(row[:8])) for row in table)
    for name, text in forms.items():
        folder = tmp_path / name.replace(".", "_")
        folder.mkdir()
        (folder / name).write_text(text)
        dataset = data.load("houses", folder)
        np.testing.assert_allclose(dataset.X, table[:, :8], rtol=1e-6)
        np.testing.assert_allclose(dataset.y, table[:, 8], rtol=1e-6)
        assert dataset.columns[0] == "MedInc"


def test_houses_reads_from_the_archive_as_downloaded(tmp_path):
    text = "\n".join(",".join(map(str, row)) for row in houses_lines()).encode()
    with tarfile.open(tmp_path / "cal_housing.tgz", "w:gz") as archive:
        member = tarfile.TarInfo("CaliforniaHousing/cal_housing.data")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    assert data.load("houses", tmp_path).X.shape == (5, 8)


def test_air_quality_reads_semicolons_and_decimal_commas(tmp_path):
    header = (
        "Date;Time;CO(GT);PT08.S1(CO);NMHC(GT);C6H6(GT);PT08.S2(NMHC);NOx(GT);PT08.S3(NOx);NO2(GT);PT08.S4(NO2);"
        "PT08.S5(O3);T;RH;AH;;"
    )
    line = "10/03/2004;18.00.00;2,6;1360;150;11,9;1046;166;1056;113;1692;1268;13,6;48,9;0,7578;;"
    (tmp_path / "AirQualityUCI.csv").write_text(f"{header}\n{line}\n;;;;;;;;;;;;;;;;\n")
    dataset = data.load("airquality", tmp_path)
    assert dataset.X.shape == (1, 13)
    assert dataset.columns[:3] == ("time_of_day", "CO_GT", "PT08_S1_CO")
    assert dataset.X[0, :3].tolist() == [0.75, 2.6, 1360]
    assert dataset.y.tolist() == [1268]


def zipped(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def test_energy_and_buzz_and_wave_read_from_their_archives(tmp_path):
    names = ["date", "Appliances", "lights", "T1"]
    zipped(
        tmp_path / "appliances+energy+prediction.zip",
        {"energydata_complete.csv": ",".join(f'"{n}"' for n in names) + '\n"2016-01-11 17:00:00","60","30","19.9"\n'},
    )
    energy = data.load("energy", tmp_path)
    assert (energy.X.tolist(), energy.y.tolist(), energy.columns) == ([[30, 19.9]], [60], ("lights", "T1"))

    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w:gz") as archive:
        for name, width in (("regression/Twitter/Twitter.data", 78), ("regression/TomsHardware/TomsHardware.data", 97)):
            text = ",".join(map(str, range(width))).encode()
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    zipped(tmp_path / "buzz+in+social+media.zip", {"regression.tar.gz": inner.getvalue()})
    twitter, toms = data.load("twitter", tmp_path), data.load("tomshardware", tmp_path)
    assert (twitter.X.shape, twitter.y.tolist(), twitter.columns[7]) == ((1, 77), [77], "AI_0")
    assert (toms.X.shape, toms.y.tolist(), toms.columns[8]) == ((1, 96), [96], "BL_0")

    header = ",".join([*(f"X{i}" for i in range(148)), "Total_Power"])
    content = {f"WEC_{place}_49.csv": header + "\n" + ",".join(map(str, range(149))) for place in ("Perth", "Sydney")}
    zipped(tmp_path / "large-scale+wave+energy+farm.zip", content)
    wave = data.load("wave", tmp_path)
    assert (wave.X.shape, wave.y.tolist()) == ((2, 148), [148, 148])


def test_beijing_reads_stations_and_drops_incomplete_rows(tmp_path):
    header = "No,year,month,day,hour,PM2.5,PM10,SO2,NO2,CO,O3,TEMP,PRES,DEWP,RAIN,wd,WSPM,station"
    good = "1,2013,3,1,0,4,4,4,7,300,77,-0.7,1023,-18.8,0,NNW,4.4,Dongsi"
    bad = "2,2013,3,1,1,NA,4,4,7,300,77,-0.7,1023,-18.8,0,NNW,4.4,Dongsi"
    inner = io.BytesIO()
    zipped(inner, {"PRSA_Data_20130301-20170228/PRSA_Data_Dongsi_20130301-20170228.csv": f"{header}\n{good}\n{bad}\n"})
    zipped(tmp_path / "beijing+multi+site+air+quality+data.zip", {"PRSA2017.zip": inner.getvalue()})
    dataset = data.load("beijing12", tmp_path)
    assert dataset.X.shape == (1, 14)
    assert dataset.y.tolist() == [4]
    assert dataset.sites.tolist() == ["Dongsi"]
    np.testing.assert_allclose(dataset.X[0, 9:], [np.cos(np.pi / 8), -np.sin(np.pi / 8), 0, 60, 2013])


def test_missing_data_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.delenv("DEKRR_DATA", raising=False)
    remedy = r".* dekrr data fetch houses, which .*: put https://\S+5976036 there, as cal_housing.tgz, or unpacked: "
    with pytest.raises(DataError, match=f"set the environment variable DEKRR_DATA{remedy}"):
        data.load("houses")
    with pytest.raises(DataError, match=r"set the environment variable DEKRR_DATA$"):
        data.load("moon")
    with pytest.raises(DataError, match="dekrr data fetch houses"):
        data.load("houses", tmp_path)
    with pytest.raises(DataError, match="dekrr data fetch houses"):
        loading.require("houses", tmp_path)
    with pytest.raises(DataError, match="13813 rows where the paper has 98704"):
        data.load("twitter13813", tmp_path)
    with pytest.raises(DataError, match="not in the catalogue"):
        data.load("moon", tmp_path)
    with pytest.raises(DataError, match=f"does not exist, so houses cannot be read from it{remedy}"):
        data.load("houses", tmp_path / "nowhere")
    (tmp_path / "cal_housing.tgz").write_bytes(b"half a file")
    loading.require("houses", tmp_path)
    with pytest.raises(DataError, match=r"cal_housing\.tgz is damaged"):
        data.load("houses", tmp_path)


def test_a_file_of_another_shape_is_refused(tmp_path):
    (tmp_path / "TomsHardware.data").write_text("1,2,3\n")
    with pytest.raises(DataError, match=r"TomsHardware.data is not the tomshardware of .*3 columns"):
        data.load("tomshardware", tmp_path)


def test_a_dataset_comes_apart_and_names_its_sites(tmp_path):
    pd.DataFrame({"a": [1.0, 2.0], "y": [3.0, 4.0], "node": [0, 11]}).to_parquet(tmp_path / "beijing12.parquet")
    dataset = data.load("beijing12", tmp_path)
    X, y = dataset
    assert (X.tolist(), y.tolist(), dataset.columns) == ([[1.0], [2.0]], [3.0, 4.0], ("a",))
    assert dataset.sites.tolist() == ["Aotizhongxin", "Wanshouxigong"]
    with pytest.raises(DataError, match="2 rows and 1 columns; expected"):
        loading.check(dataset)


@pytest.fixture
def served(tmp_path):
    """A server on loopback that has an archive of five houses."""
    folder = tmp_path / "served"
    folder.mkdir()
    text = "\n".join(",".join(map(str, row)) for row in houses_lines()).encode()
    with tarfile.open(folder / "cal_housing.tgz", "w:gz") as archive:
        member = tarfile.TarInfo("cal_housing.data")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(folder))

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/cal_housing.tgz"
        server.shutdown()


def test_fetch_downloads_and_checks(tmp_path, served, monkeypatch):
    pytest.importorskip("pooch")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    target = tmp_path / "new" / "data"  # which is made
    means = tuple(np.abs(part).mean() for part in (houses_lines()[:, 8], houses_lines()[:, :8]))
    small = replace(catalogue.CATALOGUE["houses"], url=served, n_rows=5, sha256=None, means=means)
    monkeypatch.setattr(loading, "CATALOGUE", {"houses": small})
    assert loading.fetch("houses", target) == target / "cal_housing.tgz"
    assert data.load("houses", target).X.shape == (5, 8)
    for wrong, words in (
        ({"n_rows": 6}, "5 rows"),
        ({"means": (1.0, 1.0)}, "means"),
        ({"sha256": "0" * 64}, "differs from the file that was checked"),
    ):
        monkeypatch.setattr(loading, "CATALOGUE", {"houses": replace(small, **wrong)})
        if "sha256" in wrong:
            (target / "cal_housing.tgz").unlink()
        with pytest.raises(DataError, match=words):
            loading.fetch("houses", target)
    with pytest.raises(DataError, match="no public source"):
        loading.fetch("twitter13813", target)
    lost = replace(small, url=served.replace("cal_housing", "nothing"), archive="nothing.tgz")
    monkeypatch.setattr(loading, "CATALOGUE", {"houses": lost})
    with pytest.raises(DataError, match=r"cannot be fetched \(.*404.*\): load it elsewhere, and put it .*/nothing.tgz"):
        loading.fetch("houses", target)


def test_the_page_of_the_reproduction_names_the_files_of_every_data_set():
    page = (Path(__file__).parents[1] / "docs" / "reproduction.md").read_text(encoding="utf-8")
    for name, entry in catalogue.CATALOGUE.items():
        wanted = f"{loading.originals_of(entry)} | <{entry.url}>" if entry.url else f"{name}.parquet | none"
        assert f"| `{name}` | {wanted} |" in page


def test_the_authors_files_are_read(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"n_nodes": 3, "n_neighbors": 2, "sigma": 0.5, "alpha": 1e-6, "n_features": np.array([20, 250], np.uint8)}
    arrays |= {"dekrr_rse": [[0.3, 0.01], [0.2, 0.02]], "dkla_rse": [[0.5, 0.1], [0.4, 0.1]]}
    for j in range(3):
        for kind in ("train", "test"):
            arrays |= {f"X_{kind}_{j}": rng.normal(size=(4 + j, 2)), f"y_{kind}_{j}": rng.normal(size=4 + j)}
    (tmp_path / "splits").mkdir()
    np.savez(tmp_path / "splits" / "houses-by-response.npz", **arrays)
    split = splits.authors_split("houses", tmp_path)
    assert split.n_sites == 3
    assert split.n_neighbors == 2
    assert split.kernel == (0.5, 1e-6)
    assert split.authors["DeKRR-DDRF"].tolist() == [[20, 0.3, 0.01], [250, 0.2, 0.02]]
    np.testing.assert_array_equal(split.X[split.sites == 1], arrays["X_train_1"])
    np.testing.assert_array_equal(split.y_test[split.test_sites == 2], arrays["y_test_2"])
    with pytest.raises(DataError, match="there are splits of houses"):
        splits.authors_split("energy", tmp_path)


@pytest.mark.parametrize("name", ["houses", "airquality", "energy", "twitter13813", "tomshardware", "beijing12"])
def test_the_data_at_hand_is_what_the_catalogue_says(name, data_directory):
    dataset = data.load(name, data_directory)
    loading.check(dataset)
    if name == "beijing12":
        assert sorted(set(dataset.sites.tolist())) == list(catalogue.CATALOGUE["beijing12"].sites)


def test_the_command_line_lists_and_draws(tmp_path):
    X, y = rows(100, 0, d=8)
    pd.DataFrame(X, columns=list("abcdefgh")).assign(y=y).to_parquet(tmp_path / "houses.parquet")
    runner = CliRunner()
    listed = runner.invoke(app, ["data", "list", "--data-dir", str(tmp_path)])
    assert listed.exit_code == 0
    assert "houses" in listed.output
    picture = tmp_path / "sites.png"
    arguments = [
        "data",
        "sites",
        "houses",
        "--partition",
        "dirichlet",
        "--data-dir",
        str(tmp_path),
        "--out",
        str(picture),
    ]
    assert runner.invoke(app, arguments).exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
