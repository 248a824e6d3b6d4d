"""`heed bench --against`: like for like first, each in its own process, failures reported."""

from __future__ import annotations

import io
import json
import os
import signal
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from test_cli import heed
from typer.testing import CliRunner

from heed.bench.against import build_systems, halve_batches, peer_modes, standard_workload
from heed.bench.like_for_like import (
    COMMAND,
    LIKE_FOR_LIKE,
    OTHER_PRECISION,
    SAME_PRECISION,
    TURN,
    Options,
    Result,
    SpeedComparison,
    System,
    compare,
)
from heed.bench.peer_step import MODES, WARM_UP, build_peer_steps, peer_inputs
from heed.bench.peers import PEERS, PeerLoss, build_peer
from heed.bench.run_bench import run_comparison
from heed.bench.speed_table import WIDTH, comparison_notes, comparison_text
from heed.bench.standard_shapes import SMALL_LM, SMALL_MT, Setting
from heed.bench.system_process import describe_failure
from heed.bench.system_worker import Worker, worker_process
from heed.bench.timing import LARGE
from heed.bench.workload import Workload
from heed.cli.main import app
from heed.data.batching.batch import Batch
from heed.errors import ConfigError, HeedError

CPU = torch.device("cpu")
LM = replace(SMALL_LM, layers=1, heads=2, width=16, vocab=40, texts=2, length=6)
MT = replace(SMALL_MT, layers=1, heads=2, width=16, vocab=40, texts=2, length=6, dropout=0.0)
QUICK = Options(CPU, turns=2, product_size=64)
TINY = (
    *("data.synthetic=300", "data.synthetic_test=20", "train.batch_tokens=512"),
    *("model.width=32", "model.layers=1"),
)
PAIRS = [(library, task) for library, tasks in PEERS.items() for task in tasks]


def workload_of(library: str, task: str) -> Workload:
    return standard_workload(LM if task == "generate" else MT)


def needs(library: str) -> None:
    if library == "transformers":
        pytest.importorskip("transformers")


# ------------------------------------------------------------------------------------ workloads


@pytest.mark.parametrize("setting", [LM, MT, replace(MT, source_vocab=50)])
def test_a_workload_survives_its_file(setting: Setting, tmp_path: Path) -> None:
    workload = standard_workload(setting, ["train.label_smoothing=0.1"])
    workload.save(tmp_path / "file")
    again = Workload.load(tmp_path / "file", changes=["train.clip=0.5"])
    assert again.recipe.train.label_smoothing == 0.1
    assert again.recipe.train.clip == 0.5
    assert again.recipe.model == workload.recipe.model
    assert again.tokens == workload.tokens == setting.tokens
    assert again.operations == workload.operations
    for batch, copy in zip(workload.batches, again.batches, strict=True):
        assert copy.count == batch.count
        assert copy.tensors().keys() == batch.tensors().keys()
        assert all((copy.tensors()[n] == t).all() for n, t in batch.tensors().items())


def test_half_a_workload_has_half_the_tokens() -> None:
    workload = standard_workload(replace(MT, texts=4))
    half = halve_batches(workload)
    assert 2 * half.tokens == workload.tokens
    assert half.batches[0].count * 2 == workload.batches[0].count


# ------------------------------------------------------------------------------------ peers


def matrices(model: torch.nn.Module) -> int:
    """Weights that vectors are multiplied by, tables of positions apart."""
    weights = [(name, p) for name, p in model.named_parameters() if p.ndim == 2]
    return sum(p.numel() for name, p in weights if "position" not in name and "wpe" not in name)


def loss_of(peer: PeerLoss, batch: Batch) -> float:
    return float(peer(*peer_inputs(batch)).detach())


@pytest.mark.parametrize(("library", "task"), PAIRS)
def test_a_peer_has_the_same_matrices_and_learns(library: str, task: str) -> None:
    needs(library)
    workload = workload_of(library, task)
    peer = build_peer(library, workload.recipe, vocab=40, source_vocab=None, length=6)
    ours = workload.build_model(CPU)
    assert matrices(peer) == matrices(ours)
    before = loss_of(peer, workload.batches[0])
    if library != "nn.Transformer":  # torch's initialization of embeddings makes tied logits large
        assert before == pytest.approx(float(torch.tensor(40.0).log()), rel=0.2)
    steps = build_peer_steps(peer, workload.steps, mode="eager", bf16=False, clip=1.0)
    for _ in range(20):
        steps[0]()
    assert loss_of(peer, workload.batches[0]) < before


@pytest.mark.parametrize("library", [name for name, tasks in PEERS.items() if "translate" in tasks])
def test_padding_of_the_source_changes_no_loss(library: str) -> None:
    needs(library)
    workload = workload_of(library, "translate")
    batch = workload.batches[0]
    assert peer_inputs(batch)[3] is None  # without padding, the fastest kernel
    assert batch.source is not None
    assert batch.source_mask is not None
    blank = torch.zeros(len(batch.source), 2, dtype=torch.long)
    longer = batch.with_tensors(
        {
            "source": torch.cat([batch.source, blank], 1),
            "source_mask": torch.cat([batch.source_mask, blank.bool()], 1),
        }
    )
    peer = build_peer(library, workload.recipe, vocab=40, source_vocab=None, length=8)
    whole, padded = (loss_of(peer, each) for each in (batch, longer))
    assert padded == pytest.approx(whole, rel=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("library", "task"), PAIRS)
def test_a_captured_peer_takes_the_steps_of_an_eager_one(library: str, task: str) -> None:
    needs(library)
    workload, losses = workload_of(library, task), []
    steps = [[batch.to("cuda") for batch in step] for step in workload.steps]
    for mode in ("eager", "captured"):
        peer = build_peer(library, workload.recipe, vocab=40, source_vocab=None, length=6).cuda()
        train = build_peer_steps(peer, steps, mode=mode, bf16=False, clip=1.0)[0]
        for _ in range(2 + (WARM_UP if mode == "eager" else 0)):
            train()
        losses.append(loss_of(peer, steps[0][0]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_a_cpu_has_no_graphs_to_capture() -> None:
    assert peer_modes(CPU) == ["eager", "compiled"]
    assert peer_modes(CPU, compiled=False) == ["eager"]
    assert peer_modes(torch.device("cuda")) == [*MODES]


# ------------------------------------------------------------------------------------ the command


def check_rows(comparison: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows, after what must hold between them."""
    rows: list[dict[str, Any]] = comparison["rows"]
    assert [row["row"] for row in rows[:2]] == [LIKE_FOR_LIKE] * 2
    ours, best = rows[:2]
    assert ours["library"] == "heed"
    assert best["library"] != "heed"
    assert ours["precision"] == best["precision"]
    rates = {row["name"] + row["precision"]: row["tokens_per_second_by_turn"] for row in rows}
    for row in rows:
        if row["failed"]:
            assert row["ratio"] is None
            assert row["tokens_per_second"] is None
            continue
        turns = row["tokens_per_second_by_turn"]
        assert len(turns) == comparison["turns"]
        assert row["tokens_per_second"] == pytest.approx(statistics.median(turns))
        assert [row["lowest"], row["highest"]] == pytest.approx([min(turns), max(turns)])
        assert 0 < row["share_of_peak"] <= row["share_of_peak_in_full"]
        if row["library"] != "heed" and row["row"] != OTHER_PRECISION:
            mine = next(r for r in rows if r["precision"] == row["precision"])
            paired = [
                a / b for a, b in zip(rates[mine["name"] + mine["precision"]], turns, strict=True)
            ]
            assert row["ratio"]["turns"] == pytest.approx(paired)
            assert row["ratio"]["median"] == pytest.approx(statistics.median(paired))
            assert row["ratio"]["lowest"] <= row["ratio"]["median"] <= row["ratio"]["highest"]
            if row["row"] == SAME_PRECISION:
                fastest = next(
                    r
                    for r in rows
                    if r["row"] == LIKE_FOR_LIKE
                    and r["ratio"]
                    and r["precision"] == row["precision"]
                )
                assert fastest["tokens_per_second"] >= row["tokens_per_second"]
    assert len({row["pid"] for row in rows}) == len(rows)
    assert os.getpid() not in {row["pid"] for row in rows}
    return rows


def options_of(*arguments: str) -> list[str]:
    changes = [part for change in TINY for part in ("--set", change)]
    return [
        "bench",
        *arguments,
        *changes,
        *["--device", "cpu", "--updates", "1", "--turns", "2", "--json"],
    ]


def bench(*arguments: str) -> list[dict[str, Any]]:
    """The rows of a comparison by the command in a process of its own."""
    answer = heed(*options_of(*arguments), "--threads", "1")
    assert answer.returncode == 0, answer.stderr
    rows: list[dict[str, Any]] = json.loads(answer.stdout)["comparisons"][0]["rows"]
    return rows


def test_the_command_compares_and_a_form_that_fails_is_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a C++ compiler, the compiled peer fails; the rest goes on and the exit code is 0."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setitem(TURN, "cpu", 0.0)
    monkeypatch.setitem(LARGE, "cpu", 64)
    answer = CliRunner().invoke(
        app, options_of("demo-generate", "--against", "plain", "--precision", "float32")
    )
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    assert found["against"] == "plain"
    assert found["environment"]["packages"]["torch"]
    rows = check_rows(found["comparisons"][0])
    assert [row["mode"] for row in rows] == ["auto", "eager", "compiled"]
    assert rows[-1]["failed"] == "there is no C++ compiler here."
    assert "turn 2 of 2" in answer.stderr  # progress, beside the JSON


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "library"),
    [
        ("demo-translate", "transformers"),
        ("demo-translate", "nn.Transformer"),
        ("demo-generate", "transformers"),
    ],
)
def test_every_peer_is_compared_in_both_precisions(recipe: str, library: str) -> None:
    needs(library)
    found = bench(recipe, "--against", library, "--no-compile")
    rows = check_rows({"rows": found, "turns": 2})
    assert not any(row["failed"] for row in rows)


@pytest.mark.slow
def test_a_compiled_peer_is_measured() -> None:
    found = bench("demo-generate", "--against", "plain", "--precision", "float32")
    rows = check_rows({"rows": found, "turns": 2})
    assert not any(row["failed"] for row in rows)
    assert {row["mode"] for row in rows} == {"auto", "eager", "compiled"}


@pytest.mark.slow
def test_a_peer_that_raises_is_reported() -> None:
    """Three heads of width 8 at width 32 are no problem for heed alone."""
    rows = bench(
        *("demo-generate", "--against", "plain", "--no-compile", "--precision", "float32"),
        *("--set", "model.heads=3", "--set", "model.head_width=8"),
    )
    assert [row["library"] for row in rows if not row["failed"]] == ["heed"]
    assert all("RuntimeError in its first step" in row["failed"] for row in rows if row["failed"])


# ------------------------------------------------------------------------------------ failures


def test_a_failure_is_told_in_one_line() -> None:
    full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 6.14 GiB.\nDetails")
    assert describe_failure(full, "its first step") == (
        "out of memory in its first step: CUDA out of memory. Tried to allocate 6.14 GiB."
    )
    driver = RuntimeError("CUDA error: out of memory")  # not torch's allocator
    assert describe_failure(driver, "a turn").startswith("out of memory in a turn")
    assert describe_failure(MemoryError(), "a turn") == "out of memory in a turn"
    compiler = RuntimeError("backend='inductor' raised:\nCppCompileError: no header\n\ntrace")
    assert describe_failure(compiler, "its first step").endswith("CppCompileError: no header")
    assert len(describe_failure(ValueError("x" * 900), "a turn")) < 200


def test_a_process_that_is_killed_has_failed() -> None:
    with worker_process(COMMAND) as worker:
        os.kill(worker.pid, signal.SIGKILL)
        answer = worker.ask("{}", 60.0)
    assert answer["event"] == "failed"
    assert answer["out_of_memory"]
    assert "killed" in answer["reason"]


@pytest.mark.slow
def test_a_system_without_room_beside_the_others_is_measured_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second process is killed while both are alive, as by a system out of memory."""
    killed: list[int] = []
    ask = Worker.ask

    def kill_first(worker: Worker, line: str, limit: float) -> dict[str, Any]:
        if "plain" in line and not killed:
            killed.append(worker.pid)
            os.kill(worker.pid, signal.SIGKILL)
        return ask(worker, line, limit)

    monkeypatch.setattr(Worker, "ask", kill_first)
    systems = build_systems(standard_workload(LM), "plain", precision="float32", modes=["eager"])
    said: list[str] = []
    found = compare("tiny", systems, QUICK, say=said.append)
    assert found.options.alone
    assert any("measured alone" in line for line in said)
    assert not any(result.failed for result in found.results)
    assert "took all its turns alone" in comparison_text(found)


def test_systems_that_are_built_together_take_turns_and_one_may_fail() -> None:
    """The peer that fails, here for want of a GPU, leaves the others as they are."""
    workload = standard_workload(LM)
    modes = ["eager", "captured"]
    systems = build_systems(workload, "plain", precision="float32", modes=modes)
    said: list[str] = []
    found = compare("tiny", systems, replace(QUICK, build_together=True), say=said.append)
    assert [result.system for result in found.results] == systems
    assert len({result.pid for result in found.results}) == 3
    assert [bool(result.failed) for result in found.results] == [
        False,
        False,
        QUICK.device.type == "cpu",
    ]
    assert all(len(r.seconds) == QUICK.turns for r in found.results if not r.failed)
    assert [line for line in said if "preparing" in line] == said[:3]


# ------------------------------------------------------------------------------------ the table


def result_of(system: System, seconds: Sequence[float], failed: str | None = None) -> Result:
    return Result(system, pid=1, seconds=list(seconds), peaks=[1e12] * len(seconds), failed=failed)


def test_the_fastest_peer_of_each_precision_is_first_and_the_rest_is_labeled() -> None:
    workload = standard_workload(MT)

    def system(library: str, mode: str, precision: str, **other: Any) -> System:
        return System(library, mode, precision, workload, **other)

    half = replace(system("transformers", "eager", "bf16"), workload=halve_batches(workload))
    results = [
        result_of(system("heed", "graphs", "bf16"), [1.0, 2.0, 4.0]),
        result_of(half, [4.0, 4.0, 4.0]),
        result_of(system("transformers", "eager", "bf16"), [4.0, 4.0, 4.0]),
        result_of(system("transformers", "compiled", "bf16"), [2.0, 3.0, 4.0]),
        result_of(system("transformers", "captured", "bf16"), [], "OutOfMemoryError in a turn"),
        result_of(system("transformers", "eager", "float32"), [1.0, 1.0, 1.0]),
        result_of(system("transformers", "eager", "bf16", keep_memory=True), [0.1, 0.1, 0.1]),
    ]
    found = SpeedComparison("some work", QUICK, results)
    rows = found.rows()
    assert [(row.kind, row.result.system.mode) for row in rows[:2]] == [
        (LIKE_FOR_LIKE, "graphs"),
        (LIKE_FOR_LIKE, "compiled"),
    ]
    ratio = rows[1].ratio
    assert ratio is not None
    assert (ratio.turns, ratio.median) == ([2.0, 1.5, 1.0], 1.5)
    assert [r.kind for r in rows[2:]] == [SAME_PRECISION] * 4 + [OTHER_PRECISION]
    text = comparison_text(found)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "heed trains 1.50 times as fast as Marian, compiled in bfloat16" in text
    assert "Marian, captured: OutOfMemoryError in a turn" in text
    assert text.index("LIKE FOR LIKE") < text.index("Also in") < text.index("Other precision")


def test_a_comparison_in_which_all_fail_has_a_table() -> None:
    system = System("plain", "eager", "float32", standard_workload(LM))
    found = SpeedComparison("some work", QUICK, [result_of(system, [], "it broke")])
    assert "plain GPT, eager: it broke" in comparison_text(found)
    assert comparison_notes([found])


# ------------------------------------------------------------------------------------ refusals


def refuse(library: str, name: str | None = None, *changes: str, **options: Any) -> None:
    run_comparison(
        (name, None, None, None, list(changes), None),
        library,
        device="cpu",
        console=Console(file=io.StringIO()),
        **options,
    )


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        (("fairseq",), {}, "one of transformers, nn.Transformer, plain"),
        (("transformer",), {}, "Did you mean 'transformers'"),
        (("plain",), {"turns": 0}, "--turns cannot be 0"),
        (("plain",), {"updates": 0}, "--updates cannot be 0"),
        (("plain", "demo-translate"), {}, "use --against transformers or nn.Transformer"),
        (("plain", "demo-classify"), {}, "only translate and generate"),
        (("plain", "demo-generate", "model.family=lstm"), {}, "is an LSTM"),
        (("plain", "demo-generate", "model.activation=swiglu"), {}, "model.activation=gelu"),
        (("plain", "demo-generate", "train.objective=masked"), {}, "is masked"),
    ],
)
def test_what_cannot_be_compared_is_a_sentence(
    arguments: tuple[str, ...], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        refuse(*arguments, **options)


def test_without_transformers_there_is_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)  # as if it were not installed
    with pytest.raises(HeedError, match=r"pip install '\.\[hf\]'.*--against plain"):
        refuse("transformers")


@pytest.mark.parametrize("flag", [("--turns", "2"), ("--no-compile",)])
def test_flags_of_a_comparison_need_one(flag: tuple[str, ...]) -> None:
    answer = heed("bench", "demo-generate", *flag)
    assert answer.returncode == 2
    assert f"{flag[0]} is for a comparison: add --against." in answer.stderr


def test_help_explains_the_comparison() -> None:
    shown = heed("bench", "--help").stdout
    assert "nn.Transformer" in shown
    assert "same precision" in shown
