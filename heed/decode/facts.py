"""Facts for a program, as JSON by its standard, which has no word for infinity."""

from __future__ import annotations

import json
import math
from typing import Any


def to_json(facts: object, *, indent: int | None = None) -> str:
    """Facts as JSON, on one line unless indented; a number that is not finite is null."""
    return json.dumps(_finite(facts), ensure_ascii=False, allow_nan=False, indent=indent)


def _finite(facts: Any) -> Any:
    if isinstance(facts, dict):
        return {key: _finite(value) for key, value in facts.items()}
    if isinstance(facts, list | tuple):
        return [_finite(value) for value in facts]
    return None if isinstance(facts, float) and not math.isfinite(facts) else facts
