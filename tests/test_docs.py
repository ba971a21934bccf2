import inspect
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS))

from pages import PUBLIC_MODULES  # noqa: E402  (it is in docs/)


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
