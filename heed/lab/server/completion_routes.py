"""Text completion in the shape of OpenAI: POST /v1/completions, GET /v1/models.

Streamed and whole completions are decoded in the same batches. A streamed request that asks for
log-probabilities gets all of its events at the end, since those need the whole text.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response, StreamingResponse

from heed.config.base import MAX_SEED
from heed.files import to_json
from heed.lab.error_responses import BAD_REQUEST, StatusError, StrictJsonResponse
from heed.lab.server.completion_logprobs import TokenLogprobs
from heed.lab.server.dynamic_batching import BusyError, Job
from heed.lab.server.request_body import (
    RequestBody,
    Server,
    ServerContext,
    await_results,
    check_texts,
    choose_run,
    describe_body,
    read_body,
)
from heed.lab.server.served_runs import CompletionItem, CompletionResult, ServedLanguageModel
from heed.lab.server.server_errors import describe_errors, respond_with
from heed.pipelines.generate import PromptRequest

MAX_STOPS, MAX_TOP = 4, 20
RANDOM_SEEDS = 1 << 31
FINISHED = {"end": "stop", "stop": "stop", "length": "length", "positions": "length"}
"""OpenAI's reasons for the end of a completion."""
DONE = "data: [DONE]\n\n"

router = APIRouter(prefix="/v1", tags=["OpenAI"])


class StreamOptions(BaseModel):
    """Options of a streamed completion."""

    include_usage: bool = False


class CompletionBody(RequestBody):
    """A request for completions."""

    model_config = ConfigDict(extra="forbid")

    prompt: Annotated[
        str | list[str], Field(description="A text to continue, or a list of texts.")
    ] = ""
    max_tokens: int = Field(default=16, ge=0)
    """New tokens of a completion, at most. 0 with echo and logprobs scores the prompt alone."""
    temperature: float = Field(default=1.0, ge=0.0, le=2.0)
    """Sampling temperature; 0 takes the most probable token at every step."""
    top_p: float = Field(default=1.0, ge=0.0, le=1.0)
    """Nucleus sampling: from the fewest tokens that together have this probability."""
    n: int = Field(default=1, ge=1)
    """Completions of each prompt."""
    stop: str | list[str] | None = None
    """A string before which a completion ends, or a list of at most four."""
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)
    """Seed of the sampling: equal requests with a seed get equal answers. Unset, it is random."""
    logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP)
    """Return the log-probability of each token, and of so many most probable tokens."""
    echo: bool = False
    """Return the prompt before its completion."""
    stream: bool = False
    """Send the text as server-sent events while it is generated."""
    stream_options: StreamOptions | None = None
    """`include_usage` adds an event with the usage before the last."""
    user: str | None = None
    """Accepted and not used."""
    best_of: int | None = None
    """Only the value of n."""
    suffix: str | None = None
    """Not supported: only null."""
    frequency_penalty: float = 0.0
    """Not supported: only 0."""
    presence_penalty: float = 0.0
    """Not supported: only 0."""
    logit_bias: dict[str, float] | None = None
    """Not supported: only null."""


class Logprobs(BaseModel):
    """Log-probabilities of a completion's tokens."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None]] | None
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One completion."""

    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: str | None


class Usage(BaseModel):
    """Tokens that were read and generated."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionAnswer(BaseModel):
    """Completions of all prompts, n of each, in order."""

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class ModelCard(BaseModel):
    """A run that completes text."""

    id: str
    object: str
    created: int
    owned_by: str


class ModelList(BaseModel):
    """All runs that complete text."""

    object: str
    data: list[ModelCard]


@router.post(
    "/completions",
    response_model=CompletionAnswer,
    responses=describe_errors(400, 401, 404, 413, 415, 429, 503, openai=True),
    openapi_extra=describe_body(CompletionBody, forms=False),
)
async def complete(request: Request, server: Server) -> Response:
    """Continue a text or a list of texts.

    With `stream`, the answer is a stream of server-sent events that ends with `[DONE]`.
    """
    body = await read_body(request, CompletionBody, server)
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    check_texts(prompts, server, where="prompt")
    check_body(body, server)
    run = choose_run(server.runs.language_models, body.model, "complete text")
    completion = Completion(run, body, prompts)
    jobs = await completion.submit()
    if body.stream:
        return StreamingResponse(completion.stream(request), media_type="text/event-stream")
    results = await await_results(request, run, jobs) if jobs else []
    return StrictJsonResponse(completion.describe(results))


@router.get("/models", response_model=ModelList, responses=describe_errors(401, openai=True))
async def list_models(request: Request, server: Server) -> Response:
    """The runs that complete text."""
    server.check_key(request, None)
    cards = [_card(run) for run in server.runs.language_models]
    return StrictJsonResponse({"object": "list", "data": cards})


@router.get(
    "/models/{name:path}",
    response_model=ModelCard,
    responses=describe_errors(401, 404, openai=True),
)
async def show_model(request: Request, name: str, server: Server) -> Response:
    """One run that completes text."""
    server.check_key(request, None)
    return StrictJsonResponse(_card(choose_run(server.runs.language_models, name, "complete text")))


def _card(run: ServedLanguageModel) -> dict[str, Any]:
    return {"id": run.name, "object": "model", "created": run.created, "owned_by": "heed"}


def check_body(body: CompletionBody, server: ServerContext) -> None:
    """Raise an error for values that are not supported, or beyond a limit."""
    limits = server.runs.limits
    stops = _stops(body)
    complaints = {
        "max_tokens": body.max_tokens > limits.max_tokens
        and f"it is at most {limits.max_tokens:,} here.",
        "n": body.n > limits.max_samples and f"it is at most {limits.max_samples} here.",
        "best_of": body.best_of not in (None, body.n) and "only the value of n is supported.",
        "suffix": bool(body.suffix) and "a suffix is not supported.",
        "frequency_penalty": body.frequency_penalty != 0 and "only 0 is supported.",
        "presence_penalty": body.presence_penalty != 0 and "only 0 is supported.",
        "logit_bias": bool(body.logit_bias) and "it is not supported.",
        "stop": (len(stops) > MAX_STOPS or "" in stops)
        and f"there may be {MAX_STOPS} strings, none of them empty.",
    }
    for field, complaint in complaints.items():
        if complaint:
            raise StatusError(str(complaint), status=BAD_REQUEST, where=field)


def _stops(body: CompletionBody) -> list[str]:
    return [body.stop] if isinstance(body.stop, str) else list(body.stop or ())


class Completion:
    """One request: its jobs, and its answer, whole or as events."""

    def __init__(
        self, run: ServedLanguageModel, body: CompletionBody, prompts: Sequence[str]
    ) -> None:
        self.run, self.body, self.prompts = run, body, prompts
        self.head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": run.name,
        }
        self.jobs: list[Job[CompletionItem, CompletionResult]] = []
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.is_greedy = body.temperature == 0 or body.top_p == 0
        """Greedy completions of one prompt are all the same: one is decoded."""
        self.loop = asyncio.get_running_loop()

    async def submit(self) -> list[Job[CompletionItem, CompletionResult]]:
        """Let the prompts wait for their continuations."""
        seed = self.body.seed
        seed = secrets.randbelow(RANDOM_SEEDS) if seed is None else seed
        samples = 1 if self.is_greedy else self.body.n
        streams = self.body.stream and self.body.logprobs is None
        items = [
            CompletionItem(
                PromptRequest(
                    prompt,
                    self.body.max_tokens,
                    samples,
                    _stops(self.body),
                    number,
                    seed,
                    on_text=self._reporter(number) if streams else None,
                ),
                self.body.logprobs,
                self.body.echo,
            )
            for number, prompt in enumerate(self.prompts)
        ]
        settings = {"temperature": self.body.temperature, "top_p": self.body.top_p}
        self.jobs = await self.run.submit(items, **settings)
        return self.jobs

    def _reporter(self, number: int) -> Any:
        """Hands new text from the thread that decodes over to the stream of events."""

        def on_text(sample: int, text: str) -> None:
            for copy in self._copies(sample):
                chunk = self._choice(number * self.body.n + copy, text, None, None)
                self.loop.call_soon_threadsafe(self.events.put_nowait, chunk)

        return on_text

    def _copies(self, sample: int) -> Sequence[int]:
        """The completions of a prompt that a decoded sample stands for."""
        return range(self.body.n) if self.is_greedy else (sample,)

    def describe(self, results: Sequence[CompletionResult]) -> dict[str, Any]:
        """The whole answer."""
        choices = [
            self._choice(
                number * self.body.n + copy,
                (one.prompt if self.body.echo else "") + one.text,
                result.logprobs[sample] if result.logprobs else None,
                FINISHED[one.ended],
            )
            for number, result in enumerate(results)
            for sample, one in enumerate(result.continuations)
            for copy in self._copies(sample)
        ]
        return self.head | {"choices": choices, "usage": self._usage(results)}

    async def stream(self, request: Request) -> AsyncIterator[str]:
        """The answer as server-sent events; an error after the first is an event, too."""
        results = asyncio.ensure_future(
            self.run.batcher.gather(self.jobs, seconds=self.run.limits.seconds)
        )
        usage = {} if not self._includes_usage() else {"usage": None}
        try:
            if self.body.echo and self.body.logprobs is None:
                for number, prompt in enumerate(self.prompts):
                    for copy in range(self.body.n):
                        index = number * self.body.n + copy
                        yield self._event([self._choice(index, prompt, None, None)], usage)
            while not results.done() or not self.events.empty():
                chunk = asyncio.ensure_future(self.events.get())
                await asyncio.wait((chunk, results), return_when=asyncio.FIRST_COMPLETED)
                if chunk.done():
                    yield self._event([chunk.result()], usage)
                else:
                    chunk.cancel()
            for event in self._last_events(results.result(), usage):
                yield event
        except BusyError as error:
            response = respond_with(error, request.scope)
            yield f"data: {bytes(response.body).decode()}\n\n"
        finally:
            results.cancel()
        yield DONE

    def _last_events(self, results: Sequence[CompletionResult], usage: dict[str, Any]) -> list[str]:
        """What follows the text: all of it if log-probabilities are asked for; reasons; usage."""
        answer = self.describe(results)
        events = []
        for choice in answer["choices"]:
            if self.body.logprobs is None:
                choice = choice | {"text": ""}
            events.append(self._event([choice], usage))
        if self._includes_usage():
            events.append(self._event([], {"usage": answer["usage"]}))
        return events

    def _includes_usage(self) -> bool:
        return self.body.stream_options is not None and self.body.stream_options.include_usage

    def _event(self, choices: Sequence[dict[str, Any]], usage: dict[str, Any]) -> str:
        return f"data: {to_json(self.head | {'choices': list(choices)} | usage)}\n\n"

    def _choice(
        self, index: int, text: str, logprobs: TokenLogprobs | None, finished: str | None
    ) -> dict[str, Any]:
        described = None
        if logprobs is not None:
            described = {
                "tokens": logprobs.tokens,
                "token_logprobs": logprobs.logprobs,
                "top_logprobs": logprobs.top if self.body.logprobs else None,
                "text_offset": logprobs.offsets,
            }
        return {"index": index, "text": text, "logprobs": described, "finish_reason": finished}

    def _usage(self, results: Sequence[CompletionResult]) -> dict[str, int]:
        read = sum(result.prompt_tokens for result in results)
        written = sum(
            one.tokens * len(self._copies(sample))
            for result in results
            for sample, one in enumerate(result.continuations)
        )
        return {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        }
