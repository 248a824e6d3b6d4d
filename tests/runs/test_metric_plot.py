"""`heed plot` through the real command, on small translators of two recipes and two seeds."""

from __future__ import annotations

import csv
import html
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from test_cli import heed
from typer.testing import CliRunner, Result

from heed import plot
from heed.cli.main import app
from heed.config import Recipe
from heed.errors import HeedError
from heed.runs.groups import RunGroup
from heed.runs.metric_plot import PlotOptions, RecordedRun, build_curve
from heed.runs.run import Run
from heed.train import run as train_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = 6


def make_recipe(position: str, seed: int, *, log_every: int = 2) -> Recipe:
    train = {"steps": STEPS, "log_every": log_every, "evaluate_every": 3, "batch_size": 8}
    return Recipe.of(
        {
            "task": "translate",
            "seed": seed,
            "data": {"synthetic": 60, "synthetic_test": 10},
            "model": {"layers": 1, "width": 16, "heads": 2, "position": position},
            "train": train | {"evaluate_bleu": True},
        }
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of runs: rope with two seeds, alibi with one."""
    folder = tmp_path_factory.mktemp("plot")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEED_CACHE", str(folder / "cache"))
        for position, seed in (("rope", 0), ("rope", 1), ("alibi", 0)):
            train_run.start(
                make_recipe(position, seed),
                folder / "runs" / f"{position}-{seed}",
                device="cpu",
                console=Console(quiet=True),
            )
        yield folder / "runs"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def plotted(*arguments: str | Path) -> Result:
    """`heed plot …` in this process; a `HeedError` is raised."""
    result = CliRunner().invoke(app, ["plot", *map(str, arguments)])
    if isinstance(result.exception, HeedError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def texts(svg: Path) -> str:
    """All text of a figure, with single spaces."""
    parts = re.findall(r"<text[^>]*>(.*?)</text>", svg.read_text(encoding="utf-8"), re.DOTALL)
    lines = [html.unescape(re.sub(r"<[^>]*>", "", part)).split() for part in parts]
    return " ".join(word for line in lines for word in line)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_is_drawn_where_the_command_says(runs: Path, tmp_path: Path) -> None:
    answer = heed("plot", str(runs / "rope-0"), cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "dev-loss-by-step.png: dev/loss by step, 1 run\n"
    assert (tmp_path / "dev-loss-by-step.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dev-loss-by-step.png"]


def test_seeds_are_one_line_and_the_legend_names_what_differs(runs: Path) -> None:
    out = plotted(runs, "--y", "dev/bleu", "--x", "epoch", "--out", "bleu.svg").stdout
    assert out == "bleu.svg: dev/bleu by epoch, 3 runs\n"
    text = texts(Path("bleu.svg"))
    assert "position=rope (2 seeds)" in text
    assert "position=alibi" in text
    assert "position=alibi (" not in text
    assert "their mean, shaded from the lowest to the highest" in text
    assert "rope-0" not in text


def test_panels_share_a_legend_that_names_each_recipe_once(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Figure] = []
    save = plot.save_as

    def save_and_keep(figure: Figure, path: Path) -> None:
        drawn.append(figure)
        save(figure, path)

    monkeypatch.setattr(plot, "save_as", save_and_keep)
    metrics = ("--y", "train/loss", "--y", "dev/loss", "--y", "train/lr")
    plotted(runs, *metrics, "--log", "both", "--smooth", "3", "--out", "panels.svg")
    text = texts(Path("panels.svg"))
    for entry in ("position=rope (2 seeds)", "position=alibi", "train/loss", "dev/loss"):
        assert text.count(entry) == 1
    dashes = [
        [(line.get_color(), line.get_linestyle()) for line in axes.lines] for axes in drawn[0].axes
    ]
    rope, alibi = plot.COLORS[1], plot.COLORS[0]
    losses = [(alibi, "-"), (alibi, "--"), (rope, "-"), (rope, "--")]
    assert [sorted(lines) for lines in dashes] == [losses, [(alibi, "-"), (rope, "-")]]


@pytest.mark.parametrize(
    ("x", "log", "ending"),
    [
        ("step", None, "svg"),
        ("epoch", "y", "png"),
        ("tokens", "x", "pdf"),
        ("seconds", "both", "svg"),
    ],
)
def test_every_axis_and_every_format(runs: Path, x: str, log: str | None, ending: str) -> None:
    metrics = ("--y", "train/loss", "--y", "dev/loss", "--y", "dev/perplexity")
    axes = ("--x", x, *(("--log", log) if log else ()))
    plotted(runs, *metrics, *axes, "--out", f"figure.{ending}")
    assert Path(f"figure.{ending}").stat().st_size


def test_the_table_has_every_value_of_every_run(runs: Path) -> None:
    out = plotted(runs, "--y", "dev/loss", "--y", "train/loss", "--csv", "values.csv").stdout
    assert out == "values.csv: dev/loss, train/loss, 12 rows of 3 runs\n"
    assert [path.name for path in Path().iterdir()] == ["values.csv"]  # no figure was asked for
    table = rows(Path("values.csv"))
    for name in ("rope-0", "rope-1", "alibi-0"):
        history = Run.open(runs / name).history
        own = [row for row in table if row["run"] == str(runs / name)]
        for metric in ("dev/loss", "train/loss"):
            recorded = [(r["step"], r["tokens"], r[metric]) for r in history if metric in r]
            assert recorded == [
                (int(r["step"]), int(r["tokens"]), float(r[metric])) for r in own if r[metric]
            ]
        assert {row["recipe"] for row in own} == {f"position={name[:-2]}"}


def test_patterns_and_folders_name_each_run_once(runs: Path) -> None:
    names = [runs / "rope-*", runs, runs / "alibi-0"]
    table = plotted(*names, "--csv", "a.csv").stdout
    assert "of 3 runs" in table
    assert "of 2 runs" in plotted(runs / "rope-*", "--csv", "b.csv").stdout


def test_metrics_are_listed(runs: Path) -> None:
    listed = plotted(runs, "--list").stdout
    for metric in ("dev/bleu", "dev/loss", "seen/loss", "train/lr", "time/tokens_per_second"):
        assert metric in listed
    assert max(map(len, listed.splitlines())) <= 80
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--y", "dev/los"],
            r"None of these runs has recorded 'dev/los'\. Did you mean 'dev/loss'",
        ),
        (["--y", "loss"], "Did you mean dev/loss or seen/loss or train/loss"),
        (["--y", "test/bleu"], r"with train\.evaluate_bleu = true"),
        (["--y", "zzz"], r"There are dev/accuracy, dev/bleu, dev/loss, "),
        (["--x", "steps"], r"--x cannot be 'steps'.* Did you mean 'step'"),
        (["--log", "z"], "--log cannot be 'z': it is one of x, y, both"),
        (["--smooth", "0"], "--smooth cannot be 0"),
        (["--out", "figure.bmp"], r"a figure's name ends in \.png, \.svg, \.pdf"),
        (["--out", "no/such/figure.png"], "no/such: there is no such folder"),
    ],
)
def test_a_wrong_option_is_explained_and_nothing_is_written(
    runs: Path, arguments: list[str], message: str
) -> None:
    with pytest.raises(HeedError, match=message):
        plotted(runs, *arguments)
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "nowhere: there is no such folder"),
        ("nowhere-*", "no run matches this pattern"),
        (".", "there is no run here"),
    ],
)
def test_a_name_without_runs_is_explained(name: str, message: str) -> None:
    with pytest.raises(HeedError, match=message):
        plotted(name)


def test_runs_in_training_are_drawn_as_far_as_they_are(runs: Path, tmp_path: Path) -> None:
    """One is cut off in the middle of a line, one has recorded nothing, one is damaged."""
    partial = tmp_path / "partial"
    shutil.copytree(runs / "rope-0", partial)
    shutil.rmtree(partial / "checkpoints")
    (partial / "model.safetensors").unlink()
    lines = (partial / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (partial / "metrics.jsonl").write_bytes(b"".join(lines[:2]) + lines[2][:20])
    result = plotted(partial, runs / "rope-1", "--out", "both.svg")
    assert result.stderr == ""
    assert "After step 3 not all seeds have values." in texts(Path("both.svg"))

    Run.create(tmp_path / "empty", make_recipe("rope", 3, log_every=7))
    result = plotted(partial, "empty", "--out", "one.svg")
    assert "empty: this run has recorded nothing yet. Its first metrics come at step 7" in (
        result.stderr
    )
    with pytest.raises(HeedError, match="recorded nothing yet"):
        plotted("empty")
    (partial / "metrics.jsonl").write_bytes(b"broken\n")
    assert "this file is damaged" in plotted(partial, runs / "rope-1", "--out", "one.svg").stderr


def test_values_that_no_axis_has_are_left_out_and_counted(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", make_recipe("rope", 0))
    scores = [None, 0.0, 1e200, 4.0]
    lines = [
        {"event": "evaluate", "step": step, "epoch": 1, "dev": {"bleu": value}}
        for step, value in enumerate(scores, 1)
    ]
    run.metrics_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = plotted("run", "--y", "dev/bleu", "--log", "y", "--out", "one.svg")
    assert "2 values of dev/bleu are not finite, or not above 0: not drawn." in result.stderr
    with pytest.raises(HeedError, match=r"None of these runs has a value of dev/bleu by tokens"):
        plotted("run", "--y", "dev/bleu", "--x", "tokens", "--out", "none.svg")
    assert not Path("none.svg").exists()


values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8)


@given(seeds=st.lists(values, min_size=1, max_size=4), smooth=st.integers(1, 4))
def test_a_curve_is_the_mean_of_its_runs_between_the_lowest_and_the_highest(
    seeds: list[list[float]], smooth: int
) -> None:
    recipe = make_recipe("rope", 0)
    runs = [
        RecordedRun(str(i), [measured(step, value) for step, value in enumerate(one, 1)], recipe)
        for i, one in enumerate(seeds)
    ]
    group = RunGroup("rope", tuple(run.name for run in runs), tuple(range(len(runs))), {})
    curve = build_curve(group, runs, "dev/loss", PlotOptions(smooth=smooth))
    assert curve is not None
    smoothed = [
        [sum(part := one[max(0, i + 1 - smooth) : i + 1]) / len(part) for i in range(len(one))]
        for one in seeds
    ]
    for i, (x, y) in enumerate(curve.points):
        here = [one[i] for one in smoothed if i < len(one)]
        assert x == i + 1
        assert y == pytest.approx(sum(here) / len(here), abs=1e-6)
        if curve.band:
            assert curve.band[i] == pytest.approx((min(here), max(here)), abs=1e-6)
    assert bool(curve.band) == (len(seeds) > 1)
    lengths = {len(one) for one in seeds}
    assert curve.complete_until == (min(lengths) if len(lengths) > 1 else None)


def measured(step: int, value: float) -> dict[str, Any]:
    return {"event": "evaluate", "step": step, "epoch": 1, "tokens": 1, "dev/loss": value}
