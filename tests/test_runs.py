"""`dekrr report` of a run of the mesh, in a real browser."""

import json

import pytest
from typer.testing import CliRunner

from dekrr.cli.app import app
from dekrr.errors import DataError
from dekrr.lab.experiments.mesh_run import read_records, records_in, write_run_report
from meshes import Mesh
from test_report import WIDTHS, browser, open_page  # noqa: F401


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    """A run of four sites of which one leaves, and one comes back."""
    mesh = Mesh(tmp_path_factory.mktemp("run"), 4, settings={"tol": 0.0, "max_rounds": 40})
    _, errors = mesh.run_in_threads()
    assert set(errors.values()) == {None}
    for name in mesh.names[1:]:
        _add(mesh, name, {"event": "gone", "sites": ["s00"], "reason": "s00 missing at exchange 7", "exchange": 7})
    _add(mesh, "s02", mesh.events("s02")[0])
    return mesh


def _add(mesh, name, event):
    with (mesh.home(name) / "run.jsonl").open("a") as record:
        record.write(json.dumps({**event, "time": mesh.events(name)[-1]["time"] + 1.0}) + "\n")


@pytest.fixture(scope="module")
def page(mesh):
    return write_run_report(mesh.folder)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_of_a_run_in_a_browser(page, browser, width):  # noqa: F811
    tab = open_page(page, browser, width)
    assert tab.locator("figure svg").count() == 3
    assert tab.locator("table").count() == 3
    for text in ("s00 missing at exchange 7", "started again", "n_features"):
        assert tab.get_by_text(text).first.is_visible()
    tab.close()


def test_what_a_record_says(mesh):
    records = {record.site: record for record in read_records(records_in(mesh.folder))}
    assert list(records) == mesh.names
    record = records["s01"]
    rounds, milliseconds = record.round_times()
    assert rounds.tolist() == list(range(2, 41))
    assert (milliseconds >= 0).all()
    assert record.residual_path()[0].tolist() == sorted(record.residual_path()[0].tolist())
    sent = {p: about["bytes sent"] for p, about in record.end["neighbors"].items()}
    assert sum(sent.values()) == record.end["message bytes sent"]
    assert record.start["terms"]["max_rounds"] == "40"


def test_the_command_takes_a_record_or_a_folder(mesh, tmp_path):
    for given in (mesh.home("s01") / "run.jsonl", mesh.folder):
        out = tmp_path / "page.html"
        result = CliRunner().invoke(app, ["report", str(given), "--out", str(out)])
        assert result.exit_code == 0, result.output
        text = out.read_text()
        assert f"<b>{4 if given == mesh.folder else 1}</b>sites" in text
        assert f"dekrr report {given}" in text


def test_a_line_cut_short_is_left_out_and_rubbish_is_refused(mesh, tmp_path):
    path = tmp_path / "run.jsonl"
    whole = (mesh.home("s03") / "run.jsonl").read_bytes()
    path.write_bytes(whole[:-20])
    (record,) = read_records([path])
    assert record.site == "s03"
    path.write_bytes(b'{"time": 1.0, "event": "up"}\n')
    with pytest.raises(DataError, match="does not begin with a start"):
        read_records([path])
    path.write_bytes(b"rubbish\n" + whole)
    with pytest.raises(DataError, match="line 1"):
        read_records([path])
    with pytest.raises(DataError, match="no record"):
        read_records([])
