"""`heed evaluate` on small real runs: the whole, the clean part, which weights, what is kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluating import HELD_OUT, LEARNT, SHARED, sides, told, trained
from rich.console import Console
from test_cli import heed

from heed.data.batching.bucketed import Batches
from heed.data.corpus import open_corpus
from heed.data.token_store import open_store
from heed.errors import HeedError
from heed.evaluate.tables import render_evaluation
from heed.models import Translator
from heed.runs.best_weights import describe_weights
from heed.runs.load import load_run
from heed.runs.run import Run
from heed.train.dev_bleu import dev_bleu, pairs_of

pytestmark = pytest.mark.usefixtures("own_cache")


def test_the_real_commands(tmp_path: Path) -> None:
    """A few steps of the shipped recipe, then its own test set, for a program and for a person."""
    small = ["train.steps=8", "data.synthetic=300", "data.synthetic_test=30", "train.log_every=4"]
    changes = [part for change in small for part in ("--set", change)]
    folder, table = str(tmp_path / "run"), tmp_path / "out.tsv"
    made = heed("train", "demo-translate", *changes, "--device", "cpu", "--run", folder)
    assert made.returncode == 0, made.stderr
    asked = ["--metric", "bleu", "--bootstrap", "20", "--device", "cpu"]
    answer = heed("evaluate", folder, *asked, "--json", "--sentences", str(table))
    assert answer.returncode == 0, answer.stderr
    facts = json.loads(answer.stdout)
    assert (facts["split"], facts["texts"], facts["in_train"]) == ("test", 30, 0)
    assert facts["checkpoint"]["step"] == 8
    assert facts["clean"]["bleu"] == facts["bleu"]
    assert len(table.read_text(encoding="utf-8").splitlines()) == 1 + facts["texts"]
    shown = heed("evaluate", folder, *asked, "--split", "dev")
    assert shown.returncode == 0, shown.stderr
    for words in ("at step 8", "dev/loss", "none of 30 texts", "token accuracy", "BLEU"):
        assert words in shown.stdout
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text()).keys() == {"test", "dev"}


def test_the_clean_part_stands_beside_the_whole(run: Path, text: Path) -> None:
    facts = told(run, test=sides(text, "test"))
    assert (facts["texts"], facts["in_train"]) == (HELD_OUT, SHARED)
    clean = facts["clean"]
    assert clean["texts"] == HELD_OUT - SHARED
    for key in ("loss", "perplexity", "accuracy", "bleu", "chrf", "interval", "signature"):
        assert key in clean
        assert key in facts
    # The same lines in a file of their own, none of them in train, get the same scores.
    for path in map(Path, sides(text, "test")):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        (text / f"fresh{path.suffix}").write_text("".join(lines[SHARED:]), encoding="utf-8")
    alone = told(run, test=sides(text, "fresh"))
    assert (alone["split"], alone["in_train"]) == ("fresh", 0)
    assert alone["bleu"] == pytest.approx(clean["bleu"])
    assert alone["loss"] == pytest.approx(clean["loss"], rel=1e-5)


def test_scores_are_those_of_training_and_of_the_files(run: Path, text: Path) -> None:
    """One scoring path: the dev loss of the best step, and sacreBLEU of what `translate` writes."""
    facts = told(run, split="dev")
    assert told(run, split="again")["loss"] == facts["loss"]
    best = min(
        (line for line in Run(run).metrics() if line["event"] == "evaluate"),
        key=lambda line: line["dev"]["loss"],
    )
    assert facts["checkpoint"] == {
        "weights": "the best weights",
        "step": best["step"],
        "epoch": best["epoch"],
        "metric": "dev/loss",
        "value": best["dev"]["loss"],
    }
    for key, value in best["dev"].items():
        assert facts[key] == pytest.approx(value, rel=1e-5)
    english, french = sides(text, "test")
    lines = Path(english).read_text(encoding="utf-8")
    (text / "hyp").write_text(heed("translate", str(run), stdin=lines).stdout, encoding="utf-8")
    asked = ["--ref", french, "--metric", "bleu,chrf", "--bootstrap", "20", "--json"]
    scored = json.loads(heed("score", str(text / "hyp"), *asked).stdout)
    for key in ("bleu", "chrf", "signature", "interval", "length_ratio"):
        assert scored[key] == facts[key]


def test_what_is_kept_in_the_run_folder(run: Path, text: Path) -> None:
    facts = told(run, split="dev")
    kept = json.loads((run / "evaluation.json").read_text(encoding="utf-8"))
    assert kept["dev"] == facts
    rows = (run / "translations" / "dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
    english = Path(sides(text, "test")[0]).read_text(encoding="utf-8").splitlines()
    assert [row.split("\t")[0] for row in rows] == english


def test_a_beam_is_told_and_kept(run: Path) -> None:
    greedy, beam = told(run, split="dev"), told(run, split="dev", decode={"beam": 3})
    assert (greedy["decode"]["beam"], beam["decode"]["beam"]) == (1, 3)
    assert greedy["loss"] == beam["loss"]
    for facts in (greedy, beam, greedy["clean"]):
        assert 0 <= facts["hit_limit"] <= 1


def test_an_output_that_hits_the_limit_is_counted(run: Path) -> None:
    tight = told(run, split="dev", decode={"max_ratio": 0.1, "max_extra": 1})
    assert tight["hit_limit"] == 1
    assert "cut off at the length limit" in _shown(tight)


def test_dev_bleu_is_the_bleu_of_dev(run: Path, text: Path) -> None:
    model, tokenizer, recipe = load_run(run, device="cpu")
    assert isinstance(model, Translator)
    corpus = open_corpus(sides(text, "test"), task="translate")
    batches = Batches(open_store(corpus, tokenizer), "translate", max_length=256)
    pairs = pairs_of(corpus, batches)
    found = dev_bleu(model, tokenizer, pairs, recipe.decode, max_length=256)
    assert found == told(run, split="dev")["bleu"]
    some = batches.only(np.array([7, 3]))
    assert sorted(pairs_of(corpus, some)) == sorted([pairs[7], pairs[3]])


@pytest.mark.parametrize("task", ["classify", "generate"])
def test_other_tasks_are_scored_by_the_same_path(text: Path, task: str) -> None:
    suffix = {"classify": "tsv", "generate": "en"}[task]
    name = f"run-{task}"
    run = trained(text, task, name, data={"dev": [str(text / f"test.{suffix}")]})
    facts = told(run)
    best = min(line["dev"]["loss"] for line in Run(run).metrics() if line["event"] == "evaluate")
    assert facts["loss"] == pytest.approx(best, rel=1e-5)
    assert facts["in_train"] >= SHARED
    assert facts["clean"]["texts"] == facts["texts"] - facts["in_train"]
    assert {"loss", "perplexity", "accuracy"} <= facts["clean"].keys()
    _shown(facts)
    for asked in ({"sentences": text / "out.tsv"}, {"metrics": ["bleu"]}, {"decode": {"beam": 2}}):
        with pytest.raises(HeedError, match="for translations"):
            told(run, **asked)


def _shown(facts: dict[str, Any]) -> str:
    console = Console(width=100, record=True, file=StringIO())
    console.print(render_evaluation(facts))
    return console.export_text()


def test_a_dev_set_that_was_set_aside_is_found_again(text: Path) -> None:
    run = trained(text, "generate", "run-aside", train={"steps": 10})
    facts = told(run)
    line = next(line for line in Run(run).metrics() if line["event"] == "evaluate")
    assert facts["split"] == "dev"
    assert facts["loss"] == pytest.approx(line["dev"]["loss"], rel=1e-5)
    assert facts["in_train"] < facts["texts"] < LEARNT
    assert "dev: set aside from" in _shown(facts)
    assert "set aside" not in _shown(told(run, split="train"))


def test_the_mean_of_weights_is_named(text: Path) -> None:
    run = Run(trained(text, "classify", "run-mean", train={"average_checkpoints": 2, "lr": 0.05}))
    lines = run.metrics()
    found = describe_weights(run, run.recipe())
    assert found is not None
    kept = next(line["kept"] for line in lines if line["event"] == "average")
    assert ("mean" in found["weights"]) == kept
    event = "average" if kept else "evaluate"
    values = [line["dev"]["loss"] for line in lines if line["event"] == event]
    assert found["value"] == min(values)


@pytest.mark.parametrize("change", ["gone", "other"])
def test_without_its_training_text_a_run_is_scored_all_the_same(text: Path, change: str) -> None:
    """What cannot be known is said, and not guessed."""
    copies = [text / f"{change}.{suffix}" for suffix in ("en", "fr")]
    for copy, path in zip(copies, sides(text, "train"), strict=True):
        copy.write_bytes(Path(path).read_bytes())
    data = {"train": [str(copy) for copy in copies]}
    run = trained(text, "translate", f"run-{change}", data=data, train={"steps": 2})
    for copy in copies:
        if change == "gone":
            copy.unlink()
        else:
            copy.write_text("something else\n" * 3)
    facts = told(run, test=sides(text, "test"))
    assert facts["in_train"] is None
    assert facts["clean"] is None
    assert {"gone": "no such file", "other": "has changed since training"}[change] in facts[
        "overlap_unknown"
    ]
    assert "not known" in _shown(facts)
    with pytest.raises(HeedError, match="dev was set aside from train, and the training text"):
        told(run)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"split": "agian"}, "Did you mean 'again'?"),
        ({"split": "dev", "test": ["a", "b"]}, "use one of them"),
        ({"test": ["nowhere.en", "nowhere.fr"]}, "there is no such file"),
    ],
)
def test_a_set_that_is_not_there(run: Path, changes: dict[str, Sequence[str]], said: str) -> None:
    with pytest.raises(HeedError, match=said):
        told(run, **changes)


def test_an_empty_set_is_refused(run: Path, text: Path) -> None:
    for suffix in ("en", "fr"):
        (text / f"blank.{suffix}").write_text("\n\n")
    with pytest.raises(HeedError, match="nothing to evaluate on"):
        told(run, test=sides(text, "blank"))


def test_the_same_twice(run: Path) -> None:
    assert told(run, split="dev") == told(run, split="dev")
