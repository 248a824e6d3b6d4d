"""The trace of a text: a forward pass over the very tokens that a pipeline gives its model.

`tokenizer.encode` returns a text's own tokens. A model reads more: a classifier its text between
begin and end token, a language model a begin token first, a translator an end token after the
source. So a trace of bare ids is that of another input, with other probabilities.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heed.data.batching.padding import pad_sequences
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.decode.alignment import decode_words
from heed.errors import HeedWarning
from heed.models import LanguageModel, Model, Translator
from heed.models.inference import evaluating, position_limit
from heed.models.trace import Trace

if TYPE_CHECKING:
    from heed.pipelines.classify import ClassificationPipeline, Text
    from heed.pipelines.translate import TranslationPipeline

MAX_TOKENS = 2048
"""Tokens of a text that are traced: the size of a map grows with the square of its length."""


MAX_WEIGHTS = 1 << 24
"""Attention weights of a batch, over all layers and heads."""


@dataclass(frozen=True)
class TokenLabels:
    """The tokens along one axis of a map, in readable form, and the words that they belong to."""

    tokens: list[str]
    words: list[int | None]
    """The index of each token's word; None for a special token that no text has."""
    word_texts: list[str]
    """The words of the text."""
    start: int = 1
    """The number of the first token for a person: a text's tokens count from 1, a begin token is 0.
    So a target's token has one number as an input of the decoder and as what it writes."""

    def __post_init__(self) -> None:
        if not self.word_texts:  # a text of spaces alone has tokens and no word
            object.__setattr__(self, "words", [None] * len(self.tokens))

    def __len__(self) -> int:
        return len(self.tokens)

    def units(self) -> NDArray[np.int64]:
        """For each token the number of its unit: a word, or a special token by itself."""
        starts = [
            i == 0 or word is None or word != self.words[i - 1] for i, word in enumerate(self.words)
        ]
        return np.cumsum(np.array(starts, np.int64)) - 1

    def by_word(self) -> TokenLabels:
        """One label for each unit."""
        units = self.units()
        firsts = [int(np.argmax(units == unit)) for unit in range(units.max(initial=-1) + 1)]
        words = [self.words[i] for i in firsts]
        names = [
            self.tokens[i] if word is None else self.word_texts[word]
            for i, word in zip(firsts, words, strict=True)
        ]
        return TokenLabels(names, words, self.word_texts, self.start)


@dataclass(frozen=True)
class InputTokens:
    """What a model reads of one text: the ids of its tokens, special tokens included."""

    ids: list[int]
    labels: TokenLabels
    text: str
    """The text as it came in, also where only its beginning is read."""
    written: list[int] = field(default_factory=list)
    """For a decoder, the id that each position writes: the next one. The last may write nothing."""
    following: TokenLabels | None = None
    """The tokens that a translator's decoder writes."""


@dataclass
class TextTrace(Trace):
    """A trace of one text, with the tokens that were read, special tokens included."""

    tokens: list[str] = field(default_factory=list)
    """The tokens along n: the classified text, the prompt, or the translation."""
    source_tokens: list[str] = field(default_factory=list)
    """The tokens along m: the source of a translation."""


# ------------------------------------------------------------------- what a model reads of a text


def classifier_input(pipeline: ClassificationPipeline, text: Text) -> InputTokens:
    """What `classify` reads of a text or pair: its tokens between begin and end token."""
    (ids,) = pipeline.input_ids([text])
    parts = (text,) if isinstance(text, str) else text
    words: list[int | None] = []
    texts: list[str] = []
    for part in parts:
        words += [None, *(len(texts) + word for word in pipeline.tokenizer.word_indices(part))]
        texts += part.split()
    if len(words) + 1 > len(ids):
        _warn_cut(len(words) - 1, len(ids) - 2, "tokens of the text")
    words = [*words[: len(ids) - 1], None]
    labels = TokenLabels(pipeline.tokenizer.ids_to_tokens(ids), words, texts, start=0)
    return InputTokens(ids, labels, " ⇥ ".join(parts))


def language_model_input(
    model: LanguageModel, tokenizer: Tokenizer, text: str, *, limit: int
) -> InputTokens:
    """What `generate` reads of a prompt: a begin token, then its tokens, at most `limit`.

    A masked language model reads its text between begin and end token, as in training.
    """
    specials, ids = tokenizer.specials, tokenizer.encode(text)
    words: list[int | None] = [*tokenizer.word_indices(text)]
    room = max(0, min(limit, MAX_TOKENS) - (1 if model.causal else 2))
    ids, words = _cut(ids, room, "tokens of the text"), words[:room]
    end = [] if model.causal else [specials.eos]
    ids, words = [specials.bos, *ids, *end], [None, *words, *(None for _ in end)]
    labels = TokenLabels(tokenizer.ids_to_tokens(ids), words, text.split(), start=0)
    return InputTokens(ids, labels, text, ids[1:] if model.causal else [])


def source_input(tokenizer: Tokenizer, text: str, *, max_source: int) -> InputTokens:
    """What `translate` reads of a text: its tokens, then an end token."""
    words: list[int | None] = [*tokenizer.word_indices(text)]
    room = min(max_source, MAX_TOKENS)
    ids = [*_cut(tokenizer.encode(text), room, "tokens of the source"), tokenizer.specials.eos]
    labels = TokenLabels(tokenizer.ids_to_tokens(ids), [*words[:room], None], text.split())
    return InputTokens(ids, labels, text)


def target_input(
    model: Translator, tokenizer: Tokenizer, target: str, *, begin: int | None = None
) -> InputTokens:
    """What a decoder reads while it writes this target: a begin token, then the target's tokens."""
    ids, words = tokenizer.encode(target), tokenizer.word_indices(target)
    read = _target_tokens(model, tokenizer, ids, words, target.split(), begin)
    if len(read.ids) <= len(ids):
        _warn_cut(len(ids), len(read.ids) - 1, "tokens of the target")
    return replace(read, text=target)


def translation_inputs(
    pipeline: TranslationPipeline, text: str, translation: str | None = None
) -> tuple[InputTokens, InputTokens]:
    """What a translator reads of a text, and of its translation: by default its own.

    The tokens of its own translation are those that the search found, however the tokenizer would
    segment that text.
    """
    model, tokenizer, settings = pipeline.models[0], pipeline.tokenizer, pipeline.settings
    source = source_input(tokenizer, text, max_source=pipeline.max_source)
    if translation is not None:
        return source, target_input(model, tokenizer, translation, begin=pipeline.begin)
    ids: list[int] = []
    is_cut = False
    if text.strip():
        ((best, *_),) = pipeline.search.translate(
            [source.ids[:-1]], max_ratio=settings.max_ratio, max_extra=settings.max_extra
        )
        ids, is_cut = list(best.ids), best.cut
    words_text, words = decode_words(tokenizer, ids)
    read = _target_tokens(
        model, tokenizer, ids, words, words_text.split(), pipeline.begin, ended=not is_cut
    )
    return source, read


def _target_tokens(
    model: Translator,
    tokenizer: Tokenizer,
    ids: Sequence[int],
    words: Sequence[int],
    word_texts: list[str],
    begin: int | None,
    *,
    ended: bool = True,
) -> InputTokens:
    """A begin token and a target's tokens; the last where something follows it.

    Nothing follows where the length limit ended a translation, or the model has no position left.
    """
    begin = tokenizer.specials.bos if begin is None else begin
    limit = min(MAX_TOKENS, position_limit([model]) or MAX_TOKENS)
    count = max(1, min(limit, len(ids) + ended))
    read = [begin, *ids][:count]
    written = [*ids, tokenizer.specials.eos][:count]
    labels = TokenLabels(tokenizer.ids_to_tokens(read), [None, *words][:count], word_texts, start=0)
    following = TokenLabels(tokenizer.ids_to_tokens(written), [*words, None][:count], word_texts)
    return InputTokens(read, labels, " ".join(word_texts), written, following)


def _cut(ids: list[int], limit: int, what: str) -> list[int]:
    """The first ids, with a warning if there are more."""
    if len(ids) > limit:
        _warn_cut(len(ids), limit, what)
    return ids[:limit]


def _warn_cut(count: int, limit: int, what: str) -> None:
    message = f"only the first {limit:,} of {count:,} {what} are read: that is the limit."
    warnings.warn(message, HeedWarning, stacklevel=2)


# ----------------------------------------------------------------------------------------- traces


def count_traceable(model: Model, length: int) -> int:
    """How many texts of this length may be traced in one batch, for memory's sake; at least one."""
    config = model.config
    layers = config.layers + 2 * (config.decoder_layers or config.layers)
    return max(1, MAX_WEIGHTS // (config.heads * layers * length**2))


def trace_batch(
    model: Model,
    inputs: Sequence[InputTokens],
    sources: Sequence[InputTokens] = (),
    *,
    pad: int = 0,
) -> Trace:
    """One forward pass over a batch, padded on the right; a translator needs the sources."""
    ids_bn, real_bn = pad_batch(model, inputs, pad)
    with evaluating(model):
        if isinstance(model, Translator):
            source_bm, source_real_bm = pad_batch(model, sources, pad)
            return model.trace(source_bm, ids_bn, mask=source_real_bm, target_mask=real_bn)
        return model.trace(ids_bn, mask=real_bn)


def pad_batch(
    model: torch.nn.Module, inputs: Sequence[InputTokens], pad: int
) -> tuple[Tensor, Tensor | None]:
    """Ids [b, n] on the model's device, and where they are real; None where all are."""
    device, longest = next(model.parameters()).device, max(len(one.ids) for one in inputs)
    ids_bn, real_bn = pad_sequences([np.array(one.ids) for one in inputs], longest, pad)
    return ids_bn.to(device), None if real_bn.all() else real_bn.to(device)


def trace_inputs(model: Model, text: InputTokens, source: InputTokens | None = None) -> TextTrace:
    """The trace of one text, and of its source if it is a translation.

    Row i of a decoder's logits, and of its attention, predicts the token after token i.
    """
    trace = trace_batch(model, [text], [] if source is None else [source])
    return TextTrace(
        **vars(trace),
        tokens=text.labels.tokens,
        source_tokens=[] if source is None else source.labels.tokens,
    )
