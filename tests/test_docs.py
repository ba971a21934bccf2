import inspect
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS))

from docstrings import inherited_parameters, members_of  # noqa: E402  (it is in docs/, as the next one)
from pages import PUBLIC_MODULES  # noqa: E402


def test_the_sections_that_the_code_points_to_are_there():
    found = 0
    for path in (DOCS.parent / "src").rglob("*.py"):
        for page, heading in re.findall(r'docs/(\w+\.md), "([^"]+)"', path.read_text()):
            assert f"## {heading}\n" in (DOCS / page).read_text(), f"{path} points to {page}, {heading!r}"
            found += 1
        assert not re.search(r"section \d+ of docs/", path.read_text()), f"{path} points to a section by a number"
    assert found


@pytest.mark.parametrize("name", ["dekrr", *PUBLIC_MODULES])
def test_public_modules_say_which_names_are_public(name):
    module = import_module(name)
    assert len(set(module.__all__)) == len(module.__all__)
    parts = {part: getattr(module, part) for part in module.__all__}
    described = {part: value for part, value in parts.items() if inspect.isclass(value) or inspect.isroutine(value)}
    assert not [part for part, value in described.items() if not (inspect.getdoc(value) or "").strip()]


def test_the_homes_of_public_names_are_public_modules():
    import dekrr

    homes = {f"dekrr.{home}".rsplit(".transformers")[0] for home in dekrr._HOMES}
    assert homes - set(PUBLIC_MODULES) <= {"dekrr.estimators", "dekrr.selection"}  # all of which is in dekrr itself
    for home in homes:
        assert import_module(home).__all__


FOR_EXTENDERS = ("dekrr.networks", "dekrr.settings", "dekrr.solvers", "dekrr.testing")


@pytest.mark.parametrize("name", ["dekrr", *(name for name in PUBLIC_MODULES if not name.startswith(FOR_EXTENDERS))])
def test_every_parameter_of_public_functions_and_methods_is_described(name):
    module = import_module(name)
    missing = {}
    for part in module.__all__:
        value = getattr(module, part)
        if inspect.isfunction(value):
            missing[part] = undescribed(value, inspect.getdoc(value) or "")
        elif inspect.isclass(value) and not issubclass(value, Exception):
            for method in members_of(name, part)["methods"]:
                text = f"{inspect.getdoc(getattr(value, method))}\n\n{inherited_parameters(f'{name}.{part}.{method}')}"
                missing[f"{part}.{method}"] = undescribed(getattr(value, method), text)
    assert not {part: names for part, names in missing.items() if names}


def undescribed(function, text):
    """Return the parameters of a function that the numpydoc section on parameters lacks."""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\w[\w ]*\n-{3,}$|\Z)", text, flags=re.M | re.S)
    heads = re.findall(r"^([\w*][\w, *]*?)(?= :|$)", section[1] if section else "", flags=re.M)
    described = {name.strip().lstrip("*") for head in heads for name in head.split(",")}
    return set(inspect.signature(function).parameters) - described - {"self"}


def test_the_page_of_an_estimator_has_its_methods():
    found = members_of("dekrr", "DeKRRRegressor")
    assert {"fit", "predict", "predict_interval", "rse", "partial_fit", "remove_site"} <= set(found["methods"])
    assert "get_params" in found["others"]


def defaults_on(text, shown=r"^\| `(\w+)` \| (.*?) \| (.*?) \|"):
    """Return the defaults of a table's settings, in the order of its columns."""
    words = {"on": "True", "off": "False", "None": "False"}

    def canonical(cell):
        word = cell.split()[0].strip("`\"',") if cell.strip() else ""
        return str(float(word)) if re.fullmatch(r"[\d.]+", word) else words.get(word, word)

    return {name: (canonical(one), canonical(two)) for name, one, two in re.findall(shown, text, flags=re.M)}


def test_the_guards_on_the_page_of_privacy_have_the_defaults_of_the_settings():
    page = (DOCS / "privacy.md").read_text(encoding="utf-8")
    shown = defaults_on(page.split("## The guards\n")[1].split("\n## ")[0])
    known = defaults_on((DOCS / "settings.md").read_text(encoding="utf-8"))
    assert {"min_rows", "rows_per_feature", "max_leverage", "masks", "verify_features", "privacy"} <= set(shown)
    assert shown == {name: known[name][::-1] for name in shown}  # in a deployment, and in one process


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda path: path.name)
def test_no_line_begins_with_a_per_cent_sign(path):
    """MyST takes such a line for a comment, and leaves out what follows."""
    lines = path.read_text(encoding="utf-8").splitlines()
    assert not [(number, line) for number, line in enumerate(lines, 1) if line.lstrip().startswith("%")]
