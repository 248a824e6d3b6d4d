"""Ablation: silenced heads change the score as an edit by hand does, the same way every time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support import tiny
from torch.nn import functional as F
from typer.testing import CliRunner

from heed.cli.main import app
from heed.errors import ConfigError, DataError
from heed.metrics.corpus_bleu import bleu
from heed.models import Classifier, LanguageModel, Translator, build
from heed.probe import ablate
from heed.probe.ablate import HOWS, METRICS, Scorer, ablate_heads, compare_counts, order_greedily
from heed.probe.examples import ProbeSet, open_probe_set
from heed.probe.head_figures import draw_costs, draw_removals
from heed.probe.patch import Head, edit_attention, list_heads

TASKS = ("translate", "classify", "generate")


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coarse joint distribution: what is tested here does not depend on its digits."""
    monkeypatch.setattr(ablate, "FAMILY_DRAWS", 40_000)
    monkeypatch.setattr(ablate, "CANDIDATES", 3)


def probe_of(runs: dict[str, Path], task: str, limit: int = 11) -> ProbeSet:
    return open_probe_set(runs[task], limit=limit, device="cpu")


def plain_losses(probe: ProbeSet) -> list[float]:
    """The loss of each example, one at a time, from the model's logits."""
    losses, model = [], probe.model
    for one in probe.examples():
        ids = torch.tensor([one.ids])
        if isinstance(model, Translator):
            logits = model(torch.tensor([one.source]), ids)[0]
        else:
            logits = model(ids)[0]
        targets = torch.tensor(one.targets)
        logits = logits[None] if isinstance(model, Classifier) else logits
        losses.append(float(F.cross_entropy(logits, targets, reduction="sum")))
    return losses


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("how", ["zero", "uniform"])
def test_counts_are_those_of_an_edited_model(runs: dict[str, Path], task: str, how: str) -> None:
    probe = probe_of(runs, task)
    scorer, heads = Scorer(probe, how), list_heads(probe.model)[1:]
    with torch.no_grad():
        assert np.allclose(scorer.counts("loss")[:, 0], plain_losses(probe), atol=1e-3)
        with edit_attention(probe.model, dict.fromkeys(heads, how)):
            expected = plain_losses(probe)
    assert np.allclose(scorer.counts("loss", heads)[:, 0], expected, atol=1e-3)
    tokens = [len(one.targets) for one in scorer.examples]
    assert scorer.counts("loss", heads)[:, 1].tolist() == tokens


def test_the_mean_is_that_of_the_examples(runs: dict[str, Path]) -> None:
    """A head whose output is always the same loses nothing by its mean."""
    probe = probe_of(runs, "generate")
    scorer = Scorer(probe, "mean")
    head, *_ = list_heads(probe.model)
    silenced = scorer.counts("loss", [head])
    assert not np.allclose(silenced, scorer.counts("loss"))
    with edit_attention(probe.model, {head: torch.ones(16)}):
        constant = Scorer(probe, "mean")
        assert np.allclose(constant.counts("loss", [head]), constant.counts("loss"), atol=1e-4)


def test_bleu_is_that_of_greedy_translations(runs: dict[str, Path]) -> None:
    probe = probe_of(runs, "translate", limit=6)
    scorer = Scorer(probe)
    found = float(METRICS["bleu"].function(scorer.counts("bleu").sum(axis=0)))
    from heed.api import Translator as Front

    texts = [one.texts for one in probe.examples()]
    translations = Front.load(probe.run.folder, device="cpu").translate(
        [source for source, _ in texts], beam=1
    )
    assert found == pytest.approx(bleu(translations, [target for _, target in texts]).score)


def test_a_masked_language_model_is_scored_on_masked_tokens(runs: dict[str, Path]) -> None:
    probe = probe_of(runs, "generate")
    model = build("generate", tiny(), vocab=probe.tokenizer.vocab_size, causal=False)
    assert isinstance(model, LanguageModel)
    scorer = Scorer(replace(probe, model=model.eval()))
    whole, again = scorer.counts("loss"), scorer.counts("loss")
    assert np.array_equal(whole, again)
    lengths = np.array([len(one.ids) for one in scorer.examples])
    assert (whole[:, 1] >= 1).all()
    assert whole[:, 1].sum() < 0.5 * lengths.sum()


def test_too_few_examples_for_intervals_are_refused(runs: dict[str, Path]) -> None:
    with pytest.raises(DataError, match="6 examples give no intervals: take at least 10"):
        ablate_heads(probe_of(runs, "translate", limit=6))


@pytest.mark.parametrize("how", HOWS)
def test_the_same_answer_every_time(runs: dict[str, Path], how: str) -> None:
    """Reproducible to the digit, and the model is as it was."""
    probe = probe_of(runs, "translate")
    before = {name: tensor.clone() for name, tensor in probe.model.state_dict().items()}
    first = ablate_heads(probe, how=how)
    second = ablate_heads(probe_of(runs, "translate"), how=how)
    assert json.dumps(first.to_dict()) == json.dumps(second.to_dict())
    assert all(torch.equal(tensor, before[k]) for k, tensor in probe.model.state_dict().items())
    heads = set(list_heads(probe.model))
    assert {cost.head for cost in first.costs} == {step.head for step in first.removals} == heads
    differences = [cost.change.difference for cost in first.costs]
    assert differences == sorted(differences, reverse=True)
    for cost in (*first.costs, *first.removals):
        change = cost.change
        assert change.value - first.whole == pytest.approx(change.difference)
        assert change.interval.center == pytest.approx(change.difference)
        is_shown = change.interval.low > 0 or change.interval.high < 0
        assert is_shown == (change.p < 0.05) or abs(change.p - 0.05) < 0.02


def test_all_heads_removed_is_the_end_of_the_curve(runs: dict[str, Path]) -> None:
    probe = probe_of(runs, "classify")
    ablation = ablate_heads(probe, metric="accuracy")
    counts = Scorer(probe).counts("accuracy", list_heads(probe.model))
    last = ablation.removals[-1].change.value
    assert last == float(METRICS["accuracy"].function(counts.sum(axis=0)))
    assert draw_costs(ablation) is not None
    assert draw_removals(ablation) is not None


def test_greedy_removal_takes_the_cheapest(runs: dict[str, Path]) -> None:
    probe = probe_of(runs, "translate")
    scorer, heads = Scorer(probe), list_heads(probe.model)

    def loss(silenced: list[Head]) -> float:
        return float(METRICS["loss"].function(scorer.counts("loss", silenced).sum(axis=0)))

    order = order_greedily(scorer, heads[: ablate.CANDIDATES])
    assert loss(order[:1]) == min(loss([head]) for head in heads[: ablate.CANDIDATES])
    second = [[order[0], head] for head in order[1:]]
    assert loss(order[:2]) == min(map(loss, second))


def test_paired_differences_are_narrower_than_scores() -> None:
    """The same examples: what they have in common cancels."""
    random = np.random.default_rng(0)
    tokens = random.integers(5, 30, 200).astype(float)
    whole = np.stack([tokens * random.gamma(2, 1, 200), tokens], axis=1)
    worse = whole + np.stack([0.1 * tokens + random.normal(0, 0.1, 200), np.zeros(200)], axis=1)
    change, same = compare_counts(METRICS["loss"], whole, [worse, whole])
    assert change.difference == pytest.approx(0.1, abs=0.01)
    assert 0.09 < change.interval.low < change.interval.high < 0.11
    assert (same.difference, same.p) == (0.0, 1.0)


def test_windows_of_one_text_are_a_cluster() -> None:
    """Copies of every example make no interval narrower."""
    random = np.random.default_rng(1)
    whole = np.stack([random.gamma(2, 1, 40), np.ones(40)], axis=1)
    worse = whole + np.stack([random.normal(0.2, 0.3, 40), np.zeros(40)], axis=1)
    (once,) = compare_counts(METRICS["loss"], whole, [worse])
    copies = [np.repeat(counts, 3, axis=0) for counts in (whole, worse)]
    (copied,) = compare_counts(METRICS["loss"], copies[0], [copies[1]], np.repeat(range(40), 3))
    assert copied.interval.low == pytest.approx(once.interval.low)
    assert copied.interval.high == pytest.approx(once.interval.high)


def test_the_command(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    flags = ["--ablate", "--limit", "10", "--device", "cpu", "--how", "uniform"]
    command = ["heads", str(runs["translate"]), *flags]
    out = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "cost.svg")])
    assert out.exit_code == 0, out.output
    assert all(len(line) <= 80 for line in out.stdout.splitlines())
    assert "Heads removed one after another" in out.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"cost.svg", "cost-curve.svg"}
    result = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert len(result["heads"]) == len(result["removals"]) == 6
    assert min(one["layer"] for one in result["heads"]) == 1
    assert result["metric"] == "loss"


@pytest.mark.parametrize(
    ("task", "flags", "what"),
    [
        ("translate", ["--how", "zeros"], "Did you mean 'zero'"),
        ("translate", ["--metric", "accuracy"], "scored by loss or bleu"),
        ("classify", ["--metric", "bleu"], "scored by loss or accuracy"),
    ],
)
def test_wrong_options(runs: dict[str, Path], task: str, flags: list[str], what: str) -> None:
    answer = CliRunner().invoke(app, ["heads", str(runs[task]), "--ablate", *flags])
    assert isinstance(answer.exception, ConfigError)
    assert what in str(answer.exception)
