"""Which models CTranslate2 can express. Does not need CTranslate2 itself."""

from __future__ import annotations

from heed.config import POSITIONS, ModelConfig
from heed.nn.positions import Position, Rope, Shaw


def find_unsupported(config: ModelConfig) -> list[str]:
    """The recipe keys of a model that CTranslate2 cannot express, as sentences."""
    if config.family != "transformer":
        return [f"model.family = {config.family!r}: CTranslate2 supports only Transformers."]
    unsupported = []
    if config.kept_heads:
        unsupported.append(
            "model.kept_heads: CTranslate2 needs the same number of heads in every layer; "
            "this run is pruned."
        )
    kind = POSITIONS[config.position]
    adds, rotates, biases = (overrides_hook(kind, hook) for hook in ("embed", "rotate", "bias"))
    by_query = kind.bias_uses_query or overrides_hook(kind, "values")
    unknown = (rotates and not issubclass(kind, Rope)) or (by_query and not issubclass(kind, Shaw))
    if unknown or adds + rotates + biases > 1:
        unsupported.append(f"model.position = {config.position!r}: CTranslate2 has no equivalent.")
    if config.cross_position and (rotates or biases):
        unsupported.append("model.cross_position: CTranslate2 has no positions in cross-attention.")
    if config.qk_norm:
        unsupported.append(
            "model.qk_norm: CTranslate2 normalizes all cross-attention heads as one."
        )
    if config.lm_head_transform:
        unsupported.append(
            "model.lm_head_transform: CTranslate2 has a single linear layer as its LM head."
        )
    if config.merge_when == "always" and config.merge not in ("concat", "shift", "shuffle"):
        unsupported.append(f"model.merge = {config.merge!r}: CTranslate2 concatenates heads.")
    return unsupported


def overrides_hook(kind: type[Position], hook: str) -> bool:
    """Whether an encoding overrides a hook of `Position`."""
    return getattr(kind, hook) is not getattr(Position, hook)
