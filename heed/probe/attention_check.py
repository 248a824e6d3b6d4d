"""Check of a reader's own attention function against `attend`, on random inputs.

The function takes q, k and v, and returns the output, or the output and the weights. It may take
`mask`, `bias` and `scale` as keywords; what it does not take is not tested. A mask is True where a
query may see a key.

Shapes: b batch, h heads, n queries, m keys, d head width.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heed.errors import HeedError
from heed.nn.attention import attend
from heed.plugins import load_module

ROUNDS = 25
"""Random inputs of each kind."""
TOLERANCE = 1e-4
"""The largest deviation that is rounding."""
OPTIONS = ("scale", "mask", "bias")
LAYOUTS = ("[b, h, n, d]", "[b, n, d]", "[n, d]")
"""Shapes of q that a function may take, the first that it accepts is used."""
LARGE = 200.0
"""The size of scores whose exponentials overflow, unless the largest is subtracted first."""
Attention = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """One random input, and the options given with it."""

    kind: str
    q: Tensor
    k: Tensor
    v: Tensor
    options: dict[str, Any]

    def expected(self, **changes: Any) -> tuple[Tensor, Tensor]:
        """What `attend` returns, in the same layout."""
        lead = [1] * (4 - self.q.ndim)
        q, k, v = (x.reshape(*lead, *x.shape) for x in (self.q, self.k, self.v))
        out, weights = attend(q, k, v, **self.options | changes)
        return out.reshape(self.q.shape[:-1] + self.v.shape[-1:]), weights.reshape(
            *self.q.shape[:-1], self.k.shape[-2]
        )


@dataclass
class KindResult:
    """The result of one kind of input."""

    kind: str
    cases: int = 0
    failures: int = 0
    largest_deviation: float = 0.0


@dataclass
class CheckResult:
    """Pass or fail by kind of input, with the first input that failed."""

    name: str
    layout: str
    returns_weights: bool
    kinds: list[KindResult] = field(default_factory=list)
    not_tested: list[str] = field(default_factory=list)
    first_failure: str | None = None
    hint: str | None = None

    @property
    def passed(self) -> bool:
        """Whether every input agreed."""
        return not any(kind.failures for kind in self.kinds)

    def to_dict(self) -> dict[str, Any]:
        """The fields for JSON."""
        return {
            "function": self.name,
            "passed": self.passed,
            "layout": self.layout,
            "returns_weights": self.returns_weights,
            "tolerance": TOLERANCE,
            "kinds": [vars(kind) for kind in self.kinds],
            "not_tested": self.not_tested,
            "first_failure": self.first_failure,
            "hint": self.hint,
        }


def check_function(place: str) -> CheckResult:
    """Check the function `FILE.py:NAME`; the file is executed."""
    function = load_function(place)
    accepted = _accepted_options(function)
    layout = _choose_layout(function, place)
    result = CheckResult(place, LAYOUTS[layout], False)
    result.not_tested = [option for option in OPTIONS if option not in accepted]
    by_kind: dict[str, KindResult] = {}
    for case in make_cases(accepted, layout):
        kind = by_kind.setdefault(case.kind, KindResult(case.kind))
        kind.cases += 1
        deviation, returned, returns_weights = _compare(function, case)
        result.returns_weights |= returns_weights
        kind.largest_deviation = max(kind.largest_deviation, deviation)
        if deviation <= TOLERANCE:
            continue
        kind.failures += 1
        if result.first_failure is None:
            result.first_failure = _describe_case(case, returned)
            result.hint = _find_hint(function, case)
    result.kinds = list(by_kind.values())
    return result


def load_function(place: str) -> Attention:
    """The function `FILE.py:NAME` of a user's file, which is executed."""
    name = place.rpartition(":")[2]
    file = Path(place.rpartition(":")[0])
    if not place.rpartition(":")[0] or not name.isidentifier():
        raise HeedError(f"{place!r} names no function.", todo="Write my_attention.py:attend.")
    if not file.is_file():
        raise HeedError("there is no such file.", where=str(file), todo="Name a Python file.")
    source = file.read_bytes()
    module_name = f"heed_check_{sha256(source).hexdigest()[:16]}"
    try:
        module = load_module(file.absolute(), source, module_name)
    except Exception as error:
        if os.environ.get("HEED_DEBUG"):
            raise
        raise HeedError(
            f"the file cannot be loaded: {type(error).__name__}: {str(error).rstrip('.')}.",
            where=str(file),
            todo="Correct it; --debug before the command shows where the error is.",
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        known = [each for each, value in vars(module).items() if inspect.isfunction(value)]
        what = f"it has no function {name!r}."
        raise HeedError(what, where=str(file), todo=f"It has: {', '.join(known) or 'none'}.")
    return function


def make_cases(accepted: Sequence[str], layout: int) -> Iterator[Case]:
    """Random inputs, small ones first: plain, then with every option that the function takes."""
    generator = torch.Generator().manual_seed(0)
    kinds = ["plain", "large scores"]
    kinds += ["scale"] if "scale" in accepted else []
    kinds += ["mask", "causal mask", "row that sees nothing"] if "mask" in accepted else []
    kinds += ["bias"] if "bias" in accepted else []
    kinds += ["mask and bias"] if {"mask", "bias"} <= {*accepted} else []
    for kind in kinds:
        for number in range(ROUNDS):
            yield _make_case(kind, number, layout, generator)


def _make_case(kind: str, number: int, layout: int, generator: torch.Generator) -> Case:
    size = 1 + number // 5

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    normal = partial(torch.randn, generator=generator)
    lead = (draw(1, size), draw(1, size))[layout:]
    n, m, d = draw(1, size + 1), draw(2, size + 2), draw(1, 2 * size)
    if kind == "causal mask":
        m = n = max(n, 2)
    q, k, v = normal(*lead, n, d), normal(*lead, m, d), normal(*lead, m, d)
    options: dict[str, Any] = {}
    if kind == "large scores":
        q = LARGE * q
    if kind == "scale":
        options["scale"] = 0.1 + 2 * float(torch.rand((), generator=generator))
    if "bias" in kind:
        options["bias"] = normal(*lead, n, m)
    if "causal" in kind:
        options["mask"] = torch.ones(n, m, dtype=torch.bool).tril()
    elif "mask" in kind or "nothing" in kind:
        mask = torch.rand(n, m, generator=generator) < 0.6
        mask[torch.arange(n), torch.randint(m, (n,), generator=generator)] = True
        if "nothing" in kind:
            mask[draw(0, n - 1)] = False
        options["mask"] = mask
    return Case(kind, q, k, v, options)


def _accepted_options(function: Attention) -> list[str]:
    """The options that a function takes by name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return list(OPTIONS)
    named = {p.name for p in parameters if p.kind is not inspect.Parameter.POSITIONAL_ONLY}
    return [option for option in OPTIONS if option in named]


def _choose_layout(function: Attention, place: str) -> int:
    """The first layout of q, k and v that the function accepts without an error."""
    errors = []
    for layout in range(len(LAYOUTS)):
        case = _make_case("plain", 14, layout, torch.Generator().manual_seed(1))
        try:
            with warnings.catch_warnings():  # about shapes that are only tried
                warnings.simplefilter("ignore")
                out, _ = _split(function(case.q, case.k, case.v))
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}".splitlines()[0])
            continue
        if isinstance(out, Tensor) and out.shape == case.expected()[0].shape:
            return layout
        errors.append(f"it returns {_describe_output(out)}, not an output of the shape of q")
    raise HeedError(
        f"it cannot be called with q, k and v as tensors {LAYOUTS[0]}: {errors[0]}.",
        where=place,
        todo=f"Take q, k, v of one of the shapes {', '.join(LAYOUTS)} and return the output.",
    )


def _compare(function: Attention, case: Case) -> tuple[float, str, bool]:
    """The largest deviation from `attend`, what was returned, and whether weights were."""
    expected_out, expected_weights = case.expected()
    try:
        copies = (case.q.clone(), case.k.clone(), case.v.clone())
        out, weights = _split(function(*copies, **case.options))
    except Exception as error:
        return float("inf"), f"{type(error).__name__}: {error}".splitlines()[0], False
    deviation = _deviation(out, expected_out)
    if weights is not None:
        deviation = max(deviation, _deviation(weights, expected_weights))
    return deviation, _describe_output(out), weights is not None


def _split(returned: Any) -> tuple[Any, Any]:
    """The output and the weights; None where a function returns no weights."""
    if isinstance(returned, tuple | list) and len(returned) == 2:
        return returned[0], returned[1]
    return returned, None


def _deviation(value: Any, expected: Tensor) -> float:
    if not isinstance(value, Tensor) or value.shape != expected.shape:
        return float("inf")
    difference = (value.detach().double() - expected.double()).abs().max()
    return float(difference) if bool(difference.isfinite()) else float("inf")


def _find_hint(function: Attention, case: Case) -> str | None:
    """A common mistake that explains the first failure: `attend` with it gives the same output."""
    try:
        out, _ = _split(function(case.q.clone(), case.k.clone(), case.v.clone(), **case.options))
    except Exception:
        return None
    if not isinstance(out, Tensor):
        return None
    if not bool(out.isfinite().all()):
        hides = "mask" in case.options
        return (
            "A row with every key hidden is 0/0: return zeros for it."
            if hides
            else "The exponentials overflow: subtract the largest score of a row first."
        )
    mistakes: list[tuple[str, dict[str, Any]]] = []
    if "mask" in case.options:
        inverted = ~case.options["mask"]
        mistakes.append(("True in a mask means visible, not hidden.", {"mask": inverted}))
    mistakes += [
        (f"The {option} seems to be ignored.", {option: None})
        for option in OPTIONS
        if option in case.options
    ]
    mistakes += [
        ("The scores seem not to be multiplied by 1/√d.", {"scale": 1.0}),
        ("The scores seem to be divided by d, not by √d.", {"scale": 1 / case.q.shape[-1]}),
    ]
    for sentence, change in mistakes:
        if _deviation(out, case.expected(**change)[0]) <= TOLERANCE:
            return sentence
    scale = case.options.get("scale") or case.q.shape[-1] ** -0.5
    over_queries = (case.q @ case.k.mT * scale).softmax(dim=-2) @ case.v
    if _deviation(out, over_queries) <= TOLERANCE:
        return "The softmax seems to run over the queries: its dimension is the last one."
    return None


def _describe_case(case: Case, returned: str) -> str:
    lines = [f"{name} = {_describe_output(getattr(case, name))}" for name in ("q", "k", "v")]
    for name, value in case.options.items():
        shown = _describe_output(value) if isinstance(value, Tensor) else f"{value:.4g}"
        lines.append(f"{name} = {shown}")
    lines.append(f"attend returns {_describe_output(case.expected()[0])}")
    lines.append(f"yours returns  {returned}")
    return "\n".join(lines)


def _describe_output(value: Any) -> str:
    """A tensor with its shape and, if it is small, its numbers; else the type."""
    if not isinstance(value, Tensor):
        return f"a value of type {type(value).__name__}"
    shape = "×".join(map(str, value.shape)) or "a number"
    if value.numel() > 24:
        return f"{shape} numbers"
    numbers = value.detach().tolist()
    return f"{shape}: {_round(numbers)}"


def _round(numbers: Any) -> Any:
    if isinstance(numbers, list):
        return [_round(each) for each in numbers]
    return numbers if isinstance(numbers, bool) else round(numbers, 4)
