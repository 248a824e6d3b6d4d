"""The tour, docs/tour.ipynb, with its outputs made anew: `python docs/make_tour.py`.

It needs the packages of the extra `test`. Messages of progress are left out of what is stored.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

TOUR = Path(__file__).resolve().parent / "tour.ipynb"
SECONDS = 600
"""The longest that one cell may take."""


def execute_tour(folder: Path) -> Any:
    """The notebook with the outputs of its cells; runs and the report are written to `folder`."""
    notebook = nbformat.read(TOUR, as_version=4)
    client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": folder}})
    client.execute()
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def main() -> None:
    """Execute the notebook in a folder of its own, and store it with its outputs."""
    with tempfile.TemporaryDirectory() as folder:
        notebook = execute_tour(Path(folder))
    nbformat.write(notebook, TOUR)
    print(f"{TOUR.name}: {TOUR.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
