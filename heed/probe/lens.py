"""The logit lens: what each layer would predict if it were the last one.

The vectors after a layer go through the final norm and the output head of the model, as those of
the last layer do (nostalgebraist 2020). The rank of the target's token
by layer shows where a model decides.

Shapes: l layers, n tokens, w model width, v vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.text import Text
from torch import Tensor

from heed.data.tokenizers.tokenizer import Tokenizer
from heed.errors import RunError
from heed.models import Classifier, LanguageModel, Model, Translator
from heed.models.inference import evaluating
from heed.nn.lstm import LSTMStack
from heed.nn.stack import Stack
from heed.plot import replace_unprintable
from heed.probe.text_trace import InputTokens, count_traceable, trace_batch
from heed.terminal import build_note, build_table

BATCH_SIZE = 32
"""Copies of a text, each with another token masked, in a forward pass."""
LINE_WIDTH, LEAST_WIDTH, MOST_WIDTH, GAP = 80, 6, 12, 2
"""Columns of the terminal: of a line, at least and at most of a token, and between tokens."""
TARGET, OWN_OUTPUT = "target", "own output"
"""What the tokens to predict may be of."""


@dataclass(frozen=True)
class Prediction:
    """What a layer would predict at one position."""

    token: str
    """The most probable token, or class."""
    probability: float
    rank: int | None
    """The rank of the true token, 1 for the most probable; None where it is unknown."""

    def to_dict(self) -> dict[str, Any]:
        """The fields for JSON."""
        return {"token": self.token, "probability": self.probability, "rank": self.rank}


@dataclass(frozen=True)
class LensRow:
    """One position: the token that is read, the true one to predict, and every layer's guess."""

    token: str
    truth: str | None
    """The token to predict: the next one, or the masked one itself; None where it is unknown."""
    loss: float | None
    """-log P(truth) of the whole model."""
    layers: list[Prediction]
    """The embeddings' prediction, then that of each layer."""


@dataclass(frozen=True)
class Lens:
    """The predictions of every layer at every position of a text."""

    text: str
    target: str | None
    rows: list[LensRow]
    reference: str = TARGET
    """What the tokens to predict are of: the target (a given translation or the text), or the
    model's own output."""

    @property
    def loss(self) -> float | None:
        """The mean loss of the tokens whose truth is known."""
        losses = [row.loss for row in self.rows if row.loss is not None]
        return sum(losses) / len(losses) if losses else None

    def to_dict(self) -> dict[str, Any]:
        """The lens for JSON."""
        return {
            "text": self.text,
            "target": self.target,
            "reference": self.reference,
            "loss": self.loss,
            "tokens": [
                {
                    "token": row.token,
                    "truth": row.truth,
                    "loss": row.loss,
                    "layers": [one.to_dict() for one in row.layers],
                }
                for row in self.rows
            ],
        }


def read_lens(
    model: Model,
    tokenizer: Tokenizer,
    text: InputTokens,
    source: InputTokens | None = None,
    *,
    classes: Sequence[str] = (),
    reference: str = TARGET,
) -> Lens:
    """What each layer of a model would predict over a text; `classes` names a classifier's.

    `reference` says what the text is where the model did not get it: the target or its own output.
    """
    stack = _require_transformer(model)
    with evaluating(model):
        if isinstance(model, Classifier):
            rows = [_classifier_row(model, stack, text, classes)]
        elif isinstance(model, LanguageModel) and not model.causal:
            rows = [*_masked_rows(model, stack, tokenizer, text)]
        else:
            trace = trace_batch(model, [text], [] if source is None else [source])
            hidden = [layer[0] for layer in trace.hidden["decoder"]]
            rows = _token_rows(model, stack, tokenizer, hidden, text.labels.tokens, text.written)
    if source is None:
        return Lens(text.text, None, rows, reference)
    return Lens(source.text, text.text, rows, reference)


def _require_transformer(model: Model) -> Stack:
    """The stack whose layers write to one residual stream, with the final norm."""
    stack = model.decoder if isinstance(model, Translator) else model.stack
    if isinstance(stack, LSTMStack):
        raise RunError(
            "the logit lens reads the residual stream of a Transformer, and this is an LSTM.",
            todo="Use a run with model.family = 'transformer'.",
        )
    return stack


def _token_rows(
    model: Translator | LanguageModel,
    stack: Stack,
    tokenizer: Tokenizer,
    hidden: Sequence[Tensor],
    tokens: Sequence[str],
    truths: Sequence[int],
) -> list[LensRow]:
    """A row for each position of `hidden` [n, w] per layer; the last may have no known truth."""
    guesses, chances, ranks = [], [], []
    target_n = torch.tensor(truths, device=hidden[0].device, dtype=torch.long)[:, None]
    for states_nw in hidden:
        logits_nv = model.head(stack.norm(states_nw)[None])[0].float()
        log_chances_nv = logits_nv.log_softmax(dim=-1)
        best, guess = log_chances_nv.max(dim=-1)
        true_n = log_chances_nv[: len(truths)].gather(1, target_n)
        guesses.append(tokenizer.ids_to_tokens(guess.tolist()))
        chances.append(best.exp().tolist())
        ranks.append(1 + (log_chances_nv[: len(truths)] > true_n).sum(dim=-1))
    losses = (-true_n[:, 0]).tolist()
    names = tokenizer.ids_to_tokens(truths)
    rows = []
    for i, token in enumerate(tokens):
        known = i < len(truths)
        layers = [
            Prediction(guess[i], chance[i], int(rank[i]) if known else None)
            for guess, chance, rank in zip(guesses, chances, ranks, strict=True)
        ]
        truth, loss = (names[i], losses[i]) if known else (None, None)
        rows.append(LensRow(token, truth, loss, layers))
    return rows


def _masked_rows(
    model: LanguageModel, stack: Stack, tokenizer: Tokenizer, text: InputTokens
) -> Iterator[LensRow]:
    """A row for each token of the text, masked in its turn while all others are read."""
    mask = tokenizer.specials.require_mask("--lens")
    places = [i for i, word in enumerate(text.labels.words) if word is not None]
    device = next(model.parameters()).device
    size = min(BATCH_SIZE, count_traceable(model, len(text.ids)))
    for first in range(0, len(places), size):
        batch = places[first : first + size]
        ids_bn = torch.tensor([text.ids] * len(batch), device=device)
        rows = torch.arange(len(batch), device=device)
        columns = torch.tensor(batch, device=device)
        ids_bn[rows, columns] = mask
        hidden = [layer[rows, columns] for layer in model.trace(ids_bn).hidden["encoder"]]
        tokens = tokenizer.ids_to_tokens([mask] * len(batch))
        truths = [text.ids[place] for place in batch]
        yield from _token_rows(model, stack, tokenizer, hidden, tokens, truths)


def _classifier_row(
    model: Classifier, stack: Stack, text: InputTokens, classes: Sequence[str]
) -> LensRow:
    """What class each layer would choose, before calibration."""
    ids_bn = torch.tensor([text.ids], device=next(model.parameters()).device)
    layers = []
    for states_bnw in model.trace(ids_bn).hidden["encoder"]:
        chances = model.classify(ids_bn, stack.norm(states_bnw), None)[0].float().softmax(dim=-1)
        best = int(chances.argmax())
        layers.append(Prediction(classes[best], float(chances[best]), None))
    return LensRow("the text", None, None, layers)


# ------------------------------------------------------------------------------------ the terminal


def render_lens(lens: Lens) -> Group:
    """A table for the terminal: each layer's guess, and below it the rank of the reference's."""
    count = len(lens.rows[0].layers) if lens.rows else 0
    has_truth = any(row.truth is not None for row in lens.rows)
    names = max((cell_len(row.token) for row in lens.rows), default=0)
    first = max(LEAST_WIDTH, min(MOST_WIDTH, names))
    second = max(first, len(lens.reference))
    room = LINE_WIDTH - (first + second + 2 * GAP + 5 + GAP if has_truth else first + GAP)
    shown = spread(count, max(2, room // (LEAST_WIDTH + GAP)))
    width = max(LEAST_WIDTH, min(MOST_WIDTH, room // max(1, len(shown)) - GAP))
    headers = ["reads", *([lens.reference, "loss"] if has_truth else [])]
    word = "layer " if width >= len("layer 10") else "L"
    layers = ["embed" if layer == 0 else f"{word}{layer}" for layer in shown]
    table = build_table(*headers, *layers, right=("loss",), compact=True)
    for row in lens.rows:
        known = row.truth is not None and row.loss is not None
        truth = [_fit(row.truth or "", second), f"{row.loss:.2f}" if known else ""]
        cells = [_cell(row.layers[layer], width) for layer in shown]
        table.add_row(_fit(row.token, first), *(truth if has_truth else []), *cells)
    lines: list[RenderableType] = [Text(lens.text)]
    lines += [] if lens.target is None else [Text(f"→ {lens.target}")]
    return Group(*lines, table, build_note(_explain(lens, has_truth, count, shown)), "")


def _cell(prediction: Prediction, width: int) -> Text:
    below = f"{prediction.probability:.0%}" if prediction.rank is None else f"#{prediction.rank:,}"
    return Text(f"{_fit(prediction.token, width)}\n{below}")


def _fit(token: str, width: int) -> str:
    token = replace_unprintable(token)
    return token if cell_len(token) <= width else set_cell_size(token, width - 1).rstrip() + "…"


def spread(count: int, most: int) -> list[int]:
    """At most so many indices below `count`, evenly spread, the first and the last included."""
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def _explain(lens: Lens, has_truth: bool, count: int, shown: Sequence[int]) -> str:
    words = "each layer's guess; below it its probability"
    if has_truth and lens.loss is not None:
        token = "the model's own token" if lens.reference == OWN_OUTPUT else "the target's token"
        words = f"each layer's guess; below it the rank of {token} (#1: predicted)"
        perplexity = math.exp(min(lens.loss, 700.0))
        words += f"; loss {lens.loss:.4f} a token, perplexity {perplexity:.2f}"
    return words if len(shown) == count else f"{words}; --json has all {count - 1} layers"
