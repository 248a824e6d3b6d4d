"""Commands load no more of heed than they use: real commands in a process, sys.modules counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from study_folders import write_study

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = """
import json, sys
from heed.cli.main import main
out = sys.argv.pop(1)
try:
    main()
finally:
    loaded = sorted(name for name in sys.modules if name.split(".")[0] == "heed")
    with open(out, "w") as file:
        json.dump({"modules": loaded, "torch": "torch" in sys.modules}, file)
"""
TRAINING = ("heed.train", "heed.data.synthetic", "heed.data.doctor", "heed.study")
"""What using a trained model must not load, beside models.huggingface."""
MODEL = ["model.layers=1", "model.width=16", "model.heads=2"]
DATA = ["data.synthetic=60", "data.synthetic_test=10", "data.max_length=48", "tokenizer.kind=word"]
LIMIT = 100
"""Modules of heed that `heed translate` may load."""


def loaded_modules(folder: Path, *arguments: str) -> set[str]:
    """Run a command in its own process; returns the modules of heed that it loaded."""
    out = folder / "modules.json"
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(out), *arguments, "--device", "cpu"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HEED_CACHE": str(folder / "cache")},
        input="The cat sees the dog.\n",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return set(json.loads(out.read_text(encoding="utf-8"))["modules"])


def train(folder: Path, task: str) -> set[str]:
    """Train a tiny run of a task in `folder/TASK`; returns the modules that this loaded."""
    changes = [*DATA, *MODEL, "train.steps=2", "train.batch_size=8"]
    flags = [flag for change in changes for flag in ("--set", change)]
    return loaded_modules(folder, "train", f"demo-{task}", "--run", str(folder / task), *flags)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("imports")


@pytest.fixture(scope="module")
def modules_of_training(folder: Path) -> set[str]:
    return train(folder, "translate")


def starting_with(modules: set[str], *prefixes: str) -> list[str]:
    return sorted(m for m in modules if any(m == p or m.startswith(f"{p}.") for p in prefixes))


def test_translate_loads_no_training_code(folder: Path, modules_of_training: set[str]) -> None:
    assert modules_of_training
    modules = loaded_modules(folder, "translate", str(folder / "translate"))
    assert starting_with(modules, *TRAINING, "heed.models.huggingface") == []
    assert (
        starting_with(modules, "heed.metrics", "heed.evaluate", "heed.probe", "heed.export") == []
    )
    assert len(modules) <= LIMIT, sorted(modules)


def test_translating_a_file_stays_within_the_limit(
    folder: Path, modules_of_training: set[str]
) -> None:
    assert modules_of_training
    (folder / "in.txt").write_text("The cat.\n", encoding="utf-8")
    file = str(folder / "in.txt")
    modules = loaded_modules(folder, "translate", str(folder / "translate"), "--file", file)
    assert len(modules) <= LIMIT, sorted(modules)


@pytest.mark.parametrize("task", ["classify", "generate"])
def test_the_other_tasks_load_no_training_code(folder: Path, task: str) -> None:
    train(folder, task)
    modules = loaded_modules(folder, task, str(folder / task))
    assert starting_with(modules, *TRAINING, "heed.models.huggingface") == []
    assert starting_with(modules, "heed.evaluate", "heed.probe", "heed.export") == []


def test_training_loads_no_text_generation_export_or_bench(
    modules_of_training: set[str],
) -> None:
    unused = ("heed.pipelines.generate", "heed.decode.streaming", "heed.export", "heed.bench")
    assert starting_with(modules_of_training, *unused, "heed.evaluate", "heed.api") == []


def test_the_package_itself_loads_no_torch() -> None:
    script = "import heed, sys; assert not {'torch', 'numpy', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=60)


STUDY_COMMANDS = """
import sys
from heed.cli.main import main

study = sys.argv[1]
report = ["report", study, "--out", study + "/report.html"]
for command in (["study", study, "--status"], ["compare", study], report):
    sys.argv = ["heed", *command]
    try:
        main()
    except SystemExit as end:
        assert not end.code, command
    loaded = {"torch", "sacrebleu", "optuna", "sklearn", "scipy", "matplotlib"} & set(sys.modules)
    assert not loaded, (command, loaded)
"""


def test_reading_a_study_loads_no_torch(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", {"a": 0.5, "b": 0.6})
    subprocess.run(
        [sys.executable, "-c", STUDY_COMMANDS, str(study)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=120,
    )
    assert (study / "report.html").is_file()
