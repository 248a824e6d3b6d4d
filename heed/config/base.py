"""A section of a recipe: strict, typed, reporting every error at once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from heed.errors import ConfigError, nearest

MAX_COUNT = 10**9
"""Largest count of a recipe: more than any training has, and far from where integers overflow."""
MAX_SIZE = 2**20
"""Largest dimension of a layer, in numbers."""
MAX_LAYERS = 1000
MAX_NUMBER, MIN_NUMBER = 1e30, 1e-30
"""Between these, a number and its square root, inverse or product with a loss fit in float32."""
MAX_SEED = 2**63 - 1
"""Largest seed: a TOML integer has 64 bits, one of them the sign."""
MAX_BEAM = 1000
"""Largest beam, and largest number of translations for a line."""

Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
CountOrZero = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]
Layers = Annotated[int, Field(ge=1, le=MAX_LAYERS)]
Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]
NonNegative = Annotated[float, Field(ge=0.0, le=MAX_NUMBER)]
Positive = Annotated[float, Field(ge=MIN_NUMBER, le=MAX_NUMBER)]
BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
"""Words for the bounds of a number, by pydantic's names."""
KINDS = {
    "bool_type": "true or false",
    "dict_type": "a table of keys",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "list_type": "a list",
    "string_type": "a text",
}
"""Words for the kind of a value, by pydantic's names of errors."""
NUMBER = r"[-+.\deE]*"
SHOWN = 80
"""Characters of a wrong value that an error message quotes."""
Check = Callable[[Any], str | None]
"""A check of several keys of one section: the error message, or None."""


class Section(BaseModel):
    """One section of a recipe. The constructor raises `ConfigError` with every error in it."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )
    checks: ClassVar[tuple[Check, ...]] = ()

    @classmethod
    def keys(cls) -> list[str]:
        """The keys of this section, as a recipe spells them."""
        return [field.alias or name for name, field in cls.model_fields.items()]

    if not TYPE_CHECKING:  # a type checker reads the constructor off the fields

        def __init__(self, /, **values: Any) -> None:
            complaints, bad = [], set()
            try:
                super().__init__(**values)
            except ValidationError as error:
                for item in error.errors():
                    bad.add(str(item["loc"][0]))
                    complaints.append(_message(item, type(self).keys()))
            complaints += [
                f"{key} is not UTF-8, which a recipe is: {shorten(text)}. Rename what it names."
                for key, value in values.items()
                for text in _strings(value)
                if not _is_utf8(text)
            ]
            # Checks of several keys run even if some other key is invalid.
            fields = type(self).model_fields
            merged = {key: f.get_default(call_default_factory=True) for key, f in fields.items()}
            merged |= values
            valid = SimpleNamespace(**{key: merged[key] for key in merged.keys() - bad})
            complaints.extend(_failed_checks(self.checks, valid))
            if complaints:
                raise ConfigError(complaints)


def _strings(value: object) -> Iterator[str]:
    """All strings in a value of a recipe."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for item in value.items() for text in _strings(item))
    elif isinstance(value, list | tuple):
        yield from (text for item in value for text in _strings(item))


def _is_utf8(text: str) -> bool:
    """Whether UTF-8 can hold a text: the name of a file may have bytes that it cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _failed_checks(checks: tuple[Check, ...], values: SimpleNamespace) -> Iterator[str]:
    for check in checks:
        try:
            complaint = check(values)
        except AttributeError:  # the check reads a key that is itself invalid and reported already
            continue
        if complaint:
            yield complaint


def unknown_name(kind: str, name: str, known: Sequence[str]) -> str | None:
    """The error of a name that is not among the known ones; None where it is."""
    if name in known:
        return None
    return f"There is no {kind} {name!r}; choose one of {', '.join(known)}.{nearest(name, known)}"


def _message(item: Any, known: list[str]) -> str:
    key, value = ".".join(str(part) for part in item["loc"]), item["input"]
    if item["type"] == "extra_forbidden":
        return f"There is no key {key!r}.{nearest(key, known)}"
    if item["type"] == "literal_error":
        options = item["ctx"]["expected"]
        words = [word.strip(" '") for word in options.replace(" or ", ", ").split(",")]
        hint = nearest(str(value), words)
        return f"{key} cannot be {shorten(value)}: it is one of {options}.{hint}"
    for bound, phrase in BOUNDS.items():
        if bound in item.get("ctx", {}):
            limit = item["ctx"][bound]
            if limit == MIN_NUMBER:  # the smallest number stands for all above 0
                return f"{key} cannot be {shorten(value)}: it is above 0."
            number = f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"
            return f"{key} cannot be {shorten(value)}: it is {phrase} {number}."
    if item["type"] in KINDS:
        example = _list_example(value) if item["type"] == "list_type" else ""
        return f"{key} cannot be {shorten(value)}: it is {KINDS[item['type']]}{example}."
    message = item["msg"][0].lower() + item["msg"][1:]
    return f"{key} cannot be {shorten(value)}: {message.replace('input should', 'it should')}."


def _list_example(value: object) -> str:
    """The list that one text alone may stand for: `, as ["rope"]`; nothing for other values.

    Where a text is a number in quotes, the list may be one of numbers.
    """
    if not isinstance(value, str) or len(value) > SHOWN // 2 or re.fullmatch(NUMBER, value):
        return ""
    return f", as {json.dumps([value], ensure_ascii=False)}"


def shorten(value: object) -> str:
    """A value as an error message quotes it: of a long one, the beginning."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**SHOWN else "a huge number"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
