"""Edits of attention while a model runs: replace a head's weights, or silence its output.

    with heed.edit_attention(translator.model, {("cross", 1, 2): "uniform"}):
        translator.translate(["The old woman sees the cat."])

Edits hold in every pass through the model: translation, generation with a cache, classification,
scoring, maps. Kinds are "encoder", "decoder" and "cross"; layers and heads count from 0 in Python
and from 1 on the command line.

Shapes: b batch, n queries, m keys, h heads, d head width.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heed.config.model import ATTENTION_KINDS
from heed.errors import ConfigError, nearest
from heed.models import LanguageModel, Model, Translator
from heed.nn.attention import AttentionContext, HeadEdit, MultiHeadAttention
from heed.nn.lstm import LSTMStack

ZERO = "zero"
"""The edit that silences a head: its output is zero."""
OFFSETS = {"diagonal": 0, "previous": -1, "next": 1}
"""Patterns that put all weight on the key at the query's position plus this."""
PATTERNS = ("uniform", "first", "last", *OFFSETS)
"""Attention patterns by name. All weight goes to one visible key; `uniform` shares it out."""


class Head(NamedTuple):
    """One attention head of a model; layer and head count from 0."""

    kind: str
    layer: int
    head: int

    @property
    def label(self) -> str:
        """The head as a person reads and types it, counted from 1: `cross.2.3`."""
        return f"{self.kind}.{self.layer + 1}.{self.head + 1}"


@dataclass(frozen=True)
class HeadWeights:
    """What one head attends to in one pass, as an edit receives it.

    In decoding the keys are the cells of the cache: not in the order of positions, and some of them
    hidden. So an edit reads `q_positions_bn` and `k_positions_bm`, not indices.
    """

    weights_bnm: Tensor
    visible_bnm: Tensor
    """True where a query may see a key."""
    q_positions_bn: Tensor
    k_positions_bm: Tensor


Edit = str | Tensor | NDArray[Any] | Callable[[HeadWeights], Tensor]
"""A pattern's name or "zero"; weights [n, m] by position; an output [d]; or a function."""
Edits = Mapping[tuple[str, int, int], Edit] | Mapping[Head, Edit]
"""Edits by head: (kind, layer, head), layers and heads counted from 0."""
WeightEdit = Callable[[HeadWeights], Tensor]


@contextmanager
def edit_attention(model: Model, edits: Edits) -> Iterator[None]:
    """Edit heads, named (kind, layer, head) and counted from 0, for as long as the context lasts.

    An edit is one of these:

    - "uniform", "first", "last", "diagonal", "previous" or "next": attention weights by a pattern.
      Where the pattern's key is hidden, the nearest visible key gets the weight.
    - an array [n, m]: attention weights by position, such as those of another sentence. What it
      gives to keys that are hidden or missing here is shared out over the others in proportion. A
      query beyond its rows, or without any visible key in them, keeps the model's own weights.
    - "zero", or an array [d]: the head's output at every token.
    - a function of `HeadWeights` that returns weights [b, n, m]; hidden keys get 0 in any case.

    Contexts nest: the inner edit comes after the outer one. Nothing remains after the context, also
    after an exception.
    """
    sites, by_site = attention_sites(model), defaultdict[tuple[str, int], _SiteEdits](_SiteEdits)
    for name, edit in edits.items():
        head = check_head(model, Head(*name))
        by_site[head.kind, head.layer].add(head, edit, _head_width(sites[head.kind, head.layer]))
    with ExitStack() as after:
        for place, site_edits in by_site.items():
            after.enter_context(_set_edit(sites[place], site_edits))
        yield


@contextmanager
def record_head_means(model: Model) -> Iterator[HeadMeans]:
    """Record every head's output in the passes within the context.

    `means` of the result are edits: each silences its head by the mean of its outputs over all real
    tokens that were read.
    """
    sites = attention_sites(model)
    recorders = {place: _MeanRecorder() for place in sites}
    with ExitStack() as after:
        for place, recorder in recorders.items():
            after.enter_context(_set_edit(sites[place], recorder))
        yield HeadMeans(recorders)


class HeadMeans:
    """Mean outputs of heads, over all tokens read so far."""

    def __init__(self, recorders: Mapping[tuple[str, int], _MeanRecorder]) -> None:
        self._recorders = recorders

    def means(self) -> dict[Head, Tensor]:
        """The mean output [d] of every head."""
        return {
            Head(*place, head): mean_d
            for place, recorder in self._recorders.items()
            for head, mean_d in enumerate(recorder.mean_hd())
        }


# --------------------------------------------------------------------------------- heads by name


def list_heads(model: Model) -> list[Head]:
    """All attention heads of a model: encoder, decoder, cross-attention, layer by layer."""
    return [
        Head(*place, head)
        for place, site in attention_sites(model).items()
        for head in range(_head_count(site))
    ]


def parse_head(text: str, model: Model) -> Head:
    """A head as a person types it, counted from 1: `cross.2.3`; `2.3` where there is one kind."""
    kind, layer, head = _split_name(text, model)
    if not (layer.isdecimal() and head.isdecimal()):
        raise _unnamed_head(text, model)
    return check_head(model, Head(kind, int(layer) - 1, int(head) - 1))


def parse_heads(text: str, model: Model) -> list[Head]:
    """Heads as a person types them: `cross.2.3`, `cross.2.*` (a layer) or `cross.*.*` (a kind)."""
    if "*" not in text:
        return [parse_head(text, model)]
    kind, *numbers = _split_name(text, model)
    if not all(number == "*" or number.isdecimal() for number in numbers):
        raise _unnamed_head(text, model)
    heads = [
        one
        for one in list_heads(model)
        if one.kind == kind
        and all(
            number == "*" or int(number) == index + 1
            for number, index in zip(numbers, one[1:], strict=True)
        )
    ]
    if not heads:
        check_head(model, Head(kind, *(0 if n == "*" else int(n) - 1 for n in numbers)))
        raise ConfigError([f"{text} names no head that this model has."])
    return heads


def _split_name(text: str, model: Model) -> tuple[str, str, str]:
    """Kind, layer and head of a name; the kind may be left out where there is one."""
    parts, kinds = text.strip().split("."), _kinds(model)
    if len(parts) == 2 and len(kinds) == 1:
        parts = [kinds[0], *parts]
    if len(parts) != 3:
        raise _unnamed_head(text, model)
    kind, layer, head = parts
    return kind, layer, head


def _unnamed_head(text: str, model: Model) -> ConfigError:
    kind = (_kinds(model) or ATTENTION_KINDS)[-1]
    what = f"{text!r} names no head: write kind.layer.head, counted from 1, such as {kind}.1.1."
    return ConfigError([what])


def check_head(model: Model, head: Head) -> Head:
    """This head, or an error where the model has no such head."""
    sites, kinds = attention_sites(model), _kinds(model)
    if head.kind not in kinds:
        options = ", ".join(kinds) or "none"
        hint = nearest(str(head.kind), ATTENTION_KINDS)
        what = f"This model has no {head.kind!r} attention, only: {options}.{hint}"
        raise ConfigError([what])
    layers = sum(kind == head.kind for kind, _ in sites)
    if not 0 <= head.layer < layers:
        raise ConfigError([f"{head.label}: the {head.kind} attention has layers 1 to {layers}."])
    heads = _head_count(sites[head.kind, head.layer])
    if not 0 <= head.head < heads:
        has = f"heads 1 to {heads}" if heads else "no heads left"
        raise ConfigError([f"{head.label}: layer {head.layer + 1} has {has}."])
    return head


def attention_sites(model: Model) -> dict[tuple[str, int], nn.Module]:
    """The module that attends, by kind and layer."""
    if not isinstance(model, nn.Module):
        raise ConfigError(["Attention is that of a model: pass .model of what heed.load returns."])
    if isinstance(model, Translator):
        stacks = {"encoder": model.encoder, "decoder": model.decoder}
    else:
        causal = isinstance(model, LanguageModel) and model.causal
        stacks = {"decoder" if causal else "encoder": model.stack}
    sites: dict[tuple[str, int], nn.Module] = {}
    for kind, stack in stacks.items():
        if not isinstance(stack, LSTMStack):
            blocks = enumerate(stack.blocks)
            sites |= {(kind, i): block.get_submodule("attention") for i, block in blocks}
    decoder = stacks.get("decoder")
    if isinstance(decoder, LSTMStack):
        return sites | ({("cross", 0): decoder} if isinstance(model, Translator) else {})
    if isinstance(model, Translator) and decoder is not None:
        blocks = enumerate(decoder.blocks)
        sites |= {("cross", i): block.get_submodule("cross") for i, block in blocks}
    return sites


def _kinds(model: Model) -> list[str]:
    return list(dict.fromkeys(kind for kind, _ in attention_sites(model)))


def _head_count(site: nn.Module) -> int:
    if isinstance(site, LSTMStack):
        return 1
    return site.heads if isinstance(site, MultiHeadAttention) else 0


def _head_width(site: nn.Module) -> int:
    if isinstance(site, LSTMStack):
        return site.width
    return site.head_width if isinstance(site, MultiHeadAttention) else 0


# ------------------------------------------------------------------------------- edits of a site


class _ChainedEdit:
    """An edit after the one that an outer context has set, if any."""

    outer: HeadEdit | None = None

    @property
    def needs_weights(self) -> bool:
        return self.outer is not None and self.outer.needs_weights

    def edit_weights(self, weights_bhnm: Tensor, context: AttentionContext) -> Tensor:
        return (
            weights_bhnm if self.outer is None else self.outer.edit_weights(weights_bhnm, context)
        )

    def edit_outputs(self, out_bhnd: Tensor, context: AttentionContext) -> Tensor:
        return out_bhnd if self.outer is None else self.outer.edit_outputs(out_bhnd, context)


class _SiteEdits(_ChainedEdit):
    """The edits of one attention layer, by head."""

    def __init__(self) -> None:
        self.weights: dict[int, tuple[Head, WeightEdit]] = {}
        self.outputs: dict[int, Tensor] = {}

    def add(self, head: Head, edit: Edit, width: int) -> None:
        """Add one head's edit, or raise an error that says what an edit can be."""
        if isinstance(edit, str) and edit == ZERO:
            self.outputs[head.head] = torch.zeros(width)
            return
        if isinstance(edit, str):
            self.weights[head.head] = head, find_pattern(edit)
            return
        if callable(edit):
            self.weights[head.head] = head, edit
            return
        numbers = torch.as_tensor(edit)
        if not numbers.is_floating_point() or not numbers.isfinite().all():
            raise ConfigError([f"{head.label}: the array of an edit holds finite real numbers."])
        if numbers.shape == (width,):
            self.outputs[head.head] = numbers
        elif numbers.ndim == 2 and numbers.numel():
            self.weights[head.head] = head, _GivenWeights(numbers)
        else:
            shape = "×".join(map(str, numbers.shape))
            what = f"not of shape {shape}: weights [queries, keys], or an output of {width} numbers"
            raise ConfigError([f"{head.label}: the array of an edit is {what}."])

    @property
    def needs_weights(self) -> bool:
        return bool(self.weights) or super().needs_weights

    def edit_weights(self, weights_bhnm: Tensor, context: AttentionContext) -> Tensor:
        weights_bhnm = super().edit_weights(weights_bhnm, context).clone()
        b, _, n, m = weights_bhnm.shape
        visible = context.visible()
        if visible is None:
            visible = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=weights_bhnm.device)
        visible_bnm = visible[:, 0].expand(b, n, m)
        positions = context.q_positions.expand(b, n), context.k_positions.expand(b, m)
        for i, (head, edit) in self.weights.items():
            new_bnm = edit(HeadWeights(weights_bhnm[:, i].clone(), visible_bnm, *positions))
            if new_bnm.shape != (b, n, m):
                shapes = f"{list(new_bnm.shape)}, not {[b, n, m]}"
                raise ConfigError([f"{head.label}: its edit returned weights of shape {shapes}."])
            weights_bhnm[:, i] = new_bnm.to(weights_bhnm).masked_fill(~visible_bnm, 0.0)
        return weights_bhnm

    def edit_outputs(self, out_bhnd: Tensor, context: AttentionContext) -> Tensor:
        out_bhnd = super().edit_outputs(out_bhnd, context)
        if self.outputs:
            out_bhnd = out_bhnd.clone()
        for head, output_d in self.outputs.items():
            out_bhnd[:, head] = output_d.to(out_bhnd)
        return out_bhnd


class _MeanRecorder(_ChainedEdit):
    """Sums the outputs of one attention layer's heads, and leaves them as they are."""

    def __init__(self) -> None:
        self.sum_hd: Tensor | None = None
        self.count = 0

    def edit_outputs(self, out_bhnd: Tensor, context: AttentionContext) -> Tensor:
        out_bhnd = super().edit_outputs(out_bhnd, context)
        b, _, n, _ = out_bhnd.shape
        real_bn = context.real_bn
        if real_bn is None:
            real_bn = torch.ones(b, n, dtype=torch.bool, device=out_bhnd.device)
        real_bn = real_bn.expand(b, n)
        sum_hd = (out_bhnd.double() * real_bn[:, None, :, None]).sum(dim=(0, 2)).detach()
        self.sum_hd = sum_hd if self.sum_hd is None else self.sum_hd + sum_hd
        self.count += int(real_bn.sum())
        return out_bhnd

    def mean_hd(self) -> Tensor:
        """The mean output of each head; an error before the first pass."""
        if self.sum_hd is None or not self.count:
            raise ConfigError(["There are no means of heads yet: run the model in the context."])
        return self.sum_hd / self.count


@contextmanager
def _set_edit(site: nn.Module, edit: _ChainedEdit) -> Iterator[None]:
    """Set an attention layer's edit, and restore the one that was there."""
    own = vars(site)  # a plain attribute: no parameter, and in no checkpoint
    outer = edit.outer = own.get("head_edit")
    own["head_edit"] = edit
    try:
        yield
    finally:
        if outer is None:
            del own["head_edit"]
        else:
            own["head_edit"] = outer


# -------------------------------------------------------------------------------------- patterns


def find_pattern(name: str) -> WeightEdit:
    """The pattern of this name, as an edit of weights."""
    if name == "uniform":
        return attend_uniformly
    if name in OFFSETS:
        return _KeyAt(offset=OFFSETS[name])
    if name in PATTERNS:
        return _EndKey(last=name == "last")
    names = (*PATTERNS, ZERO)
    raise ConfigError([f"There is no edit {name!r}: use {', '.join(names)}.{nearest(name, names)}"])


def attend_uniformly(head: HeadWeights) -> Tensor:
    """The same weight for every visible key."""
    visible_bnm = head.visible_bnm.to(head.weights_bnm.dtype)
    return visible_bnm / visible_bnm.sum(dim=-1, keepdim=True).clamp(min=1)


@dataclass(frozen=True)
class _KeyAt:
    """All weight on the visible key nearest to the query's position plus an offset."""

    offset: int

    def __call__(self, head: HeadWeights) -> Tensor:
        wanted_bn = head.q_positions_bn + self.offset
        distance_bnm = (head.k_positions_bm[:, None] - wanted_bn[:, :, None]).abs()
        return _select_key(head, distance_bnm)


@dataclass(frozen=True)
class _EndKey:
    """All weight on the first visible key, or on the last."""

    last: bool

    def __call__(self, head: HeadWeights) -> Tensor:
        positions_b1m = head.k_positions_bm[:, None]
        return _select_key(head, -positions_b1m if self.last else positions_b1m)


def _select_key(head: HeadWeights, cost_bnm: Tensor) -> Tensor:
    """1 on the visible key of least cost; 0 everywhere where no key is visible."""
    cost_bnm = cost_bnm.expand_as(head.visible_bnm)
    hidden = torch.iinfo(cost_bnm.dtype).max
    best_bn1 = cost_bnm.masked_fill(~head.visible_bnm, hidden).argmin(dim=-1, keepdim=True)
    one_hot = torch.zeros_like(head.weights_bnm).scatter(-1, best_bn1, 1.0)
    return one_hot.masked_fill(~head.visible_bnm, 0.0)


class _GivenWeights:
    """Weights [n, m] by position."""

    def __init__(self, weights_nm: Tensor) -> None:
        self.weights_nm = weights_nm

    def __call__(self, head: HeadWeights) -> Tensor:
        given_nm = self.weights_nm.to(head.weights_bnm)
        last_row, last_column = (size - 1 for size in given_nm.shape)
        rows_bn1 = head.q_positions_bn[:, :, None]
        columns_b1m = head.k_positions_bm[:, None]
        row_bnm = given_nm[rows_bn1.clamp(max=last_row), columns_b1m.clamp(max=last_column)]
        usable_bnm = head.visible_bnm & (columns_b1m <= last_column)
        row_bnm = row_bnm.masked_fill(~usable_bnm, 0.0)
        total_bn1 = given_nm.sum(dim=-1)[rows_bn1.clamp(max=last_row)]
        seen_bn1 = row_bnm.sum(dim=-1, keepdim=True)
        scaled_bnm = row_bnm * torch.where(seen_bn1 == total_bn1, 1.0, total_bn1 / seen_bn1)
        applies_bn1 = (rows_bn1 <= last_row) & ((seen_bn1 != 0) | (total_bn1 == 0))
        return torch.where(applies_bn1, scaled_bnm, head.weights_bnm)
