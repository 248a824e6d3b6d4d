"""`heed design` as a command: exit codes, JSON, figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from heed.cli.main import app
from heed.errors import HeedError
from heed.probe.design import design_query, select_target
from heed.probe.design_figure import draw_solutions, hull_edges, project_keys
from heed.probe.design_problem import COURSE, Solution, solve_course

PNG = b"\x89PNG"
HULL = '{"keys": [[0, 0], [2, 0], [0, 2], [0.5, 0.5]], "scale": 1}'


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["design", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_the_course_is_solved_by_one_command() -> None:
    code, text = run("--course")
    assert code == 0
    assert text.count("target weights") == 8
    assert "  key 4           0.430  -0.830   0.350\n" in text
    assert "  value 1        -0.070  -0.880   0.470\n" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "Impossible" not in text


def test_the_impossible_is_refused_with_the_combination(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(HULL, encoding="utf-8")
    code, text = run(str(file))
    words = " ".join(text.split())
    assert code == 1
    assert words.count("Impossible") == 1
    assert "key 4 = 0.5 · key 1 + 0.25 · key 2 + 0.25 · key 3" in words
    assert "0.333 is an upper bound on its weight" in words
    assert "gives it 0.261, the maximum over all queries" in words
    code, text = run(str(file), "--select", "4", "--json")
    (solution,) = json.loads(text)["solutions"]
    assert code == 1
    assert not solution["possible"]
    z = np.array(solution["dependence"])
    assert np.allclose(z @ np.array(solution["keys"]), 0)
    assert z.sum() == pytest.approx(0)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_figures_are_written(tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"figure.{suffix}"
    code, text = run("--course", "--average", "1,2", "--out", str(out))
    assert code == 0
    assert str(out) in text.replace("\n", "")
    content = out.read_bytes()
    assert content.startswith(PNG) if suffix == "png" else b"Average values 1 and 2" in content


def test_the_figure_shows_scores_as_heights_and_the_hull() -> None:
    """Seen from the side of the query, the height of a key is its score over the length."""
    for solution in solve_course():
        points, up = project_keys(solution.design)
        scores = solution.design.keys_md @ solution.design.query_d
        assert np.allclose(points @ up * solution.design.length, scores)
    assert len(hull_edges(COURSE.keys_md)) == 6  # a tetrahedron
    square = np.array([[0.0, 0], [1, 0], [1, 1], [0, 1], [0.5, 0.5]])
    assert hull_edges(square) == [(0, 1), (0, 3), (1, 2), (2, 3)]
    for keys in (square[:, :1], np.column_stack([square, square])):
        design = design_query(keys, select_target(5, 1))
        figure = draw_solutions([Solution("any width", design)])
        assert len(figure.axes) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no keys to design for"),
        (["--course", "--select", "9"], "the items are 1 to 4"),
        (["--course", "--average", "1;2"], "no list of items"),
        (["--course", "--weights", "a"], "no list of numbers"),
        (["--course", "--select", "1", "--average", "2"], "are different tasks"),
        (
            ["--course", "--identity", "--select", "1"],
            "--identity cannot be combined with another task",
        ),
        (["--course", "--unit", "--select", "1"], "--unit is about a key to replace"),
        (["--course", "--replace-key", "1"], "what the new key is for"),
        (["--course", "--out", "figure.gif"], "figure.gif"),
        (["--course", "--check", "mine.py:attend"], "--check cannot be combined with another task"),
        (["--course", "--values", "v.csv"], "--values is for a file"),
    ],
)
def test_options_that_do_not_fit_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(HeedError) as caught:
        run(*words)
    assert message in str(caught.value)


def test_a_check_passes_or_fails_by_its_exit_code(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "def right(q, k, v):\n    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v\n"
        "def wrong(q, k, v):\n    return (q @ k.mT).softmax(-1) @ v\n",
        encoding="utf-8",
    )
    assert run("--check", f"{file}:right")[0] == 0
    code, text = run("--check", f"{file}:wrong", "--json")
    assert code == 1
    assert json.loads(text)["passed"] is False


def test_the_proof_of_the_docs_is_what_its_command_prints(tmp_path: Path) -> None:
    """The page left out the scale, with which alone the query is the one shown."""
    page = (Path(__file__).parents[2] / "docs" / "design.md").read_text(encoding="utf-8")
    section = page.partition("## Proofs")[2]
    command, shown = (section.split(f"```{kind}\n")[1].split("```")[0] for kind in ("sh", "text"))
    keys = re.findall(r"\(([\d.]+), ([\d.]+)\)", section.partition(", the last can't")[0])
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [[*map(float, key)] for key in keys]}), encoding="utf-8")
    assert command.split()[:3] == ["heed", "design", file.name]
    code, report = run(str(file), *command.split()[3:])
    assert code == 1
    rounding = r"agree\s+to\s+\S+\)"  # which another processor may have otherwise
    printed = report.partition("\n\n")[2]
    assert re.sub(rounding, "", printed).split() == re.sub(rounding, "", shown).split()
