"""What every benchmark shares: what the machine is, how a table looks, and where results go."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from heed.bench.timing import side_by_side, synchronize

__all__ = [
    "DOCS",
    "RESULTS",
    "captured",
    "keep",
    "machine",
    "side_by_side",
    "synchronize",
    "table",
]

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).resolve().parents[1] / "docs" / "results"
"""Where the pages of results are."""


def machine(device: str) -> dict[str, Any]:
    """The hardware and versions a figure hangs on."""
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "command": " ".join(["python", *sys.argv]),
    }
    if device == "cuda":
        facts["gpu"] = torch.cuda.get_device_name()
    else:
        facts["cpu"] = _cpu_name()
        facts["threads"] = torch.get_num_threads()
    return facts


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0].split(":", 1)[1].strip() if names else platform.machine()


def captured(run: Callable[[], object]) -> Callable[[], object]:
    """The same work, launched as one CUDA graph."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def table(title: str, columns: list[str], rows: list[list[str]]) -> str:
    """Plain text columns."""
    widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]
    lines = [title]
    for row in [columns, *rows]:
        cells = [row[0].ljust(widths[0])]
        cells += [c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells))
    return "\n".join(lines)


def keep(name: str, text: str, figures: object, *, device: str, folder: Path | None = None) -> None:
    """Print a result and keep it, for people and for programs."""
    folder = folder or RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    facts = machine(device)
    head = "\n".join(f"{key}: {value}" for key, value in facts.items())
    (folder / f"{name}.txt").write_text(f"{head}\n\n{text}\n", encoding="utf-8")
    document = {"machine": facts, "figures": figures}
    (folder / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"{head}\n\n{text}", flush=True)
