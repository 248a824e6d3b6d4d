"""Events with a cursor: nothing is lost and nothing comes twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from heed.lab.event_log import EventLog


@given(breaks=st.lists(st.integers(0, 5), max_size=10))
def test_who_comes_back_misses_nothing(breaks: list[int]) -> None:
    log, seen, sent = EventLog(), [], 0
    cursor = log.cursor()
    for count in breaks:
        for _ in range(count):
            log.add("run", {"number": sent})
            sent += 1
        place = log.find(cursor)
        assert place is not None
        for event in log.since(place):
            seen.append(event.data["number"])
            cursor = log.cursor(event.number)
    assert seen == [*range(sent)]


def test_unknown_and_forgotten_cursors_are_told() -> None:
    log = EventLog(most=3)
    first = log.cursor()
    for number in range(3):
        log.add("run", {"number": number})
    assert log.find(first) == 0
    log.add("run", {})
    assert log.find(first) is None  # the first event is forgotten
    assert log.find(log.cursor()) == 4
    assert log.find(None) == 4
    other = EventLog()
    for cursor in (other.cursor(), "", "x", "1-1", f"{log.cursor()}0", log.cursor(99)):
        assert log.find(cursor) is None
