"""What is kept for the next time: what was used last, and no more than a few."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from heed.few import MOST, kept


@given(keys=st.lists(st.sampled_from("abcdefg"), max_size=30))
def test_those_used_last_are_known_and_no_others(keys: list[str]) -> None:
    known: dict[str, str] = {}
    for number, key in enumerate(keys):
        before, made = list(known), list[str]()

        def make(name: str = f"{key}{number}", made: list[str] = made) -> str:
            made.append(name)
            return name

        found = kept(known, key, make)
        assert made == ([] if key in before else [found])
        assert found.startswith(key)
        last = list(dict.fromkeys(reversed(keys[: number + 1])))[:MOST]
        assert list(reversed(known)) == last
