"""The code on the pages: Python blocks are run, and every call, keyword, command, option and extra is known.

A Python block is run in an empty folder, after those above it on its page. A block below the comment
`<!-- fragment: why -->` is not run, for instance because it needs a cluster. Its calls are still checked, as are those
of indented blocks and of code within a line.
"""

import ast
import builtins
import doctest
import inspect
import re
import shlex
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sklearn

import dekrr
from dekrr.cli.app import COMMANDS
from dekrr.cli.lazy import _imported
from dekrr.data import make_sites
from dekrr.estimators.site_regressor import parameters_of

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))

from pages import MADE, PUBLIC_MODULES  # noqa: E402  (it is in docs/)

PAGES = [ROOT / "README.md", *(page for page in sorted(DOCS.rglob("*.md")) if "_build" not in page.parts)]
PAGES = [page for page in PAGES if not (page.parent.name == "reference" and page.name in MADE)]
BLOCK = re.compile(r"^( *)```(?:python|\{code-cell\} python3)\n(.*?)^\1```$", flags=re.M | re.S)
FENCED = re.compile(r"^ *```.*?^ *```$", flags=re.M | re.S)
FRAGMENT = re.compile(r"<!-- fragment: [^>]+ -->\n$")
OF_OTHERS = {"path", "folder", "backend", "enable_metadata_routing", "dtype_backend", "loader_module", "data_path"}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def name_of(page):
    return str(page.relative_to(ROOT))


def blocks_of(text):
    """Return the Python blocks of a page, each with whether it is a fragment."""
    return [(found[2], bool(FRAGMENT.search(text[: found.start()]))) for found in BLOCK.finditer(text)]


def with_blocks():
    return [page for page in PAGES if any(not fragment for _, fragment in blocks_of(page.read_text()))]


@pytest.mark.parametrize("page", with_blocks(), ids=name_of)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X, y, sites = make_sites(n_sites=3, rows_per_site=60, random_state=0)
    stations = np.array(["Gucheng", "Huairou", "Tiantan"])[pd.factorize(sites)[0]]
    pd.DataFrame(X, columns=["sun", "wind", "rain"]).assign(station=stations, pm25=y).to_csv("stations.csv")
    wanted = [block for block, fragment in blocks_of(page.read_text()) if not fragment]
    with sklearn.config_context():  # which is undone at the end, whatever the page sets
        exec(compile("\n".join(wanted), name_of(page), "exec"), {"__name__": "page"})


def test_the_paper_s_method_on_the_page_is_that_of_the_tables():
    from dekrr.lab.experiments.fits import METHODS

    block, _ = blocks_of((DOCS / "reproduction.md").read_text())[0]
    names = {}
    exec(block, names)
    settings = names["regressor"].get_params()
    settings |= settings["options"] or {}
    assert METHODS["DeKRR-DDRF"].settings.items() <= settings.items()
    X, y, sites = make_sites(n_sites=5, rows_per_site=80, random_state=0)
    fitted = names["regressor"].set_params(n_features=10, max_rounds=20).fit(X, y, sites=sites)
    assert all(model.header.parts == ["own"] for model in fitted.models_.values())
    assert (fitted.column_scales_ == 1).all()


def public_callables():
    found = {name: getattr(dekrr, name) for name in dekrr.__all__}
    for module in map(import_module, PUBLIC_MODULES):
        found |= {name: getattr(module, name) for name in module.__all__}
    return {name: thing for name, thing in found.items() if callable(thing)}


CALLABLES = public_callables()
CLASSES = [thing for thing in CALLABLES.values() if inspect.isclass(thing)]
METHODS_OF = {"regressor": dekrr.DeKRRRegressor, "classifier": dekrr.DeKRRClassifier}


def known_parameters():
    """Return the names of parameters of public functions and methods, but those of a run's settings as a whole."""
    routines = [thing for name, thing in CALLABLES.items() if name != "DeKRRSettings"]
    for kind in CLASSES:
        members = inspect.getmembers(kind, inspect.isroutine)  # cached properties are among them
        routines += [part for name, part in members if not name.startswith("_") and callable(part)]
    names = set()
    for routine in routines:
        try:
            names |= set(inspect.signature(routine).parameters)
        except ValueError:
            continue  # a routine of C
    return names | set(parameters_of(dekrr.DeKRRRegressor))


PARAMETERS = known_parameters()


def code_of(text):
    """Yield everything on a page that is Python, and can be parsed."""
    for block in (block for block, _ in blocks_of(text)):
        yield ast.parse(block)
    rest = FENCED.sub("", text)
    pieces = re.findall(r"^    \S.*$", rest, flags=re.M) + re.findall(r"(?<!`)`([^`]+)`(?!`)", rest)
    for piece in pieces:
        try:
            yield ast.parse(" ".join(piece.split()))
        except SyntaxError:
            continue  # a command, a file, a formula


def mistakes_in(tree):
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if any(isinstance(part, ast.Starred) for part in call.args) or not all(k.arg for k in call.keywords):
            continue
        if any(isinstance(part, ast.Constant) and part.value is ... for part in [*call.args, *call.keywords]):
            continue
        takers = takers_of(call.func)
        if takers and not any(binds(taker, call) for taker in takers):
            yield ast.unparse(call)


def takers_of(function):
    """Return the public functions that a call may mean."""
    if isinstance(function, ast.Name):
        return [CALLABLES[function.id]] if function.id in CALLABLES else []
    if not isinstance(function, ast.Attribute):
        return []
    owner = function.value.id if isinstance(function.value, ast.Name) else None
    if owner in ("session", "mlflow"):
        return []
    if owner in METHODS_OF:
        kind = METHODS_OF[owner]
        return [getattr(kind, function.attr, None) or raising]
    of_classes = [getattr(kind, function.attr) for kind in CLASSES if hasattr(kind, function.attr)]
    return [part for part in of_classes if inspect.isfunction(part)]


def raising():
    """Stand in for a method that is not there: nothing binds to it, since there is no self."""


def binds(taker, call):
    if taker in METHODS_OF.values():
        return not call.args and {each.arg for each in call.keywords} <= {*parameters_of(taker), "options"}
    itself = [] if inspect.isclass(taker) or taker in CALLABLES.values() else [None]
    try:
        inspect.signature(taker).bind_partial(*itself, *call.args, **{each.arg: None for each in call.keywords})
    except TypeError:
        return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_calls_and_keywords_are_known(page):
    text = page.read_text()
    wrong = [mistake for tree in code_of(text) for mistake in mistakes_in(tree)]
    given = re.findall(r"`([a-z]\w*)=[^`]*`", FENCED.sub("", text))
    wrong += [f"{name}=" for name in given if name not in PARAMETERS | OF_OTHERS]
    assert not wrong


@pytest.mark.parametrize(
    "text",
    [
        "`wire=Wire(precision='single')`",
        "`DeKRRRegressor(n_feature=3)`",
        "    regressor.predict(X, site=labels)",
        "    regressor.predict_intervals(X)",
        "```python\nDeKRRRegressor().fit(X, y, labels=1)\n```\n",
    ],
)
def test_a_wrong_keyword_is_found(text, tmp_path):
    (tmp_path / "page.md").write_text(text)
    with pytest.raises(AssertionError):
        test_calls_and_keywords_are_known(tmp_path / "page.md")


def commands_of(text):
    """Return the command lines of a page that call dekrr: in blocks, in indented lines and within a line."""
    joined = re.sub(r" *\\\n\s*", " ", text)
    fenced = "\n".join(FENCED.findall(joined))
    lines = [line.strip() for line in [*re.findall(r"^    \S.*$", joined, flags=re.M), *fenced.splitlines()]]
    spans = [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", FENCED.sub("", joined))]
    lines = [re.sub(r"^mpiexec -n \d+ |^srun |^nohup |^timeout \S+ ", "", line) for line in [*lines, *spans]]
    return [line for line in lines if re.match(r"dekrr [a-z]+( [a-z.\-A-Z'/\"0-9]|$)", line)]


def mistake_in(line):
    """Return what is wrong with a command line, or None: a command, an option, or a word too many."""
    words = [word for word in shlex.split(line, comments=True) if word != "..."]
    ends = [i for i, word in enumerate(words) if word in (">", ">>", "2>", "|", "&&", "&", ";")]
    name, *words = words[1 : min(ends, default=len(words))]
    if name not in COMMANDS:
        return f"there is no command {name}"
    command = _imported(COMMANDS[name][0], name)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        name = words.pop(0)
        if name not in command.commands:
            return f"there is no command {name}"
        command = command.commands[name]
    options = {word: option for option in command.params for word in [*option.opts, *option.secondary_opts]}
    n_words = 0
    while words:
        word, equals, _ = words.pop(0).partition("=")
        if word.startswith("-") and word not in ("--help", "-h", "-"):
            if word not in options:
                return f"there is no option {word}"
            if not equals and not options[word].is_flag:
                words = words[1:]
        else:
            n_words += not word.startswith("-")
    places = [each.nargs for each in command.params if each.param_type_name == "argument"]
    return None if -1 in places or n_words <= sum(places) else f"{n_words} words for {len(places)} arguments"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_and_options_are_known(page):
    lines = commands_of(page.read_text())
    assert not [(line, mistake_in(line)) for line in lines if mistake_in(line)]


@pytest.mark.parametrize(
    "line",
    ["dekrr fitt a.csv", "dekrr fit a.csv --goal y", "dekrr network make a.toml", "dekrr export a.safetensors b c d"],
)
def test_a_wrong_command_is_found(line):
    assert commands_of(f"    {line}\n") == [line]
    assert mistake_in(line)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_extras_are_known(page):
    named = re.findall(r"(?:dekrr|'\.)\[([a-z,]+)\]", page.read_text())
    assert {extra for group in named for extra in group.split(",")} <= set(EXTRAS)


def test_the_table_of_extras_is_that_of_the_package():
    """Every extra is listed with the packages that it adds itself, and with the extras that it includes."""
    text = (DOCS / "install.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", text.split("<!-- extras -->")[1], flags=re.M))
    assert set(rows) == set(EXTRAS)
    for extra, needs in EXTRAS.items():
        about, _, packages = rows[extra].partition(" | ")
        if extra in ("all", "docs", "dev"):
            continue
        assert set(packages.split(" | ")[0].split(", ")) == {re.match(r"[\w-]+", need)[0] for need in needs} - {"dekrr"}
        groups = [group for need in needs for group in re.findall(r"dekrr\[(.*)\]", need)]
        included = {name for group in groups for name in group.split(",")}
        assert set(re.findall(r"`(\w+)`", about.partition("includes")[2])) == included, extra
    above = list(rows)[: list(rows).index("all")]
    assert EXTRAS["all"] == [f"dekrr[{','.join(sorted(above))}]"]


def test_the_commands_of_the_how_to_on_the_command_line_run(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from dekrr.cli.app import app

    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(["stations.csv", "new.csv"]):
        X, y, _ = make_sites(n_sites=3, rows_per_site=80, random_state=seed)
        table = pd.DataFrame(X, columns=["sun", "wind", "rain"])
        table.assign(station=np.repeat(["north", "south", "west"], 80), pm25=y).to_csv(name, index=False)
    blocks = re.findall(r"^```sh\n(.*?)^```$", (DOCS / "how-to" / "command-line.md").read_text(), flags=re.M | re.S)
    assert len(blocks) == 5
    for block in blocks:
        done = CliRunner().invoke(app, shlex.split(block)[1:])
        assert done.exit_code == 0, done.output
    predicted = pd.read_csv("predicted.csv")
    assert {"prediction", "prediction_lower", "prediction_upper"} <= set(predicted.columns)
    assert len(pd.read_csv("north.csv")) == len(predicted) == 240


def test_the_citation_is_that_of_the_citation_file():
    page, file = (DOCS / "about" / "citation.md").read_text(), (ROOT / "CITATION.cff").read_text()
    preferred = file.split("preferred-citation:")[1]
    facts = re.findall(r'(?:title|journal): "([^"]+)"|year: (\d+)|family-names: (\w+)', preferred)
    words = ["".join(fact) for fact in facts]
    assert len(words) == 8
    assert not [word for word in words if word not in page]


def names_left_open(code):
    """Return the names that a piece of code uses and does not make."""
    made, used = set(dir(builtins)), set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else made).add(node.id)
        elif isinstance(node, ast.alias):
            made.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            made.add(node.name)
        elif isinstance(node, ast.arg):
            made.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            made.add(node.name)
    return used - made


def test_names_left_open_are_found():
    assert names_left_open("import os\ndef f(a): return os.sep + a\nf(b)") == {"b"}


@pytest.mark.parametrize("module", ["dekrr", *PUBLIC_MODULES])
def test_examples_of_public_names_can_be_pasted(module):
    """An example is run among the names of its module; a reader has only those that it imports."""
    found, finder = import_module(module), doctest.DocTestFinder()
    open_ = {}
    for part in (getattr(found, name) for name in found.__all__):
        if inspect.isclass(part) or inspect.isroutine(part):
            for test in finder.find(part, module=False):
                names = names_left_open("".join(example.source for example in test.examples))
                open_ |= {test.name: names} if names else {}
    assert not open_
