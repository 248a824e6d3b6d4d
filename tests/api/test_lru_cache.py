"""The LRU cache keeps the most recently used values, and builds each of them once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from heed.api import PIPELINES, LruCache


@given(keys=st.lists(st.sampled_from("abcdefg"), max_size=30))
def test_the_most_recently_used_values_are_cached_and_no_others(keys: list[str]) -> None:
    cache = LruCache[str]()
    for number, key in enumerate(keys):
        before, built = list(cache.values), list[str]()

        def build(name: str = f"{key}{number}", built: list[str] = built) -> str:
            built.append(name)
            return name

        value = cache.get(key, build)
        assert built == ([] if key in before else [value])
        assert value.startswith(key)
        recent = list(dict.fromkeys(reversed(keys[: number + 1])))[:PIPELINES]
        assert list(reversed(cache.values)) == recent
