"""Served runs: trained models by name, each with a queue whose requests are decoded together.

What is decoded together shares its settings and its padded length, and nothing else: every answer
is the one that the request gets alone, to the last bit on a CPU (`heed.decode.search.Search`). That
is tried when a run is loaded; a run for which it does not hold is decoded request by request.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import torch
from starlette.concurrency import run_in_threadpool

from heed.api import Classifier, LanguageModel, Translator, load
from heed.errors import ConfigError, HeedError, RunError
from heed.lab.server.completion_logprobs import TokenLogprobs, score_continuation
from heed.lab.server.dynamic_batching import (
    ANSWER_SECONDS,
    MAX_BATCH,
    MAX_WAITING,
    DynamicBatcher,
    Job,
)
from heed.lab.server.invariance_check import has_invariant_batches
from heed.lab.server.language_names import UNKNOWN, recipe_languages
from heed.nn.kernels.prepacked_weights import prepack_weights
from heed.pipelines.classify import Label, Text, check_text_kind, text_parts
from heed.pipelines.generate import Continuation, PromptRequest
from heed.pipelines.translate import Translation
from heed.runs.run import Run
from heed.runs.weight_files import BEST_WEIGHTS

if TYPE_CHECKING:
    from heed.models import Model

LARGE = 4_000_000
"""Parameters from which several workers decode faster than one: below, a step takes less time in
the matrix kernels than under Python's global interpreter lock."""
MAX_WORKERS = 4
M = TypeVar("M", Translator, LanguageModel, Classifier)
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class ServerLimits:
    """Limits of requests: sizes, queue and time."""

    max_batch: int = MAX_BATCH
    max_waiting: int = MAX_WAITING
    seconds: float = ANSWER_SECONDS
    max_texts: int = 64
    """Texts of one request."""
    max_text: int = 10_000
    """Characters of one text."""
    max_tokens: int = 1024
    """New tokens of a completion."""
    max_samples: int = 16
    """Completions of a prompt, or translations of a text."""
    max_body: int = 1024 * 1024
    """Bytes of a request's body."""


@dataclass(frozen=True)
class ServerSettings:
    """How runs are loaded and decoded."""

    device: str = "auto"
    engine: str = "heed"
    precision: str = "float32"
    weights: str = BEST_WEIGHTS
    workers: int | None = None
    """Threads that decode for each run; None chooses by the size of its model."""
    limits: ServerLimits = field(default_factory=ServerLimits)


class ServedRun(ABC, Generic[M, Item, Result]):
    """One run: its model, the queue of its requests, and the threads that decode them."""

    task = ""

    def __init__(self, name: str, model: M, settings: ServerSettings) -> None:
        self.name, self.limits = name, settings.limits
        self.model: M = model
        self.created = int(model.run.folder.stat().st_mtime)
        self.lock = Lock()
        """Held while a pipeline is looked up: their cache is not for several threads."""
        self._packed = ExitStack()
        has_other_engine = isinstance(model, Translator) and model.served is not None
        int8 = None if isinstance(model, Classifier) else model.int8
        if int8 is not None:
            self._packed.enter_context(int8.in_use())
        self._packed.enter_context(prepack_weights([] if has_other_engine else [model.model]))
        workers, threads = choose_threads(model.model, settings.workers)
        max_batch = self.limits.max_batch
        if not has_other_engine and not has_invariant_batches(model):
            max_batch = 1 if next(model.model.parameters()).device.type == "cpu" else max_batch
        self.max_batch = max_batch
        self.on_batch: Callable[[int, float], None] = lambda size, seconds: None
        self.batcher = DynamicBatcher[Item, Result](
            self.compute,
            max_batch=max_batch,
            max_waiting=self.limits.max_waiting,
            workers=workers,
            initialize=lambda: torch.set_num_threads(threads),
            on_batch=lambda size, seconds: self.on_batch(size, seconds),
        )

    @abstractmethod
    def compute(self, key: Any, jobs: Sequence[Job[Item, Result]]) -> Sequence[Result]:
        """The results of jobs with the same settings; runs in a worker's thread."""

    async def submit_entries(
        self, encode: Callable[[], list[tuple[Hashable, Item]]]
    ) -> list[Job[Item, Result]]:
        """Let items wait. `encode` makes them with their keys in a thread, since it takes long."""
        return self.batcher.submit(await run_in_threadpool(encode))

    def count_waiting(self) -> int:
        """How many texts wait."""
        return self.batcher.waiting

    def close(self) -> None:
        """Answer what waits, and end the workers."""
        self.batcher.close()
        self._packed.close()

    def padded_length(self, tokens: int) -> int:
        """The size that so many tokens are padded to: what shares it is decoded together."""
        from heed.decode.batch_plan import StateSizes

        return StateSizes(bucketed=False, fixed_lengths=True).padded_length(tokens)


class TranslationItem(NamedTuple):
    """A text, and its number in the request, which seeds its sampling."""

    text: str
    number: int


class TranslationKey(NamedTuple):
    """What texts share that are translated together."""

    choices: int
    reverse: bool
    length: int


class ServedTranslator(ServedRun[Translator, TranslationItem, Translation]):
    """A translation run, in one direction or in both."""

    task = "translate"

    def __init__(self, name: str, model: Translator, settings: ServerSettings) -> None:
        model.batch_invariant = True
        self.languages = recipe_languages(model.recipe)
        super().__init__(name, model, settings)

    @property
    def directions(self) -> list[tuple[str, str]]:
        """The pairs of source and target language."""
        source, target = self.languages
        return [(source, target), *([(target, source)] if self.model.bidirectional else [])]

    async def submit(
        self, texts: Sequence[str], *, reverse: bool, choices: int
    ) -> list[Job[TranslationItem, Translation]]:
        """Let texts wait for their translation, with so many choices each."""

        def encode() -> list[tuple[Hashable, TranslationItem]]:
            lengths = [len(self.model.tokenizer.encode(text)) for text in texts]
            return [
                (
                    TranslationKey(choices, reverse, self.padded_length(length + 1)),
                    TranslationItem(text, number),
                )
                for number, (text, length) in enumerate(zip(texts, lengths, strict=True))
            ]

        return await self.submit_entries(encode)

    def compute(
        self, key: Any, jobs: Sequence[Job[TranslationItem, Translation]]
    ) -> Sequence[Translation]:
        """The translations of texts with the same number of choices, in the same direction."""
        decode = self.model.recipe.decode
        wider: dict[str, Any] = {"beam": key.choices} if key.choices > max(1, decode.beam) else {}
        with self.lock:
            pipeline = self.model.pipeline(
                key.choices, reverse=key.reverse, **({} if decode.sample else wider)
            )
        return pipeline.translate(
            [job.item.text for job in jobs],
            numbers=[job.item.number for job in jobs],
            is_cancelled=lambda: all(job.is_cancelled for job in jobs),
        )


class CompletionKey(NamedTuple):
    """What prompts share that are continued together."""

    temperature: float
    top_p: float
    length: int


class CompletionItem(NamedTuple):
    """A prompt with all that is its own, and which log-probabilities are to be returned."""

    request: PromptRequest
    logprobs: int | None
    echo: bool


class CompletionResult(NamedTuple):
    """The continuations of a prompt, and the log-probabilities of each if they were requested."""

    prompt_tokens: int
    continuations: list[Continuation]
    logprobs: list[TokenLogprobs]


class ServedLanguageModel(ServedRun[LanguageModel, CompletionItem, CompletionResult]):
    """A causal language model."""

    task = "generate"

    def __init__(self, name: str, model: LanguageModel, settings: ServerSettings) -> None:
        model.batch_invariant = True
        if not model.model.causal:
            raise RunError(
                "a masked language model cannot generate text, so it is not served.",
                where=str(model.run.folder),
            )
        self.prompt_pipeline = model.pipeline()
        super().__init__(name, model, settings)

    def encode_prompt(self, request: PromptRequest) -> list[int]:
        """The ids of a prompt; too many of them are an error."""
        return self.prompt_pipeline.encode_prompt(
            request.prompt, request.length, request.cut_prompt
        )

    async def submit(
        self, items: Sequence[CompletionItem], *, temperature: float, top_p: float
    ) -> list[Job[CompletionItem, CompletionResult]]:
        """Let prompts wait for their continuation; one that is too long is an error."""

        def encode() -> list[tuple[Hashable, CompletionItem]]:
            lengths = [self.padded_length(len(self.encode_prompt(one.request))) for one in items]
            return [
                (CompletionKey(temperature, top_p, length), item)
                for length, item in zip(lengths, items, strict=True)
            ]

        return await self.submit_entries(encode)

    def compute(
        self, key: Any, jobs: Sequence[Job[CompletionItem, CompletionResult]]
    ) -> Sequence[CompletionResult]:
        """The continuations of prompts with the same temperature and top_p."""
        settings: dict[str, Any] = {"sample": False, "beam": 1}
        if key.temperature > 0 and key.top_p > 0:
            settings = {"sample": True, "temperature": key.temperature, "top_p": key.top_p}
        with self.lock:
            pipeline = self.model.pipeline(**settings, top_k=None, min_p=0.0)
        scored = [row for row, job in enumerate(jobs) if job.item.request.length > 0]
        generated = pipeline.continue_prompts([_cancellable(jobs[row]) for row in scored])
        by_row = dict(zip(scored, generated, strict=True))
        results = []
        for row, job in enumerate(jobs):
            item = job.item
            ids = self.encode_prompt(item.request)
            continuations = by_row.get(row) or [_nothing(item.request.prompt, len(ids))]
            logprobs: list[TokenLogprobs] = []
            if item.logprobs is not None and not job.is_cancelled:
                logprobs = [
                    score_continuation(
                        self.model, ids, one, top=item.logprobs, with_prompt=item.echo
                    )
                    for one in continuations
                ]
            results.append(CompletionResult(len(ids) - 1, continuations, logprobs))
        return results


def _cancellable(job: Job[CompletionItem, CompletionResult]) -> PromptRequest:
    """The request of a job, which is continued no further once the job is cancelled."""
    return replace(job.item.request, is_cancelled=lambda: job.is_cancelled)


def _nothing(prompt: str, tokens: int) -> Continuation:
    """The continuation of a prompt by no tokens at all."""
    return Continuation(prompt, tokens, "", 0, 0.0, "length")


class ServedClassifier(ServedRun[Classifier, Text, Label]):
    """A classification run."""

    task = "classify"

    def __init__(self, name: str, model: Classifier, settings: ServerSettings) -> None:
        model.pipeline.make_batch_invariant()
        super().__init__(name, model, settings)

    async def submit(self, texts: Sequence[Text]) -> list[Job[Text, Label]]:
        """Let texts wait for their label."""
        check_text_kind(self.model.classes, texts)
        return await self.submit_entries(lambda: self._encode(texts))

    def _encode(self, texts: Sequence[Text]) -> list[tuple[Hashable, Text]]:
        lengths = [
            sum(len(self.model.tokenizer.encode(part)) for part in text_parts(text))
            for text in texts
        ]
        return [(self.padded_length(n + 2), text) for n, text in zip(lengths, texts, strict=True)]

    def compute(self, key: Any, jobs: Sequence[Job[Text, Label]]) -> Sequence[Label]:
        """The labels of texts."""
        return self.model.pipeline.classify([job.item for job in jobs])


AnyRun = ServedTranslator | ServedLanguageModel | ServedClassifier


class ServedRuns:
    """All runs of a server, by name."""

    def __init__(self, runs: Sequence[AnyRun], settings: ServerSettings) -> None:
        self.runs = {run.name: run for run in runs}
        self.settings, self.limits = settings, settings.limits

    @property
    def translators(self) -> list[ServedTranslator]:
        """Runs that translate."""
        return [run for run in self.runs.values() if isinstance(run, ServedTranslator)]

    @property
    def language_models(self) -> list[ServedLanguageModel]:
        """Runs that continue prompts."""
        return [run for run in self.runs.values() if isinstance(run, ServedLanguageModel)]

    @property
    def classifiers(self) -> list[ServedClassifier]:
        """Runs that classify."""
        return [run for run in self.runs.values() if isinstance(run, ServedClassifier)]

    def describe(self) -> list[str]:
        """Each run in words."""
        return [f"{run.name} ({run.task})" for run in self.runs.values()]

    def close(self) -> None:
        """Answer what waits, and end all workers."""
        for run in self.runs.values():
            run.close()


def choose_threads(model: Model, workers: int | None) -> tuple[int, int]:
    """How many workers decode for a model, and how many torch threads each of them has."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    weights = list(model.parameters())
    if weights[0].device.type != "cpu":
        return 1, torch.get_num_threads()  # captured graphs are not for several threads
    if workers is None:
        is_large = sum(weight.numel() for weight in weights) >= LARGE
        workers = min(cores, MAX_WORKERS) if is_large else 1
        threads = max(1, cores // workers) if is_large else 1
        return workers, threads
    return workers, max(1, cores // workers)


def parse_run(argument: str) -> tuple[str, Path]:
    """The name and the folder of a run: `NAME=FOLDER`, or the folder, whose name it then has."""
    name, sign, folder = argument.partition("=")
    if sign and name and not Path(argument).exists():
        return name, Path(folder)
    return Path(argument).resolve().name, Path(argument)


def load_runs(arguments: Sequence[str], settings: ServerSettings) -> ServedRuns:
    """Load runs by their folders. Two runs of one name are an error."""
    folders: dict[str, Path] = {}
    for name, folder in map(parse_run, arguments):
        if name in folders:
            raise ConfigError(
                [f"two runs have the name {name!r}: give one another, as other={folder}."]
            )
        folders[name] = folder
    runs = [_load_run(name, folder, settings) for name, folder in folders.items()]
    return ServedRuns(runs, settings)


def _load_run(name: str, folder: Path, settings: ServerSettings) -> AnyRun:
    task = Run.open(folder).recipe().task
    if task == "translate":
        translator = Translator.load(
            folder,
            device=settings.device,
            precision=settings.precision,
            engine=settings.engine,
            weights=settings.weights,
        )
        return ServedTranslator(name, translator, settings)
    model = load(folder, device=settings.device, weights=settings.weights)
    if isinstance(model, LanguageModel):
        return ServedLanguageModel(name, model, settings)
    if isinstance(model, Classifier):
        return ServedClassifier(name, model, settings)
    raise HeedError(f"a run that was trained to {task} cannot be served.", where=str(folder))


__all__ = ["UNKNOWN", "AnyRun", "ServedRuns", "ServerLimits", "ServerSettings", "load_runs"]
