"""The folder of the lab: nothing outside it, whatever the name."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from labs import lab_client

from heed.errors import HeedError, RunError
from heed.lab.error_responses import StatusError
from heed.lab.run_folder import RunFolder


def make_run(folder: Path) -> Path:
    """A folder that counts as a run."""
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text("", encoding="utf-8")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Runs and a study below a folder, and a run outside it with links that lead there."""
    make_run(tmp_path / "outside" / "secret")
    root = tmp_path / "runs"
    for name in ("a", "deep/b", "study/runs/0001", ".hidden/c", "a/checkpoints/x"):
        make_run(root / name)
    make_run(root / "study" / "recipes")
    (root / "study" / "study.toml").touch()
    (root / "link").symlink_to(tmp_path / "outside" / "secret")
    (root / "up").symlink_to(tmp_path / "outside")
    (root / "inside").symlink_to(root / "a")
    return root


def test_the_names_are_those_of_visible_runs_and_studies(root: Path) -> None:
    folder = RunFolder(root)
    assert folder.run_names() == ["a", "deep/b", "study/runs/0001"]
    assert folder.study_names() == ["study"]
    assert folder.name_of(folder.run("deep/b").folder) == "deep/b"


@pytest.mark.parametrize(
    "name",
    [
        *("..", "../outside/secret", "a/../../outside/secret", "/etc", "", ".", "a/..", "link"),
        *("up/secret", "a\x00", ".hidden/c", "a\\..\\..", "no", "x" * 5000, "//a"),
    ],
)
def test_what_leads_out_of_the_folder_is_refused(root: Path, name: str) -> None:
    with pytest.raises(StatusError) as refusal:
        RunFolder(root).resolve(name)
    assert refusal.value.status == 404


def test_a_link_inside_the_folder_is_followed(root: Path) -> None:
    assert RunFolder(root).resolve("inside") == (root / "a").resolve()


@given(st.text(alphabet="a./\\~%\x00é", max_size=12))
def test_no_name_resolves_outside(name: str) -> None:
    folder = RunFolder(Path(__file__).parent)
    try:
        path = folder.resolve(name)
    except HeedError:
        return
    assert path.is_relative_to(folder.root)


def test_one_run_or_one_study_is_shown_alone(root: Path) -> None:
    run, study = RunFolder(root / "a"), RunFolder(root / "study")
    assert run.run_names() == ["a"]
    assert (study.run_names(), study.study_names()) == (["study/runs/0001"], ["study"])
    for folder in (run, study):
        with pytest.raises(StatusError):
            folder.resolve("deep/b")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="heed demo"):
        RunFolder(tmp_path / "none")


def test_addresses_never_lead_to_files(root: Path) -> None:
    (root.parent / "outside" / "x.css").write_text("secret", encoding="utf-8")
    with lab_client(root) as client:
        for path in ("/static/../../x.css", "/static/%2e%2e/%2e%2e/__init__.py", "/..%2fx.css"):
            answer = client.get(path)
            assert "secret" not in answer.text
            assert "import" not in answer.text
