import importlib.util
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"


def script(name):
    specification = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_every_example_is_run_here():
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem for path in FOLDER.glob("*.py")} <= tested


def test_quick_start():
    errors = script("quick_start").main(rows_per_site=40)
    assert errors["together, union"] < errors["alone, union"]


def test_own_csv():
    errors = script("own_csv").with_a_small_file(rows_per_site=100)
    assert len(errors) == 5
    assert max(errors.values()) < 1


def test_beijing_stations(data_directory, monkeypatch):
    monkeypatch.setenv("DEKRR_DATA", str(data_directory))
    errors = script("beijing_stations").main(rows_per_station=300, n_features=40)
    assert errors["together, union"] < errors["alone, union"]
    assert errors["together, own"] < 0.6


def test_choosing_consensus():
    module = script("choosing_consensus")
    chosen, errors = module.main(rows_per_site=40)
    assert list(errors) == list(module.WEIGHTS)
    assert chosen not in (min(module.WEIGHTS), max(module.WEIGHTS))
    assert errors[chosen] <= 1.02 * min(errors.values())
    assert max(errors.values()) > 1.3 * errors[chosen]


def test_imbalanced_sites():
    errors = script("imbalanced_sites").main(n_rows=1000)
    assert set(errors) == {"equal, own", "equal, union", "sqrt, own", "sqrt, union"}
    assert max(errors.values()) < 1


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_examples_say_what_they_are(path):
    assert path.read_text().startswith('"""')
