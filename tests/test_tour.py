"""The notebook of the docs runs, and what is stored of it has no path of any machine."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
LARGEST = 300_000
"""Bytes of the stored notebook."""


def test_the_stored_notebook_is_small_and_names_no_machine() -> None:
    text = (DOCS / "tour.ipynb").read_text(encoding="utf-8")
    assert len(text) < LARGEST
    plain = re.sub(r'"image/png": "[^"]*"', "", text)
    assert not re.search(r"/(home|root|tmp|work|Users)/", plain)
    codes = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in codes)
    assert not any(out["output_type"] == "error" for cell in codes for out in cell["outputs"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of jupyter's own packages
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("HEED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(DOCS.parent))
    spec = importlib.util.spec_from_file_location("make_tour", DOCS / "make_tour.py")
    assert spec is not None
    assert spec.loader is not None
    make_tour = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_tour)
    notebook = make_tour.execute_tour(tmp_path)  # an error of a cell is raised
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    shown = json.dumps(outputs)
    assert "FAIL" not in shown
    assert "lr0.002 is worse than lr0.01" in shown
    assert (tmp_path / "tour.html").exists()
