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

from heed.errors import RunError
from heed.runs.weight_files import BEST, RECENT, list_weights
from heed.train import checkpoint


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
                mean = checkpoint.average_recent(folder, last, todo="")["a"]
                assert float(mean) == pytest.approx(sum(last) / len(last))


@pytest.mark.parametrize("damage", ["flip", "delete"])
@pytest.mark.parametrize("kind", [BEST, RECENT])
def test_a_checkpoint_whose_weights_are_damaged_is_not_used(
    kind: str, damage: str, tmp_path: Path
) -> None:
    """The one before it is, with the weights of its time; the file is named."""
    for step in (1, 2):
        checkpoint.save_weights(tmp_path, kind, step, {"a": torch.ones(2)})
        best, recent = (step, []) if kind == BEST else (None, [1, 2][:step])
        numbers = {"best_step": best, "recent_steps": recent}
        checkpoint.save(tmp_path, step, {"a": torch.ones(2)}, numbers)
    path = checkpoint.weights_path(tmp_path, kind, 2)
    damage_file(path) if damage == "flip" else path.unlink()
    warnings: list[str] = []
    _, progress = checkpoint.load_newest(tmp_path, warnings.append)
    assert progress["step"] == 1
    assert path.name in warnings[0]
    if kind == RECENT:
        with pytest.raises(RunError, match=f"{path.name}.*Try this"):
            checkpoint.average_recent(tmp_path, [1, 2], todo="Try this.")


@given(share=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_changed_bit_of_a_checkpoint_changes_nothing_silently(share: float, bit: int) -> None:
    with TemporaryDirectory() as place:
        for step in (1, 2):
            folder = checkpoint.save(Path(place), step, {"a": torch.ones(2)}, {"best": 0.5})
        for path in folder.iterdir():
            whole = path.read_bytes()
            flip_bit(path, int(share * len(whole)), bit)
            _, numbers = checkpoint.load_newest(Path(place), ignored)
            assert numbers["step"] == 1 or (numbers["best"], numbers["step"]) == (0.5, 2), path.name
            path.write_bytes(whole)


def flip_bit(path: Path, place: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def damage_file(path: Path) -> None:
    flip_bit(path, path.stat().st_size - 1, 0)
