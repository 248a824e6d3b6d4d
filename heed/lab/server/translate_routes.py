"""Translation in the shape of LibreTranslate: POST /translate, GET /languages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape, unescape
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from heed.lab.error_responses import (
    BAD_REQUEST,
    TOO_LARGE,
    StatusError,
    StrictJsonResponse,
)
from heed.lab.server.language_names import language_name
from heed.lab.server.request_body import (
    RequestBody,
    Server,
    ServerContext,
    Texts,
    await_results,
    check_texts,
    choose_run,
    describe_body,
    read_body,
)
from heed.lab.server.served_runs import ServedTranslator
from heed.lab.server.server_errors import describe_errors
from heed.pipelines.translate import Translation

AUTO = "auto"
MAX_LINES = 512
"""Lines of all texts of a request: each is translated by itself."""
STARTS = re.compile(r"<(?:(?P<comment>!--)|(?P<script>script\b)|(?P<style>style\b)|)", re.I | re.A)
"""The start of a comment, of an element whose content is no text, or of any other tag."""
ENDS = {
    "comment": re.compile("-->"),
    "script": re.compile(r"</script\s*>", re.I | re.A),
    "style": re.compile(r"</style\s*>", re.I | re.A),
    "tag": re.compile(">"),
}
"""The end of each of them."""
LONG_REFERENCE = re.compile("&#[0-9]{20,};?")
"""A reference to a character that there is not, and of more digits than Python may convert."""

router = APIRouter(tags=["LibreTranslate"])


class TranslateBody(RequestBody):
    """A request for translations."""

    q: Texts
    source: str = Field(default=AUTO, examples=["en"])
    """Code of the source language; auto where only one language is translated to the target."""
    target: str = Field(examples=["fr"])
    """Code of the target language."""
    format: Literal["text", "html"] = "text"
    """With html, tags stay as they are and the texts between them are translated."""
    alternatives: int = Field(default=0, ge=0)
    """How many further translations of each text to return."""


class DetectedLanguage(BaseModel):
    """The source language, where the request left it open."""

    language: str
    confidence: float


class TranslateAnswer(BaseModel):
    """Translations: one for a text, a list for a list."""

    translatedText: str | list[str]  # noqa: N815
    alternatives: list[str] | list[list[str]] | None = None
    detectedLanguage: DetectedLanguage | list[DetectedLanguage] | None = None  # noqa: N815


class Language(BaseModel):
    """A source language, and the languages it is translated to."""

    code: str
    name: str
    targets: list[str]


@router.post(
    "/translate",
    response_model=TranslateAnswer,
    responses=describe_errors(400, 403, 404, 413, 415, 429, 503),
    openapi_extra=describe_body(TranslateBody, forms=True),
)
async def translate(request: Request, server: Server) -> Response:
    """Translate a text or a list of texts.

    Every line of a text is translated by itself, so that paragraphs stay apart.
    """
    body = await read_body(request, TranslateBody, server)
    texts = [body.q] if isinstance(body.q, str) else body.q
    check_texts(texts, server)
    choices = 1 + body.alternatives
    if choices > server.runs.limits.max_samples:
        most = server.runs.limits.max_samples - 1
        what = f"alternatives cannot be {body.alternatives}."
        raise StatusError(what, status=BAD_REQUEST, todo=f"Ask for at most {most}.")
    run, reverse = choose_direction(server, body)
    pieces = await run_in_threadpool(split_texts, texts, is_html=_is_html(body))
    lines = [line for parts in pieces for line, is_text in parts if is_text]
    if len(lines) > MAX_LINES:
        raise StatusError(
            f"there are {len(lines):,} lines, and a request may have {MAX_LINES}.",
            status=TOO_LARGE,
            todo="Send several requests.",
        )
    jobs = await run.submit(lines, reverse=reverse, choices=choices)
    translations = iter(await await_results(request, run, jobs) if jobs else ())
    joined = await run_in_threadpool(
        lambda: [join_translations(parts, translations, body) for parts in pieces]
    )
    return StrictJsonResponse(describe_answer(body, joined, run.directions[reverse][0]))


@router.get(
    "/languages", response_model=list[Language], responses=describe_errors(400, 403, 413, 415)
)
async def languages(request: Request, server: Server) -> Response:
    """The languages that can be translated."""
    await read_body(request, RequestBody, server)
    targets: dict[str, list[str]] = {}
    for run in server.runs.translators:
        for source, target in run.directions:
            known = targets.setdefault(source, [])
            known += [target] if target not in known else []
    return StrictJsonResponse(
        [
            {"code": code, "name": language_name(code), "targets": codes}
            for code, codes in targets.items()
        ]
    )


def choose_direction(server: ServerContext, body: TranslateBody) -> tuple[ServedTranslator, bool]:
    """The run for two languages, and whether it is to translate in reverse."""
    runs = server.runs.translators
    if body.model is not None or not runs:
        runs = [choose_run(runs, body.model, "translate")]
    found = [
        (run, bool(reverse), source)
        for run in runs
        for reverse, (source, target) in enumerate(run.directions)
        if target == body.target and body.source in (source, AUTO)
    ]
    if len({source for _, _, source in found}) > 1:
        raise StatusError(
            f"several languages are translated to {body.target}, and none is detected.",
            status=BAD_REQUEST,
            where="source",
            todo=f"Name it: {', '.join(source for _, _, source in found)}.",
        )
    if not found:
        known = ", ".join(
            f"{source} to {target}" for run in runs for source, target in run.directions
        )
        raise StatusError(
            f"no run here translates {body.source} to {body.target}.",
            status=BAD_REQUEST,
            where="source, target",
            todo=f"There is {known}.",
        )
    run = choose_run([run for run, _, _ in found], body.model, "translate so")
    return run, next(reverse for one, reverse, _ in found if one is run)


def split_texts(texts: Sequence[str], *, is_html: bool) -> list[list[tuple[str, bool]]]:
    """The parts of every text."""
    return [split_text(text, is_html=is_html) for text in texts]


def split_text(text: str, *, is_html: bool) -> list[tuple[str, bool]]:
    """The lines of a text, or what stands between the tags of HTML; and what separates them.

    Each part comes with whether it is to be translated.
    """
    parts: list[tuple[str, bool]] = []
    if is_html:
        position = 0
        for start, end in find_markup(text):
            parts += _text_part(text[position:start])
            parts.append((text[start:end], False))
            position = end
        return parts + _text_part(text[position:])
    for line in re.split(r"(\r?\n)", text):
        parts.append((line, bool(line.strip())))
    return parts


def find_markup(text: str) -> Iterator[tuple[int, int]]:
    """Where tags, comments and elements without text begin and end.

    It takes time in proportion to the text: an end that was looked for in vain is looked for once.
    """
    missing: set[str] = set()
    position = 0
    while "tag" not in missing and (start := STARTS.search(text, position)):
        position = start.end()
        for kind in dict.fromkeys((start.lastgroup or "tag", "tag")):
            end = None if kind in missing else ENDS[kind].search(text, start.end())
            if end is not None:
                yield start.start(), end.end()
                position = end.end()
                break
            missing.add(kind)


def _text_part(text: str) -> list[tuple[str, bool]]:
    """Text between two tags: without its entities, with the white space around it apart."""
    if not text.strip():
        return [(text, False)]
    start, end = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
    plain = unescape(LONG_REFERENCE.sub("\ufffd", text.strip()))
    return [(start, False), (plain, True), (end, False)]


def join_translations(
    parts: Sequence[tuple[str, bool]], translations: Any, body: TranslateBody
) -> list[str]:
    """The translations of a text from those of its lines, the best first, none twice."""
    choices: list[list[str]] = []
    for part, is_text in parts:
        if not is_text:
            choices.append([part])
            continue
        translation: Translation = next(translations)
        texts = [choice.text for choice in translation.choices] or [""]
        choices.append([escape(text, quote=False) for text in texts] if _is_html(body) else texts)
    count = max(map(len, choices), default=1)
    wholes = ["".join(part[min(i, len(part) - 1)] for part in choices) for i in range(count)]
    return list(dict.fromkeys(wholes))


def _is_html(body: TranslateBody) -> bool:
    return body.format == "html"


def describe_answer(
    body: TranslateBody, joined: Sequence[list[str]], source: str
) -> dict[str, Any]:
    """The answer: a text for a text, a list for a list."""
    is_list = not isinstance(body.q, str)
    best = [texts[0] for texts in joined]
    answer: dict[str, Any] = {"translatedText": best if is_list else best[0]}
    if body.alternatives:
        others = [texts[1:] for texts in joined]
        answer["alternatives"] = others if is_list else others[0]
    if body.source == AUTO:
        # The shape has a confidence; the language follows from the target and is not detected.
        detected = {"language": source, "confidence": 0.0}
        answer["detectedLanguage"] = [detected] * len(best) if is_list else detected
    return answer
