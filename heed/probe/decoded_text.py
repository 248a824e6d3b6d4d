"""A decoded text with everything behind it: probabilities, alternatives, beam tree, attention.

The text is the one that the pipeline returns for the same settings. With a forced prefix it is the
pipeline's continuation of these tokens.

Shapes: n tokens of the output, m tokens of the source, both with their end token.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heed.data.tokenizers.tokenizer import Tokenizer
from heed.decode.alignment import cross_weights
from heed.decode.detokenize import IncrementalDetokenizer
from heed.decode.forced_prefix import force_prefix
from heed.decode.search_trace import (
    ALTERNATIVES,
    Alternative,
    Node,
    OnStep,
    SearchTrace,
    TokenChoice,
    TracedSearch,
)
from heed.decode.settings import build_strategy
from heed.errors import DataError
from heed.models.inference import evaluating
from heed.pipelines.generate import GenerationPipeline, PromptSample
from heed.pipelines.translate import TranslationPipeline
from heed.probe.attention_maps import Floats


@dataclass(frozen=True, repr=False)
class DecodedText:
    """What a search made of one text, and every step of it."""

    texts: list[str]
    """The text of each hypothesis, the best first."""
    trace: SearchTrace
    tokenizer: Tokenizer
    input_ids: list[int]
    """What the model read: the source with its end token, or the prompt with its begin token."""
    cross: dict[int, Floats]
    """Cross-attention [n, m] by layer, averaged over its heads; a language model has none.

    Row i is the attention that the model wrote token i with.
    """

    @property
    def text(self) -> str:
        """The best text."""
        return self.texts[0]

    @property
    def tokens(self) -> list[TokenChoice]:
        """The tokens of the best hypothesis, its end token included where it has one."""
        return self.trace.best

    @property
    def is_cut(self) -> bool:
        """Whether the length limit ended the best hypothesis."""
        return self.trace.hypotheses[0].cut

    def __repr__(self) -> str:
        return f"DecodedText({self.text!r}: {len(self.tokens)} tokens, {len(self.texts)} texts)"

    def to_dict(self) -> dict[str, Any]:
        """The fields for JSON; layers are counted from 0, nodes by their index.

        `nodes` are the tree of a beam, without alternatives; `tokens` are those of the best path.
        """
        trace, name = self.trace, self.tokenizer
        path = trace.path(trace.leaves[0])
        rows = zip(self.texts, trace.hypotheses, trace.leaves, strict=True)
        hypotheses = [
            {"text": text, "score": one.score, "logprob": one.logprob, "cut": one.cut, "node": leaf}
            for text, one, leaf in rows
        ]
        return {
            "text": self.text,
            "cut": self.is_cut,
            "input_tokens": name.ids_to_tokens(self.input_ids),
            "tokens": [node_to_dict(trace.nodes[i], name) | {"node": i} for i in path],
            "hypotheses": hypotheses,
            "nodes": [node_to_dict(node, name, alternatives=False) for node in trace.nodes],
            "attention": [
                {"layer": layer, "weights": encode_floats(weights_nm)}
                for layer, weights_nm in self.cross.items()
            ],
        }


def node_to_dict(node: Node, tokenizer: Tokenizer, *, alternatives: bool = True) -> dict[str, Any]:
    """A node for JSON: its token, and the hypothesis that ends with it."""
    fields = _token_to_dict(node.choice, tokenizer) | {
        "rank": node.choice.rank,
        "parent": node.parent,
        "depth": node.depth,
        "total": node.logprob,
        "score": node.score,
        "ended": node.ended,
    }
    if alternatives:
        others = [_token_to_dict(one, tokenizer) for one in node.choice.alternatives]
        fields["alternatives"] = others
    return fields


def _token_to_dict(one: Alternative, tokenizer: Tokenizer) -> dict[str, Any]:
    (token,) = tokenizer.ids_to_tokens([one.id])
    probability = math.exp(one.logprob)
    fields = {"id": one.id, "token": token, "logprob": one.logprob, "probability": probability}
    return fields if one.drawn is None else fields | {"drawn": one.drawn}


def encode_floats(values: Floats) -> str:
    """Numbers as base64 of little-endian float32, row by row."""
    return base64.b64encode(values.astype("<f4").tobytes()).decode()


def decode_translation(
    pipeline: TranslationPipeline,
    text: str,
    *,
    prefix: Sequence[int] = (),
    max_tokens: int | None = None,
    alternatives: int = ALTERNATIVES,
    on_step: OnStep | None = None,
) -> DecodedText:
    """The translation of a text by a pipeline's models and settings, with every step of it.

    `prefix` are the ids that the translation begins with. `max_tokens` replaces the limit of the
    settings. `on_step` gets the new nodes of each step.
    """
    settings, specials = pipeline.settings, pipeline.tokenizer.specials
    if not text.strip():
        raise DataError("there is no text to translate.", todo="Give a text that is not blank.")
    ids = pipeline.tokenizer.encode(text)
    if len(ids) > pipeline.max_source:
        raise DataError(
            f"this text has {len(ids):,} tokens, and this model reads {pipeline.max_source:,}.",
            todo="Shorten it, or translate it in parts with `heed translate`.",
        )
    ratio, extra = settings.max_ratio, settings.max_extra
    if max_tokens is not None:
        ratio, extra = 0.0, max_tokens
    _check_prefix(prefix, pipeline.tokenizer, max(1, int(ratio * len(ids)) + extra))
    search = TracedSearch(
        pipeline.models,
        force_prefix(build_strategy(settings, settings.beam), prefix),
        alternatives=alternatives,
        on_step=on_step,
        begin=pipeline.begin,
        specials=specials,
    )
    trace = search.trace_source(ids, max_ratio=ratio, max_extra=extra)
    (choices,) = pipeline.choices([text], [ids], [trace.hypotheses])
    target = [choice.id for choice in trace.best]
    with evaluating(pipeline.models[0]):
        layers = cross_weights(pipeline.models[0], [(ids, target)], pipeline.begin, specials)
    cross = {
        layer: np.asarray(weights_bhnm[0].float().mean(dim=0).cpu().numpy())
        for layer, weights_bhnm in enumerate(layers)
        if weights_bhnm.shape[1]  # all heads of a layer may have been pruned
    }
    texts = [choice.text for choice in choices]
    return DecodedText(texts, trace, pipeline.tokenizer, [*ids, specials.eos], cross)


def decode_continuation(
    pipeline: GenerationPipeline,
    prompt: str,
    *,
    length: int,
    prefix: Sequence[int] = (),
    alternatives: int = ALTERNATIVES,
    on_step: OnStep | None = None,
) -> DecodedText:
    """The continuation of a prompt by at most `length` tokens, with every step of it.

    `prefix` are the ids that the continuation begins with; `length` counts them.
    """
    tokenizer, settings = pipeline.tokenizer, pipeline.settings
    ids = pipeline.encode_prompt(prompt, length, False)
    limit = min(length, pipeline.tokens_left(len(ids)))
    _check_prefix(prefix, tokenizer, limit)
    beams = 1 if settings.sample else settings.beam
    search = TracedSearch(
        [pipeline.model],
        force_prefix(build_strategy(settings, beams, PromptSample), prefix),
        alternatives=alternatives,
        on_step=on_step,
        specials=tokenizer.specials,
    )
    trace = search.trace_prompt(ids, max_tokens=limit)
    texts = []
    for one in trace.hypotheses:
        detokenizer = IncrementalDetokenizer(tokenizer, ids)
        texts.append(detokenizer.add(one.ids) + detokenizer.end())
    return DecodedText(texts, trace, tokenizer, ids, {})


def _check_prefix(prefix: Sequence[int], tokenizer: Tokenizer, limit: int) -> None:
    tokens, specials = tokenizer.ids_to_tokens(prefix), tokenizer.specials
    if len(prefix) > limit:
        what = f"the prefix has {len(prefix):,} tokens, and the length limit is {limit:,}."
        raise DataError(what, todo="Shorten the prefix, or allow a longer output.")
    for position, (token, name) in enumerate(zip(prefix, tokens, strict=True), 1):
        where = f"token {position} of the prefix"
        if token in specials.suppressed_ids:
            raise DataError(f"{name} is never written.", where=where, todo="Leave it out.")
        if token == specials.eos and position < len(prefix):
            what = f"nothing is written after {name}."
            raise DataError(what, where=where, todo="Leave out what follows.")
