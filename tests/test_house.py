"""What a reader of the tree relies on: a name means one thing, and a front door loads no more than it needs."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import dekrr

FILES = sorted(Path(dekrr.__file__).parent.rglob("*.py"))
# Names that two files or classes still have. Take out what is renamed; add nothing.
FILES_OF_ONE_NAME = {"__init__", "local"}
CLASSES_OF_ONE_NAME = set()
MOST_LOADED = 60


def repeated(names):
    return {name for name, count in Counter(names).items() if count > 1}


def test_a_file_and_a_class_have_a_name_of_their_own():
    trees = [ast.walk(ast.parse(file.read_text(encoding="utf-8"))) for file in FILES]
    assert repeated(file.stem for file in FILES) == FILES_OF_ONE_NAME
    assert repeated(n.name for tree in trees for n in tree if isinstance(n, ast.ClassDef)) == CLASSES_OF_ONE_NAME


def test_the_regressor_loads_few_modules_and_no_annex():
    code = "import sys; from dekrr import DeKRRRegressor; print(*(m for m in sys.modules if m.startswith('dekrr')))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert len(loaded) <= MOST_LOADED
    assert not {name.split(".")[1] for name in loaded if "." in name} & {"mesh", "serving", "cluster", "lab"}
