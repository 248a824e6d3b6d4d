"""What the README and the docs say can be done, can be done."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_cli import heed

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
each_page = pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def test_the_readme_s_python_runs() -> None:
    for block in blocks(ROOT / "README.md", "python"):
        answer = subprocess.run(
            [sys.executable, "-c", block], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert answer.returncode == 0, answer.stderr


@each_page
def test_every_command_named_exists(page: Path) -> None:
    known = set(re.findall(r"│ (\w+) ", heed("--help").stdout))
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    used = {found[1] for line in lines if (found := re.search(r"\bheed ([a-z]+)", line))}
    assert used <= known


@each_page
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_two_commands_are_what_ci_runs() -> None:
    readme, ci = ((ROOT / name).read_text() for name in ("README.md", ".ci/run"))
    for words in ("pip install . && heed demo", "pip install '.[test]' && pytest"):
        assert words in readme
        assert words.replace("pip install", "pip install --quiet") in ci
