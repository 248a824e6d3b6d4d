"""Why is one speaker harder to predict than another: unknown words, rare words, sentence length?

    python benchmarks/speakers.py RUN

RUN is a language model whose recipe names one set per speaker, as `speeches/generate-reported`
does. The loss of every token and its count in the training text are computed. Then each possible
cause is equalized across speakers (direct standardization): the perplexity of a speaker if his
words were as often unknown, as rare, or his sentences as long as those of all speakers together,
with his own losses on each kind of word or sentence. The difference that disappears is explained.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import keep, table
from numpy.typing import NDArray

from heed.api import LanguageModel
from heed.data.corpus import open_corpus
from heed.metrics.perplexity import token_losses

COUNTS = (0, 1, 5, 50)
RARITY = ("unknown", "never in train", "1 to 4 times", "5 to 49 times", "50 and more")
"""Groups by the count of a token in the training text; unknown: not in the vocabulary."""
LENGTHS = (10, 20, 30)
LENGTH = ("to 10 tokens", "11 to 20", "21 to 30", "longer")
DRAWN = 2000
"""Tokens in a sample for the size of a vocabulary, which grows with the text."""


@dataclass(frozen=True)
class Speaker:
    """Every token of one set: its loss, its rarity group, the length group of its sentence."""

    name: str
    ids: NDArray[np.int64]
    losses: NDArray[np.float64]
    rarity: NDArray[np.int64]
    length: NDArray[np.int64]
    sentences: int

    def perplexity(self, some: NDArray[np.bool_] | None = None) -> float:
        """The perplexity of all tokens, or of some."""
        return math.exp(self.losses.mean() if some is None else self.losses[some].mean())

    def shares(self, groups: NDArray[np.int64], count: int) -> NDArray[np.float64]:
        """The share of tokens in each group."""
        return np.bincount(groups, minlength=count) / len(groups)

    def as_if(self, groups: NDArray[np.int64], shares: NDArray[np.float64]) -> float:
        """The perplexity with these shares of each group: direct standardization."""
        means = [
            self.losses[groups == group].mean() if (groups == group).any() else self.losses.mean()
            for group in range(len(shares))
        ]
        return math.exp(float(shares @ np.array(means)))

    def distinct(self, seed: int = 0) -> float:
        """Distinct tokens among DRAWN consecutive ones, the mean of a hundred samples."""
        random, size = np.random.default_rng(seed), min(DRAWN, len(self.ids))
        starts = random.integers(0, len(self.ids) - size + 1, 100)
        return float(np.mean([len(np.unique(self.ids[s : s + size])) for s in starts]))


def lines_of(files: Sequence[str]) -> list[str]:
    return [record.texts[0] for record in open_corpus(files, task="generate").usable_records()]


def speaker(
    model: LanguageModel, name: str, files: Sequence[str], seen: Counter[int], stride: int | None
) -> Speaker:
    """The tokens of one set, scored as the run was trained: line by line, or as one stream."""
    ids = model.tokenizer.encode_batch(lines_of(files))
    whole = [[token for line in ids for token in line]]
    stream = model.recipe.data.unit == "file"
    window = model.recipe.data.max_length
    texts = whole if stream else ids
    scored = token_losses(model.model, texts, window=window, stride=stride)
    # The end tokens are no words: neither those of lines nor the single one of a stream.
    losses = np.concatenate([one.losses[:-1] for one in scored])
    flat = np.array(whole[0])
    counts = np.array([seen[token] for token in whole[0]])
    unknown = model.tokenizer.specials.unk
    rarity = np.where(flat == unknown, 0, np.searchsorted(COUNTS, counts, side="right"))
    sizes = np.array([len(line) for line in ids])
    length = np.repeat(np.searchsorted(LENGTHS, sizes, side="left"), sizes)
    return Speaker(name, flat, losses, rarity, length, len(ids))


def unigram(own: Speaker, seen: Counter[int], vocab: int) -> float:
    """Perplexity of a unigram model of the training text, with add-one smoothing."""
    total = seen.total() + vocab
    chances = np.array([(seen[token] + 1) / total for token in own.ids.tolist()])
    return math.exp(-float(np.log(chances).mean()))


def pooled(
    speakers: Sequence[Speaker], groups: Sequence[NDArray[np.int64]], count: int
) -> NDArray[np.float64]:
    """The shares of each group, with equal weight for every speaker."""
    each = [one.shares(own, count) for one, own in zip(speakers, groups, strict=True)]
    mean: NDArray[np.float64] = np.mean(each, axis=0)
    return mean


def report(speakers: Sequence[Speaker], seen: Counter[int], vocab: int) -> tuple[str, Any]:
    """The tables, and the same values for JSON."""
    unknown = [np.minimum(one.rarity, 1) for one in speakers]
    causes: dict[str, list[Any]] = {
        "perplexity": [one.perplexity() for one in speakers],
        "…of known words only": [one.perplexity(one.rarity > 0) for one in speakers],
        "…with equal shares of unknown words": _as_if(speakers, unknown, 2),
        "…with equal word frequencies": _as_if(
            speakers, [one.rarity for one in speakers], len(RARITY)
        ),
        "…with equal sentence lengths": _as_if(speakers, [one.length for one in speakers], 4),
        "unigram perplexity": [unigram(one, seen, vocab) for one in speakers],
    }
    properties: dict[str, list[Any]] = {
        "tokens": [len(one.ids) for one in speakers],
        "sentences": [one.sentences for one in speakers],
        "tokens per sentence": [len(one.ids) / one.sentences for one in speakers],
        f"distinct tokens in {DRAWN:,}": [one.distinct() for one in speakers],
        "unknown, share of tokens": [float((one.rarity == 0).mean()) for one in speakers],
        "unknown, share of the loss": [
            float(one.losses[one.rarity == 0].sum() / one.losses.sum()) for one in speakers
        ],
    }
    names = [one.name for one in speakers]
    head = ["", *names, "largest / smallest"]
    parts = [
        table(
            "Perplexity by speaker, and with each possible cause equalized",
            head,
            _rows(causes, "{:.1f}"),
        ),
        table("Texts", head, _rows(properties, "{:,.4g}")),
    ]
    for title, labels, key in (
        ("By count in train", RARITY, "rarity"),
        ("By sentence length", LENGTH, "length"),
    ):
        parts.append(
            table(
                f"{title}: share of tokens, mean loss", ["", *names], _groups(speakers, labels, key)
            )
        )
    return "\n\n".join(parts), {"causes": causes, "properties": properties, "speakers": names}


def _as_if(
    speakers: Sequence[Speaker], groups: Sequence[NDArray[np.int64]], count: int
) -> list[float]:
    shares = pooled(speakers, groups, count)
    return [one.as_if(own, shares) for one, own in zip(speakers, groups, strict=True)]


def _rows(figures: dict[str, list[Any]], form: str) -> list[list[str]]:
    return [
        [name, *(form.format(value) for value in values), f"{max(values) / min(values):.3f}"]
        for name, values in figures.items()
    ]


def _groups(speakers: Sequence[Speaker], labels: Sequence[str], key: str) -> list[list[str]]:
    rows = []
    for group, label in enumerate(labels):
        cells = []
        for one in speakers:
            own = getattr(one, key) == group
            cells.append(f"{own.mean():.1%}  {one.losses[own].mean():.2f}" if own.any() else "–")
        rows.append([label, *cells])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--stride", type=int, help="tokens between windows; default: half a window")
    parser.add_argument("--name", default="speakers", help="name of the results")
    options = parser.parse_args()
    model = LanguageModel.load(options.run, device="cpu")
    data = model.recipe.data
    learnt = model.tokenizer.encode_batch(lines_of(data.train))
    seen = Counter(token for line in learnt for token in line)
    speakers = [
        speaker(model, name, files, seen, options.stride) for name, files in data.sets.items()
    ]
    text, figures = report(speakers, seen, model.tokenizer.vocab_size)
    keep(options.name, text, figures, device="cpu")


if __name__ == "__main__":
    main()
