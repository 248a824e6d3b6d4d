"""Run all GPU tests and keep their result, with the commit, the hardware and the versions.

    python benchmarks/gpu_tests.py
    python benchmarks/gpu_tests.py --out DIR --workers 6 tests/nn/kernels
    python benchmarks/gpu_tests.py --minutes 4 tests/train tests/nn tests      the first ones first

The result goes to gpu-tests.txt and gpu-tests.json in DIR (default: benchmarks/results). Exit code
0: all tests ran, and none failed. After `--minutes` the rest is not run, and the result says how
many. The environment variable HEED_COMMIT names the commit of a copy without git.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from common import RESULTS, ROOT, commit, environment

PACKAGES = ("torch", "triton", "numpy", "pytest", "pytest-xdist")
SLOWEST = 15
"""How many of the slowest tests the result names."""


def run_pytest(paths: list[str], workers: int, lines: Path, limit: float | None) -> None:
    """Run the tests marked `gpu`, each with a line in the file `lines`, for `limit` seconds."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:benchmark"]
    command += ["-n", str(workers), "--maxschedchunk", "4"]
    command += ["-p", "report_lines", "--report-lines", str(lines), *paths]
    variables = environment()
    variables["PYTHONPATH"] += os.pathsep + str(Path(__file__).parent)
    process = subprocess.Popen(command, cwd=ROOT, env=variables, start_new_session=True)
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(limit)
    finally:  # its workers, too, and after Ctrl-C
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def read_lines(path: Path) -> dict[str, Any]:
    """Counts, failures and slowest tests of the file that `report_lines` wrote."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    failures, seconds, total, ended = [], [], 0, set()
    for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        if "tests" in line:
            total = line["tests"]
            continue
        counts[line["outcome"]] += 1
        ended.add(line["test"])
        seconds.append((line["seconds"], line["test"]))
        if line["outcome"] == "failed":
            failures.append({"test": line["test"], "message": line["message"]})
    slowest = [{"test": name, "seconds": s} for s, name in sorted(seconds, reverse=True)[:SLOWEST]]
    counts["not run"] = total - len(ended)
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


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def format_result(result: dict[str, Any]) -> str:
    """The result as plain text: counts and failures first."""
    counts, machine = result["counts"], result["machine"]
    lines = [
        f"GPU tests: {', '.join(f'{number} {what}' for what, number in counts.items())} "
        f"in {result['seconds']:.0f} s with {result['workers']} workers",
        f"commit {machine['commit']}; {machine['gpu']}; python {machine['python']}; "
        + "; ".join(f"{name} {number}" for name, number in machine["versions"].items()),
    ]
    for failure in result["failures"]:
        reasons = [line[1:].strip() for line in failure["message"].splitlines() if line[:1] == "E"]
        lines.append(f"FAILED {failure['test']}: {next(iter(reasons), '')}")
    lines.append("Slowest:")
    lines += [f"  {one['seconds']:6.1f} s  {one['test']}" for one in result["slowest"]]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the tests, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("paths", nargs="*", default=["tests"], help="test files or folders")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--minutes", type=float, help="run no longer than that")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "lines"
        limit = None if options.minutes is None else 60 * options.minutes
        run_pytest(options.paths, options.workers, lines, limit)
        if not lines.exists() or not lines.stat().st_size:
            raise SystemExit("pytest collected no tests.")
        result = read_lines(lines)
    if result["counts"]["skipped"] == sum(result["counts"].values()):
        raise SystemExit("Every test was skipped: no GPU was found. Nothing was saved.")
    result |= {"seconds": time.monotonic() - began, "workers": options.workers}
    result["machine"] = describe_machine()
    options.out.mkdir(parents=True, exist_ok=True)
    text = format_result(result)
    (options.out / "gpu-tests.txt").write_text(text, encoding="utf-8")
    (options.out / "gpu-tests.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    print(text)
    counts = result["counts"]
    raise SystemExit(1 if counts["failed"] or counts["not run"] else 0)


if __name__ == "__main__":
    main()
