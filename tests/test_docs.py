"""What the README and the docs say can be done, can be done: Python runs, commands are parsed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from evaluating import train_small, write_text

from heed import plugins
from heed.cli.main import app
from heed.config import Recipe
from heed.study.study_file import read_study

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
EXPORTED = "export.md"
"""The page whose programs need exported models: `tests/export` runs them on real exports."""
EXAMPLE = "kerple_of_the_docs"
"""The position that core.md adds, where a test runs it: heed may have a `kerple` of its own."""
each_page = pytest.mark.parametrize(
    "page", PAGES, ids=[page.relative_to(ROOT).as_posix() for page in PAGES]
)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


# ----------------------------------------------------------------------------------------- Python


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder as a reader of the docs has it: text, labeled text, and a few small runs."""
    folder = tmp_path_factory.mktemp("workspace")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEED_CACHE", str(folder / "cache"))
        write_text(folder)
        for name in ("en", "fr", "tsv"):
            (folder / f"dev.{name}").write_bytes((folder / f"test.{name}").read_bytes())
        (folder / "mine.tsv").write_bytes((folder / "train.tsv").read_bytes())
        train_small(folder, "translate", "runs/mine")
        train_small(folder, "translate", "runs/small", data={"bidirectional": True})
        train_small(folder, "classify", "runs/labels")
        train_small(folder, "generate", "runs/writer")
        yield folder


def programs_of(page: Path) -> list[str]:
    """The Python of a page. The position it adds gets a name that heed itself can never have."""
    return [block.replace('"kerple"', f'"{EXAMPLE}"') for block in blocks(page, "python")]


def pretrained_folder(workspace: Path) -> None:
    """A tiny RoBERTa with random weights, as `save_pretrained` writes it."""
    pytest.importorskip("transformers")
    from foreign import CASES, make, saved

    saved(make(CASES["roberta"]), workspace / "models" / "roberta-base")


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if blocks(page, "python") and page.name != EXPORTED],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_every_python_block_runs(page: Path, workspace: Path) -> None:
    """The blocks of a page run one after the other in one interpreter, as a reader would."""
    programs = programs_of(page)
    if page.name == "pretrained.md":
        pretrained_folder(workspace)
    answer = subprocess.run(
        [sys.executable, "-c", "\n\n".join(programs)],
        cwd=workspace,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr


@pytest.mark.slow
def test_the_position_of_the_docs_is_a_plugin(workspace: Path) -> None:
    """The class in core.md trains and translates as a file named by --plugin."""
    (program,) = (b for b in programs_of(ROOT / "docs" / "core.md") if "class Kerple" in b)
    (workspace / "my_position.py").write_text(program, encoding="utf-8")
    plugin = ["--plugin", "my_position.py"]
    train = ["--train", "train.en", "--train", "train.fr", "--run", "runs/kerple"]
    small = [f"model.position={EXAMPLE}", "model.layers=1", "model.width=32", "train.steps=2"]
    settings = [word for change in small for word in ("--set", change)]
    for arguments in (
        ["train", "--task", "translate", *train, *settings, "--device", "cpu", *plugin],
        ["translate", "runs/kerple", "The cat sleeps.", "--device", "cpu", *plugin],
    ):
        answer = subprocess.run(
            [sys.executable, "-m", "heed", *arguments],
            cwd=workspace,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == 0, answer.stderr


# ------------------------------------------------------------------------------------------ shell


def commands(page: Path) -> Iterator[list[str]]:
    """The arguments of every `heed` in the shell blocks of a page."""
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            parts: list[list[str]] = [[]]
            for word in words:
                if word in ("|", "&&", "||", ";", "&"):
                    parts.append([])
                else:
                    parts[-1].append(word)
            for part in parts:
                if "heed" in part:
                    yield without_redirections(part[part.index("heed") + 1 :])


def without_redirections(words: list[str]) -> list[str]:
    kept, skip = [], False
    for word in words:
        if skip or re.fullmatch(r"\d?>>?&?\d?|<", word):
            skip = not skip and not re.search(r"&\d$", word)
        else:
            kept.append(word)
    return kept


def parse(arguments: list[str]) -> dict[str, object]:
    """The parameters of a command line, read by the real parser; nothing is run."""
    group = typer.main.get_command(app)
    context = group.make_context("heed", list(arguments))
    name, command, rest = group.resolve_command(  # type: ignore[attr-defined]
        context, [*context._protected_args, *context.args]
    )
    return dict(command.make_context(name, rest, parent=context).params)


@each_page
def test_every_shell_block_is_parsed_by_the_real_command_line(
    page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "load_plugins", lambda files: [])  # the reader's own files
    for arguments in commands(page):
        if any(word.startswith("$") for word in arguments) or arguments in ([], ["--version"]):
            continue  # a variable of the reader's own shell
        parameters = parse(arguments)
        changes = parameters.get("changes") or parameters.get("set") or ()
        assert isinstance(changes, list | tuple)
        for change in changes:
            key, _, _ = str(change).partition("=")
            assert known_key(key), f"{page.name}: {key} in heed {' '.join(arguments)}"


def known_key(key: str) -> bool:
    from heed.config import SECTIONS

    section, _, name = key.partition(".")
    if not name:
        return section in ("seed", "task")
    keys = SECTIONS[section].keys() if section in SECTIONS else []
    return name.split(".")[0] in keys


@each_page
def test_every_toml_block_is_a_study_or_a_part_of_a_recipe(page: Path, tmp_path: Path) -> None:
    import tomllib

    for block in blocks(page, "toml"):
        tables = tomllib.loads(block)
        if "recipe" in tables:
            (tmp_path / "study.toml").write_text(block, encoding="utf-8")
            read_study(tmp_path / "study.toml", quick="quick" in tables)
        else:
            Recipe.of({"task": "translate"} | tables)


def test_the_parser_refuses_what_the_command_line_refuses() -> None:
    with pytest.raises(Exception, match="No such option"):
        parse(["train", "--no-such-option"])
    assert without_redirections(["a", "<", "in", ">", "out", "2>&1", "b"]) == ["a", "b"]


# ------------------------------------------------------------------------------------------ links


@each_page
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_tables_of_the_pages_are_made_from_the_code() -> None:
    script = ROOT / "docs" / "make_tables.py"
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    answer = subprocess.run(
        [sys.executable, str(script), "--check"],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr


def test_every_page_folder_and_module_is_listed() -> None:
    """By what is on disk, whatever `docs/make_tables.py` takes for it."""
    docs = ROOT / "docs"
    index, tree = ((docs / name).read_text("utf-8") for name in ("README.md", "modules.md"))
    for page in [*docs.glob("*.md"), *(docs / "results").glob("*.md")]:
        if page != docs / "README.md":
            assert f"]({page.relative_to(docs).as_posix()})" in index
    for path in (ROOT / "heed").rglob("*.py"):
        if path.name == "__init__.py" and path.parent != ROOT / "heed":
            assert f"](../{path.parent.relative_to(ROOT).as_posix()})" in tree
        elif not path.stem.startswith("__"):
            assert re.search(rf"^ +{path.stem} ", tree, re.MULTILINE), path


def test_a_page_in_no_group_is_an_error(tmp_path: Path) -> None:
    docs = shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=lambda *_: ["images"])
    (docs / "forgotten.md").write_text("# Forgotten\n\nA page.\n", encoding="utf-8")
    answer = subprocess.run(
        [sys.executable, "-c", "import make_tables; make_tables.check_groups()"],
        cwd=docs,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 1
    assert answer.stderr.startswith("forgotten: in no group")


def test_the_two_commands_are_what_ci_runs() -> None:
    readme, ci = ((ROOT / name).read_text() for name in ("README.md", ".ci/run"))
    for words in ("pip install . && heed demo", "pip install '.[test]' && pytest"):
        assert words in readme
        assert words.replace("pip install", "pip install --quiet") in ci
