"""A workload of a comparison: a recipe, vocabulary sizes, and batches, the same for all systems.

The measuring process writes it to a file, and the process of every system reads it from there, so
that all systems train on the same tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from heed.bench.flops import Operations, count_operations
from heed.bench.throughput import shape_of
from heed.config import Recipe, apply_overrides
from heed.data.batching.batch import IGNORE_INDEX, Batch
from heed.data.batching.length_buckets import BatchShape
from heed.models import Model, build

KEY = "workload"
"""The metadata key of a workload's file: recipe and vocabulary sizes as JSON."""


@dataclass(frozen=True, eq=False)
class Workload:
    """Training steps, each a list of micro-batches, and the model that trains on them."""

    name: str
    recipe: Recipe
    vocab: int
    steps: list[list[Batch]]
    source_vocab: int | None = None
    """Source vocabulary of a translator with separate embeddings; None: one shared table."""

    @property
    def batches(self) -> list[Batch]:
        """All batches of all steps."""
        return [batch for step in self.steps for batch in step]

    @property
    def shapes(self) -> list[BatchShape]:
        """The batch shapes, each once."""
        return list(dict.fromkeys(map(shape_of, self.batches)))

    @property
    def length(self) -> int:
        """Tokens of the longest sequence, source or target."""
        return max(max(shape.length, shape.source_length or 0) for shape in self.shapes)

    @cached_property
    def tokens(self) -> int:
        """Tokens of all batches, source and target, without padding."""
        return sum(batch.count_real_tokens() for batch in self.batches)

    @cached_property
    def operations(self) -> Operations:
        """Operations of all steps, padding counted; a peer has the same matrices."""
        model = self.build_model(torch.device("meta"))
        parts = [count_operations(model, shape_of(batch)) for batch in self.batches]
        totals = (sum(getattr(p, name) for p in parts) for name in Operations.__annotations__)
        return Operations(*totals)

    def build_model(self, device: torch.device) -> Model:
        """heed's model with random weights."""
        torch.manual_seed(self.recipe.seed)
        with torch.device(device.type if device.type == "meta" else "cpu"):
            model = build(
                self.recipe.task,
                self.recipe.model,
                vocab=self.vocab,
                source_vocab=self.source_vocab,
                causal=self.recipe.train.objective == "causal",
            )
        return model.to(device).train()

    def describe(self) -> str:
        """The batches in one line."""
        shapes = self.shapes
        if len(shapes) == 1:
            shape = shapes[0]
            sides = f"{shape.source_length}→" if shape.source_length else ""
            return f"{shape.batch_size} texts of {sides}{shape.length} tokens"
        cells = sum(batch.cells for batch in self.batches)
        return (
            f"{len(self.batches)} batches of {len(shapes)} shapes, {self.tokens:,} tokens, "
            f"{1 - self.tokens / cells:.0%} padding"
        )

    def save(self, path: Path) -> None:
        """Write this workload to a file."""
        tensors = {
            f"{step}.{number}.{name}": tensor.cpu().contiguous().clone()
            for step, batches in enumerate(self.steps)
            for number, batch in enumerate(batches)
            for name, tensor in batch.tensors().items()
        }
        info = {
            "name": self.name,
            "recipe": self.recipe.tables(),
            "vocab": self.vocab,
            "source_vocab": self.source_vocab,
            "batches_per_step": [len(batches) for batches in self.steps],
        }
        save_file(tensors, path, {KEY: json.dumps(info)})

    @classmethod
    def load(cls, path: Path, *, changes: Sequence[str] = ()) -> Workload:
        """Read a workload from its file, with `changes` (`section.key=value`) of its recipe."""
        with safe_open(path, framework="pt") as file:
            info = json.loads(file.metadata()[KEY])
            names = list(file.keys())
            tensors = {name: file.get_tensor(name) for name in names}
        steps = [
            [_batch(tensors, f"{step}.{number}.") for number in range(count)]
            for step, count in enumerate(info["batches_per_step"])
        ]
        recipe = Recipe.of(apply_overrides(info["recipe"], changes))
        return cls(info["name"], recipe, info["vocab"], steps, info["source_vocab"])


def _batch(tensors: dict[str, torch.Tensor], prefix: str) -> Batch:
    """The batch whose tensors have this prefix."""
    own: dict[str, Any] = {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
    targets = own["targets"]
    return Batch(**own, count=int((targets != IGNORE_INDEX).sum()), rows=tuple(range(len(targets))))
