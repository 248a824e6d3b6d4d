"""Classifiers from end to end: small runs, trained, used and scored by the real commands."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from test_cli import heed

import heed as package
from heed import Classifier
from heed.config import DataConfig, Recipe
from heed.data import synthetic
from heed.data.batching.bucketed import BucketedBatches
from heed.data.corpus import open_corpus
from heed.data.held_out import hold_out_dev
from heed.data.token_store import open_store
from heed.data.tokenizers.special_tokens import BOS, EOS, MASK, PAD
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import ConfigError, DataError, RunError
from heed.evaluate.classify import label_indices
from heed.evaluate.evaluate_run import evaluate_run
from heed.evaluate.job import Options
from heed.evaluate.tables import render_evaluation
from heed.pipelines.classify import ClassificationLines, Label
from heed.pipelines.line_io import run_lines
from heed.runs.labels import Calibration, Classes
from heed.runs.results_file import read_results
from heed.runs.run import Run
from heed.train import run as train_run
from heed.train.objective import loss
from heed.train.prepare.setup import prepare

SMALL: dict[str, Any] = {"layers": 1, "width": 32, "heads": 2, "steps": 60, "lr": 1e-2}
SMALL |= {"batch_size": 32, "max_length": 24, "kind": "word", "precision": "float32"}
LINES = ["The old king sees the cat.", "", "  ", "😀 ok", "a\u2028b\x85c", "word " * 60]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Sentences with their speakers, some of the test lines in train too; and pairs of words."""
    folder = tmp_path_factory.mktemp("classify")
    learnt = list(synthetic.generate_sentences("train", 300, seed=2))
    fresh = list(synthetic.generate_sentences("test", 50, seed=2))
    for name, texts in (("train", learnt), ("dev", fresh[:20]), ("test", learnt[:10] + fresh)):
        lines = [f"{text.speaker}\t{text.english}\n" for text in texts]
        (folder / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")
    rows = [(a, b, "same" if a == b else "other") for a in "abcd" for b in "abcd" for _ in "12345"]
    rows += [(a, a, "same") for a in "abcd" for _ in range(10)]
    head = "sentence1\tsentence2\tlabel\n"
    (folder / "pairs.tsv").write_text(head + "".join("\t".join(row) + "\n" for row in rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEED_CACHE", str(folder / "cache"))
        yield folder


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    Classifier.train(
        train=[place / "train.tsv"], dev=[place / "dev.tsv"], run=place / "run", **SMALL
    )
    return place / "run"


@pytest.fixture(scope="module")
def pairs(place: Path) -> Path:
    settings = SMALL | {"steps": 150, "position": "learned"}
    Classifier.train(train=[place / "pairs.tsv"], run=place / "pairs", **settings)
    return place / "pairs"


# --------------------------------------------------------------------------------- from Python


def test_labels_and_probabilities_agree(run: Path) -> None:
    classifier = Classifier.load(run, device="cpu")
    names = classifier.classes.names
    assert list(names) == sorted({"Ansel", "Brida", "Corvin"})
    said, chances = classifier.classify(LINES), classifier.probabilities(LINES)
    for line, label, by_name in zip(LINES, said, chances, strict=True):
        if not line.strip():
            assert (label, by_name) == ("", {})
            continue
        assert list(by_name) == list(names)
        assert sum(by_name.values()) == pytest.approx(1)
        assert label == max(by_name, key=lambda name: by_name[name])
    assert isinstance(package.load(run, device="cpu"), Classifier)


def test_a_text_is_answered_alike_in_any_company(run: Path) -> None:
    classifier = Classifier.load(run, device="cpu")
    texts = [line for line in LINES if line.strip()]
    together = classifier.probabilities(texts)
    for text, chances in zip(texts, together, strict=True):
        alone = classifier.probabilities([text])[0]
        assert list(alone.values()) == pytest.approx(list(chances.values()), rel=1e-4)


def test_weights_that_are_nan_are_an_error(run: Path) -> None:
    """The first class would pass for an answer."""
    broken = Classifier.load(run, device="cpu")
    with torch.no_grad():
        next(broken.model.head.parameters()).fill_(torch.nan)
    with pytest.raises(RunError, match=r"^weight head.* no class can be chosen"):
        broken.classify(LINES)


def test_a_calibration_that_was_deleted_is_missed(run: Path, tmp_path: Path) -> None:
    copy = Run(shutil.copytree(run, tmp_path / "run"))
    Calibration(2.0, "dev", 3, "hash").save(copy)
    assert Calibration.read(copy) == Calibration(2.0, "dev", 3, "hash")
    copy.calibration_path.unlink()
    with pytest.raises(RunError, match=r"calibration\.json: .* missing.*evaluate .* --calibrate"):
        Classifier.load(copy.folder, device="cpu")


def test_a_run_keeps_the_names_of_its_classes(run: Path, place: Path) -> None:
    """It needs no training data to be loaded; without the names it is an error that says so."""
    path = Run(run).labels_path
    text = path.read_text(encoding="utf-8")
    before = Classifier.load(run, device="cpu").classify(LINES)
    train = place / "train.tsv"
    train.rename(place / "elsewhere.tsv")
    try:
        assert Classifier.load(run, device="cpu").classify(LINES) == before
        path.unlink()
        with pytest.raises(RunError, match=r"has no labels\.json"):
            Classifier.load(run, device="cpu")
    finally:
        path.write_text(text, encoding="utf-8")
        (place / "elsewhere.tsv").rename(train)


def test_every_text_is_tokenized_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = Classifier.load(run, device="cpu")
    encode, read = classifier.tokenizer.encode_batch, list[str]()

    def counting(texts: Sequence[str]) -> list[list[int]]:
        read.extend(texts)
        return encode(texts)

    monkeypatch.setattr(classifier.tokenizer, "encode_batch", counting)
    classifier.classify(LINES)
    assert read == [line for line in LINES if line.strip()]


def test_a_label_that_no_class_has_is_refused_with_one_message(tmp_path: Path) -> None:
    """Where text is stored as where answers are scored: the label, its place and the nearest."""
    (tmp_path / "test.tsv").write_text("text\tlabel\none\tAnsel\ntwo\tBrid\n")
    corpus, classes = open_corpus([str(tmp_path / "test.tsv")], task="classify"), ("Ansel", "Brida")
    tokenizer = Tokenizer.train(["one two"], kind="word")
    with pytest.raises(DataError) as stored:
        open_store(corpus, tokenizer, classes=classes)
    with pytest.raises(DataError) as scored:
        label_indices(list(corpus.usable_records()), Classes(classes))
    assert str(stored.value) == str(scored.value)
    assert "test.tsv:3" in str(scored.value)
    assert "Did you mean 'Brida'" in str(scored.value)


def test_another_kind_of_run_is_refused(run: Path) -> None:
    with pytest.raises(RunError, match="trained to classify, not to translate"):
        package.Translator.load(run, device="cpu")


# --------------------------------------------------------------------------------- by the command


def test_arguments_files_and_pipes_give_the_same(run: Path, tmp_path: Path) -> None:
    text = "".join(f"{line}\n" for line in LINES)
    (tmp_path / "lines").write_text(text, encoding="utf-8")
    by_pipe = heed("classify", str(run), "--device", "cpu", stdin=text)
    assert by_pipe.returncode == 0, by_pipe.stderr
    expected = Classifier.load(run, device="cpu").classify(LINES)
    assert by_pipe.stdout.split("\n")[:-1] == expected
    assert "1 of 6 texts are longer than this model reads" in by_pipe.stderr
    flags = ["--file", str(tmp_path / "lines"), "--json", "--probabilities", "--device", "cpu"]
    results = [
        json.loads(line) for line in heed("classify", str(run), *flags).stdout.split("\n")[:-1]
    ]
    assert [one["label"] or "" for one in results] == expected
    assert [one["text"] for one in results] == LINES
    for one in results:
        assert one["probability"] == max(one["probabilities"].values(), default=None)
    shown = heed("classify", str(run), *LINES, "--probabilities", "--device", "cpu").stdout
    rows = [line.split("\t") for line in shown.split("\n")[:-1]]
    assert [row[0] for row in rows] == expected
    for row, label in zip(rows, expected, strict=True):
        assert len(row) == (4 if label else 1)
        assert sum(float(cell.rpartition("=")[2]) for cell in row[1:]) == pytest.approx(
            1 if label else 0, abs=1e-3
        )


def pumped(run: Path, groups: list[list[str]], **shown: bool) -> tuple[list[str], list[str]]:
    """What comes out of the pipe, and what is said aside."""
    out = io.BytesIO()
    aside: list[str] = []
    pipeline = Classifier.load(run, device="cpu").pipeline
    run_lines(groups, ClassificationLines(pipeline, **shown), out=out, warn=aside.append)
    return out.getvalue().decode().split("\n")[:-1], aside


def test_every_group_is_written_before_the_next_is_read(run: Path) -> None:
    out = io.BytesIO()
    seen: list[int] = []

    def groups() -> Iterator[list[str]]:
        for lines in (LINES[:2], LINES[2:3], LINES[3:]):
            yield lines
            seen.append(out.getvalue().count(b"\n"))

    pipeline = Classifier.load(run, device="cpu").pipeline
    run_lines(groups(), ClassificationLines(pipeline), out=out, warn=lambda _: None)
    assert seen == [2, 3, len(LINES)]


@given(
    names=st.lists(st.text(max_size=5), min_size=2, max_size=4, unique=True), seed=st.integers(0, 9)
)
def test_whatever_a_class_is_called_it_stays_in_its_cell(names: list[str], seed: int) -> None:
    chances = np.random.default_rng(seed).dirichlet(np.ones(len(names))).tolist()
    label = Label("text", names[0], dict(zip(names, chances, strict=True)))
    cells = label.line(probabilities=True).split("\t")
    assert len(cells) == 1 + len(names)
    assert not {"\n", "\r"} & set(label.line(probabilities=True))


# ---------------------------------------------------------------------------------------- pairs


def test_a_pair_is_classified_by_both_its_texts(pairs: Path) -> None:
    classifier = Classifier.load(pairs, device="cpu")
    assert classifier.classes.pairs
    text_pairs = [(a, b) for a in "abcd" for b in "abcd"]
    said = classifier.classify(text_pairs)
    right = sum(
        label == ("same" if a == b else "other")
        for (a, b), label in zip(text_pairs, said, strict=True)
    )
    assert right > 12
    lines, _ = pumped(pairs, [[f"{a}\t{b}" for a, b in text_pairs], [""]])
    assert lines == [*said, ""]
    with pytest.raises(DataError, match=r"line 2: this line has 0 tabs.*one tab"):
        pumped(pairs, [["a\tb", "no tab"]])
    with pytest.raises(RunError, match="text 1: this run was trained on pairs"):
        classifier.classify(["a b"])


def test_the_two_texts_of_a_pair_are_parted(pairs: Path, place: Path) -> None:
    """In the store, too: `a | b` is not the text `a b`."""
    classifier = Classifier.load(pairs, device="cpu")
    corpus = open_corpus([place / "pairs.tsv"], task="classify")
    store = open_store(corpus, classifier.tokenizer, classes=classifier.classes.names)
    ids = store.sides[0][0].tolist()
    first, second = classifier.tokenizer.encode_batch(["a", "a"])
    assert ids == [*first, EOS, *second]
    batch = BucketedBatches(store, "classify", max_length=24).batch(
        BucketedBatches(store, "classify", max_length=24).plan_in_order(), 0
    )
    assert batch.ids[0][batch.mask[0]].tolist() == [BOS, *ids, EOS]


# --------------------------------------------------------------------- class weights, token dropout


def test_class_weights_weigh_the_losses_of_training_alone(place: Path) -> None:
    lines = ["x\tred one\n"] * 30 + ["y\tblue two\n"] * 10
    (place / "uneven.tsv").write_text("".join(lines))
    tables = {
        "task": "classify",
        "data": {"train": [str(place / "uneven.tsv")], "dev": [str(place / "uneven.tsv")]},
        "tokenizer": {"kind": "word"},
        "model": {"layers": 1, "width": 16, "heads": 2, "dropout": 0.0},
        "train": {"steps": 1, "class_weights": "balanced", "precision": "float32"},
    }

    def weights(scheme: Any) -> tuple[float, ...] | None:
        tables["train"] = {"steps": 1, "precision": "float32", "class_weights": scheme}
        recipe = Recipe.of(tables)
        run = Run.create(place / f"uneven-{scheme if isinstance(scheme, str) else 'table'}", recipe)
        parts = prepare(recipe, run, device=torch.device("cpu"), say=lambda _: None)
        batch = parts.train.batch(parts.train.plan(0), 0)
        plain = loss(parts.model.eval(), batch)
        own = torch.tensor(parts.class_weights)
        weighed = loss(parts.model.eval(), batch, class_weights=own)
        count = [(batch.targets == i).sum() for i in range(2)]
        assert float(own[0] * count[0] + own[1] * count[1]) > 0
        assert not torch.equal(plain.total, weighed.total)
        assert torch.equal(plain.correct, weighed.correct)
        return parts.class_weights

    assert weights("balanced") == pytest.approx((40 / 60, 40 / 20))
    assert weights({"y": 5.0}) == (1.0, 5.0)
    for wrong, said in (({"z": 1.0}, "names 'z'"), ("balance", "class_weights")):
        tables["train"] = {"steps": 1, "class_weights": wrong}
        with pytest.raises(ConfigError, match=said):
            train_run.start(
                Recipe.of(tables), place / "wrong", device="cpu", console=Console(quiet=True)
            )


def test_hidden_tokens_are_hidden_in_training_alone(run: Path, place: Path) -> None:
    tokenizer = Classifier.load(run, device="cpu").tokenizer
    corpus = open_corpus([place / "train.tsv"], task="classify")
    store = open_store(corpus, tokenizer, classes=corpus.labels())
    share = 0.3
    batches = BucketedBatches(store, "classify", max_length=24, batch_size=300, mask_share=share)
    plain = BucketedBatches(store, "classify", max_length=24, batch_size=300)
    whole = batches.batch(batches.plan_in_order(), 0)
    assert not (whole.ids == MASK).any()
    plan = batches.plan(0)
    for number in range(len(plan)):
        seen, full = batches.batch(plan, number), plain.batch(plan, number)
        again = batches.batch(plan, number)
        assert seen.ids.equal(again.ids)
        changed = seen.ids != full.ids
        assert (seen.ids[changed] == MASK).all()
        words = full.mask & ~((full.ids == BOS) | (full.ids == EOS) | (full.ids == PAD))
        assert not changed[~words].any()
        if int(words.sum()) > 500:
            assert float(changed.sum() / words.sum()) == pytest.approx(share, abs=0.1)


# ------------------------------------------------------------------------------------- evaluation


def evaluate_quickly(run: Path, **changes: Any) -> dict[str, Any]:
    quick = replace(Options(resamples=50), **changes)
    return evaluate_run(run, quick, device="cpu", notify=lambda _: None)


def shown(result: dict[str, Any]) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(render_evaluation(result))
    return console.export_text()


def words_of(svg: Path) -> str:
    """The words of a figure, in one line."""
    text = re.sub(r"<[^>]*>", " ", svg.read_text(encoding="utf-8").partition("</metadata>")[2])
    return " ".join(text.split())


def test_what_is_scored_is_what_is_written(run: Path, place: Path) -> None:
    test = place / "test.tsv"
    result = evaluate_quickly(run, test=[str(test)])
    rows = [line.split("\t") for line in test.read_text(encoding="utf-8").splitlines()]
    said = Classifier.load(run, device="cpu").classify([text for _, text in rows])
    right = sum(label == answer for (label, _), answer in zip(rows, said, strict=True))
    assert result["accuracy"] == pytest.approx(right / len(rows))
    assert result["loss"] == pytest.approx(result["log_loss"], rel=1e-4)
    assert result["in_train"] >= 10
    assert result["clean"]["texts"] == len(rows) - result["in_train"]
    assert np.sum(result["confusion"]["counts"]) == len(rows)
    assert sum(one["texts"] for one in result["reliability"]) == len(rows)
    for part in (result, result["clean"]):
        for key in ("accuracy", "macro_f1", "log_loss", "brier"):
            assert part["interval"][key]["low"] <= part[key] <= part["interval"][key]["high"]
        assert part["calibration_error_debiased"] <= part["calibration_error"]
        assert 0 < part["calibration_error_if_perfect"]["mean"] < 1
    with (run / "predictions" / "test.tsv").open(encoding="utf-8") as file:
        kept = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert [row["predicted"] for row in kept] == said
    assert sum(row["in_train"] == "yes" for row in kept) == result["in_train"]
    sizes = {"test": len(rows), "test@not-in-train": result["clean"]["texts"]}
    for name, count in sizes.items():
        for kind in ("confusion", "reliability"):
            assert (run / "figures" / f"{kind}-{name}.png").stat().st_size > 0
            words = words_of(run / "figures" / f"{kind}-{name}.svg")
            assert f"{count} texts" in words
            assert (f"{result['in_train']} of them also in train" in words) == (name == "test")
    text = shown(result)
    for part in ("test", "not in train"):
        assert f"confusion, {part}: texts" in text
        assert f"classes, {part}" in text
    for words in ("accuracy", "macro F1", "Brier", "confusion", "reliability", "not in train"):
        assert words in text
    assert read_results(run)["test"] == result


def test_calibration_is_fitted_on_dev_kept_and_used(run: Path, place: Path) -> None:
    before = Classifier.load(run, device="cpu")
    texts = [line for line in LINES if line.strip()]
    try:
        result = evaluate_quickly(run, split="dev", calibrate=True)
        fitted = result["calibration"]
        assert (fitted["split"], fitted["texts"]) == ("dev", 20)
        assert result["log_loss"] <= result["uncalibrated"]["log_loss"] + 1e-9
        assert result["loss"] == pytest.approx(result["uncalibrated"]["log_loss"], rel=1e-4)
        after = Classifier.load(run, device="cpu")
        assert after.pipeline.temperature == fitted["temperature"]
        assert after.classify(texts) == before.classify(texts)
        assert after.probabilities(texts) != before.probabilities(texts)
        again = evaluate_quickly(run, test=[str(place / "test.tsv")])
        assert again["calibration"] == fitted
        for part in ("test", "not in train"):
            assert f"calibration, {part}" in shown(again)
            assert f"reliability, {part}" in shown(again)
        assert f"{again['clean']['uncalibrated']['log_loss']:.4f}" in shown(again)
        quick = evaluate_quickly(run, test=[str(place / "test.tsv")], resamples=0)
        assert quick["uncalibrated"]["log_loss"] == again["uncalibrated"]["log_loss"]
        assert "temperature" in shown(quick)
    finally:
        Run(run).calibration_path.unlink(missing_ok=True)
        replace(Classes.require(Run(run)), calibrated=False).save(Run(run))
    assert Calibration.read(Run(run)) is None


def test_a_calibration_that_makes_scores_worse_is_said_and_can_be_deleted(
    run: Path, place: Path
) -> None:
    test, plain = [str(place / "test.tsv")], evaluate_quickly(run, test=[str(place / "test.tsv")])
    try:
        Calibration(0.05, "dev", 20, "hash").save(Run(run))
        worse = evaluate_quickly(run, test=test)
        before, after = (one["log_loss"] for one in (worse["uncalibrated"], worse))
        assert after > before
        text = " ".join(shown(worse).split())
        assert f"On test, calibration makes probabilities worse: log loss {before:.4f} →" in text
        assert "fitted on 20 texts of dev and is saved in calibration.json" in text
        assert f"heed evaluate {run} --uncalibrate" in text
        Run(run).calibration_path.unlink()  # one that is missing can be deleted, too
        again = evaluate_quickly(run, test=test, calibrate=False)
    finally:
        Calibration.delete(Run(run))
    assert again["log_loss"] == plain["log_loss"]
    assert "calibration" not in again
    assert Calibration.read(Run(run)) is None


def test_a_calibration_that_helps_everywhere_needs_no_warning(run: Path) -> None:
    result = evaluate_quickly(run, split="dev")
    part = {key: result[key] for key in ("log_loss", "calibration_error")}
    worse = {key: value + 1 for key, value in part.items()}
    calibration = {"temperature": 2.0, "split": "dev", "texts": 20, "hash": "h"}
    helped = result | {"calibration": calibration, "uncalibrated": result | worse}
    assert "worse" not in shown(helped)


def test_baselines_learn_from_the_same_text(run: Path, place: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    result = evaluate_quickly(run, test=[str(place / "test.tsv")], baseline=True)
    names = [one["name"] for one in result["baselines"]]
    assert names[0] == "majority class"
    assert len(names) == 3
    labels = [line.partition("\t")[0] for line in (place / "train.tsv").read_text().splitlines()]
    commonest = max(sorted(set(labels)), key=labels.count)
    share = result["classes"][commonest]["texts"] / result["texts"]
    assert result["baselines"][0]["accuracy"] == pytest.approx(share)
    for part in (result, result["clean"]):
        for one in part["baselines"]:
            test = one["paired"]
            assert test["difference"] == pytest.approx(part["accuracy"] - one["accuracy"])
            assert 0 < test["p"] <= 1
    # They know the training text by heart, as linear models of rare words do.
    assert result["baselines"][1]["accuracy"] > result["clean"]["baselines"][1]["accuracy"] - 0.2
    text = shown(result)
    assert "linear SVM, chosen on dev" in text
    assert text.count("majority class") == 2


def test_the_real_evaluation_command(run: Path, place: Path) -> None:
    flags = ["--test", str(place / "test.tsv"), "--bootstrap", "100", "--device", "cpu"]
    answer = heed("evaluate", str(run), *flags, "--json")
    assert answer.returncode == 0, answer.stderr
    result = json.loads(answer.stdout)
    assert {"accuracy", "macro_f1", "confusion", "reliability", "interval"} <= result.keys()


# -------------------------------------------------------------------------------------- bad input


def written(place: Path, name: str, lines: list[str]) -> str:
    path = place / name
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


GOOD = [f"{label}\t{text} one two" for label in "xy" for text in ("red", "blue", "green", "grey")]


@pytest.mark.parametrize(
    ("train", "dev", "said", "where"),
    [
        (GOOD, [*GOOD, "q\tred"], "not in train: 'q'", "dev.tsv:9"),
        (["x\tred one", "x\tblue two"], GOOD, "every label is 'x'", "bad.tsv"),
        ([*GOOD * 4, "z\tonly this one"], None, "class 'z' has no training example", "bad.tsv"),
        (GOOD, [" \t "], "no usable record is left", "dev.tsv"),
    ],
)
def test_labels_that_cannot_be_learnt_from(
    place: Path, tmp_path: Path, train: list[str], dev: list[str] | None, said: str, where: str
) -> None:
    """One sentence: what, where, what to do. And no folder is left behind."""
    files: dict[str, Any] = {"train": [written(tmp_path, "bad.tsv", train)]}
    if dev is not None:
        files["dev"] = [written(tmp_path, "dev.tsv", dev)]
    else:  # a seed under which the last text is set aside
        seeds = (DataConfig(dev_seed=i) for i in range(999))
        drawn = (d.dev_seed for d in seeds if len(train) - 1 in hold_out_dev(len(train), d)[0])
        files["dev_seed"] = next(drawn)
    tables: dict[str, Any] = {"task": "classify", "data": files}
    tables |= {"train": {"steps": 1}, "model": {"layers": 1, "width": 16, "heads": 2}}
    with pytest.raises(DataError, match=said) as caught:
        train_run.start(
            Recipe.of(tables), tmp_path / "run", device="cpu", console=Console(quiet=True)
        )
    assert where in (caught.value.where or "")
    assert caught.value.todo
    assert not (tmp_path / "run").exists()


def test_a_class_that_the_run_does_not_know(run: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    wrong = written(tmp_path, "test.tsv", ["Ansel\tThe cat.", "Briba\tThe dog runs."])
    answer = heed("evaluate", str(run), "--test", wrong, "--device", "cpu")
    assert answer.returncode == 2
    assert f"{wrong}:2" in answer.stderr
    assert "Did you mean 'Brida'?" in answer.stderr
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_flags_for_another_task_are_refused(place: Path, run: Path) -> None:
    for options in ({"decode": {"beam": 2}}, {"metrics": ["bleu"]}):
        with pytest.raises(ConfigError, match="--beam and --metric are for translations"):
            evaluate_quickly(run, **options)


def test_a_head_of_two_maps_is_loaded(place: Path) -> None:
    settings = SMALL | {"steps": 2, "classifier_hidden": 12}
    made = Classifier.train(
        train=[place / "train.tsv"], dev=[place / "dev.tsv"], run=place / "hidden", **settings
    )
    assert len(made.probabilities(["The cat."])[0]) == 3


def test_one_text_alone_is_a_sentence(run: Path) -> None:
    ask: Any = Classifier.load(run, device="cpu").classify
    for texts, said in (("Hello", "Give a list"), ([None], "text 1 is None")):
        with pytest.raises(DataError, match=said):
            ask(texts)
