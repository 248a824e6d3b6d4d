"""The sections of a study file: a question, its systems, seeds, search and budget.

Keys of recipes are of three kinds. Scientific keys are what the study asks about: those of
`systems` and `grid`. Nuisance keys are searched anew for every system: `search.space`. Fixed keys
are the same for all: `set`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from heed.config import Section
from heed.config.base import Check, Count, CountOrZero, Positive, Seed, shorten
from heed.config.data import names_a_file
from heed.config.recipe import toml_value
from heed.errors import ConfigError

PARTS = ("systems", "grid", "search", "budget", "pretrain", "texts", "set")
"""Keys of a study file whose values are tables or lists of tables."""
PRETRAINED = "pretrained"
"""The value of a system's `init.from` that stands for the run of [pretrain]."""
MAX_NAME = 60
"""Characters of a system's name."""

KeyValues = dict[str, Any]
"""Values of recipe keys: {"train.lr": 0.001}."""


def _check_range(r: Any) -> str | None:
    bounds = [key for key in ("low", "high") if getattr(r, key) is not None]
    if r.choices is not None:
        if bounds or r.log or r.step is not None:
            return "choices are a list of values: leave low, high, log and step out."
        if not r.choices:
            return "choices are empty: name two values or more."
        repeated = [one for one in r.choices if r.choices.count(one) > 1]
        return f"choices have {shorten(repeated[0])} twice." if repeated else None
    if len(bounds) < 2:
        return "a key to search has low and high, or choices."
    if r.low >= r.high:
        return f"low {r.low:g} is not below high {r.high:g}."
    if r.log and r.low <= 0:
        return f"low is {r.low:g}, and a logarithmic range begins above 0."
    return _check_step(r) if r.step is not None else None


def _check_step(r: Any) -> str | None:
    if r.log and r.step <= 1:
        return f"step {r.step:g} is no factor above 1, which a logarithmic range needs."
    if r.step > (r.high / r.low if r.log else r.high - r.low):
        return f"step {r.step:g} is longer than the range from {r.low:g} to {r.high:g}."
    if isinstance(r.low, int) and isinstance(r.high, int) and r.step != int(r.step):
        return f"step {r.step:g} is not whole, and a range between whole numbers is."
    return None


class SearchRange(Section):
    """The values of one nuisance key: a range of numbers, or choices."""

    low: int | float | None = None
    """The smallest value. A range between two whole numbers has whole numbers only."""
    high: int | float | None = None
    """The largest value."""
    log: bool = False
    """Whether values are drawn on a logarithmic scale."""
    step: Positive | None = None
    """Distance between values, from low on; of a logarithmic range, the factor between them."""
    choices: list[Any] | None = None
    """The values, in place of a range."""
    when: KeyValues = Field(default_factory=dict)
    """The key is searched only where other keys have these values; a list means any of them."""

    checks: ClassVar[tuple[Check, ...]] = (_check_range,)

    @property
    def is_integer(self) -> bool:
        """Whether the range has whole numbers only."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest value of a range."""
        if self.low is None or self.high is None:
            raise ValueError("choices have no bounds")
        return self.low, self.high

    def allows(self, values: Mapping[str, Any]) -> bool:
        """Whether the key is searched, with these values of the other keys."""
        return all(
            values.get(key) in (wanted if isinstance(wanted, list) else [wanted])
            for key, wanted in self.when.items()
        )


class SearchConfig(Section):
    """How the nuisance keys are searched, for every system at the same budget."""

    method: Literal["tpe", "random", "grid"] = "tpe"
    """Tree-structured Parzen estimators (Optuna), random values, or all combinations."""
    trials: Count = 20
    """Trials for each system, failed and pruned ones included; a grid tries all combinations."""
    tokens: Positive | None = None
    """Training tokens for each system: no round begins after them. Set it where a searched key
    changes what a trial costs."""
    seed: Seed = 0
    """Seed of the sampler."""
    round: Count = 4
    """Trials of a system that are proposed at once. A round waits for the one before."""
    prune: bool = True
    """Whether trials far below the median at the same place of their schedule are ended early."""
    widen: CountOrZero = 2
    """How often a range is widened, for all systems, where its best value is at the edge."""
    finalists: Count = 3
    """The best trials of each system, which are trained again to choose among them."""
    finalist_seeds: Annotated[int, Field(ge=2, le=1000)] = 2
    """New seeds for each finalist."""
    space: dict[str, SearchRange] = Field(default_factory=dict)
    """The nuisance keys and their values."""


class SystemConfig(Section):
    """One system: a recipe without its seed, under a name."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    """What tables and figures call it."""
    recipe: str | None = None
    """Its recipe, in place of the study's."""
    set: KeyValues = Field(default_factory=dict)
    """Its recipe keys."""


class PretrainConfig(Section):
    """A run that is trained once, before the trials: systems with `init.from = "pretrained"` begin
    from it. There is one, so no interval of the study covers another seed of it."""

    recipe: str
    """Its recipe: a file, or the name of a shipped one."""
    set: KeyValues = Field(default_factory=dict)
    """Its recipe keys."""
    seed: Seed = 0
    """Its seed."""


class TextsConfig(Section):
    """Files in place of all text that the recipes name or generate; `{study}` is the study's
    folder."""

    train: Annotated[list[str], Field(min_length=1)]
    """Training files."""
    dev: list[str] = Field(default_factory=list)
    """Dev files; without any, a share of train is set aside."""
    test: list[str] = Field(default_factory=list)
    """Test files."""

    def tables(self) -> dict[str, list[str]]:
        """The files of each split that has any."""
        return {key: names for key, names in self.model_dump().items() if names}


class BudgetConfig(Section):
    """When nothing new begins. Failed and pruned trials count."""

    trials: Count | None = None
    """Trials that begin in all."""
    minutes: Positive | None = None
    """Minutes of all trials together."""
    tokens: Positive | None = None
    """Training tokens of all trials together."""


def _check_seeds(s: Any) -> str | None:
    repeated = [seed for seed in s.seeds if s.seeds.count(seed) > 1]
    if repeated:
        return f"seeds has {repeated[0]} twice."
    return None if s.seeds else "seeds are empty: name one or more."


def _check_looks(s: Any) -> str | None:
    if s.looks != sorted(set(s.looks)):
        return f"looks are numbers of seeds in rising order, not {s.looks}."
    return None


def _check_sets(s: Any) -> str | None:
    for name in s.sets:
        if not names_a_file(name):
            return f"sets names {name!r}, which is no name of a set: files are named after it."
    return None


class StudyConfig(Section):
    """A study. Make one with `read_study` or `build_study`."""

    name: str = ""
    """Name of the study: that of its file, and of its folder in runs/."""
    title: str | None = None
    """Title of the report."""
    question: str | None = None
    """The question that the study answers."""
    author: str | None = None
    """Author of the report."""
    notes: str | None = None
    """Remarks for the report."""
    is_quick: bool = False
    """Whether the [quick] section was applied."""
    recipe: str | None = None
    """The recipe of every system: a file, or the name of a shipped one."""
    data: str | None = None
    """The folder of the recipes' data files, as `heed train --data`."""
    metric: str | None = None
    """The primary metric; by default the task's first."""
    sets: list[str] = Field(default_factory=list)
    """Sets that final trials are scored on. The dev set is always scored."""
    baseline: str | None = None
    """The system that the others are compared with; unset, all pairs are compared."""
    margin: Positive | None = None
    """The smallest difference that matters."""
    seeds: list[Seed] = Field(default_factory=lambda: [0, 1, 2])
    """Seeds of every system; a number means so many, from 0."""
    paired_seeds: bool = False
    """Whether runs of the same seed are compared as pairs."""
    looks: list[Count] = Field(default_factory=list)
    """Numbers of seeds at which the study is evaluated."""
    keep_weights: Literal["all", "best", "none"] = "best"
    """Which weights are kept: all, those of each system's best seed on dev, or none."""
    threads: Count = 1
    """CPU threads of each trial. Their number changes the last bits of a result."""
    set: KeyValues = Field(default_factory=dict)
    """Recipe keys that are fixed for all systems."""
    systems: list[SystemConfig] = Field(default_factory=list)
    """The systems."""
    grid: dict[str, list[Any]] = Field(default_factory=dict)
    """Recipe keys and their values: every combination is a system, times `systems`."""
    search: SearchConfig | None = None
    """The search of nuisance keys."""
    budget: BudgetConfig = BudgetConfig()
    """When nothing new begins."""
    pretrain: PretrainConfig | None = None
    """A run that is trained once, before the trials that begin from it."""
    texts: TextsConfig | None = None
    """Files in place of the text of the recipes."""

    checks: ClassVar[tuple[Check, ...]] = (_check_seeds, _check_looks, _check_sets)

    @classmethod
    def of(cls, tables: Mapping[str, Any], *, where: str | None = None) -> StudyConfig:
        """Build a study from TOML tables; raises `ConfigError` with every error in its form."""
        values, complaints = dict(tables), []

        def build(kind: type[Section], part: Any, label: str) -> Any:
            if not isinstance(part, Mapping):
                complaints.append(f"{label} is a table of keys, not {shorten(part)}.")
                return None
            try:
                return kind(**part)
            except ConfigError as error:
                complaints.extend(f"[{label}] {one}" for one in error.complaints)
                return None

        values["seeds"] = _expand_seeds(values.get("seeds", 3), complaints)
        if isinstance(search := values.get("search"), Mapping):
            space = search.get("space", {})
            space = space if isinstance(space, Mapping) else {}
            ranges = {
                key: build(SearchRange, one, f'search.space "{key}"') for key, one in space.items()
            }
            complaints += [] if ranges else ["[search.space] is empty: name keys to search."]
            values["search"] = build(SearchConfig, {**search, "space": {}}, "search")
            if values["search"] is not None and None not in ranges.values():
                values["search"] = values["search"].model_copy(update={"space": ranges})
        elif search is not None:
            complaints.append("search is a section: write [search] and its keys below it.")
        kinds: dict[str, type[Section]]
        kinds = {"budget": BudgetConfig, "pretrain": PretrainConfig, "texts": TextsConfig}
        for key, kind in kinds.items():
            if key in values:
                values[key] = build(kind, values[key], key)
        if isinstance(systems := values.get("systems", []), list):
            values["systems"] = [
                build(SystemConfig, one, f"systems {number}")
                for number, one in enumerate(systems, 1)
            ]
        complaints += _check_grid(values)
        sections = ("search", "systems", *kinds)
        broken = [key for key in sections if _is_broken(values.get(key, ()))]
        try:
            config = cls(**{key: one for key, one in values.items() if key not in broken})
        except ConfigError as error:
            raise ConfigError([*error.complaints, *complaints], where=where) from None
        if complaints:
            raise ConfigError(complaints, where=where)
        return config

    def tables(self) -> dict[str, Any]:
        """Every key with its value, as `of` takes them, without unset keys."""
        values = self.model_dump()
        return {key: one for key, one in values.items() if one not in (None, {}, [], "")}

    def toml(self) -> str:
        """The study as the text of a TOML file."""
        tables = _without_unset(self.tables())
        parts = {key: tables.pop(key) for key in PARTS if key in tables}
        lines = [f"{key} = {toml_value(value)}" for key, value in tables.items()]
        space = parts.get("search", {}).pop("space", {})
        for name in ("set", "grid", "search", "budget", "pretrain", "texts"):
            if parts.get(name):
                lines += ["", f"[{name}]", *_key_lines(parts[name])]
        if space:
            lines += ["", "[search.space]", *_key_lines(space)]
        for system in parts.get("systems", []):
            lines += ["", "[[systems]]", *_key_lines(system)]
        return "\n".join(lines) + "\n"


def _is_broken(part: Any) -> bool:
    """Whether a part could not be built; its errors are reported already."""
    return part is None or (isinstance(part, list) and None in part)


def _expand_seeds(seeds: Any, complaints: list[str]) -> Any:
    """A number of seeds as a list from 0; a list as it is."""
    if isinstance(seeds, list):
        return seeds
    if isinstance(seeds, bool) or not isinstance(seeds, int):
        complaints.append(
            f"seeds cannot be {shorten(seeds)}: it is a whole number or a list of them, as [3, 4]."
        )
        return [0]
    if not 1 <= seeds <= 10_000:
        complaints.append(f"seeds cannot be {shorten(seeds)}: it is at least 1, or a list.")
        return [0]
    return list(range(seeds))


def _check_grid(values: Mapping[str, Any]) -> Iterator[str]:
    """Errors of a grid: one without keys, a key without values or with one value twice."""
    grid = values.get("grid")
    if grid is None:
        return
    if grid == {}:
        yield "[grid] is empty: name recipe keys with their values, or leave it out."
    for key, options in grid.items() if isinstance(grid, Mapping) else ():
        if options == []:
            yield f"[grid] {key} has no values: name one or more."
        elif isinstance(options, list):
            repeated = [one for one in options if options.count(one) > 1]
            yield from [f"[grid] {key} has {shorten(repeated[0])} twice."] if repeated else []


def _without_unset(value: Any) -> Any:
    """Tables without keys that are None or empty, which TOML cannot say or need not."""
    if isinstance(value, dict):
        inner = {key: _without_unset(one) for key, one in value.items()}
        return {key: one for key, one in inner.items() if one not in (None, {})}
    return [_without_unset(one) for one in value] if isinstance(value, list) else value


def _key_lines(values: Mapping[str, Any]) -> list[str]:
    return [f"{_toml_key(key)} = {toml_value(value)}" for key, value in values.items()]


def _toml_key(key: str) -> str:
    return key if key.replace("_", "").isalnum() and key.isascii() else toml_value(key)
