"""A decoded text is what the pipeline returns, with attention and probabilities of the model."""

from __future__ import annotations

import json
import math
from copy import copy
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from support import new_translator, tiny

from heed.config import DecodeConfig
from heed.data.tokenizers.special_tokens import SpecialTokens
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.decode.detokenize import IncrementalDetokenizer
from heed.errors import DataError
from heed.models import LanguageModel, Translator, build
from heed.pipelines.generate import GenerationPipeline
from heed.pipelines.translate import TranslationPipeline
from heed.probe.attention_maps import map_inputs
from heed.probe.decoded_text import decode_continuation, decode_translation
from heed.probe.text_trace import translation_inputs

LINES = ["the old cat sees a dog", "a dog sees the cat .", "un chat voit le chien !"]
TEXT = "the old dog sees"
SETTINGS: list[dict[str, Any]] = [
    {},
    {"beam": 3, "length_penalty": 0.6},
    {"sample": True, "seed": 3, "temperature": 1.5, "top_k": 9},
]
each_setting = pytest.mark.parametrize("settings", SETTINGS, ids=["greedy", "beam", "sample"])


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.train(LINES, kind="word")


def translation(**settings: Any) -> TranslationPipeline:
    torch.manual_seed(1)
    model = build("translate", new_translator().config, vocab=tokenizer().vocab_size)
    assert isinstance(model, Translator)
    decode = DecodeConfig(**({"max_ratio": 1.0, "max_extra": 4} | settings))
    return TranslationPipeline([model.eval()], tokenizer(), decode, max_source=9)


def generation(**settings: Any) -> GenerationPipeline:
    torch.manual_seed(1)
    model = build("generate", tiny(position="alibi"), vocab=tokenizer().vocab_size)
    assert isinstance(model, LanguageModel)
    return GenerationPipeline(model.eval(), tokenizer(), DecodeConfig(**settings), context=20)


@each_setting
def test_a_decoded_translation_is_that_of_the_pipeline(settings: dict[str, Any]) -> None:
    pipeline = translation(**settings)
    decoded = decode_translation(pipeline, TEXT)
    (expected,) = pipeline.translate([TEXT])
    assert decoded.text == expected.text
    assert decoded.trace.hypotheses[0].score == expected.choices[0].score
    assert (decoded.is_cut, len(decoded.texts)) == (expected.cut, settings.get("beam", 1))


@each_setting
def test_its_attention_is_that_of_heed_attend(settings: dict[str, Any]) -> None:
    pipeline = translation(**settings)
    decoded = decode_translation(pipeline, TEXT)
    source, target = translation_inputs(pipeline, TEXT)
    cross = map_inputs(pipeline.models[0], target, source).cross
    assert cross is not None
    assert [*decoded.cross] == [*cross.layers]
    assert tokenizer().ids_to_tokens(decoded.input_ids) == cross.key_tokens
    assert tokenizer().ids_to_tokens([one.id for one in decoded.tokens]) == cross.query_tokens
    for layer, weights_nm in decoded.cross.items():
        np.testing.assert_allclose(weights_nm, cross.mean_over_heads(layer), atol=1e-6)


@each_setting
def test_a_decoded_continuation_is_that_of_the_pipeline(settings: dict[str, Any]) -> None:
    pipeline = generation(**settings)
    decoded = decode_continuation(pipeline, TEXT, length=8)
    ((expected, *_),) = pipeline.generate([TEXT], length=8)
    assert (decoded.text, len(decoded.trace.hypotheses[0].ids)) == (expected.text, expected.tokens)
    assert decoded.trace.hypotheses[0].logprob == pytest.approx(expected.logprob, abs=1e-9)
    assert decoded.cross == {}


@each_setting
def test_json_has_the_same_numbers(settings: dict[str, Any]) -> None:
    decoded = decode_translation(translation(**settings), TEXT, alternatives=3)
    fields = json.loads(json.dumps(decoded.to_dict(), allow_nan=False))
    probabilities = [token["probability"] for token in fields["tokens"]]
    assert probabilities == [math.exp(one.logprob) for one in decoded.tokens]
    assert [len(token["alternatives"]) for token in fields["tokens"]] == [3] * len(probabilities)
    for token in fields["tokens"]:
        assert fields["nodes"][token["node"]]["total"] == token["total"]
    leaf = fields["nodes"][fields["hypotheses"][0]["node"]]
    assert leaf["total"] == pytest.approx(sum(t["logprob"] for t in fields["tokens"]), abs=1e-9)
    assert all(("drawn" in token) == ("sample" in settings) for token in fields["tokens"])


def test_a_forced_prefix_is_continued() -> None:
    pipeline = translation()
    free = decode_translation(pipeline, TEXT)
    other = free.tokens[1].alternatives[2].id
    forced = decode_translation(pipeline, TEXT, prefix=[free.tokens[0].id, other])
    assert [one.id for one in forced.tokens[:2]] == [free.tokens[0].id, other]
    assert forced.tokens[1].rank == 2
    same = decode_translation(pipeline, TEXT, prefix=[one.id for one in free.tokens[:3]])
    assert [one.id for one in same.tokens] == [one.id for one in free.tokens]


def test_a_prefix_as_long_as_the_limit_is_only_scored() -> None:
    """This is how a stopped decoding is looked at."""
    ids = [7, 9, 8]
    decoded = decode_translation(translation(), TEXT, prefix=ids, max_tokens=3)
    assert [one.id for one in decoded.tokens] == ids
    assert decoded.is_cut
    assert next(iter(decoded.cross.values())).shape == (3, 5)
    continued = decode_continuation(generation(), "the", length=3, prefix=ids)
    assert [one.id for one in continued.tokens] == ids
    detokenizer = IncrementalDetokenizer(tokenizer(), continued.input_ids)
    assert continued.text == detokenizer.add(ids) + detokenizer.end()


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (" ", {}, "no text to translate"),
        ("cat " * 10, {}, "has 10 tokens, and this model reads 9"),
        (TEXT, {"prefix": [999]}, "no token 999"),
        (TEXT, {"prefix": [3, 7]}, "token 1 of the prefix: nothing is written after <eos>"),
        (TEXT, {"prefix": [7] * 9}, "9 tokens, and the length limit is 8"),
    ],
)
def test_what_cannot_be_decoded_is_refused(
    text: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        decode_translation(translation(), text, **options)


def test_a_token_that_is_never_written_is_refused() -> None:
    """An imported tokenizer's padding is suppressed."""
    pipeline = translation()
    pipeline.tokenizer = copy(pipeline.tokenizer)
    pipeline.tokenizer.specials = SpecialTokens(bos=0)
    with pytest.raises(DataError, match="token 2 of the prefix: <pad> is never written"):
        decode_translation(pipeline, TEXT, prefix=[7, 0])
