"""Kernels are compiled ahead of time: all that a run launches, before it needs them.

Tests that need Triton are skipped without it. Only the last one needs a GPU: a run after
ahead-of-time compilation compiles nothing itself.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import POSITIONS

import heed
from heed.config import Recipe
from heed.data.batching.length_buckets import bucket_lengths
from heed.models import build
from heed.nn.kernels.availability import HAS_TRITON
from heed.train.execution.choose import cpp_compiler
from heed.train.precompile import start
from heed.train.prepare.init_from import freeze_and_adapt

ROOT = Path(heed.__file__).parent
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not here")
KERNELS = sorted((ROOT / "nn" / "kernels" / "triton").glob("*.py"))
SMALL = {"width": 32, "heads": 2, "layers": 1, "position": "none"}


def recipe(task: str = "generate", **sections: Any) -> Recipe:
    return Recipe.of({"task": task, "model": SMALL} | sections)


def environment(**changes: str) -> dict[str, str]:
    """Environment of a child process that imports this heed, and all that this process can."""
    path = [str(ROOT.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), **changes}


def run(code: str, cache: Path, *arguments: str) -> str:
    """Standard output of a child process that uses this Triton cache."""
    env = environment(
        TRITON_CACHE_DIR=str(cache), HEED_CACHE=str(cache / "heed"), OMP_NUM_THREADS="1"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---------------------------------------------------------------------------- where there is no GPU


STUBBED = """
from heed.train.precompile.worker import stub_dynamo
stub_dynamo()
import torch
from heed.train.optimizers.custom import Muon
weight = torch.ones(2, 2, requires_grad=True)
weight.grad = torch.ones(2, 2)
Muon([{"params": [weight], "name": "muon", "lr": 0.1}]).step()
print(bool((weight != 1).any()))
"""


def test_an_optimizer_steps_without_torch_dynamo(tmp_path: Path) -> None:
    """As in the compile process, which does not wait for its import."""
    assert run(STUBBED, tmp_path) == "True\n"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices for which a compile process was started."""
    devices: list[str] = []
    monkeypatch.setattr(start, "CompileProcess", devices.append)
    monkeypatch.setattr(start, "_process", None)
    return devices


def test_without_a_gpu_nothing_is_started(
    monkeypatch: pytest.MonkeyPatch, started: list[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(start, "GPU_DEVICE_FILES", (str(tmp_path / "none"),))
    start.start_early("auto")
    start.start_early("auto", recipe())
    with start.compiling_ahead(recipe(), torch.device("cpu")):
        pass
    assert started == []


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_another_device_needs_no_kernels(
    monkeypatch: pytest.MonkeyPatch, started: list[str], tmp_path: Path, device: str
) -> None:
    monkeypatch.setattr(start, "GPU_DEVICE_FILES", (str(tmp_path),))
    start.start_early(device)
    start.start_early(device, recipe())
    assert started == []


# ------------------------------------------------------------------------------------------ stamps


def test_a_stamp_depends_on_what_kernels_depend_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    same = [
        recipe(),
        recipe(seed=7, train={"steps": 3, "lr": 0.5}),
        recipe(data={"train": ["a.txt"]}),
        recipe(train={"optimizer": "adamw"}),
    ]
    others = [
        recipe("classify"),
        recipe(model=SMALL | {"position": "rope"}),
        recipe(data={"max_length": 64}),
        recipe(train={"precision": "float32"}),
        recipe(train={"label_smoothing": 0.1}),
        recipe(train={"optimizer": "muon"}),
        recipe(train={"optimizer": "adam"}),
        recipe(train={"optimizer": "lion"}),
        recipe(train={"fp8_output": True}),
        recipe(train={"rdrop": 5.0}),
        recipe(init={"from": "model", "freeze": 1}),
        recipe(init={"from": "model", "lora": 4}),
    ]
    stamps = [start.stamp_path(one) for one in same + others]
    assert len({*stamps[: len(same)]}) == 1
    assert len({*stamps}) == 1 + len(others)
    assert all(stamp.parent == tmp_path for stamp in stamps)


@needs_triton
def test_a_warm_machine_starts_nothing(
    monkeypatch: pytest.MonkeyPatch, started: list[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(start, "GPU_DEVICE_FILES", (str(tmp_path),))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    stamp = start.stamp_path(recipe())
    stamp.touch()
    start.decoding_stamp(stamp).touch()
    start.start_early("auto")
    start.start_early("auto", recipe())
    assert started == []


def test_the_sources_that_decide_about_kernels_exist() -> None:
    assert all((start.PACKAGE / source).exists() for source in start.SOURCES)
    assert start.PACKAGE == ROOT


# -------------------------------------------------------------------------------------- the process


def gone(process: int) -> bool:
    stat = Path(f"/proc/{process}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def eventually(holds: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    return holds()


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for processes")


@on_linux
def test_a_compile_process_is_stopped() -> None:
    compiling = start.CompileProcess("auto")
    process = compiling._process.pid
    compiling.stop()
    compiling.stop()
    assert gone(process)


@on_linux
@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a machine without a GPU")
def test_training_does_not_wait_for_a_process_without_work(tmp_path: Path) -> None:
    compiling = start.CompileProcess("auto")
    compiling.send_recipe(recipe(), tmp_path / "stamp")
    began = time.monotonic()
    compiling.wait()
    assert time.monotonic() - began < start.MAX_WAIT_SECONDS
    compiling.stop()
    assert not (tmp_path / "stamp").exists()


@on_linux
@pytest.mark.parametrize("ended", [True, False])
def test_training_waits_for_no_process_of_another_recipe(
    ended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run on the CPU after one on a GPU, in one process: the first run's process may be left."""
    process = start.CompileProcess("auto")
    monkeypatch.setattr(start, "_process", process)
    try:
        if ended:
            process.stop()
        process.stamp = tmp_path / "of-another-recipe"
        began = time.monotonic()
        with start.compiling_ahead(recipe(), torch.device("cpu")):
            pass
        assert time.monotonic() - began < start.MAX_WAIT_SECONDS
        assert (start._process is None) == ended
    finally:
        process.stop()


CUDA = """
int cuInit(unsigned flags) { return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device)
{ *value = attribute == 75 ? 9 : 0; return 0; }
"""
"""The part of libcuda that the compile process calls."""


@needs_triton
@on_linux
@pytest.mark.skipif(cpp_compiler() is None, reason="there is no compiler here")
def test_training_waits_for_its_own_kernels_and_decoding_comes_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Triton prints meanwhile does not end the wait."""
    source, library = tmp_path / "cuda.c", tmp_path / "libcuda.so.1"
    source.write_text(CUDA)
    subprocess.run(
        [str(cpp_compiler()), "-shared", "-fPIC", "-x", "c", str(source), "-o", str(library)],
        check=True,
    )
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("NVPTX_ENABLE_DUMP", "1")
    compiling, stamp = start.CompileProcess("auto"), tmp_path / "stamp"
    try:
        compiling.send_recipe(recipe(data={"max_length": 16}), stamp)
        compiling.wait()
        assert stamp.exists()
        assert eventually(lambda: compiling.has_ended, 60.0)
        assert start.decoding_stamp(stamp).exists()
    finally:
        compiling.stop()


@on_linux
def test_the_compile_process_dies_with_the_command(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from heed.train.precompile.start import CompileProcess\n"
        "print(CompileProcess('auto')._process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    command = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert command.stdout is not None
    with command.stdout as said:
        process = int(said.readline())
    command.send_signal(signal.SIGKILL)
    command.wait()
    assert eventually(lambda: gone(process))


# --------------------------------------------------------------------------------- names of kernels


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.name)
def test_a_kernel_uses_what_is_defined_before_it(path: Path) -> None:
    """Its cache key is computed when it is defined, and must cover all that it uses."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    defined: dict[str, int] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined[node.name] = node.lineno
        for part in ast.walk(node) if isinstance(node, ast.Assign) else ():
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                defined[part.id] = node.lineno
    for node in tree.body:
        kernel = isinstance(node, ast.FunctionDef) and any(
            isinstance(by, ast.Name) and by.id == "kernel" for by in node.decorator_list
        )
        for part in ast.walk(node) if kernel else ():
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
                assert defined.get(part.id, 0) <= node.lineno, part.id


NAMES = """
import importlib, json, sys
from heed.nn.kernels import triton as kernels
modules = [importlib.import_module(f"heed.nn.kernels.triton.{name}") for name in sys.argv[1:]]
short = importlib.import_module("heed.nn.kernels.triton.short_attention")
kind = type(kernels.kernel(short._add.fn))
print(json.dumps({f"{m.__name__}.{n}": x.cache_key
                  for m in modules for n, x in vars(m).items() if isinstance(x, kind)}))
"""


@needs_triton
def test_cache_keys_do_not_depend_on_the_order_of_imports(tmp_path: Path) -> None:
    modules = [path.stem for path in KERNELS if path.stem != "__init__"]
    there, back = (json.loads(run(NAMES, tmp_path, *o)) for o in (modules, modules[::-1]))
    assert len(there) > 20
    assert there == back


# -------------------------------------------------------------------------------------- dry launch


def launched(work: Callable[[Callable[..., bool]], None]) -> set[tuple[str, str, str]]:
    """The kernels that some work launches: module, name, and the key Triton caches them by."""
    kernels: set[tuple[str, str, str]] = set()

    def hook(*, key: str, fn: Any, **rest: Any) -> bool:
        kernels.add((fn.module, fn.name, key))
        return True

    work(hook)
    return kernels


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    heads = draw(st.sampled_from([2, 3, 8]))
    return {
        "heads": heads,
        "width": heads * draw(st.sampled_from([16, 64])),
        "layers": draw(st.integers(1, 3)),
        "position": draw(st.sampled_from(POSITIONS)),
        "dropout": draw(st.sampled_from([0.0, 0.1])),
        "attention_dropout": draw(st.sampled_from([0.0, 0.1])),
        "norm": draw(st.sampled_from(["layer", "rms"])),
        "norm_place": draw(st.sampled_from(["pre", "post"])),
        "activation": draw(st.sampled_from(["gelu", "swiglu"])),
        "bias": draw(st.booleans()),
        "max_positions": 1024,
    }


@needs_triton
@settings(max_examples=12)
@given(data=st.data(), model=models(), task=st.sampled_from(["translate", "classify", "generate"]))
def test_batches_of_every_shape_find_their_kernels(
    data: st.DataObject, model: dict[str, Any], task: str
) -> None:
    """The few batches of a dry launch stand for all that the length buckets allow."""
    from heed.train.precompile import dry_launch

    longest = data.draw(st.sampled_from([30, 64, 100, 128, 300, 600, 1024]))
    vocab = data.draw(st.sampled_from([777, 4000, 8000]))
    precision = data.draw(st.sampled_from(["auto", "float32"]))
    config = recipe(
        task,
        model=model,
        data={"max_length": longest, "pack": task == "generate" and data.draw(st.booleans())},
        tokenizer={"vocab_size": vocab},
        train={"precision": precision},
    )
    lengths = st.sampled_from([int(n) for n in bucket_lengths(longest)])
    shapes = st.tuples(st.integers(1, 40), lengths, lengths)
    drawn = [(3, longest, longest), *data.draw(st.lists(shapes, max_size=4))]

    def train(hook: Callable[..., bool]) -> None:
        with dry_launch.fake_gpu(90, hook):
            made = dry_launch.build_model(config, vocab)
            for shape in drawn[:1] if config.data.pack else drawn:
                batch = dry_launch.build_batch(config, *shape)
                dry_launch.train_step(made, config, batch, bf16=precision == "auto")
                dry_launch.validation_step(made, batch, bf16=precision == "auto")

    needed, found = (
        launched(train),
        launched(lambda hook: dry_launch.launch_training(config, 90, hook)),
    )
    assert needed
    assert needed <= found


@needs_triton
@pytest.mark.parametrize("init", [{"freeze": 2}, {"freeze": "embeddings"}, {"lora": 4}], ids=str)
@pytest.mark.parametrize("task", ["translate", "generate"])
def test_a_model_that_is_partly_frozen_finds_its_kernels(task: str, init: dict[str, Any]) -> None:
    from heed.train.precompile import dry_launch

    model = SMALL | {"layers": 3, "width": 32, "heads": 2, "position": "t5", "bias": True}
    config = recipe(task, model=model, tokenizer={"vocab_size": 777}, init=init | {"from": "model"})

    def train(hook: Callable[..., bool]) -> None:
        with dry_launch.fake_gpu(90, hook):
            made = build(task, config.model, vocab=777).to("cuda")
            freeze_and_adapt(made, config.init, (), print)
            dry_launch.train_step(
                made, config, dry_launch.build_batch(config, 3, 20, 20), bf16=True
            )

    needed = launched(train)
    assert needed
    assert needed <= launched(lambda hook: dry_launch.launch_training(config, 90, hook))


@needs_triton
def test_a_product_of_cublaslt_finds_the_kernel_that_sums_its_gradient() -> None:
    """cuBLASLt is not there on a fake GPU; the layer with its products is another one."""
    from heed.nn.kernels.triton.column_sum import column_sums
    from heed.train.precompile import dry_launch

    model = SMALL | {"width": 32, "heads": 2, "activation": "gelu_tanh", "bias": True}
    config = recipe(model=model, data={"max_length": 64}, tokenizer={"vocab_size": 777})

    def add_up(hook: Callable[..., bool]) -> None:
        with dry_launch.fake_gpu(90, hook):
            column_sums(torch.empty(300, 128, dtype=torch.bfloat16))

    needed = launched(add_up)
    assert needed
    assert needed <= launched(lambda hook: dry_launch.launch_training(config, 90, hook))


@needs_triton
@pytest.mark.parametrize(("capability", "fp8_output"), [(90, True), (90, False), (80, True)])
def test_an_8_bit_output_layer_has_kernels_where_the_gpu_has_products(
    capability: int, fp8_output: bool
) -> None:
    from heed.train.precompile import dry_launch

    config = recipe(data={"max_length": 32}, train={"fp8_output": fp8_output})
    kernels = launched(partial(dry_launch.launch_training, config, capability))
    found = {"fp8_cross_entropy" in str(kernel) for kernel in kernels}
    assert found == ({True, False} if fp8_output and capability == 90 else {False})


@needs_triton
@settings(max_examples=12)
@given(
    task=st.sampled_from(["translate", "generate"]),
    width=st.sampled_from([32, 48, 128]),
    vocab=st.sampled_from([50, 777, 4000, 8000, 50_304]),
    smoothing=st.sampled_from([0.0, 0.1]),
    shapes=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 4)), min_size=1, max_size=4),
)
def test_an_8_bit_output_layer_finds_its_kernels_for_every_batch(
    task: str, width: int, vocab: int, smoothing: float, shapes: list[tuple[int, int]]
) -> None:
    from heed.train.precompile import dry_launch

    config = recipe(
        task,
        model=SMALL | {"width": width},
        data={"max_length": 32},
        tokenizer={"vocab_size": vocab},
        train={"fp8_output": True, "label_smoothing": smoothing},
    )

    def train(hook: Callable[..., bool]) -> None:
        with dry_launch.fake_gpu(90, hook):
            made = dry_launch.build_model(config, vocab)
            for size, eights in shapes:
                batch = dry_launch.build_batch(config, size, 8 * eights, 8 * eights)
                dry_launch.train_step(made, config, batch, bf16=True)

    needed = {kernel for kernel in launched(train) if "cross_entropy" in str(kernel)}
    found = launched(lambda hook: dry_launch.launch_training(config, 90, hook))
    names = {name.rpartition(".")[2] for _, name, _ in needed}
    assert names == {"_cross_entropy", "_logits_gradient", "_quantize", "_scale"}
    assert len(needed) == 5  # gradients of inputs and weights are scaled in a dtype each
    assert needed <= found


@needs_triton
@pytest.mark.parametrize("task", ["translate", "generate"])
def test_a_bias_needs_as_many_kernels_for_short_sequences_as_a_rotation(task: str) -> None:
    from heed.train.precompile import dry_launch

    counts = []
    for position in ("rope", "t5", "alibi"):
        config = recipe(task, model=SMALL | {"position": position}, data={"max_length": 100})
        kernels = launched(partial(dry_launch.launch_training, config, 90))
        counts.append(sum("short_attention" in str(kernel) for kernel in kernels))
    assert counts[0] > 0
    assert counts == counts[:1] * 3


@needs_triton
@settings(max_examples=12)
@given(
    model=models(),
    task=st.sampled_from(["translate", "generate"]),
    beam=st.sampled_from([1, 4, 5]),
    longest=st.sampled_from([30, 128, 600]),
    prompts=st.lists(st.tuples(st.integers(1, 300), st.integers(1, 600)), min_size=1, max_size=4),
)
def test_prompts_of_every_length_are_decoded_by_known_kernels(
    model: dict[str, Any], task: str, beam: int, longest: int, prompts: list[tuple[int, int]]
) -> None:
    from heed.decode.batch_plan import bucket_size
    from heed.train.precompile import dry_launch

    config = recipe(
        task,
        model=model,
        data={"max_length": longest},
        tokenizer={"vocab_size": 777},
        decode={"beam": beam, "sample": False},
    )

    def decode(hook: Callable[..., bool]) -> None:
        with dry_launch.fake_gpu(90, hook):
            made = dry_launch.build_model(config, 777)
            for size, length in prompts:
                dry_launch.decode_step(made, config.decode, size, bucket_size(min(length, longest)))

    needed = launched(decode)
    found = launched(lambda hook: dry_launch.launch_decoding(config, 90, hook))
    assert needed
    assert needed <= found


@needs_triton
@pytest.mark.parametrize("optimizer", ["adamw", "adam", "muon", "lion"])
@pytest.mark.parametrize("width", [32, 34])
def test_a_step_of_adam_has_two_kernels_whatever_the_model(optimizer: str, width: int) -> None:
    from heed.train.precompile import dry_launch

    model, train = SMALL | {"width": width}, {"optimizer": optimizer}
    config = recipe(model=model, data={"max_length": 32}, train=train)
    kernels = launched(partial(dry_launch.launch_training, config, 90))
    assert sum("adamw" in str(kernel) for kernel in kernels) == (0 if optimizer == "lion" else 2)


@needs_triton
@pytest.mark.parametrize("layers", [1, 12])
@pytest.mark.parametrize("layer_decay", [1.0, 0.9])
def test_matrices_of_all_layers_are_updated_by_known_kernels(
    monkeypatch: pytest.MonkeyPatch, layers: int, layer_decay: float
) -> None:
    from heed.train.precompile import dry_launch

    train = {"optimizer": "muon", "layer_decay": layer_decay}
    config = recipe("translate", model=SMALL | {"layers": layers}, train=train)

    def update(hook: Callable[..., bool]) -> None:
        with monkeypatch.context() as patch, dry_launch.fake_gpu(90, hook):
            patch.setattr(dry_launch, "LAYERS", layers)
            made = dry_launch.build_model(config, 777)
            dry_launch.train_step(made, config, dry_launch.build_batch(config, 2, 8, 8), bf16=True)
            dry_launch.optimizer_step(made, config)

    needed = {kernel for kernel in launched(update) if "muon" in str(kernel)}
    found = launched(lambda hook: dry_launch.launch_training(config, 90, hook))
    assert len(needed) == 5  # for tall matrices and others, and one that normalizes both
    assert needed <= found


COMPILE = """
import json, sys
from types import SimpleNamespace
from triton import knobs
from heed.config import Recipe
from heed.train.precompile import dry_launch, worker

recipe, hits = Recipe.of(json.loads(sys.argv[1])), []
if sys.argv[2] == "ahead":
    hook = worker.CompileHook()
    for work in (dry_launch.launch_training, dry_launch.launch_decoding):
        work(recipe, 90, hook)
        hook.finish()
else:  # as a run does: every kernel launched is looked up, and compiled if it is not found
    knobs.compilation.listener = lambda *, src, cache_hit, **rest: hits.append(cache_hit)
    class LoadingDriver(dry_launch.FakeDriver):
        launcher_cls = lambda *args: lambda *launch: None
        utils = SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": 1 << 20},
            load_binary=lambda *args: (1, 1, 1, 0, 1024),
        )

    dry_launch.FakeDriver = LoadingDriver
    dry_launch.launch_training(recipe, 90, lambda **args: False)
    dry_launch.launch_decoding(recipe, 90, lambda **args: False)
print(json.dumps(hits))
"""


@needs_triton
def test_what_was_compiled_ahead_is_found_on_disk(tmp_path: Path) -> None:
    train = {"optimizer": "muon", "fp8_output": True}
    config = json.dumps(recipe("translate", data={"max_length": 16}, train=train).tables())
    run(COMPILE, tmp_path, config, "ahead")
    found = json.loads(run(COMPILE, tmp_path, config, "then"))
    assert found
    assert all(found)


# ----------------------------------------------------------------------------------------- on a GPU

TRAIN = """
import json, sys, time
from triton import knobs

compiled = []
def listen(*, src, cache_hit, **rest):
    if not cache_hit:
        compiled.append(src.name)
knobs.compilation.listener = listen
from heed.cli.main import app
from heed.evaluate import after_training
from heed.train.precompile import start
from heed.train.prepare.init_from import freeze_and_adapt

evaluate_test = after_training.evaluate_test
def when_all_is_compiled(*args, **options):
    while start._process is not None and not start._process.has_ended:
        time.sleep(0.05)
    evaluate_test(*args, **options)
after_training.evaluate_test = when_all_is_compiled
try:
    app(sys.argv[1:])
finally:
    print(json.dumps(compiled))
"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("position", "optimizer"), [("rope", "adamw"), ("t5", "muon")])
def test_a_fresh_run_compiles_nothing_itself(tmp_path: Path, position: str, optimizer: str) -> None:
    """Nor does decoding after training, once the compile process has ended."""
    changes = {
        **{"data.synthetic": 2000, "data.synthetic_test": 200, "tokenizer.vocab_size": 1200},
        **{"model.position": position, "train.steps": 60, "train.evaluate_every": 30},
        **{"train.optimizer": optimizer, "train.evaluate_test": "true", "decode.beam": 4},
    }
    options = [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
    command = ["train", "demo-translate", *options, "--run", str(tmp_path / "run")]
    said = run(TRAIN, tmp_path / "cache", *command, "--device", "cuda")
    assert json.loads(said.splitlines()[-1]) == []
