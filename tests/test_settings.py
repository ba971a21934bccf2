"""The table of settings, and the page that is made of it."""

import inspect
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dekrr import DeKRRRegressor, GreedySelector, settings
from dekrr.errors import SettingsError
from dekrr.mesh.config import DataTable, SiteFile
from dekrr.rules import TOPOLOGIES
from dekrr.selection import Greedy

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

import settings_page

STRUCTS = [
    kind
    for kind in vars(settings).values()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__.startswith(settings.__name__)
]


def test_the_page_has_every_setting_once():
    names = settings_page.names()
    assert len(set(names)) == len(names)
    kinds = (settings.FeatureSettings, settings.TuningSettings, settings.DeKRRSettings, settings.EstimatorSettings)
    wanted = {name for kind in kinds for name in settings.entries(kind)} - {"wire"}
    assert set(names) == wanted | {"wire_precision", "censor_start", "censor_decay"}
    assert set(inspect.signature(DeKRRRegressor).parameters) <= {*names, "options"}  # which holds others of them
    other = {name for kind in STRUCTS for name in settings.entries(kind)} - wanted - {"wire"}
    assert not [name for name in other if f"| `{name}` |" not in settings_page.page()]


def test_the_page_has_the_defaults_of_a_deployment():
    """The own weight depends on the parts; the page says so in words."""
    config = SiteFile(
        run="r", site="a", method="dekrr", listen="", sites=("a",), neighbors={}, data=DataTable(target="y", columns=())
    )
    used = {**msgspec.structs.asdict(config.features()), **msgspec.structs.asdict(config.method_settings())}
    assert used["own_weight"] == pytest.approx(1 / 3)
    assert "| `1/3` with a shared part, else `0.5` |" in settings_page.page()
    shown = {name: settings_page.deployed(name) for name in settings_page.names()}
    found = {
        "sigma",
        "alpha",
        "consensus",
        "own_weight",
        "max_features",
    }  # what "auto" and 0 stand for depends on the run
    for name in set(used) & set(shown) - found:
        assert shown[name].default == used[name], name


@pytest.mark.parametrize("kind", STRUCTS)
def test_every_setting_says_what_it_is_and_allows_its_defaults(kind):
    for name, entry in settings.entries(kind).items():
        assert entry.name == name
        assert entry.setting.text.endswith(".")
        for default in (entry.default, entry.in_process):
            assert default is msgspec.NODEFAULT or entry.mistake(default) is None


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("n_features", [5, "auto", {"a": 3}, [3, 4], np.array([3, 4])], [np.int64(0), [0], [2.5], "many", {"a": 0}]),
        ("features", [Greedy(), GreedySelector()], [Greedy, GreedySelector, 3, object(), "best"]),
        ("kernel", ["cauchy"], [dict, 3, "box"]),
    ],
)
def test_objects_in_the_place_of_names(name, good, bad):
    entry = settings.entries(settings.FeatureSettings)[name]
    assert not [value for value in good if entry.mistake(value, objects=True)]
    assert not [value for value in bad if entry.mistake(value, objects=True) is None]
    assert not [value for value in good if not isinstance(value, str | int) and entry.mistake(value) is None]


def test_a_topology_is_a_name_or_edges():
    entry = settings.entries(settings.EstimatorSettings)["topology"]
    assert not [value for value in (*TOPOLOGIES, [("a", "b")]) if entry.mistake(value, objects=True)]
    assert "it must be one of 'auto'" in entry.mistake("torus", objects=True)
    with pytest.raises(SettingsError, match="'topology' parameter of DeKRRRegressor"):
        DeKRRRegressor(topology="torus").fit(np.zeros((20, 1)), np.zeros(20))
