"""On a GPU a pruned model equals the model with silent heads, by every kernel and in training."""

from __future__ import annotations

import pytest
import torch
from support import VARIANTS, all_apart, apart, new_language_model, texts

from heed.models.language_model import LanguageModel
from heed.probe.patch import ZERO, Head, edit_attention
from heed.probe.prune import prune_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]

HEADS = [Head("decoder", 0, 0), Head("decoder", 0, 2), *(Head("decoder", 1, i) for i in range(4))]
"""Half of the heads of a layer, and all of another."""


@pytest.mark.parametrize("length", [48, 640], ids=["short", "long"])
@pytest.mark.parametrize("variant", ["t5-concat", "alibi-shift", "shaw-concat", "rope-reweight"])
def test_kernels_read_the_bias_of_the_heads_that_are_left(variant: str, length: int) -> None:
    """Without gradients and with them: tables, slopes and products are selected by head."""
    model = new_language_model(**VARIANTS[variant], width=64, layers=3).to("cuda")
    pruned = prune_model(model, HEADS)
    assert isinstance(pruned, LanguageModel)
    ids = texts([length])[0][None].to("cuda")
    with edit_attention(model, dict.fromkeys(HEADS, ZERO)):
        with torch.no_grad():
            assert apart(pruned(ids), model(ids)) <= 1e-3
        for one in (model, pruned):
            one(ids).float().square().mean().backward()
    theirs = dict(model.named_parameters())
    grads = [
        (ours.grad, other)
        for name, ours in pruned.named_parameters()
        if "norm" in name and ours.grad is not None and (other := theirs[name].grad) is not None
    ]
    assert all_apart([ours for ours, _ in grads], [other for _, other in grads]) <= 2e-2
