"""`heed evaluate` on small runs: the whole set, its clean part, the weights, the saved files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluating import HELD_OUT, LEARNT, SHARED, evaluate_small, sides, train_small
from rich.console import Console
from test_cli import heed

from heed.data.batching.bucketed import BucketedBatches
from heed.data.corpus import open_corpus
from heed.data.token_store import open_store
from heed.errors import HeedError
from heed.evaluate.tables import render_evaluation
from heed.models import Translator
from heed.runs.best_weights import describe_weights
from heed.runs.load import load_run
from heed.runs.results_file import read_results
from heed.runs.run import Run
from heed.train.validate import greedy_bleu, sentence_pairs

pytestmark = pytest.mark.usefixtures("own_cache")


def test_the_real_commands(tmp_path: Path) -> None:
    """Train a shipped recipe for a few steps, then evaluate its test set, as JSON and as tables."""
    small = ["train.steps=8", "data.synthetic=300", "data.synthetic_test=30", "train.log_every=4"]
    changes = [part for change in small for part in ("--set", change)]
    folder, table = str(tmp_path / "run"), tmp_path / "out.tsv"
    made = heed("train", "demo-translate", *changes, "--device", "cpu", "--run", folder)
    assert made.returncode == 0, made.stderr
    flags = ["--metric", "bleu", "--bootstrap", "100", "--device", "cpu"]
    answer = heed("evaluate", folder, *flags, "--json", "--sentences", str(table))
    assert answer.returncode == 0, answer.stderr
    result = json.loads(answer.stdout)
    assert (result["split"], result["texts"], result["in_train"]) == ("test", 30, 0)
    assert result["checkpoint"]["step"] == 8
    assert result["clean"]["bleu"] == result["bleu"]
    assert len(table.read_text(encoding="utf-8").splitlines()) == 1 + result["texts"]
    shown = heed("evaluate", folder, *flags, "--split", "dev")
    assert shown.returncode == 0, shown.stderr
    for words in ("at step 8", "dev/loss", "none of 30 texts", "token accuracy", "BLEU"):
        assert words in shown.stdout
    assert read_results(tmp_path / "run").keys() == {"test", "dev"}
    one = [tmp_path / f"one.{side}" for side in ("en", "fr")]
    for path, text in zip(one, ("The cat sleeps.\n", "Le chat dort.\n"), strict=True):
        path.write_text(text, encoding="utf-8")
    alone = heed("evaluate", folder, *flags, "--test", str(one[0]), "--test", str(one[1]))
    assert "Translating 1 text…" in alone.stderr


def test_the_clean_part_is_scored_beside_the_whole_set(run: Path, text: Path) -> None:
    result = evaluate_small(run, test=sides(text, "test"))
    assert (result["texts"], result["in_train"]) == (HELD_OUT, SHARED)
    clean = result["clean"]
    assert clean["texts"] == HELD_OUT - SHARED
    for key in ("loss", "perplexity", "accuracy", "bleu", "chrf", "interval", "signature"):
        assert key in clean
        assert key in result
    # The same lines in a file of their own, none of them in train, get the same scores.
    for path in map(Path, sides(text, "test")):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        (text / f"fresh{path.suffix}").write_text("".join(lines[SHARED:]), encoding="utf-8")
    alone = evaluate_small(run, test=sides(text, "fresh"))
    assert (alone["split"], alone["in_train"]) == ("fresh", 0)
    assert alone["bleu"] == pytest.approx(clean["bleu"])
    assert alone["loss"] == pytest.approx(clean["loss"], rel=1e-5)


def test_scores_equal_those_of_training_and_of_heed_score(run: Path, text: Path) -> None:
    """The loss equals that of the best step; BLEU equals that of the two other commands."""
    result = evaluate_small(run, split="dev")
    assert evaluate_small(run, split="again")["loss"] == result["loss"]
    best = min(
        (line for line in Run(run).metrics() if line["event"] == "evaluate"),
        key=lambda line: line["dev"]["loss"],
    )
    assert result["checkpoint"] == {
        "weights": "the best weights",
        "step": best["step"],
        "epoch": best["epoch"],
        "metric": "dev/loss",
        "value": best["dev"]["loss"],
    }
    for key, value in best["dev"].items():
        assert result[key] == pytest.approx(value, rel=1e-5)
    english, french = sides(text, "test")
    lines = Path(english).read_text(encoding="utf-8")
    (text / "hyp").write_text(heed("translate", str(run), stdin=lines).stdout, encoding="utf-8")
    flags = ["--ref", french, "--metric", "bleu,chrf", "--bootstrap", "100", "--json"]
    scored = json.loads(heed("score", str(text / "hyp"), *flags).stdout)
    for key in ("bleu", "chrf", "signature", "length_ratio"):
        assert scored[key] == result[key]
    assert scored["interval"].items() <= result["interval"].items()


def test_results_are_saved_in_the_run_folder(run: Path, text: Path) -> None:
    result = evaluate_small(run, split="dev")
    assert read_results(run)["dev"] == result
    rows = (run / "translations" / "dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
    english = Path(sides(text, "test")[0]).read_text(encoding="utf-8").splitlines()
    assert [row.split("\t")[0] for row in rows] == english


def test_the_beam_is_in_the_result(run: Path) -> None:
    greedy, beam = (
        evaluate_small(run, split="dev"),
        evaluate_small(run, split="dev", decode={"beam": 3}),
    )
    assert (greedy["decode"]["beam"], beam["decode"]["beam"]) == (1, 3)
    assert greedy["loss"] == beam["loss"]
    for result in (greedy, beam, greedy["clean"]):
        bounds = result["interval"]["hit_limit"]
        assert 0 <= bounds["low"] <= result["hit_limit"] <= bounds["high"] <= 1


def test_translations_at_the_length_limit_are_counted(run: Path) -> None:
    tight = evaluate_small(run, split="dev", decode={"max_ratio": 0.1, "max_extra": 1})
    assert tight["hit_limit"] == 1
    assert "cut off at the length limit" in _shown(tight)


def test_dev_bleu_equals_the_bleu_of_dev(run: Path, text: Path) -> None:
    model, tokenizer, recipe = load_run(run, device="cpu")
    assert isinstance(model, Translator)
    corpus = open_corpus(sides(text, "test"), task="translate")
    batches = BucketedBatches(open_store(corpus, tokenizer), "translate", max_length=256)
    pairs = sentence_pairs(corpus, batches)
    found = greedy_bleu(model, tokenizer, pairs, recipe.decode, max_length=256)
    assert found == evaluate_small(run, split="dev")["bleu"]
    some = batches.subset(np.array([7, 3]))
    assert sorted(sentence_pairs(corpus, some)) == sorted([pairs[7], pairs[3]])


@pytest.mark.parametrize("task", ["classify", "generate"])
def test_other_tasks_are_scored_by_the_same_path(text: Path, task: str) -> None:
    suffix = {"classify": "tsv", "generate": "en"}[task]
    name = f"run-{task}"
    run = train_small(text, task, name, data={"dev": [str(text / f"test.{suffix}")]})
    result = evaluate_small(run)
    best = min(line["dev"]["loss"] for line in Run(run).metrics() if line["event"] == "evaluate")
    assert result["loss"] == pytest.approx(best, rel=1e-5)
    assert result["in_train"] >= SHARED
    assert result["clean"]["texts"] == result["texts"] - result["in_train"]
    assert {"loss", "perplexity", "accuracy"} <= result["clean"].keys()
    _shown(result)
    for options in (
        {"sentences": text / "out.tsv"},
        {"metrics": ["bleu"]},
        {"decode": {"beam": 2}},
    ):
        with pytest.raises(HeedError, match="for translations"):
            evaluate_small(run, **options)


def _shown(result: dict[str, Any]) -> str:
    console = Console(width=100, record=True, file=StringIO())
    console.print(render_evaluation(result))
    return console.export_text()


def test_a_dev_set_set_aside_from_train_is_found(text: Path) -> None:
    run = train_small(text, "generate", "run-aside", train={"steps": 10})
    result = evaluate_small(run)
    line = next(line for line in Run(run).metrics() if line["event"] == "evaluate")
    assert result["split"] == "dev"
    assert result["loss"] == pytest.approx(line["dev"]["loss"], rel=1e-5)
    assert result["in_train"] < result["texts"] < LEARNT
    assert "dev: set aside from" in _shown(result)
    trained_on = evaluate_small(run, split="train")
    assert trained_on["texts"] + result["texts"] == LEARNT
    assert (trained_on["in_train"], trained_on["clean"]) == (trained_on["texts"], None)
    shown = " ".join(_shown(trained_on).split())
    assert ", without the part set aside for dev" in shown
    assert "the run was trained on this text" in shown
    assert "also in train" not in shown
    # The training file as a test set: the part set aside for dev chose the weights, and counts.
    files = evaluate_small(run, test=[str(text / "train.en")])
    assert (files["texts"], files["in_train"]) == (LEARNT, LEARNT)


def test_train_of_one_file_is_what_was_trained_on(text: Path) -> None:
    """With `data.unit = "file"`, train is the first lines of each file."""
    data = {"unit": "file", "max_length": 32}
    run = train_small(text, "generate", "run-file", data=data, train={"steps": 4})
    train, dev = (evaluate_small(run, split=split) for split in ("train", "dev"))
    whole = evaluate_small(run, test=[str(text / "train.en")])
    assert train["tokens"] + dev["tokens"] == whole["tokens"] + 1  # both end with a token
    assert [one["in_train"] for one in (train, dev, whole)] == [1, 0, 1]
    assert "the run was trained on this text" in _shown(train)
    assert "the text is not in train" in _shown(dev)
    assert "the text is also in train" in _shown(whole)


def test_averaged_weights_are_named(text: Path) -> None:
    run = Run(
        train_small(text, "classify", "run-mean", train={"average_checkpoints": 2, "lr": 0.05})
    )
    lines = run.metrics()
    found = describe_weights(run, run.recipe())
    assert found is not None
    kept = next(line["kept"] for line in lines if line["event"] == "average")
    assert ("mean" in found["weights"]) == kept
    event = "average" if kept else "evaluate"
    values = [line["dev"]["loss"] for line in lines if line["event"] == event]
    assert found["value"] == min(values)


@pytest.mark.parametrize("change", ["gone", "other"])
def test_a_run_without_its_training_text_is_scored(text: Path, change: str) -> None:
    """The overlap with train is reported as not known."""
    copies = [text / f"{change}.{suffix}" for suffix in ("en", "fr")]
    for copy, path in zip(copies, sides(text, "train"), strict=True):
        copy.write_bytes(Path(path).read_bytes())
    data = {"train": [str(copy) for copy in copies]}
    run = train_small(text, "translate", f"run-{change}", data=data, train={"steps": 2})
    for copy in copies:
        if change == "gone":
            copy.unlink()
        else:
            copy.write_text("something else\n" * 3)
    result = evaluate_small(run, test=sides(text, "test"))
    assert result["in_train"] is None
    assert result["clean"] is None
    assert {"gone": "no such file", "other": "has changed since training"}[change] in result[
        "overlap_unknown"
    ]
    assert "not known" in _shown(result)
    with pytest.raises(HeedError, match="dev was set aside from train, and the training text"):
        evaluate_small(run)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"split": "agian"}, "Did you mean 'again'?"),
        ({"split": "dev", "test": ["a", "b"]}, "use one of them"),
        ({"test": ["nowhere.en", "nowhere.fr"]}, "there is no such file"),
    ],
)
def test_an_unknown_set_is_an_error(
    run: Path, changes: dict[str, Sequence[str]], said: str
) -> None:
    with pytest.raises(HeedError, match=said):
        evaluate_small(run, **changes)


def test_an_empty_set_is_an_error(run: Path, text: Path) -> None:
    for suffix in ("en", "fr"):
        (text / f"blank.{suffix}").write_text("\n\n")
    with pytest.raises(HeedError, match="nothing to evaluate on"):
        evaluate_small(run, test=sides(text, "blank"))


def test_evaluation_is_deterministic(run: Path) -> None:
    first, second = (evaluate_small(run, split="dev") for _ in range(2))
    assert second == first | {"looks": first["looks"] + 1}
