"""Prompts in, texts out: what stands between a language model and who wants to read it.

Every sample is a text of its own to the search, so many samples of one prompt cost no more than
samples of as many prompts. Sample j of prompt i draws from the stream of `seed`, i and j: it is the
same alone as among others, and its first tokens are the same however long it may get.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heed.config import DecodeConfig
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.decode.detokenize import StreamedText
from heed.decode.sampling import Sample
from heed.decode.search import Search
from heed.decode.strategy import Hypothesis, IndependentStrategy
from heed.decode.streaming import StreamingSearch
from heed.errors import ConfigError, DataError
from heed.models import LanguageModel
from heed.models.inference import position_limit
from heed.pipelines.translate import strategy

MANY = 1 << 20
"""More samples than a prompt has: what tells the samples of one from those of the next."""
Tell = Callable[[int, int, str], None]
"""Told a prompt's number, a sample's number and the text that is new of it."""


@dataclass(frozen=True)
class Continuation:
    """How a text goes on after its prompt."""

    prompt: str
    text: str
    """Without the prompt, and up to a stop string where one was met."""
    tokens: int
    logprob: float
    """The sum over all tokens, the end mark too, as the model itself has it."""
    ended: str
    """By what: the model ("end"), a stop string ("stop"), the length asked for ("length"), or the
    end of the model's positions ("positions")."""

    @property
    def whole(self) -> str:
        """The text from the beginning of its prompt."""
        return self.prompt + self.text

    def facts(self, sample: int) -> dict[str, Any]:
        """The same for a program."""
        return {
            "prompt": self.prompt,
            "sample": sample,
            "text": self.whole,
            "continuation": self.text,
            "tokens": self.tokens,
            "logprob": self.logprob,
            "ended": self.ended,
        }


class Samples(Sample):
    """Sampling in which text number n is sample n % MANY of prompt n // MANY."""

    def stream(self, number: int, lane: int) -> np.random.Generator:
        """What that sample of that prompt draws from: the same in whatever way it is asked for."""
        prompt, sample = divmod(number, MANY)
        return super().stream(prompt, sample)


class GenerationPipeline:
    """Goes on where prompts end, by one set of settings."""

    def __init__(
        self, model: LanguageModel, tokenizer: Tokenizer, settings: DecodeConfig, *, context: int
    ) -> None:
        """`context` is how many tokens the model learnt to read at once."""
        self.model, self.tokenizer, self.settings = model, tokenizer, settings
        ends = position_limit([model])
        self.positions = None if ends is None else min(ends, context)
        """How many places for tokens there are; None where there is no end to them."""
        self._searches: dict[int, Search] = {}
        """By hypotheses: what they captured on a GPU is of use again."""

    def write(
        self,
        prompts: Sequence[str],
        *,
        length: int,
        samples: int = 1,
        stop: Sequence[str] = (),
        first: int = 0,
        cut_prompt: bool = False,
        tell: Tell | None = None,
    ) -> list[list[Continuation]]:
        """For each prompt `samples` ways to go on, or as many as a beam found, of `length` tokens.

        `first` is the number of the first prompt. With `cut_prompt`, the oldest tokens of a prompt
        are left out where there is no room for it and `length` more, but it keeps half of all
        positions. `tell` is told the text of each sample while it is written.
        """
        _check(length, samples, stop)
        begun = [self._begun(prompt, length, cut_prompt) for prompt in prompts]
        limits = [min(length, self._room(len(ids))) for ids in begun]
        tellings = [
            [StreamedText(self.tokenizer, ids, stop) for _ in range(samples)] for ids in begun
        ]

        def hear(number: int, ids: list[int]) -> bool:
            prompt, sample = divmod(number, MANY)
            telling = tellings[prompt - first][sample]
            said = telling.hear(ids)
            if tell is not None and said:
                tell(prompt, sample, said)
            return telling.stopped

        search = self._search(samples, hear if stop or tell else None)
        written = self._written(search, begun, limits, first, samples)
        out: list[list[Continuation]] = []
        for i, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
            cut = "length" if limit == length else "positions"
            own = []
            # A beam finds fewer than it was asked for where there are hardly as many pieces.
            for j, (one, telling) in enumerate(zip(written[i], tellings[i], strict=False)):
                said = telling.hear(one.ids[telling.heard :]) + telling.end()
                if tell is not None and said:
                    tell(first + i, j, said)
                ended = "stop" if telling.stopped else cut if one.cut else "end"
                own.append(Continuation(prompt, telling.text, len(one.ids), one.logprob, ended))
            out.append(own)
        return out

    def _search(self, samples: int, hear: Callable[[int, list[int]], bool] | None) -> Search:
        """Aloud only where someone listens: that is slower."""
        told: dict[str, Any] = {
            "batch_size": self.settings.batch_size,
            "specials": self.tokenizer.specials,
        }
        lanes = 1 if self.settings.sample else samples  # every sample is a text of its own
        how = strategy(self.settings, lanes, Samples)
        if hear is not None and isinstance(how, IndependentStrategy):
            return StreamingSearch([self.model], how, hear, **told)
        if lanes not in self._searches:
            self._searches[lanes] = Search([self.model], how, **told)
        return self._searches[lanes]

    def _written(
        self, search: Search, begun: list[list[int]], limits: list[int], first: int, samples: int
    ) -> list[list[Hypothesis]]:
        """The samples of every prompt."""
        apart = samples if isinstance(search.how, Samples) else 1
        out: list[list[Hypothesis]] = [[] for _ in begun]
        for limit in sorted(set(limits)):  # all have the same, but where positions end
            rows = [i for i, own in enumerate(limits) if own == limit for _ in range(apart)]
            found = search.go_on(
                [begun[i] for i in rows],
                most=limit,
                numbers=[(first + i) * MANY + n % apart for n, i in enumerate(rows)],
            )
            for i, several in zip(rows, found, strict=True):
                out[i] += several
        return out

    def _room(self, tokens: int) -> int:
        """How many tokens may follow so many."""
        return MANY if self.positions is None else max(1, self.positions - tokens)

    def _begun(self, prompt: str, length: int, cut: bool) -> list[int]:
        """The ids of a prompt after the begin mark, if the model has places for them."""
        ids = [self.tokenizer.specials.bos, *self.tokenizer.encode(prompt)]
        if self.positions is None:
            return ids
        if cut:
            return ids[-max(self.positions - length, self.positions // 2) :]
        if len(ids) > self.positions:
            raise DataError(
                f"this prompt has {len(ids) - 1} tokens, and the model has learnt positions for "
                f"{self.positions - 1}.",
                todo="Shorten it, or leave out its oldest tokens (--cut-prompt).",
            )
        return ids


def _check(length: int, samples: int, stop: Sequence[str]) -> None:
    complaints = []
    if length < 1:
        complaints.append(f"length cannot be {length}: ask for 1 token or more.")
    if not 1 <= samples < MANY:
        complaints.append(f"samples cannot be {samples}: ask for 1 or more.")
    if any(not word for word in stop):
        complaints.append("stop cannot be empty: every text has that in it.")
    if complaints:
        raise ConfigError(complaints)
