"""At which height of a model each parameter stands: embeddings, layers from below, the head."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import nn

STACKS = ("stack", "encoder", "decoder")
EMBEDDINGS = re.compile(r"(source_)?embedding\.|(\w+)\.(cross_)?position\.|(\w+)\.embedding")
NUMBERED = re.compile(r"(\w+)\.(\w+)\.(\d+)\.")
"""The stack, a list of modules in it, and which of them."""
LATER = ("layer_positions", "cross_layer_positions")
"""Lists that begin with the second layer's."""


@dataclass(frozen=True)
class LayerIndex:
    """Layer 0 are the embeddings, 1 … depth the layers of a stack, depth + 1 what stands on top."""

    layer: int
    depth: int

    @property
    def below_top(self) -> int:
        """How many layers higher the head is."""
        return self.depth + 1 - self.layer

    @property
    def is_body(self) -> bool:
        """Whether a model for another task would have it too."""
        return self.layer <= self.depth


def layer_indices(model: nn.Module) -> dict[str, LayerIndex]:
    """Where every parameter stands, by name.

    A translator's stacks are counted side by side, each from below. A stack's last norm belongs to
    its last layer. A table that serves as the output map too is an embedding.
    """
    names = [name for name, _ in model.named_parameters()]
    depths = {stack: _depth(stack, names) for stack in STACKS}
    return {name: _height(name, depths) for name in names}


def _depth(stack: str, names: list[str]) -> int:
    """How many layers a stack has, blocks or recurrent ones."""
    found = (re.match(rf"{stack}\.(blocks|layers)\.(\d+)\.", name) for name in names)
    return max((int(match[2]) + 1 for match in found if match), default=0)


def _height(name: str, depths: dict[str, int]) -> LayerIndex:
    stack = name.partition(".")[0]
    depth = depths.get(stack, max(depths.values()))
    if EMBEDDINGS.match(name):
        return LayerIndex(0, depth)
    if stack not in depths:
        return LayerIndex(depth + 1, depth)
    numbered = NUMBERED.match(name)
    if numbered is None:
        return LayerIndex(depth, depth)
    return LayerIndex(int(numbered[3]) + (2 if numbered[2] in LATER else 1), depth)
