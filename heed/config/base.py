"""One table of a recipe: strict, typed, and with every complaint at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from heed.errors import ConfigError, nearest

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Rule = Callable[[Any], str | None]


class Section(BaseModel):
    """One table of a recipe. Building one raises `ConfigError` with every complaint about it."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )
    rules: ClassVar[tuple[Rule, ...]] = ()

    @classmethod
    def keys(cls) -> list[str]:
        """The keys of this table, as a recipe writes them."""
        return [field.alias or name for name, field in cls.model_fields.items()]

    if not TYPE_CHECKING:  # a type checker reads the constructor off the fields

        def __init__(self, /, **values: Any) -> None:
            complaints, bad = [], set()
            try:
                super().__init__(**values)
            except ValidationError as error:
                for item in error.errors():
                    bad.add(str(item["loc"][0]))
                    complaints.append(_sentence(item, type(self).keys()))
            # Rules that join several keys still speak when some other key is wrong.
            fields = type(self).model_fields
            known = {key: f.get_default(call_default_factory=True) for key, f in fields.items()}
            known |= values
            sound = SimpleNamespace(**{key: known[key] for key in known.keys() - bad})
            complaints.extend(_broken(self.rules, sound))
            if complaints:
                raise ConfigError(complaints)


def _broken(rules: tuple[Rule, ...], values: SimpleNamespace) -> Iterator[str]:
    for rule in rules:
        try:
            complaint = rule(values)
        except AttributeError:  # the rule reads a key that is itself wrong, and already named
            continue
        if complaint:
            yield complaint


def _sentence(item: Any, known: list[str]) -> str:
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
