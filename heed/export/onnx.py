"""A model as ONNX graphs, for onnxruntime and whatever else reads them.

| task       | graph          | reads                            | gives                       |
|------------|----------------|----------------------------------|-----------------------------|
| translate  | `encoder.onnx` | `source`, `mask`                 | `cross`                     |
|            | `decoder.onnx` | `target`, `mask`, `cross`, `past`| `logits`, `present`         |
| generate   | `model.onnx`   | `ids`, `mask`, `past`            | `logits`, `present`         |
| classify   | `model.onnx`   | `ids`, `mask`                    | `logits`                    |

`past` are the keys and values of all tokens so far, none at first, and `present` is what `past` is
to be at the next step. Every size may be another at each call, but for the model's own. Attention
is the plain formula. `config.json` says what a program has to know beside that.

Shapes: b batch, n tokens, m source tokens, p past tokens, g key and value heads, d head width.
"""

from __future__ import annotations

import json
import logging
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from heed.config import ModelConfig
from heed.errors import ConfigError, RunError
from heed.models import LanguageModel, Model, Translator
from heed.nn.cache import Cache, LayerCache
from heed.nn.kernels import dispatch
from heed.nn.masks import count_positions
from heed.nn.positions import Rope
from heed.nn.stack import Block, Stack
from heed.nn.tokens import Tokens
from heed.runs.run import Run
from heed.train import run as train_run

NEEDED = ("onnx", "onnxscript")
BATCH, LENGTH, SOURCE, PAST = 2, 3, 5, 4
"""Sizes of what is read to trace a model: any will do, but no two alike, and none below two."""

Held = list[Tensor]
"""Keys and values by layer: k, v, k, v, …"""


def export(run: Path, folder: Path) -> None:
    """Write a run's model, its tokenizer and what a program must know of both."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        what = f"{' and '.join(missing)}: not installed."
        raise RunError(what, todo="Install what is missing: pip install heed[onnx]")
    model, tokenizer, recipe = train_run.load(run, device="cpu")
    found = complaints(model.config, causal=causal(model))
    if found:
        raise ConfigError(found, where=str(run))
    for graph in graphs(plain(model.eval())):
        save(graph, folder / f"{graph.name}.onnx")
    tokenizer.save(folder / "tokenizer.json")
    facts = {"task": recipe.task, **_facts(model), "max_length": recipe.data.max_length}
    facts |= {"ids": asdict(tokenizer.specials), "unwritten": tokenizer.specials.unwritten}
    (folder / "config.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    classes = Run(run).classes_path
    if classes.exists():
        shutil.copy(classes, folder)


def complaints(config: ModelConfig, *, causal: bool) -> list[str]:
    """What of such a model a graph cannot hold, key by key."""
    if config.family != "transformer":
        return [f"model.family = {config.family!r}: only Transformers are exported to ONNX."]
    found = []
    acts = config.merge_when == "always"
    if acts and config.merge == "shuffle":
        found.append("model.merge = 'shuffle': it draws at every call, and a graph draws nothing.")
    if acts and causal and config.over != "token":
        found.append(f"model.over = {config.over!r}: a step with a cache sees no {config.over}.")
    return found


def causal(model: Model) -> bool:
    """Whether a model writes, token by token."""
    return isinstance(model, Translator) or (isinstance(model, LanguageModel) and model.causal)


# ------------------------------------------------------------------------------- parts of a model


class Given(LayerCache):
    """Keys and values that came in from outside, and what follows them."""

    def __init__(self, k_bgpd: Tensor, v_bgpd: Tensor) -> None:
        super().__init__()
        self.held = [k_bgpd, v_bgpd]

    @property
    def filled(self) -> bool:
        """They are there, be they none."""
        return True

    def append(self, k_bgnd: Tensor, v_bgnd: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values so far."""
        self.held = [
            torch.cat(pair, dim=2) for pair in zip(self.held, (k_bgnd, v_bgnd), strict=True)
        ]
        return self.read()

    def read(self) -> tuple[Tensor, Tensor]:
        """As they are now."""
        k, v = self.held
        return k, v


def _layers(name: str, held: Held) -> dict[str, LayerCache]:
    return {f"{i}.{name}": Given(*held[2 * i : 2 * i + 2]) for i in range(len(held) // 2)}


def _held(cache: Cache) -> Held:
    """The keys and values of self-attention, layer by layer."""
    return [x for name, layer in cache.layers.items() if "self" in name for x in layer.read()]


class Encoder(nn.Module):
    """A source, as the keys and values that each of the decoder's layers attends to."""

    def __init__(self, model: Translator) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, mask: Tensor) -> Held:
        """From ids [b, m] with their end mark, and which of them are real."""
        tokens, decoder = Tokens.of(source, mask=mask), cast(Stack, self.model.decoder)
        memory = self.model.encode(source, tokens, weights=True).x_bnw
        out, at = [], tokens.positions_bn
        for block in decoder.blocks:
            cross = cast(Block, block).cross
            k, v = dispatch.split(cross.kv(memory), (cross.kv_heads,) * 2, cross.head_width)
            _, k = decoder.cross_position.rotate(k, cross.k_norm(k), at, at)
            out += [k, v]
        return out


class Decoder(nn.Module):
    """What follows some target tokens, after those that are past."""

    def __init__(self, model: Translator) -> None:
        super().__init__()
        self.model = model

    def forward(self, target: Tensor, mask: Tensor, cross: Held, past: Held) -> tuple[Tensor, Held]:
        """From new target ids [b, n] and the source's mask [b, m]; the first id begins a text."""
        p, n = past[0].shape[2], target.shape[1]
        cache = Cache(layers=_layers("cross", cross) | _layers("self", past))
        cache.tokens = Tokens(torch.arange(p)[None])
        new, source = Tokens(torch.arange(p, p + n)[None]), Tokens.of(mask, mask=mask)
        # Of the encoded source only its length is asked for: keys and values are there.
        out = self.model.decode(target, new, mask, source, cache=cache, weights=True)
        return self.model.head(out.x_bnw), _held(cache)


class Writer(nn.Module):
    """What a language model says follows some tokens, after those that are past."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor, past: Held) -> tuple[Tensor, Held]:
        """From new ids [b, n] and a mask of all tokens so far [b, p + n]: prompts may be padded."""
        p, at = past[0].shape[2], count_positions(mask)
        cache = Cache(layers=_layers("self", past), tokens=Tokens(at[:, :p], mask[:, :p]))
        told = Tokens(at[:, p:], mask[:, p:])
        out = self.model.stack(self.model.embedding(ids), told, cache=cache, weights=True)
        return self.model.head(out.x_bnw), _held(cache)


class Whole(nn.Module):
    """What a classifier or a masked language model says of texts that it reads at once."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor | None = None) -> Tensor:
        """From ids [b, n], which of them are real, and their types where a model tells those."""
        logits: Tensor = self.model.trace(ids, mask=mask, types=types).logits
        return logits


# ------------------------------------------------------------------------------------- the graphs


@dataclass(frozen=True)
class Graph:
    """A part of a model, and what goes in and comes out."""

    name: str
    part: nn.Module
    inputs: dict[str, Tensor | Held]
    sizes: dict[str, dict[int, str]]
    """Of each input, which sizes may change, and what they are called."""
    outputs: list[str]

    def input_names(self) -> list[str]:
        """One a tensor: those of a layer are named after it."""
        return [one for name, x in self.inputs.items() for one in _numbered(name, x)]


def graphs(model: Model) -> Iterator[Graph]:
    """What a model becomes, with something to read for each part."""
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    read = {0: "batch", 1: "source"}
    held = {0: "batch", 2: "past"}
    past = _some(model, PAST)
    if isinstance(model, Translator):
        source = torch.zeros(BATCH, SOURCE, dtype=torch.long)
        mask, cross = torch.ones_like(source, dtype=torch.bool), _some(model, SOURCE)
        yield Graph(
            "encoder",
            Encoder(model),
            {"source": source, "mask": mask},
            {"source": read, "mask": read},
            _numbered("cross", cross),
        )
        yield Graph(
            "decoder",
            Decoder(model),
            {"target": ids, "mask": mask, "cross": cross, "past": past},
            {
                "target": {0: "batch", 1: "target"},
                "mask": read,
                "cross": {0: "batch", 2: "source"},
                "past": held,
            },
            ["logits", *_numbered("present", past)],
        )
    elif isinstance(model, LanguageModel) and model.causal:
        so_far = torch.ones(BATCH, PAST + LENGTH, dtype=torch.bool)
        yield Graph(
            "model",
            Writer(model),
            {"ids": ids, "mask": so_far, "past": past},
            {"ids": {0: "batch", 1: "new"}, "mask": {0: "batch", 1: "all"}, "past": held},
            ["logits", *_numbered("present", past)],
        )
    else:
        inputs: dict[str, Tensor | Held] = {"ids": ids, "mask": torch.ones_like(ids).bool()}
        inputs |= {"types": ids.clone()} if model.config.token_types else {}
        size = {0: "batch", 1: "length"}
        yield Graph("model", Whole(model), inputs, dict.fromkeys(inputs, size), ["logits"])


def _some(model: Model, length: int) -> Held:
    """Keys and values of so many tokens, of no meaning."""
    heads, width, layers = (_facts(model)[key] for key in ("kv_heads", "head_width", "layers"))
    return [torch.zeros(BATCH, heads, length, width) for _ in range(2 * layers)]


def _numbered(name: str, x: Tensor | Held) -> list[str]:
    if isinstance(x, Tensor):
        return [name]
    return [f"{name}.{i // 2}.{'key' if i % 2 == 0 else 'value'}" for i in range(len(x))]


def _facts(model: Model) -> dict[str, Any]:
    """What a program must know to run the graphs; of a translator's layers, the decoder's."""
    config = model.config
    translates = isinstance(model, Translator) and config.decoder_layers
    return {
        "layers": config.decoder_layers if translates else config.layers,
        "kv_heads": config.kv_heads or config.heads,
        "head_width": config.head_width or config.width // config.heads,
        "vocab": model.embedding.table.num_embeddings,
    }


class Turn(Rope):
    """RoPE with frequencies as they are: ONNX cannot read the bits of a number as another's."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.register_buffer("plain", super().frequencies().clone(), persistent=False)
        self.plain: Tensor

    def frequencies(self) -> Tensor:
        """base^(-2i/d)."""
        return self.plain


def plain(model: Model) -> Model:
    """The same model, without what ONNX has no word for."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Rope):
                module.add_module(name, Turn(model.config))
    return model


def save(graph: Graph, path: Path) -> None:
    """Trace a part of a model, and write it."""
    shapes = {
        name: graph.sizes[name] if isinstance(x, Tensor) else [graph.sizes[name]] * len(x)
        for name, x in graph.inputs.items()
    }
    with torch.no_grad(), _quiet():
        program = torch.onnx.export(
            graph.part.eval(),
            kwargs=graph.inputs,
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=graph.input_names(),
            output_names=graph.outputs,
            verbose=False,
        )
        if program is None:
            raise RuntimeError("The exporter gave nothing.")
        program.save(str(path))


@contextmanager
def _quiet() -> Iterator[None]:
    """What the exporter's parts have to say to each other is nothing to a user."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
