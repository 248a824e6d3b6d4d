"""Standard shapes: fixed models and batches, to compare machines and peers."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from heed.bench.flops import count_operations
from heed.bench.timing import Product, Work, side_by_side
from heed.config import Recipe, apply_overrides
from heed.data.batching.batch import Batch
from heed.data.batching.length_buckets import BatchShape
from heed.data.tokenizers.special_tokens import MASK
from heed.device import wants_bf16
from heed.models import Model, build
from heed.train.execution.choose import PlannedWork, build_step
from heed.train.objective import Objective
from heed.train.optimizers.build import CAPTURABLE, OptimizerSettings, build_optimizer, set_lr
from heed.train.state import State

MANY = 10_000
"""Steps that a run of a standard shape is assumed to have, for the choice of execution."""
TURN = 0.2
"""Seconds per turn where several functions are timed alternating."""


@dataclass(frozen=True)
class Setting:
    """A model and a batch without padding; source and target have the same length."""

    name: str
    task: str
    layers: int
    heads: int
    width: int
    vocab: int
    texts: int
    length: int
    dropout: float = 0.0
    position: str = "rope"
    bias: bool = True
    source_vocab: int | None = None
    """Source vocabulary of a translator with separate embeddings; None: one shared table."""

    @property
    def shape(self) -> BatchShape:
        """The shape of its batch."""
        source = self.length if self.task == "translate" else None
        return BatchShape(self.texts, self.length, source)

    @property
    def tokens(self) -> int:
        """Tokens in a batch, source and target."""
        return self.texts * self.length * (2 if self.task == "translate" else 1)

    def recipe(self, changes: Sequence[str] = ()) -> Recipe:
        """The recipe: AdamW, clipped at 1, unless overridden."""
        model = {
            "layers": self.layers,
            "heads": self.heads,
            "width": self.width,
            "dropout": self.dropout,
            "position": self.position,
            "bias": self.bias,
            "max_positions": self.length,
            "activation": "gelu_tanh" if self.task == "generate" else "gelu",
            "tie_embeddings": self.source_vocab is None,
        }
        train = {"schedule": "constant", "lr": 1e-4, "execution": "auto"}
        tables = {"task": self.task, "model": model, "train": train}
        return Recipe.of(apply_overrides(tables, changes))

    def model(self, recipe: Recipe, device: torch.device) -> Model:
        """Its model with random weights."""
        torch.manual_seed(recipe.seed)
        model = build(self.task, recipe.model, vocab=self.vocab, source_vocab=self.source_vocab)
        return model.to(device).train()

    def batch(self, device: torch.device) -> Batch:
        """A batch of random tokens without padding."""
        size = (self.texts, self.length)

        def random(vocab: int) -> torch.Tensor:
            return torch.randint(MASK + 1, vocab, size, generator=generator).to(device)

        generator = torch.Generator().manual_seed(0)
        everywhere = torch.ones(size, dtype=torch.bool, device=device)
        positions = torch.arange(self.length, device=device)[None]
        batch = Batch(
            random(self.vocab),
            random(self.vocab),
            everywhere,
            positions,
            count=self.texts * self.length,
            rows=tuple(range(self.texts)),
        )
        if self.task != "translate":
            return batch
        source = random(self.source_vocab or self.vocab)
        return replace(
            batch, source=source, source_mask=everywhere, source_positions=positions.clone()
        )


GPT2 = Setting(
    "GPT-2 124M", "generate", 12, 12, 768, 50304, 64, 1024, position="learned", bias=False
)
"""Without biases, as nanoGPT trains this shape."""
SETS = {
    number: Setting(f"set {number}", "translate", *shape, 8000, 512, 32, dropout, "sinusoidal")
    for number, shape, dropout in (
        (1, (2, 8, 512), 0.1),
        (2, (4, 8, 512), 0.2),
        (3, (4, 12, 768), 0.2),
        (4, (6, 12, 768), 0.1),
    )
}
"""The translators of the report that heed reproduces: layers, heads, width. Positions are those of
the peers, Marian and nn.Transformer."""
SMALL_LM = Setting("small LM", "generate", 4, 4, 128, 65, 12, 64, position="learned")
SMALL_MT = Setting(
    "small translator", "translate", 4, 8, 512, 8000, 32, 32, dropout=0.1, position="sinusoidal"
)


def with_small_batch(setting: Setting) -> Setting:
    """A setting with batches of 16 sequences, where kernel launches are most of the time."""
    return replace(setting, name=f"{setting.name}, 16 texts", texts=16)


def settings_for(device: torch.device) -> list[Setting]:
    """The settings that `heed bench` measures on a device."""
    if device.type == "cpu":
        return [SMALL_LM, SMALL_MT]
    return [GPT2, *SETS.values(), *map(with_small_batch, SETS.values())]


@dataclass
class Trainee:
    """A model with its training step, as in a run."""

    model: Model
    update: Callable[[list[Batch]], None]
    messages: list[str]
    """Messages about the chosen execution, and why."""


def build_trainee(
    setting: Setting, recipe: Recipe, batch: Batch, *, device: torch.device, bf16: bool
) -> Trainee:
    """The model and step of a run of this recipe, for one batch shape."""
    model = setting.model(recipe, device)
    return train_in_run(model, recipe, [setting.shape], batch, device=device, bf16=bf16)


def train_in_run(
    model: Model,
    recipe: Recipe,
    shapes: list[BatchShape],
    example: Batch,
    *,
    device: torch.device,
    bf16: bool,
) -> Trainee:
    """A model with the step that a run of this recipe has for batches of these shapes."""
    train = recipe.train
    rule = OptimizerSettings(name=train.optimizer, lr=train.lr, weight_decay=train.weight_decay)
    captures = device.type == "cuda" and train.optimizer in CAPTURABLE
    optimizer = build_optimizer(model, rule, lr_tensor=captures)
    state = State(model, optimizer, device, ema_decay=train.ema)
    messages: list[str] = []
    ahead = PlannedWork(train.steps or MANY, shapes, example)
    objective = Objective(
        model,
        label_smoothing=train.label_smoothing,
        rdrop=train.rdrop,
        fp8_output=train.fp8_output,
    )
    step = build_step(recipe, objective, state, ahead, bf16=bf16, say=messages.append)

    def update(batches: list[Batch]) -> None:
        set_lr(optimizer, train.lr, 1.0)
        step(batches)

    return Trainee(model, update, messages)


@dataclass(frozen=True)
class StandardFigures:
    """The figures of one standard shape."""

    name: str
    speed: str
    updates_per_second: float
    tokens_per_second: float
    """Source and target; there is no padding."""
    target_tokens_per_second: float
    tflops: float
    peak_tflops: float
    """Of a large matrix product, timed alternating with the steps."""
    share_of_peak: float
    memory: int | None
    """Peak bytes that this model added; None on a CPU, where it cannot be separated."""


def measure(
    setting: Setting,
    changes: Sequence[str],
    *,
    device: torch.device,
    rounds: int | None = None,
) -> StandardFigures:
    """Time complete training steps of a setting; the median over rounds."""
    recipe = setting.recipe(changes)
    bf16 = wants_bf16(recipe.train.precision, device)
    batch = setting.batch(device)
    before = _reset_peak_memory(device)
    ours = build_trainee(setting, recipe, batch, device=device, bf16=bf16)
    ours.update([batch])
    memory = None if before is None else torch.cuda.max_memory_allocated(device) - before
    product = Product.on(device, torch.bfloat16 if bf16 else torch.float32)
    contenders: dict[str, Work] = {"heed": lambda: ours.update([batch]), "peak": product.run}
    turn = TURN if rounds is None else 0.0
    rounds = rounds or (10 if device.type == "cuda" else 5)
    medians = side_by_side(contenders, device=device, rounds=rounds, turn=turn)
    rate = 1 / medians["heed"]
    peak = product.operations / medians["peak"]
    flops = count_operations(ours.model, setting.shape).needed * rate
    return StandardFigures(
        setting.name,
        describe_execution(ours.messages, recipe),
        rate,
        rate * setting.tokens,
        rate * setting.texts * setting.length,
        flops / 1e12,
        peak / 1e12,
        flops / peak,
        memory,
    )


def describe_execution(messages: Sequence[str], recipe: Recipe) -> str:
    """How steps are executed and why, from the messages; without one, the recipe decides."""
    why = " ".join(line for line in messages if line.startswith("Execution"))
    if not why and recipe.train.execution != "auto":
        why = f"Execution: {recipe.train.execution}, as in the recipe."
    return why or "Execution: eager."


def _reset_peak_memory(device: torch.device) -> int | None:
    """Free memory of earlier measurements, reset the peak; the bytes still in use on a GPU."""
    gc.collect()
    torch.compiler.reset()  # what other shapes compiled would count towards its limit
    if device.type != "cuda":
        return None
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)
