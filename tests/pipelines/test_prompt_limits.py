"""Prompts are limited for every position: memory grows with the square of their length."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import tiny

from heed.config import DecodeConfig
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import ConfigError, DataError
from heed.models import LanguageModel, build
from heed.pipelines import generate
from heed.pipelines.generate import GenerationLines, GenerationPipeline

CONTEXT = 32


@pytest.fixture(scope="module")
def pipeline() -> GenerationPipeline:
    tokenizer = Tokenizer.train([], kind="byte")
    torch.manual_seed(0)
    model = build("generate", tiny(position="rope"), vocab=tokenizer.vocab_size).eval()
    assert isinstance(model, LanguageModel)
    return GenerationPipeline(model, tokenizer, DecodeConfig(sample=True), context=CONTEXT)


def test_a_prompt_beyond_the_limit_is_refused_and_can_be_cut(pipeline: GenerationPipeline) -> None:
    prompt = "a" * 40_000
    with pytest.raises(DataError, match=r"40,000 tokens, but the model reads at most 8,191.*--cut"):
        pipeline.generate([prompt], length=4)
    [[one]] = pipeline.generate([prompt], length=4, cut_prompt=True)
    assert one.prompt_tokens == CONTEXT - 4
    [[half]] = pipeline.generate([prompt], length=200, cut_prompt=True)
    assert half.prompt_tokens == CONTEXT // 2


@pytest.mark.parametrize(("tokens", "warns"), [(CONTEXT - 1, False), (CONTEXT, True), (500, True)])
def test_a_prompt_longer_than_in_training_gives_a_warning(
    pipeline: GenerationPipeline, tokens: int, warns: bool
) -> None:
    [result] = GenerationLines(pipeline, length=2).run(["a" * tokens], first=0)
    assert (result.warning is not None) == warns
    if result.warning is not None:
        assert (
            f"has {tokens + 1:,} tokens, and the model was trained on at most 32" in result.warning
        )
    [cut] = GenerationLines(pipeline, length=2, cut_prompt=True).run(["a" * tokens], first=0)
    assert cut.warning is None


@pytest.mark.parametrize("wrong", [{"length": 0}, {"length": 10**9}, {"samples": 10**7}])
def test_lengths_and_samples_have_bounds(
    pipeline: GenerationPipeline, wrong: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=r"cannot be \d+: ask for 1 to 100,000"):
        pipeline.generate(["a"], **({"length": 1} | wrong))


def test_prompts_in_parts_give_the_same_texts(
    pipeline: GenerationPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = ["a", "bc", "def", "g"]

    def texts() -> list[list[str]]:
        results = pipeline.generate(prompts, length=5, samples=3)
        return [[one.text for one in several] for several in results]

    whole = texts()
    monkeypatch.setattr(generate, "INPUTS_AT_ONCE", 4)
    assert texts() == whole
