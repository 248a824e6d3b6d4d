"""Beginning from another model: what is taken, what is new, what stays, and at which rates."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st
from killing import FOUND, dies_at, outcome
from rich.console import Console
from safetensors.torch import load_file
from support import apart, fresh
from torch import Tensor

from heed.config import Recipe
from heed.config.checks import find_conflicts
from heed.config.train import OPTIMIZERS
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import ConfigError, HeedError, RunError
from heed.models import Classifier
from heed.models.layer_index import layer_indices
from heed.nn.tokens import Tokens
from heed.runs.load import load_run
from heed.runs.run import Run
from heed.train import estimate, resolve
from heed.train import run as train_run
from heed.train.build_loop import build_loop
from heed.train.optimizers.build import (
    OptimizerSettings,
    build_optimizer,
    describe_rates,
    set_lr,
)
from heed.train.prepare.init_from import resolve_init
from heed.train.prepare.setup import prepare
from heed.train.validate import validate

ROOT = Path(__file__).resolve().parents[2]
QUIET = Console(quiet=True)
CPU = torch.device("cpu")
TASKS = ("translate", "classify", "generate")
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
        ],
    ),
]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lines, the same with a label that says whether there is an "a", and the same backwards."""
    folder, draw = tmp_path_factory.mktemp("text"), random.Random(0)
    lines = [" ".join(draw.choices("abcdefgh", k=draw.randint(3, 9))) for _ in range(120)]
    labeled = [f"{'with' if 'a' in line else 'without'}\t{line}" for line in lines]
    (folder / "a.tsv").write_text("\n".join(labeled))
    (folder / "a.txt").write_text("\n".join(lines))
    (folder / "a.back").write_text("\n".join(line[::-1] for line in lines))
    return folder


def no_curves(run: Run) -> None:
    """Figures take longer than these runs."""


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEED_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(train_run, "draw_curves", no_curves)
        yield


def make_recipe(text: Path, task: str, **tables: Any) -> Recipe:
    names = {"classify": ["a.tsv"], "generate": ["a.txt"], "translate": ["a.txt", "a.back"]}[task]
    train = {"steps": 6, "batch_size": 16, "warmup": 2, "evaluate_every": 3, "lr": 1e-2}
    train |= {"checkpoint_every": 2, "log_every": 2} | tables.pop("train", {})
    data: dict[str, Any] = {"train": [str(text / name) for name in names]}
    if "data_length" in tables:
        data["max_length"] = tables.pop("data_length")
    return Recipe.of({"task": task, "data": data, "train": train, **tables})


def trained(recipe: Recipe, folder: Path, device: str = "cpu") -> Run:
    return train_run.start(recipe, folder, device=device, console=QUIET)


MODEL = {"layers": 2, "width": 16, "heads": 2, "dropout": 0.1, "feed_forward": 24}
ORIGINS: dict[str, dict[str, Any]] = {
    "masked": {"task": "generate", "train": {"objective": "masked"}},
    "next": {"task": "generate", "model": {"tie_embeddings": False}},
    "classify": {"task": "classify"},
    "translate": {"task": "translate", "model": {"tie_embeddings": False}},
    "translate-tied": {"task": "translate"},
    "grams": {
        "task": "classify",
        "model": {"ngrams": 2, "ngram_buckets": 60, "ngram_log_count_ratio": 1.0},
    },
    "lstm": {"task": "generate", "model": {"family": "lstm", "feed_forward": None}},
}


@pytest.fixture(scope="module")
def origins(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of every kind, by name."""
    folder = tmp_path_factory.mktemp("origins")
    for name, settings in ORIGINS.items():
        model = MODEL | settings.get("model", {})
        tables = {"model": model, "tokenizer": {"kind": "word"}, "train": settings.get("train", {})}
        trained(make_recipe(text, settings["task"], **tables), folder / name)
    return folder


@pytest.fixture(scope="module")
def roberta(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as someone has it on disk: a small random RoBERTa, written by `transformers`."""
    transformers = pytest.importorskip("transformers")
    folder, names = tmp_path_factory.mktemp("roberta"), ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    core = tokenizers.ByteLevelBPETokenizer()
    core.train_from_iterator([(text / "a.txt").read_text()], 280, special_tokens=names)
    roles = ("bos", "pad", "eos", "unk", "mask")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core._tokenizer,
        **{f"{role}_token": name for role, name in zip(roles, names, strict=True)},
    )
    config = transformers.RobertaConfig(
        vocab_size=len(fast) + 3,  # rows that no id stands for, as many published models have
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=42,
        type_vocab_size=1,
    )
    torch.manual_seed(0)
    transformers.RobertaForMaskedLM(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


# ------------------------------------------------------------------------- what is taken over


def begun(recipe: Recipe, folder: Path) -> tuple[dict[str, Tensor], list[str]]:
    """The weights before the first update, and what was said of them."""
    said: list[str] = []
    whole, origin = resolve_init(recipe)
    run = Run.create(folder, whole)
    model = prepare(whole, run, device=CPU, say=said.append, pretrained=origin).model
    said = [line for line in said if not line.startswith("dev:")]
    return {name: weight.clone() for name, weight in model.state_dict().items()}, said


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", [name for name in ORIGINS if name != "lstm"])
def test_the_body_is_taken_and_the_head_of_another_task_is_new(
    text: Path, origins: Path, tmp_path: Path, name: str, task: str
) -> None:
    before = load_file(origins / name / "model.safetensors")
    recipe = make_recipe(text, task, init={"from": str(origins / name)})
    after, said = begun(recipe, tmp_path / "run")
    there = {"stack": "stack", "encoder": "encoder", "decoder": "decoder"}
    same = ORIGINS[name]["task"] == task
    if ORIGINS[name]["task"] == "translate" and not same:
        there = {"stack": "encoder" if task == "classify" else "decoder"}
    elif task == "translate" and not same:
        there = {"encoder": "stack", "decoder": "stack"}
    for own, weight in after.items():
        part, _, rest = own.partition(".")
        if part in there and ".cross" not in own:
            assert torch.equal(weight, before[f"{there[part]}.{rest}"]), own
    parts = {own.partition(".")[0] for own in after}
    expected = [part for part in ("head",) if part in parts and not same]
    expected = (["cross-attention"] if task == "translate" and not same else []) + expected
    (line,) = [line for line in said if line.startswith("Initialized from")]
    assert line.endswith(f"new: {', '.join(expected)}." if expected else "weights taken.")


def test_a_folder_of_transformers_is_taken_as_it_is(
    text: Path, roberta: Path, tmp_path: Path
) -> None:
    """The vectors below a new head are those that `transformers` computes."""
    transformers = pytest.importorskip("transformers")
    init, train = {"from": str(roberta)}, {"precision": "float32"}
    recipe = make_recipe(text, "classify", init=init, train=train, data_length=40)
    whole, origin = resolve_init(recipe)
    said: list[str] = []
    run = Run.create(tmp_path / "run", whole)
    parts = prepare(whole, run, device=CPU, say=said.append, pretrained=origin)
    batch = parts.sets["dev"].batch(parts.sets["dev"].plan_in_order(), 0)
    theirs = transformers.RobertaModel.from_pretrained(roberta, add_pooling_layer=False).eval()
    model = parts.model.eval()
    assert isinstance(model, Classifier)
    with torch.no_grad():
        tokens = Tokens.of(batch.ids, mask=batch.mask, positions=batch.positions)
        ours = model.states(batch.ids, tokens).x_bnw
        expected = theirs(batch.ids, attention_mask=batch.mask.long()).last_hidden_state
    assert apart(ours[batch.mask], expected[batch.mask]) <= 1e-5
    assert said[-1].endswith("new: head.")
    resolved = run.recipe().model
    assert (resolved.layers, resolved.norm_place, resolved.position) == (2, "post", "learned")


@pytest.mark.parametrize("init", [{}, {"freeze": "body"}, {"lora": 2, "lora_targets": "all"}])
def test_a_folder_of_transformers_is_tuned_by_the_same_command(
    text: Path, roberta: Path, tmp_path: Path, init: dict[str, Any]
) -> None:
    train = {"layer_decay": 0.8, "steps": 4}
    recipe = make_recipe(
        text, "classify", init={"from": str(roberta)} | init, train=train, data_length=40
    )
    run = trained(recipe, tmp_path / "run")
    _, tokenizer, _ = load_run(run.folder, device="cpu")
    assert tokenizer.fingerprint() == Tokenizer.load(roberta / "tokenizer.json").fingerprint()
    again = trained(run.recipe(), tmp_path / "again")
    assert outcome(again) == outcome(run)


def test_a_folder_of_transformers_goes_on_guessing(
    text: Path, roberta: Path, tmp_path: Path
) -> None:
    train = {"objective": "masked", "steps": 4}
    recipe = make_recipe(text, "generate", init={"from": str(roberta)}, train=train, data_length=40)
    _, said = begun(recipe, tmp_path / "begun")
    assert said[-1].endswith("weights taken.")
    assert trained(recipe, tmp_path / "run").finished


@pytest.mark.parametrize("renamed", [False, True])
def test_a_head_is_taken_for_the_same_classes_only(
    text: Path, origins: Path, tmp_path: Path, renamed: bool
) -> None:
    lines = (text / "a.tsv").read_text()
    (tmp_path / "b.tsv").write_text(lines.replace("with", "has") if renamed else lines)
    recipe = make_recipe(text, "classify", init={"from": str(origins / "classify")})
    tables = recipe.tables() | {"data": {"train": [str(tmp_path / "b.tsv")]}}
    after, said = begun(Recipe.of(tables), tmp_path / "run")
    before = load_file(origins / "classify" / "model.safetensors")
    assert torch.equal(after["head.weight"], before["head.weight"]) != renamed
    assert ("new: head." in said[0]) == renamed


def test_an_encoder_reads_by_the_source_side_table(
    text: Path, origins: Path, tmp_path: Path
) -> None:
    before = load_file(origins / "translate" / "model.safetensors")
    recipe = make_recipe(text, "classify", init={"from": str(origins / "translate")})
    after, _ = begun(recipe, tmp_path / "run")
    table = after["embedding.table.weight"]
    assert torch.equal(table, before["source_embedding.table.weight"])
    assert not torch.equal(table, before["embedding.table.weight"])


def test_shape_and_tokenizer_come_from_there(text: Path, origins: Path, tmp_path: Path) -> None:
    init = {"from": str(origins / "masked")}
    run = trained(
        make_recipe(text, "classify", init=init, model={"dropout": 0.3}), tmp_path / "run"
    )
    recipe = run.recipe()
    for key, value in MODEL.items():
        assert getattr(recipe.model, key) == (0.3 if key == "dropout" else value), key
    assert recipe.tokenizer.kind == "word"
    first = Run(origins / "masked").tokenizer_path
    assert run.tokenizer_path.read_bytes() == first.read_bytes()
    assert outcome(trained(recipe, tmp_path / "again")) == outcome(run)


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"model": {"layers": 3}}, r"\[model\] layers cannot be 3: it comes from .* is 2"),
        ({"model": {"width": 32, "heads": 4}}, r"heads cannot be 4.*\n.*width cannot be 32"),
        ({"model": {"position": "alibi"}}, "position cannot be 'alibi'"),
        ({"tokenizer": {"kind": "bpe"}}, r"\[tokenizer\] kind cannot be 'bpe'"),
    ],
)
def test_what_contradicts_it_is_refused_by_key(
    text: Path, origins: Path, tmp_path: Path, tables: dict[str, Any], said: str
) -> None:
    recipe = make_recipe(text, "classify", init={"from": str(origins / "masked")}, **tables)
    with pytest.raises(ConfigError, match=said):
        trained(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_says_the_same_in_other_words_is_not(text: Path, origins: Path) -> None:
    same = {"layers": 2, "kv_heads": 2, "head_width": 8, "pooling": "first", "position": "rope"}
    whole, _ = resolve_init(
        make_recipe(text, "classify", init={"from": str(origins / "masked")}, model=same)
    )
    assert whole.model.kv_heads == 2
    assert whole.model.pooling == "first"


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("grams", [{}, {"ngrams": 1}])
def test_only_a_classifier_takes_over_runs_of_tokens(
    text: Path, origins: Path, task: str, grams: dict[str, Any]
) -> None:
    """Unset or set to none, they hinder no other task; and a classifier may do without."""
    init = {"from": str(origins / "grams")}
    whole, _ = resolve_init(make_recipe(text, task, init=init, model=grams))
    assert whole.model.ngrams == (2 if task == "classify" and not grams else 1)
    assert (whole.model.ngram_log_count_ratio > 0) == (whole.model.ngrams > 1)


def test_a_classifier_may_have_runs_that_its_origin_had_not(
    text: Path, origins: Path, tmp_path: Path
) -> None:
    grams = {"ngrams": 3, "ngram_buckets": 40, "ngram_log_count_ratio": 1.0}
    recipe = make_recipe(text, "classify", init={"from": str(origins / "masked")}, model=grams)
    after, (line, *_) = begun(recipe, tmp_path / "run")
    assert line.endswith("new: head, ngrams.")
    assert len(after["ngrams.table.weight"]) == 40


def test_as_many_layers_can_be_frozen_as_the_deeper_side_has() -> None:
    model = {"layers": 1, "decoder_layers": 3}
    for count in (1, 2, 3, 4):
        init = {"from": "x", "freeze": count}
        sections = {"task": "translate", "data": {"synthetic": 9}, "model": model, "init": init}
        found = find_conflicts(Recipe.of(sections))
        assert bool(found) == (count >= 3), found


@pytest.mark.parametrize(
    ("origin", "task", "tables", "said"),
    [
        ("nowhere", "classify", {}, "nowhere: there is no such folder"),
        (".", "classify", {}, "neither a run nor a folder of transformers"),
        ("lstm", "classify", {}, "lstm.*cannot initialize a model for 'classify'"),
        ("lstm", "generate", {"init": {"lora": 2}}, "lora is for family 'transformer'"),
        ("masked", "classify", {"init": {"freeze": 3}}, "freeze cannot be 3: .* has 2 layers"),
        ("masked", "generate", {"init": {"freeze": "body"}}, "leaves nothing to train"),
        ("masked", "generate", {"init": {"freeze": 2}}, "leaves nothing to train"),
        ("translate-tied", "translate", {"init": {"freeze": "body"}}, "leaves nothing to train"),
        ("grams", "generate", {"model": {"ngrams": 3}}, "ngrams is for task 'classify'"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    text: Path, origins: Path, tmp_path: Path, origin: str, task: str, tables: Any, said: str
) -> None:
    init = {"from": str(origins / origin)} | tables.get("init", {})
    with pytest.raises(HeedError, match=said) as caught:
        trained(make_recipe(text, task, **tables | {"init": init}), tmp_path / "run")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("init", "said"),
    [
        ({"freeze": "embedings", "from": "x"}, "Did you mean 'embeddings'"),
        ({"freeze": 0, "from": "x"}, "freeze cannot be 0"),
        ({"freeze": "body"}, "name their model with `from`"),
        ({"lora": 4}, "name their model with `from`"),
        ({"lora": 4, "freeze": 1, "from": "x"}, "leave freeze out"),
        ({"lora_alpha": 4.0, "from": "x"}, "lora_alpha is for lora"),
        ({"lora_targets": "qkv", "lora": 4, "from": "x"}, "lora_targets cannot be 'qkv'"),
    ],
)
def test_keys_that_make_no_sense_are_refused(init: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Recipe.of({"task": "classify", "init": init})


@pytest.mark.parametrize("best", [True, False])
def test_a_run_that_is_not_finished_is_refused(text: Path, tmp_path: Path, best: bool) -> None:
    """One that has weights to translate by is not said to have none."""
    run = Run.create(tmp_path / "half", make_recipe(text, "generate", model=MODEL))
    run.write_environment({})
    if best:
        run.checkpoints.mkdir()
        (run.checkpoints / "best-000000001.safetensors").touch()
    with pytest.raises(RunError, match=r"not finished.* heed resume") as refused:
        resolve_init(make_recipe(text, "classify", init={"from": str(run.folder)}))
    assert ("no weights" in str(refused.value)) is not best


def test_files_without_a_recipe_take_the_shape_too(text: Path, origins: Path) -> None:
    """What is sensible for a small text must not contradict where the weights come from."""
    change = [f"init.from={origins / 'masked'}"]
    recipe, _ = resolve.resolve_recipe(None, None, [str(text / "a.tsv")], None, change, None)
    whole, _ = resolve_init(recipe)
    assert (recipe.task, whole.model.layers) == ("classify", 2)


# ----------------------------------------------------------------------------- what stays


FROZEN = [("adamw", "embeddings"), ("adamw", "body"), *((name, 1) for name in OPTIMIZERS)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "freeze"), FROZEN)
def test_what_is_frozen_stays_to_the_bit(
    text: Path, origins: Path, tmp_path: Path, name: str, freeze: str | int, device: str
) -> None:
    train = {
        "optimizer": name,
        "weight_decay": 0.5,
        "ema": 0.9,
        "average_checkpoints": 2,
        "lr": 1e-2,
    }
    train["execution"] = "graphs" if device == "cuda" and name != "adafactor" else "auto"
    init = {"from": str(origins / "classify"), "freeze": freeze}
    run = trained(make_recipe(text, "classify", init=init, train=train), tmp_path / "run", device)
    before = load_file(origins / "classify" / "model.safetensors")
    after = load_file(run.weights_path)
    places = layer_indices(load_run(run.folder, device="cpu")[0])
    frozen = {"embeddings": 0, "body": 2}.get(str(freeze), freeze)
    assert isinstance(frozen, int)
    moved = []
    for weight in after:
        if places[weight].layer <= frozen:
            assert torch.equal(before[weight], after[weight]), weight
        else:
            moved.append(not torch.equal(before[weight], after[weight]))
    assert sum(moved) >= len(moved) - 1  # a bias may begin and stay where no gradient is


def test_what_is_frozen_costs_nothing(text: Path, origins: Path, tmp_path: Path) -> None:
    """No gradient, no state of the optimizer, no running mean."""
    init = {"from": str(origins / "masked"), "freeze": 1}
    whole, _ = resolve_init(make_recipe(text, "classify", init=init, train={"ema": 0.9}))
    run = Run.create(tmp_path / "run", whole)
    parts = prepare(whole, run, device=CPU, say=print)
    loop = build_loop(parts, run, say=print)
    loop.update(loop.loader.micro_batches(0))
    places = layer_indices(parts.model)
    named = dict(parts.model.named_parameters())
    learnt = {name for name in named if places[name].layer > 1}
    assert {name for name, p in named.items() if p.requires_grad} == learnt
    assert set(loop.state.ema) == learnt
    kept = {id(p) for p in loop.state.optimizer.state}
    assert kept == {id(named[name]) for name in learnt}
    assert all(named[name].grad is None for name in named.keys() - learnt)


CHOICES: list[dict[str, Any]] = [
    {"freeze": "body"},
    {"freeze": 1},
    {"lora": 2, "lora_targets": "all"},
]


@pytest.mark.parametrize("init", CHOICES)
@pytest.mark.parametrize("name", ["masked", "translate"])
def test_new_cross_attention_learns_whole_and_only_that(
    text: Path, origins: Path, tmp_path: Path, name: str, init: dict[str, Any]
) -> None:
    """Of a translator's, which has learnt before, no more learns than of the rest."""
    recipe = make_recipe(text, "translate", init={"from": str(origins / name)} | init)
    before, _ = begun(recipe, tmp_path / "before")
    run = trained(recipe, tmp_path / "run")
    after = load_file(run.weights_path)
    newest = sorted(run.checkpoints.glob("step-*"))[-1]
    kept = {key.removeprefix("model.") for key in load_file(newest / "tensors.safetensors")}
    for key, weight in after.items():
        if ".blocks.0." in key and not key.endswith("bias"):  # some biases have no gradient
            plain, across = key in kept, ".cross" in key
            moved = plain and not torch.equal(weight, before[key])
            assert moved == (across and name == "masked"), key
            assert plain or "lora" in init, key


# ---------------------------------------------------------------------------- at which rates


@given(
    layers=st.integers(1, 4),
    above=st.integers(0, 2),
    decay=st.floats(0.3, 0.99),
    factor=st.floats(0.01, 1.0),
    name=st.sampled_from(sorted(OPTIMIZERS)),
    task=st.sampled_from(TASKS),
    position=st.sampled_from(["rope", "learned", "shaw", "t5"]),
)
def test_each_layer_learns_more_slowly_than_the_one_above(
    layers: int, above: int, decay: float, factor: float, name: str, task: str, position: str
) -> None:
    shape: dict[str, Any] = {"layers": layers, "decoder_layers": layers + above}
    model = fresh(task, position=position, tie_embeddings=False, **shape)
    settings = OptimizerSettings(name=name, lr=0.01, layer_decay=decay, weight_decay=0.1)
    optimizer = build_optimizer(model, settings)
    set_lr(optimizer, 0.01, factor)
    called = {parameter: name for name, parameter in model.named_parameters()}
    found = {called[p]: g["lr"] for g in optimizer.param_groups for p in g["params"]}
    assert found.keys() == set(called.values())
    for parameter, rate in found.items():
        part, *rest = parameter.split(".")
        depth = {"stack": layers, "encoder": layers, "decoder": layers + above}.get(part)
        if part == "head":
            steps = 0
        elif rest[0] == "blocks" and depth is not None:
            steps = depth - int(rest[1])
        elif rest[0] == "norm" and depth is not None:
            steps = 1
        elif rest[0] == "layer_positions" and depth is not None:
            steps = depth - 1 - int(rest[1])
        else:
            steps = (depth or layers + (above if task == "translate" else 0)) + 1
        assert rate == pytest.approx(0.01 * factor * decay**steps), parameter


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_with_decay_is_as_much_smaller_as_its_rate(name: str) -> None:
    """Of two models that differ in layer_decay alone, the head moves the same."""
    weights = []
    for decay in (1.0, 0.5):
        model = fresh("classify", tie_embeddings=False)
        before = {key: p.detach().clone() for key, p in model.named_parameters()}
        settings = OptimizerSettings(name=name, lr=1e-3, layer_decay=decay)
        optimizer = build_optimizer(model, settings)
        torch.manual_seed(0)
        model(torch.randint(23, (4, 6))).square().sum().backward()
        optimizer.step()
        weights.append({k: p.detach() - before[k] for k, p in model.named_parameters()})
    full, slow = weights
    assert torch.equal(full["head.weight"], slow["head.weight"])
    for layer in (0, 1):
        key = f"stack.blocks.{layer}.feed_forward.up.weight"
        share = float(slow[key].norm() / full[key].norm())
        assert share == pytest.approx(0.5 ** (2 - layer), rel=0.02)


@pytest.mark.parametrize("shape", [{"tie_embeddings": False}, {"classifier_hidden": 8}])
def test_to_muon_a_head_is_no_hidden_matrix(shape: dict[str, Any]) -> None:
    """However many maps it is made of: they are the ones that begin anew."""
    model = fresh("classify" if "classifier_hidden" in shape else "generate", **shape)
    optimizer = build_optimizer(model, OptimizerSettings(name="muon", layer_decay=0.9))
    orthogonal = {p for g in optimizer.param_groups if g["name"] == "muon" for p in g["params"]}
    named = dict(model.named_parameters())
    assert named["stack.blocks.0.attention.qkv.weight"] in orthogonal
    assert not any(p in orthogonal for name, p in named.items() if name.startswith("head."))


def test_a_dry_run_tells_the_rates(text: Path, origins: Path, tmp_path: Path) -> None:
    init, train = {"from": str(origins / "masked"), "freeze": "embeddings"}, {"layer_decay": 0.5}
    console = Console(file=(tmp_path / "out").open("w"), width=200)
    recipe = make_recipe(text, "classify", init=init, train=train)
    estimate.dry_run(recipe, device="cpu", console=console)
    console.file.close()
    said = (tmp_path / "out").read_text()
    assert "rates       0.01 for 34, 0.005 for " in said
    assert "0.0025 for " in said
    assert "0.00125" not in said


def test_rates_are_described_with_their_parameter_counts() -> None:
    model = fresh("classify", layers=1)
    optimizer = build_optimizer(model, OptimizerSettings(lr=0.1, layer_decay=0.5))
    rates = describe_rates(optimizer, 0.1).split(", ")
    assert [line.split(" for ")[0] for line in rates] == ["0.1", "0.05", "0.025"]
    sizes = [int(line.split(" for ")[1].replace(",", "")) for line in rates]
    assert sum(sizes) == sum(p.numel() for p in model.parameters())


# --------------------------------------------------------------------------------- adapters


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("on", ["qv", "attention", "all"])
def test_adapters_are_merged_at_the_end(
    text: Path, origins: Path, tmp_path: Path, on: str, device: str
) -> None:
    """The plain model that is loaded scores what the adapted one scored."""
    init = {"from": str(origins / "classify"), "lora": 2, "lora_targets": on}
    train = {"precision": "float32", "execution": "graphs" if device == "cuda" else "auto"}
    run = trained(make_recipe(text, "classify", init=init, train=train), tmp_path / "run", device)
    before = load_file(origins / "classify" / "model.safetensors")
    after = load_file(run.weights_path)
    assert after.keys() == before.keys()
    adapted = ("qkv.weight", "out.weight", "up.weight", "down.weight", "head.weight", "head.bias")
    for name, weight in after.items():
        if not name.endswith(adapted):
            assert torch.equal(weight, before[name]), name
    assert not torch.equal(
        after["stack.blocks.0.attention.qkv.weight"], before["stack.blocks.0.attention.qkv.weight"]
    )
    model, _, recipe = load_run(run.folder, device="cpu")
    parts = prepare(recipe, run, device=CPU, say=print)
    score = validate(model, parts.sets["dev"], device=CPU)
    best = min(line["dev"]["loss"] for line in run.metrics() if line["event"] == "evaluate")
    assert score["loss"] == pytest.approx(best, abs=1e-5)


def test_a_checkpoint_keeps_adapters_apart(text: Path, origins: Path, tmp_path: Path) -> None:
    init = {"from": str(origins / "classify"), "lora": 2}
    run = trained(make_recipe(text, "classify", init=init), tmp_path / "run")
    newest = sorted(run.checkpoints.glob("step-*"))[-1]
    kept = load_file(newest / "tensors.safetensors")
    before = load_file(origins / "classify" / "model.safetensors")
    place = "stack.blocks.0.attention.qkv"
    assert torch.equal(
        kept[f"model.{place}.parametrizations.weight.original"], before[f"{place}.weight"]
    )
    assert kept[f"model.{place}.parametrizations.weight.0.down.0"].shape == (2, 16)


# ------------------------------------------------------------------------ killed and resumed

KINDS: dict[str, dict[str, Any]] = {
    "frozen": {"init": {"freeze": 1}},
    "adapted": {"init": {"lora": 2, "lora_targets": "all", "lora_alpha": 3.0}},
    "by-layer": {"init": {}},
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("kind", KINDS)
def test_resumed_equals_unbroken(
    text: Path, origins: Path, tmp_path: Path, kind: str, optimizer: str, device: str
) -> None:
    """And the origin is no longer needed: the run holds all."""
    shutil.copytree(origins / "masked", tmp_path / "origin")
    init = KINDS[kind]["init"] | {"from": str(tmp_path / "origin")}
    train = {"optimizer": optimizer, "ema": 0.9, "layer_decay": 0.7, "deterministic": True}
    recipe = make_recipe(text, "classify", init=init, train=train)
    whole = trained(recipe, tmp_path / "whole", device)
    with dies_at(5):
        trained(recipe, tmp_path / "broken", device)
    shutil.rmtree(tmp_path / "origin")
    broken = train_run.resume(tmp_path / "broken", device=device, console=QUIET)
    torch.use_deterministic_algorithms(False)
    assert outcome(whole) == outcome(broken)


@pytest.mark.parametrize("init", CHOICES)
def test_what_was_new_is_still_so_when_resumed(
    text: Path, origins: Path, tmp_path: Path, init: dict[str, Any]
) -> None:
    """Though where the rest came from is gone."""
    shutil.copytree(origins / "masked", tmp_path / "origin")
    recipe = make_recipe(text, "translate", init={"from": str(tmp_path / "origin")} | init)
    whole = trained(recipe, tmp_path / "whole")
    with dies_at(3):
        trained(recipe, tmp_path / "broken")
    shutil.rmtree(tmp_path / "origin")
    with dies_at(5):  # what it keeps, it keeps when it goes on as well
        train_run.resume(tmp_path / "broken", device="cpu", console=QUIET)
    broken = train_run.resume(tmp_path / "broken", device="cpu", console=QUIET)
    assert outcome(whole) == outcome(broken)


def test_killed_before_its_first_checkpoint_it_begins_from_there_again(
    text: Path, origins: Path, tmp_path: Path
) -> None:
    recipe = make_recipe(text, "classify", init={"from": str(origins / "masked"), "lora": 2})
    whole = trained(recipe, tmp_path / "whole")
    with dies_at(1):
        trained(recipe, tmp_path / "broken")
    broken = train_run.resume(tmp_path / "broken", device="cpu", console=QUIET)
    assert outcome(whole) == outcome(broken)


def test_its_origin_is_found_from_whatever_folder_one_stands_in(
    text: Path, origins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(origins)
    with dies_at(1):
        trained(make_recipe(text, "classify", init={"from": "masked"}), tmp_path / "broken")
    monkeypatch.chdir(tmp_path)
    broken = train_run.resume(Path("broken"), device="cpu", console=QUIET)
    whole = trained(
        make_recipe(text, "classify", init={"from": str(origins / "masked")}), tmp_path / "whole"
    )
    assert outcome(whole) == outcome(broken)


def test_without_a_whole_checkpoint_it_does_not_go_on_from_random_weights(
    text: Path, origins: Path, tmp_path: Path
) -> None:
    recipe = make_recipe(text, "classify", init={"from": str(origins / "masked")})
    with dies_at(3):
        trained(recipe, tmp_path / "run")
    for tensors in (tmp_path / "run").rglob("tensors.safetensors"):
        tensors.write_bytes(b"")
    with pytest.raises(RunError, match="all of its checkpoints are damaged"):
        train_run.resume(tmp_path / "run", device="cpu", console=QUIET)


# ------------------------------------------------------------------------------- on two ranks


def test_two_ranks_learn_what_one_does(text: Path, origins: Path, tmp_path: Path) -> None:
    """Whatever is frozen or adapted, replicated or sharded: no rank waits for what never comes."""
    orders, alone = [], {}
    for kind in ("frozen", "adapted"):
        init = KINDS[kind]["init"] | {"from": str(origins / "classify")}
        for how in ("ddp", "fsdp"):
            train = {"layer_decay": 0.7, "ema": 0.9, "parallel": how, "precision": "float32"}
            recipe = make_recipe(text, "classify", init=init, train=train, model={"dropout": 0.0})
            (tmp_path / f"{kind}-{how}.toml").write_text(recipe.toml())
            order = {"recipe": str(tmp_path / f"{kind}-{how}.toml"), "broken": False}
            orders.append(order | {"run": str(tmp_path / f"{kind}-{how}")})
        alone[kind] = load_file(trained(recipe, tmp_path / kind).weights_path)
    (tmp_path / "orders.json").write_text(json.dumps(orders))
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = str(Path(__file__).with_name("test_distributed.py"))
    done = subprocess.run(
        [sys.executable, "-m", *launcher, script, str(tmp_path / "orders.json")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": FOUND, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    before = load_file(origins / "classify" / "model.safetensors")
    for order in orders:
        run = Path(str(order["run"]))
        kind, weights = run.name.rpartition("-")[0], load_file(run / "model.safetensors")
        for name, weight in alone[kind].items():
            assert torch.allclose(weights[name], weight, atol=1e-5), (run.name, name)
            if kind == "frozen" and name.startswith(("embedding.", "stack.blocks.0.")):
                assert torch.equal(weights[name], before[name]), (run.name, name)


# -------------------------------------------------------------------------- text without labels


def test_a_masked_model_reads_the_text_of_a_labeled_table(text: Path, tmp_path: Path) -> None:
    """The label is not read: the tokenizer does not know it."""
    recipe = make_recipe(text, "generate", model=MODEL, tokenizer={"kind": "word"})
    tables = recipe.tables() | {"data": {"train": [str(text / "a.tsv")]}}
    tables["train"] |= {"objective": "masked"}
    run = trained(Recipe.of(tables), tmp_path / "masked")
    _, tokenizer, _ = load_run(run.folder, device="cpu")
    assert tokenizer.vocab_size == 5 + len("abcdefgh")
    recipe = make_recipe(
        text, "classify", init={"from": str(run.folder)}, train={"best_metric": "dev/accuracy"}
    )
    assert trained(recipe, tmp_path / "tuned").finished


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files named and laid out like those that the `sst2` recipes are for."""
    folder, draw = tmp_path_factory.mktemp("reviews"), random.Random(1)
    for split, count in (("train", 120), ("dev", 20), ("test", 20)):
        lines = [" ".join(draw.choices("abcdefgh", k=draw.randint(3, 9))) for _ in range(count)]
        rows = [f"{line}\t{int('a' in line)}" for line in lines]
        (folder / f"{split}.tsv").write_text("\n".join(rows))
    return folder


def shipped(name: str, data: Path, run: Path, *changes: str) -> Run:
    overrides = ["train.steps=3", "train.warmup=0", *changes]
    recipe, _ = resolve.resolve_recipe(name, None, None, None, overrides, None, data)
    return trained(recipe, run)


def test_the_shipped_recipes_follow_each_other(reviews: Path, tmp_path: Path) -> None:
    small = ("model.width=16", "model.layers=1", "tokenizer.vocab_size=270")
    first = shipped("sst2/pretrain", reviews, tmp_path / "first", *small)
    origin = f"init.from={first.folder}"
    second = shipped("sst2/finetune-small", reviews, tmp_path / "second", origin)
    assert second.recipe().model.width == 16


def test_the_recipe_for_roberta_takes_a_folder(
    reviews: Path, roberta: Path, tmp_path: Path
) -> None:
    overrides = (f"init.from={roberta}", "data.max_length=32", "model.classifier_hidden=16")
    run = shipped("sst2/finetune", reviews, tmp_path / "run", *overrides)
    assert load_file(run.weights_path)["head.3.weight"].shape == (2, 16)
