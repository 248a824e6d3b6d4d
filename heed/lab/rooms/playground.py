"""The playground: translate, classify and generate with a run, and see every choice it makes.

A decoding can be streamed: the answer is then JSON lines, `{"nodes": …, "text": …}` after each
step and `{"result": …}` at the end. A client that leaves stops the decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import StreamingResponse

from heed.errors import DataError, HeedError, RunError
from heed.lab.lab_context import Lab, LabContext
from heed.lab.limits import Text
from heed.lab.run_folder import reading
from heed.lab.streamed_answer import Report, stream_answer
from heed.runs.run import Run, refuse_unsafe_texts
from heed.runs.weight_files import BEST_WEIGHTS

if TYPE_CHECKING:
    from heed.data.tokenizers.tokenizer import Tokenizer
    from heed.decode.search_trace import Node

OnNodes = Callable[[list[dict[str, Any]], str], None]
"""Called with the new nodes of each step, as JSON has them, and the text so far."""

MAX_BEAM = 16
"""The widest beam that is drawn."""
MAX_TOKENS, USUAL_TOKENS = 1000, 60
"""Tokens that may be written, and those of a continuation without a number."""
MAX_ALTERNATIVES = 50
EXAMPLES, EXAMPLE_CHARACTERS = 4, 300

router = APIRouter(prefix="/api/playground")


class DecodeSettings(BaseModel):
    """Keys of a recipe's `[decode]`; what is unset is as in the run's recipe."""

    model_config = ConfigDict(extra="forbid")

    beam: Annotated[int, Field(ge=1, le=MAX_BEAM)] | None = None
    sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    length_penalty: float | None = None


class DecodeRequest(BaseModel):
    """A text to decode from, and how."""

    model_config = ConfigDict(extra="forbid")

    run: str
    text: Text
    weights: Annotated[str, Field(max_length=40)] = BEST_WEIGHTS
    settings: DecodeSettings = DecodeSettings()
    prefix: Annotated[list[int], Field(max_length=MAX_TOKENS)] = []
    """Ids of the tokens that the output begins with."""
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    alternatives: Annotated[int, Field(ge=1, le=MAX_ALTERNATIVES)] = 10
    reverse: bool = False
    """Translate from the target to the source language."""
    stream: bool = False


class ClassifyRequest(BaseModel):
    """A text, or a pair of texts, to classify."""

    model_config = ConfigDict(extra="forbid")

    run: str
    text: Text
    second: Text | None = None
    """The second text of a pair."""
    weights: Annotated[str, Field(max_length=40)] = BEST_WEIGHTS


# ------------------------------------------------------------------------------------- routes


@router.get("")
def describe_task(run: str, lab: Lab) -> dict[str, Any]:
    """What a run does, and its decode settings: for the controls of the room."""
    with reading(run):
        return describe_run(lab.folder.run(run))


def describe_run(run: Run) -> dict[str, Any]:
    """The task of a run, its classes, and its decode settings."""
    recipe = run.recipe()
    fields: dict[str, Any] = {"task": recipe.task, "max_length": recipe.data.max_length}
    if recipe.task == "classify":
        from heed.runs.labels import Classes

        classes = Classes.require(run)
        return fields | {"pairs": classes.pairs, "labels": list(classes.names)}
    keys = DecodeSettings.model_fields
    decode = {name: value for name, value in recipe.decode.model_dump().items() if name in keys}
    return fields | {"decode": decode, "bidirectional": recipe.data.bidirectional}


@router.get("/examples")
async def list_examples(run: str, lab: Lab) -> dict[str, Any]:
    """Texts of the run's dev set to try; none where that is missing."""
    return {"texts": await lab.queue.run(read_examples, lab.folder.run(run))}


@router.post("/translate", response_model=None)
async def translate(
    body: DecodeRequest, lab: Lab, request: Request
) -> dict[str, Any] | StreamingResponse:
    """Translate a text; with `stream`, the steps as they are searched."""
    return await _answer("translate", body, lab, request)


@router.post("/generate", response_model=None)
async def generate(
    body: DecodeRequest, lab: Lab, request: Request
) -> dict[str, Any] | StreamingResponse:
    """Continue a prompt; with `stream`, the steps as they are searched."""
    return await _answer("generate", body, lab, request)


@router.post("/classify")
async def classify(body: ClassifyRequest, lab: Lab) -> dict[str, Any]:
    """The probability of every class of a text or a pair."""
    return await lab.queue.run(classify_text, lab, body)


async def _answer(
    task: Literal["translate", "generate"], body: DecodeRequest, lab: LabContext, request: Request
) -> dict[str, Any] | StreamingResponse:
    if not body.stream:
        return await lab.queue.run(decode_text, task, lab, body)

    def decode(report: Report) -> dict[str, Any]:
        def on_nodes(nodes: list[dict[str, Any]], text: str) -> None:
            report({"nodes": nodes, "text": text})

        return decode_text(task, lab, body, on_nodes)

    return await stream_answer(decode, lab, request)


# -------------------------------------------------------------------------------- computation


def decode_text(
    task: Literal["translate", "generate"],
    lab: LabContext,
    body: DecodeRequest,
    on_nodes: OnNodes | None = None,
) -> dict[str, Any]:
    """The output of a run for one text, with probabilities, alternatives, tree and attention."""
    from heed.api import LanguageModel, Translator

    options: dict[str, Any] = {"prefix": body.prefix, "alternatives": body.alternatives}
    settings = body.settings.model_dump(exclude_none=True)
    with lab.models.use(lab.folder.run(body.run).folder, body.weights) as model:
        if on_nodes is not None:
            options["on_step"] = _StepReport(model.tokenizer, on_nodes)
        if task == "translate" and isinstance(model, Translator):
            options |= {"max_tokens": body.max_tokens, "reverse": body.reverse}
            return model.trace_decoding(body.text, **options, **settings).to_dict()
        if task == "generate" and isinstance(model, LanguageModel):
            options["length"] = body.max_tokens or USUAL_TOKENS
            return model.trace_decoding(body.text, **options, **settings).to_dict()
        raise RunError(
            f"this run was trained to {model.recipe.task}, not to {task}.", where=body.run
        )


class _StepReport:
    """Reports each step of a search: its nodes, and the text of the best hypothesis so far."""

    def __init__(self, tokenizer: Tokenizer, on_nodes: OnNodes) -> None:
        self.tokenizer, self.on_nodes = tokenizer, on_nodes
        self.ids: list[list[int]] = []
        """The tokens of every node so far."""

    def __call__(self, nodes: Sequence[Node]) -> None:
        from heed.probe.decoded_text import node_to_dict

        for node in nodes:
            before = [] if node.parent is None else self.ids[node.parent]
            self.ids.append([*before, node.choice.id])
        best = max(range(len(nodes)), key=lambda i: nodes[i].score)
        text = self.tokenizer.decode(self.ids[best - len(nodes)])
        # A beam's alternatives would be many; the result has those of the answer.
        is_path = len(nodes) == 1
        fields = [node_to_dict(node, self.tokenizer, alternatives=is_path) for node in nodes]
        self.on_nodes(fields, text)


def classify_text(lab: LabContext, body: ClassifyRequest) -> dict[str, Any]:
    """The class of a text or a pair, and the probability of every class."""
    from heed.api import Classifier
    from heed.pipelines.classify import check_text_kind

    text = body.text if body.second is None else (body.text, body.second)
    if not body.text.strip() or (body.second is not None and not body.second.strip()):
        raise DataError("there is no text to classify.", todo="Give a text that is not blank.")
    with lab.models.use(lab.folder.run(body.run).folder, body.weights) as model:
        if not isinstance(model, Classifier):
            raise RunError(
                f"this run was trained to {model.recipe.task}, not to classify.", where=body.run
            )
        check_text_kind(model.classes, [text])
        (label,) = model.pipeline.classify([text])
        tokens, _ = model.inputs(text)
    return {
        "label": label.name,
        "probabilities": [
            {"label": name, "probability": value} for name, value in label.probabilities.items()
        ],
        "cut": label.cut,
        "tokens": tokens.labels.tokens,
        "temperature": model.pipeline.temperature,
    }


def read_examples(run: Run) -> list[list[str]]:
    """A few short texts of the dev set, each as its parts: a text, a pair, or a prompt."""
    from heed.evaluate.held_out_set import TrainingText, find_set

    recipe = run.recipe()
    refuse_unsafe_texts(recipe)
    try:
        # A dev set that was set aside from train would need all of train to be read.
        held_out = find_set(recipe, TrainingText(None, "it is not read here."), split="dev")
        records = (record.texts for record in held_out.corpus.usable_records())
        short = (texts for texts in records if max(map(len, texts)) <= EXAMPLE_CHARACTERS)
        examples = [list(texts) for texts in islice(short, EXAMPLES)]
    except (HeedError, OSError):
        return []
    if recipe.task == "translate":
        return [texts[:1] for texts in examples]
    if recipe.task == "generate":  # the first words, to be continued
        return [[" ".join(texts[0].split()[:4])] for texts in examples]
    return examples
