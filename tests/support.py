"""What many tests share: tiny models, padded and packed batches, and how far tensors are apart.

Every model made here has every parameter moved away from where it began, so that a zero or a one of
the initialization hides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heed.config import MERGES, ModelConfig
from heed.config import POSITIONS as ENCODINGS
from heed.models import Model, build
from heed.models.classifier import Classifier
from heed.models.language_model import LanguageModel
from heed.models.translator import Translator
from heed.probe.text_trace import InputTokens, TokenLabels

VOCAB, CLASSES = 23, 5
POSITIONS = ENCODINGS.names()
DTYPES = [pytest.param(torch.float32, id="float32"), pytest.param(torch.bfloat16, id="bfloat16")]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""How far two ways to compute one thing may be apart: ‖a - b‖ / ‖b‖."""

Changes = dict[str, Any]
GRID: dict[str, Changes] = {
    f"{position}-{merge}": {"position": position, "merge": merge}
    for position, merge in product(POSITIONS, MERGES)
}
EXTRAS: dict[str, Changes] = {
    "shaw-values": {"position": "shaw", "shaw_values": True},
    "grouped": {"position": "rope", "kv_heads": 2},
    "one-group": {"position": "shaw", "kv_heads": 1, "merge": "reweight"},
    "modern": {"norm": "rms", "activation": "swiglu", "qk_norm": True, "bias": False},
    "post": {"position": "sinusoidal", "norm_place": "post", "activation": "silu", "scale": 0.3},
    "wide-heads": {"position": "t5", "head_width": 6, "tie_embeddings": False},
    "lstm": {"family": "lstm"},
    "lstm-untied": {"family": "lstm", "embedding_width": 10, "tie_embeddings": False},
}
VARIANTS = GRID | EXTRAS
"""Every position with every merge, and whatever else a model can be made of."""
ATTENDING = [name for name, changes in VARIANTS.items() if changes.get("family") != "lstm"]
FEW = [f"{position}-concat" for position in POSITIONS] + list(EXTRAS)
"""Every position and every extra once, for tests that search."""


def tiny(**changes: Any) -> ModelConfig:
    """A model small enough to be run thousands of times."""
    small: Changes = {
        "width": 16,
        "heads": 4,
        "layers": 2,
        "feed_forward": 24,
        "dropout": 0.0,
        "max_positions": 64,
        "shaw_clip": 3,
        "t5_buckets": 8,
        "t5_distance": 20,
    }
    return ModelConfig(**(small | changes))


def perturb(model: nn.Module, *, by: float = 0.1, seed: int = 1) -> None:
    """Move every parameter by a random step."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(by * torch.randn(parameter.shape, generator=generator))


def fresh(task: str, *, dtype: torch.dtype = torch.float32, **changes: Any) -> Model:
    """A model of its own for one test, perturbed, in evaluation mode."""
    torch.manual_seed(0)
    classes = CLASSES if task == "classify" else None
    model = build(task, tiny(**changes), vocab=VOCAB, classes=classes)
    perturb(model)
    return model.to(dtype).eval()


def new_language_model(*, dtype: torch.dtype = torch.float32, **changes: Any) -> LanguageModel:
    """A perturbed language model of one's own."""
    model = fresh("generate", dtype=dtype, **changes)
    assert isinstance(model, LanguageModel)
    return model


def new_classifier(*, dtype: torch.dtype = torch.float32, **changes: Any) -> Classifier:
    """A perturbed classifier of one's own."""
    model = fresh("classify", dtype=dtype, **changes)
    assert isinstance(model, Classifier)
    return model


def new_translator(*, dtype: torch.dtype = torch.float32, **changes: Any) -> Translator:
    """A perturbed translator of one's own."""
    model = fresh("translate", dtype=dtype, **changes)
    assert isinstance(model, Translator)
    return model


@cache
def language_model(variant: str, dtype: torch.dtype = torch.float32) -> LanguageModel:
    """A language model that tests share: use it, and leave it as it is."""
    return new_language_model(dtype=dtype, **VARIANTS[variant])


@cache
def classifier(variant: str, dtype: torch.dtype = torch.float32) -> Classifier:
    """A classifier that tests share."""
    return new_classifier(dtype=dtype, **VARIANTS[variant])


@cache
def translator(variant: str, dtype: torch.dtype = torch.float32) -> Translator:
    """A translator that tests share; its cross-attention knows positions, too.

    It is shallower in bfloat16, for its rounding errors add up over three attentions a layer.
    """
    layers = 2 if dtype == torch.float32 else 1
    return new_translator(dtype=dtype, layers=layers, cross_position=True, **VARIANTS[variant])


# -------------------------------------------------------------------------------------- batches


def texts(lengths: Sequence[int], *, seed: int = 0) -> list[Tensor]:
    """Random ids, one row a length."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(VOCAB, (length,), generator=generator) for length in lengths]


def input_tokens(row: Tensor) -> InputTokens:
    """Ids as the tokens of a text, each a word."""
    names = [str(int(i)) for i in row]
    return InputTokens(row.tolist(), TokenLabels(names, [*range(len(row))], names), " ".join(names))


def padded(rows: Sequence[Tensor], *, left: Sequence[int], right: int = 0) -> tuple[Tensor, Tensor]:
    """One batch [b, n] of rows, each after its own share of padding, and where it is real.

    The padding is random tokens, not one that a model could know for what it is.
    """
    width = max(len(row) + before for row, before in zip(rows, left, strict=True)) + right
    ids = torch.randint(VOCAB, (len(rows), width), generator=torch.Generator().manual_seed(99))
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, (row, before) in enumerate(zip(rows, left, strict=True)):
        ids[i, before : before + len(row)] = row
        mask[i, before : before + len(row)] = True
    return ids, mask


def packed(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """All texts in one row [1, n], and which text each token is of."""
    numbers = [torch.full_like(row, i) for i, row in enumerate(rows)]
    return torch.cat(list(rows))[None], torch.cat(numbers)[None]


# ------------------------------------------------------------------------------------- distance


def apart(a: Tensor, b: Tensor) -> float:
    """‖a - b‖ / ‖b‖, and 0 where both are zeros."""
    a, b = a.detach().double(), b.detach().double()
    assert a.shape == b.shape
    difference, size = float((a - b).norm()), float(b.norm())
    return 0.0 if difference == 0.0 else difference / max(size, 1e-30)


def all_apart(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    """How far two lists of gradients are apart.

    In float32 it is the largest relative error of any tensor, where one far smaller than the rest
    (zero but for rounding, say) is measured against a tenth of their size. In bfloat16 the small
    ones are rounding for the most part, so the list counts as one vector.
    """
    joined = torch.cat([x.detach().double().flatten() for x in b])
    if b[0].dtype != torch.float32:
        return apart(torch.cat([x.detach().double().flatten() for x in a]), joined)
    least = max(float(joined.norm()) / 10, 1e-30)
    errors = [float((x.detach().double() - y).norm()) for x, y in zip(a, b, strict=True)]
    return max(e / max(float(y.norm()), least) for e, y in zip(errors, b, strict=True))


def gradients(output: Tensor, inputs: Sequence[Tensor], *, seed: int = 3) -> list[Tensor]:
    """How a random mix of `output` changes with each input; zeros where it does not."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(output.shape, generator=generator).to(output.dtype)
    found = torch.autograd.grad(output, list(inputs), mix, allow_unused=True, retain_graph=True)
    return [
        torch.zeros_like(x) if grad is None else grad for x, grad in zip(inputs, found, strict=True)
    ]


def assert_weights(weights_bhnm: Tensor, mask_bnm: Tensor) -> None:
    """Weights are shares of what may be seen: all of it, and none of what may not."""
    assert weights_bhnm.isfinite().all()
    assert (weights_bhnm >= 0).all()
    mask_bhnm = mask_bnm[:, None].expand_as(weights_bhnm)
    assert (weights_bhnm[~mask_bhnm] == 0).all()
    sums = weights_bhnm.float().sum(dim=-1)
    sees = mask_bhnm.any(dim=-1)
    tolerance = 1e-5 if weights_bhnm.dtype == torch.float32 else 1e-2
    assert torch.allclose(sums[sees], torch.ones_like(sums[sees]), atol=tolerance)
    assert (sums[~sees] == 0).all()


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute on a CPU with so many threads, until the end of this context."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
