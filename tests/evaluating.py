"""Small runs to evaluate, and test text that partly occurs in their training text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from typer.testing import CliRunner

from heed.cli.main import app
from heed.config import Recipe
from heed.data import synthetic
from heed.errors import HeedError
from heed.evaluate.evaluate_run import evaluate_run
from heed.evaluate.job import Options
from heed.runs.run import Run
from heed.train import run as train_run

LEARNT, HELD_OUT, SHARED = 200, 40, 10
QUICK = Options(resamples=100)


def write_text(folder: Path) -> Path:
    """Files for the three tasks; the first lines of every test file are also in train."""
    learnt = list(synthetic.generate_sentences("train", LEARNT, seed=1))
    fresh = list(synthetic.generate_sentences("test", HELD_OUT - SHARED, seed=1))
    for split, sentences in (("train", learnt), ("test", learnt[:SHARED] + fresh)):
        for suffix, lines in (
            ("en", [s.english for s in sentences]),
            ("fr", [s.french for s in sentences]),
            ("tsv", [f"{s.speaker}\t{s.english}" for s in sentences]),
        ):
            content = "".join(f"{line}\n" for line in lines)
            (folder / f"{split}.{suffix}").write_text(content, encoding="utf-8")
    return folder


def train_small(text: Path, task: str, name: str, **tables: Any) -> Path:
    suffixes = {"translate": ("en", "fr"), "classify": ("tsv",), "generate": ("en",)}[task]
    data = {"train": [str(text / f"train.{suffix}") for suffix in suffixes]}
    recipe = Recipe.of(
        {
            "task": task,
            "data": data | tables.pop("data", {}),
            "tokenizer": {} if "init" in tables else {"kind": "word"},
            "init": tables.pop("init", {}),
            "model": {"layers": 1, "width": 32, "heads": 2, "dropout": 0.0},
            "train": {"steps": 30, "batch_size": 16, "lr": 0.01, "evaluate_every": 10}
            | {"precision": "float32"}  # as evaluation computes
            | tables.pop("train", {}),
        }
    )
    train_run.start(recipe, text / name, device="cpu", console=Console(quiet=True))
    return text / name


def sides(text: Path, split: str) -> list[str]:
    return [str(text / f"{split}.{suffix}") for suffix in ("en", "fr")]


def translator(text: Path) -> Path:
    """A translator whose recipe uses the test files as dev and as the named set `again`."""
    files = sides(text, "test")
    return train_small(text, "translate", "run", data={"dev": files, "sets": {"again": files}})


def evaluate_small(run: Path, **changes: Any) -> dict[str, Any]:
    if Run(run).recipe().task == "translate":
        changes = {"metrics": ("bleu", "chrf")} | changes
    return evaluate_run(run, replace(QUICK, **changes), device="cpu", notify=lambda _: None)


def invoke_command(command: str, *arguments: str) -> tuple[int, str]:
    """Exit code and output, where `heed.cli.main` makes a sentence and a 2 of an error."""
    result = CliRunner().invoke(app, [command, *arguments, "--device", "cpu"])
    if isinstance(result.exception, HeedError):
        return 2, str(result.exception)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output
