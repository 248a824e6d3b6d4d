"""The room Heads: report cards of all heads, heads that are silenced, patterns put onto heads.

Cards and ablations are streamed as JSON lines: progress first, then the result; a client that
leaves stops them. Layers and heads count from 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import StreamingResponse

from heed.lab.lab_context import Lab, LabContext
from heed.lab.limits import Text
from heed.lab.rooms.attention_room import Index, Kind, TextBody
from heed.lab.streamed_answer import stream_answer
from heed.runs.weight_files import BEST_WEIGHTS

if TYPE_CHECKING:
    from heed.lab.head_scores import HeadScores

MOST_TEXTS, USUAL_TEXTS = 2000, 200
MOST_SETS = 1024
"""Sets of heads that one request silences in turn."""

router = APIRouter(prefix="/api/heads")


class HeadName(BaseModel):
    """One head of a model."""

    model_config = ConfigDict(extra="forbid")

    kind: Kind
    layer: Index
    head: Index


class CardsBody(BaseModel):
    """A run, and how many texts of dev it is measured on."""

    model_config = ConfigDict(extra="forbid")

    run: str
    weights: str = BEST_WEIGHTS
    limit: Annotated[int, Field(ge=1, le=MOST_TEXTS)] = USUAL_TEXTS


class AblateBody(CardsBody):
    """Sets of heads to silence, one set after the other; each together."""

    heads: Annotated[
        list[Annotated[list[HeadName], Field(min_length=1, max_length=MOST_SETS)]],
        Field(min_length=1, max_length=MOST_SETS),
    ]
    how: str = "zero"
    metric: str = "loss"


class HeadPattern(HeadName):
    """A head, and the pattern by name or the weights as text that it is to have."""

    pattern: str | None = None
    weights: Text | None = None


class PatchBody(TextBody):
    """Patterns for some heads, while a text is read."""

    edits: Annotated[list[HeadPattern], Field(min_length=1, max_length=MOST_SETS)]


@router.post("/cards")
async def measure_heads(body: CardsBody, lab: Lab, request: Request) -> StreamingResponse:
    """The report card of every head on the first texts of dev."""
    return await stream_answer(
        lambda report: _scores(lab).cards(lab, body.run, body.weights, body.limit, report),
        lab,
        request,
    )


@router.post("/ablate")
async def ablate_heads(body: AblateBody, lab: Lab, request: Request) -> StreamingResponse:
    """Silence sets of heads and say how a metric changes, with simultaneous intervals."""
    from heed.probe.patch import Head

    sets = [frozenset(Head(one.kind, one.layer, one.head) for one in heads) for heads in body.heads]
    return await stream_answer(
        lambda report: _scores(lab).ablate(
            lab,
            body.run,
            body.weights,
            sets,
            how=body.how,
            metric=body.metric,
            limit=body.limit,
            report=report,
        ),
        lab,
        request,
    )


@router.post("/patch")
async def patch_heads(body: PatchBody, lab: Lab) -> dict[str, Any]:
    """The output of a text before and after heads got other patterns."""
    return await lab.queue.run(_patch, lab, body)


def _patch(lab: LabContext, body: PatchBody) -> dict[str, Any]:
    from heed.errors import ConfigError
    from heed.probe.attend import read_texts
    from heed.probe.patch import Edit, Head
    from heed.probe.patched_output import parse_weights, patch_output

    run, weights, text, target = body.parts()
    edits: dict[Head, Edit] = {}
    for one in body.edits:
        if (one.pattern is None) == (one.weights is None):
            raise ConfigError(["An edit has a pattern or weights, one of the two."])
        head = Head(one.kind, one.layer, one.head)
        edits[head] = one.pattern or parse_weights(one.weights or "")
    with lab.models.use(lab.folder.run(run).folder, weights) as model:
        (reading,) = read_texts(model, [[text]], target)
        return patch_output(model, edits, *reading).to_dict()


def _scores(lab: LabContext) -> HeadScores:
    """The cards and ablations of the lab. PyTorch is imported by the first request."""
    from heed.lab.head_scores import HeadScores

    if lab.head_scores is None:
        lab.head_scores = HeadScores()
    return lab.head_scores
