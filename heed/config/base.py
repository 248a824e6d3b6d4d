"""A section of a recipe: strict, typed, reporting every error at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from heed.errors import ConfigError, nearest

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
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
            # Checks of several keys run even if some other key is invalid.
            fields = type(self).model_fields
            merged = {key: f.get_default(call_default_factory=True) for key, f in fields.items()}
            merged |= values
            valid = SimpleNamespace(**{key: merged[key] for key in merged.keys() - bad})
            complaints.extend(_failed_checks(self.checks, valid))
            if complaints:
                raise ConfigError(complaints)


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
        return f"{key} cannot be {value!r}: it is one of {options}.{hint}"
    message = item["msg"][0].lower() + item["msg"][1:]
    return f"{key} cannot be {value!r}: {message.replace('input should', 'it should')}."
