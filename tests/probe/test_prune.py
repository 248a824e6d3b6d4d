"""A pruned model is the model with its heads silenced, in a smaller run that all commands take."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from evaluating import evaluate_small, invoke_command, sides
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from support import ATTENDING, VARIANTS, apart, new_translator, padded, texts, translator
from torch import Tensor

from heed import Translator as Mt
from heed.config import ModelConfig, Recipe
from heed.decode import plain
from heed.decode.beam import Beam
from heed.decode.search import Search
from heed.errors import ConfigError, HeedError, RunError
from heed.export import export
from heed.models import Translator, build
from heed.nn.merges import Merge
from heed.probe.alignment_heads import choose_alignment_heads
from heed.probe.attention_maps import map_batch
from heed.probe.examples import open_probe_set
from heed.probe.map_figure import draw_maps
from heed.probe.map_output import render_links
from heed.probe.patch import ZERO, Head, edit_attention, list_heads
from heed.probe.prune import PrunedRun, prune_model, prune_run
from heed.probe.text_trace import InputTokens, TokenLabels
from heed.runs.run import Run
from heed.train import run as train_run
from heed.train.prepare.init_from import resolve_init

SOURCE_BM, REAL_BM = padded(texts([5, 2, 7]), left=[1, 3, 0], right=2)
TARGET_BN, TARGET_REAL = padded(texts([4, 6, 3], seed=1), left=[2, 0, 1])
REMOVED = [
    *(Head("encoder", 0, head) for head in (0, 3)),
    *(Head("encoder", 1, head) for head in range(4)),
    *(Head("decoder", 0, head) for head in (1, 2)),
    *(Head("cross", 0, head) for head in (0, 1, 2, 3)),
    *(Head("cross", 1, head) for head in (1, 3)),
]
GROUPED = [Head("encoder", 0, 0), Head("encoder", 0, 1), Head("cross", 1, 0), Head("cross", 1, 2)]
"""A whole group of two, and one head of each."""
ONE_GROUP = [Head("encoder", 0, 1), Head("decoder", 1, 0), Head("cross", 0, 3)]


def heads_of(variant: str) -> list[Head]:
    return {"grouped": GROUPED, "one-group": ONE_GROUP}.get(variant, REMOVED)


def logits(model: Translator) -> Tensor:
    """Those of real tokens. At padding `reweight` has equal shares, which depend on the number."""
    with torch.no_grad():
        return model(SOURCE_BM, TARGET_BN, mask=REAL_BM, target_mask=TARGET_REAL)[TARGET_REAL]


@pytest.mark.parametrize("variant", ATTENDING)
def test_a_pruned_model_is_the_model_with_silent_heads(variant: str) -> None:
    """Every position and merge; layers that lose some heads, all of them, or none."""
    model, heads = translator(variant), heads_of(variant)
    pruned = prune_model(model, heads)
    assert isinstance(pruned, Translator)
    with edit_attention(model, dict.fromkeys(heads, ZERO)):
        assert apart(logits(pruned), logits(model)) <= 1e-5
    assert len(list_heads(pruned)) == len(list_heads(model)) - len(heads)
    smaller = sum(p.numel() for p in pruned.parameters())
    assert smaller < sum(p.numel() for p in model.parameters())


@settings(max_examples=10)
@given(st.data())
def test_any_heads_may_go_and_more_after_them(data: st.DataObject) -> None:
    """Pruning twice is pruning once: heads are counted among those that are left."""
    model = translator("alibi-shift")
    everything = list_heads(model)
    heads = data.draw(st.lists(st.sampled_from(everything), min_size=2, unique=True))
    together, first = prune_model(model, heads), prune_model(model, heads[:1])
    gone = heads[0]
    later = [
        head._replace(head=head.head - 1)
        if head[:2] == gone[:2] and head.head > gone.head
        else head
        for head in heads[1:]
    ]
    twice = prune_model(first, later)
    assert twice.config.kept_heads == together.config.kept_heads
    for name, tensor in together.state_dict().items():
        assert torch.equal(tensor, twice.state_dict()[name])


@pytest.mark.parametrize("variant", ["rope-concat", "t5-concat", "shaw-values", "grouped"])
def test_a_pruned_model_decodes_with_a_cache(variant: str) -> None:
    pruned = prune_model(translator(variant), heads_of(variant))
    assert isinstance(pruned, Translator)
    sources = [ids.tolist() for ids in texts([5, 1, 8])]
    strategy = Beam(2, nbest=1, coverage_penalty=0.0)
    results = Search([pruned], strategy).translate(sources, max_ratio=1.0, max_extra=2)
    for source, (one,) in zip(sources, results, strict=True):
        expected = plain.beam_search(
            plain.translation_logprobs(pruned, source), 2, len(source) + 2
        )[0]
        assert one.ids == expected.ids
        assert abs(one.logprob - expected.logprob) <= 1e-4


def test_coverage_works_without_any_cross_attention() -> None:
    model = translator("rope-concat")
    pruned = prune_model(model, [head for head in list_heads(model) if head.kind == "cross"])
    assert isinstance(pruned, Translator)
    (hypotheses,) = Search([pruned], Beam(2, coverage_penalty=0.3)).translate([[5, 6, 7]])
    assert hypotheses[0].logprob < 0


@pytest.mark.parametrize("variant", ["t5-concat", "alibi-reweight", "rope-shuffle", "modern"])
def test_a_pruned_model_trains(variant: str) -> None:
    """Gradients reach every parameter, and no dropout or fast kernel minds the heads it lacks."""
    model = new_translator(**VARIANTS[variant])
    pruned = prune_model(model, REMOVED[:-2]).train()
    pruned(SOURCE_BM, TARGET_BN, mask=REAL_BM, target_mask=TARGET_REAL).square().sum().backward()
    assert all(p.grad is not None for p in pruned.parameters())


def test_a_pruned_architecture_can_be_built_afresh() -> None:
    model = translator("t5-concat")
    config = prune_model(model, REMOVED).config
    assert {*build("translate", config, vocab=23).state_dict()} == {
        *prune_model(model, REMOVED).state_dict()
    }


# ------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        ({"crossed": [[1], [1]]}, "Did you mean 'cross'"),
        ({"encoder": [[1]]}, "lists the heads of 1 layers, and there are 2"),
        ({"decoder": [[1], [2, 1]]}, "layer 2: .* is no rising list of heads from 1 to 4"),
        ({"decoder": [[1], [1, 1]]}, "no rising list"),
        ({"decoder": [[0], [1]]}, "layer 1: .* no rising list"),
        ({"decoder": [[5], []]}, "no rising list"),
        ({"decoder": [["1"], []]}, "kept_heads"),
    ],
)
def test_kept_heads_of_a_recipe_are_checked(kept: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ModelConfig(layers=2, heads=4, kept_heads=kept)


def test_unequal_groups_are_refused() -> None:
    with pytest.raises(ConfigError, match="keep or remove the same number in every group"):
        prune_model(translator("grouped"), [Head("encoder", 0, 0)])


def test_an_lstm_and_kinds_of_another_task_are_refused() -> None:
    with pytest.raises(ConfigError, match="an LSTM attends by one head"):
        prune_model(new_translator(family="lstm"), [Head("cross", 0, 0)])
    config = ModelConfig(layers=1, heads=2, kept_heads={"cross": [[1]]})
    with pytest.raises(ConfigError, match="this model has encoder only"):
        build("classify", config, vocab=9, classes=2)
    with pytest.raises(ConfigError, match="no head to remove"):
        prune_model(translator("none-concat"), [])


def test_a_merge_that_cannot_be_pruned_exactly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that numbers its heads: a user's own, say."""

    def change(self: Merge, heads_bhnd: Tensor, real_bn: Tensor | None) -> Tensor:
        return heads_bhnd * torch.arange(1, 1 + heads_bhnd.shape[1])[:, None, None]

    monkeypatch.setattr(Merge, "change", change)
    with pytest.raises(ConfigError, match="Heads cannot be removed exactly"):
        prune_model(new_translator(), [Head("encoder", 0, 0)])


# ------------------------------------------------------------------------------------- whole runs

SENTENCES = ["The old woman sees the cat .", "A dog sleeps ."]


@pytest.fixture(scope="module")
def pruned_run(run: Path, tmp_path_factory: pytest.TempPathFactory) -> PrunedRun:
    heads = [
        Head("encoder", 0, 0),
        Head("cross", 0, 1),
        Head("decoder", 0, 0),
        Head("decoder", 0, 1),
    ]
    return prune_run(run, heads, tmp_path_factory.mktemp("pruned") / "smaller")


def test_a_pruned_run_translates_as_if_its_heads_were_silent(
    run: Path, pruned_run: PrunedRun
) -> None:
    whole, smaller = Mt.load(run, device="cpu"), Mt.load(pruned_run.run.folder, device="cpu")
    with edit_attention(whole.model, dict.fromkeys(pruned_run.removed, ZERO)):
        expected = whole.translations(SENTENCES, beam=2, alignments=True)
    for one, other in zip(
        smaller.translations(SENTENCES, beam=2, alignments=True), expected, strict=True
    ):
        assert one.text == other.text
    assert (pruned_run.heads, len(pruned_run.removed)) == (2, 4)
    assert "4 heads removed, 2 left" in pruned_run.describe()
    assert pruned_run.run.environment()["pruned_heads"][0] == "cross.1.2"


def test_a_pruned_run_is_evaluated_and_fine_tuned(text: Path, pruned_run: PrunedRun) -> None:
    folder = str(pruned_run.run.folder)
    assert evaluate_small(pruned_run.run.folder)
    recipe = Recipe.of(
        {
            "data": {"train": sides(text, "train")},
            "init": {"from": folder},
            "train": {"steps": 2, "batch_size": 8},
        }
    )
    tuned = train_run.start(recipe, text / "tuned", device="cpu", console=Console(quiet=True))
    assert tuned.recipe().model.kept_heads == pruned_run.run.recipe().model.kept_heads
    assert Mt.load(tuned.folder, device="cpu").translate(SENTENCES[:1])
    with pytest.raises(RunError, match="finished and has no checkpoint to train on from"):
        train_run.resume(
            Path(folder),
            overrides=["train.steps=50"],
            device="cpu",
            console=Console(quiet=True),
        )
    other = Recipe.of(
        {"task": "classify", "data": recipe.data.model_dump(), "init": {"from": folder}}
    )
    with pytest.raises(ConfigError, match="start from the run it was pruned from"):
        resolve_init(other)


@pytest.mark.parametrize("to", ["hf", "ctranslate2", "onnx"])
def test_formats_with_the_same_heads_in_every_layer_refuse(
    pruned_run: PrunedRun, tmp_path: Path, to: str
) -> None:
    with pytest.raises(HeedError, match=r"heads in every layer|not installed"):
        export(pruned_run.run.folder, tmp_path / "out", to=to)
    assert not (tmp_path / "out").exists()


heads_command = partial(invoke_command, "heads")


def test_maps_of_a_layer_without_heads(pruned_run: PrunedRun, tmp_path: Path) -> None:
    """The decoder's only layer lost both heads; cross-attention lost one of two."""
    maps = Mt.load(pruned_run.run.folder, device="cpu").attention(SENTENCES[0])
    assert maps.decoder is None
    assert maps.save(tmp_path / "cross.png", "cross").exists()
    for head in (None, "mean", 0):
        with pytest.raises(HeedError, match="this model has no decoder attention"):
            maps.save(tmp_path / "decoder.png", "decoder", head=head)
    with pytest.raises(HeedError, match="It has cross and encoder"):
        render_links(maps, "decoder")


def test_a_layer_without_heads_beside_one_with_heads() -> None:
    pruned = prune_model(translator("rope-concat"), [Head("cross", 1, i) for i in range(4)])
    read = InputTokens([1, 5, 2], TokenLabels(["a", "b", "c"], [0, 1, 2], ["a", "b", "c"]), "a b c")
    (maps,) = map_batch(pruned, [read], [read])
    draw_maps(maps, "cross")
    draw_maps(maps, "cross", head="mean")  # of layer 1, the last with heads
    for head in (None, "mean", 0):
        with pytest.raises(HeedError, match="no heads in layer 2: all were pruned"):
            draw_maps(maps, "cross", 1, head)


def test_heads_prune_writes_a_run(run: Path, tmp_path: Path) -> None:
    named, cheapest = str(tmp_path / "named"), str(tmp_path / "cheapest")
    code, printed = heads_command(str(run), "--prune", "cross.1.2", "--run", named)
    assert (code, "1 heads removed, 5 left" in printed) == (0, True), printed
    ablate = ["--ablate", "--limit", "12", "--prune", "2", "--run", cheapest]
    code, printed = heads_command(str(run), *ablate)
    assert (code, "2 heads removed, 4 left" in printed) == (0, True), printed
    assert Run.open(cheapest).finished


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--prune", "cross.1.2"], "name its folder with --run"),
        (["--run", "x"], "say what to remove by --prune"),
        (["--prune", "2", "--run", "x"], "with --ablate one number"),
        (["--prune", "cross.1.1", "--prune", "2", "--run", "x"], "with --ablate one number"),
        (["--ablate", "--how", "mean", "--prune", "2", "--run", "x"], "rank them by --how zero"),
        (["--prune", "cross.1.5", "--run", "x"], "heads 1 to 2"),
    ],
)
def test_pruning_flags_that_lack_something_are_refused(
    run: Path, arguments: list[str], says: str
) -> None:
    code, printed = heads_command(str(run), *arguments)
    assert code == 2
    assert says in printed


def test_nothing_is_written_where_pruning_fails(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="heads 1 to 2"):
        prune_run(run, [Head("encoder", 0, 2)], tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(RunError, match="there is a run here already"):
        prune_run(run, [Head("encoder", 0, 0)], run)


def test_a_model_without_cross_attention_heads_can_be_looked_into(
    run: Path, tmp_path: Path
) -> None:
    """Maps, figures, cards and ablation leave out what was pruned; what needs it says so."""
    pruned = prune_run(run, ["cross.1.*"], tmp_path / "new").run.folder
    maps = Mt.load(pruned, device="cpu").attention("Le chat.", "The cat.")
    assert (maps.cross, [one.kind for one in maps.maps]) == (None, ["decoder", "encoder"])
    maps.save(tmp_path / "map.png")
    maps.show()
    code, printed = heads_command(str(pruned), "--limit", "12", "--json")
    assert code == 0, printed
    cards = json.loads(printed[printed.index("{") :])["heads"]
    assert {card["kind"] for card in cards} == {"encoder", "decoder"}
    probe = open_probe_set(pruned, limit=12, device="cpu")
    with pytest.raises(ConfigError, match="all of its heads were pruned"):
        choose_alignment_heads(probe, probe)
