"""The exact McNemar test equals SciPy's binomial test."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.stats.paired_tests import mcnemar_p


@given(wins=st.integers(0, 400), losses=st.integers(0, 400))
def test_mcnemar_is_the_binomial_test(wins: int, losses: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    p = mcnemar_p(wins, losses)
    assert p == mcnemar_p(losses, wins)
    if wins + losses:
        expected = stats.binomtest(wins, wins + losses).pvalue
        assert p == pytest.approx(min(1.0, expected), rel=1e-6, abs=1e-12)
    else:
        assert p == 1
