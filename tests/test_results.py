"""The page of translation results says what its figures say, and the figures what was written."""

from __future__ import annotations

import json
import math
import os
import random
import re
import shutil
import tarfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from common import DOCS, RESULTS
from hypothesis import given
from hypothesis import strategies as st
from reading import MACHINE, OTHERS, rounded
from running import (
    ROOT,
    FailedError,
    Outcome,
    Plan,
    StoppedError,
    all_of,
    environment,
    note,
    pack,
    packing,
)
from sacrebleu.metrics.bleu import BLEU
from study import note_machine
from ted import joined
from ted.figures import gather
from ted.folders import read_sentences
from ted.page import Page
from ted.records import keep, packed, unpacked
from ted.systems import GROUPS, LONGER, SHORT, System
from ted.training import PACKED_FOLDERS, wanted
from translation import NAME, report

from heed.config import Recipe
from heed.data.corpus import Corpus
from heed.data.corpus.lines import Place
from heed.data.corpus.records import Record
from heed.metrics.sentence_bleu import sentence_tsv
from heed.metrics.systems import score_systems
from heed.models import build
from heed.recipes import find
from heed.runs.run import Run

WORDS = ("le", "la", "un", "chat", "chien", "mange", "voit", "petit", "et", "ne", "pas", ".", ",")
SYSTEMS = {system.name: system for group in GROUPS.values() for system in group}
TRAINED = [name for name in SYSTEMS if name != "best"]

texts = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)
pairs = st.lists(st.tuples(texts, texts.filter(bool)), min_size=1, max_size=8)


def references() -> list[str]:
    """Short ones, and as many that are long."""
    draw = random.Random(0)
    sizes = [draw.randint(*edges) for edges in ((3, 12), (25, 35)) for _ in range(40)]
    return [" ".join(draw.choices(WORDS, k=size)) for size in sizes]


def noisy(lines: list[str], share: float, seed: int) -> list[str]:
    """Lines with this share of their words exchanged."""
    draw = random.Random(seed)
    return [
        " ".join(draw.choice(WORDS) if draw.random() < share else word for word in line.split())
        for line in lines
    ]


def system(share: float, seeds: range) -> dict[int, joined.Array]:
    lines = references()
    return {seed: joined.counts(noisy(lines, share, seed), lines) for seed in seeds}


def against(one: joined.Seeds, other: joined.Seeds) -> joined.Compared | None:
    """Two systems alone."""
    return joined.effect([(one, other)])


GOOD, BAD = system(0.25, range(2)), system(0.3, range(2))


# ---------------------------------------------------------------------------------------- tests


@given(pairs)
def test_bleu_from_counts_is_sacrebleu_s(lines: list[tuple[str, str]]) -> None:
    hypotheses, told = ([pair[i] for pair in lines] for i in (0, 1))
    expected = BLEU().corpus_score(hypotheses, [told]).score
    found = joined.bleu(joined.counts(hypotheses, told).sum(axis=0))
    assert float(found) == pytest.approx(expected, abs=1e-9)


def test_a_system_does_not_differ_from_itself() -> None:
    own = system(0.3, range(3))
    found = against(own, own)
    assert found is not None
    assert found.difference == 0
    assert found.p == 1.0


def test_who_is_held_against_whom_only_turns_the_sign() -> None:
    good, bad = system(0.2, range(3)), system(0.4, range(3))
    one, other = against(good, bad), against(bad, good)
    assert one is not None
    assert other is not None
    assert one.difference == pytest.approx(-other.difference)
    assert one.difference > 0
    assert one.p < 0.05
    assert one.p_bootstrap == pytest.approx(other.p_bootstrap)
    assert one.p_seeds == pytest.approx(other.p_seeds)


def test_seeds_that_wrote_the_same_make_nothing_surer() -> None:
    """Three copies of one model are one model: pooled sentences would claim otherwise."""
    (a,), (b,) = (system(share, range(1)).values() for share in (0.30, 0.33))
    once = against({0: a}, {0: b})
    thrice = against(dict.fromkeys(range(3), a), dict.fromkeys(range(3), b))
    assert once is not None
    assert thrice is not None
    assert once.p_seeds is None
    assert once.p_bootstrap == thrice.p_bootstrap
    assert once.p_randomisation == thrice.p_randomisation
    assert (once.low, once.high) == pytest.approx((thrice.low, thrice.high))


def test_a_seed_that_only_one_system_has_counts_where_nothing_is_paired() -> None:
    good, bad = system(0.2, range(3)), system(0.4, range(2))
    found, scores = (
        against(good, bad),
        [list(joined.each(own).values()) for own in (good, bad)],
    )
    assert found is not None
    assert found.difference == pytest.approx(joined.score(good) - joined.score(bad))
    assert found.p_seeds == pytest.approx(joined.welch(*scores))
    paired = against({seed: good[seed] for seed in bad}, bad)
    assert paired is not None
    assert found.p_randomisation == paired.p_randomisation


def test_a_change_is_tested_over_all_systems_that_have_it() -> None:
    """Of two pairs the mean; of one pair twice, what is said of it once, but for the seeds."""
    good, fair, bad = (system(share, range(3)) for share in (0.2, 0.3, 0.4))
    one, other, both = (
        joined.effect([(good, fair)]),
        joined.effect([(good, bad)]),
        joined.effect([(good, fair), (good, bad)]),
    )
    twice = joined.effect([(good, bad)] * 2)
    assert one is not None
    assert other is not None
    assert both is not None
    assert twice is not None
    assert both.difference == pytest.approx((one.difference + other.difference) / 2)
    assert both.low < both.difference < both.high
    for name in ("difference", "low", "high", "p_bootstrap", "p_randomisation"):
        assert getattr(twice, name) == pytest.approx(getattr(other, name))
    assert twice.p_seeds is not None
    assert other.p_seeds is not None
    assert twice.p_seeds < other.p_seeds  # twelve runs instead of six
    assert joined.effect([(good, bad), (good, system(0.3, range(3, 5)))]) is None


@given(st.floats(-5, 5))
def test_sentences_are_asked_about_the_difference_of_all_seeds(found: float) -> None:
    """Those without counts move it; the larger it is, the surer, and its own changes nothing."""
    own = joined.effect([(GOOD, BAD)])
    moved, further = (joined.effect([(GOOD, BAD)], x) for x in (found, 2 * found))
    assert own is not None
    assert moved is not None
    assert further is not None
    assert joined.effect([(GOOD, BAD)], own.difference) == own
    assert moved.difference == pytest.approx(found)
    assert moved.high - moved.low == pytest.approx(own.high - own.low)
    assert moved.low < found < moved.high
    assert further.p_bootstrap <= moved.p_bootstrap
    assert further.p_randomisation <= moved.p_randomisation


def test_systems_without_a_seed_in_common_are_not_compared() -> None:
    assert against(system(0.2, range(2)), system(0.4, range(2, 4))) is None


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_s_correction(chances: list[float]) -> None:
    found = joined.holm(chances)
    assert all(p <= corrected <= 1 for p, corrected in zip(chances, found, strict=True))
    order = np.argsort(chances, kind="stable")
    assert sorted(found) == [found[i] for i in order]
    if chances:
        assert min(found) == pytest.approx(min(1.0, min(chances) * len(chances)))


@given(st.floats(0, 50))
def test_student_s_distribution_where_it_has_a_formula(t: float) -> None:
    assert joined.student(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t), abs=1e-6)
    assert joined.student(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), abs=1e-6)


# -------------------------------------------------------------------------------------- systems


@pytest.mark.parametrize("name", TRAINED)
def test_a_system_is_a_recipe_that_can_be_read(name: str) -> None:
    Recipe.read(find(SYSTEMS[name].recipe), SYSTEMS[name].changes)


def test_every_run_is_wanted_once_and_seeds_come_in_turn() -> None:
    runs = wanted(list(GROUPS), 3)
    assert len(runs) == len(set(runs)) == 3 * len(SYSTEMS)
    assert [seed for _, seed in wanted(["positions"], 2)] == [0] * 7 + [1] * 7
    assert runs[0][0].name == "best"


def test_the_lstm_and_its_transformer_are_as_large() -> None:
    sizes = []
    for own in GROUPS["lstm"]:
        recipe = Recipe.read(find(own.recipe))
        model = build("translate", recipe.model, vocab=recipe.tokenizer.vocab_size or 0)
        sizes.append(sum(parameter.numel() for parameter in model.parameters()))
    assert max(sizes) < 1.05 * min(sizes)


@given(st.integers(1, 2 * SHORT), st.sampled_from([" ", "  ", " \t"]), st.booleans())
def test_long_pairs_are_left_out_by_their_words(count: int, gap: str, source: bool) -> None:
    corpus = Corpus("translate", ("a", "b"), "text", drop=LONGER)
    text = f" {gap.join(['mot'] * count)} "
    record = Record((text, "mot") if source else ("mot", text), None, Place("a", 1))
    assert (corpus.drop_reason(record) == "drop-pattern") == (count > SHORT)


# ---------------------------------------------------------------------------------------- pages


@given(st.lists(st.tuples(st.text(max_size=9), st.text(max_size=9), st.text(max_size=9))))
def test_every_sentence_can_be_read_back(rows: list[tuple[str, str, str]]) -> None:
    columns = [[row[i] for row in rows] for i in range(3)]
    written = sentence_tsv(columns[0], [columns[1]], [(columns[2], [0.0] * len(rows))])
    found = read_sentences(written)
    assert [list(found.sources), list(found.references), list(found.hypotheses)] == columns


def made(folder: Path, own: System, seed: int, share: float) -> None:
    """A run folder as training and evaluation leave it; a share of its words is wrong."""
    run = folder / f"{own.name}-{seed}"
    (run / "translations").mkdir(parents=True)
    lines = references()
    written = noisy(lines, share, seed)
    found = score_systems({"": written}, [lines], metrics=("bleu",), resamples=0)
    told = found.to_dict() | {"chrf": 50.0, "ter": 50.0, "hit_limit": 0.0, "decode": {"beam": 5}}
    told |= {"in_train": 2, "clean": None, "hash": "0", "checkpoint": {"epoch": 2}}
    (run / "evaluation.json").write_text(json.dumps({"test": told, "dev": told}))
    rows = sentence_tsv(lines, [lines], [(written, found.sentences[""])])
    (run / "translations" / "test.tsv").write_text(rows, encoding="utf-8")
    (run / "recipe.toml").write_text(Recipe.read(find(own.recipe), own.changes).toml())
    (run / "environment.json").write_text(json.dumps({"python": "3", "gpu": "none"}))
    (run / "benchmark.json").write_text(json.dumps({"parameters": 7, "jobs": 1}))
    metrics = [_line(epoch, share) for epoch in (1, 2)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    (run / "model.safetensors").write_bytes(b"large")


def _line(epoch: int, share: float) -> Mapping[str, object]:
    scores = {"loss": share / epoch, "accuracy": 1 - share / epoch, "bleu": 50 * epoch}
    time = {"unix": 60.0 * epoch, "tokens_per_second": 5.0}
    facts = {"event": "evaluate", "step": epoch, "epoch": epoch, "time": time}
    return facts | {"seen": scores, "dev": scores}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of all groups but one: one system good, the others less so."""
    folder = tmp_path_factory.mktemp("runs")
    sets = {"set3": 0.2, "set4": 0.2, "set3-reported": 0.4, "set4-reported": 0.5}
    for name, share in (sets | {"fail-dropout": 0.3, "fail-set3": 0.45}).items():
        for seed in range(3):
            made(folder, SYSTEMS[name], seed, share)
    for name in ("lstm", "lstm-transformer", "position-rope", "position-none", "length-rope"):
        made(folder, SYSTEMS[name], 0, 0.2)
    made(folder, SYSTEMS["length-none"], 0, 0.6)
    return folder


@pytest.fixture(scope="module")
def told(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page, its pictures and its figures."""
    folder = tmp_path_factory.mktemp("told")
    report(runs, folder, folder)
    return folder


def figures_of(records: Path) -> str:
    return json.dumps(rounded(gather(records)), indent=1, ensure_ascii=False) + "\n"


def test_what_is_packed_is_enough(runs: Path, told: Path, tmp_path: Path) -> None:
    """Weights stay behind, and the page is the same without them."""
    pack(runs, tmp_path / "runs.tar.xz", folders=PACKED_FOLDERS)
    with tarfile.open(tmp_path / "runs.tar.xz") as archive:
        assert not [name for name in archive.getnames() if name.endswith(".safetensors")]
        archive.extractall(tmp_path / "unpacked", filter="data")
    assert keep(tmp_path / "unpacked", tmp_path / NAME) == []
    assert figures_of(tmp_path / NAME) == (told / "translation.json").read_text(encoding="utf-8")


@given(pairs)
def test_counts_can_be_had_back_from_what_is_kept(lines: list[tuple[str, str]]) -> None:
    counts = joined.counts(*zip(*lines, strict=True))
    assert np.array_equal(unpacked(packed(counts), counts[:, 1].astype(int).tolist()), counts)


def test_records_are_enough(told: Path, tmp_path: Path) -> None:
    """Whoever has no run folder makes the same page."""
    shutil.copytree(told / NAME, tmp_path / NAME)
    report(None, tmp_path, tmp_path)
    for made_again in (tmp_path / "translation.md", tmp_path / "translation.json"):
        assert made_again.read_bytes() == (told / made_again.name).read_bytes()


def test_runs_are_added_to_the_records_there_are(runs: Path, told: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for path in runs.iterdir():
        shutil.copytree(path, (first if path.name.endswith("-0") else second) / path.name)
    assert keep(first, tmp_path / NAME) == keep(second, tmp_path / NAME) == []
    assert figures_of(tmp_path / NAME) == (told / "translation.json").read_text(encoding="utf-8")


def test_a_run_that_was_scored_on_other_sentences_is_not_kept(tmp_path: Path) -> None:
    for number, name in enumerate(("set3", "set4")):
        made(tmp_path / name, SYSTEMS[name], 0, 0.2)
        scores = tmp_path / name / f"{name}-0" / "evaluation.json"
        told = json.loads(scores.read_text())
        told["test"]["hash"] = str(number)
        scores.write_text(json.dumps(told))
    assert keep(tmp_path / "set3", tmp_path / NAME) == []
    assert keep(tmp_path / "set4", tmp_path / NAME) == ["set4-0: it was scored on other sentences."]
    assert list(gather(tmp_path / NAME)["systems"]) == ["set3"]


def without_counts(told: Path, folder: Path, seeds: str) -> None:
    """The records of the page, those of some seeds as figures only; all tests as they were."""
    shutil.copytree(told / NAME, folder)
    figures = json.loads((told / "translation.json").read_text(encoding="utf-8"))
    for path in folder.glob(f"*-[{seeds}].json"):
        facts = json.loads(path.read_text())
        del facts["counts"]
        path.write_text(json.dumps(facts))
    tests, intervals = [], []
    lengths = figures["by_length"].values()
    alone = [own for question, own in figures["compared"].items() if question != "effects"]
    compared = [(None, one) for own in alone for one in own]
    for test in (test for own in lengths for test in own["tests"]):
        compared += [(test["words"], one) for one in test["compared"]]
    for words, one in compared:
        tests.append({"system": one["system"], "against": one["against"], "words": words})
        tests[-1]["found"] = {k: one[k] for k in one if k not in ("system", "against", "p_holm")}
    scored = [
        (None, name, {"bleu": own["bleu"]["mean"], **own["bleu"]})
        for name, own in figures["systems"].items()
    ]
    for group in (
        group for own in lengths for key in ("groups", "parts") for group in own.get(key, [])
    ):
        scored += [(group["words"], name, own) for name, own in group["systems"].items()]
    for words, name, own in scored:
        intervals.append({"system": name, "words": words, "found": own})
    (folder / "earlier.json").write_text(json.dumps({"tests": tests, "intervals": intervals}))


def test_figures_without_counts_say_what_they_said(told: Path, tmp_path: Path) -> None:
    """All but what was never asked of two systems alone."""
    without_counts(told, tmp_path / NAME, "012")
    figures = json.loads((told / "translation.json").read_text(encoding="utf-8"))
    del figures["compared"]["effects"]
    assert _alike(json.loads(figures_of(tmp_path / NAME)), figures)  # records are rounded


def test_tests_are_of_the_seeds_there_are_counts_of_or_of_the_earlier_more(
    told: Path, tmp_path: Path
) -> None:
    """Seed 2 alone has counts: earlier tests of three seeds stand, those of one do not."""
    without_counts(told, tmp_path / NAME, "01")
    before = {one["system"]: one for one in gather(told / NAME)["compared"]["sets"]}
    earlier = json.loads((tmp_path / NAME / "earlier.json").read_text())
    for one in earlier["tests"]:
        if one["system"] == "set4":
            one["found"] |= {"sentences": 1, "p_bootstrap": 0.5}
    (tmp_path / NAME / "earlier.json").write_text(json.dumps(earlier))
    found = {one["system"]: one for one in gather(tmp_path / NAME)["compared"]["sets"]}
    assert [found[name]["sentences"] for name in ("set3", "set4")] == [3, 1]
    for name in ("set3", "set4"):
        assert found[name]["difference"] == pytest.approx(before[name]["difference"], abs=1e-4)
        assert found[name]["p_seeds"] == pytest.approx(before[name]["p_seeds"], rel=1e-3)
        assert found[name]["low"] < found[name]["difference"] < found[name]["high"]
    assert found["set4"]["p_bootstrap"] < 0.05
    assert found["set3"]["low"] == pytest.approx(before["set3"]["low"], abs=1e-4)


def test_the_project_s_page_is_made_of_its_records() -> None:
    """Figures may differ in a last digit, where a processor adds in another order."""
    told = json.loads((RESULTS / "translation.json").read_text(encoding="utf-8"))
    assert _alike(rounded(gather(RESULTS / NAME)), told)
    pictures = [path.name for path in DOCS.glob("translation-*.png")]
    assert Page(told, pictures).text() == (DOCS / "translation.md").read_text(encoding="utf-8")


def _alike(found: object, told: object) -> bool:
    if isinstance(found, dict) and isinstance(told, dict):
        return found.keys() == told.keys() and all(_alike(found[key], told[key]) for key in told)
    if isinstance(found, list) and isinstance(told, list):
        return len(found) == len(told) and all(map(_alike, found, told))
    if isinstance(found, float) and isinstance(told, float):
        return math.isclose(found, told, rel_tol=1e-4, abs_tol=1e-9)
    return found == told


def test_no_text_of_the_corpus_gets_into_the_project(told: Path) -> None:
    files = [path for path in told.rglob("*") if path.suffix in (".json", ".md")]
    assert len(files) > len(list(told.glob("*.json")))
    kept = [path.read_text(encoding="utf-8") for path in files]
    assert not [line for line in references() if any(line in text for text in kept)]


def test_the_page_says_what_the_figures_say(told: Path) -> None:
    page = (told / "translation.md").read_text(encoding="utf-8")
    figures = json.loads((told / "translation.json").read_text(encoding="utf-8"))
    sets = {one["system"]: one for one in figures["compared"]["sets"]}
    assert all(one["p_holm"] < 0.05 for one in sets.values())
    assert "Set 3 is better than set 3 as reported" in page
    assert "Between `none` and `rope` (+0.00, p = 1.0000) no difference is shown" in page
    assert "Set 4 as reported, dropout 0.2 is better than set 4 as reported" in page
    assert "`none` is worse than `rope`" in page  # on sentences longer than those learnt from
    assert "`rope` and `none` go on past the learnt length as before." in page
    assert "Not trained yet: the best recipe, set 1, set 2, set 1 as reported, set 2 as" in page
    for picture in told.glob("*.png"):
        assert f"]({picture.name})" in page


def test_what_set_4_is_behind_is_shared_out_whole(told: Path) -> None:
    page = (told / "translation.md").read_text(encoding="utf-8")
    number = r"(-?\d+\.\d+)"
    found = re.search(
        rf"Of the {number} BLEU that set 4 is behind set 3, dropout makes {number} \({number} with "
        rf"four layers, {number} with six\) and the layers {number} \({number} with dropout 0.2, "
        rf"{number} with 0.1\)",
        page,
    )
    assert found
    behind, dropout, with_four, with_six, layers, with_more, with_less = map(float, found.groups())
    about = partial(pytest.approx, abs=0.011)  # they are rounded each
    assert dropout + layers == about(behind)
    assert (dropout, layers) == about(((with_four + with_six) / 2, (with_more + with_less) / 2))
    assert with_four + with_less == about(behind)  # first the one, then the other
    assert with_six + with_more == about(behind)
    assert "Half the dropout costs it." in page  # here two more layers help


def test_without_runs_there_is_little_to_say(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    report(tmp_path / "runs", tmp_path, tmp_path)
    assert "Not trained yet" in (tmp_path / "translation.md").read_text(encoding="utf-8")


# ---------------------------------------------------------------------------------- making of runs


def test_the_pack_is_written_as_soon_as_a_run_ends(tmp_path: Path) -> None:
    """A run that waits for the pack of the one before it does not wait for ever."""
    runs, packed = tmp_path / "runs", tmp_path / "kept" / "runs.tar.gz"

    def first() -> str:
        (runs / "first").mkdir(parents=True)
        note(Run(runs / "first"), {"jobs": 1})
        return "made"

    def second() -> str:
        until = time.monotonic() + 20
        while not packed.exists():
            if time.monotonic() > until:
                raise FailedError("there is no pack")
            time.sleep(0.01)
        with tarfile.open(packed) as archive:
            return ", ".join(archive.getnames())

    said: dict[str, Outcome] = {}
    todo = {"first": first, "second": second}
    assert all_of(1, todo, packing(runs, packed), said.__setitem__)
    assert said == {"first": (True, "made"), "second": (True, "first/benchmark.json")}


def test_a_run_that_fails_does_not_stop_the_others() -> None:
    def failing(error: Exception) -> Callable[[], str]:
        def make() -> str:
            raise error

        return make

    errors = (StoppedError("late"), FailedError("words"), OSError(), ValueError(), KeyError())
    todo = {str(number): failing(error) for number, error in enumerate(errors)}
    said: dict[str, Outcome] = {}
    assert not all_of(2, {**todo, "good": lambda: "made"}, lambda: None, said.__setitem__)
    assert {name for name, (there, _) in said.items() if there} == {"good"}
    assert said.keys() == {*todo, "good"}
    assert said["0"] == (False, "late")
    assert all(said[name][1].startswith("FAILED: ") for name in list(todo)[1:])


def test_a_pack_is_whole_while_runs_go_on(tmp_path: Path) -> None:
    """What is noted at the same moment is in it as it was before, or after."""
    run, packed = Run(tmp_path / "runs" / "one"), tmp_path / "runs.tar.gz"
    run.folder.mkdir(parents=True)
    note(run, {"number": 0})

    def go_on() -> None:
        for number in range(100):
            note(run, {"number": number})

    with ThreadPoolExecutor(1) as pool:
        noting = pool.submit(go_on)
        while not noting.done():
            pack(tmp_path / "runs", packed)
            with tarfile.open(packed) as archive:
                (name,) = archive.getnames()
                file = archive.extractfile(name)
                assert file is not None
                assert json.load(file)["number"] in range(100)
        noting.result()


@pytest.mark.parametrize("inherited", [[], ["one"], ["one", "two"]])
def test_a_process_finds_this_checkout_and_what_we_find(
    inherited: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(inherited))
    monkeypatch.delenv("HEED_CACHE", raising=False)
    found = environment(HEED_CACHE="here")
    assert found["PYTHONPATH"].split(os.pathsep) == [str(ROOT), *inherited]
    assert found["HEED_CACHE"] == "here"
    assert os.environ.items() - {("PYTHONPATH", os.environ["PYTHONPATH"])} <= found.items()


def test_machines_of_earlier_runs_stay_noted(tmp_path: Path) -> None:
    plan = Plan(tmp_path, tmp_path, [], "cpu", jobs=1, deadline=0, stop=0)

    def others() -> list[str]:
        note_machine(plan, "some", [])
        return cast(list[str], json.loads((tmp_path / MACHINE).read_text())[OTHERS])

    assert others() == others() == []
    (tmp_path / MACHINE).write_text(json.dumps({"cpu": "an abacus", "torch": "2.11.0"}))
    assert others() == others() == ["an abacus, torch 2.11.0"]
