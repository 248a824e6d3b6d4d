"""Write the results, the figures and the page."""

from __future__ import annotations

import json
from pathlib import Path

from by_position.figures import draw_padding, draw_positions
from by_position.page import NAME, write_page
from by_position.results import gather


def write_report(measured: Path | None, results_folder: Path, docs: Path) -> None:
    """Write the page and its figures from measurements, or from the results that are kept."""
    path = results_folder / f"{NAME}.json"
    if measured is not None:
        text = json.dumps(gather(measured), separators=(",", ":"), ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")
    results = json.loads(path.read_text(encoding="utf-8"))
    for model, title in (
        ("encoder", "What each token of the classifier looks at"),
        ("decoder", "What each token of the language model looks at"),
    ):
        draw_positions(results, model, title, docs / f"{NAME}-{model}.png")
    draw_padding(results, "learned", docs / f"{NAME}-padding.png")
    (docs / f"{NAME}.md").write_text(write_page(results), encoding="utf-8")
