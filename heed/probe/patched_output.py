"""What an edit of attention does to a model's output: before and after, on the same text.

Predictions are compared on the same tokens: those of the translation without the edit, or of the
prompt. So every row says how one prediction moved.

Shapes: n predictions, v tokens of the vocabulary, or classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from torch import Tensor

from heed.arrays import Floats
from heed.errors import ConfigError
from heed.probe.attend import LoadedModel, read_texts
from heed.probe.patch import ZERO, Edit, Head, edit_attention, find_pattern, list_heads, parse_heads
from heed.probe.text_trace import InputTokens, trace_batch
from heed.terminal import build_grid, build_note, build_table

NEXT_TOKENS, SHOWN_EDITS = 8, 4
"""Next tokens of a language model, and edits, that are shown."""


@dataclass(frozen=True)
class PredictionChange:
    """The probability of one token or class, without the edits and with them."""

    name: str
    before: float
    after: float
    winner: str
    """What is most probable in its place with the edits."""
    moved: float
    """Total variation distance: how much probability moved to other tokens or classes."""


@dataclass(frozen=True)
class PatchedOutput:
    """What a model makes of one text, without edits and with them."""

    text: str
    task: str
    edits: list[str]
    before: str
    after: str
    """The translation, the class, or the most probable next token."""
    predictions: list[PredictionChange]
    """Of a translation's tokens, of all classes, or of the most probable next tokens."""
    moved: float
    """The mean over all places of the probability that moved, 0 to 1."""
    largest_logit_change: float

    def to_dict(self) -> dict[str, Any]:
        """The result for JSON."""
        return asdict(self)


def parse_patches(
    model: LoadedModel, patches: Sequence[str], source: str | None = None
) -> dict[Head, Edit]:
    """Edits as a person types them, counted from 1: `cross.2.3=uniform`, `encoder.1.*=zero`.

    One without a pattern, `cross.2.3`, takes that head's weights on the text `source`.
    """
    edits: dict[Head, Edit] = {}
    bare = [patch for patch in patches if "=" not in patch]
    if bare and source is None:
        if "." not in bare[0]:
            example = list_heads(model.model)[-1].label
            what = f"--patch {bare[0]} names no head: write kind.layer.head=pattern"
            raise ConfigError([f"{what}, such as {example}=uniform."])
        parse_heads(bare[0], model.model)  # where there is no such head, its error says so
        what = f"--patch {bare[0]} has no pattern: write {bare[0]}=uniform"
        raise ConfigError([f"{what}, or name a sentence whose weights it takes with --patch-from."])
    if source is not None and not bare:
        what = "--patch-from is not used: name a head without a pattern, as in --patch cross.2.3"
        raise ConfigError([f"{what}."])
    maps = None
    if source is not None:
        (reading,) = read_texts(model, [[source]])
        maps = model.attention(*reading)
    for patch in patches:
        name, _, pattern = patch.partition("=")
        heads = parse_heads(name, model.model)
        if "=" in patch:
            if pattern != ZERO:
                find_pattern(pattern)
            edits |= dict.fromkeys(heads, pattern)
        elif maps is not None:
            edits |= {head: maps.get(head.kind).weights[head.layer][head.head] for head in heads}
    return edits


def parse_weights(text: str) -> Floats:
    """Attention weights [n, m] as pasted text: a line for each query, a number for each key.

    White space, commas or semicolons separate numbers. Every row is divided by its sum.
    """
    rows: list[list[float]] = []
    for number, line in enumerate(text.strip().splitlines(), 1):
        words = line.replace(",", " ").replace(";", " ").split()
        try:
            rows.append([float(word) for word in words])
        except ValueError:
            raise ConfigError(
                [f"Line {number} of the pattern is not all numbers: {line!r}."]
            ) from None
        row = rows[-1]
        if not row or len(row) != len(rows[0]):
            what = (
                f"Line {number} of the pattern has {len(row)} numbers, and line 1 {len(rows[0])}."
            )
            raise ConfigError([what])
        if not all(0 <= value < math.inf for value in row) or not sum(row):
            what = f"Line {number} of the pattern needs numbers from 0 on, and one above 0."
            raise ConfigError([what])
    if not rows:
        raise ConfigError(["The pattern is empty: give a line of numbers for each query."])
    weights_nm = np.array(rows)
    return np.asarray(weights_nm / weights_nm.sum(axis=1, keepdims=True))


def patch_output(
    model: LoadedModel, edits: Mapping[Head, Edit], text: Any, target: str | None = None
) -> PatchedOutput:
    """Run a model over a text without the edits and with them; `target` is a translation."""
    by_task: dict[str, Callable[..., PatchedOutput]] = {
        "translate": _patch_translation,
        "classify": _patch_classification,
        "generate": _patch_generation,
    }
    read, source = model.inputs(*((text,) if target is None else (text, target)))
    return by_task[model.recipe.task](model, read, source, edits)


def render_output(output: PatchedOutput) -> RenderableType:
    """The outputs and a table of predictions, for the terminal."""
    grid = build_grid(no_wrap_first=True)
    for name in ("text", "before", "after"):
        grid.add_row(name, getattr(output, name))
    places = output.task == "translate"
    subject = {"translate": "token", "classify": "class", "generate": "next token"}[output.task]
    headers = [subject, "before", "after", "change"]
    headers += ["most probable now", "moved"] if places else []
    table = build_table(*headers, right=("before", "after", "change", "moved"), compact=True)
    for one in output.predictions:
        change = round(one.after - one.before, 3) + 0.0  # no minus before a zero
        row = [one.name, f"{one.before:.3f}", f"{one.after:.3f}", f"{change:+.3f}"]
        table.add_row(*row, *([one.winner, f"{one.moved:.3f}"] if places else []))
    rest = len(output.edits) - SHOWN_EDITS
    edits = ", ".join(output.edits[:SHOWN_EDITS]) + (f" and {rest} more" if rest > 0 else "")
    note = (
        f"{edits}: {output.moved:.1%} of the probability moved"
        f"{' (mean over all places)' if output.task != 'classify' else ''}; "
        f"the largest change of a logit is {output.largest_logit_change:.2f}."
    )
    return Group(grid, "", table, build_note(note))


def _patch_translation(
    model: LoadedModel, written: InputTokens, source: InputTokens, edits: Mapping[Head, Edit]
) -> PatchedOutput:
    text, pipeline = source.text, model.pipeline()
    (own,) = pipeline.translate([text])
    before, after, (patched,) = _run_both(
        model, edits, written, [source], lambda: pipeline.translate([text])
    )
    names = (written.following or written.labels).tokens
    predictions = [
        _prediction(model, name, token, p_v, q_v)
        for name, token, p_v, q_v in zip(names, written.written, before, after, strict=True)
    ]
    return _compare(model, text, edits, (own.text, patched.text), predictions, before, after)


def _patch_generation(
    model: LoadedModel, read: InputTokens, source: None, edits: Mapping[Head, Edit]
) -> PatchedOutput:
    if not model.model.causal:
        what = "--patch shows next tokens, and a masked language model predicts none"
        raise ConfigError([f"{what}: look at its maps with heed attend --out."])
    before, after, _ = _run_both(model, edits, read, [], lambda: None)
    p_v, q_v = _softmax(before[-1]), _softmax(after[-1])
    tokens = np.argsort(-np.maximum(p_v, q_v))[:NEXT_TOKENS]
    names = model.tokenizer.ids_to_tokens([int(token) for token in tokens])
    predictions = [
        _prediction(model, name, int(token), before[-1], after[-1])
        for name, token in zip(names, tokens, strict=True)
    ]
    best = model.tokenizer.ids_to_tokens([int(p_v.argmax()), int(q_v.argmax())])
    return _compare(model, read.text, edits, (best[0], best[1]), predictions, before, after)


def _patch_classification(
    model: LoadedModel, read: InputTokens, source: None, edits: Mapping[Head, Edit]
) -> PatchedOutput:
    pipeline = model.pipeline
    names = pipeline.classes.names
    before, after, _ = _run_both(model, edits, read, [], lambda: None)
    before, after = before / pipeline.temperature, after / pipeline.temperature
    p_v, q_v = _softmax(before[0]), _softmax(after[0])
    moved, winner = _moved(p_v, q_v), names[int(q_v.argmax())]
    predictions = [
        PredictionChange(name, float(p), float(q), winner, moved)
        for name, p, q in zip(names, p_v, q_v, strict=True)
    ]
    texts = names[int(p_v.argmax())], winner
    return _compare(model, read.text, edits, texts, predictions, before, after)


def _run_both(
    model: LoadedModel,
    edits: Mapping[Head, Edit],
    read: InputTokens,
    sources: Sequence[InputTokens],
    generate: Callable[[], Any],
) -> tuple[Floats, Floats, Any]:
    """Logits [n, v] without the edits and with them, and what `generate` returns with them."""
    before = _rows(trace_batch(model.model, [read], sources).logits)
    with edit_attention(model.model, edits):
        return before, _rows(trace_batch(model.model, [read], sources).logits), generate()


def _rows(logits: Tensor) -> Floats:
    """The logits of one text: [n, v], or [1, v] of a classifier."""
    return logits.double().cpu().numpy().reshape(-1, logits.shape[-1])


def _prediction(
    model: LoadedModel, name: str, token: int, before: Floats, after: Floats
) -> PredictionChange:
    p_v, q_v = _softmax(before), _softmax(after)
    (winner,) = model.tokenizer.ids_to_tokens([int(q_v.argmax())])
    return PredictionChange(name, float(p_v[token]), float(q_v[token]), winner, _moved(p_v, q_v))


def _compare(
    model: LoadedModel,
    text: str,
    edits: Mapping[Head, Edit],
    texts: tuple[str, str],
    predictions: list[PredictionChange],
    before: Floats,
    after: Floats,
) -> PatchedOutput:
    names = [f"{head.label}={_describe(edit)}" for head, edit in edits.items()]
    moved = [_moved(_softmax(p_v), _softmax(q_v)) for p_v, q_v in zip(before, after, strict=True)]
    # Probabilities do not depend on a constant in all logits of a place.
    change = (after - after.mean(axis=1, keepdims=True)) - (
        before - before.mean(axis=1, keepdims=True)
    )
    return PatchedOutput(
        text,
        model.recipe.task,
        names,
        *texts,
        predictions,
        float(np.mean(moved)),
        float(np.abs(change).max()),
    )


def _describe(edit: Edit) -> str:
    return edit if isinstance(edit, str) else "given weights"


def _softmax(logits_v: Floats) -> Floats:
    powers = np.exp(logits_v - logits_v.max())
    return np.asarray(powers / powers.sum())


def _moved(p_v: Floats, q_v: Floats) -> float:
    """Total variation distance of two distributions."""
    return 0.5 * float(np.abs(p_v - q_v).sum())
