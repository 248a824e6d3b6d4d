"""What edits do to an output, and pairs of heads, through the commands and from Python."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from evaluating import invoke_command, train_small

import heed
from heed.errors import ConfigError
from heed.probe.attention_maps import AttentionMap
from heed.probe.head_matching import match_heads
from heed.probe.patch import edit_attention
from heed.probe.patched_output import parse_patches, patch_output

TEXT, OTHER = "The old woman sees the cat.", "A dog sleeps."


attend = partial(invoke_command, "attend")


@pytest.fixture(scope="module")
def runs(text: Path, run: Path) -> dict[str, Path]:
    """A small run of each task."""
    others = {"classify": "labels", "generate": "writer"}
    small = {task: train_small(text, task, name) for task, name in others.items()}
    return {"translate": run} | small


@pytest.mark.parametrize("task", ["translate", "classify", "generate"])
def test_an_edit_moves_the_output_of_every_task(runs: dict[str, Path], task: str) -> None:
    """Probabilities before are the model's own, those after what it says within the edit."""
    model = heed.load(runs[task], device="cpu")
    kind = "encoder" if task == "classify" else "decoder"
    edits = parse_patches(model, [f"{kind}.1.*=previous"])
    output = patch_output(model, edits, TEXT)
    assert 0 < output.moved <= 1
    assert output.largest_logit_change > 0
    assert all(0 <= one.before <= 1 and 0 <= one.after <= 1 for one in output.predictions)
    if isinstance(model, heed.Translator):
        assert output.before == model.translate([TEXT])[0]
        with edit_attention(model.model, edits):
            assert output.after == model.translate([TEXT])[0]
    if isinstance(model, heed.Classifier):
        (before,) = model.probabilities([TEXT])
        with edit_attention(model.model, edits):
            (after,) = model.probabilities([TEXT])
        for one in output.predictions:
            assert abs(one.before - before[one.name]) <= 1e-6
            assert abs(one.after - after[one.name]) <= 1e-6
    if isinstance(model, heed.LanguageModel):
        with edit_attention(model.model, edits):
            logits = model.trace(TEXT).logits[0, -1].double().softmax(-1)
        assert max(one.after for one in output.predictions) == pytest.approx(float(logits.max()))


def test_a_head_takes_the_weights_of_another_sentence(runs: dict[str, Path]) -> None:
    model = heed.load(runs["translate"], device="cpu")
    edits = parse_patches(model, ["cross.1.2"], OTHER)
    given = model.attention(OTHER).get("cross").weights[0][1]
    ((head, edit),) = edits.items()
    assert head == ("cross", 0, 1)
    assert np.array_equal(np.asarray(edit), given)
    with edit_attention(model.model, edits):
        edited = model.attention(TEXT).get("cross").weights[0]
    rows = slice(0, min(len(given), edited.shape[1]))
    columns = slice(0, min(given.shape[1], edited.shape[2]))
    if given.shape[1] <= edited.shape[2]:
        assert np.allclose(edited[1, rows, columns], given[rows, columns], atol=1e-6)


def test_attend_patch_prints_before_and_after(runs: dict[str, Path], tmp_path: Path) -> None:
    run = str(runs["translate"])
    code, printed = attend(
        run, TEXT, "--patch", "cross.1.*=uniform", "--out", f"{tmp_path}/map.json"
    )
    assert code == 0, printed
    assert "before" in printed
    assert "after" in printed
    (cross,) = (
        one
        for one in json.loads((tmp_path / "map.json").read_text(encoding="utf-8"))["maps"]
        if one["kind"] == "cross"
    )
    weights = np.array(cross["weights"])
    assert np.allclose(weights, 1 / weights.shape[-1], atol=1e-6)
    code, printed = attend(run, TEXT, "--patch", "cross.1.1=first", "--json")
    assert code == 0
    assert json.loads(printed)["edits"] == ["cross.1.1=first"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--patch", "cross.1.1"], "write cross.1.1=uniform"),
        (["--patch", "foo"], "=uniform"),
        (["--patch", "cross.1.1=zero", "--patch-from", "x"], "--patch-from is not used"),
        (["--patch", "cross.1.3=zero"], "heads 1 to 2"),
        (["--patch", "cross.1.1=diagnal"], "Did you mean 'diagonal'"),
        (["--against", "nowhere"], "no run here"),
        (["--check", "--patch", "cross.1.1=zero"], "give one of them"),
        (["--against-weights", "7"], "no weights '7'"),
    ],
)
def test_wrong_options_are_one_sentence(
    runs: dict[str, Path], arguments: list[str], says: str
) -> None:
    code, printed = attend(str(runs["translate"]), TEXT, *arguments)
    assert code == 2
    assert says in " ".join(printed.split())


def test_a_model_is_paired_with_itself(runs: dict[str, Path], tmp_path: Path) -> None:
    run = str(runs["translate"])
    code, printed = attend(run, TEXT, OTHER, "--against", run, "--json")
    assert code == 0, printed
    for one in json.loads(printed):
        assert one["similarity"] == pytest.approx(1)
        assert all(pair["first"] == pair["second"] for pair in one["pairs"])
    code, printed = attend(run, TEXT, "--against", run, "--out", str(tmp_path / "pairs.svg"))
    assert code == 0, printed
    assert {path.name for path in tmp_path.iterdir()} == {
        f"pairs-{kind}.svg" for kind in ("cross", "decoder", "encoder")
    }
    pair = ["--kind", "cross", "--layer", "1", "--head", "2", "--out", str(tmp_path / "one.svg")]
    assert attend(run, TEXT, "--against", run, *pair)[0] == 0
    assert (tmp_path / "one.svg").exists()
    code, printed = attend(run, TEXT, "--against", run, "--kind", "cross")
    assert "Mean similarity 1.000 in pairs" in " ".join(printed.split())


def test_models_of_other_tasks_cannot_be_paired(runs: dict[str, Path]) -> None:
    code, printed = attend(str(runs["translate"]), TEXT, "--against", str(runs["classify"]))
    assert code == 2
    assert "models of one task" in printed


def test_heads_are_paired_whatever_their_order(runs: dict[str, Path]) -> None:
    """The same model with its heads swapped is matched head by head, over words or tokens."""
    one = heed.load(runs["translate"], device="cpu").attention(TEXT).get("encoder")
    swapped = AttentionMap(
        one.kind, one.queries, one.keys, [layer[::-1] for layer in one.weights], one.visible
    )
    matching = match_heads([one, one.by_word()], [swapped, swapped.by_word()])
    assert {(m.first.head, m.second.head) for m in matching.matches} == {(0, 1), (1, 0)}
    assert matching.similarity == pytest.approx(1)
    assert matching.by_number is not None
    assert matching.by_number < 1


def test_only_patchable_models_are_patched(runs: dict[str, Path]) -> None:
    model = heed.load(runs["classify"], device="cpu")
    with pytest.raises(ConfigError, match="no 'cross' attention"):
        parse_patches(model, ["cross.1.1=zero"])
