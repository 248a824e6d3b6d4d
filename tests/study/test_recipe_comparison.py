"""`heed compare` on records: verdicts, groups, refusals, formats; and on real runs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluating import evaluate_small, train_small
from rich.console import Console
from test_cli import heed
from typer.testing import CliRunner

import heed as package
from heed.cli.main import app
from heed.config import Recipe
from heed.errors import HeedError
from heed.metrics.item_metrics import BLEU_COUNTS
from heed.runs.item_counts import GROUP, IN_TRAIN, ItemCounts, read_items, write_items
from heed.stats.verdicts import Verdict
from heed.study.comparison_tables import (
    pairs_to_latex,
    render_comparison,
    to_latex,
    to_markdown,
)
from heed.study.recipe_comparison import RecipeComparison, compare_runs
from heed.study.run_records import ScoredRun, open_scored_runs, read_record, write_record

ITEMS = 120


def make_items(
    random: np.random.Generator, quality: float, *, task: str = "translate"
) -> ItemCounts:
    """Item counts of a model that gets about this share of words, labels or bits right."""
    correct = random.random(ITEMS) < quality
    in_train = (np.arange(ITEMS) < 20).astype(float)
    if task == "translate":
        length = random.integers(8, 30, ITEMS)
        share = np.clip(quality + random.normal(0, 0.1, ITEMS), 0.05, 0.95)
        rows = [length, length]
        rows += [random.binomial(length - i, share ** (i + 1)) for i in range(4)]
        rows += [length - i for i in range(4)]
        columns = {f"bleu.{n}": r.astype(float) for n, r in zip(BLEU_COUNTS, rows, strict=True)}
    elif task == "classify":
        label = random.integers(2, size=ITEMS)
        columns = {
            "label": label.astype(float),
            "predicted": np.where(correct, label, 1 - label).astype(float),
            "log_probability": np.log(np.where(correct, 0.8, 0.2)),
        }
    else:
        tokens = random.integers(20, 60, ITEMS).astype(float)
        columns = {
            "loss": tokens * (4 - quality + random.normal(0, 0.2, ITEMS)),
            "tokens": tokens,
            "words": tokens,
            "bytes": 5 * tokens,
            "correct": np.floor(tokens * quality),
        }
    return ItemCounts(
        task,
        "test",
        "text",
        {**columns, IN_TRAIN: in_train},
        {"bleu": "tok:13a"} if task == "translate" else {},
        classes=("a", "b") if task == "classify" else (),
        settings={"tokenizer": "t"} if task == "generate" else {},
    )


def make_runs(
    qualities: dict[str, float], seeds: int, *, task: str = "translate", spread: float = 0.005
) -> list[ScoredRun]:
    """Runs of one recipe per position encoding, whose quality varies a little with the seed."""
    random = np.random.default_rng(1)
    runs = []
    for position, quality in qualities.items():
        for seed in range(1, seeds + 1):
            tables = {"task": task, "seed": seed, "model": {"position": position}}
            recipe = Recipe.of(tables).tables()
            value = quality + random.normal(0, spread)
            items = make_items(random, value, task=task)
            data = {"train": "same", "dev": "same"}
            runs.append(ScoredRun(f"runs/{position}-{seed}", recipe, data, 5.0, {"test": items}))
    return runs


def verdict(comparison: RecipeComparison) -> Verdict:
    [judgement] = comparison.judgements
    return judgement.verdict


@pytest.mark.parametrize("task", ["translate", "classify", "generate"])
def test_a_planted_change_is_found_with_three_seeds(task: str) -> None:
    comparison = compare_runs(make_runs({"none": 0.5, "rope": 0.8}, 3, task=task), baseline=None)
    assert [group.name for group in comparison.groups] == ["position=none", "position=rope"]
    assert verdict(comparison) is Verdict.BETTER
    assert comparison.sentences[0].startswith("position=rope is better than position=none")


@pytest.mark.parametrize("task", ["translate", "classify", "generate"])
def test_one_run_each_is_two_models_only(task: str) -> None:
    comparison = compare_runs(make_runs({"none": 0.4, "rope": 0.9}, 1, task=task))
    assert verdict(comparison) is Verdict.TWO_MODELS
    assert "4 more runs (3 seeds each, about" in comparison.sentences[0]
    assert "about 20 minutes" in comparison.sentences[0]


def test_runs_of_one_recipe_are_never_ranked() -> None:
    comparison = compare_runs(make_runs({"rope": 0.5}, 2))
    assert not comparison.judgements
    assert "one recipe" in comparison.sentences[0]
    assert "standard deviation" in comparison.sentences[0]


def test_the_clean_part_is_beside_the_whole() -> None:
    comparison = compare_runs(make_runs({"none": 0.5, "rope": 0.8}, 3))
    assert comparison.clean is not None
    assert comparison.clean.items == ITEMS - 20
    assert "Without 20 texts that are also in train" in to_markdown(comparison)


def test_records_give_the_same_answer_as_runs(tmp_path: Path) -> None:
    runs = make_runs({"none": 0.5, "rope": 0.55}, 3)
    for run in runs:
        again = read_record(write_record(run, tmp_path))
        assert again.recipe == run.recipe
    reread = open_scored_runs([tmp_path])
    assert {run.name for run in reread} == {run.name for run in runs}
    order = {run.name: i for i, run in enumerate(runs)}
    reread.sort(key=lambda run: order[run.name])
    assert compare_runs(reread).to_dict() == compare_runs(runs).to_dict()


def test_one_path_is_taken_as_it_is(tmp_path: Path) -> None:
    for run in make_runs({"rope": 0.6, "learned": 0.5}, 3):
        write_record(run, tmp_path)
    listed = package.compare([tmp_path]).to_dict()
    assert package.compare(str(tmp_path)).to_dict() == listed
    assert package.compare(tmp_path).to_dict() == listed
    assert compare_runs(str(tmp_path)).to_dict() == listed


def test_the_order_of_systems_turns_the_sign_and_nothing_else() -> None:
    runs = make_runs({"none": 0.5, "rope": 0.52}, 3)
    [pair] = compare_runs(runs).whole.pairs
    [turned] = compare_runs(runs[::-1]).whole.pairs
    assert turned.difference == pytest.approx(-pair.difference)
    assert turned.p == pytest.approx(pair.p)
    assert turned.interval.low == pytest.approx(-pair.interval.high)


def with_groups(run: ScoredRun, groups: np.ndarray) -> ScoredRun:
    items = run.evaluations["test"]
    columns = {**items.columns, GROUP: groups.astype(float)}
    return replace(run, evaluations={"test": replace(items, columns=columns)})


def test_groups_of_items_are_where_the_variance_is_taken() -> None:
    """Answers that repeat within a group say no more than one of them."""
    runs = make_runs({"none": 0.5, "rope": 0.6}, 3)
    groups = np.arange(ITEMS) // 6
    for run in runs:
        columns = run.evaluations["test"].columns
        for name, values in columns.items():
            columns[name] = values[6 * groups]
    alone = compare_runs(runs)
    together = compare_runs([with_groups(run, groups) for run in runs])
    [pair], [wider] = alone.whole.pairs, together.whole.pairs
    assert (alone.whole.units, together.whole.units) == (ITEMS, ITEMS // 6)
    assert wider.difference == pair.difference
    assert wider.interval.high - wider.interval.low > pair.interval.high - pair.interval.low
    assert "no groups" in alone.notes[0]
    assert "over 20 groups" in together.notes[0]
    assert f"{ITEMS} texts in 20 groups" in to_markdown(together)
    # One run that knows the groups is enough: the text is the same.
    some = compare_runs([with_groups(runs[0], groups), *runs[1:]])
    assert some.whole.pairs == together.whole.pairs
    few = compare_runs([with_groups(run, groups // 4) for run in runs])
    assert few.whole.pairs == alone.whole.pairs
    assert "Only 5 groups are known" in few.notes[0]
    with pytest.raises(HeedError, match="different groups"):
        compare_runs([with_groups(runs[0], groups), with_groups(runs[1], groups + 1)])


def test_paired_seeds_take_out_what_pairs_share() -> None:
    """Every seed scales both recipes alike, so differences within pairs are nearly the same."""
    runs = make_runs({"none": 0.5, "rope": 0.5}, 3, spread=0.0)
    shifted = []
    for i, run in enumerate(runs):
        source = runs[i % 3].evaluations["test"].columns
        columns = {name: values.copy() for name, values in source.items()}
        for order in range(1, 5):
            columns[f"bleu.match{order}"] *= (0.8, 0.9, 1.0)[i % 3] * (0.97 if i >= 3 else 1.0)
        shifted.append(
            replace(run, evaluations={"test": replace(run.evaluations["test"], columns=columns)})
        )
    turned = [*shifted[:3], *shifted[:2:-1]]  # the second recipe's seeds in another order
    [apart], [paired] = (
        compare_runs(turned, paired_seeds=declared).whole.pairs for declared in (False, True)
    )
    assert paired.difference == pytest.approx(apart.difference)
    assert paired.p < 0.05 < apart.p
    assert paired.smallest_visible is not None
    assert apart.smallest_visible is not None
    assert paired.smallest_visible < apart.smallest_visible / 2
    assert "declared before training" in " ".join(compare_runs(turned, paired_seeds=True).notes)
    with pytest.raises(HeedError, match="the same seeds for every recipe"):
        compare_runs(shifted[:5], paired_seeds=True)


def test_looks_at_the_test_set_are_counted(tmp_path: Path) -> None:
    runs = make_runs({"none": 0.5, "rope": 0.6}, 3)
    runs = [replace(run, looks={"test": 1 + (i == 0)}) for i, run in enumerate(runs)]
    for run in runs:
        write_record(run, tmp_path)
    comparison = compare_runs(open_scored_runs([tmp_path]))
    assert sum(comparison.to_dict()["looks"].values()) == 7
    note = "test was evaluated 7 times for 6 runs, at most 2 times for one run."
    assert note in to_markdown(comparison)


def test_runs_whose_looks_were_not_recorded_are_not_counted_as_evaluated_once() -> None:
    """Items that are kept without the run's own results have no count."""
    runs = make_runs({"none": 0.5, "rope": 0.6}, 3)
    unknown = [replace(run, looks={"test": 0}) for run in runs]
    text = to_markdown(compare_runs(unknown))
    assert "How often test was evaluated is not recorded for 6 of 6 runs." in text
    assert "once each" not in text
    some = [*unknown[:2], *(replace(run, looks={"test": 1}) for run in runs[2:])]
    text = to_markdown(compare_runs(some))
    assert "test was evaluated 4 times for 4 runs: once each." in text
    assert "not recorded for 2 of 6 runs." in text


def changed(run: ScoredRun, **changes: Any) -> ScoredRun:
    return replace(run, evaluations={"test": replace(run.evaluations["test"], **changes)})


def test_what_does_not_compare_is_refused() -> None:
    runs = make_runs({"none": 0.5, "rope": 0.6}, 1)
    for other, words in (
        (changed(runs[1], text_hash="other"), "different text"),
        (changed(runs[1], signatures={"bleu": "tok:intl"}), "different ways"),
        (replace(runs[1], evaluations={}), "heed evaluate runs/rope-1"),
        (replace(runs[0], name="copy"), "the same recipe and the same seed"),
        (make_runs({"rope": 0.5}, 1, task="classify")[0], "different tasks"),
    ):
        with pytest.raises(HeedError, match=words):
            compare_runs([runs[0], other])
    with pytest.raises(HeedError, match=r"not scored on 'tset'\. Did you mean 'test'"):
        compare_runs(runs, set_name="tset")
    with pytest.raises(HeedError, match="no metric 'bleau'"):
        compare_runs(runs, metric="bleau")
    with pytest.raises(HeedError, match="none of the runs"):
        compare_runs(runs, baseline="runs/t5-1")
    with pytest.raises(HeedError, match="two runs or more"):
        compare_runs(runs[:1])
    with pytest.raises(HeedError, match="above 0"):
        compare_runs(runs, margin=-1)


def test_tokens_of_different_tokenizers_do_not_compare_but_bytes_do() -> None:
    runs = make_runs({"none": 0.5, "rope": 0.6}, 1, task="generate")
    runs[1] = changed(runs[1], settings={"tokenizer": "other"})
    assert compare_runs(runs).metric_name == "bits_per_byte"
    with pytest.raises(HeedError, match="different tokenizers"):
        compare_runs(runs, metric="perplexity")


def test_many_systems_against_a_baseline_as_tables() -> None:
    runs = make_runs({"none": 0.5, "rope": 0.6, "t5": 0.61, "alibi": 0.7}, 3)
    comparison = compare_runs(runs, baseline="runs/none-2", margin=1.0)
    assert {pair.b for pair in comparison.whole.pairs} == {"position=none"}
    assert len(comparison.rows()) == 4
    assert "Best, or not distinguishable" in comparison.sentences[-1]
    markdown, latex = to_markdown(comparison), to_latex(comparison)
    assert markdown.count("| position=") == 4 + 3
    assert latex.count("\\\\\n") == 1 + 4
    assert "position=none" in latex
    assert "1 BLEU" in markdown
    json.dumps(comparison.to_dict())


def latex_rows(latex: str) -> list[list[str]]:
    """The cells of a LaTeX table, header first, as LaTeX prints them."""
    lines = [line.strip() for line in latex.splitlines() if line.endswith(r" \\")]
    cells = [re.split(r"(?<!\\) & ", line.removesuffix(r" \\")) for line in lines]
    return [[re.sub(r"\$(.)\$|\\([&%$#_{}])", r"\1\2", cell) for cell in row] for row in cells]


@pytest.mark.parametrize("baseline", [None, "runs/none-2"])
def test_pairs_in_latex_have_difference_interval_p_and_verdict(baseline: str | None) -> None:
    runs = make_runs({"none": 0.5, "rope": 0.7, "t5": 0.5}, 3)
    comparison = compare_runs(runs, baseline=baseline, margin=9.0)
    latex = pairs_to_latex(comparison)
    header, *rows = latex_rows(latex)
    first = "pair (A - B)" if baseline is None else "against position=none"
    assert header == [first, "difference", "95% interval", "90% interval", "p", "verdict"]
    assert len(rows) == (3 if baseline is None else 2)
    verdicts = set()
    for row, (pair, judgement) in zip(rows, comparison.pairs, strict=True):
        assert float(row[1]) == pytest.approx(pair.difference, abs=0.006)
        low, high = map(float, row[2].split(" to "))
        assert (low, high) == pytest.approx((pair.interval.low, pair.interval.high), abs=0.006)
        assert row[-1].startswith(judgement.verdict.value.replace("the margin", "9"))
        verdicts.add(row[-1].partition(",")[0])
    assert {"better by at least 9", "as good"} <= verdicts
    assert latex.count("Exploratory: ") == 1
    assert [latex.count(rf"\{rule}rule") for rule in ("top", "mid", "bottom")] == [1, 1, 1]


def test_latex_escapes_what_it_would_read_as_commands() -> None:
    """A row that began with a bracket would be an option of the row break before it."""
    runs = make_runs({"none": 0.5, "rope": 0.6}, 3)
    comparison = compare_runs(runs)
    (pair,) = comparison.whole.pairs
    hostile = replace(pair, a="[a_1] 50% & {x} --b", b="*\\input|~^#$\x1b")
    latex = pairs_to_latex(replace(comparison, whole=replace(comparison.whole, pairs=[hostile])))
    assert r"    {[}a\_1{]} 50\% \& \{x\} -{}-b & " in latex
    assert (
        r"against {*}\textbackslash{}input\textbar{}\textasciitilde{}\textasciicircum{}\#\$"
        r"\textbackslash{}x1b & " in latex
    )


def test_a_latex_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    records = tmp_path / "records"
    for run in make_runs({"none": 0.5, "rope": 0.6}, 3):
        write_record(replace(run, name=run.name.replace("/", "-")), records)
    path = tmp_path / "pairs.tex"
    path.write_text("an earlier table", encoding="utf-8")

    def compare(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["compare", *arguments])

    one_recipe = compare(f"{records}/*rope*", "--latex", str(path))
    assert isinstance(one_recipe.exception, HeedError)
    assert "there is no pair" in str(one_recipe.exception)
    assert path.read_text(encoding="utf-8") == "an earlier table"
    no_folder = compare(str(records), "--latex", str(tmp_path / "none" / "pairs.tex"))
    assert "there is no such folder" in str(no_folder.exception)
    assert no_folder.output == ""
    shown = compare(str(records), "--latex", str(path))
    assert shown.exit_code == 0
    assert path.read_text(encoding="utf-8").startswith(r"\begin{table}")
    assert shown.output == compare(str(records)).output
    assert sorted(one.name for one in tmp_path.iterdir()) == ["pairs.tex", "records"]


@pytest.mark.parametrize("seeds", [1, 3])
def test_every_line_fits_80_columns(seeds: int) -> None:
    names = {"none": 0.5, "rope": 0.6, "sinusoidal": 0.61}
    output = StringIO()
    console = Console(file=output, width=80)
    console.print(render_comparison(compare_runs(make_runs(names, seeds))))
    assert max(map(len, output.getvalue().splitlines())) <= 80


def test_the_real_command_on_real_runs(text: Path, tmp_path: Path) -> None:
    """Two classifiers of different depth, one seed each; then from their records alone."""
    test = [str(text / "test.tsv")]
    folders = []
    for name, lr in (("fast", 0.01), ("slow", 0.001)):
        folder = train_small(text, "classify", f"compared-{name}", train={"lr": lr})
        evaluate_small(folder, test=test)
        folders.append(str(folder))
    answer = heed("compare", *folders, "--json", "--records", str(tmp_path))
    assert answer.returncode == 0, answer.stderr
    result = json.loads(answer.stdout)
    assert [system["name"] for system in result["systems"]] == ["lr=0.01", "lr=0.001"]
    assert result["verdicts"][0].startswith("Two models only")
    again = heed("compare", f"{tmp_path}/*.record.json", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["pairs"] == result["pairs"]
    assert set(package.Run.open(Path(folders[0])).items("test")) >= {"label", "predicted"}
    with pytest.raises(HeedError, match="there are those of: test"):
        package.Run.open(Path(folders[0])).items("tset")
    python = package.compare(folders, metric="macro_f1")
    assert python.metric_name == "macro_f1"
    shown = heed("compare", *folders)
    assert shown.returncode == 0
    assert shown.stdout.startswith("Two models only")
    missing = heed("compare", *folders, str(tmp_path / "nothing"))
    assert missing.returncode == 2
    assert "Traceback" not in missing.stderr
    # After training on, the scores are those of other weights.
    items = read_items(Path(folders[0]), "test")
    assert items is not None
    write_items(Path(folders[0]), replace(items, checkpoint={"step": 999}))
    stale = heed("compare", *folders)
    assert stale.returncode == 2
    assert "not been evaluated with the weights that it has now" in stale.stderr
