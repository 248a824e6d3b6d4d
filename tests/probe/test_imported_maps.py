"""Maps of imported models are the attention that `transformers` computes for the same ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from foreign import CASES, transformers
from test_convert import LINES, folder_of

from heed import load
from heed.export.huggingface import import_model
from heed.probe.attention_maps import AttentionMap, AttentionMaps, map_batch
from heed.probe.text_trace import InputTokens

NAMES = ["bert-guesses", "bert-classes", "roberta-guesses", "gpt2-writes", "marian", "t5"]
EXACT = 1e-5


def assert_theirs(found: AttentionMap | None, theirs: Any) -> None:
    """Every layer [1, h, n, m] of theirs."""
    assert found is not None
    for ours, layer in zip(found.weights, theirs, strict=True):
        assert np.abs(ours - layer[0].numpy()).max() <= EXACT


def assert_same_attention(theirs: Any, maps: AttentionMaps, ids: list[int], source: Any) -> None:
    """One text at a time, without padding."""
    with torch.no_grad():
        if source is not None:
            out = theirs(
                input_ids=torch.tensor([source]),
                decoder_input_ids=torch.tensor([ids]),
                output_attentions=True,
            )
            assert_theirs(maps.encoder, out.encoder_attentions)
            assert_theirs(maps.decoder, out.decoder_attentions)
            assert_theirs(maps.cross, out.cross_attentions)
        else:
            out = theirs(input_ids=torch.tensor([ids]), output_attentions=True)
            assert_theirs(maps.encoder or maps.decoder, out.attentions)


@pytest.mark.parametrize("name", NAMES)
def test_maps_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    folder = folder_of(name, tmp_path / "theirs")
    import_model(str(folder), tmp_path / "run")
    theirs = getattr(transformers, CASES[name].name).from_pretrained(
        folder, attn_implementation="eager"
    )
    model: Any = load(tmp_path / "run", device="cpu")
    specials, encode = model.tokenizer.specials, model.tokenizer.encode
    ids_of, sources_of, maps_of = [], [], []
    for line, other in zip(LINES, LINES[1:] + LINES[:1], strict=True):
        if CASES[name].translates:
            maps = model.attention(line, other)
            ids, source = [specials.bos, *encode(other)], [*encode(line), specials.eos]
        else:
            maps, source = model.attention(line), None
            end = [] if name == "gpt2-writes" else [specials.eos]
            ids = [specials.bos, *encode(line), *end]
        first = model.tokenizer.ids_to_tokens(ids)
        assert (maps.decoder or maps.encoder).query_tokens == first
        assert_same_attention(theirs, maps, ids, source)
        ids_of.append(ids)
        sources_of.append(source)
        maps_of.append(maps)
    padded = map_batch(
        model.model,
        [
            InputTokens(ids, (m.decoder or m.encoder).queries, "")
            for ids, m in zip(ids_of, maps_of, strict=True)
        ],
        [
            InputTokens(source, m.encoder.queries, "")
            for source, m in zip(sources_of, maps_of, strict=True)
            if source is not None
        ],
        pad=specials.pad,
    )
    for maps, ids, source in zip(padded, ids_of, sources_of, strict=True):
        assert_same_attention(theirs, maps, ids, source)


def test_a_masked_language_model_has_attention_and_no_text(tmp_path: Path) -> None:
    import_model(str(folder_of("bert-guesses", tmp_path / "theirs")), tmp_path / "run")
    model: Any = load(tmp_path / "run", device="cpu")
    assert model.embed(LINES).shape == (3, 16)
    assert model.hidden(LINES[0]).encoder.shape == (4, 10, 16)
    with pytest.raises(Exception, match="masked language model cannot generate"):
        model.generate(["the"])
