"""Item counts in a run folder: what is written is read back, and damage is an error."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.errors import RunError
from heed.runs.item_counts import (
    ItemCounts,
    decode_items,
    encode_items,
    hash_texts,
    item_path,
    parse_numbers,
    read_items,
    set_names,
    write_items,
)

numbers = st.integers(-1, 10**6).map(float) | st.floats(-1e6, 1e6).map(lambda x: float(f"{x:.9g}"))


@given(
    st.integers(1, 20).flatmap(
        lambda n: st.dictionaries(
            st.from_regex(r"[a-z]+\.[a-z0-9]+", fullmatch=True),
            st.lists(numbers, min_size=n, max_size=n),
            min_size=1,
            max_size=4,
        )
    ),
    st.text(),
)
def test_what_is_written_is_read_back(rows: dict[str, list[float]], name: str) -> None:
    columns = {key: np.array(values) for key, values in rows.items()}
    items = ItemCounts("translate", name, "x", columns, {"bleu": name}, classes=("a", name))
    again = decode_items(encode_items(items), "here")
    assert again.set_name == name
    assert again.classes == ("a", name)
    assert list(again.columns) == list(columns)
    for key, values in columns.items():
        np.testing.assert_array_equal(again.columns[key], values)
    assert encode_items(again) == encode_items(items)


@given(st.lists(st.integers(0, 10**15 - 1), min_size=1), st.sampled_from(["\t", "\n"]))
def test_integers_are_parsed_exactly(values: list[int], separator: str) -> None:
    body = separator.join(map(str, values)) + "\n"
    assert parse_numbers(body.encode()).tolist() == values


@pytest.mark.parametrize("body", [b"1\t\t2\n", b"\n", b"1\t2\n\n"])
def test_an_empty_cell_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError, match="empty"):
        parse_numbers(body)


@given(st.data())
def test_any_damage_is_an_error_or_harmless(data: st.DataObject) -> None:
    """gzip's checksum finds a flipped bit; bits of its header that it ignores change nothing."""
    items = ItemCounts("generate", "dev", "x", {"loss": np.arange(30.0), "tokens": np.ones(30)})
    content = bytearray(encode_items(items))
    place = data.draw(st.integers(0, len(content) * 8 - 1))
    content[place // 8] ^= 1 << place % 8
    with suppress(RunError):
        again = decode_items(bytes(content), "here")
        np.testing.assert_array_equal(again.columns["loss"], items.columns["loss"])
        assert again.text_hash == "x"


def test_the_files_of_a_run(tmp_path: Path) -> None:
    items = ItemCounts("generate", "dev", "x", {"loss": np.arange(3.0)})
    assert read_items(tmp_path, "dev") is None
    assert set_names(tmp_path) == []
    write_items(tmp_path, items)
    assert set_names(tmp_path) == ["dev"]
    again = read_items(tmp_path, "dev")
    assert again is not None
    np.testing.assert_array_equal(again.columns["loss"], [0, 1, 2])
    item_path(tmp_path, "dev").write_bytes(b"")
    with pytest.raises(RunError, match="cannot be read"):
        read_items(tmp_path, "dev")


@given(st.lists(st.tuples(st.text(), st.text()), max_size=5), st.text(max_size=3))
def test_the_hash_depends_on_every_text_and_its_place(
    texts: list[tuple[str, str]], extra: str
) -> None:
    assert hash_texts(texts) == hash_texts([list(pair) for pair in texts])
    assert hash_texts(texts) != hash_texts([*texts, (extra, "")])
    if len(set(texts)) > 1:
        assert (
            hash_texts(texts) != hash_texts(texts[1:] + texts[:1]) or texts == texts[1:] + texts[:1]
        )
