"""The trace of a text: a forward pass over the very tokens that a pipeline gives its model.

`tokenizer.encode` returns a text's own tokens. A model reads more: a classifier its text between
begin and end token, a language model a begin token first, a translator an end token after the
source. So a trace of bare ids is that of another input, with other probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from heed.data.tokenizers.tokenizer import Tokenizer
from heed.models import LanguageModel, Translator
from heed.models.inference import evaluating
from heed.models.trace import Trace

if TYPE_CHECKING:
    from heed.pipelines.classify import ClassificationPipeline, Text


@dataclass
class TextTrace(Trace):
    """A trace of one text, with the tokens that were read, special tokens included."""

    tokens: list[str] = field(default_factory=list)
    """The tokens along n: the classified text, the prompt, or the translation."""
    source_tokens: list[str] = field(default_factory=list)
    """The tokens along m: the source of a translation."""


def trace_classification(pipeline: ClassificationPipeline, text: Text) -> TextTrace:
    """The trace of what `classify` reads of a text; its logits are those before calibration."""
    (ids,) = pipeline.input_ids([text])
    model = pipeline.model
    with evaluating(model):
        trace = model.trace(_batch_of_one(model, ids))
    return TextTrace(**vars(trace), tokens=pipeline.tokenizer.ids_to_tokens(ids))


def trace_language_model(model: LanguageModel, tokenizer: Tokenizer, text: str) -> TextTrace:
    """The trace of a text after a begin token; row i of the logits predicts the token after i."""
    ids = [tokenizer.specials.bos, *tokenizer.encode(text)]
    with evaluating(model):
        trace = model.trace(_batch_of_one(model, ids))
    return TextTrace(**vars(trace), tokens=tokenizer.ids_to_tokens(ids))


def trace_translation(
    model: Translator, tokenizer: Tokenizer, source: str, translation: str
) -> TextTrace:
    """The trace of a translation that is forced token by token.

    Row i of the logits, and of the decoder's attention, predicts the token after token i.
    """
    specials = tokenizer.specials
    source_ids = [*tokenizer.encode(source), specials.eos]
    ids = [specials.bos, *tokenizer.encode(translation)]
    with evaluating(model):
        trace = model.trace(_batch_of_one(model, source_ids), _batch_of_one(model, ids))
    return TextTrace(
        **vars(trace),
        tokens=tokenizer.ids_to_tokens(ids),
        source_tokens=tokenizer.ids_to_tokens(source_ids),
    )


def _batch_of_one(model: torch.nn.Module, ids: list[int]) -> Tensor:
    return torch.tensor([ids], device=next(model.parameters()).device)
