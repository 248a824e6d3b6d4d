"""Attention over a text that the lab was given: maps, stages, audits, pairs of heads, history.

Every function takes what the page asks for and returns what JSON can express. All of it is computed
by `heed.probe`, on what the model's own pipeline would read of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from heed.errors import ConfigError
from heed.lab.error_responses import TOO_LARGE, StatusError
from heed.lab.lab_context import LabContext
from heed.lab.loaded_models import weights_version
from heed.lab.stored_maps import LayerProgress, build_key, describe_maps
from heed.models import Model
from heed.probe.attend import LoadedModel, View, read_texts
from heed.probe.attention_maps import AttentionMaps
from heed.probe.attention_stages import row_stages
from heed.probe.lens import spread
from heed.probe.map_comparison import MapComparison, compare_maps
from heed.probe.map_history import follow_heads, require_snapshots
from heed.probe.map_layers import fill_maps, outline_maps
from heed.probe.mask_audit import audit_map, change_future
from heed.probe.mask_checks import check_attention, is_causal
from heed.probe.patch import Head, attention_sites, list_heads
from heed.probe.text_trace import InputTokens
from heed.runs.run import Run

MAX_CELLS = 1 << 27
"""Weights of the maps of one text: 512 MB of float32."""
MAX_OVERLAPS = 1 << 30
"""Products of cells and heads for which heads are paired: a few seconds."""
MOST_SNAPSHOTS = 24
"""Snapshots over which heads are followed, evenly spread."""
Inputs = tuple[InputTokens, InputTokens | None]


class TextMaps:
    """One lab's answers about attention over texts."""

    def __init__(self, lab: LabContext) -> None:
        self.lab = lab

    @contextmanager
    def open(
        self, name: str, weights: str, text: str, target: str | None
    ) -> Iterator[tuple[LoadedModel, Inputs, str]]:
        """A run's model, the tokens that it reads of a text, and the key of both."""
        folder = self.lab.folder.run(name).folder
        with self.lab.models.use(folder, weights) as model:
            version = weights_version(Run.open(folder), weights)
            key = build_key(*version, weights, text, target)
            inputs = self.lab.maps.get_inputs(key, lambda: read_inputs(model, text, target))
            check_size(model.model, inputs)
            yield model, inputs, key

    def describe(
        self,
        name: str,
        weights: str,
        text: str,
        target: str | None,
        answer: Callable[[dict[str, Any]], None] | None = None,
    ) -> dict[str, Any]:
        """The maps of a text for the page, without their weights.

        `answer` is called with the same as soon as the tokens are known. The weights come layer by
        layer, and the store of maps says which are there. With `answer`, the pass is stopped when
        all readers of its layers have left.
        """
        with self.open(name, weights, text, target) as (model, inputs, key):

            def describe(maps: AttentionMaps) -> dict[str, Any]:
                maps = replace(maps, run=name, weights=weights)
                return describe_maps(maps, key) | {"cut": count_unread(model, inputs, text)}

            if answer is None:
                return describe(self._compute(model, inputs, key))
            return describe(
                self._compute(model, inputs, key, lambda outline: answer(describe(outline)))
            )

    def stages(
        self, name: str, weights: str, text: str, target: str | None, head: Head, row: int
    ) -> dict[str, Any]:
        """The stages of one row of one head."""
        with self.open(name, weights, text, target) as (model, inputs, _):
            stages = row_stages(model.model, *inputs, head, row).to_dict()
            return stages | {"position": model.recipe.model.position}

    def checks(self, name: str, weights: str, text: str, target: str | None) -> dict[str, Any]:
        """The audit of each kind's mask, and the checks of `heed attend --check`."""
        with self.open(name, weights, text, target) as (model, (read, source), key):
            maps = self._compute(model, (read, source), key)
            sources = [] if source is None else [source]
            pad = model.tokenizer.specials.pad
            checks = check_attention(model.model, [read], sources, pad=pad)
            return {
                "audits": [audit_map(one).to_dict() for one in maps.maps],
                "checks": [one.to_dict() for one in checks],
                "is_causal": is_causal(model.model),
            }

    def future(
        self, name: str, weights: str, text: str, target: str | None, place: int
    ) -> dict[str, Any]:
        """How far each row moves when all tokens from a place on are others."""
        with self.open(name, weights, text, target) as (model, (read, source), _):
            vocab = model.tokenizer.vocab_size
            change = change_future(model.model, read, source, place, vocab=vocab)
            after = model.tokenizer.ids_to_tokens(change.ids)
            return change.to_dict() | {"tokens": {"before": read.labels.tokens, "after": after}}

    def _compute(
        self,
        model: LoadedModel,
        inputs: Inputs,
        key: str,
        on_outline: Callable[[AttentionMaps], None] | None = None,
    ) -> AttentionMaps:
        """The complete maps, kept or computed now; `on_outline` is called before the pass."""
        store = self.lab.maps
        found = store.find(key)
        if found is not None:
            maps, progress = found
            if on_outline is not None:
                on_outline(maps)
            progress.wait_for_all()
            return maps
        maps = outline_maps(model.model, *inputs)
        can_stop = on_outline is not None  # else the caller itself needs all layers
        progress = LayerProgress(attention_sites(model.model), can_stop=can_stop)
        store.add(key, maps, progress)
        try:
            if on_outline is not None:
                on_outline(maps)
            fill_maps(model.model, maps, *inputs, progress.finish)
        except BaseException as error:
            progress.fail(error)
            raise
        return maps

    def compare(self, first: Sequence[Any], second: Sequence[Any]) -> dict[str, Any]:
        """Two runs, weights or texts: the heads of the same text in pairs, of others by number.

        Each of the two is a run's name, its weights, a text and a target.
        """
        (name, weights, text, target), (other_name, other_weights, other_text, _) = first, second
        if text != other_text:
            one, other = (self.describe(*each) for each in (first, second))
            if one["task"] != other["task"]:
                raise ConfigError(["The two runs have different tasks: compare runs of one task."])
            return {"first": one, "second": other, "kinds": {}, "by_word": False}
        folders = [self.lab.folder.run(each).folder for each in (name, other_name)]
        places = sorted({(folders[0], weights), (folders[1], other_weights)})
        with self.lab.models.use(*places[0]) as a, self.lab.models.use(*places[-1]) as b:
            ours, theirs = (a, b) if places[0] == (folders[0], weights) else (b, a)
            for model in (ours, theirs):
                inputs = read_inputs(model, text, target)
                check_size(model.model, inputs)
                check_pairing(model.model, inputs)
            (reading,) = read_texts(ours, [[text]], target)
            names = (f"{name} {weights}", f"{other_name} {other_weights}")
            comparisons = compare_maps(ours, theirs, [reading], View(), names=names)
        versions = [
            weights_version(Run.open(folder), each)
            for folder, each in zip(folders, (weights, other_weights), strict=True)
        ]
        sides = []
        for i, (run, each) in enumerate(((name, weights), (other_name, other_weights))):
            maps = _join_kinds(comparisons, i, task=ours.recipe.task, run=run, weights=each)
            key = build_key("pairs", i, *versions, text, target)
            self.lab.maps.add(key, maps)
            sides.append(describe_maps(maps, key))
        return {
            "first": sides[0],
            "second": sides[1],
            "by_word": comparisons[0].by_word,
            "kinds": {one.kind: _describe_pairs(one) for one in comparisons},
        }

    def history(self, name: str, text: str, target: str | None) -> list[dict[str, Any]]:
        """How the heads' maps of a text became what they are, over the snapshots of training."""
        folder = self.lab.folder.run(name).folder
        snapshots = require_snapshots(folder)
        steps = [snapshots[i] for i in spread(len(snapshots), MOST_SNAPSHOTS)]

        def load_step(step: int) -> LoadedModel:
            from heed.api import load

            return load(folder, device=self.lab.models.device, weights=str(step))

        final = load_step(steps[-1])
        check_size(final.model, read_inputs(final, text, target))
        (reading,) = read_texts(final, [[text]], target)
        histories = follow_heads(load_step, steps, [reading], View(), run=name)
        return [one.to_dict() for one in histories]


def read_inputs(model: LoadedModel, text: str, target: str | None) -> Inputs:
    """The tokens that a model reads of a text, and of its translation if it is a translator."""
    (reading,) = read_texts(model, [[text]], target)
    return model.inputs(*reading)


def count_unread(model: LoadedModel, inputs: Inputs, text: str) -> dict[str, int] | None:
    """How many tokens of a text there are and how many were read; None if all were."""
    read, source = inputs
    parts = text.split("\t") if model.recipe.task == "classify" else [text]
    tokens = sum(len(model.tokenizer.encode(part)) for part in parts)
    specials = model.tokenizer.specials
    added = {specials.pad, specials.bos, specials.eos}
    labels = read if source is None else source
    count = sum(token not in added for token in labels.ids)
    return {"read": count, "of": tokens} if count < tokens else None


def check_size(model: Model, inputs: Inputs) -> None:
    """Raise an error for a text whose maps are too large to be kept."""
    cells = sum(count_cells(model, inputs).values())
    if cells > MAX_CELLS:
        raise StatusError(
            f"the attention maps of this text have {cells:,} weights, and {MAX_CELLS:,} are kept.",
            status=TOO_LARGE,
            todo="Give a shorter text.",
        )


def check_pairing(model: Model, inputs: Inputs) -> None:
    """Raise an error for a text on which too many heads would have to be paired."""
    heads = [head.kind for head in list_heads(model)]
    work = sum(cells * heads.count(kind) for kind, cells in count_cells(model, inputs).items())
    if work > MAX_OVERLAPS:
        raise StatusError(
            "this text is too long to compare every head of one model with every head of another.",
            status=TOO_LARGE,
            todo="Give a shorter text.",
        )


def count_cells(model: Model, inputs: Inputs) -> dict[str, int]:
    """The number of weights of each kind of attention over a text."""
    read, source = inputs
    n, m = len(read.ids), len(read.ids) if source is None else len(source.ids)
    sizes = {"encoder": m * m, "decoder": n * n, "cross": n * m}
    cells = dict.fromkeys(sizes, 0)
    for head in list_heads(model):
        cells[head.kind] += sizes[head.kind]
    return cells


def _join_kinds(
    comparisons: Sequence[MapComparison], side: int, *, task: str, run: str, weights: str
) -> AttentionMaps:
    """The maps of one of two models that were compared kind by kind over one text."""
    maps = {one.kind: (one.first, one.second)[side][0] for one in comparisons}
    encoder, decoder, cross = (maps.get(kind) for kind in ("encoder", "decoder", "cross"))
    (text,) = comparisons[0].texts
    return AttentionMaps(text, task, encoder, decoder, cross, run=run, weights=weights)


def _describe_pairs(comparison: MapComparison) -> dict[str, Any]:
    """The pairs of heads of one kind; layers and heads count from 0."""
    matching = comparison.matching
    return {
        "similarity": matching.similarity,
        "by_number": matching.by_number,
        "any_pair": matching.any_pair,
        "pairs": [
            {
                "first": [match.first.layer, match.first.head],
                "second": [match.second.layer, match.second.head],
                "similarity": match.similarity,
            }
            for match in matching.matches
        ],
    }
