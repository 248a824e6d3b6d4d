"""Whatever was damaged of a run's checkpoints: the newest whole one serves, and outlives the rest.

And where none is whole, nothing that was learnt is lost without a word.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heed.runs.run import list_weights
from heed.train import checkpoint
from heed.train.checkpoint import RECENT


def ignored(text: str) -> None:
    """What is said of damage."""


@given(
    steps=st.dictionaries(st.integers(1, 99), st.booleans(), min_size=1, max_size=6),
    further=st.integers(1, 99),
    keep=st.integers(1, 3),
)
def test_what_is_damaged_never_counts(steps: dict[int, bool], further: int, keep: int) -> None:
    """`steps` says of each checkpoint whether it is whole; a run goes on, saves, and goes on."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        assert not checkpoint.has_checkpoints(folder)
        for step, whole in steps.items():
            path = checkpoint.save(folder, step, {"a": torch.ones(2)}, {})
            if not whole:
                (path / "tensors.safetensors").write_bytes(b"")
        _, progress = checkpoint.load_newest(folder, ignored)
        assert checkpoint.has_checkpoints(folder)
        last = max((step for step, whole in steps.items() if whole), default=0)
        assert progress.get("step", 0) == last
        checkpoint.set_damaged_aside(folder, after=last)
        checkpoint.save(folder, last + further, {"a": torch.ones(2)}, {})
        checkpoint.prune(folder, keep, average=1)
        assert checkpoint.load_newest(folder, ignored)[1]["step"] == last + further
        assert len(list(folder.glob("step-*"))) <= keep
        aside = {int(path.name.removeprefix("damaged-")) for path in folder.glob("damaged-*")}
        assert aside == {step for step in steps if step > last}


@given(size=st.integers(0, 40), place=st.integers(0, 39), part=st.sampled_from([7, 8, 64]))
def test_a_byte_that_changed_is_found_in_whatever_part(size: int, place: int, part: int) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "CHUNK", part)
        path, content = Path(folder) / "file", bytearray(range(size))
        path.write_bytes(content)
        before = checkpoint.checksum(path)
        assert checkpoint.checksum(path) == before
        if place < size:
            content[place] ^= 1
        else:
            content.append(0)
        path.write_bytes(content)
        assert checkpoint.checksum(path) != before


def test_one_put_aside_twice_is_there_once(tmp_path: Path) -> None:
    for _ in range(2):
        checkpoint.save(tmp_path, 7, {"a": torch.ones(2)}, {})
        checkpoint.set_damaged_aside(tmp_path, after=3)
    assert [path.name for path in tmp_path.iterdir()] == ["damaged-000000007"]
    assert checkpoint.has_checkpoints(tmp_path)


@given(
    evaluated=st.sets(st.integers(1, 9)),
    saved=st.sets(st.integers(1, 9), min_size=1),
    keep=st.integers(1, 3),
    average=st.integers(1, 3),
)
def test_every_checkpoint_has_the_weights_of_its_time(
    evaluated: set[int], saved: set[int], keep: int, average: int
) -> None:
    """Whichever of them a run goes on from; and no more is kept than they need."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        for step in range(1, 10):
            if step in evaluated:
                checkpoint.save_weights(folder, RECENT, step, {"a": torch.tensor(float(step))})
                checkpoint.prune(folder, keep, average=average)
            if step in saved:
                checkpoint.save(folder, step, {"a": torch.ones(2)}, {})
                checkpoint.prune(folder, keep, average=average)
        assert len(list_weights(folder, RECENT)) <= average * (keep + 1)
        for step in sorted(saved, reverse=True)[:keep]:
            checkpoint.delete_weights(folder, after=step)
            last = [one for one in sorted(evaluated) if one <= step][-average:]
            if last:
                mean = checkpoint.average_recent(folder, average)["a"]
                assert float(mean) == pytest.approx(sum(last) / len(last))
