"""Checks of attention on a trained model: sums, masks, padding, and whether the future leaks.

Each check measures the largest deviation on real texts and compares it with a limit. The texts are
read in one padded batch, together with a shorter copy of the first.

Shapes: b texts, h heads, n queries, m keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from rich.console import Group
from torch import Tensor

from heed.models import Classifier, LanguageModel, Model, Translator
from heed.models.inference import evaluating
from heed.models.trace import Trace
from heed.probe.text_trace import InputTokens, TokenLabels, pad_batch, trace_batch
from heed.terminal import build_note, build_table

SUM_LIMIT = 1e-5
"""How far a row's sum may be from one: the rounding of float32."""
OUTPUT_LIMIT = 1e-4
"""How far an output may move, as a share of the largest output: rounding over all layers."""
CHANGES = 4
"""Places in a text after which everything is changed."""


@dataclass(frozen=True)
class Check:
    """One check: the largest deviation seen, and the largest that passes."""

    name: str
    deviation: float
    limit: float

    @property
    def passed(self) -> bool:
        """Whether the deviation is within the limit; NaN is not."""
        return self.deviation <= self.limit

    def to_dict(self) -> dict[str, Any]:
        """The fields for JSON."""
        return {
            "check": self.name,
            "passed": self.passed,
            "deviation": self.deviation,
            "limit": self.limit,
        }


def check_attention(
    model: Model, inputs: Sequence[InputTokens], sources: Sequence[InputTokens] = (), *, pad: int
) -> list[Check]:
    """All checks that fit the model, on these texts; a translator needs their sources."""
    batch = [*inputs, _shorten(inputs[0])]
    source_batch = [*sources, *map(_shorten, sources[:1])]
    trace = trace_batch(model, batch, source_batch, pad=pad)
    reads = _Lengths.of(batch, source_batch)
    checks: list[Check] = []
    for kind, layers in (
        ("encoder", trace.encoder),
        ("decoder", trace.decoder),
        ("cross", trace.cross),
    ):
        if layers:
            checks += check_weights(kind, layers, *reads.of_kind(model, kind))
    checks.append(_check_padding_and_neighbors(model, batch, source_batch, trace, pad))
    checks.append(_check_kernels(model, batch, source_batch, trace, pad))
    if is_causal(model):
        checks.append(_check_future(cast("Translator | LanguageModel", model), inputs, sources))
    return checks


def is_causal(model: Model) -> bool:
    """Whether a model has attention that must not see later tokens."""
    return isinstance(model, Translator) or (isinstance(model, LanguageModel) and model.causal)


def render_checks(checks: Sequence[Check]) -> Group:
    """The checks as a table for the terminal."""
    numbers = ("largest deviation", "limit")
    table = build_table("check", "result", *numbers, right=numbers, compact=True)
    for check in checks:
        result = "pass" if check.passed else "FAIL"
        table.add_row(check.name, result, f"{check.deviation:.2g}", f"{check.limit:.2g}")
    failed = sum(not check.passed for check in checks)
    verdict = f"{failed} of {len(checks)} checks failed" if failed else "all checks passed"
    note = "changes of the output are relative to the largest logit"
    return Group(table, build_note(f"{verdict}; {note}"))


@dataclass(frozen=True)
class _Lengths:
    """How many tokens each text of a batch has, and its source."""

    texts: list[int]
    sources: list[int]

    @classmethod
    def of(cls, batch: Sequence[InputTokens], sources: Sequence[InputTokens]) -> _Lengths:
        return cls([len(one.ids) for one in batch], [len(one.ids) for one in sources])

    def of_kind(self, model: Model, kind: str) -> tuple[list[int], list[int]]:
        """The numbers of queries and of keys, for a kind of attention."""
        if kind == "cross":
            return self.texts, self.sources
        lengths = (
            self.sources if kind == "encoder" and isinstance(model, Translator) else self.texts
        )
        return lengths, lengths


def check_weights(
    kind: str, layers: Sequence[Tensor], queries: list[int], keys: list[int]
) -> Iterator[Check]:
    """Checks of the weights [b, h, n, m] of one kind of attention."""
    sums = padding = future = negative = 0.0
    for weights_bhnm in layers:
        for weights_hnm, n, m in zip(weights_bhnm.float(), queries, keys, strict=True):
            rows_hnm = weights_hnm[:, :n]
            sums = max(sums, _largest(rows_hnm.sum(dim=-1) - 1))
            padding = max(padding, _largest(rows_hnm[..., m:]))
            negative = max(negative, _largest(rows_hnm.clamp(max=0)))
            if kind == "decoder":
                future = max(future, _largest(rows_hnm.triu(1)))
    yield Check(f"{kind}: every row sums to one", sums, SUM_LIMIT)
    yield Check(f"{kind}: no weight is negative", negative, 0.0)
    yield Check(f"{kind}: padding gets no weight", padding, 0.0)
    if kind == "decoder":
        yield Check("decoder: later tokens get no weight", future, 0.0)


def _largest(x: Tensor) -> float:
    """The largest absolute value; infinite where there is a NaN."""
    if not x.numel():
        return 0.0
    value = float(x.abs().max())
    return value if value == value else float("inf")


def _check_padding_and_neighbors(
    model: Model,
    batch: Sequence[InputTokens],
    sources: Sequence[InputTokens],
    trace: Trace,
    pad: int,
) -> Check:
    """The outputs of each text in the batch, compared with those of the text alone."""
    moved, scale = 0.0, 0.0
    for i, one in enumerate(batch):
        alone = trace_batch(model, [one], sources[i : i + 1], pad=pad).logits[0]
        together = trace.logits[i]
        if not isinstance(model, Classifier):
            together = together[: len(one.ids)]
        moved = max(moved, _largest(together - alone))
        scale = max(scale, _largest(alone))
    name = "output unchanged by padding and batch"
    return Check(name, moved / max(scale, 1e-30), OUTPUT_LIMIT)


def _check_kernels(
    model: Model,
    batch: Sequence[InputTokens],
    sources: Sequence[InputTokens],
    trace: Trace,
    pad: int,
) -> Check:
    """The outputs of the fast kernels, compared with those of the plain path with its weights."""
    ids_bn, real_bn = pad_batch(model, batch, pad)
    with evaluating(model):
        if isinstance(model, Translator):
            source_bm, source_real = pad_batch(model, sources, pad)
            logits = model(source_bm, ids_bn, mask=source_real, target_mask=real_bn)
        else:
            logits = model(ids_bn, mask=real_bn)
    difference = logits - trace.logits
    if real_bn is not None and not isinstance(model, Classifier):
        difference = difference[real_bn]
    scale = max(_largest(trace.logits), 1e-30)
    return Check("fast kernels give the same output", _largest(difference) / scale, OUTPUT_LIMIT)


def _check_future(
    model: Translator | LanguageModel,
    inputs: Sequence[InputTokens],
    sources: Sequence[InputTokens],
) -> Check:
    """Change all tokens after a place: the outputs up to it may not move."""
    moved, scale = 0.0, 0.0
    vocab = model.head.weight.shape[0]
    for i, one in enumerate(inputs):
        before = _outputs(model, one.ids, sources[i : i + 1])
        scale = max(scale, _largest(before))
        n = len(one.ids)
        for place in sorted({1 + (n - 1) * step // CHANGES for step in range(CHANGES)}):
            changed = change_later_tokens(one.ids, place, vocab)
            after = _outputs(model, changed, sources[i : i + 1])
            moved = max(moved, _largest(after[:place] - before[:place]))
    return Check("output unchanged by later tokens", moved / max(scale, 1e-30), OUTPUT_LIMIT)


def change_later_tokens(ids: Sequence[int], place: int, vocab: int) -> list[int]:
    """These ids with every token from `place` on replaced by another one."""
    return [*ids[:place], *((token + 1) % vocab for token in ids[place:])]


def _outputs(
    model: Translator | LanguageModel, ids: Sequence[int], source: Sequence[InputTokens]
) -> Tensor:
    """The logits [n, vocab] of one text by the fast path, as decoding uses it."""
    device = next(model.parameters()).device
    ids_bn = torch.tensor([list(ids)], device=device)
    with evaluating(model):
        if isinstance(model, Translator):
            return model(torch.tensor([source[0].ids], device=device), ids_bn)[0]
        return model(ids_bn)[0]


def _shorten(one: InputTokens) -> InputTokens:
    """The first half of a text, so that it is padded."""
    half = max(1, len(one.ids) // 2)
    labels = TokenLabels(one.labels.tokens[:half], one.labels.words[:half], one.labels.word_texts)
    return replace(one, ids=one.ids[:half], labels=labels)
