"""The generation pipeline: prompts to ids, through a language model, and back to text.

Every sample is a separate input to the search, so many samples of one prompt cost no more than
samples of as many prompts. Sample j of prompt i uses the random stream of `seed`, i and j: it is
the same alone as among others, and its first tokens are the same for every `length`. So prompts of
several requests, each with its own seed, length and stop strings, can be decoded together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from heed.config import DecodeConfig
from heed.config.base import MAX_SEED
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.decode.detokenize import StreamedText
from heed.decode.sampling import Sample, random_stream
from heed.decode.search import Search
from heed.decode.settings import build_strategy
from heed.decode.strategy import Hypothesis, IndependentStrategy
from heed.decode.streaming import OnTokens, StreamingSearch
from heed.errors import ConfigError, DataError
from heed.files import to_json
from heed.models import LanguageModel
from heed.models.inference import position_limit
from heed.pipelines.line_io import LineResult

if TYPE_CHECKING:
    from heed.nn.kernels.quantized_linear import Int8Weights

SAMPLE_BASE = ROW_BASE = 1 << 20
"""The bases in which an `InputNumber` packs sample and row: above the largest of either."""
SEED_BASE = MAX_SEED + 2
"""The base in which it packs the seed: all seeds, and none."""
MAX_SAMPLES, MAX_TOKENS = 100_000, 100_000
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
    ids: tuple[int, ...] = ()
    """The generated tokens, without the end token."""

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


@dataclass(frozen=True)
class PromptRequest:
    """A prompt, and how it is continued."""

    prompt: str
    length: int
    samples: int = 1
    stop: Sequence[str] = ()
    number: int = 0
    """The number of the prompt, for its random streams."""
    seed: int | None = None
    """The seed of its random streams; None is that of the decode settings."""
    cut_prompt: bool = False
    on_text: Callable[[int, str], None] | None = None
    """Gets a sample's number and its new text while it is generated."""
    is_cancelled: Callable[[], bool] | None = None
    """Asked at every token; once it is true, the prompt is continued no further."""

    @property
    def needs_tokens(self) -> bool:
        """Whether it needs every token as soon as it is generated."""
        return bool(self.stop) or self.on_text is not None or self.is_cancelled is not None


class InputNumber(NamedTuple):
    """What the number of an input to the search stands for: one sample of one prompt."""

    row: int
    """The row of the prompt among those that are decoded together."""
    seed: int | None
    """The seed of its random stream; None is that of the strategy."""
    prompt: int
    sample: int

    @classmethod
    def parse(cls, number: int) -> InputNumber:
        """Read a number that `pack` made."""
        number, sample = divmod(number, SAMPLE_BASE)
        number, row = divmod(number, ROW_BASE)
        prompt, seed = divmod(number, SEED_BASE)
        return cls(row, seed - 1 if seed else None, prompt, sample)

    def pack(self) -> int:
        """All four in one number, as the search identifies its inputs."""
        number = self.prompt * SEED_BASE + (0 if self.seed is None else self.seed + 1)
        return (number * ROW_BASE + self.row) * SAMPLE_BASE + self.sample


class PromptSample(Sample):
    """Sampling in which the number of an input is an `InputNumber`."""

    def stream(self, number: int, sample: int) -> np.random.Generator:
        """The random generator of that sample of that prompt, in whatever batch it is drawn."""
        of = InputNumber.parse(number)
        return random_stream(self.seed if of.seed is None else of.seed, of.prompt, of.sample)


class GenerationPipeline:
    """Continues prompts with a language model, with one set of decode settings."""

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        settings: DecodeConfig,
        *,
        context: int,
        batch_invariant: bool = False,
        int8: Int8Weights | None = None,
    ) -> None:
        """`context` is how many tokens the model was trained to read at once.

        With `batch_invariant`, no continuation depends on those decoded beside it. With `int8` the
        search uses those weights.
        """
        self.model, self.tokenizer, self.settings = model, tokenizer, settings
        self.context, self.batch_invariant, self.int8 = context, batch_invariant, int8
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
        requests = [
            PromptRequest(
                prompt,
                length,
                samples,
                stop,
                number,
                cut_prompt=cut_prompt,
                on_text=None if on_text is None else partial(on_text, number),
            )
            for number, prompt in enumerate(prompts, first)
        ]
        continuations: list[list[Continuation]] = []
        at_once = max(1, INPUTS_AT_ONCE // samples)
        for start in range(0, len(requests), at_once):
            continuations += self.continue_prompts(requests[start : start + at_once])
        return continuations

    def continue_prompts(self, requests: Sequence[PromptRequest]) -> list[list[Continuation]]:
        """The continuations of a few prompts, decoded together.

        With a beam, all of them have the same number of samples.
        """
        prompt_ids = [
            self.encode_prompt(request.prompt, request.length, request.cut_prompt)
            for request in requests
        ]
        limits = [
            min(request.length, self.tokens_left(len(ids)))
            for request, ids in zip(requests, prompt_ids, strict=True)
        ]
        streamed = [
            [StreamedText(self.tokenizer, ids, request.stop) for _ in range(request.samples)]
            for request, ids in zip(requests, prompt_ids, strict=True)
        ]

        def on_tokens(number: int, ids: list[int]) -> bool:
            row, _, _, sample = InputNumber.parse(number)
            request, text = requests[row], streamed[row][sample]
            if request.is_cancelled is not None and request.is_cancelled():
                return True
            if request.stop or request.on_text is not None:
                new = text.add(ids)
                if request.on_text is not None and new:
                    request.on_text(sample, new)
            return text.stopped

        needs_tokens = any(request.needs_tokens for request in requests)
        samples = max((request.samples for request in requests), default=1)
        search = self._search(samples, on_tokens if needs_tokens else None)
        hypotheses = self._decode(search, requests, prompt_ids, limits)
        continuations: list[list[Continuation]] = []
        for i, (request, limit) in enumerate(zip(requests, limits, strict=True)):
            limited_by = "length" if limit == request.length else "positions"
            of_prompt = []
            # A beam returns fewer than requested where the vocabulary is very small.
            for j, (hypothesis, text) in enumerate(zip(hypotheses[i], streamed[i], strict=False)):
                new = text.add(hypothesis.ids[text.tokens :]) + text.end()
                if request.on_text is not None and new:
                    request.on_text(j, new)
                ended = "stop" if text.stopped else limited_by if hypothesis.cut else "end"
                tokens, logprob = len(hypothesis.ids), hypothesis.logprob
                of_prompt.append(
                    Continuation(
                        request.prompt,
                        len(prompt_ids[i]),
                        text.text,
                        tokens,
                        logprob,
                        ended,
                        tuple(hypothesis.ids),
                    )
                )
            continuations.append(of_prompt)
        return continuations

    def _search(self, samples: int, on_tokens: OnTokens | None) -> Search:
        """A streaming search only where there is a callback: it is slower."""
        options: dict[str, Any] = {
            "batch_size": self.settings.batch_size,
            "specials": self.tokenizer.specials,
            "batch_invariant": self.batch_invariant,
            "int8": self.int8,
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
        requests: Sequence[PromptRequest],
        prompt_ids: list[list[int]],
        limits: list[int],
    ) -> list[list[Hypothesis]]:
        """The hypotheses of every prompt."""
        numbers = []
        for row, request in enumerate(requests):
            samples = request.samples if isinstance(search.strategy, PromptSample) else 1
            numbers += [InputNumber(row, request.seed, request.number, j) for j in range(samples)]
        results = search.generate(
            [prompt_ids[number.row] for number in numbers],
            max_tokens=[limits[number.row] for number in numbers],
            numbers=[number.pack() for number in numbers],
        )
        hypotheses: list[list[Hypothesis]] = [[] for _ in requests]
        for number, result in zip(numbers, results, strict=True):
            hypotheses[number.row] += result
        return hypotheses

    def tokens_left(self, tokens: int) -> int:
        """How many new tokens may follow this many."""
        return MAX_TOKENS if self.max_positions is None else max(1, self.max_positions - tokens)

    def encode_prompt(self, prompt: str, length: int, cut: bool) -> list[int]:
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
    if not 1 <= length <= MAX_TOKENS:
        complaints.append(f"length cannot be {length}: ask for 1 to {MAX_TOKENS:,} tokens.")
    if not 1 <= samples <= MAX_SAMPLES:
        complaints.append(f"samples cannot be {samples}: ask for 1 to {MAX_SAMPLES:,}.")
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
