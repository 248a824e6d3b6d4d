"""Export a model as ONNX graphs, for onnxruntime and other ONNX runtimes.

| task       | graph          | inputs                           | outputs                     |
|------------|----------------|----------------------------------|-----------------------------|
| translate  | `encoder.onnx` | `source`, `mask`                 | `cross`                     |
|            | `decoder.onnx` | `target`, `mask`, `cross`, `past`| `logits`, `present`         |
| generate   | `model.onnx`   | `ids`, `mask`, `past`            | `logits`, `present`         |
| classify   | `model.onnx`   | `ids`, `mask`                    | `logits`                    |

`past` holds the keys and values of all tokens so far, empty at first; `present` is the `past` of
the next step. All sizes may change from call to call, except those of the model. Attention is the
plain formula. `config.json` has the sizes and token ids that a program needs to run the graphs.

Shapes: b batch, n tokens, m source tokens, p past tokens, g key and value heads, d head width.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from heed.config import ModelConfig
from heed.errors import RunError, install_hint
from heed.export.calibrated_logits import apply_calibration
from heed.models import LanguageModel, Model, Translator
from heed.nn.attention import MultiHeadAttention
from heed.nn.cache import Cache, LayerCache
from heed.nn.masks import count_positions
from heed.nn.positions import Rope
from heed.nn.stack import Block, Stack
from heed.nn.tokens import Tokens
from heed.runs.labels import Classes
from heed.runs.load import load_run
from heed.runs.run import Run

REQUIRED_PACKAGES = ("onnx", "onnxscript")
BATCH, LENGTH, SOURCE, PAST = 2, 3, 5, 4
"""Sizes of the example inputs for tracing. They must differ, since the exporter would unify equal
sizes, and be at least 2, since it would fix a size of 1."""

KeyValues = list[Tensor]
"""Keys and values by layer: k, v, k, v, …"""


def export(run: Path, folder: Path) -> None:
    """Write a run's model as graphs, its tokenizer, and config.json with sizes and token ids."""
    missing = [name for name in REQUIRED_PACKAGES if find_spec(name) is None]
    if missing:
        what = f"{' and '.join(missing)}: not installed."
        raise RunError(what, todo=install_hint("onnx"))
    model, tokenizer, recipe = load_run(run, device="cpu")
    unsupported = find_unsupported(model.config, causal=is_generative(model))
    if unsupported:
        raise RunError(" ".join(unsupported), where=str(run))
    apply_calibration(Run(run), model, folder)
    for graph in graphs(make_exportable(model.eval())):
        save(graph, folder / f"{graph.name}.onnx")
    tokenizer.save(folder / "tokenizer.json")
    config = {"task": recipe.task, **_model_sizes(model), "max_length": recipe.data.max_length}
    config |= {
        "ids": asdict(tokenizer.specials),
        "suppressed_ids": tokenizer.specials.suppressed_ids,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    if (classes := Classes.read(Run(run))) is not None:
        replace(classes, calibrated=False).save(Run(folder))


def find_unsupported(config: ModelConfig, *, causal: bool) -> list[str]:
    """The recipe keys of a model that an ONNX graph cannot express, as sentences."""
    if config.family != "transformer":
        return [f"model.family = {config.family!r}: only Transformers are exported to ONNX."]
    unsupported = []
    if causal and config.kept_heads:
        unsupported.append(
            "model.kept_heads: the graphs of a step need the same number of heads in every layer; "
            "this run is pruned."
        )
    active = config.merge_when == "always"
    if active and causal and config.reweight_over != "token":
        unsupported.append(
            f"model.reweight_over = {config.reweight_over!r}: a step with a cache sees one token."
        )
    return unsupported


def is_generative(model: Model) -> bool:
    """Whether a model generates token by token."""
    return isinstance(model, Translator) or (isinstance(model, LanguageModel) and model.causal)


# ------------------------------------------------------------------------- modules to be traced


class FixedCache(LayerCache):
    """A layer cache whose keys and values are graph inputs; new ones are appended."""

    def __init__(self, k_bgpd: Tensor, v_bgpd: Tensor) -> None:
        super().__init__()
        self.key_values = [k_bgpd, v_bgpd]

    @property
    def filled(self) -> bool:
        """Always true: the inputs are the cache, even when it has no tokens yet."""
        return True

    def append(self, k_bgnd: Tensor, v_bgnd: Tensor) -> tuple[Tensor, Tensor]:
        """Append new keys and values; returns all of them."""
        self.key_values = [
            torch.cat(pair, dim=2) for pair in zip(self.key_values, (k_bgnd, v_bgnd), strict=True)
        ]
        return self.read()

    def read(self) -> tuple[Tensor, Tensor]:
        """All keys and values."""
        k, v = self.key_values
        return k, v


def _layer_caches(name: str, key_values: KeyValues) -> dict[str, LayerCache]:
    return {
        f"{i}.{name}": FixedCache(*key_values[2 * i : 2 * i + 2])
        for i in range(len(key_values) // 2)
    }


def _self_attention_kv(cache: Cache) -> KeyValues:
    """The keys and values of self-attention by layer: k, v, k, v, …"""
    return [x for name, layer in cache.layers.items() if "self" in name for x in layer.read()]


class Encoder(nn.Module):
    """The encoder, and the keys and values of the decoder's cross-attention layers."""

    def __init__(self, model: Translator) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, mask: Tensor) -> KeyValues:
        """From source ids [b, m], ending in <eos>, and their mask (True = a real token)."""
        tokens, decoder = Tokens.of(source, mask=mask), cast(Stack, self.model.decoder)
        memory = self.model.encode(source, tokens, weights=True).x_bnw
        out, at = [], tokens.positions_bn
        for block in decoder.blocks:
            cross = cast(MultiHeadAttention, cast(Block, block).cross)
            k, v = cross.project_source(memory)
            _, k = decoder.cross_position.rotate(k, k, at, at)
            out += [k, v]
        return out


class Decoder(nn.Module):
    """A decoding step of a translator: logits after new target tokens, given those in `past`."""

    def __init__(self, model: Translator) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, target: Tensor, mask: Tensor, cross: KeyValues, past: KeyValues
    ) -> tuple[Tensor, KeyValues]:
        """From new target ids [b, n] and the source mask [b, m]; the first id of all is <bos>."""
        p, n = past[0].shape[2], target.shape[1]
        cache = Cache(layers=_layer_caches("cross", cross) | _layer_caches("self", past))
        cache.tokens = Tokens(torch.arange(p)[None])
        new, source = Tokens(torch.arange(p, p + n)[None]), Tokens.of(mask, mask=mask)
        # The decoder reads only the length of the encoded source: keys and values are cached.
        out = self.model.decode(target, new, mask, source, cache=cache, weights=True)
        return self.model.head(out.x_bnw), _self_attention_kv(cache)


class LanguageModelStep(nn.Module):
    """A decoding step of a language model: logits after new tokens, given those in `past`."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor, past: KeyValues) -> tuple[Tensor, KeyValues]:
        """From new ids [b, n] and a mask [b, p + n] of all tokens: prompts may be padded."""
        p, at = past[0].shape[2], count_positions(mask)
        cache = Cache(layers=_layer_caches("self", past), tokens=Tokens(at[:, :p], mask[:, :p]))
        new = Tokens(at[:, p:], mask[:, p:])
        out = self.model.stack(self.model.embedding(ids), new, cache=cache, weights=True)
        return self.model.head(out.x_bnw), _self_attention_kv(cache)


class FullSequence(nn.Module):
    """A classifier or masked language model, which reads whole sequences at once."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor | None = None) -> Tensor:
        """From ids [b, n], their mask, and token types if the model has them."""
        logits: Tensor = self.model.trace(ids, Tokens.of(ids, mask=mask, types=types)).logits
        return logits


# ---------------------------------------------------------------------------------- graphs


@dataclass(frozen=True)
class Graph:
    """One ONNX graph: the module to trace, example inputs, and names of inputs and outputs."""

    name: str
    module: nn.Module
    inputs: dict[str, Tensor | KeyValues]
    dynamic_sizes: dict[str, dict[int, str]]
    """For each input: its dynamic dimensions and their names."""
    outputs: list[str]

    def input_names(self) -> list[str]:
        """The name of each input tensor; keys and values are numbered by layer."""
        return [one for name, x in self.inputs.items() for one in _layer_names(name, x)]


def graphs(model: Model) -> Iterator[Graph]:
    """The graphs that a model is exported as, with example inputs."""
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    source_sizes = {0: "batch", 1: "source"}
    past_sizes = {0: "batch", 2: "past"}
    past = _example_kv(model, PAST)
    if isinstance(model, Translator):
        source = torch.zeros(BATCH, SOURCE, dtype=torch.long)
        mask, cross = torch.ones_like(source, dtype=torch.bool), _example_kv(model, SOURCE)
        yield Graph(
            "encoder",
            Encoder(model),
            {"source": source, "mask": mask},
            {"source": source_sizes, "mask": source_sizes},
            _layer_names("cross", cross),
        )
        yield Graph(
            "decoder",
            Decoder(model),
            {"target": ids, "mask": mask, "cross": cross, "past": past},
            {
                "target": {0: "batch", 1: "target"},
                "mask": source_sizes,
                "cross": {0: "batch", 2: "source"},
                "past": past_sizes,
            },
            ["logits", *_layer_names("present", past)],
        )
    elif isinstance(model, LanguageModel) and model.causal:
        so_far = torch.ones(BATCH, PAST + LENGTH, dtype=torch.bool)
        yield Graph(
            "model",
            LanguageModelStep(model),
            {"ids": ids, "mask": so_far, "past": past},
            {"ids": {0: "batch", 1: "new"}, "mask": {0: "batch", 1: "all"}, "past": past_sizes},
            ["logits", *_layer_names("present", past)],
        )
    else:
        inputs: dict[str, Tensor | KeyValues] = {"ids": ids, "mask": torch.ones_like(ids).bool()}
        inputs |= {"types": ids.clone()} if model.config.token_types else {}
        size = {0: "batch", 1: "length"}
        yield Graph("model", FullSequence(model), inputs, dict.fromkeys(inputs, size), ["logits"])


def _example_kv(model: Model, length: int) -> KeyValues:
    """Example keys and values: zeros for `length` tokens."""
    heads, width, layers = (
        _model_sizes(model)[key] for key in ("kv_heads", "head_width", "layers")
    )
    return [torch.zeros(BATCH, heads, length, width) for _ in range(2 * layers)]


def _layer_names(name: str, x: Tensor | KeyValues) -> list[str]:
    if isinstance(x, Tensor):
        return [name]
    return [f"{name}.{i // 2}.{'key' if i % 2 == 0 else 'value'}" for i in range(len(x))]


def _model_sizes(model: Model) -> dict[str, Any]:
    """The sizes a program needs to run the graphs; `layers` are a translator's decoder layers."""
    config = model.config
    translates = isinstance(model, Translator) and config.decoder_layers
    return {
        "layers": config.decoder_layers if translates else config.layers,
        "kv_heads": config.kv_heads or config.heads,
        "head_width": config.resolved_head_width,
        "vocab": model.embedding.table.num_embeddings,
    }


class ExportableRope(Rope):
    """RoPE with its frequencies as a plain buffer: ONNX has no bit-level reinterpretation."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.register_buffer(
            "exported_frequencies", super().frequencies().clone(), persistent=False
        )
        self.exported_frequencies: Tensor

    def frequencies(self) -> Tensor:
        """The rotation frequencies base^(-2i/d)."""
        return self.exported_frequencies


def make_exportable(model: Model) -> Model:
    """Replace, in place, the modules that ONNX cannot express; returns the model."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Rope):
                module.add_module(name, ExportableRope(model.config))
    return model


def save(graph: Graph, path: Path) -> None:
    """Trace a graph's module and write it as ONNX."""
    shapes = {
        name: graph.dynamic_sizes[name]
        if isinstance(x, Tensor)
        else [graph.dynamic_sizes[name]] * len(x)
        for name, x in graph.inputs.items()
    }
    with torch.no_grad(), _silence_exporter():
        program = torch.onnx.export(
            graph.module.eval(),
            kwargs=graph.inputs,
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=graph.input_names(),
            output_names=graph.outputs,
            verbose=False,
        )
        if program is None:
            raise RuntimeError("torch.onnx.export returned no program.")
        program.save(str(path))


@contextmanager
def _silence_exporter() -> Iterator[None]:
    """Silence the exporter's warnings and log lines, which concern its internals."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
