import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def test_the_examples_of_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "data.md").read_text(), flags=re.S)
    assert len(blocks) == 6
    exec(compile("\n".join(blocks), "docs/data.md", "exec"), {})
