"""Pruned runs: attention heads removed for good, in a smaller run that is otherwise the same.

The pruned model's logits are those of the model whose heads are silenced by zero
(`heed.probe.patch`), for every position encoding and merge. That is checked before a run is
written.

Shapes: b batch, n tokens, h heads, d head width, w model width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from heed.config import InitConfig, ModelConfig
from heed.errors import ConfigError
from heed.files import publish, temporary_folder
from heed.models import Model, Translator, from_weights
from heed.models.inference import evaluating
from heed.nn.attention import MultiHeadAttention
from heed.probe.patch import ZERO, Head, attention_sites, check_head, edit_attention, parse_heads
from heed.runs.labels import Classes
from heed.runs.load import load_run
from heed.runs.run import Run
from heed.runs.weight_files import BEST_WEIGHTS
from heed.train import checkpoint

CHECKED_TOKENS, TOLERANCE = 12, 1e-4
"""Tokens of a comparison, and the share of the largest logit by which models may differ."""
SAME_DATA = ("data", "plugins")
"""What a pruned run's environment.json says as that of the run it comes from."""


@dataclass(frozen=True)
class PrunedRun:
    """A pruned run and what was removed."""

    run: Run
    removed: tuple[Head, ...]
    heads: int
    """Heads that are left."""
    parameters: int
    parameters_before: int

    def describe(self) -> str:
        """One line: what was removed and what is left."""
        share = 1 - self.parameters / self.parameters_before
        return (
            f"{self.run.folder}: {len(self.removed)} heads removed, {self.heads} left; "
            f"{self.parameters:,} parameters, {share:.1%} fewer."
        )


def prune_run(
    source: Path, heads: Iterable[Head | str], target: Path, *, weights: str = BEST_WEIGHTS
) -> PrunedRun:
    """Write a new run without these heads; the run it comes from is left as it is.

    A head may also be named as on the command line: `cross.2.3`, `encoder.1.*`, counted from 1.
    Everything is computed and checked before anything is written, and the run appears as a whole.
    A classifier's calibration is left out: it belongs to the probabilities of the whole model.
    """
    Run(target).refuse_if_taken()
    old = Run.open(source)
    model, tokenizer, recipe = load_run(source, device="cpu", weights=weights)
    parsed = [parse_heads(head, model) if isinstance(head, str) else [head] for head in heads]
    removed = tuple(sorted({check_head(model, head) for each in parsed for head in each}))
    pruned = prune_model(model, removed)
    environment = {key: value for key, value in old.environment().items() if key in SAME_DATA}
    environment |= {"from": str(source), "pruned_heads": [head.label for head in removed]}
    final = target.resolve() if target.is_symlink() else target
    with temporary_folder(final) as draft:
        run = Run(draft)
        run.write_recipe(replace(recipe, model=pruned.config, init=InitConfig()))
        tokenizer.save(run.tokenizer_path)
        if (classes := Classes.read(old)) is not None:
            replace(classes, calibrated=False).save(run)
        run.write_environment(environment)
        checkpoint.write_tensors(run.weights_path, pruned.state_dict())
        publish(draft, final)
    left = sum(_count_heads(site) for site in attention_sites(pruned).values())
    counts = (sum(p.numel() for p in one.parameters()) for one in (pruned, model))
    return PrunedRun(Run(target), removed, left, *counts)


def choose_heads(names: Sequence[str], cheapest: Sequence[Head]) -> list[Head | str]:
    """The heads of `--prune`: those named, or a number of those whose removal costs least."""
    if not any(name.isdecimal() for name in names):
        return list(names)
    if len(names) > 1 or not 1 <= int(names[0]) <= len(cheapest):
        most = f", and at most {len(cheapest)}" if cheapest else ""
        raise ConfigError(
            [f"--prune {' '.join(names)}: give head names, or with --ablate one number{most}."]
        )
    return list(cheapest[: int(names[0])])


def check_flags(
    names: Sequence[str], target: Path | None, *, ablate: bool, how: str | None
) -> None:
    """Raise an error for flags of `heed heads --prune` that lack one another."""
    if names and target is None:
        raise ConfigError(["--prune writes a new run: name its folder with --run."])
    if target is not None and not names:
        raise ConfigError(["--run is the folder of a pruned run: say what to remove by --prune."])
    if names and not ablate:
        choose_heads(names, [])  # an error for a number
    if names and ablate and how not in (None, ZERO):
        raise ConfigError(
            [f"--prune removes heads, so rank them by --how {ZERO}: {how} is another ranking."]
        )
    if target is not None:
        Run(target).refuse_if_taken()


def prune_model(model: Model, heads: Sequence[Head]) -> Model:
    """A smaller model without these heads, equal to `model` with them silenced by zero."""
    if not heads:
        raise ConfigError(["There is no head to remove: name at least one, such as cross.1.2."])
    config, tensors = _smaller_config(model, heads), dict(model.state_dict())
    names = {module: name for name, module in model.named_modules()}
    for (kind, layer), site in attention_sites(model).items():
        removed = {head.head for head in heads if (head.kind, head.layer) == (kind, layer)}
        if removed and isinstance(site, MultiHeadAttention):
            kept = [head for head in range(site.heads) if head not in removed]
            _prune_site(tensors, names[site], site, kept, config)
    causal = bool(getattr(model, "causal", True))
    task = "translate" if isinstance(model, Translator) else _task(model)
    pruned = from_weights(tensors, task, config, causal=causal)
    pruned = pruned.to(next(model.parameters()).device).train(model.training)
    _require_equal(model, pruned, heads)
    return pruned


def _task(model: Model) -> str:
    return "generate" if hasattr(model, "causal") else "classify"


def _smaller_config(model: Model, heads: Sequence[Head]) -> ModelConfig:
    """The config with the heads that are left, by their numbers before any pruning."""
    config, kept_heads = model.config, dict(model.config.kept_heads)
    for kind in {head.kind for head in heads}:
        layers = sum(site_kind == kind for site_kind, _ in attention_sites(model))
        kept_heads[kind] = []
        for layer in range(layers):
            present = config.kept_in_layer(kind, layer)
            numbers = range(config.heads) if present is None else present
            kept = [n + 1 for i, n in enumerate(numbers) if Head(kind, layer, i) not in heads]
            kept_heads[kind].append(kept)
    return ModelConfig(**config.model_dump() | {"kept_heads": kept_heads})


def _prune_site(
    tensors: dict[str, Tensor],
    name: str,
    site: MultiHeadAttention,
    kept: list[int],
    config: ModelConfig,
) -> None:
    """Replace the tensors of one attention layer by those of the heads that are left."""
    if not kept:
        parts = [key for key in tensors if key.startswith(f"{name}.")]
        bias = tensors.get(f"{name}.out.bias")
        for key in parts:
            del tensors[key]
        if bias is not None:
            tensors[f"{name}.bias"] = bias
        return
    group = site.heads // site.kv_heads
    groups = sorted({head // group for head in kept})
    queries, pairs = (site.heads, kept), (site.kv_heads, groups)
    projections = {"q": [queries], "kv": [pairs, pairs], "qkv": [queries, pairs, pairs]}
    for part, blocks in projections.items():
        for key in (f"{name}.{part}.weight", f"{name}.{part}.bias"):
            if key in tensors:
                tensors[key] = _select_rows(tensors[key], blocks, site.head_width)
    out = f"{name}.out.weight"
    tensors[out] = _select_columns(tensors[out], site, kept, config)


def _select_rows(x: Tensor, blocks: list[tuple[int, list[int]]], width: int) -> Tensor:
    """The rows of some heads, where each block of rows holds all of a number of heads."""
    parts = x.split([count * width for count, _ in blocks])
    return torch.cat(
        [
            part.unflatten(0, (count, width))[heads].flatten(0, 1)
            for part, (count, heads) in zip(parts, blocks, strict=True)
        ]
    )


def _select_columns(
    out_wf: Tensor, site: MultiHeadAttention, kept: list[int], config: ModelConfig
) -> Tensor:
    """The output layer's columns, in the places to which the merge takes the heads at inference."""
    merge = config.merge if config.merge_when == "always" else "concat"
    out_whd = out_wf.unflatten(1, (site.heads, site.head_width))
    if merge == "shuffle":  # each place has the mean of all heads: only the sum of columns counts
        share_w1d = out_whd.sum(dim=1, keepdim=True) / site.heads
        return share_w1d.expand(-1, len(kept), -1).flatten(1).contiguous()
    places = kept
    if merge == "shift":  # place j has the head before, which took the place after its own
        places = [(head + 1) % site.heads for head in (kept[-1], *kept[:-1])]
    return out_whd[:, places].flatten(1)


@torch.no_grad()
def _require_equal(model: Model, pruned: Model, heads: Sequence[Head]) -> None:
    """Raise an error unless both models have the same logits, with the heads silenced in one."""
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    rows = min(table.num_embeddings for table in _token_tables(model))
    ids = torch.randint(rows, (2, CHECKED_TOKENS), generator=generator).to(device)
    inputs = (ids, ids.flip(0)) if isinstance(model, Translator) else (ids,)
    with evaluating(model, pruned), edit_attention(model, dict.fromkeys(heads, ZERO)):
        expected = model(*inputs)
        try:
            difference = float((pruned(*inputs) - expected).abs().max())
        except RuntimeError:  # a part of the user's own that has parameters for each head
            difference = torch.inf
    # `not <=` so that NaN is refused too
    if not difference <= TOLERANCE * max(1.0, float(expected.abs().max())):
        raise ConfigError(
            [
                "Heads cannot be removed exactly with position "
                f"{model.config.position!r} and merge {model.config.merge!r}: outputs differ."
            ]
        )


def _token_tables(model: Model) -> list[nn.Embedding]:
    source = getattr(model, "source_embedding", None)
    return [model.embedding.table, *([] if source is None else [source.table])]


def _count_heads(site: nn.Module) -> int:
    return site.heads if isinstance(site, MultiHeadAttention) else 0
