"""Tables as notebooks show them: plain HTML without scripts, all text escaped."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

DIGITS = 4
"""Significant digits of a number."""


def render_table(
    rows: Sequence[Mapping[str, Any]], *, caption: str = "", notes: Sequence[str] = ()
) -> str:
    """Rows as one table, with a caption above and a paragraph for each note below.

    Columns are the keys that any row has a value for. Numbers have four significant digits.
    """
    columns = dict.fromkeys(key for row in rows for key, one in row.items() if one is not None)
    numeric = {
        key for key in columns if all(isinstance(row.get(key), int | float | None) for row in rows)
    }
    head = "".join(_cell("th", key, is_right=key in numeric) for key in columns)
    body = "".join(
        f"<tr>{''.join(_cell('td', row.get(key), is_right=key in numeric) for key in columns)}</tr>"
        for row in rows
    )
    above = f"<p>{html.escape(caption)}</p>" if caption else ""
    below = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if rows else ""
    return f"<div>{above}{table}{below}</div>"


def _cell(tag: str, value: Any, *, is_right: bool) -> str:
    side = "right" if is_right else "left"
    return f'<{tag} style="text-align:{side}">{html.escape(_format(value))}</{tag}>'


def _format(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float) and math.isfinite(value):
        whole = abs(value) >= 10**DIGITS
        return f"{value:,.0f}" if whole else f"{value:.{DIGITS}g}"
    return str(value)
