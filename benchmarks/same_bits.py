"""Hashes of the numbers that models compute on a CPU: a refactoring must not change one of them.

    python benchmarks/same_bits.py record FILE.json    compute all hashes and write them
    python benchmarks/same_bits.py compare FILE.json   compute them again; exit 1 on a difference

Small models of every task, position encoding and norm placement, and of further options, give these
groups of hashes:

    logits                of a padded batch, in evaluation mode
    trace                 every attention weight and hidden state of that batch
    gradients             of all parameters, in training mode with dropout
    probabilities         of a classifier, sentence by sentence
    cache                 logits of a decoder that reads chunk by chunk with a cache
    greedy, beam,         token ids and scores of each search; coverage is beam search with a
      coverage, sample      coverage penalty
    weights, metrics      of 50 steps of `heed train`

Names of parameters and modules are not hashed; the order of a model's parameters is. Hashes depend
on the CPU and on the version of torch, so the file records both.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy
import tokenizers
import torch
import torch.nn.functional as F
from common import machine
from safetensors.torch import load_file
from torch import Tensor

from heed.cli.main import app
from heed.config import ModelConfig
from heed.decode.beam import Beam
from heed.decode.greedy import Greedy
from heed.decode.sampling import Sample
from heed.decode.search import Search
from heed.decode.strategy import Hypothesis, Strategy
from heed.models import Classifier, LanguageModel, Model, Translator, build
from heed.nn.cache import Cache

# ----------------------------------------------------------------- keys and values of recipes

Settings = dict[str, Any]
Hashes = dict[str, dict[str, str]]
TASKS = ("translate", "classify", "generate")
SIZE: Settings = {
    "layers": 2,
    "width": 32,
    "heads": 4,
    "feed_forward": 48,
    "dropout": 0.1,
    "max_positions": 64,
    "shaw_clip": 3,
    "t5_buckets": 8,
    "t5_distance": 20,
}
POSITIONS = ("sinusoidal", "learned", "shaw", "t5", "alibi", "rope", "none")
GRID: dict[str, Settings] = {
    f"{position}/{norm}": {"position": position, "norm_place": norm}
    for position, norm in product(POSITIONS, ("pre", "post"))
}
OPTIONS: dict[str, Settings] = {
    "concat": {"position": "rope", "merge": "concat"},
    "shift": {"position": "alibi", "merge": "shift"},
    "reweight": {"position": "t5", "merge": "reweight"},
    "shuffle": {"position": "learned", "merge": "shuffle"},
    "lstm": {"family": "lstm"},
    "lstm-untied": {"family": "lstm", "embedding_width": 20, "tie_embeddings": False},
    "kv-heads": {"position": "rope", "kv_heads": 2},
    "qk-norm": {"position": "rope", "qk_norm": True},
    "tied": {"position": "sinusoidal", "tie_embeddings": True},
    "untied": {"position": "sinusoidal", "tie_embeddings": False},
    "shaw-values": {"position": "shaw", "shaw_values": True},
    "swiglu-rms": {"position": "rope", "norm": "rms", "activation": "swiglu", "bias": False},
    "head-width": {"position": "t5", "head_width": 6, "scale": 0.3},
    "attention-dropout": {"position": "alibi", "attention_dropout": 0.1},
    "bert": {
        "position": "learned",
        "embedding_norm": True,
        "lm_head_transform": True,
        "lm_head_bias": True,
    },
}
"""Options of every task."""
TASK_OPTIONS: dict[str, Settings] = {
    "translate/cross-rope": {"position": "rope", "cross_position": True},
    "translate/cross-shaw": {"position": "shaw", "cross_position": True},
    "translate/cross-t5": {"position": "t5", "cross_position": True, "decoder_layers": 1},
    "classify/over-sequence": {"merge": "reweight", "reweight_over": "sequence"},
    "classify/over-batch": {"merge": "reweight", "reweight_over": "batch"},
    "classify/pool-first": {"pooling": "first", "pooler": True},
    "classify/pool-max": {"pooling": "max", "classifier_hidden": 12},
    "classify/pool-attention": {"pooling": "attention"},
    "classify/ngrams": {"ngrams": 3, "ngram_buckets": 100},
}
TRAIN_COMMAND = "train demo-{task} --device cpu --threads 1"
TRAIN = """
    model.layers=1 model.width=32 model.heads=2 model.feed_forward=64 model.dropout=0.1
    data.synthetic=400 data.synthetic_test=40 data.max_length=64 tokenizer.vocab_size=300
    train.steps=50 train.warmup=10 train.batch_tokens=512 train.precision=float32
    train.log_every=1 train.evaluate_every=25
"""
TRAIN_OPTIONS: dict[str, str] = {
    "translate/bf16": "train.precision=bf16",
    "classify/bf16": "train.precision=bf16",
    "generate/bf16": "train.precision=bf16",
    "translate/lstm": "model.family=lstm",
    "translate/shuffle": "model.merge=shuffle",
    "translate/rdrop": "train.rdrop=5 train.label_smoothing=0.1",
    "translate/directions": "data.bidirectional=true data.denoise=0.5 "
    "train.source_token_dropout=0.1",
    "translate/bpe-dropout": "tokenizer.dropout=0.1",
    "translate/averages": "train.ema=0.9 train.average_checkpoints=2 train.accumulate=2",
    "translate/bleu": "train.evaluate_bleu=true train.best_metric=dev/bleu",
    "classify/ngrams": "model.ngrams=2 model.ngram_buckets=500 model.ngram_log_count_ratio=1",
    "classify/balanced": "train.class_weights=balanced train.token_dropout=0.1",
    "classify/layer-decay": "train.layer_decay=0.8 train.schedule=wsd",
    "generate/masked": "train.objective=masked data.pack=false",
    "generate/blocks": "data.windows=random data.pack=false",
} | {
    f"generate/{name}": f"train.optimizer={name}"
    for name in ("adam", "sgd", "adagrad", "adafactor", "lion", "muon")
}
WEIGHTS, METRICS, CACHE_VARIABLE = "model.safetensors", "metrics.jsonl", "HEED_CACHE"
MEASURED = ("loss", "accuracy", "bleu", "lr")
"""Keys of a line of metrics whose values are hashed; none depends on the clock."""

# ------------------------------------------------------------------------------- models and batches

VOCAB, CLASSES = 37, 5
FIRST_TOKEN = 5
"""Ids below it are special tokens."""
CHUNKS = (4, 1, 1, 3, 1, 1, 1, 1)
"""Numbers of tokens that a cached decoder reads at a time."""
STRATEGIES: dict[str, Strategy] = {
    "greedy": Greedy(),
    "beam": Beam(4, nbest=2),
    "coverage": Beam(4, nbest=2, coverage_penalty=0.3),
    "sample": Sample(2, temperature=0.9, top_k=20, top_p=0.95, seed=1),
}


def random_ids(*lengths: int, seed: int) -> list[Tensor]:
    """Sequences of random ids, without special tokens."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(FIRST_TOKEN, VOCAB, (n,), generator=generator) for n in lengths]


def pad(sequences: Sequence[Tensor], left: Sequence[int], width: int) -> tuple[Tensor, Tensor]:
    """Ids [b, width] and the mask of real tokens; each sequence after `left` padding tokens."""
    ids = torch.zeros(len(sequences), width, dtype=torch.long)
    mask = torch.zeros(len(sequences), width, dtype=torch.bool)
    for row, (sequence, start) in enumerate(zip(sequences, left, strict=True)):
        ids[row, start : start + len(sequence)] = sequence
        mask[row, start : start + len(sequence)] = True
    return ids, mask


IDS, MASK = pad(random_ids(5, 13, 3, 9, 0, seed=1), left=(6, 0, 2, 4, 0), width=13)
SOURCE, SOURCE_MASK = pad(random_ids(3, 10, 0, 4, 6, seed=2), left=(1, 0, 0, 2, 5), width=11)
"""Padded on both sides; one sequence and one source have no token at all."""
TARGETS = torch.randint(VOCAB, IDS.shape, generator=torch.Generator().manual_seed(3))
PROMPTS = [x.tolist() for x in random_ids(*(3 + 5 * i % 23 for i in range(24)), seed=4)]
"""Sequences to search from: enough of them that beam search prepacks the weights."""


@dataclass(frozen=True)
class Case:
    """One model, and whether it runs under bfloat16 autocast."""

    label: str
    task: str
    settings: Settings
    autocast: bool = False

    def build(self) -> Model:
        """The model, every parameter moved by noise, so that no initial zero hides a term."""
        torch.manual_seed(0)
        classes = CLASSES if self.task == "classify" else None
        config = ModelConfig(**(SIZE | self.settings))
        model = build(self.task, config, vocab=VOCAB, classes=classes)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        return model.eval()


def model_cases() -> Iterator[Case]:
    """Every task with the grid of positions and norms, the options, and bfloat16 autocast."""
    for task in TASKS:
        for label, settings in (GRID | OPTIONS).items():
            yield Case(f"{task}/{label}", task, settings)
        for position in POSITIONS:
            settings = GRID[f"{position}/pre"]
            yield Case(f"{task}/{position}/bf16", task, settings, autocast=True)
    for label, settings in TASK_OPTIONS.items():
        yield Case(label, label.split("/")[0], settings)


# --------------------------------------------------------------------------------- what is computed


def digest(tensors: Iterable[Tensor]) -> str:
    """The first 16 hexadecimal digits of SHA-256 over dtypes, shapes and raw bytes."""
    total = sha256()
    for tensor in tensors:
        flat = tensor.detach().contiguous().reshape(-1)
        total.update(f"{tensor.dtype} {list(tensor.shape)} ".encode())
        total.update(flat.view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:16]


def forward(model: Model) -> Tensor:
    """Logits of the padded batch, differentiable."""
    if isinstance(model, Translator):
        return model(SOURCE, IDS, mask=SOURCE_MASK, target_mask=MASK)
    return model(IDS, mask=MASK)


@torch.no_grad()
def logits(model: Model) -> list[Tensor]:
    """Logits of the padded batch."""
    return [forward(model)]


def gradients(model: Model) -> Sequence[Tensor]:
    """Gradients of the cross-entropy of random targets, in the order of `parameters()`."""
    out = forward(model.train()).float()
    if isinstance(model, Classifier):
        loss = F.cross_entropy(out, TARGETS[:, 0] % CLASSES)
    else:
        loss = F.cross_entropy(out[MASK], TARGETS[MASK])
    parameters = list(model.parameters())
    return torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)


@torch.no_grad()
def trace(model: Model) -> list[Tensor]:
    """Logits, attention weights and hidden states of the padded batch."""
    if isinstance(model, Translator):
        traced = model.trace(SOURCE, IDS, mask=SOURCE_MASK, target_mask=MASK)
    else:
        traced = model.trace(IDS, mask=MASK)
    weights = [*traced.encoder, *traced.decoder, *traced.cross]
    hidden = [x for states in traced.hidden.values() for x in states]
    return [traced.logits, *weights, *hidden]


@torch.no_grad()
def cached_logits(model: Translator | LanguageModel) -> Iterator[Tensor]:
    """Logits of each chunk of the padded batch; a translator's source is given once."""
    cache = Cache()
    source: Tensor | None = SOURCE
    for ids, mask in zip(IDS.split(CHUNKS, dim=1), MASK.split(CHUNKS, dim=1), strict=True):
        if isinstance(model, Translator):
            yield model(source, ids, mask=SOURCE_MASK, target_mask=mask, cache=cache)
            source = None
        else:
            yield model(ids, mask=mask, cache=cache)


@torch.no_grad()
def probabilities(model: Classifier) -> list[Tensor]:
    """Class probabilities of each sentence alone, without padding."""
    return [model(torch.tensor([ids])).softmax(dim=-1) for ids in PROMPTS]


def search(model: Translator | LanguageModel, strategy: Strategy) -> Iterator[Tensor]:
    """Token ids and scores of all hypotheses."""
    searching = Search([model], strategy)
    results: list[list[Hypothesis]]
    if isinstance(model, Translator):
        results = searching.translate(PROMPTS)
    else:
        results = searching.generate(PROMPTS, max_tokens=20)
    for hypothesis in chain.from_iterable(results):
        yield torch.tensor(hypothesis.ids, dtype=torch.long)
        yield torch.tensor([hypothesis.score, hypothesis.logprob], dtype=torch.float64)


def model_hashes(case: Case) -> Iterator[tuple[str, str]]:
    """Group and hash of everything that one model computes, each from the same random state."""
    model = case.build()

    def hashed(compute: Callable[[Any], Iterable[Tensor]]) -> str:
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16, enabled=case.autocast):
            return digest(compute(model))

    yield "logits", hashed(logits)
    yield "trace", hashed(trace)
    if isinstance(model, Classifier):
        yield "probabilities", hashed(probabilities)
    elif not case.autocast:
        yield "cache", hashed(cached_logits)
        for name, strategy in STRATEGIES.items():
            if isinstance(model, Translator) or name != "coverage":
                yield name, hashed(partial(search, strategy=strategy))
    yield "gradients", hashed(gradients)


# ----------------------------------------------------------------------------------- training runs


def training_cases() -> Iterator[tuple[str, str]]:
    """Label and changed recipe keys of each training run; the label begins with the task."""
    for task, (label, settings) in product(TASKS, GRID.items()):
        yield f"{task}/{label}", " ".join(f"model.{key}={settings[key]}" for key in settings)
    yield from TRAIN_OPTIONS.items()


def training_hashes(label: str, changes: str) -> Iterator[tuple[str, str]]:
    """Hashes of the final weights and of the metrics of one `heed train` in this process."""
    with tempfile.TemporaryDirectory() as folder:
        run, output = Path(folder) / "run", io.StringIO()
        command = [*TRAIN_COMMAND.format(task=label.split("/")[0]).split(), "--run", str(run)]
        for change in (TRAIN + changes).split():
            command += ["--set", change]
        os.environ[CACHE_VARIABLE] = str(Path(folder) / "cache")
        try:
            with redirect_stdout(output), redirect_stderr(output):
                app(command, standalone_mode=False)
        except BaseException:
            print(output.getvalue(), file=sys.stderr)
            raise
        weights = load_file(run / WEIGHTS).values()
        lines = (run / METRICS).read_text(encoding="utf-8").splitlines()
    # The order in the file follows from the names of the tensors, so they are sorted by content.
    yield "weights", digest(sorted(weights, key=lambda x: (list(x.shape), x.numpy().tobytes())))
    numbers = [x for line in lines for x in measured(json.loads(line))]
    yield "metrics", digest([torch.tensor(numbers, dtype=torch.float64)])


def measured(line: Settings) -> Iterator[float]:
    """The numbers of one line of metrics: its own, then those of each evaluated set."""
    yield from (line[key] for key in MEASURED if key in line)
    for value in line.values():
        if isinstance(value, dict):
            yield from measured(value)


# ------------------------------------------------------------------------------ record and compare


def environment() -> dict[str, Any]:
    """Versions and hardware that the bits depend on."""
    info = machine("cpu")
    return {
        "torch": info["torch"],
        "numpy": numpy.__version__,
        "tokenizers": tokenizers.__version__,
        "cpu": info["cpu"],
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": info["threads"],
    }


def compute() -> Hashes:
    """All hashes, by group and label."""
    hashes: Hashes = {}
    for case in model_cases():
        for group, value in model_hashes(case):
            hashes.setdefault(group, {})[case.label] = value
    for label, changes in training_cases():
        for group, value in training_hashes(label, changes):
            hashes.setdefault(group, {})[label] = value
    return hashes


def compare(recorded: Hashes, computed: Hashes) -> bool:
    """Print each group as same or different; whether all hashes are the same."""
    same = True
    for group in [*recorded, *(name for name in computed if name not in recorded)]:
        before, now = recorded.get(group, {}), computed.get(group, {})
        labels = list(before | now)
        changed = [label for label in labels if before.get(label) != now.get(label)]
        verdict, count = ("different", len(changed)) if changed else ("same", len(labels))
        print(f"{group:14}{verdict:10}{count:4} of {len(labels)}")
        for label in changed:
            print(f"  {label}: {before.get(label, 'missing')} -> {now.get(label, 'missing')}")
        same = same and not changed
    return same


def main() -> None:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("file", type=Path, help="JSON file of hashes.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    here = environment()
    if arguments.action == "record":
        document = {"environment": here, "hashes": (hashes := compute())}
        arguments.file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"{sum(map(len, hashes.values()))} hashes in {len(hashes)} groups")
        return
    document = json.loads(arguments.file.read_text(encoding="utf-8"))
    for key, value in here.items():
        if (before := document["environment"].get(key)) != value:
            print(f"warning: {key} is {value!r}, was {before!r}: hashes may differ by that alone.")
    sys.exit(0 if compare(document["hashes"], compute()) else 1)


if __name__ == "__main__":
    main()
