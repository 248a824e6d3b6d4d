"""Two ranks train as one: real processes under torchrun, on gloo.

Most cases share one launch: `torchrun THIS_FILE ORDERS` starts and resumes the listed runs.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from killing import FOUND, outcome
from rich.console import Console
from safetensors.torch import load_file

from heed.config import Recipe
from heed.data.batching.batch import IGNORE_INDEX, Batch
from heed.errors import ConfigError, StoppedError
from heed.runs.run import Run
from heed.train import run as train_run
from heed.train.distributed.ranks import World, exit_process
from heed.train.distributed.sharding import shard_batch
from heed.train.loader import Loader

ROOT = Path(__file__).resolve().parents[2]
QUIET = Console(quiet=True)
BREAK = 5
"""The update before which a run is stopped that is to be resumed."""


# ----------------------------------------------------------------------- what a launch does


def stops_at(step: int) -> None:
    """The last rank is sent Ctrl-C when it asks for this update's batches."""
    walk = Loader.iterate

    def walking(self: Loader, start: int, stop: int) -> Iterator[list[Batch]]:
        for number, batches in enumerate(walk(self, start, stop), start):
            if number == step and self.world.rank == self.world.size - 1:
                os.kill(os.getpid(), signal.SIGINT)
            yield batches

    Loader.iterate = walking  # type: ignore[method-assign]


def no_curves(run: Run) -> None:
    """Figures take longer than these runs."""


def obey(path: Path) -> None:
    """Start and resume runs as the orders say."""
    torch.set_num_threads(1)
    vars(train_run)["draw_curves"] = no_curves
    true_walk = Loader.iterate
    for order in json.loads(path.read_text()):
        folder = Path(order["run"])
        if order["broken"]:
            stops_at(BREAK)
        try:
            if "recipe" in order:
                recipe = Recipe.read(Path(order["recipe"]))
                train_run.start(recipe, folder, device="cpu", console=QUIET)
            else:
                train_run.resume(folder, device="cpu", console=QUIET)
        except (StoppedError, SystemExit):
            if not order["broken"]:
                raise
        Loader.iterate = true_walk  # type: ignore[method-assign]


# ------------------------------------------------------------------------------ the cases


def recipes(text: Path) -> dict[str, Recipe]:
    """What is trained, by name: nothing random but where the name says so."""
    pair = {"task": "translate", "data": {"train": [str(text / "a.en"), str(text / "a.fr")]}}
    classify = {"task": "classify", "data": {"train": [str(text / "a.tsv")]}}
    lines: dict[str, Any] = {"train": [str(text / "a.en")]}
    generate = {"task": "generate", "data": lines}
    packed = {"task": "generate", "data": {**lines, "pack": True, "max_length": 24}}
    steady = {"dropout": 0.0, "bias": False}
    drawn = {"dropout": 0.2, "merge": "shuffle"}
    several = {"batch_size": 15, "accumulate": 2}
    return {
        "plain": _recipe(pair, steady, several, ema=0.9, average_checkpoints=2),
        "alone": _recipe(classify, steady, {"batch_size": 1}, steps=4),
        "packed": _recipe(packed, steady, {"batch_tokens": 120}, steps=4),
        "muon": _recipe(generate, steady, several, steps=3, optimizer="muon"),
        "lion": _recipe(generate, steady, several, steps=3, optimizer="lion", lr=1e-4),
        "random": _recipe(pair, drawn, several, ema=0.9),
        "long": _recipe(pair, drawn, several, steps=90, checkpoint_every=5, evaluate_every=45),
    }


def _recipe(
    what: dict[str, Any], model: dict[str, Any], size: dict[str, int], **train: Any
) -> Recipe:
    train = {"steps": 9, "warmup": 2, "log_every": 2, "evaluate_every": 4} | train
    return Recipe.of(
        {
            **what,
            "tokenizer": {"kind": "word"},
            "model": {"layers": 1, "width": 16, "heads": 2, **model},
            "train": {"checkpoint_every": 3, "precision": "float32", **size, **train},
        }
    )


TOGETHER = ["plain-ddp", "plain-fsdp", "alone-ddp", "alone-fsdp", "packed-ddp", "packed-fsdp"]
TOGETHER += ["muon-fsdp", "lion-fsdp"]
HALVES = ["plain-ddp", "plain-fsdp"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Every run there is to compare: on one process, on two, begun on the one or the other."""
    folder = tmp_path_factory.mktemp("runs")
    write_text(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEED_CACHE", str(folder / "cache"))
        patch.setattr(train_run, "draw_curves", no_curves)
        orders = []
        for name, base_recipe in recipes(folder).items():
            (folder / f"{name}.toml").write_text(base_recipe.toml())
            for how in ("ddp", "fsdp"):
                shared = Recipe.of(
                    base_recipe.tables()
                    | {"train": base_recipe.tables()["train"] | {"parallel": how}}
                )
                (folder / f"{name}-{how}.toml").write_text(shared.toml())
            if name not in ("random", "long"):
                train_run.start(base_recipe, folder / f"{name}-one", device="cpu", console=QUIET)

        def order(run: str, recipe: str | None = None, *, broken: bool = False) -> None:
            recipe_file = {"recipe": str(folder / f"{recipe}.toml")} if recipe else {}
            orders.append({"run": str(folder / run), "broken": broken, **recipe_file})

        for name in TOGETHER:
            order(name, name)
        for name in HALVES:
            begun_on_one(folder, name)
            order(f"{name}-two-one", name, broken=True)
            order(f"{name}-one-two")
        order("random-whole", "random-ddp")
        order("random-broken", "random-ddp", broken=True)
        order("random-broken")
        order("long-whole", "long-ddp")
        (folder / "orders.json").write_text(json.dumps(orders))
        process = torchrun(str(Path(__file__).resolve()), str(folder / "orders.json"))
        said = words_of(process)
        assert process.returncode == 0, said
        assert "Warning" not in said
        for name in HALVES:
            train_run.resume(folder / f"{name}-two-one", device="cpu", console=QUIET)
        yield folder


def write_text(folder: Path) -> None:
    draw = random.Random(0)
    lines = [" ".join(draw.choices("abcdefgh", k=draw.randint(2, 9))) for _ in range(120)]
    (folder / "a.en").write_text("\n".join(lines))
    (folder / "a.fr").write_text("\n".join(" ".join(reversed(line.split())) for line in lines))
    (folder / "a.tsv").write_text("\n".join(f"{'a' in line}\t{line}" for line in lines))


def begun_on_one(folder: Path, name: str) -> None:
    """A run stopped before update `BREAK`, to be gone on with by two."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loader, "iterate", Loader.iterate)  # put back what `stops_at` takes away
        stops_at(BREAK)
        recipe = Recipe.read(folder / f"{name}.toml")
        with pytest.raises(StoppedError):
            train_run.start(recipe, folder / f"{name}-one-two", device="cpu", console=QUIET)


def torchrun(*arguments: str) -> subprocess.Popen[str]:
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.Popen(
        [sys.executable, "-m", *launcher, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": FOUND, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def words_of(process: subprocess.Popen[str]) -> str:
    """All a launch said, once it has ended; one that hangs is ended, with its ranks."""
    try:
        return process.communicate(timeout=240)[0]
    except subprocess.TimeoutExpired:
        process.terminate()
        return process.communicate()[0]


# --------------------------------------------------------------------------- two are as one


def measured(run: Path) -> list[dict[str, float]]:
    """Every line's numbers by path, the clock apart."""
    return [dict(_numbers(line)) for line in Run(run).metrics()]


def _numbers(values: dict[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    for key, value in values.items():
        if isinstance(value, dict) and key != "time":
            yield from _numbers(value, f"{path}{key}/")
        elif isinstance(value, int | float):
            yield f"{path}{key}", value


def assert_as_one(folder: Path, name: str, one: str) -> None:
    lines, others = measured(folder / one), measured(folder / name)
    assert len(lines) == len(others)
    for line, other in zip(lines, others, strict=True):
        assert line.keys() == other.keys()
        for key, value in line.items():
            assert math.isclose(value, other[key], rel_tol=1e-6, abs_tol=1e-6), key
    weights, own = (load_file(Run(folder / run).weights_path) for run in (one, name))
    assert weights.keys() == own.keys()
    for key, weight in weights.items():
        assert torch.allclose(weight, own[key], rtol=0, atol=1e-5), key


@pytest.mark.parametrize("name", TOGETHER)
def test_two_ranks_are_as_one(runs: Path, name: str) -> None:
    """Losses, scores and weights, also where a rank has no row of a batch at all."""
    assert_as_one(runs, name, f"{name.partition('-')[0]}-one")


@pytest.mark.parametrize("name", HALVES)
def test_a_run_begun_on_two_goes_on_on_one(runs: Path, name: str) -> None:
    assert_as_one(runs, f"{name}-two-one", "plain-one")


@pytest.mark.parametrize("name", HALVES)
def test_a_run_begun_on_one_goes_on_on_two(runs: Path, name: str) -> None:
    assert_as_one(runs, f"{name}-one-two", "plain-one")


def test_resumed_on_as_many_ranks_is_unbroken_to_the_bit(runs: Path) -> None:
    """Dropout and all: every rank's generators are saved."""
    assert outcome(runs / "random-whole") == outcome(runs / "random-broken")


def test_ranks_draw_differently(runs: Path) -> None:
    saved = load_file(max((runs / "random-whole/checkpoints").glob("step-*/tensors.safetensors")))
    assert saved["random.cpu"].shape == saved["random.cpu.1"].shape
    assert not torch.equal(saved["random.cpu"], saved["random.cpu.1"])


def test_a_checkpoint_is_the_same_from_any_number_of_ranks(runs: Path) -> None:
    """Names, shapes and kinds of every tensor, but for the generators of further ranks."""
    names = ["plain-one", "plain-ddp", "plain-fsdp"]
    paths = [
        max((runs / name / "checkpoints").glob("step-*/tensors.safetensors")) for name in names
    ]
    one, *others = (
        {name: (t.shape, t.dtype) for name, t in load_file(path).items()} for path in paths
    )
    for other in others:
        assert {name: kind for name, kind in other.items() if name != "random.cpu.1"} == one


# ------------------------------------------------------------------------- when a rank dies


def rank_of(process: subprocess.Popen[str], rank: int) -> int:
    """The process of one rank of a launch."""
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        if f"RANK={rank}".encode() in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return int(child)
    raise LookupError(f"no rank {rank}")


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc to find a rank")
@pytest.mark.slow  # the other rank waits for the one that is gone
def test_a_killed_rank_stops_the_other_with_one_message(runs: Path) -> None:
    """And the run, resumed by the same command, ends as if nothing had happened."""
    folder = runs / "long-broken"
    heed, where = ("-m", "--", "heed"), ("--device", "cpu")
    process = torchrun(*heed, "train", str(runs / "long-ddp.toml"), *where, "--run", str(folder))
    while process.poll() is None and not any((folder / "checkpoints").glob("step-*")):
        time.sleep(0.005)
    os.kill(rank_of(process, 1), signal.SIGKILL)
    began = time.monotonic()
    said = words_of(process)
    assert time.monotonic() - began < 20
    assert process.returncode != 0
    messages = [line for line in said.splitlines() if line.startswith("heed: ")]
    assert len(messages) == 1, said
    assert "rank 1 stopped" in messages[0]
    assert f"heed resume {folder}" in messages[0]
    assert "heed/train" not in said, "a traceback"
    resumed = torchrun(*heed, "resume", str(folder), *where)
    said = words_of(resumed)
    assert resumed.returncode == 0, said
    assert said.count("Resuming from step") == 1
    assert outcome(runs / "long-whole") == outcome(folder)


# ----------------------------------------------------------------------- without a launch


@given(
    texts=st.integers(1, 9),
    size=st.integers(1, 5),
    length=st.integers(1, 4),
    packed=st.booleans(),
)
def test_shares_are_the_batch(texts: int, size: int, length: int, packed: bool) -> None:
    """Every row is some rank's, all shares have one shape, and all know the whole count."""
    ids = torch.arange(texts * length).reshape(texts, length) + 10
    positions = torch.arange(length).repeat(texts if packed else 1, 1)
    whole = Batch(
        ids,
        ids + 1,
        torch.ones_like(ids, dtype=torch.bool),
        positions,
        count=ids.numel(),
        rows=tuple(range(texts)),
        segments=torch.zeros_like(ids) if packed else None,
    )
    shares = [shard_batch(whole, World(rank, size)) for rank in range(size)]
    assert len({tuple(s.ids.shape) for s in shares}) == 1
    assert {s.count for s in shares} == {whole.count}
    assert sorted(row for s in shares for row in s.rows) == list(whole.rows)
    targets = torch.cat([s.targets[s.targets != IGNORE_INDEX] for s in shares])
    assert targets.sort().values.tolist() == (ids + 1).flatten().tolist()
    for part in shares:
        assert part.positions.shape[0] == (len(part.ids) if packed else 1)
        assert not part.mask[len(part.rows) :].any()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"execution": "graphs"}, "with several ranks"),
        ({"optimizer": "adafactor", "parallel": "fsdp"}, "needs whole matrices"),
    ],
)
def test_what_ranks_cannot_share_is_refused(settings: dict[str, Any], said: str) -> None:
    recipe = Recipe.of({"train": settings})
    train_run.refuse_rank_conflicts(recipe, World(), resumed=False)
    with pytest.raises(ConfigError, match=said):
        train_run.refuse_rank_conflicts(recipe, World(0, 2), resumed=False)


if __name__ == "__main__":
    obey(Path(sys.argv[1]))
    exit_process(0)
