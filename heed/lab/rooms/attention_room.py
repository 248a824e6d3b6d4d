"""The room Attention: maps of a text, its rows in stages, the mask's audit, two models, training.

Weights leave as bytes: `GET /api/attention/maps/KEY/head` is one head, little-endian float32, and
`…/pictures` all heads of a kind at one byte a pixel. A key stands for the weights and the text, so
a browser may keep what it has got. Layers and heads count from 0.

A client that leaves cancels what it waits for: a computation that has not begun never does, and a
pass that no client reads any more ends with its next layer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response, StreamingResponse

from heed.errors import DataError
from heed.lab.disconnect import await_while_connected
from heed.lab.error_responses import ClientLeftError
from heed.lab.lab_context import Lab, LabContext
from heed.lab.limits import Text
from heed.runs.weight_files import BEST_WEIGHTS, LAST_WEIGHTS

if TYPE_CHECKING:
    from heed.lab.text_maps import TextMaps

Kind = Literal["encoder", "decoder", "cross"]
Index = Annotated[int, Field(ge=0)]
T = TypeVar("T")
KEPT = {"Cache-Control": "private, max-age=86400, immutable"}
"""A key never means other weights, so the browser need not ask again."""

router = APIRouter(prefix="/api/attention")


class TextBody(BaseModel):
    """A text, and the weights of a run to read it with."""

    model_config = ConfigDict(extra="forbid")

    run: str
    text: Text
    weights: str = BEST_WEIGHTS
    target: Text | None = None
    """The translation to read; unset, the model's own."""

    def parts(self) -> tuple[str, str, str, str | None]:
        """What the functions of `TextMaps` take."""
        return self.run, self.weights, self.text, self.target or None


class RowBody(TextBody):
    """One row of one head."""

    kind: Kind
    layer: Index
    head: Index
    row: Index


class FutureBody(TextBody):
    """The token from which on all are changed."""

    place: Index


class PairBody(BaseModel):
    """Two runs, two weights of a run, or two texts."""

    model_config = ConfigDict(extra="forbid")

    first: TextBody
    second: TextBody


@router.get("/weights")
def list_weights(run: str, lab: Lab) -> dict[str, Any]:
    """The task of a run, the weights that it has by name, and the steps of its snapshots."""
    folder = lab.folder.run(run)
    steps = sorted(folder.weight_files.by_step())
    return {
        "task": folder.recipe().task,
        "weights": [BEST_WEIGHTS, *([LAST_WEIGHTS] if steps else []), *map(str, steps)],
        "snapshots": folder.weight_files.snapshot_steps(),
    }


@router.post("")
async def read_maps(body: TextBody, lab: Lab, request: Request) -> dict[str, Any]:
    """The tokens, layers and heads of a text's maps, and the key by which weights are asked for.

    This is answered before the weights are computed: a request for a head waits for its layer.
    """

    def describe(answer: Callable[[dict[str, Any]], None]) -> None:
        _maps(lab).describe(*body.parts(), answer)

    return await await_while_connected(request, lab.queue.run_ahead(describe))


@router.get("/maps/{key}/head")
async def read_head(
    key: str, kind: Kind, layer: Index, head: str, lab: Lab, request: Request
) -> Response:
    """One head [n, m] as float32, or with `head=mean` the mean over a layer."""
    from heed.lab.stored_maps import head_weights

    maps, progress = lab.maps.require(key)
    attention = maps.get(kind)
    await await_while_connected(request, progress.wait(kind, layer))
    content = head_weights(attention, layer, _parse_head(head)).astype("<f4").tobytes()
    return Response(content, media_type="application/octet-stream", headers=KEPT)


@router.get("/maps/{key}/pictures")
async def read_pictures(
    key: str, kind: Kind, lab: Lab, request: Request, scale: Literal["one", "row"] = "one"
) -> Response:
    """Small pictures of all heads and means: bytes from 0 to 254, or 255 for what is masked.

    They are sent layer by layer, each as soon as it is computed.
    """
    from heed.lab.stored_maps import draw_layer, picture_shape

    maps, progress = lab.maps.require(key)
    attention = maps.get(kind)

    async def draw(layer: int) -> bytes:
        await await_while_connected(request, progress.wait(kind, layer))
        drawn = await lab.queue.run(draw_layer, attention, layer, by_row=scale == "row")
        return drawn.tobytes()

    async def draw_all(first: bytes) -> AsyncIterator[bytes]:
        yield first
        with suppress(ClientLeftError), progress.reading():
            for layer in range(1, len(attention.weights)):
                yield await draw(layer)

    first = await draw(0)  # an error has its status
    shape = ",".join(map(str, picture_shape(attention)))
    return StreamingResponse(
        draw_all(first), media_type="application/octet-stream", headers=KEPT | {"X-Shape": shape}
    )


@router.post("/row")
async def read_row(body: RowBody, lab: Lab, request: Request) -> dict[str, Any]:
    """The stages of one row: scores, scale, bias, mask, softmax."""
    from heed.probe.patch import Head

    head = Head(body.kind, body.layer, body.head)
    return await _compute(lab, request, lambda maps: maps.stages(*body.parts(), head, body.row))


@router.post("/checks")
async def check_maps(body: TextBody, lab: Lab, request: Request) -> dict[str, Any]:
    """The mask's audit, and every check of `heed attend --check`."""
    return await _compute(lab, request, lambda maps: maps.checks(*body.parts()))


@router.post("/future")
async def change_future(body: FutureBody, lab: Lab, request: Request) -> dict[str, Any]:
    """Change all tokens from a place on, and say how far each row moved."""
    return await _compute(lab, request, lambda maps: maps.future(*body.parts(), body.place))


@router.post("/compare")
async def compare_maps(body: PairBody, lab: Lab, request: Request) -> dict[str, Any]:
    """Two models or texts side by side; over one text, with their heads in pairs."""
    first, second = body.first.parts(), body.second.parts()
    return await _compute(lab, request, lambda maps: maps.compare(first, second))


@router.post("/history")
async def follow_heads(body: TextBody, lab: Lab, request: Request) -> list[dict[str, Any]]:
    """How each head's map came to be, over the snapshots of training."""
    run, _, text, target = body.parts()
    return await _compute(lab, request, lambda maps: maps.history(run, text, target))


async def _compute(lab: LabContext, request: Request, function: Callable[[TextMaps], T]) -> T:
    """What a function of the maps returns, computed in the queue while the client waits for it."""
    return await await_while_connected(request, lab.queue.run(lambda: function(_maps(lab))))


def _maps(lab: LabContext) -> TextMaps:
    """The answers of this room. PyTorch is imported here, by the first request that computes."""
    from heed.lab.text_maps import TextMaps

    return TextMaps(lab)


def _parse_head(head: str) -> int | str:
    if head != "mean" and not (head.isascii() and head.isdecimal() and len(head) < 6):
        raise DataError(f"{head!r} is not a head.", todo="Use a number from 0 on, or mean.")
    return head if head == "mean" else int(head)
