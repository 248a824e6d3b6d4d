"""Lists of texts train, resume and evaluate as files of the same text do, bit for bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from evaluating import invoke_command, write_text

import heed
from heed.api import TrainedModel
from heed.errors import ConfigError, DataError, RunError
from heed.runs.run import Run

TINY: dict[str, Any] = {"layers": 1, "width": 16, "heads": 2, "steps": 4, "batch_size": 8}
TINY |= {"kind": "word", "evaluate_every": 2, "precision": "float32", "device": "cpu"}
CLASSES: dict[str, Any] = {
    "translate": heed.Translator,
    "classify": heed.Classifier,
    "generate": heed.LanguageModel,
}
SUFFIXES = {"translate": ("en", "fr"), "classify": ("tsv",), "generate": ("en",)}
LONGEST_REPR = 400


def only(task: str) -> pytest.MarkDecorator:
    """What is the same for all tasks is tested with one."""
    return pytest.mark.parametrize("task", [task], indirect=True)


@pytest.fixture(scope="module", params=["translate", "classify", "generate"])
def task(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("given"))


def files(text: Path, task: str, split: str) -> list[Path]:
    return [text / f"{split}.{suffix}" for suffix in SUFFIXES[task]]


def lists(text: Path, task: str, split: str) -> Any:
    """The same text as the files of a split."""
    columns = [path.read_text(encoding="utf-8").splitlines() for path in files(text, task, split)]
    if task == "translate":
        return columns[0], columns[1]
    if task == "classify":
        labels, texts = zip(*(line.split("\t") for line in columns[0]), strict=True)
        return list(texts), list(labels)
    return columns[0]


@pytest.fixture(scope="module")
def trained(text: Path, task: str) -> tuple[TrainedModel, TrainedModel]:
    """A model trained on files, and one trained on the same text as lists."""
    train = CLASSES[task].train
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEED_CACHE", str(text / "cache"))
        models = [
            train(train=give(text, task, "train"), test=give(text, task, "test"), run=run, **TINY)
            for give, run in ((files, text / f"{task}-files"), (lists, text / f"{task}-lists"))
        ]
    return models[0], models[1]


def test_lists_train_the_same_weights_as_files(
    trained: tuple[TrainedModel, TrainedModel], task: str
) -> None:
    from_files, from_lists = trained
    ours, theirs = (model.run.weights_path.read_bytes() for model in trained)
    assert ours == theirs
    keys = ("step", "tokens", "train/loss", "dev/loss")
    curves = [[tuple(row.get(key) for key in keys) for row in one.history] for one in trained]
    assert curves[0] == curves[1] != []
    data = Run.open(from_lists.run.folder).recipe().data
    assert data.train == [str(from_lists.run.folder / "data" / "train.jsonl")]
    assert not from_files.run.data.exists()


def test_evaluate_gives_the_numbers_of_the_command(
    trained: tuple[TrainedModel, TrainedModel], task: str
) -> None:
    """The same on the test set of lists and of files, and saved as the command saves it."""
    from_files, from_lists = trained
    result = from_lists.evaluate()  # type: ignore[attr-defined]
    code, output = invoke_command("evaluate", str(from_files.run.folder), "--json")
    assert code == 0, output
    command = json.loads(output[output.index("{") :])
    assert result["split"] == command["split"] == "test"
    assert result.metrics == {name: command[name] for name in result.metrics}
    assert result["interval"] == command["interval"]
    assert result["in_train"] == command["in_train"] == 10
    assert json.loads((from_lists.run.folder / "evaluation.json").read_text())["test"]["looks"] == 1
    counts = [model.run.items("test") for model in trained]
    assert {key: list(one) for key, one in counts[0].items()} == {
        key: list(one) for key, one in counts[1].items()
    }
    first, *_ = result.rows()
    assert first["value"] == result[first["metric"]]
    assert repr(result).startswith(f"EvaluationResult({from_lists.run.folder} on test, 40 texts: ")
    assert len(repr(result)) < LONGEST_REPR
    assert "40 texts" in str(result)
    assert all(len(line) <= 80 for line in str(result).splitlines())


@only("classify")
def test_lists_to_evaluate_on_are_kept_under_a_name(
    trained: tuple[TrainedModel, TrainedModel], text: Path, task: str
) -> None:
    model: Any = trained[0]
    given = lists(text, task, "test")
    again = model.evaluate(test=given, name="again")
    assert again["split"] == "again"
    assert again.metrics == model.evaluate(split="test").metrics
    other = model.evaluate(test=(given[0][:5], given[1][:5]), name="again")
    assert other["texts"] == 5
    assert other["split"] == "again-2"
    names = sorted(path.name for path in model.run.data.iterdir())
    assert names == ["again-2.jsonl", "again.jsonl"]
    shutil.rmtree(model.run.data)


def test_one_metric_can_be_asked_for(trained: tuple[TrainedModel, TrainedModel], task: str) -> None:
    model: Any = trained[0]
    metric = {"translate": "chrf", "classify": "macro_f1", "generate": "perplexity"}[task]
    result = model.evaluate(split="dev", metric=metric)
    assert list(result.metrics) == [metric]
    assert [row["metric"] for row in result.rows()] == [metric]
    with pytest.raises(ConfigError, match=f"Did you mean '{metric}'"):
        model.evaluate(metric=metric[:-1])


@only("generate")
def test_what_evaluate_cannot_take_is_a_sentence(
    trained: tuple[TrainedModel, TrainedModel], task: str
) -> None:
    model: Any = trained[0]
    with pytest.raises(DataError, match="test: this list has no text"):
        model.evaluate(test=[])
    with pytest.raises(ConfigError, match=r"name cannot be '\.\./x'"):
        model.evaluate(test=["a b"], name="../x")
    with pytest.raises(ConfigError, match="name is for"):
        model.evaluate(name="x")
    alone = model.__class__.__new__(model.__class__)
    with pytest.raises(RunError, match="not loaded from a run"):
        alone.history  # noqa: B018 - a property


@only("generate")
def test_a_run_of_lists_can_be_moved_and_resumed(
    trained: tuple[TrainedModel, TrainedModel], text: Path, task: str
) -> None:
    """Its text is inside it: the weights of the last steps come out the same."""
    folder = trained[1].run.folder
    moved = text / "elsewhere" / task
    shutil.copytree(folder, moved)
    hidden = folder.rename(folder.with_name("hidden"))
    try:
        (moved / "model.safetensors").unlink()
        code, output = invoke_command("resume", str(moved))
        assert code == 0, output
        ours, theirs = (one / "model.safetensors" for one in (hidden, moved))
        assert ours.read_bytes() == theirs.read_bytes()
        assert heed.load(moved, device="cpu").evaluate()["in_train"] == 10
    finally:
        hidden.rename(folder)


def test_a_model_and_its_run_describe_themselves_in_a_line(
    trained: tuple[TrainedModel, TrainedModel], task: str
) -> None:
    model = trained[0]
    said = repr(model)
    assert said.startswith(f"{CLASSES[task].__name__}({model.run.folder}, best weights: ")
    assert "width 16" in said
    assert f"{sum(p.numel() for p in model.model.parameters()):,} parameters" in said
    assert "\n" not in said
    assert len(said) < LONGEST_REPR
    assert repr(model.run) == f"Run({model.run.folder}: finished)"


def test_nothing_is_left_of_lists_that_cannot_be_trained_on(tmp_path: Path) -> None:
    for data, said in (
        ((["a"], ["b", "c"]), "1 sources and 2 targets"),
        ((["a", 3], ["b", "c"]), r"sources\[1\] is 3"),
        ((["a"], ["b"]), "too few to train on and to hold out"),
        ((), "there is no training text"),
    ):
        with pytest.raises(DataError, match=said):
            heed.Translator.train(train=data, run=tmp_path / "run", **TINY)
        assert not (tmp_path / "run").exists()
