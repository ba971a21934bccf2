"""The notebooks of the site run from the first cell to the last."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.delenv("MPLBACKEND", raising=False)  # pictures stand in the notebook
    nbformat = pytest.importorskip("nbformat", reason="notebooks need the extra docs")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert any(cell.get("outputs") for cell in notebook.cells)
