"""Measure where the heads of one run look, on text that it was not trained on.

Shapes: l layers, h heads, n tokens (queries and keys), t texts, s statistics.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from by_position.systems import LENGTH, PADDING, SENTENCES, pad_text, read_labeled, split_words
from heed.api import Classifier, LanguageModel, load
from heed.arrays import Floats
from heed.data.corpus import open_corpus
from heed.models.inference import evaluating

STATISTICS = ("distance", "first", "first_three", "same", "previous", "next", "padding")
"""What is measured of a row of weights, then averaged: the mean distance in tokens to what it looks
at; its share on the begin token, on the first three tokens, on the token itself, the one before and
the one after; and on padding."""
TEXTS = 100
SHORTEST = 8
"""Tokens of the shortest text that is measured, begin token included."""
DRAWN_SEED = 0
"""The seed whose maps are kept for the figure."""


def measure_run(run: Path, data: Path) -> dict[str, Any]:
    """All measurements of a run; lists over texts hold means over layers and heads."""
    model = load(run, device="cpu")
    if not isinstance(model, Classifier | LanguageModel):
        raise TypeError(f"{run}: a translator is not measured here")
    padded = run.name.startswith("padded")
    texts = choose_texts(data, "classify" if isinstance(model, Classifier) else "generate")
    by_head_tslh, uniform_ts = [], []
    for text in texts:
        weights_lhnn, tokens = attention(model, text)
        by_head_tslh.append(statistics(weights_lhnn, tokens))
        uniform_ts.append(statistics(uniform_weights(model, len(tokens)), tokens)[:, 0, 0])
    by_text_ts = np.mean(by_head_tslh, axis=(2, 3))
    sentences = {
        name: measure_sentence(model, pad_text(text) if padded else text)
        for name, text in SENTENCES.items()
    }
    if model.recipe.seed != DRAWN_SEED:
        for sentence in sentences.values():
            del sentence["weights"]
    return {
        "position": model.recipe.model.position,
        "seed": model.recipe.seed,
        "score": score(model, data, texts),
        "by_head": _by_statistic(np.mean(by_head_tslh, axis=0)),
        "by_text": _by_statistic(by_text_ts.T),
        "uniform": _by_statistic(np.array(uniform_ts).T),
        "sentences": sentences,
    }


def attention(model: Classifier | LanguageModel, text: str) -> tuple[Floats, list[str]]:
    """The weights [l, h, n, n] of a text as the model reads it, and its tokens."""
    if isinstance(model, Classifier):
        (ids,) = model.pipeline.input_ids([text])
    else:
        ids = [model.tokenizer.specials.bos, *model.tokenizer.encode(text)][:LENGTH]
    with evaluating(model.model):
        trace = model.model.trace(torch.tensor([ids]))
    layers = trace.encoder or trace.decoder
    weights_lhnn = torch.cat(layers).double().numpy()
    return weights_lhnn, model.tokenizer.ids_to_tokens(ids)


def uniform_weights(model: Classifier | LanguageModel, tokens: int) -> Floats:
    """The weights [1, 1, n, n] of a head that looks at all it may see alike."""
    visible_nn = np.ones((tokens, tokens))
    if isinstance(model, LanguageModel):
        visible_nn = np.tril(visible_nn)
    return np.asarray(visible_nn / visible_nn.sum(axis=1, keepdims=True))[None, None]


def statistics(weights_lhnn: Floats, tokens: Sequence[str]) -> Floats:
    """STATISTICS of every head, averaged over the rows of tokens that are not padding [s, l, h]."""
    is_padding_n = np.array([token == PADDING for token in tokens])
    at = np.arange(len(tokens))
    offset_nn = at[None, :] - at[:, None]
    cells = {
        "distance": np.abs(offset_nn),
        "first": np.broadcast_to(at == 0, offset_nn.shape),
        "first_three": np.broadcast_to(at < 3, offset_nn.shape),
        "same": offset_nn == 0,
        "previous": offset_nn == -1,
        "next": offset_nn == 1,
        "padding": np.broadcast_to(is_padding_n, offset_nn.shape),
    }
    rows_lhrn = weights_lhnn[:, :, ~is_padding_n]
    return np.stack(
        [(rows_lhrn * cells[name][~is_padding_n]).sum(axis=3).mean(axis=2) for name in STATISTICS]
    )


def measure_sentence(model: Classifier | LanguageModel, text: str) -> dict[str, Any]:
    """One sentence: tokens, words, weights, and how much the rows of equal tokens differ."""
    weights_lhnn, tokens = attention(model, text)
    rows = defaultdict(list)
    for number, token in enumerate(tokens):
        rows[token].append(number)
    repeated = [numbers for token, numbers in rows.items() if token != PADDING and numbers[1:]]
    differences = [
        np.abs(weights_lhnn[:, :, numbers] - weights_lhnn[:, :, numbers[:1]]).max()
        for numbers in repeated
    ]
    return {
        "words": split_words(text),
        "tokens": tokens,
        "equal_tokens_differ_by": float(max(differences)) if differences else None,
        "weights": np.round(weights_lhnn, 4).tolist(),
    }


def choose_texts(data: Path, task: str) -> list[str]:
    """The first texts of the test set that are not in train, and long enough to have a place."""
    if task == "classify":
        known = {text for text, _ in read_labeled(data / "train_CLS.tsv")}
        texts = [text for text, _ in read_labeled(data / "test_CLS.tsv")]
    else:
        known = {*_lines(data / "train_LM.txt")}
        names = ("obama", "hbush", "wbush")
        by_speaker = [_lines(data / f"test_LM_{name}.txt") for name in names]
        texts = [text for together in zip(*by_speaker, strict=True) for text in together]
    words = [[word for word in split_words(text) if word != PADDING] for text in texts]
    chosen = [
        text
        for text, own in zip(texts, words, strict=True)
        if text not in known and SHORTEST <= len(own) + 2 <= LENGTH
    ]
    return list(dict.fromkeys(chosen))[:TEXTS]


def score(model: Classifier | LanguageModel, data: Path, texts: Sequence[str]) -> dict[str, float]:
    """How well the model does on the measured texts: accuracy, or loss per token."""
    if isinstance(model, Classifier):
        labels = dict(read_labeled(data / "test_CLS.tsv"))
        predicted = model.classify(texts)
        right = [labels[text] == label for text, label in zip(texts, predicted, strict=True)]
        return {"accuracy": float(np.mean(right))}
    losses = np.concatenate([one.losses for one in model.token_losses(list(texts))])
    return {"loss": float(losses.mean())}


def _lines(path: Path) -> list[str]:
    records = open_corpus([str(path)], task="generate").usable_records()
    return [record.texts[0] for record in records]


def _by_statistic(values: Floats) -> dict[str, Any]:
    return dict(zip(STATISTICS, np.round(values, 4).tolist(), strict=True))
