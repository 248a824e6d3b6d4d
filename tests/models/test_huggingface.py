"""Models of `transformers`, read into our own stack: the same numbers, layer by layer."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign import CASES, VOCAB, Case, counted, make, saved, texts
from safetensors.torch import load_file, save_file
from torch import Tensor

from heed.errors import HeedError
from heed.models import Backbone, Classifier, LanguageModel, Translator, huggingface
from heed.nn.cache import Cache
from heed.nn.tokens import Tokens

SAME = 1e-4
each_case = pytest.mark.parametrize("name", CASES)


def far(ours: Tensor, theirs: Tensor, mask: Tensor | None = None) -> float:
    """The largest difference of any number, where something real stands."""
    assert ours.shape == theirs.shape
    difference = (ours - theirs).abs()
    return float((difference if mask is None else difference[mask]).max())


def expect(case: Case, model: Any, ours: Any) -> None:
    """Logits, vectors of every layer and attention are theirs."""
    ids, mask = texts(case)
    inputs = {"attention_mask": mask, "output_hidden_states": True, "output_attentions": True}
    with torch.no_grad():
        if case.translates:
            written = texts(case, seed=1)[0]
            theirs = model(input_ids=ids, decoder_input_ids=written, **inputs)
            trace = ours.trace(ids, written, mask=mask)
            assert far(ours(ids, written, mask=mask), theirs.logits) <= SAME
            layers(trace.hidden["encoder"], theirs.encoder_hidden_states, mask)
            layers(trace.hidden["decoder"], theirs.decoder_hidden_states)
            attention(trace.encoder, theirs.encoder_attentions, mask)
            attention(trace.decoder, theirs.decoder_attentions)
            attention(trace.cross, theirs.cross_attentions)
        else:
            if case.family == "gpt2":
                inputs["position_ids"] = counted(mask)
            theirs = model(input_ids=ids, **inputs)
            trace, found = ours.trace(ids, mask=mask), ours(ids, mask=mask)
            whole = isinstance(ours, Classifier)
            right = theirs.logits if hasattr(theirs, "logits") else theirs.last_hidden_state
            assert far(found, right, None if whole else mask) <= SAME
            (hidden,) = trace.hidden.values()
            layers(hidden, theirs.hidden_states, mask)
            attention(trace.encoder or trace.decoder, theirs.attentions, mask)
        assert (
            far(
                trace.logits,
                theirs.logits if case.translates else right,
                mask=None if case.translates or whole else mask,
            )
            <= SAME
        )


def layers(ours: list[Tensor], theirs: tuple[Tensor, ...], mask: Tensor | None = None) -> None:
    """The last of theirs is normalized where ours is not yet: logits tell that one."""
    assert len(ours) == len(theirs)
    for one, other in zip(ours[:-1], theirs[:-1], strict=True):
        assert far(one, other, mask) <= SAME


def attention(ours: list[Tensor], theirs: tuple[Tensor, ...], mask: Tensor | None = None) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert far(one.transpose(1, 2), other.transpose(1, 2), mask) <= SAME


@cache
def tiny(name: str, folder: Path) -> tuple[Any, Any]:
    model = make(CASES[name])
    ours, tokenizer = huggingface.load(saved(model, folder / name))
    assert tokenizer is None
    return model, ours


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pretrained")


# ------------------------------------------------------------------------------ the same numbers


@each_case
def test_it_computes_the_same(name: str, folder: Path) -> None:
    expect(CASES[name], *tiny(name, folder))


@pytest.mark.parametrize("name", ["bert-classes", "roberta-guesses", "gpt2-writes", "marian", "t5"])
def test_at_the_width_of_the_base_size(name: str, tmp_path: Path) -> None:
    """Two layers of it are enough to show a rounding error that a narrow model hides."""
    depth = {
        "gpt2": {"n_layer": 2},
        "marian": {"encoder_layers": 2},
        "t5": {"num_layers": 2},
    }.get(CASES[name].family, {"num_hidden_layers": 2})
    model = make(CASES[name], wide=True, **depth)
    expect(CASES[name], model, huggingface.load(saved(model, tmp_path))[0])


def test_at_base_size(tmp_path: Path) -> None:
    config = {"num_hidden_layers": 12, "vocab_size": 30522, "max_position_embeddings": 512}
    case = CASES["bert-guesses"]
    model = make(case, wide=True, **config)
    expect(case, model, huggingface.load(saved(model, tmp_path))[0])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("bert", Backbone),
        ("bert-guesses", LanguageModel),
        ("bert-classes", Classifier),
        ("gpt2-writes", LanguageModel),
        ("marian", Translator),
    ],
)
def test_the_class_picks_the_head(name: str, kind: Any, folder: Path) -> None:
    model, ours = tiny(name, folder)
    assert isinstance(ours, kind)
    assert not ours.training
    assert ours.config.layers == model.config.num_hidden_layers


def test_pooler_and_types(folder: Path) -> None:
    model, ours = tiny("bert", folder)
    ids, mask = texts(CASES["bert"])
    types = (torch.arange(9) > 3).long().expand(3, 9)
    with torch.no_grad():
        theirs = model(input_ids=ids, attention_mask=mask, token_type_ids=types)
        tokens = Tokens.of(ids, mask=mask, types=types)
        assert far(ours(ids, tokens), theirs.last_hidden_state, mask) <= SAME
        assert far(ours.summary(ids, tokens), theirs.pooler_output) <= SAME
        assert far(ours(ids, mask=mask), theirs.last_hidden_state, mask) > 100 * SAME


@pytest.mark.parametrize("name", ["gpt2", "gpt2-writes", "marian", "marian-scaled", "t5"])
def test_with_a_cache(name: str, folder: Path) -> None:
    """Token by token, each library with a cache of its own."""
    case, (model, ours) = CASES[name], tiny(name, folder)
    ids, mask = texts(case)
    written, cache, past = texts(case, seed=1)[0], Cache(), None
    with torch.no_grad():
        for i in range(9):
            here = slice(i, i + 1)
            if case.translates:
                found = ours(ids if i == 0 else None, written[:, here], mask=mask, cache=cache)
                inputs = {"input_ids": ids, "decoder_input_ids": written[:, here]}
                inputs["attention_mask"] = mask
            else:
                found = ours(ids[:, here], mask=mask[:, here], cache=cache)
                inputs = {"input_ids": ids[:, here], "attention_mask": mask[:, : i + 1]}
                inputs["position_ids"] = counted(mask)[:, here]
            theirs = model(**inputs, past_key_values=past, use_cache=True)
            past, real = theirs.past_key_values, None if case.translates else mask[:, here]
            right = theirs.logits if hasattr(theirs, "logits") else theirs.last_hidden_state
            assert real is not None or far(found, right) <= SAME
            assert real is None or not real.any() or far(found, right, real) <= SAME


# ------------------------------------------------------------------- folders of whatever year


def changed(source: Path, folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> Path:
    """A copy of a folder with other weights."""
    shutil.copytree(source, folder)
    weights = load_file(folder / "model.safetensors")
    save_file(change(weights) or weights, folder / "model.safetensors")
    return folder


def same_as(model: Any, ours: Any, case: Case) -> None:
    expect(case, model, ours)


def test_old_names_of_norms_and_buffers(folder: Path, tmp_path: Path) -> None:
    model, _ = tiny("bert-guesses", folder)

    def older(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        renamed = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"
            ): weight
            for name, weight in weights.items()
        }
        renamed["bert.embeddings.position_ids"] = torch.arange(40)[None]
        renamed["bert.pooler.dense.weight"] = torch.zeros(16, 16)
        renamed["cls.seq_relationship.bias"] = torch.zeros(2)
        renamed["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"].clone()
        return renamed

    path = changed(folder / "bert-guesses", tmp_path / "old", older)
    same_as(model, huggingface.load(path)[0], CASES["bert-guesses"])


def test_without_the_prefix_and_with_masks(folder: Path, tmp_path: Path) -> None:
    """As the first GPT-2 was saved."""
    model, _ = tiny("gpt2-writes", folder)

    def bare(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {name.removeprefix("transformer."): weight for name, weight in weights.items()}
        return found | {"h.0.attn.bias": torch.ones(1, 1, 40, 40).tril()}

    path = changed(folder / "gpt2-writes", tmp_path / "bare", bare)
    same_as(model, huggingface.load(path)[0], CASES["gpt2-writes"])


def test_what_is_computed_or_tied_may_be_there_as_well(folder: Path, tmp_path: Path) -> None:
    """As Marian was saved before; what is there must be right."""
    model, _ = tiny("marian", folder)
    tables = {
        f"model.{side}.embed_positions.weight": model.state_dict()[
            f"model.{side}.embed_positions.weight"
        ]
        for side in ("encoder", "decoder")
    }
    shared = model.state_dict()["model.shared.weight"]
    copies = ("lm_head.weight", "model.encoder.embed_tokens.weight")
    more = tables | {name: shared.clone() for name in copies}
    path = changed(folder / "marian", tmp_path / "whole", lambda weights: weights | more)
    same_as(model, huggingface.load(path)[0], CASES["marian"])
    name = "model.encoder.embed_positions.weight"
    wrong = more | {name: more[name] + 0.1}
    path = changed(folder / "marian", tmp_path / "moved", lambda weights: weights | wrong)
    with pytest.raises(HeedError, match=r"embed_positions\.weight is not the table"):
        huggingface.load(path)
    untied = more | {"lm_head.weight": shared + 1}
    path = changed(folder / "marian", tmp_path / "untied", lambda weights: weights | untied)
    with pytest.raises(HeedError, match=r"lm_head\.weight and shared\.weight must be equal"):
        huggingface.load(path)


def test_an_untied_output_projection(folder: Path, tmp_path: Path) -> None:
    """T5 1.1 reads by one table and writes by another."""
    model, _ = tiny("t5-gated", folder)
    own = torch.randn(VOCAB, 16)
    more = {"lm_head.weight": own}
    path = changed(folder / "t5-gated", tmp_path / "own", lambda weights: weights | more)
    ours, _ = huggingface.load(path)
    assert isinstance(ours, Translator)
    ids, mask = texts(CASES["t5"])
    with torch.no_grad():
        vectors = model(
            input_ids=ids, attention_mask=mask, decoder_input_ids=ids, output_hidden_states=True
        ).decoder_hidden_states[-1]
        assert far(ours(ids, ids, mask=mask), vectors @ own.T) <= SAME
    assert huggingface.save(ours, None, tmp_path / "out") == "T5ForConditionalGeneration"
    before, after = (load_file(x / "model.safetensors") for x in (path, tmp_path / "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    with torch.no_grad():
        ours.embedding.table.weight += 1
    with pytest.raises(HeedError, match=r"has one shared\.weight"):
        huggingface.save(ours, None, tmp_path / "two")
    assert not (tmp_path / "two").exists()


def test_weights_in_several_files(tmp_path: Path) -> None:
    model = make(CASES["bert-guesses"])
    model.save_pretrained(tmp_path, max_shard_size="5KB")
    assert not (tmp_path / "model.safetensors").exists()
    same_as(model, huggingface.load(tmp_path)[0], CASES["bert-guesses"])


def test_half_precision_is_read_as_it_is(tmp_path: Path) -> None:
    model = make(CASES["gpt2-writes"]).to(torch.bfloat16)
    ours, _ = huggingface.load(saved(model, tmp_path))
    assert isinstance(ours, LanguageModel)
    table = ours.embedding.table.weight
    assert table.dtype == torch.float32
    assert torch.equal(table, model.transformer.wte.weight.float())


def test_what_has_no_use_is_named(folder: Path, tmp_path: Path) -> None:
    tiny("gpt2", folder)
    more = {"adapter.weight": torch.zeros(2)}
    path = changed(folder / "gpt2", tmp_path / "more", lambda weights: weights | more)
    with pytest.warns(UserWarning, match=r"does not use 1 of the weights: adapter\.weight"):
        huggingface.load(path)
