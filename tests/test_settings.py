"""The table of settings, and the page that is made of it."""

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dekrr import DeKRRRegressor, GreedySelector, settings
from dekrr.errors import SettingsError
from dekrr.rules import TOPOLOGIES
from dekrr.selection import Greedy

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
STRUCTS = [
    kind
    for kind in vars(settings).values()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__.startswith(settings.__name__)
]


@pytest.mark.parametrize("kind", STRUCTS)
def test_the_page_has_the_table(kind):
    """What a struct has from another one stands there once."""
    section = re.search(rf"^## {kind.__name__}\n(.*?)(?=^## |\Z)", PAGE.read_text(), flags=re.M | re.S)[1]
    inherited = {name for base in kind.__mro__[1:] if base in STRUCTS for name in settings.entries(base)}
    wanted = [
        line for line in settings.as_table(kind).splitlines() if line.split("`")[1:2] not in [[n] for n in inherited]
    ]
    found = [line for line in section.splitlines() if line.startswith("|")]
    assert found == (wanted if len(wanted) > 2 else [])


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
    assert "it must be one of 'ring'" in entry.mistake("torus", objects=True)
    with pytest.raises(SettingsError, match="'topology' parameter of DeKRRRegressor"):
        DeKRRRegressor(topology="torus").fit(np.zeros((20, 1)), np.zeros(20))
