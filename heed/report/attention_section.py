"""Attention maps in a run's report: interactive, with a static figure for paper and Markdown."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

from heed.data.tokenizers.tokenizer import Tokenizer
from heed.decode.settings import merge_decode_config
from heed.errors import HeedError, HeedWarning
from heed.models import Classifier, LanguageModel, Model, Translator
from heed.pipelines.classify import ClassificationPipeline
from heed.pipelines.translate import TranslationPipeline
from heed.probe.attention_maps import AttentionMap, AttentionMaps, map_inputs
from heed.probe.map_figure import last_layer, short_labels
from heed.probe.text_trace import classifier_input, language_model_input, translation_inputs
from heed.report.document import Block, Figure, Interactive, Paragraph, Section
from heed.report.examples_section import confidence
from heed.report.heat_map import heat_map
from heed.report.run_content import RunContent
from heed.runs.labels import Classes
from heed.runs.load import load_run

MOST_WORDS = 14
"""Words of a text whose map fits a page."""
MAPS = 2
KINDS = {"encoder": "encoder attention", "decoder": "decoder attention", "cross": "cross-attention"}
Text = str | tuple[str, str]


def build_attention_section(content: RunContent) -> Section:
    """The section with the attention maps of one or two texts."""
    try:
        blocks = list(_render_maps(content))
    except HeedError as error:
        blocks = [Paragraph(f"There are no attention maps: {error}", "note")]
    return Section("attention", "Attention", blocks)


def _render_maps(content: RunContent) -> Iterator[Block]:
    texts = choose_texts(content)
    if not texts:
        yield Paragraph("There are no attention maps: no evaluated text is at hand.", "note")
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HeedWarning)  # an unfinished run is named at the top
        model, tokenizer, _ = load_run(content.run.folder, device="cpu")
    first = True
    for number, text in enumerate(texts, 1):
        maps = replace(map_text(content, model, tokenizer, text), run=content.name)
        if not any(map(len, maps.get().weights)):
            yield Paragraph("There are no attention maps: all heads were pruned.", "note")
            return
        if first:
            yield Paragraph(_describe_reading(maps.get()))
        first = False
        yield _build_block(maps, f"attention-{number}")


def choose_texts(content: RunContent) -> Sequence[Text]:
    """One text that the model gets wrong and one that it gets right, both of few words."""
    if not content.results:
        return []
    rows = content.read_table(next(iter(content.results)))
    key = "source" if content.recipe.task == "translate" else "text"
    short = [row for row in rows if 3 <= len(row[key].split()) <= MOST_WORDS]
    match content.recipe.task:
        case "translate":
            ordered = sorted(short, key=lambda row: float(row["score"]))
            chosen = [*ordered[:1], *(row for row in short if row is not ordered[0])][:MAPS]
        case "classify":
            ordered = sorted(short, key=confidence, reverse=True)
            wrong = [row for row in ordered if row["label"] != row["predicted"]]
            right = [row for row in ordered if row["label"] == row["predicted"]]
            chosen = [*wrong[:1], *right[:1]]
        case _:
            # Texts are documents: their beginning is enough.
            words = [row[key].split()[:MOST_WORDS] for row in rows]
            return [" ".join(one).removesuffix("…") for one in words if len(one) > 2][:1]
    return [(row[key], row["text_2"]) if "text_2" in row else row[key] for row in chosen]


def map_text(content: RunContent, model: Model, tokenizer: Tokenizer, text: Text) -> AttentionMaps:
    """The attention of a run's model over a text, as its task reads it."""
    recipe = content.recipe
    match recipe.task:
        case "translate":
            decode = merge_decode_config(recipe.decode, {})
            limit = recipe.data.max_length - 1
            translator = cast("Translator", model)
            pipeline = TranslationPipeline([translator], tokenizer, decode, max_source=limit)
            source, target = translation_inputs(pipeline, str(text))
            return map_inputs(model, target, source)
        case "classify":
            classifier = ClassificationPipeline(
                cast("Classifier", model),
                tokenizer,
                Classes.require(content.run),
                max_length=recipe.data.max_length,
            )
            return map_inputs(model, classifier_input(classifier, text))
        case _:
            limit = recipe.data.max_length
            language_model = cast("LanguageModel", model)
            read = language_model_input(language_model, tokenizer, str(text), limit=limit)
            return map_inputs(model, read)


def _describe_reading(attention: AttentionMap) -> str:
    return (
        "A row is a query, a column a key; each row's weights sum to 1. What a weight shows is "
        f"where the model looks ({KINDS[attention.kind]}), not why its output is what it is."
    )


def _build_block(maps: AttentionMaps, anchor: str) -> Interactive:
    attention = maps.get()
    layer = last_layer(attention)
    figure = draw_mean_map(attention, layer, f"{anchor}-figure")
    read = f"“{maps.text}”" + (f" → “{maps.target}”" if maps.target else "")
    caption = (
        f"Attention of {maps.run} over {read}. Without JavaScript, and on paper: "
        f"{KINDS[attention.kind]} of layer {layer + 1}, mean of its heads."
    )
    return Interactive(anchor, "attention-map", maps.to_dict(binary=True), caption, figure)


def draw_mean_map(attention: AttentionMap, layer: int, anchor: str) -> Figure:
    """The mean of a layer's heads as a heat map; shades grow with the square root of a weight."""
    weights = attention.mean_over_heads(layer)
    values = [
        [float(weight) if visible else None for weight, visible in zip(row, seen, strict=True)]
        for row, seen in zip(weights, attention.visible, strict=True)
    ]
    rows, columns = short_labels(attention.query_tokens), short_labels(attention.key_tokens)
    svg = heat_map(values, rows, columns, row_title="query", column_title="key", shade=math.sqrt)
    strongest = []
    for row, name in zip(weights, rows, strict=True):
        at = int(row.argmax())
        strongest.append(f"query {name}: most weight on key {columns[at]} ({float(row[at]):.2f})")
    kind = KINDS[attention.kind]
    alt = f"Heat map of {kind}, layer {layer + 1}, mean of heads: {'; '.join(strongest)}."
    return Figure(anchor, f"{kind}, layer {layer + 1}, mean of heads", alt, svg)
