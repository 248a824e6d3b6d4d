"""Head report cards: metrics as a loop would add them up, for every model, streamed; and names."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from evaluating import sides
from hypothesis import given
from hypothesis import strategies as st
from support import FEW, VARIANTS, tiny
from torch import Tensor
from typer.testing import CliRunner

from heed.cli.main import app
from heed.config import MERGES
from heed.data import synthetic
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.decode.alignment import Links, hard_links
from heed.errors import ConfigError, DataError, HeedError, RunError
from heed.metrics.alignment_error import alignment_error_rate
from heed.models import Model, Translator, build, huggingface
from heed.probe import examples, head_cards
from heed.probe.attention_maps import AttentionMaps, map_pairs
from heed.probe.examples import ProbeSet, open_probe_set
from heed.probe.head_cards import (
    ALIGNER_ERROR,
    GOLD_ERROR,
    RULES,
    Estimate,
    HeadCard,
    HeadReport,
    Rule,
    measure_heads,
    name_head,
)
from heed.probe.head_figures import SHARES, draw_heads
from heed.probe.head_metrics import METRICS, TokenKinds, self_cells
from heed.probe.head_tables import render_heads
from heed.probe.patch import ZERO, Head, edit_attention, list_heads
from heed.probe.prune import prune_model
from heed.stats.intervals import Interval
from heed.terminal import PlainConsole

VOCAB = 9
KINDS = TokenKinds(torch.arange(VOCAB) == 5, torch.arange(VOCAB) < 2)
"""Ids 0 and 1 are special tokens, 5 is punctuation."""


# ------------------------------------------------------------------------------------- metrics


def loop(weights_nm: Tensor, ids: list[int], *, causal: bool) -> dict[str, tuple[float, float]]:
    """Numerator and denominator of every metric of one head on one text, cell by cell."""
    n = len(ids)
    sums = {name: [0.0, 0.0] for name in METRICS}

    def add(name: str, i: int, keys: list[int]) -> None:
        if keys:
            sums[name][0] += sum(float(weights_nm[i, j]) for j in keys)
            sums[name][1] += 1

    for i in range(n):
        seen = list(range(i + 1 if causal else n))
        if len(seen) < 2:
            continue
        row = [float(weights_nm[i, j]) for j in seen]
        entropy = -sum(w * math.log2(w) for w in row if w > 0)
        distance = sum(w * abs(i - j) for j, w in zip(seen, row, strict=True))
        uniform = sum(abs(i - j) for j in seen) / len(seen)
        for name, value, unit in (
            ("entropy", entropy, 1.0),
            ("evenness", entropy, math.log2(len(seen))),
            ("distance", distance, 1.0),
            ("reach", distance, uniform),
        ):
            sums[name][0] += value
            sums[name][1] += unit
        twins = [j for j in seen if ids[j] == ids[i] and j != i and ids[i] > 1]
        add("previous", i, [i - 1] if i else [])
        add("same", i, [i])
        add("duplicate", i, twins)
        add("first", i, [0] if i else [])
        add("punctuation", i, [j for j in seen if ids[j] == 5] or [-1])
        if not any(ids[j] == 5 for j in seen):
            sums["punctuation"][0] -= float(weights_nm[i, -1])
        if causal:
            add("induction", i, [j + 1 for j in twins if j + 1 < i])
        else:
            add("next", i, [i + 1] if i + 1 < n else [])
            add("end", i, [n - 1] if i + 1 < n else [])
    return {name: (pair[0], pair[1]) for name, pair in sums.items()}


@given(
    st.lists(st.lists(st.integers(2, VOCAB - 1), min_size=1, max_size=6), min_size=1, max_size=3),
    st.booleans(),
    st.integers(0, 99),
)
def test_metrics_are_sums_over_cells(rows: list[list[int]], causal: bool, seed: int) -> None:
    rows = [[1, *row] for row in rows]
    length = max(map(len, rows))
    ids_bn = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    real_bn = torch.tensor([[i < len(row) for i in range(length)] for row in rows])
    cells = self_cells(ids_bn, real_bn, KINDS, causal=causal)
    scores = torch.rand(len(rows), 2, length, length, generator=torch.manual_seed(seed))
    weights = scores * cells.visible_bnm[:, None]
    weights = weights / weights.sum(dim=-1, keepdim=True).clamp(min=1e-9)
    numerators, denominators = cells.numerators(weights), cells.denominators()
    for b, row in enumerate(rows):
        for h in range(2):
            expected = loop(weights[b, h], row, causal=causal)
            for k, name in enumerate(cells.names):
                found = numerators[b, h, k], denominators[b, k]
                assert found == pytest.approx(expected[name], abs=1e-5), name


def test_the_kinds_of_tokens_of_a_vocabulary() -> None:
    tokenizer = Tokenizer.train(["Hi, you. — 3% l'an"], kind="char")
    kinds = TokenKinds.of(tokenizer, torch.device("cpu"))
    names = tokenizer.ids_to_tokens(range(tokenizer.vocab_size))
    marks = {name for name, mark in zip(names, kinds.punctuation_v, strict=True) if mark}
    assert marks == {",", ".", "—", "%", "'"}
    assert kinds.special_v.nonzero().flatten().tolist() == [0, 1, 2, 3, 4]


# ----------------------------------------------------------------------------------- whole runs


def probe_with(folder: Path, **changes: Any) -> ProbeSet:
    """The set of a run, with another model of random weights in its place."""
    probe = open_probe_set(folder, limit=12, device="cpu")
    torch.manual_seed(0)
    vocab, classes = probe.tokenizer.vocab_size, 3 if probe.recipe.task == "classify" else None
    model = build(probe.recipe.task, tiny(**changes), vocab=vocab, classes=classes)
    return replace(probe, model=model.eval())


def metrics_of(report: HeadReport) -> dict[str, dict[str, float]]:
    return {
        card.head.label: {name: one.value for name, one in card.metrics.items()}
        for card in report.cards
    }


@pytest.mark.parametrize(
    "variant", [*FEW, *(f"rope-{merge}" for merge in MERGES if merge != "concat")]
)
def test_a_head_with_a_known_pattern_is_recognized(runs: dict[str, Path], variant: str) -> None:
    """Every position, merge and extra: uniform heads have the metrics of uniform attention."""
    probe = probe_with(runs["translate"], **VARIANTS[variant])
    patterns = {"encoder": "next", "decoder": "previous", "cross": "first"}
    names = {"encoder": "next token", "decoder": "previous token", "cross": "first token"}
    model: Model = probe.model
    with edit_attention(model, {head: patterns[head.kind] for head in list_heads(model)}):
        report = measure_heads(probe, align=False)
    lstm = VARIANTS[variant].get("family") == "lstm"
    assert len(report.cards) == (1 if lstm else 2 * 4 * 3)
    for card in report.cards:
        if GOLD_ERROR not in card.metrics or card.metrics[GOLD_ERROR].value > 0.5:
            assert card.name == names[card.head.kind]
        pattern = patterns[card.head.kind]
        assert card.metrics[pattern].value == pytest.approx(1, abs=1e-5)
        assert card.metrics["entropy"].value == pytest.approx(0, abs=1e-5)
    with edit_attention(model, dict.fromkeys(list_heads(model), "uniform")):
        report = measure_heads(probe, align=False)
    for card in report.cards:
        for name, estimate in report.uniform[card.head.kind].items():
            assert card.metrics[name].value == pytest.approx(estimate.value, abs=1e-5)
        assert card.metrics["evenness"].value == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("task", ["translate", "classify", "generate"])
def test_cards_do_not_depend_on_batches(
    runs: dict[str, Path], task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = open_probe_set(runs[task], device="cpu", limit=25)
    together = measure_heads(probe, align=False)
    monkeypatch.setattr(examples, "MAX_TOKENS", 40)
    monkeypatch.setattr(examples, "CHUNK", 7)
    apart = measure_heads(probe, align=False)
    assert together.examples == apart.examples >= 10
    for label, metrics in metrics_of(together).items():
        assert metrics == pytest.approx(metrics_of(apart)[label], abs=1e-5)
    for card in together.cards:
        assert all(0 <= one.value <= 1.0001 for k, one in card.metrics.items() if k == "same")


def links_of(maps: AttentionMaps, head: Head) -> Links:
    """For each target word the source word with the most weight of one head."""
    cross = maps.get("cross").by_word()
    rows = [i for i, word in enumerate(cross.query_words) if word is not None]
    columns = [i for i, word in enumerate(cross.key_words) if word is not None]
    return hard_links(cross.weights[head.layer][head.head].astype(float)[rows][:, columns])


def test_alignment_errors_are_those_of_the_maps(runs: dict[str, Path]) -> None:
    probe = open_probe_set(runs["translate"], device="cpu")
    report = measure_heads(probe)
    sentences = list(synthetic.generate_sentences("dev", 30))
    pairs = [(s.english, s.french) for s in sentences]
    assert isinstance(probe.model, Translator)
    maps = map_pairs(probe.model, probe.tokenizer, pairs, max_source=probe.max_length - 1)
    for card in report.cards:
        if card.head.kind == "cross":
            links = [links_of(m, card.head) for m in maps]
            expected = alignment_error_rate(links, [s.alignment for s in sentences])
            assert card.metrics[GOLD_ERROR].value == pytest.approx(expected, abs=1e-9)
    assert report.aligner is not None
    assert report.aligner["pairs"] == 110
    assert 0 < report.aligner[GOLD_ERROR] < 0.4


@pytest.mark.parametrize("task", ["translate", "generate"])
def test_a_pruned_model_has_the_cards_of_its_heads(runs: dict[str, Path], task: str) -> None:
    """As in the whole model with the others silent; one layer has no heads left."""
    probe = probe_with(runs[task])
    removed = [head for head in list_heads(probe.model) if head.layer == 0 or head.head == 1]
    removed = [head for head in removed if head.kind != "cross" or head.head % 2]
    with edit_attention(probe.model, dict.fromkeys(removed, ZERO)):
        expected = measure_heads(probe, align=False)
    pruned = replace(probe, model=prune_model(probe.model, removed))
    found = measure_heads(pruned, align=False)
    remaining = [card for card in expected.cards if card.head not in removed]
    assert len(found.cards) == len(remaining) > 0
    for mine, theirs in zip(found.cards, remaining, strict=True):
        for name, one in theirs.metrics.items():
            assert mine.metrics[name].value == pytest.approx(one.value, abs=1e-4)
    assert draw_heads(found) is not None


@pytest.mark.parametrize("value", [0.61, 0.41])
def test_a_figure_names_heads_in_the_words_of_the_table(
    runs: dict[str, Path], value: float
) -> None:
    """Also the largest share of a mixed head; every word fits into its cell."""
    report = measure_heads(probe_with(runs["classify"]), align=False)
    cards = [
        HeadCard(Head("encoder", 0, i), {metric: Estimate(value, None)}, "")
        for i, metric in enumerate(SHARES)
    ]
    figure = draw_heads(replace(report, cards=cards))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    cells = [text.get_text().split("\n") for text in axes.texts]
    names = {rule.name.removesuffix(" token") for rule in RULES}
    assert all(words[-2] in names and words[-1] == f"{value:.0%}" for words in cells)
    width = axes.bbox.width / len(cells)
    assert all(text.get_window_extent().width < width for text in axes.texts)


@pytest.mark.parametrize("case", ["bert-classes", "bert-guesses", "gpt2-writes", "marian", "t5"])
def test_imported_models(runs: dict[str, Path], case: str, tmp_path: Path) -> None:
    """Models of transformers: every head of every layer, within the positions that they have."""
    foreign = pytest.importorskip("foreign")
    task = {"bert-classes": "classify", "marian": "translate", "t5": "translate"}
    probe = open_probe_set(runs[task.get(case, "generate")], limit=12, device="cpu")
    theirs = foreign.make(foreign.CASES[case], vocab_size=probe.tokenizer.vocab_size)
    theirs.save_pretrained(tmp_path)
    model, _ = huggingface.load(tmp_path)
    report = measure_heads(replace(probe, model=model.eval()), align=False)  # type: ignore[arg-type]
    layers = {"marian": 3 + 2 * 2, "t5": 3 + 2 * 2}.get(case, 3)
    assert len(report.cards) == 4 * layers
    for card in report.cards:
        assert all(np.isfinite(one.value) for one in card.metrics.values())
        assert 0 < card.metrics["evenness"].value <= 1.0001


def test_induction_is_measured_on_repeated_random_tokens(runs: dict[str, Path]) -> None:
    """A head that looks at what followed the last occurrence has a score of one."""
    probe = open_probe_set(runs["generate"], device="cpu")
    period = min(head_cards.PERIOD, (probe.max_length - 1) // 2)

    def look_back(head: Any) -> Tensor:
        """All weight on the token after the one that is a period before."""
        wanted_bn = (head.q_positions_bn - period + 1).clamp(min=0)
        weights = torch.zeros_like(head.weights_bnm)
        return weights.scatter(-1, wanted_bn[..., None], 1.0)

    first = list_heads(probe.model)[0]
    with edit_attention(probe.model, {first: look_back}):
        report = measure_heads(probe)
    card = report.cards[0]
    assert card.metrics["induction"].value == pytest.approx(1)
    assert card.name == "induction"
    assert report.cards[1].metrics["induction"].value < 0.5


def test_probing_changes_nothing(runs: dict[str, Path]) -> None:
    probe = open_probe_set(runs["translate"], device="cpu", limit=10)
    before = {name: tensor.clone() for name, tensor in probe.model.state_dict().items()}
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
    measure_heads(probe)
    assert all(torch.equal(tensor, before[k]) for k, tensor in probe.model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])  # type: ignore[index]


# ---------------------------------------------------------------------------------------- names


def estimate(value: float, half: float = 0.01) -> Estimate:
    return Estimate(value, Interval.around(value, half))


def test_the_first_rule_that_holds_for_the_whole_interval_names() -> None:
    assert name_head({"previous": estimate(0.6), "first": estimate(0.7)}) == "previous token"
    assert name_head({"previous": estimate(0.51, 0.02), "first": estimate(0.7)}) == "first token"
    assert name_head({"previous": Estimate(0.51, None)}) == "previous token"
    assert name_head({GOLD_ERROR: estimate(0.1), "previous": estimate(0.9)}) == "alignment"
    assert name_head({GOLD_ERROR: estimate(0.5), "evenness": estimate(0.95)}) == "broad"
    assert name_head({ALIGNER_ERROR: estimate(0.1)}) == "alignment"
    assert name_head({GOLD_ERROR: estimate(0.5), ALIGNER_ERROR: estimate(0.1)}) == "mixed"
    assert name_head({"same": estimate(0.4)}) == "mixed"
    assert name_head({}) == "mixed"


@given(st.sampled_from(RULES), st.floats(0, 1), st.floats(0.001, 0.2))
def test_a_rule_needs_its_interval_beyond_the_threshold(
    rule: Rule, value: float, half: float
) -> None:
    beyond = value + half < rule.threshold if rule.below else value - half > rule.threshold
    assert rule.holds(estimate(value, half)) == beyond


# -------------------------------------------------------------------------------------- command


def invoke(*arguments: str) -> str:
    answer = CliRunner().invoke(app, ["heads", *arguments, "--device", "cpu"])
    if answer.exception is not None and not isinstance(answer.exception, SystemExit):
        raise answer.exception
    return answer.stdout


@pytest.mark.parametrize("task", ["translate", "classify", "generate"])
def test_the_command_prints_tables_of_80_columns(
    runs: dict[str, Path], task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = invoke(str(runs[task]), "--out", str(tmp_path / "heads.png"), "--limit", "20")
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "…" not in out
    assert "(uniform)" in out
    assert (tmp_path / "heads.png").stat().st_size > 5000


def test_the_command_prints_json(runs: dict[str, Path]) -> None:
    result = json.loads(invoke(str(runs["translate"]), "--split", "test", "--json"))
    assert (result["set_name"], result["examples"], result["task"]) == ("test", 30, "translate")
    places = [(one["kind"], one["layer"], one["head"]) for one in result["heads"]]
    assert places[0] == ("encoder", 1, 1)
    assert places[-1] == ("cross", 1, 2)
    one = result["heads"][-1]["metrics"]
    assert set(one) <= set(result["describe"])
    assert one["alignment_error"]["low"] < one["alignment_error"]["value"]
    assert {rule["name"] for rule in result["rules"]} >= {"alignment", "induction", "broad"}


def test_files_of_ones_own_with_gold_links(runs: dict[str, Path], tmp_path: Path) -> None:
    sentences = list(synthetic.generate_sentences("test", 12))
    lines = {
        "x.en": [s.english for s in sentences],
        "x.fr": [s.french for s in sentences],
        "x.align": [" ".join(f"{i}-{j}" for i, j in s.alignment) for s in sentences],
    }
    for name, content in lines.items():
        (tmp_path / name).write_text("\n".join(content) + "\n", encoding="utf-8")
    files = ["--test", str(tmp_path / "x.en"), "--test", str(tmp_path / "x.fr")]
    gold = ["--gold", str(tmp_path / "x.align"), "--json"]
    result = json.loads(invoke(str(runs["translate"]), *files, *gold))
    same = json.loads(invoke(str(runs["translate"]), "--split", "test", "--limit", "12", "--json"))
    for mine, theirs in zip(result["heads"], same["heads"], strict=True):
        assert mine["metrics"].get("alignment_error") == theirs["metrics"].get("alignment_error")
    (tmp_path / "x.align").write_text("0-0\n0-99\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"'0-99' links no words .*words"):
        invoke(str(runs["translate"]), *files, *gold)
    (tmp_path / "x.align").write_text("0-0\n", encoding="utf-8")
    with pytest.raises(DataError, match="ends before line 2"):
        invoke(str(runs["translate"]), *files, *gold)


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["--align", "--ablate"], "two questions"),
        (["--how", "zero"], "belong to --ablate"),
        (["--align", "--out", "x.png"], "draws no figure"),
        (["--gold", "x"], "name them with --test"),
        (["--out", "x.txt"], "ends in .png"),
        (["--limit", "0"], "at least one text"),
        (["--split", "tset"], "Did you mean 'test'"),
    ],
)
def test_options_that_make_no_sense(runs: dict[str, Path], flags: list[str], what: str) -> None:
    with pytest.raises(HeedError, match=what):
        invoke(str(runs["translate"]), *flags)


def test_what_other_tasks_do_not_have(runs: dict[str, Path], tmp_path: Path) -> None:
    gold, text = tmp_path / "gold", runs["text"]
    gold.write_text("0-0\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="--gold is for translators"):
        invoke(str(runs["generate"]), "--test", str(text / "test.en"), "--gold", str(gold))
    with pytest.raises(ConfigError, match="--align is for translators"):
        invoke(str(runs["classify"]), "--align", "--split", "dev")
    with pytest.raises(ConfigError, match=r"--align is for translators.*'generate'"):
        invoke(str(runs["generate"]), "--align")  # it has no test set
    probe = probe_with(runs["generate"], family="lstm")
    with pytest.raises(RunError, match="no attention heads"):
        measure_heads(probe)


def test_a_text_longer_than_the_model_reads_is_cut(runs: dict[str, Path], tmp_path: Path) -> None:
    """It counts for self-attention, and not for alignment."""
    for side in ("en", "fr"):
        text = "The cat. \n" * 11 + "The dog sees the cat. " * 40
        (tmp_path / f"long.{side}").write_text(text + "\n", encoding="utf-8")
    files = [str(tmp_path / f"long.{side}") for side in ("en", "fr")]
    probe = open_probe_set(runs["translate"], test=files, device="cpu")
    report = measure_heads(probe)
    assert (report.examples, report.cut) == (12, 1)
    assert max(one.length for one in probe.examples()) == probe.max_length
    console = PlainConsole(width=80, record=True, file=StringIO())
    console.print(render_heads(report))
    assert "1 of 12 examples was cut" in console.export_text()


def test_ten_texts_make_intervals(runs: dict[str, Path]) -> None:
    few = measure_heads(open_probe_set(runs["classify"], limit=9, device="cpu"))
    assert all(one.interval is None for card in few.cards for one in card.metrics.values())
    enough = measure_heads(open_probe_set(runs["classify"], limit=10, device="cpu"))
    assert enough.cards[0].metrics["same"].interval is not None
    assert draw_heads(few) is not None


def test_sides_of_the_set_are_read_in_order(runs: dict[str, Path]) -> None:
    probe = open_probe_set(runs["translate"], test=sides(runs["text"], "test"), device="cpu")
    lines = (runs["text"] / "test.en").read_text(encoding="utf-8").splitlines()
    assert [one.texts[0] for one in probe.examples()] == lines
