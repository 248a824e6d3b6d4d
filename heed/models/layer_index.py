"""The layer index of each parameter: embeddings 0, then the layers, then the head."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import nn

STACKS = ("stack", "encoder", "decoder")
EMBEDDINGS = re.compile(r"(source_)?embedding\.|(\w+)\.(cross_)?position\.|(\w+)\.embedding")
NUMBERED = re.compile(r"(\w+)\.(\w+)\.(\d+)\.")
"""The stack, a module list in it, and the index in the list."""
FROM_SECOND_LAYER = ("layer_positions", "cross_layer_positions")
"""Lists whose first entry belongs to the second layer."""


@dataclass(frozen=True)
class LayerIndex:
    """Layer 0 is the embeddings, 1 … depth the layers of a stack, depth + 1 the head."""

    layer: int
    depth: int

    @property
    def below_top(self) -> int:
        """The number of layers from here to the head."""
        return self.depth + 1 - self.layer

    @property
    def is_body(self) -> bool:
        """Whether it is not part of the head: a model for another task has it too."""
        return self.layer <= self.depth


def layer_indices(model: nn.Module) -> dict[str, LayerIndex]:
    """The layer index of every parameter, by name.

    A translator's stacks are each counted from their own first layer. A stack's last norm belongs
    to its last layer. A table tied to the output projection is an embedding.
    """
    names = [name for name, _ in model.named_parameters()]
    depths = {stack: _depth(stack, names) for stack in STACKS}
    return {name: _layer_index(name, depths) for name in names}


def _depth(stack: str, names: list[str]) -> int:
    """The number of layers of a stack, Transformer blocks or LSTM layers."""
    matches = (re.match(rf"{stack}\.(blocks|layers)\.(\d+)\.", name) for name in names)
    return max((int(match[2]) + 1 for match in matches if match), default=0)


def _layer_index(name: str, depths: dict[str, int]) -> LayerIndex:
    stack = name.partition(".")[0]
    depth = depths.get(stack, max(depths.values()))
    if EMBEDDINGS.match(name):
        return LayerIndex(0, depth)
    if stack not in depths:
        return LayerIndex(depth + 1, depth)
    numbered = NUMBERED.match(name)
    if numbered is None:
        return LayerIndex(depth, depth)
    return LayerIndex(int(numbered[3]) + (2 if numbered[2] in FROM_SECOND_LAYER else 1), depth)
