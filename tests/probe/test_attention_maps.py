"""Maps equal weights recomputed from the checkpoint; words sum tokens; probing changes nothing."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy_forward import POSITIONS, decoder_maps, encoder_maps
from support import (
    ATTENDING,
    FEW,
    VARIANTS,
    input_tokens,
    new_classifier,
    new_language_model,
    new_translator,
    texts,
    tiny,
)

from heed import LanguageModel
from heed import Translator as LoadedTranslator
from heed.config import Recipe
from heed.data import synthetic
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.decode.alignment import by_word, cross_weights
from heed.errors import HeedError, HeedWarning, RunError
from heed.metrics.alignment_error import alignment_error_rate
from heed.models import Classifier, Translator, build
from heed.pipelines.classify import ClassificationPipeline
from heed.probe.attention_maps import (
    AttentionMap,
    AttentionMaps,
    best_layer,
    map_batch,
    map_inputs,
    map_pairs,
)
from heed.probe.text_trace import TokenLabels, classifier_input
from heed.runs.labels import Classes

PAIRS = [(s.english, s.french) for s in synthetic.generate_sentences("dev", 70)]
LENGTHS, SOURCE_LENGTHS = (9, 4, 1), (5, 8, 2)
RECIPE = Recipe.of({"data": {"max_length": 40}, "decode": {"max_ratio": 1.0, "max_extra": 1}})
EXACT = {torch.float64: 1e-6, torch.float32: 1e-5}
"""How far a map may be from the weights recomputed in float64."""
RECOMPUTED = [name for name in ATTENDING if VARIANTS[name].get("position", "rope") in POSITIONS]
CASES = [(name, torch.float64) for name in RECOMPUTED]
CASES += [(name, torch.float32) for name in FEW if name in RECOMPUTED]


def assert_equal(found: AttentionMap | None, wanted: list[Any], tolerance: float) -> None:
    assert found is not None
    for ours, theirs in zip(found.weights, wanted, strict=True):
        assert ours.dtype == np.float32
        assert np.abs(ours - theirs).max() <= tolerance


# ---------------------------------------------------- equal to weights recomputed from a checkpoint


@pytest.mark.parametrize(("variant", "dtype"), CASES)
def test_maps_of_a_padded_batch_are_those_of_the_checkpoint(
    variant: str, dtype: torch.dtype
) -> None:
    """Every position and merge, three tasks: recomputed in numpy, one text at a time."""
    changes, tolerance = VARIANTS[variant], EXACT[dtype]
    rows, sources = texts(LENGTHS), texts(SOURCE_LENGTHS, seed=1)
    for model, kind in (
        (new_classifier(dtype=dtype, **changes), "encoder"),
        (new_language_model(dtype=dtype, **changes), "decoder"),
    ):
        for row, maps in zip(rows, map_batch(model, [*map(input_tokens, rows)]), strict=True):
            maps_of: Any = encoder_maps if kind == "encoder" else decoder_maps
            wanted = maps_of(model, row.tolist(), stack="stack")[kind == "encoder"]
            assert_equal(getattr(maps, kind), wanted, tolerance)
    translator = new_translator(dtype=dtype, cross_position=True, **changes)
    found = map_batch(translator, [*map(input_tokens, rows)], [*map(input_tokens, sources)])
    for row, source, maps in zip(rows, sources, found, strict=True):
        memory, encoder = encoder_maps(translator, source.tolist(), stack="encoder")
        own, cross = decoder_maps(translator, row.tolist(), stack="decoder", memory=memory)
        assert_equal(maps.encoder, encoder, tolerance)
        assert_equal(maps.decoder, own, tolerance)
        assert_equal(maps.cross, cross, tolerance)


def test_a_masked_language_model_has_an_encoder() -> None:
    torch.manual_seed(0)
    model = build("generate", tiny(position="alibi"), vocab=23, causal=False).eval()
    (row,) = texts([7])
    (maps,) = map_batch(model, [input_tokens(row)])
    assert maps.decoder is None
    assert_equal(maps.encoder, encoder_maps(model, row.tolist(), stack="stack")[1], 1e-5)


def test_an_lstm_attends_to_its_source_alone() -> None:
    """softmax(q · memory / √w), from its own vectors."""
    model = new_translator(family="lstm", dtype=torch.float64)
    rows, sources = texts(LENGTHS), texts(SOURCE_LENGTHS, seed=1)
    found = map_batch(model, [*map(input_tokens, rows)], [*map(input_tokens, sources)])
    query = model.state_dict()["decoder.query.weight"]
    for row, source, maps in zip(rows, sources, found, strict=True):
        assert (maps.encoder, maps.decoder) == (None, None)
        with torch.no_grad():
            trace = model.trace(source[None], row[None])
        states, memory = trace.hidden["decoder"][-1][0], trace.hidden["encoder"][-1][0]
        scores = (states @ query.T) @ memory.T / query.shape[0] ** 0.5
        assert_equal(maps.cross, [scores.softmax(-1)[None].numpy()], 1e-6)
    with pytest.raises(RunError, match="LSTM has no attention"):
        map_batch(new_classifier(family="lstm"), [input_tokens(rows[0])])


# ------------------------------------------------------------------------------------ by word


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    lines = (
        text for s in synthetic.generate_sentences("train", 300) for text in (s.english, s.french)
    )
    return Tokenizer.train(lines, kind="bpe", vocab_size=400)


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> Translator:
    torch.manual_seed(0)
    made = build("translate", tiny(width=32, position="alibi"), vocab=tokenizer.vocab_size)
    assert isinstance(made, Translator)
    return made.double().eval()


def cross_maps(
    model: Translator, tokenizer: Tokenizer, pairs: list[tuple[str, str]]
) -> list[AttentionMap]:
    return [one.get("cross") for one in map_pairs(model, tokenizer, pairs, max_source=90)]


def test_word_attention_sums_token_attention(model: Translator, tokenizer: Tokenizer) -> None:
    source, target = PAIRS[0]
    (found,) = cross_maps(model, tokenizer, [(source, target)])
    ids = [(tokenizer.encode(source), tokenizer.encode(target))]
    with torch.no_grad():
        layers = cross_weights(model, ids, tokenizer.specials.bos, tokenizer.specials)
    rows = tokenizer.word_indices(target), len(target.split())
    columns = tokenizer.word_indices(source), len(source.split())
    words = found.by_word()
    assert words.query_tokens == [*target.split(), "<eos>"]
    assert words.key_tokens == [*source.split(), "<eos>"]
    for layer, weights in zip(words.weights, layers, strict=True):
        wanted = by_word(weights[0, :, :, :-1].numpy(), rows, columns)
        assert np.allclose(layer[:, :-1, :-1], wanted, atol=1e-6)
        assert np.allclose(layer.sum(-1), 1, atol=1e-5)


words_of_tokens = st.lists(st.sampled_from([None, 0, 1]), min_size=1, max_size=9)


@given(queries=words_of_tokens, keys=words_of_tokens)
def test_any_words_keep_the_sums_of_rows(queries: list[int | None], keys: list[int | None]) -> None:
    """0 is the same word as the token before it, 1 the next word, None a special token."""

    def labels(steps: list[int | None]) -> TokenLabels:
        counts = np.cumsum([step or 0 for step in steps])
        words = [None if step is None else int(n) for step, n in zip(steps, counts, strict=True)]
        return TokenLabels([str(i) for i in range(len(steps))], words, [*"abcdefghij"])

    n, m = len(queries), len(keys)
    raw = np.random.default_rng(n).random((2, n, m)).astype(np.float32)
    weights = raw / raw.sum(axis=-1, keepdims=True)
    visible = np.tri(n, m, dtype=bool)
    found = AttentionMap("cross", labels(queries), labels(keys), [weights], visible).by_word()
    assert np.allclose(found.weights[0].sum(axis=-1), 1, atol=1e-5)
    assert found.visible.shape == found.weights[0].shape[1:]
    assert found.visible.shape == (len(found.queries), len(found.keys))
    rows, columns = labels(queries).units(), labels(keys).units()
    for row, column in np.ndindex(*found.visible.shape):
        cells = np.ix_(rows == row, columns == column)
        assert found.visible[row, column] == visible[cells].any()
        wanted = weights[(slice(None), *cells)].sum(axis=-1).mean(axis=-1)
        assert np.allclose(found.weights[0][:, row, column], wanted, atol=1e-6)


def test_maps_do_not_depend_on_the_batch(model: Translator, tokenizer: Tokenizer) -> None:
    together = cross_maps(model, tokenizer, PAIRS)
    for pair, found in zip(PAIRS[::9], together[::9], strict=True):
        (alone,) = cross_maps(model, tokenizer, [pair])
        assert_equal(found, alone.weights, 1e-6)
        assert found.keys.word_texts == pair[0].split()


@pytest.mark.parametrize("pair", [("", "le chat"), ("  ", ""), ("the cat", "")])
def test_blank_texts_have_no_links(
    model: Translator, tokenizer: Tokenizer, pair: tuple[str, str]
) -> None:
    """Like the alignments of `heed translate`."""
    found, _ = cross_maps(model, tokenizer, [pair, PAIRS[0]])
    assert found.links(0) == set()


def test_the_best_layer_has_the_lowest_alignment_error(
    model: Translator, tokenizer: Tokenizer
) -> None:
    maps = cross_maps(model, tokenizer, PAIRS[:10])
    for layer in range(2):
        links = [found.links(layer) for found in maps]
        assert best_layer(maps, links) == layer
        assert alignment_error_rate(links, links) == 0.0


def test_a_gold_alignment_of_words_marks_all_their_tokens(
    model: Translator, tokenizer: Tokenizer
) -> None:
    (found,) = cross_maps(model, tokenizer, PAIRS[:1])
    gold = found.links(1)
    marked = found.with_gold(gold)
    assert marked.gold is not None
    assert {(found.key_words[m], found.query_words[n]) for n, m in marked.gold} == gold
    words = marked.by_word()
    assert {(m, n) for n, m in words.gold or ()} == gold


# --------------------------------------------------- from text: what the model reads, and no more


@pytest.fixture
def loaded(model: Translator, tokenizer: Tokenizer) -> LoadedTranslator:
    return LoadedTranslator(model.float(), tokenizer, RECIPE)


def test_attention_reads_what_translate_writes(loaded: LoadedTranslator) -> None:
    """The tokens of its own translation are those of the search, whatever they spell."""
    text = PAIRS[0][0]
    maps = loaded.attention(text, beam=2)
    assert maps.target == loaded.translate([text], beam=2)[0]
    ((best, *_),) = loaded.pipeline(beam=2).search.translate(
        [loaded.tokenizer.encode(text)], max_ratio=1.0, max_extra=1
    )
    written = loaded.tokenizer.ids_to_tokens([*best.ids, loaded.tokenizer.specials.eos])
    cross, decoder = maps.get("cross"), maps.get("decoder")
    assert cross.query_tokens == written[: len(cross.query_tokens)]
    assert decoder.query_tokens == ["<bos>", *written[:-1]][: len(decoder.query_tokens)]
    assert cross.key_tokens == [*loaded.tokenizer.tokenize(text), "<eos>"]
    assert (decoder.visible == np.tri(len(decoder.queries), dtype=bool)).all()
    with pytest.warns(HeedWarning, match="only the first 39 of"):
        assert len(loaded.attention(text * 9, "le").get("cross").keys) == 40


def test_a_language_model_reads_a_prompt(tokenizer: Tokenizer) -> None:
    changes = {"position": "learned", "max_positions": 30}
    torch.manual_seed(0)
    model: Any = build("generate", tiny(**changes), vocab=tokenizer.vocab_size).eval()
    recipe = Recipe.of({"task": "generate", "data": {"max_length": 30}})
    writer, text = LanguageModel(model, tokenizer, recipe), PAIRS[0][0]
    maps = writer.attention(text)
    assert maps.get().query_tokens == ["<bos>", *tokenizer.tokenize(text)]
    assert maps.cross is None
    with pytest.warns(HeedWarning, match="only the first 29 of"):
        assert len(writer.attention(text * 9).get().queries) == 30
    hidden = writer.hidden(text)
    assert hidden.decoder is not None
    assert hidden.decoder.shape == (3, len(maps.get().queries), 16)
    vectors = writer.embed([text, "", text])
    assert vectors.shape == (3, 16)
    assert np.allclose(vectors[0], vectors[2])
    with torch.no_grad():
        alone = model.states(torch.tensor([[2, *tokenizer.encode(text)]])).x_bnw.mean(dim=1)
    assert np.allclose(vectors[0], alone.numpy(), atol=1e-5)


def test_a_pair_of_texts_has_the_words_of_both(tokenizer: Tokenizer) -> None:
    torch.manual_seed(0)
    model = build("classify", tiny(), vocab=tokenizer.vocab_size, classes=2)
    assert isinstance(model, Classifier)
    classes = Classes(("a", "b"), pairs=True)
    pipeline = ClassificationPipeline(model.eval(), tokenizer, classes, max_length=30)

    def maps_of(first: str, second: str) -> AttentionMap:
        return map_inputs(model, classifier_input(pipeline, (first, second))).get()

    words = maps_of("The old cat", "sleeps now").by_word()
    assert words.query_tokens == ["<bos>", "The", "old", "cat", "<eos>", "sleeps", "now", "<eos>"]
    with pytest.warns(HeedWarning, match="only the first 28 of"):
        cut = maps_of("The old cat " * 20, "sleeps")
    assert len(cut.queries) == len(cut.query_words) == 30


def test_probing_changes_no_weight_and_draws_no_number(loaded: LoadedTranslator) -> None:
    loaded.model.train()
    weights = {name: x.clone() for name, x in loaded.model.state_dict().items()}
    states = torch.get_rng_state(), str(np.random.get_state()), random.getstate()
    maps = loaded.attention(PAIRS[0][0])
    loaded.hidden(PAIRS[0][0])
    loaded.embed([PAIRS[0][0]])
    maps.figure()
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (str(np.random.get_state()), random.getstate()) == states[1:]
    assert loaded.model.training
    assert loaded.model.state_dict().keys() == weights.keys()
    for name, x in loaded.model.state_dict().items():
        assert torch.equal(x, weights[name])
    loaded.model.eval()


# ------------------------------------------------------------------------------- what maps hold


def test_json_holds_the_exact_weights(loaded: LoadedTranslator, tmp_path: Path) -> None:
    maps = loaded.attention(PAIRS[1][0])
    content = json.loads(maps.save(tmp_path / "a" / "maps.json").read_text("utf-8"))
    assert content == json.loads(json.dumps(maps.to_dict()))
    assert [one["kind"] for one in content["maps"]] == ["cross", "decoder", "encoder"]
    for one in content["maps"]:
        found = maps.get(one["kind"])
        assert [token["text"] for token in one["query_tokens"]] == found.query_tokens
        assert [token["special"] for token in one["key_tokens"]] == [
            word is None for word in found.key_words
        ]
        assert one["heads"] == [4, 4]
        for ours, theirs in zip(found.weights, one["weights"], strict=True):
            assert (ours == np.array(theirs, np.float32)).all()
        assert [[cell == "1" for cell in row] for row in one["visible"]] == found.visible.tolist()


def test_maps_name_what_they_lack(loaded: LoadedTranslator) -> None:
    maps = loaded.attention(PAIRS[1][0])
    assert repr(maps).startswith(f"AttentionMaps({PAIRS[1][0]!r}, cross: 2 layers × 4 heads, ")
    assert "<img" in maps._repr_html_()
    with pytest.raises(HeedError, match=r"no layer 2: cross attention has 2.* Choose 0 to 1\."):
        maps.select("cross", 2)
    only = maps.select("decoder", 1)
    assert (only.cross, only.encoder) == (None, None)
    assert only.get().to_dict()["layers"] == [2]
    with pytest.raises(HeedError, match=r"has no cross attention\. It has decoder\."):
        only.get("cross")
    assert isinstance(only, AttentionMaps)
