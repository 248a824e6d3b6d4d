"""A file with its own checksum: any bit that changes, any byte that is missing is recognized."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heed import checksums
from heed.checksums import DamagedError
from heed.models.weights import read_weights, write_weights, write_weights_with_checksum

values = st.dictionaries(
    st.text(max_size=5), st.one_of(st.integers(), st.text(max_size=9), st.none()), max_size=4
)


@given(content=values)
def test_json_comes_back_without_its_checksum(content: dict[str, Any]) -> None:
    content.pop(checksums.KEY, None)
    text = checksums.dump_json(content).encode()
    assert checksums.parse_json(text, where="", todo="") == content
    assert [*json.loads(text)][-1] == checksums.KEY


@given(text=st.sampled_from(['checksum": "' + "a" * 32 + '"', "checksum = " + "0" * 32]))
def test_a_text_that_looks_like_a_checksum_is_not_taken_for_one(text: str) -> None:
    content = {text: text, "last": [text]}
    assert checksums.parse_json(checksums.dump_json(content).encode(), where="", todo="") == content


def test_every_bit_of_a_json_file_counts() -> None:
    """A changed file is refused, or has the same content: only its checksum is unreadable then."""
    content = {"names": ["a", "b"], "pairs": True, "share": 0.25}
    whole = checksums.dump_json(content).encode()
    for place in range(len(whole)):
        for bit in range(8):
            changed = bytearray(whole)
            changed[place] ^= 1 << bit
            try:
                read = checksums.parse_json(bytes(changed), where="", todo="")
            except DamagedError:
                continue
            assert {key: read[key] for key in content} == content, changed
    for length in range(len(whole) - 1):
        with pytest.raises(DamagedError):
            checksums.parse_json(whole[:length], where="", todo="")


@given(
    size=st.integers(0, 40),
    place=st.integers(0, 39),
    chunk=st.sampled_from([7, 8, 64]),
    start=st.integers(0, 20),
)
def test_a_byte_that_changes_changes_the_hash(
    size: int, place: int, chunk: int, start: int
) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(checksums, "CHUNK", chunk)
        path, content = Path(folder) / "file", bytearray(range(size))
        path.write_bytes(content)
        before = checksums.hash_file(path)
        assert checksums.hash_file(path, start=bytes(content[:start])) == before
        if place < size:
            content[place] ^= 1
        else:
            content.append(0)
        path.write_bytes(content)
        assert checksums.hash_file(path) != before


@given(share=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_bit_of_weights_that_changes_is_recognized(share: float, bit: int) -> None:
    weights = {"a": torch.arange(4.0), "b": torch.ones(2, 2)}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        write_weights_with_checksum(path, weights)
        content = bytearray(path.read_bytes())
        content[int(share * len(content))] ^= 1 << bit
        path.write_bytes(content)
        try:
            read = read_weights(path)
        except DamagedError:
            return
        assert all(read[name].equal(weight) for name, weight in weights.items())


def test_a_file_without_a_checksum_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}')
    assert checksums.read_json(tmp_path / "a.json", todo="") == {"a": 1}
    write_weights(tmp_path / "a.safetensors", {"a": torch.ones(2)})
    assert read_weights(tmp_path / "a.safetensors")["a"].tolist() == [1, 1]


@pytest.mark.parametrize("content", [b"", b"[]", b"3", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_json_object_is_damaged(content: bytes) -> None:
    with pytest.raises(DamagedError, match=r"a\.json: .*damaged.* Do this\."):
        checksums.parse_json(content, where="a.json", todo="Do this.")
