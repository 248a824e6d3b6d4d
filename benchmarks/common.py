"""Helpers that all benchmarks share: machine info, processes, plain-text tables, saved results."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from heed.bench.timing import side_by_side, synchronize

__all__ = [
    "DOCS",
    "RESULTS",
    "ROOT",
    "captured",
    "commit",
    "environment",
    "keep",
    "machine",
    "set_options",
    "side_by_side",
    "synchronize",
    "table",
]

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs" / "results"
"""The folder of the results pages."""


def machine(device: str) -> dict[str, Any]:
    """The hardware, the versions and the commit that a measurement depends on."""
    info: dict[str, Any] = {
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "command": " ".join(["python", *sys.argv]),
    }
    if device == "cuda":
        info["gpu"] = torch.cuda.get_device_name()
    else:
        info["cpu"] = _cpu_name()
        info["cores"] = os.cpu_count()
        info["threads"] = torch.get_num_threads()
    return info


def commit() -> str | None:
    """The checked-out commit, "+changes" appended if files differ from it; None outside git."""
    if named := os.environ.get("HEED_COMMIT"):
        return named
    try:
        name, changes = (
            subprocess.run(
                ["git", *command],  # noqa: S607 - whichever git is installed
                cwd=ROOT,
                check=True,
                capture_output=True,
                text=True,
            ).stdout.strip()
            for command in (("rev-parse", "HEAD"), ("status", "--porcelain", "-uno"))
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{name}+changes" if changes else name


def environment(**variables: str) -> dict[str, str]:
    """Variables of a process that finds this checkout first, then all that this process finds."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables}


def set_options(changes: Mapping[str, object]) -> list[str]:
    """The options `--set KEY=VALUE` of a heed command."""
    return [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0].split(":", 1)[1].strip() if names else platform.machine()


def captured(run: Callable[[], object]) -> Callable[[], object]:
    """This work captured as a CUDA graph, launched at once."""
    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side_stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def table(title: str, columns: list[str], rows: list[list[str]]) -> str:
    """A plain-text table."""
    widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]
    lines = [title]
    for row in [columns, *rows]:
        cells = [row[0].ljust(widths[0])]
        cells += [c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells))
    return "\n".join(lines)


def keep(
    name: str,
    text: str,
    figures: object,
    *,
    device: str,
    folder: Path | None = None,
    show: bool = True,
) -> None:
    """Save a result as text and as JSON, and print it unless `show` is off."""
    folder = folder or RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    info = machine(device)
    head = "\n".join(f"{key}: {value}" for key, value in info.items())
    (folder / f"{name}.txt").write_text(f"{head}\n\n{text}\n", encoding="utf-8")
    document = {"machine": info, "figures": figures}
    (folder / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if show:
        print(f"{head}\n\n{text}", flush=True)
