"""Log-probabilities of the tokens of a completion, by one forward pass over prompt and text.

The pass is over this completion alone, padded to a fixed length beside a copy of itself, so that
its numbers do not depend on what else is decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from heed.decode.batch_plan import MIN_INPUTS, StateSizes
from heed.decode.detokenize import CONTEXT_TOKENS, IncrementalDetokenizer
from heed.models.inference import evaluating

if TYPE_CHECKING:
    from heed.api import LanguageModel
    from heed.data.tokenizers.tokenizer import Tokenizer
    from heed.pipelines.generate import Continuation


@dataclass(frozen=True)
class TokenLogprobs:
    """The tokens of a text, their log-probabilities, and the most probable tokens beside them."""

    tokens: list[str]
    logprobs: list[float]
    top: list[dict[str, float]]
    """For each token, the most probable tokens and itself, by their text."""
    offsets: list[int]
    """Where each token begins in the text."""


def score_continuation(
    model: LanguageModel,
    prompt_ids: Sequence[int],
    continuation: Continuation,
    *,
    top: int,
    with_prompt: bool,
) -> TokenLogprobs:
    """The log-probability of every token of a continuation, and of its prompt if requested.

    `prompt_ids` begin with the begin token. Tokens after a stop string are left out.
    """
    ids = [*prompt_ids, *continuation.ids]
    first = 1 if with_prompt else len(prompt_ids)
    texts = _token_texts(model.tokenizer, ids[1:first], ids[first:])
    whole = len(continuation.whole if with_prompt else continuation.text)
    offsets = [0]
    for text in texts:
        offsets.append(offsets[-1] + len(text))
    count = sum(offset < whole for offset in offsets[:-1]) if whole else 0
    if not count:
        return TokenLogprobs([], [], [], [])
    logprobs_nv = _next_logprobs(model, ids[:-1])[first - 1 : first - 1 + count]
    chosen = torch.tensor(ids[first : first + count])
    values = logprobs_nv.gather(1, chosen[:, None])[:, 0].tolist()
    best = logprobs_nv.topk(min(top, logprobs_nv.shape[1]), dim=1)
    tops = []
    for row in range(count):
        context = ids[max(0, first + row - CONTEXT_TOKENS) : first + row]
        others = _alternative_texts(model.tokenizer, context, best.indices[row].tolist())
        by_text: dict[str, float] = {}
        for text, value in zip(others, best.values[row].tolist(), strict=True):
            by_text.setdefault(text, value)  # of two with one text, the more probable
        tops.append(by_text | {texts[row]: values[row]})
    return TokenLogprobs(texts[:count], values, tops, offsets[:count])


def _next_logprobs(model: LanguageModel, ids: Sequence[int]) -> torch.Tensor:
    """The log-probabilities of the token after each of these [n, v]."""
    length = StateSizes(bucketed=False, fixed_lengths=True).padded_length(len(ids))
    specials, network = model.tokenizer.specials, model.model
    padded = torch.full((MIN_INPUTS, length), specials.pad)
    padded[:, : len(ids)] = torch.tensor(ids)
    device = network.embedding.table.weight.device
    mask = (torch.arange(length) < len(ids)).expand(MIN_INPUTS, -1)
    with evaluating(network):
        states = network.states(padded.to(device), mask=mask.to(device)).x_bnw
        logits = network.head(states[:, : len(ids)])[0].float()
        if specials.suppressed_ids:  # they are never generated
            logits[:, list(specials.suppressed_ids)] = -torch.inf
        return logits.log_softmax(dim=-1).cpu()


def _token_texts(tokenizer: Tokenizer, prompt: Sequence[int], ids: Sequence[int]) -> list[str]:
    """The text that each token adds after the prompt; they join to the text of all."""
    detokenizer = IncrementalDetokenizer(tokenizer, prompt)
    texts = [detokenizer.add([token]) for token in ids]
    if texts:
        texts[-1] += detokenizer.end()
    return texts


def _alternative_texts(
    tokenizer: Tokenizer, context: Sequence[int], tokens: Sequence[int]
) -> list[str]:
    """The text that each of these tokens would add after the context."""
    before = tokenizer.strip_special_tokens(context)
    stripped = [tokenizer.strip_special_tokens([token]) for token in tokens]
    start, *wholes = tokenizer.decode_batch([before, *([*before, *one] for one in stripped)])
    return [
        whole[len(start) :] if one else tokenizer.core.id_to_token(token) or f"<{token}>"
        for token, one, whole in zip(tokens, stripped, wholes, strict=True)
    ]
