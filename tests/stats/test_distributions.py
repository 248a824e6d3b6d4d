"""Every distribution equals scipy's over the range that comparisons use."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.stats.distributions import (
    chi2_tail,
    incomplete_beta,
    normal_quantile,
    student_t_p,
    student_t_quantile,
    student_t_tail,
)

scipy_stats = pytest.importorskip("scipy.stats")
scipy_special = pytest.importorskip("scipy.special")

degrees = st.floats(0.5, 1e6) | st.integers(1, 60).map(float) | st.just(math.inf)
probabilities = st.floats(1e-9, 1 - 1e-9)


@given(st.floats(-60, 60), degrees)
def test_student_t_tail_is_scipys(t: float, df: float) -> None:
    expected = scipy_stats.t.sf(t, df) if math.isfinite(df) else scipy_stats.norm.sf(t)
    assert student_t_tail(t, df) == pytest.approx(float(expected), rel=1e-7, abs=1e-300)


@given(probabilities, degrees)
def test_student_t_quantile_is_scipys(p: float, df: float) -> None:
    expected = scipy_stats.t.ppf(p, df) if math.isfinite(df) else scipy_stats.norm.ppf(p)
    assert student_t_quantile(p, df) == pytest.approx(float(expected), rel=1e-6, abs=1e-8)


@given(st.floats(-60, 60), degrees)
def test_two_sided_p_is_symmetric_and_a_probability(t: float, df: float) -> None:
    assert student_t_p(t, df) == student_t_p(-t, df)
    assert 0 <= student_t_p(t, df) <= 1


@given(probabilities)
def test_normal_quantile_is_scipys(p: float) -> None:
    assert normal_quantile(p) == pytest.approx(float(scipy_stats.norm.ppf(p)), rel=1e-8, abs=1e-9)


@given(st.floats(0, 500), st.floats(0.5, 200))
def test_chi2_tail_is_scipys(x: float, df: float) -> None:
    assert chi2_tail(x, df) == pytest.approx(float(scipy_stats.chi2.sf(x, df)), rel=1e-8, abs=1e-13)


@given(st.floats(0.1, 500), st.floats(0.1, 500), st.floats(0, 1))
def test_incomplete_beta_is_scipys(a: float, b: float, x: float) -> None:
    expected = float(scipy_special.betainc(a, b, x))
    assert incomplete_beta(a, b, x) == pytest.approx(expected, rel=1e-8, abs=1e-13)


@pytest.mark.parametrize("p", [0.0, 1.0, -0.1, math.nan])
def test_a_probability_outside_0_and_1_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        student_t_quantile(p, 3)


@pytest.mark.parametrize("df", [0.0, -1.0])
def test_degrees_of_freedom_must_be_positive(df: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        student_t_tail(1.0, df)
    with pytest.raises(ValueError, match="positive"):
        chi2_tail(1.0, df)
