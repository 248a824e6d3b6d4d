"""Cross-attention heads that align words: chosen on one set, scored on another.

The mean of the chosen heads gives links in one of two ways. One link per target word: to the source
word with the most weight. Both ways: also from every source word to the target word that attends to
it most, so that two source words may share a target word, as "of the" and "du" do.

Shapes: b pairs, h cross-attention heads of all layers, n target words, m source words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from heed.errors import ConfigError, DataError
from heed.models.inference import evaluating
from heed.probe.examples import Example, ProbeSet
from heed.probe.head_cards import ALIGNER_PAIRS, Estimate, aligner_pairs, attention_weights
from heed.probe.head_metrics import WordMaps
from heed.probe.patch import Head, list_heads
from heed.probe.word_aligner import WordAligner
from heed.stats.intervals import Interval, ratio_interval
from heed.terminal import Say

Bools = NDArray[np.bool_]
MAX_PAIRS = 2000
"""Sentence pairs of a set whose maps are kept to choose heads, or to score them."""
TARGET, BOTH = "one link per word", "links both ways"
RULES = (TARGET, BOTH)
"""How attention becomes links."""
MIN_GAIN = 1e-4
"""A further head must lower the alignment error rate by this."""


@dataclass(frozen=True)
class PairMaps:
    """Attention by word of some sentence pairs, padded, and their reference links."""

    weights_bhnm: NDArray[np.float32]
    words_bnm: Bools
    """True where both words exist."""
    links_bnm: Bools

    def predict(self, heads: Sequence[int], rule: str) -> Bools:
        """[b, n, m]: the links by the mean of these heads."""
        mean_bnm = self.weights_bhnm[:, heads].mean(axis=1)
        mean_bnm = np.where(self.words_bnm, mean_bnm, -1.0)
        links = _is_first_maximum(mean_bnm, axis=2)
        if rule == BOTH:
            links = links | _is_first_maximum(mean_bnm, axis=1)
        return links & self.words_bnm


@dataclass(frozen=True)
class AlignmentResult:
    """Alignment error rates of heads chosen on one set, on that set and on another."""

    heads: list[Head]
    rule: str
    """How their links are made: the better way on the set they were chosen on."""
    chosen_on: str
    scored_on: str
    pairs: tuple[int, int]
    """Sentence pairs of both sets."""
    reference: tuple[str, str]
    """What both sets' links were compared with: "gold" or "word aligner"."""
    errors: dict[str, tuple[Estimate, Estimate]]
    """By system, the alignment error rate on both sets."""

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values; layers and heads count from 1."""
        return {
            "heads": [head.label for head in self.heads],
            "rule": self.rule,
            "chosen_on": {"set": self.chosen_on, "pairs": self.pairs[0]},
            "scored_on": {"set": self.scored_on, "pairs": self.pairs[1]},
            "reference": list(self.reference),
            "errors": {name: [one.to_dict() for one in pair] for name, pair in self.errors.items()},
        }


def require_translator(task: str) -> None:
    """Raise an error for a task whose models do not align words."""
    if task != "translate":
        raise ConfigError([f"--align is for translators; this run's task is {task!r}."])


def choose_alignment_heads(
    dev: ProbeSet, test: ProbeSet, *, notify: Say = lambda text: None
) -> AlignmentResult:
    """Choose the cross-attention heads that align best on `dev`, and score them on `test`.

    Heads are added to their mean one by one, the best first, for as long as the alignment error
    rate falls. Where a set has no gold links, those of the word aligner stand in for them.
    """
    require_translator(dev.recipe.task)
    heads = [head for head in list_heads(dev.model) if head.kind == "cross"]
    if not heads:
        raise ConfigError(["--align needs cross-attention: all of its heads were pruned."])
    pairs = list(islice(aligner_pairs(dev), ALIGNER_PAIRS))
    notify(f"Fitting a word aligner to {len(pairs):,} sentence pairs…")
    aligner = WordAligner.fit(pairs)
    notify(f"Choosing among {len(heads)} cross-attention heads on {dev.held_out.name}…")
    maps = [list(_collect(probe, aligner)) for probe in (dev, test)]
    for probe, batches in zip((dev, test), maps, strict=True):
        if not batches:
            what = "no sentence pair of this set is short enough for the model."
            raise DataError(what, where=probe.held_out.name)
    everything = list(range(len(heads)))
    subsets = {rule: _choose_greedily(maps[0], everything, rule) for rule in RULES}
    best_rule = min(RULES, key=lambda rule: _error(maps[0], subsets[rule], rule).value)
    single = min(everything, key=lambda head: _error(maps[0], [head], TARGET).value)
    systems: dict[str, tuple[list[int], str]] = {
        f"mean of all heads, {TARGET}": (everything, TARGET),
        f"best: {heads[single].label}, {TARGET}": ([single], TARGET),
        **{f"chosen heads, {rule}": (subsets[rule], rule) for rule in RULES},
    }
    errors = {
        name: (_error(maps[0], chosen, rule), _error(maps[1], chosen, rule))
        for name, (chosen, rule) in systems.items()
    }
    has_gold = [probe.gold is not None for probe in (dev, test)]
    if all(has_gold):
        errors["word aligner"] = _aligner_error(dev, aligner), _aligner_error(test, aligner)
        errors[f"lowest possible, {TARGET}"] = _least_error(maps[0]), _least_error(maps[1])
    counts = [sum(len(batch.words_bnm) for batch in batches) for batches in maps]
    reference = ["gold" if gold else "word aligner" for gold in has_gold]
    return AlignmentResult(
        heads=[heads[i] for i in subsets[best_rule]],
        rule=best_rule,
        chosen_on=dev.held_out.name,
        scored_on=test.held_out.name,
        pairs=(counts[0], counts[1]),
        reference=(reference[0], reference[1]),
        errors=errors,
    )


def _choose_greedily(batches: Sequence[PairMaps], heads: Sequence[int], rule: str) -> list[int]:
    """The heads whose mean has the lowest error that adding one at a time reaches."""
    chosen: list[int] = []
    lowest = np.inf
    while len(chosen) < len(heads):
        errors = {
            head: _error(batches, [*chosen, head], rule).value
            for head in heads
            if head not in chosen
        }
        best = min(errors, key=lambda head: errors[head])
        if errors[best] > lowest - MIN_GAIN:
            break
        chosen, lowest = [*chosen, best], errors[best]
    return sorted(chosen)


def _error(batches: Sequence[PairMaps], heads: Sequence[int], rule: str) -> Estimate:
    predicted = [batch.predict(heads, rule) for batch in batches]
    return _error_rate(predicted, [batch.links_bnm for batch in batches])


def _least_error(batches: Sequence[PairMaps]) -> Estimate:
    """The error of a perfect choice of one link for each target word."""
    predicted = [
        _is_first_maximum(batch.links_bnm.astype(np.float32), axis=2) & batch.words_bnm
        for batch in batches
    ]
    return _error_rate(predicted, [batch.links_bnm for batch in batches])


def _error_rate(predicted: Sequence[Bools], links: Sequence[Bools]) -> Estimate:
    """The alignment error rate over all pairs (Och and Ney 2003), with its interval over pairs."""
    shared = np.concatenate(
        [(p & g).sum(axis=(1, 2)) for p, g in zip(predicted, links, strict=True)]
    )
    sizes = np.concatenate(
        [p.sum(axis=(1, 2)) + g.sum(axis=(1, 2)) for p, g in zip(predicted, links, strict=True)]
    ).astype(np.float64)
    wrong = sizes - 2.0 * shared
    return Estimate(float(wrong.sum() / sizes.sum()), ratio_interval(wrong, sizes))


def _aligner_error(probe: ProbeSet, aligner: WordAligner) -> Estimate:
    examples = _usable_examples(probe)
    predicted = aligner.align([(one.texts[0], one.texts[1]) for one in examples])
    gold = [one.links or frozenset() for one in examples]
    sizes = np.array([len(p) + len(g) for p, g in zip(predicted, gold, strict=True)], np.float64)
    shared = np.array([len(p & g) for p, g in zip(predicted, gold, strict=True)], np.float64)
    interval: Interval | None = ratio_interval(sizes - 2 * shared, sizes)
    return Estimate(float((sizes - 2 * shared).sum() / sizes.sum()), interval)


def _usable_examples(probe: ProbeSet) -> list[Example]:
    """The first pairs of a set that the model reads whole."""
    whole = (one for one in probe.examples() if one.is_whole)
    return list(islice(whole, MAX_PAIRS))


def _collect(probe: ProbeSet, aligner: WordAligner) -> Iterator[PairMaps]:
    """Attention by word of a set's pairs."""
    with evaluating(probe.model):
        for inputs in probe.batches_of(_usable_examples(probe)):
            maps = WordMaps(inputs, probe.tokenizer)
            layers = attention_weights(probe.model, inputs)["cross"]
            weights = torch.cat([maps.weights(layer) for layer in layers], dim=1)
            links = [one.links for one in inputs.examples]
            if probe.gold is None:
                pairs = [(one.texts[0], one.texts[1]) for one in inputs.examples]
                links = [frozenset(pair_links) for pair_links in aligner.align(pairs)]
            n, m = weights.shape[2:]
            is_target = np.arange(n) < maps.target_words[:, None]
            is_source = np.arange(m) < maps.source_words[:, None]
            yield PairMaps(
                weights.float().cpu().numpy(),
                is_target[:, :, None] & is_source[:, None],
                maps.link_matrix(links, weights.device).cpu().numpy() > 0,
            )


def _is_first_maximum(weights_bnm: NDArray[Any], axis: int) -> Bools:
    """True at the first largest value along an axis."""
    best = np.expand_dims(weights_bnm.argmax(axis=axis), axis)
    places = np.arange(weights_bnm.shape[axis])
    shape = [1, 1, 1]
    shape[axis] = -1
    return np.asarray(places.reshape(shape) == best)
