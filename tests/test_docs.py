import re
from pathlib import Path

import sklearn

DOCS = Path(__file__).parents[1] / "docs"


def test_the_examples_of_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "data.md").read_text(), flags=re.S)
    assert len(blocks) == 7
    exec(compile("\n".join(blocks), "docs/data.md", "exec"), {})


def test_the_sections_that_the_code_points_to_are_there():
    found = 0
    for path in (DOCS.parent / "src").rglob("*.py"):
        for page, heading in re.findall(r'docs/(\w+\.md), "([^"]+)"', path.read_text()):
            assert f"## {heading}\n" in (DOCS / page).read_text(), f"{path} points to {page}, {heading!r}"
            found += 1
        assert not re.search(r"section \d+ of docs/", path.read_text()), f"{path} points to a section by a number"
    assert found


def test_the_examples_of_model_selection():
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "model-selection.md").read_text(), flags=re.S)
    assert len(blocks) == 4
    with sklearn.config_context():  # which is undone at the end, whatever the page sets
        exec(compile("\n".join(blocks), "docs/model-selection.md", "exec"), {})
