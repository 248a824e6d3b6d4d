"""The command line, run as a person runs it: in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from heed import __version__
from heed.cli.main import app, wait_without_spinning
from heed.config import DecodeConfig
from heed.recipes import names

ROOT = Path(__file__).resolve().parents[1]


def heed(
    *arguments: str, cwd: Path | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """`python -m heed …` from a checkout that need not be installed."""
    return subprocess.run(
        [sys.executable, "-m", "heed", *arguments],
        cwd=cwd or ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


COMMANDS = [
    command.name or command.callback.__name__
    for command in app.registered_commands
    if command.callback
]


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "sys.argv = ['heed', '--help']\n"
        "from heed.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert "demo" in answer.stdout


@pytest.mark.parametrize("command", ["translate", "generate", "evaluate"])
def test_a_flag_for_a_key_of_a_recipe_has_its_help(command: str) -> None:
    output = CliRunner().invoke(app, [command, "--help"]).stdout
    flags = re.findall(r"^  --([\w-]+) ", output, re.MULTILINE)
    keys = {flag: DecodeConfig.model_fields.get(flag.replace("-", "_")) for flag in flags}
    known = {flag: key.description or "" for flag, key in keys.items() if key is not None}
    assert "beam" in known or "top-k" in known
    words = " ".join(output.split())
    for flag, text in known.items():
        description = re.escape(" ".join(text.split()))
        assert re.search(rf"--{flag} (/ --no-{flag} |\S+ )?{description}", words), flag


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_is_legible_at_80_columns(command: list[str]) -> None:
    output = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "80"}).stdout
    usage, *lines = output.splitlines()
    assert max(map(len, [usage, *lines])) <= 80
    options = [line for line in lines if line.startswith("  -")]
    assert not [line for line in options if "<bool>" in line or "list[" in line]
    assert not [line for line in lines if line.endswith("...")], "no description is cut"
    starts = [match.start(1) for line in lines if (match := re.match(r"  --.*?  +(\S)", line))]
    assert max(starts, default=0) <= 40, "half of the columns are left for descriptions"


def test_it_says_which_version_it_is() -> None:
    answer = heed("--version")
    assert answer.returncode == 0
    assert answer.stdout == f"heed {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "demo-translat"], "recipe 'demo-translat'. Did you mean 'demo-translate'? Ship"),
        (["train", "demo-translate", "--stepz", "3"], "Did you mean --set train.steps=…?"),
        (["train", "demo-translate", "--devise", "cpu"], "--device"),
        (["translat", "runs/demo"], "Did you mean 'translate'"),
        (["train", "demo-translate", "--set", "model.widht=3"], "Did you mean 'width'?"),
        (["train", "demo-translate", "--set", "width=3"], "Did you mean model.width?"),
        (["train", "demo-translate", "--set", "model.heads=3"], "is not divisible by heads 3"),
        (["train", "demo-translate", "--device", "gpu"], "There is no device 'gpu'"),
        (["train", "demo-translate", "--device", "mps"], "There is no device 'mps'"),
        (["train"], "There is no training text"),
        (["train"], "start from a shipped recipe"),
        (["train", "ted-en-fr/bset"], "Did you mean 'ted-en-fr/best'?"),
        (["train", "none.toml"], "no recipe file 'none.toml'. Check the path, or name a shipped"),
        (["resume", "nowhere"], "there is no run here: there is no such folder"),
        (["resume", "docs"], "there is no run here: recipe.toml is missing"),
        (["translate", "nowhere", "Hello."], "there is no run here"),
        (["recipes", "nothing"], "There is no recipe 'nothing'"),
        (["check", "README.md", "--task", "translat"], "Did you mean 'translate'?"),
    ],
)
def test_bad_input_is_a_sentence_and_code_2(
    arguments: list[str], said: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    extra = ["--run", str(folder)] if arguments[0] == "train" else []
    answer = heed(*arguments, *extra)
    assert answer.returncode == 2
    assert said in answer.stderr
    assert "Traceback" not in answer.stderr
    assert not folder.exists()


def test_all_complaints_come_at_once(tmp_path: Path) -> None:
    changes = ["model.widht=3", "model.layers=-1", "train.lr=0.0", "model.merge=shufle"]
    flags = [part for change in changes for part in ("--set", change)]
    answer = heed("train", "demo-translate", *flags, "--run", str(tmp_path / "run"))
    assert answer.returncode == 2
    for word in ("widht", "layers", "lr", "shufle"):
        assert word in answer.stderr


def test_every_shipped_recipe_can_be_shown() -> None:
    listed = {line.split()[0] for line in heed("recipes").stdout.splitlines()}
    assert listed >= set(names())
    for name in names():
        shown = heed("recipes", name)
        assert shown.returncode == 0
        assert "[model]" in shown.stdout


@pytest.mark.parametrize("asked", [["recipes"], ["recipes", "demo-translate"], ["check", "--json"]])
def test_a_reader_that_leaves_ends_any_command_alike(asked: list[str], tmp_path: Path) -> None:
    """With the code of the signal, whichever prints: rich, typer or the command itself."""
    (tmp_path / "train.tsv").write_text("a\tone\nb\ttwo\n")
    files = [str(tmp_path / "train.tsv")] if asked[0] == "check" else []
    read, write = os.pipe()
    os.close(read)
    answer = subprocess.run(
        [sys.executable, "-m", "heed", *asked, *files],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=write,
        stderr=subprocess.PIPE,
        timeout=300,
        check=False,
    )
    os.close(write)
    assert answer.returncode == 141
    assert not answer.stderr


def test_check_speaks_to_programs(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("a\tone\nb\ttwo\na\tthree\nb\tfour\n")
    (tmp_path / "test.tsv").write_text("a\tone\nb\tfive\n")
    answer = heed("check", str(tmp_path / "train.tsv"), str(tmp_path / "test.tsv"), "--json")
    assert answer.returncode == 0
    assert "overlap" in {finding["code"] for finding in json.loads(answer.stdout)["findings"]}


@pytest.mark.parametrize(("load", "expected"), [(0.0, None), (1e3, "PASSIVE")])
def test_threads_do_not_spin_on_a_busy_machine(
    monkeypatch: pytest.MonkeyPatch, load: float, expected: str | None
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    wait_without_spinning()
    assert os.environ.get("OMP_WAIT_POLICY") == expected
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")  # a user's own choice stays
    wait_without_spinning()
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"


@pytest.mark.parametrize("missing", ["train.fr", "dev.fr"])
def test_a_forgotten_side_is_no_language_model(tmp_path: Path, missing: str) -> None:
    flags = []
    for split in ("train", "dev"):
        for side in ("en", "fr"):
            path = tmp_path / f"{split}.{side}"
            path.write_text("a b c\n" * 20, encoding="utf-8")
            flags += [] if path.name == missing else [f"--{split}", path.name]
    answer = heed("train", *flags, "--run", "run", cwd=tmp_path)
    assert answer.returncode == 2
    assert f"do not pair up: {missing} is not named" in " ".join(answer.stderr.split())
    assert not (tmp_path / "run").exists()
