import inspect
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS))

import settings_page  # noqa: E402  (it is in docs/, as the next ones)
from docstrings import entries_of, members_of, section_on_parameters  # noqa: E402
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


FOR_EXTENDERS = ("dekrr.networks", "dekrr.cluster", "dekrr.settings", "dekrr.solvers")


@pytest.mark.parametrize("name", ["dekrr", *(name for name in PUBLIC_MODULES if not name.startswith(FOR_EXTENDERS))])
def test_every_parameter_that_its_type_does_not_tell_is_described(name):
    module = import_module(name)
    missing = {}
    for part in module.__all__:
        value = getattr(module, part)
        if inspect.isfunction(value):
            missing[part] = undescribed(f"{name}.{part}", value)
        elif inspect.isclass(value) and not issubclass(value, Exception):
            for method in members_of(name, part)["methods"]:
                missing[f"{part}.{method}"] = undescribed(f"{name}.{part}.{method}", getattr(value, method))
    assert not {part: names for part, names in missing.items() if names}


def undescribed(name, function):
    """Return the parameters that the numpydoc section lacks, and whose annotation does not tell what they take."""
    described = {one.lstrip("*") for one in entries_of(section_on_parameters(name, inspect.getdoc(function) or ""))}
    vague = re.compile(r"\b(Any|Array|ndarray|_empty)\b")
    parameters = inspect.signature(function).parameters.items()
    return {name for name, one in parameters if vague.search(str(one.annotation))} - described - {"self"}


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
    known = defaults_on(settings_page.page())
    assert {"min_rows", "rows_per_feature", "max_leverage", "masks", "verify_features", "privacy"} <= set(shown)
    assert shown == {name: known[name][::-1] for name in shown}  # in a deployment, and in one process


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda path: path.name)
def test_no_line_begins_with_a_per_cent_sign(path):
    """MyST takes such a line for a comment, and leaves out what follows."""
    lines = path.read_text(encoding="utf-8").splitlines()
    assert not [(number, line) for number, line in enumerate(lines, 1) if line.lstrip().startswith("%")]


def test_the_names_that_a_newcomer_needs_come_first():
    from pages import names_page

    names = re.findall(r"^   (\w+)$", names_page(), flags=re.M)
    assert names[:5] == ["DeKRRClassifier", "DeKRRRegressor", "compare", "SiteModel", "load"]


def test_the_pages_have_at_most_36_000_words():
    """A page that grows says which page shrinks. What the build makes from the code does not count."""
    made = {"api.md", "commands.md", "errors.md", "messages.md", "settings.md"}
    pages = [path for path in DOCS.rglob("*.md") if not {"api", "_build", "_report"} & set(path.parts)]
    written = [path for path in pages if not (path.parent.name == "reference" and path.name in made)]
    assert sum(len(path.read_text(encoding="utf-8").split()) for path in written) <= 36_000


OF_LME4 = "lme4|mixed model|multilevel|hierarchical|random intercept|random slope|BLUP|partial pooling"
OF_FLOWER = "Flower|federated averaging|FedAvg|client|aggregation server|SecAgg|non-IID|strategy|negative transfer"


@pytest.mark.parametrize("words", [*OF_LME4.split("|"), *OF_FLOWER.split("|")])
def test_the_words_of_other_software_find_the_page_that_compares(words):
    page = (DOCS / "explanation" / "federated-learning-and-mixed-models.md").read_text(encoding="utf-8")
    assert words.lower() in " ".join(page.lower().split())
