"""Plug-ins: a user's own position, from a file, through the real commands."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from test_cli import heed

from heed import plugins
from heed.api import Translator
from heed.config import POSITIONS, ModelConfig
from heed.config.registry import REGISTRIES
from heed.errors import ConfigError, HeedError, RunError
from heed.lab.run_folder import RunFolder
from heed.lab.run_watch import RunWatch
from heed.runs.index import list_runs
from heed.runs.run import Run

DECAY = """
import torch
from torch import nn

import heed
from heed.nn.positions import Position


@heed.register
class Decay(Position):
    '''A learned rate a head by which scores fall with distance.'''

    name = "decay"

    def __init__(self, config, *, causal=False):
        super().__init__(config, causal=causal)
        self.rate = nn.Parameter(torch.zeros(config.heads))

    def bias(self, q_bhnd, q_positions, k_positions):
        distance = (k_positions[:, None, :] - q_positions[:, :, None]).abs()
        return -self.rate[:, None, None] * distance[:, None]
"""
MERGE = """
import heed
from heed.nn.merges import Merge


@heed.register
class Reverse(Merge):
    name = "reverse"

    def change(self, heads_bhnd, mask_bn):
        return heads_bhnd.flip(1)
"""
SMALL = ["data.synthetic=60", "data.synthetic_test=10", "model.width=16", "model.layers=1"]
SMALL += ["train.steps=3", "train.precision=float32", "tokenizer.vocab_size=300"]


@pytest.fixture(autouse=True)
def own_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    for registry in REGISTRIES:
        assert all(registry[name] for name in registry.declared)
        monkeypatch.setattr(registry, "classes", dict(registry.classes))
    monkeypatch.setattr(plugins, "_loaded", {})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "decay.py").write_text(DECAY, encoding="utf-8")
    (folder / "other").mkdir()
    changed = DECAY.replace("torch.zeros", "torch.ones")
    (folder / "other" / "decay.py").write_text(changed, encoding="utf-8")
    return folder


def command(place: Path, *arguments: str) -> CompletedProcess[str]:
    return heed(*arguments, cwd=place)


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    """A run trained with the plug-in, through the real command."""
    sets = [word for change in SMALL for word in ("--set", change)]
    sets += ["--set", "model.position=decay", "--plugin", "decay.py"]
    answer = command(place, "train", "demo-translate", "--run", "run", "--device", "cpu", *sets)
    assert answer.returncode == 0, answer.stderr
    return place / "run"


def test_the_run_records_the_plugin(run: Path) -> None:
    (recorded,) = json.loads((run / "environment.json").read_text())["plugins"]
    assert recorded["name"] == "decay.py"
    assert recorded["parts"] == ["position decay"]
    assert len(recorded["sha256"]) == 64


def test_it_is_resumed_and_translates(place: Path, run: Path) -> None:
    weights = Run(run).weights_path
    before = weights.read_bytes()
    weights.unlink()
    refused = command(place, "resume", "run", "--device", "cpu")
    assert refused.returncode == 2
    assert "--plugin decay.py" in refused.stderr
    resumed = command(place, "resume", "run", "--device", "cpu", "--plugin", "decay.py")
    assert resumed.returncode == 0, resumed.stderr
    assert weights.read_bytes() == before
    translate = ("translate", "run", "The cat sleeps.", "--device", "cpu")
    answer = command(place, *translate, "--plugin", "decay.py")
    assert answer.returncode == 0, answer.stderr
    assert len(answer.stdout.splitlines()) == 1


def test_without_the_file_or_with_another_it_is_refused(place: Path, run: Path) -> None:
    with pytest.raises(RunError, match=r"trained with the plug-in decay\.py .*--plugin decay\.py"):
        Translator.load(run, device="cpu")
    plugins.load_plugin(place / "other" / "decay.py")
    with pytest.raises(RunError, match=r"trained with another decay\.py: its sha256 was"):
        Translator.load(run, device="cpu")


def test_lists_say_that_the_plugin_is_needed_not_that_the_run_is_broken(
    place: Path, run: Path
) -> None:
    answer = command(place, "runs", ".")
    assert answer.returncode == 0
    assert answer.stderr == ""
    assert "needs --plugin decay.py" in answer.stdout
    assert "broken" not in answer.stdout
    assert "needs" not in command(place, "runs", ".", "--plugin", "decay.py").stdout
    watch = RunWatch(RunFolder(place))
    watch.refresh()
    assert watch.runs["run"].entry["status"] == "needs --plugin decay.py"
    plugins.load_plugin(place / "other" / "decay.py")
    assert [entry["needs"] for entry in list_runs(place)] == ["needs another --plugin decay.py"]


def test_python_takes_the_file_too(place: Path, run: Path) -> None:
    translator = Translator.load(run, device="cpu", plugin=place / "decay.py")
    assert translator.recipe.model.position == "decay"
    assert Translator.load(run, device="cpu", plugin=[place / "decay.py"]).model  # loaded once


def test_a_recipe_alone_loads_nothing() -> None:
    with pytest.raises(ConfigError, match=r"cannot be 'decay': .*of your own .* --plugin FILE"):
        ModelConfig(position="decay")


def test_a_merge_is_a_plugin_too(tmp_path: Path) -> None:
    (tmp_path / "merge.py").write_text(MERGE, encoding="utf-8")
    plugin = plugins.load_plugin(tmp_path / "merge.py")
    assert plugin.parts == ("merge reverse",)
    assert plugins.used_plugins(ModelConfig(merge="reverse")) == [plugin]
    assert plugins.used_plugins(ModelConfig()) == []
    assert not (tmp_path / "__pycache__").exists()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import heed\n", "it registers nothing"),
        ("1 / 0\n", "ZeroDivisionError"),
        (DECAY.replace('"decay"', '"rope"'), "position 'rope' already"),
        (DECAY + "\n1 / 0\n", "ZeroDivisionError"),
        ("not Python at all", r"SyntaxError: .*\. Correct the file"),
    ],
)
def test_a_plugin_that_fails_registers_nothing(tmp_path: Path, source: str, said: str) -> None:
    (tmp_path / "wrong.py").write_text(source, encoding="utf-8")
    names = POSITIONS.names()
    with pytest.raises(HeedError, match=said) as error:
        plugins.load_plugin(tmp_path / "wrong.py")
    assert "wrong.py" in str(error.value)
    assert POSITIONS.names() == names


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(HeedError, match=r"no such plug-in file"):
        plugins.load_plugins(str(tmp_path / "none.py"))
