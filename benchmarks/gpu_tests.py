"""Run all GPU tests and keep their result, with the commit, the hardware and the versions.

    python benchmarks/gpu_tests.py
    python benchmarks/gpu_tests.py --out DIR --workers 6 tests/nn/kernels

The result goes to gpu-tests.txt and gpu-tests.json in DIR (default: benchmarks/results). Exit code
0: no test failed. The environment variable HEED_COMMIT names the commit of a copy without git.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from common import RESULTS, ROOT, environment

PACKAGES = ("torch", "triton", "numpy", "pytest", "pytest-xdist")
SLOWEST = 15
"""How many of the slowest tests the result names."""


def run_pytest(paths: list[str], workers: int, report: Path) -> int:
    """Run the tests marked `gpu`; writes a JUnit report and returns pytest's exit code."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:benchmark"]
    command += ["-n", str(workers), f"--junitxml={report}", "-o", "junit_family=xunit1", *paths]
    return subprocess.run(command, cwd=ROOT, env=environment(), check=False).returncode


def read_report(report: Path) -> dict[str, Any]:
    """Counts, failures and slowest tests of a JUnit report written by pytest."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    failures, seconds = [], []
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest wrote it
        name = f"{case.get('file') or case.get('classname')}::{case.get('name')}"
        problem = case.find("failure")
        problem = case.find("error") if problem is None else problem
        if problem is not None:
            counts["failed"] += 1
            failures.append({"test": name, "message": (problem.get("message") or "")[:2000]})
        elif case.find("skipped") is not None:
            counts["skipped"] += 1
        else:
            counts["passed"] += 1
        seconds.append((float(case.get("time") or 0.0), name))
    slowest = [{"test": name, "seconds": s} for s, name in sorted(seconds, reverse=True)[:SLOWEST]]
    return {"counts": counts, "failures": failures, "slowest": slowest}


def describe_machine() -> dict[str, Any]:
    """Commit, hardware and versions."""
    import torch

    has_gpu = torch.cuda.is_available()
    return {
        "commit": commit(),
        "gpu": torch.cuda.get_device_name() if has_gpu else None,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


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


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def format_result(result: dict[str, Any]) -> str:
    """The result as plain text: counts and failures first."""
    counts, machine = result["counts"], result["machine"]
    lines = [
        f"GPU tests: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} "
        f"skipped in {result['seconds']:.0f} s with {result['workers']} workers",
        f"commit {machine['commit']}; {machine['gpu']}; python {machine['python']}; "
        + "; ".join(f"{name} {number}" for name, number in machine["versions"].items()),
    ]
    for failure in result["failures"]:
        message = (failure["message"].splitlines() or [""])[0]
        lines.append(f"FAILED {failure['test']}: {message}")
    lines.append("Slowest:")
    lines += [f"  {one['seconds']:6.1f} s  {one['test']}" for one in result["slowest"]]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the tests, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("paths", nargs="*", default=["tests"], help="test files or folders")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--workers", type=int, default=6)
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        code = run_pytest(options.paths, options.workers, report)
        if not report.exists():
            raise SystemExit(f"pytest wrote no report; its exit code is {code}.")
        result = read_report(report)
    result |= {"seconds": time.monotonic() - began, "workers": options.workers}
    result["machine"] = describe_machine()
    options.out.mkdir(parents=True, exist_ok=True)
    text = format_result(result)
    (options.out / "gpu-tests.txt").write_text(text, encoding="utf-8")
    (options.out / "gpu-tests.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    print(text)
    raise SystemExit(code)


if __name__ == "__main__":
    main()
