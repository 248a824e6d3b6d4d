"""`heed design --check`: a right function passes, common mistakes are found and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from heed.errors import HeedError
from heed.probe.attention_check import LAYOUTS, CheckResult, check_function, make_cases
from heed.probe.design_text import describe_check

RIGHT = """
import torch

def attend(q, k, v, mask=None, bias=None, scale=None):
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = torch.nan_to_num(scores.softmax(-1))
    return weights @ v, weights
"""


def check(tmp_path: Path, source: str) -> CheckResult:
    file = tmp_path / "mine.py"
    file.write_text(source, encoding="utf-8")
    return check_function(f"{file}:attend")


def test_a_right_function_passes_everything(tmp_path: Path) -> None:
    result = check(tmp_path, RIGHT)
    assert result.passed
    assert result.returns_weights
    assert result.layout == LAYOUTS[0]
    assert result.not_tested == []
    kinds = {case.kind for case in make_cases(("scale", "mask", "bias"), 0)}
    assert {kind.kind for kind in result.kinds} == kinds
    assert max(kind.largest_deviation for kind in result.kinds) < 1e-4
    assert result.first_failure is None
    assert "FAIL" not in describe_check(result)


@pytest.mark.parametrize(
    ("old", "new", "kinds", "hint"),
    [
        ("(q.shape[-1] ** -0.5 if", "(1.0 if", {"plain", "mask"}, "multiplied by 1/√d"),
        ("q.shape[-1] ** -0.5 if scale is None else scale", "q.shape[-1] ** -0.5", {"scale"},
         "scale seems to be ignored"),
        ("~mask, float", "mask, float", {"mask", "causal mask"}, "means visible"),
        ("torch.nan_to_num(scores.softmax(-1))", "scores.softmax(-1)", {"row that sees nothing"},
         "return zeros"),
        ("scores + bias", "scores", {"bias", "mask and bias"}, "bias seems to be ignored"),
        ("scores.softmax(-1)", "scores.softmax(-2)", {"plain"}, "over the queries"),
        ("scores.softmax(-1)", "scores.exp() / scores.exp().sum(-1, keepdim=True)",
         {"large scores"}, None),
        ("return weights @ v, weights", "return weights @ v, 1 - weights", {"plain"}, None),
    ],
)  # fmt: skip
def test_common_mistakes_are_found(
    tmp_path: Path, old: str, new: str, kinds: set[str], hint: str | None
) -> None:
    assert old in RIGHT
    result = check(tmp_path, RIGHT.replace(old, new))
    assert not result.passed
    assert kinds <= {kind.kind for kind in result.kinds if kind.failures}
    text = describe_check(result)
    assert "FAIL" in text
    assert "attend returns" in text
    assert "yours returns" in text
    assert hint is None or hint in (result.hint or "")


@pytest.mark.parametrize(("source", "layout"), [("k.T", "[n, d]"), ("k.mT", "[b, h, n, d]")])
def test_functions_of_two_dimensions_are_checked_too(
    tmp_path: Path, source: str, layout: str
) -> None:
    body = f"(q @ {source} / q.shape[-1] ** 0.5).softmax(-1) @ v"
    result = check(tmp_path, f"def attend(q, k, v):\n    return {body}\n")
    assert result.passed
    assert result.layout == layout
    assert result.not_tested == ["scale", "mask", "bias"]


def test_an_exception_is_a_failure_with_its_message(tmp_path: Path) -> None:
    source = RIGHT.replace("scores = scores + bias", 'raise RuntimeError("no bias yet")')
    result = check(tmp_path, source)
    assert not result.passed
    assert result.first_failure is not None
    assert "no bias yet" in result.first_failure


@pytest.mark.parametrize(
    ("source", "name", "message"),
    [
        ("def attend(q): return q", "attend", "cannot be called with q, k and v"),
        ("def attend(q, k, v): return 1", "attend", "returns a value of type int"),
        ("x = 1", "attend", "no function 'attend'. It has: none"),
        ("1 / 0", "attend", "ZeroDivisionError"),
        ("", "a b", "names no function"),
    ],
)
def test_what_cannot_be_checked_is_refused_in_words(
    tmp_path: Path, source: str, name: str, message: str
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(source, encoding="utf-8")
    with pytest.raises(HeedError) as caught:
        check_function(f"{file}:{name}")
    assert message in str(caught.value)
    assert not (tmp_path / "__pycache__").exists()


def test_a_file_that_is_no_python_is_refused_in_two_sentences(tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text("def attend(q,\n", encoding="utf-8")
    with pytest.raises(HeedError, match=r"SyntaxError: .*line 1\)\. Correct it"):
        check_function(f"{file}:attend")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HeedError, match="no such file"):
        check_function(f"{tmp_path / 'none.py'}:attend")
