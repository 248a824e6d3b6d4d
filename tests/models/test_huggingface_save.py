"""Models of ours as folders of `transformers`, whether they came from there or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign import CASES, TINY, make, saved, texts, transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from support import perturb
from torch import Tensor

from heed.config import ModelConfig
from heed.data.tokenizers.special_tokens import SPECIAL_TOKEN_NAMES
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.decode.greedy import Greedy
from heed.decode.search import Search
from heed.errors import HeedError
from heed.models import Classifier, LanguageModel, Model, Translator, build, huggingface
from heed.models.huggingface.reparameterize import (
    Draft,
    add_head_bias,
    add_token_types,
    add_zero_biases,
    reorder_sinusoids,
    rescale_embeddings,
)

LINES = ["The old cat sat on the mat.", "A dog sees the cat!", "Who are you, then?"]
TOKENIZER = Tokenizer.train(LINES * 5, kind="bpe", vocab_size=280)
SAME = 1e-4


def written(path: Path, name: str = "config.json") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / name).read_text(encoding="utf-8"))
    return found


def ours(task: str, *, causal: bool = True, **changes: Any) -> Model:
    """A small model of ours, moved away from where it began."""
    shape = {"width": 16, "heads": 4, "layers": 2, "feed_forward": 24, "max_positions": 64}
    config = ModelConfig(**(shape | changes))
    classes = 3 if task == "classify" else None
    torch.manual_seed(0)
    model = build(task, config, vocab=TOKENIZER.vocab_size, classes=classes, causal=causal)
    perturb(model)
    return model.eval()


def read_and_real(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(len(SPECIAL_TOKEN_NAMES), TOKENIZER.vocab_size, (3, 8), generator=generator)
    mask = torch.arange(8) < torch.tensor([[8], [5], [1]])
    return ids.masked_fill(~mask, 0), mask


def back(folder: Path) -> Any:
    """What `transformers` makes of a folder."""
    (name,) = written(folder)["architectures"]
    kind = getattr(transformers, name)
    return kind.from_pretrained(folder, attn_implementation="eager").eval()


# ------------------------------------------------------------------------------ there and back


@pytest.mark.parametrize("name", CASES)
def test_no_bit_is_lost_on_the_way_through(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = make(case)
    read, tokenizer = huggingface.load(saved(model, tmp_path / "in"))
    assert huggingface.save(read, tokenizer, tmp_path / "out") == case.name
    before, after = (load_file(tmp_path / x / "model.safetensors") for x in ("in", "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert written(tmp_path / "in") == written(tmp_path / "out")
    again = back(tmp_path / "out")
    whole = again.state_dict()
    assert all(torch.equal(weight, whole[key]) for key, weight in model.state_dict().items())
    ids, mask = texts(case)
    inputs = {"decoder_input_ids": ids} if case.translates else {}
    with torch.no_grad():
        one, other = (m(input_ids=ids, attention_mask=mask, **inputs)[0] for m in (model, again))
    assert torch.equal(one, other)


def test_the_generation_config_is_kept(tmp_path: Path) -> None:
    model = make(CASES["marian"])
    model.generation_config.num_beams = 4
    model.generation_config.bad_words_ids = [[1]]
    read, _ = huggingface.load(saved(model, tmp_path / "in"))
    huggingface.save(read, None, tmp_path / "out")
    name = "generation_config.json"
    assert written(tmp_path / "in", name) == written(tmp_path / "out", name)


def test_names_of_classes_are_kept(tmp_path: Path) -> None:
    names = {0: "bad", 1: "fair", 2: "good"}
    model = make(CASES["roberta-classes"], id2label=names)
    read, _ = huggingface.load(saved(model, tmp_path / "in"))
    assert huggingface.class_names(read.source_files["config.json"]) == ("bad", "fair", "good")
    huggingface.save(read, None, tmp_path / "out")
    assert back(tmp_path / "out").config.id2label == names


def test_what_was_learnt_since_is_written(tmp_path: Path) -> None:
    """A config.json is kept as it was only where it still tells the truth."""
    read, _ = huggingface.load(saved(make(CASES["bert-classes"]), tmp_path / "in"))
    assert isinstance(read, Classifier)
    shape = read.config.model_dump() | {"layers": 2, "dropout": 0.3}
    less = Classifier(ModelConfig(**shape), vocab=TINY["bert"]["vocab_size"], classes=3)
    less.source_files = read.source_files
    huggingface.save(less, None, tmp_path / "out")
    found = written(tmp_path / "out")
    assert (found["num_hidden_layers"], found["hidden_dropout_prob"]) == (2, 0.3)
    assert len(back(tmp_path / "out").bert.encoder.layer) == 2


# --------------------------------------------------------------------------- trained here

MARIAN: dict[str, Any] = {"norm_place": "post", "position": "sinusoidal"}
BERT: dict[str, Any] = {"norm_place": "post", "position": "learned", "embedding_norm": True}
BERT_GUESSES, BERT_CLASSES = (
    BERT | {"lm_head_transform": True},
    BERT | {"pooling": "first", "pooler": True},
)
ROBERTA_CLASSES = BERT | {"pooling": "first", "classifier_hidden": 16, "position_offset": 1}
ROBERTA_CLASSES |= {"classifier_activation": "tanh"}
UNUSED_REWEIGHT = {"merge": "reweight", "reweight_over": "sequence", "merge_when": "training"}
"""At inference heads are concatenated, so that over what they were weighted does not matter."""
T5: dict[str, Any] = {
    "position": "t5",
    "norm": "rms",
    "bias": False,
    "scale": 1.0,
    "activation": "geglu",
}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        (MARIAN, "MarianMTModel"),
        (MARIAN | {"bias": False, "activation": "relu", "decoder_layers": 1}, "MarianMTModel"),
        (MARIAN | {"sinusoids": "halves", "embedding_scale": 4.0}, "MarianMTModel"),
        (MARIAN | {"lm_head_bias": True, "embedding_scale": 1.0, "scale": 0.5}, "MarianMTModel"),
        (MARIAN | {"merge": "shift", "merge_when": "training"}, "MarianMTModel"),
        (T5, "T5ForConditionalGeneration"),
        (T5 | {"lm_head_scale": 0.25, "activation": "relu"}, "T5ForConditionalGeneration"),
    ],
)
def test_translators(changes: dict[str, Any], name: str, tmp_path: Path) -> None:
    model = ours("translate", **changes)
    assert isinstance(model, Translator)
    assert huggingface.save(model, TOKENIZER, tmp_path) == name
    (source, mask), target = read_and_real(), read_and_real(1)[0]
    theirs = back(tmp_path)
    with torch.no_grad():
        found = theirs(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
        assert torch.allclose(found, model(source, target, mask=mask), atol=SAME)


def test_a_vocabulary_a_side(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Translator(
        ModelConfig(width=16, heads=4, layers=1, **MARIAN), vocab=30, source_vocab=40
    )
    perturb(model)
    huggingface.save(model.eval(), None, tmp_path)
    source, target = torch.randint(40, (2, 5)), torch.randint(30, (2, 4))
    with torch.no_grad():
        found = back(tmp_path)(input_ids=source, decoder_input_ids=target).logits
        assert torch.allclose(found, model(source, target), atol=SAME)


def test_generate_writes_what_our_search_writes(tmp_path: Path) -> None:
    """Text in, text out, by the tokenizer in the folder."""
    model = ours("translate", **MARIAN)
    assert isinstance(model, Translator)
    huggingface.save(model, TOKENIZER, tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    read = tokenizer(LINES, return_tensors="pt", padding=True)
    inputs = {"input_ids": read["input_ids"], "attention_mask": read["attention_mask"]}
    theirs = back(tmp_path).generate(**inputs, num_beams=1, do_sample=False, max_new_tokens=13)
    sources = TOKENIZER.encode_batch(LINES)
    found = Search([model], Greedy()).translate(sources, max_ratio=1e-9, max_extra=12)
    for row, (one,) in zip(theirs, found, strict=True):
        assert row.tolist()[1 : len(one.ids) + 1] == one.ids
        assert tokenizer.decode(row[:-1], skip_special_tokens=True) == TOKENIZER.decode(one.ids)


@pytest.mark.parametrize(
    ("changes", "causal", "name"),
    [
        ({"position": "learned"}, True, "GPT2LMHeadModel"),
        ({"position": "learned", "bias": False, "tie_embeddings": False}, True, "GPT2LMHeadModel"),
        ({"position": "learned", "embedding_scale": 1.0, "scale": 1.0}, True, "GPT2LMHeadModel"),
        (BERT_GUESSES, False, "BertForMaskedLM"),
        (BERT_GUESSES | {"token_types": 3, "lm_head_bias": True}, False, "BertForMaskedLM"),
        (BERT_GUESSES | {"position_offset": 1}, False, "RobertaForMaskedLM"),
        (BERT_GUESSES | {"bias": False}, False, "BertForMaskedLM"),
    ],
)
def test_language_models(changes: dict[str, Any], causal: bool, name: str, tmp_path: Path) -> None:
    model = ours("generate", causal=causal, **changes)
    assert isinstance(model, LanguageModel)
    assert huggingface.save(model, TOKENIZER, tmp_path) == name
    ids, mask = read_and_real()
    with torch.no_grad():
        found = back(tmp_path)(input_ids=ids, attention_mask=mask).logits
        assert torch.allclose(found[mask], model(ids, mask=mask)[mask], atol=SAME)
        again, _ = huggingface.load(tmp_path)
        assert torch.allclose(again(ids, mask=mask)[mask], found[mask], atol=SAME)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        (BERT_CLASSES, "BertForSequenceClassification"),
        (BERT_CLASSES | {"bias": False}, "BertForSequenceClassification"),
        (BERT_CLASSES | UNUSED_REWEIGHT, "BertForSequenceClassification"),
        (ROBERTA_CLASSES, "RobertaForSequenceClassification"),
    ],
)
def test_classifiers(changes: dict[str, Any], name: str, tmp_path: Path) -> None:
    model = ours("classify", **changes)
    assert huggingface.save(model, TOKENIZER, tmp_path, classes=["a", "b", "c"]) == name
    theirs, tokenizer = back(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.config.label2id == {"a": 0, "b": 1, "c": 2}
    read = tokenizer(LINES, padding=True, return_tensors="pt")
    rows = [[2, *ids, 3] for ids in TOKENIZER.encode_batch(LINES)]
    assert [
        row[: len(own)].tolist() for row, own in zip(read["input_ids"], rows, strict=True)
    ] == rows
    with torch.no_grad():
        mask = read["attention_mask"]
        found = theirs(input_ids=read["input_ids"], attention_mask=mask).logits
        assert torch.allclose(found, model(read["input_ids"], mask=mask.bool()), atol=SAME)
        again, _ = huggingface.load(tmp_path)
        assert torch.allclose(found, again(read["input_ids"], mask=mask.bool()), atol=SAME)


# ------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("task", "changes", "reason"),
    [
        ("translate", MARIAN | {"norm_place": "pre"}, "model.norm_place = 'pre'"),
        ("translate", MARIAN | {"position": "rope"}, "model.position = 'rope'"),
        ("translate", MARIAN | {"activation": "swiglu"}, "model.activation = 'swiglu'"),
        ("translate", MARIAN | {"norm_eps": 1e-6}, "model.norm_eps = 1e-06"),
        ("translate", MARIAN | {"tie_embeddings": False}, "model.tie_embeddings = False"),
        ("translate", MARIAN | {"qk_norm": True}, "model.qk_norm = True"),
        ("translate", MARIAN | {"kv_heads": 2}, "model.kv_heads = 2"),
        ("translate", MARIAN | {"merge": "shift"}, "model.merge = 'shift'"),
        ("translate", {"family": "lstm"}, "model.family = 'lstm'"),
        ("generate", {"position": "alibi"}, "model.position = 'alibi'"),
        ("generate", {"position": "learned", "norm": "rms"}, "model.norm = 'rms'"),
        ("generate", {"position": "learned", "lm_head_bias": True}, "model.lm_head_bias = True"),
        ("classify", BERT_CLASSES | {"pooling": "mean"}, "model.pooling = 'mean'"),
        ("classify", BERT_CLASSES | {"embedding_norm": False}, "model.embedding_norm = False"),
        ("classify", ROBERTA_CLASSES | {"position_offset": 2}, "padding id 1"),
    ],
)
def test_what_no_class_holds_is_refused_with_the_reason(
    task: str, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(HeedError) as refused:
        huggingface.save(ours(task, **changes), TOKENIZER, tmp_path / "out")
    assert reason in str(refused.value)
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------- the same in another form

FORMS = {
    "bias": add_zero_biases,
    "head bias": add_head_bias,
    "scale": rescale_embeddings(lambda config: 3.0),
    "halves": reorder_sinusoids,
}


@settings(max_examples=25, deadline=None)
@given(
    form=st.sampled_from([*FORMS]),
    place=st.sampled_from(["pre", "post"]),
    bias=st.booleans(),
    tied=st.booleans(),
    layers=st.integers(1, 3),
    scale=st.none() | st.floats(0.1, 10.0),
)
def test_another_form_is_the_same_function(
    form: str, place: str, bias: bool, tied: bool, layers: int, scale: float | None
) -> None:
    model = ours(
        "translate",
        norm_place=place,
        position="sinusoidal",
        bias=bias,
        tie_embeddings=tied,
        decoder_layers=layers,
        embedding_scale=scale,
    )
    draft = FORMS[form](Draft("translate", model.config, dict(model.state_dict())))
    other = Translator(draft.config, vocab=TOKENIZER.vocab_size).eval()
    other.load_state_dict(draft.weights)
    (source, mask), target = read_and_real(), read_and_real(1)[0]
    with torch.no_grad():
        one, two = (m(source, target, mask=mask) for m in (model, other))
    assert torch.allclose(one, two, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("types", [0, 2])
def test_a_type_that_adds_nothing(types: int) -> None:
    model = ours("generate", causal=False, **BERT_GUESSES, token_types=types)
    draft = add_token_types(Draft("generate", model.config, dict(model.state_dict())))
    other = LanguageModel(draft.config, vocab=TOKENIZER.vocab_size, causal=False).eval()
    other.load_state_dict(draft.weights)
    ids, mask = read_and_real()
    assert torch.equal(model(ids, mask=mask), other(ids, mask=mask))
