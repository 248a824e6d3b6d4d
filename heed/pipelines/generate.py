"""The generation pipeline: prompts to ids, through a language model, and back to text.

Every sample is a separate input to the search, so many samples of one prompt cost no more than
samples of as many prompts. Sample j of prompt i uses the random stream of `seed`, i and j: it is
the same alone as among others, and its first tokens are the same for every `length`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from heed.config import DecodeConfig
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.decode.detokenize import StreamedText
from heed.decode.sampling import Sample
from heed.decode.search import Search
from heed.decode.settings import build_strategy
from heed.decode.strategy import Hypothesis, IndependentStrategy
from heed.decode.streaming import OnTokens, StreamingSearch
from heed.errors import ConfigError, DataError
from heed.files import to_json
from heed.models import LanguageModel
from heed.models.inference import position_limit
from heed.pipelines.line_io import LineResult

MAX_SAMPLES = 1 << 20
"""More samples than any prompt has: sample j of prompt i has number i·MAX_SAMPLES + j."""
MOST_SAMPLES, MOST_TOKENS = 100_000, 100_000
"""Samples of one prompt, and new tokens of one sample, that may be asked for."""
MAX_PROMPT = 1 << 13
"""Longest prompt in tokens, unless the model was trained on longer ones: reading a prompt takes
memory in proportion to the square of its length."""
INPUTS_AT_ONCE = 1 << 12
"""Samples of all prompts that are decoded and kept at once."""
OnText = Callable[[int, int, str], None]
"""Called with a prompt's number, a sample's number and the new text of that sample."""


@dataclass(frozen=True)
class Continuation:
    """A generated continuation of a prompt."""

    prompt: str
    prompt_tokens: int
    """Tokens of the prompt that the model read, the begin token included."""
    text: str
    """Without the prompt, and up to a stop string if one was generated."""
    tokens: int
    logprob: float
    """The sum of the model's log-probabilities of all tokens, the end token included."""
    ended: str
    """What ended it: the model ("end"), a stop string ("stop"), the requested length ("length"),
    or the model's last position ("positions")."""

    @property
    def whole(self) -> str:
        """The prompt and its continuation."""
        return self.prompt + self.text

    def to_dict(self, sample: int) -> dict[str, Any]:
        """The fields for JSON."""
        return {
            "prompt": self.prompt,
            "sample": sample,
            "text": self.whole,
            "continuation": self.text,
            "tokens": self.tokens,
            "logprob": self.logprob,
            "ended": self.ended,
        }


class PromptSample(Sample):
    """Sampling in which input number n is sample n % MAX_SAMPLES of prompt n // MAX_SAMPLES."""

    def stream(self, number: int, sample: int) -> np.random.Generator:
        """The random generator of that sample of that prompt, in whatever batch it is drawn."""
        prompt, sample_of_prompt = divmod(number, MAX_SAMPLES)
        return super().stream(prompt, sample_of_prompt)


class GenerationPipeline:
    """Continues prompts with a language model, with one set of decode settings."""

    def __init__(
        self, model: LanguageModel, tokenizer: Tokenizer, settings: DecodeConfig, *, context: int
    ) -> None:
        """`context` is how many tokens the model was trained to read at once."""
        self.model, self.tokenizer, self.settings = model, tokenizer, settings
        self.context = context
        limit = position_limit([model])
        self.max_positions = None if limit is None else min(limit, context)
        """How many positions there are; None if unlimited."""
        self.prompt_limit = self.max_positions or max(MAX_PROMPT, context)
        """Tokens of the longest prompt, the begin token included."""
        self._searches: dict[int, Search] = {}
        """By hypotheses per prompt; reused for what they captured on a GPU."""

    def generate(
        self,
        prompts: Sequence[str],
        *,
        length: int,
        samples: int = 1,
        stop: Sequence[str] = (),
        first: int = 0,
        cut_prompt: bool = False,
        on_text: OnText | None = None,
    ) -> list[list[Continuation]]:
        """For each prompt `samples` continuations (or what a beam returns) of `length` tokens.

        `first` is the number of the first prompt. With `cut_prompt`, a prompt's oldest tokens are
        dropped if it and `length` more tokens exceed what the model was trained to read, but half
        of that is left to the prompt. `on_text` gets the text of each sample as it is generated.
        """
        _check_arguments(length, samples, stop)
        continuations: list[list[Continuation]] = []
        at_once = max(1, INPUTS_AT_ONCE // samples)
        for start in range(0, len(prompts), at_once):
            part = prompts[start : start + at_once]
            continuations += self._generate(
                part, length, samples, stop, first + start, cut_prompt, on_text
            )
        return continuations

    def _generate(
        self,
        prompts: Sequence[str],
        length: int,
        samples: int,
        stop: Sequence[str],
        first: int,
        cut_prompt: bool,
        on_text: OnText | None,
    ) -> list[list[Continuation]]:
        """The continuations of a few prompts, decoded together."""
        prompt_ids = [self._encode_prompt(prompt, length, cut_prompt) for prompt in prompts]
        limits = [min(length, self._tokens_left(len(ids))) for ids in prompt_ids]
        streamed = [
            [StreamedText(self.tokenizer, ids, stop) for _ in range(samples)] for ids in prompt_ids
        ]

        def on_tokens(number: int, ids: list[int]) -> bool:
            prompt, sample = divmod(number, MAX_SAMPLES)
            text = streamed[prompt - first][sample]
            new = text.add(ids)
            if on_text is not None and new:
                on_text(prompt, sample, new)
            return text.stopped

        search = self._search(samples, on_tokens if stop or on_text else None)
        hypotheses = self._decode(search, prompt_ids, limits, first, samples)
        continuations: list[list[Continuation]] = []
        for i, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
            limited_by = "length" if limit == length else "positions"
            of_prompt = []
            # A beam returns fewer than requested where the vocabulary is very small.
            for j, (hypothesis, text) in enumerate(zip(hypotheses[i], streamed[i], strict=False)):
                new = text.add(hypothesis.ids[text.tokens :]) + text.end()
                if on_text is not None and new:
                    on_text(first + i, j, new)
                ended = "stop" if text.stopped else limited_by if hypothesis.cut else "end"
                tokens, logprob = len(hypothesis.ids), hypothesis.logprob
                read = len(prompt_ids[i])
                of_prompt.append(Continuation(prompt, read, text.text, tokens, logprob, ended))
            continuations.append(of_prompt)
        return continuations

    def _search(self, samples: int, on_tokens: OnTokens | None) -> Search:
        """A streaming search only where there is a callback: it is slower."""
        options: dict[str, Any] = {
            "batch_size": self.settings.batch_size,
            "specials": self.tokenizer.specials,
        }
        beams = 1 if self.settings.sample else samples  # every sample is a separate input
        strategy = build_strategy(self.settings, beams, PromptSample)
        if on_tokens is not None and isinstance(strategy, IndependentStrategy):
            return StreamingSearch([self.model], strategy, on_tokens, **options)
        if beams not in self._searches:
            self._searches[beams] = Search([self.model], strategy, **options)
        return self._searches[beams]

    def _decode(
        self,
        search: Search,
        prompt_ids: list[list[int]],
        limits: list[int],
        first: int,
        samples: int,
    ) -> list[list[Hypothesis]]:
        """The hypotheses of every prompt."""
        inputs = samples if isinstance(search.strategy, PromptSample) else 1
        hypotheses: list[list[Hypothesis]] = [[] for _ in prompt_ids]
        for limit in sorted(set(limits)):  # one limit for all, except where positions end
            rows = [i for i, each in enumerate(limits) if each == limit for _ in range(inputs)]
            results = search.generate(
                [prompt_ids[i] for i in rows],
                max_tokens=limit,
                numbers=[(first + i) * MAX_SAMPLES + n % inputs for n, i in enumerate(rows)],
            )
            for i, result in zip(rows, results, strict=True):
                hypotheses[i] += result
        return hypotheses

    def _tokens_left(self, tokens: int) -> int:
        """How many tokens may follow this many."""
        return MAX_SAMPLES if self.max_positions is None else max(1, self.max_positions - tokens)

    def _encode_prompt(self, prompt: str, length: int, cut: bool) -> list[int]:
        """The ids of a prompt after the begin token; too many of them are an error."""
        ids = [self.tokenizer.specials.bos, *self.tokenizer.encode(prompt)]
        if cut:
            most = self.max_positions or self.context
            return ids[-max(most - length, most // 2, 1) :]
        limit = self.prompt_limit
        if len(ids) > limit:
            has = "has positions for" if self.max_positions else "reads at most"
            raise DataError(
                f"this prompt has {len(ids) - 1:,} tokens, but the model {has} {limit - 1:,}.",
                todo="Shorten it, or drop its oldest tokens (--cut-prompt).",
            )
        return ids


def _check_arguments(length: int, samples: int, stop: Sequence[str]) -> None:
    complaints = []
    if not 1 <= length <= MOST_TOKENS:
        complaints.append(f"length cannot be {length}: ask for 1 to {MOST_TOKENS:,} tokens.")
    if not 1 <= samples <= MOST_SAMPLES:
        complaints.append(f"samples cannot be {samples}: ask for 1 to {MOST_SAMPLES:,}.")
    if any(not word for word in stop):
        complaints.append("stop cannot be empty: every text contains the empty string.")
    if complaints:
        raise ConfigError(complaints)


@dataclass(frozen=True)
class GenerationLines:
    """The line task of `heed generate`: continues every line, `samples` times.

    With `stream_to`, one sample per prompt is written there while it is generated.
    """

    pipeline: GenerationPipeline
    length: int
    samples: int = 1
    stop: Sequence[str] = ()
    cut_prompt: bool = False
    json: bool = False
    stream_to: BinaryIO | None = None

    def run(self, lines: Sequence[str], *, first: int) -> Iterator[LineResult]:
        """One result per prompt: its texts, one per line, or none if they were streamed."""
        if self.stream_to is not None and self.samples == 1 and not self.json:
            for i, prompt in enumerate(lines):
                yield self._stream(prompt, self.stream_to, first + i)
            return
        for number, continuations in enumerate(self._generate(lines, first), first + 1):
            texts = [
                to_json(one.to_dict(sample)) if self.json else one.whole
                for sample, one in enumerate(continuations)
            ]
            yield LineResult(texts, self._warning(number, continuations))

    def summary(self) -> str | None:
        """Nothing to report."""
        return None

    def _stream(self, prompt: str, out: BinaryIO, index: int) -> LineResult:
        """Write a text while it is generated; the result is the end of its line."""

        def on_text(_: int, __: int, text: str) -> None:
            out.write(text.encode("utf-8", "replace"))
            out.flush()

        on_text(index, 0, prompt)
        [continuations] = self._generate([prompt], index, on_text)
        return LineResult([""], self._warning(index + 1, continuations))

    def _generate(
        self, prompts: Sequence[str], first: int, on_text: OnText | None = None
    ) -> list[list[Continuation]]:
        return self.pipeline.generate(
            prompts,
            length=self.length,
            samples=self.samples,
            stop=self.stop,
            first=first,
            cut_prompt=self.cut_prompt,
            on_text=on_text,
        )

    def _warning(self, number: int, continuations: Sequence[Continuation]) -> str | None:
        context = self.pipeline.context
        read = max((one.prompt_tokens for one in continuations), default=0)
        if read > context:
            return (
                f"prompt {number}: has {read:,} tokens, and the model was trained on at most "
                f"{context:,}, so its text may be poor (--cut-prompt drops the oldest)."
            )
        if all(one.ended != "positions" for one in continuations):
            return None
        hint = "" if self.cut_prompt else " (--cut-prompt makes room)"
        return f"prompt {number}: ended where the model's positions end{hint}."
