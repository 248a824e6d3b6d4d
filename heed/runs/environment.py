"""The environment of a run: versions of packages, hardware, and heed's own commit."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

COMMIT_VARIABLE = "HEED_COMMIT"
"""The environment variable that names the commit of the code."""
PACKAGES = ("heed", "torch", "tokenizers", "safetensors", "numpy", "sacrebleu", "pydantic")


def describe_environment() -> dict[str, Any]:
    """Versions, hardware and commit, as `environment.json` records them."""
    import torch

    info: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _package_version(name) for name in PACKAGES},
        "cpu_threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "commit": find_commit(),
    }
    if torch.cuda.is_available():
        info["gpu"] = torch.cuda.get_device_name()
        info["cuda"] = torch.version.cuda
    return info


def _package_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a checkout that is not installed
        return None


def find_commit() -> str | None:
    """The commit of the code that runs; None where heed is installed and nothing names it.

    HEED_COMMIT names it for a copy without git, or one inside the checkout of another project.
    """
    if named := os.environ.get(COMMIT_VARIABLE):
        return named
    root, git = Path(__file__).resolve().parents[2], shutil.which("git")
    if git is None or not (root / ".git").exists():
        return None
    try:
        process = subprocess.run(
            [git, "-C", str(root), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip()
