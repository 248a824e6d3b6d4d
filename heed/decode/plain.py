"""Plain greedy and beam search, as a course writes them: one input, no cache, no batches.

Every token takes a full forward pass over the hypothesis so far. This is the reference for the fast
search (`heed.decode.search`): tests check that both return the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from heed.data.tokenizers.special_tokens import DEFAULT_SPECIALS
from heed.decode.strategy import Hypothesis
from heed.models import LanguageModel, Translator

BOS, EOS = DEFAULT_SPECIALS.bos, DEFAULT_SPECIALS.eos
NextLogprobs = Callable[[list[int]], Tensor]
"""From the tokens so far to the log-probability of every next token [v]."""


def greedy_search(next_logprobs: NextLogprobs, max_tokens: int) -> Hypothesis:
    """Append the most probable token until it is the end token or the limit is reached."""
    ids: list[int] = []
    logprob, ended = 0.0, False
    while not ended and len(ids) < max_tokens:
        logprobs = next_logprobs(ids)
        token = int(logprobs.argmax())
        logprob += float(logprobs[token])
        ended = token == EOS
        if not ended:
            ids.append(token)
    return Hypothesis(ids, logprob / (len(ids) + ended), logprob, cut=not ended)


def beam_search(
    next_logprobs: NextLogprobs,
    beams: int,
    max_tokens: int,
    *,
    length_penalty: float = 1.0,
    early_stop: bool = False,
) -> list[Hypothesis]:
    """The best hypotheses, at most `beams`, ranked by logprob / length^length_penalty.

    Hypotheses that the limit cut come after those that the model ended.
    """
    running: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[Hypothesis] = []
    for length in range(1, max_tokens + 1):
        candidates = [
            (logprob + token_logprob, [*ids, token])
            for logprob, ids in running
            for token, token_logprob in enumerate(next_logprobs(ids).tolist())
        ]
        candidates = sorted(candidates, key=lambda candidate: -candidate[0])[: 2 * beams]
        for logprob, ids in candidates[:beams]:
            if ids[-1] == EOS:
                score = logprob / length**length_penalty
                finished.append(Hypothesis(ids[:-1], score, logprob, cut=False))
        finished = sorted(finished, key=lambda hypothesis: -hypothesis.score)[:beams]
        running = [(logprob, ids) for logprob, ids in candidates if ids[-1] != EOS][:beams]
        best_running = running[0][0] / length**length_penalty
        if len(finished) == beams and (early_stop or best_running <= finished[-1].score):
            return finished
    cut = [Hypothesis(ids, p / max_tokens**length_penalty, p, cut=True) for p, ids in running]
    return [*finished, *cut][:beams]


def translation_logprobs(model: Translator, source: Sequence[int]) -> NextLogprobs:
    """A translator's next-token log-probabilities for a source (ids without an end token)."""

    @torch.no_grad()
    def next_logprobs(ids: list[int]) -> Tensor:
        logits_bnv = model(torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *ids]]))
        return logits_bnv[0, -1].log_softmax(dim=-1)

    return next_logprobs


def continuation_logprobs(model: LanguageModel, prompt: Sequence[int]) -> NextLogprobs:
    """A language model's next-token log-probabilities after a prompt (ids with a begin token)."""

    @torch.no_grad()
    def next_logprobs(ids: list[int]) -> Tensor:
        return model(torch.tensor([[*prompt, *ids]]))[0, -1].log_softmax(dim=-1)

    return next_logprobs
