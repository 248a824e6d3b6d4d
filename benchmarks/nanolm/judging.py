"""What a trained model makes of train, dev and single sentences, read in every way that matters.

A merge that looks past one token gives a text another answer beside other texts than alone, and a
token another answer when its future is there than when it is not. So dev is read

- *batched*, as training reads it: 32 texts at a time, in the order of the file;
- *alone*, one text at a time;
- *blind*, some of it: one token at a time after nothing but the tokens before it, as in writing.

And it is read with the model's heads merged in other ways than in training: *with* the merge,
*without* (`concat`), and *even*, every head divided by the number of heads: what `reweight` does
where all heads have the same share.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from reading import Facts
from torch import Tensor

from heed.api import LanguageModel
from heed.data.token_store import open_store
from heed.evaluate.held_out_set import HeldOutSet, find_set, find_training_text
from heed.metrics.perplexity import TokenLosses, token_losses
from heed.models import LanguageModel as Predictor
from heed.models.inference import evaluating
from heed.nn.attention import MultiHeadAttention
from heed.nn.merges import Merge, build_merge
from heed.runs.run import Run
from heed.train.prepare.setup import build_batches
from heed.train.validate import validate
from nanolm.systems import SENTENCES

Ids = list[list[int]]
ALONE = 1
"""Tokens to read side by side, so that no text stands beside another."""
BLIND_TEXTS, BLIND_TOKENS = 40, 64
"""So many texts of dev, none longer, are read one token at a time."""


class Even(Merge):
    """Every head has the same share."""

    def change(self, heads_bhnd: Tensor, real_bn: Tensor | None) -> Tensor:
        return heads_bhnd / heads_bhnd.shape[1]


def judged(folder: Path, device: str) -> Facts:
    """All figures of one run."""
    torch.manual_seed(0)  # `shuffle` draws its orders at every call
    run = Run.open(folder)
    lm = LanguageModel.load(folder, device=device)
    train = find_training_text(run, lm.recipe)
    dev = find_set(lm.recipe, train, split="dev")
    ids = {"train": _beside(lm, dev), "dev": _encoded(lm, dev)}
    sentences = {name: lm.tokenizer.encode(text) for name, text in SENTENCES.items()}
    return {
        "vocabulary": lm.tokenizer.vocab_size,
        "heads": lm.recipe.model.heads,
        "sets": {name: told(_alone(lm, own)) for name, own in ids.items()},
        "sentences": {name: told(_alone(lm, [own])) for name, own in sentences.items()},
        "batched": _batched(lm, dev),
        "read": {how: _batched(lm, dev, how) for how in _ways(lm)},
        "blind": _blind(lm, ids["dev"]) if lm.recipe.model.merge == "reweight" else None,
    }


def told(found: Sequence[TokenLosses]) -> Facts:
    """Mean loss by token, and the mean of what each text's perplexity is."""
    losses = np.concatenate([one.losses for one in found])
    each = [math.exp(one.losses.mean()) for one in found]
    mean = math.fsum(each) / len(each)
    return {
        "texts": len(found),
        "tokens": len(losses),
        "loss": float(losses.mean()),
        "mean_text_perplexity": mean,
    }


def _encoded(lm: LanguageModel, some: HeldOutSet) -> Ids:
    texts = [record.texts[0] for record in some.records(Counter())]
    return lm.tokenizer.encode_batch(texts)


def _beside(lm: LanguageModel, dev: HeldOutSet) -> Ids:
    """As many texts of train as dev has, drawn at random."""
    records = list(dev.corpus.usable_records(Counter()))
    apart = set([] if dev.rows is None else dev.rows.tolist())
    learnt = [record.texts[0] for i, record in enumerate(records) if i not in apart]
    random = np.random.default_rng(lm.recipe.seed)
    drawn = random.choice(len(learnt), min(len(apart), len(learnt)), replace=False)
    return lm.tokenizer.encode_batch([learnt[i] for i in sorted(drawn.tolist())])


def _alone(lm: LanguageModel, ids: Ids) -> list[TokenLosses]:
    window, marks = lm.recipe.data.max_length, lm.tokenizer.specials
    return token_losses(lm.model, ids, window=window, batch_tokens=ALONE, specials=marks)


def _batched(lm: LanguageModel, dev: HeldOutSet, how: str | None = None) -> float:
    """Mean loss on dev as training finds it, the heads merged so."""
    store = open_store(dev.corpus, lm.tokenizer)
    batches = build_batches(lm.recipe, store, dev.rows)
    device = next(lm.model.parameters()).device
    with read_as(lm.model, how):
        return validate(lm.model, batches, device=device)["loss"]


def _ways(lm: LanguageModel) -> tuple[str, ...]:
    """How else a model's heads can be merged."""
    merge = lm.recipe.model.merge
    if merge == "concat":
        return ()
    return ("with", "without", "even") if merge == "reweight" else ("with", "without")


@contextmanager
def read_as(model: Predictor, how: str | None) -> Iterator[None]:
    """The model with its heads merged in another way, for a while; None leaves them be."""
    parts = [part for part in model.modules() if isinstance(part, MultiHeadAttention)]
    before = [part.merge for part in parts]
    always = model.config.model_copy(update={"merge_when": "always"})
    new = {"with": lambda: build_merge(always), "without": Merge, "even": Even}
    try:
        if how is not None:
            for part in parts:
                part.merge = new[how]()
        yield
    finally:
        for part, merge in zip(parts, before, strict=True):
            part.merge = merge


def _blind(lm: LanguageModel, ids: Ids) -> Facts:
    """The same few texts read whole and one token at a time, each alone."""
    few = [own for own in ids if len(own) <= BLIND_TOKENS][:BLIND_TEXTS]
    marks = lm.tokenizer.specials
    losses: list[float] = []
    device = next(lm.model.parameters()).device
    with evaluating(lm.model):
        for own in few:
            whole = torch.tensor([marks.bos, *own, marks.eos], device=device)
            for said in range(1, len(whole)):
                logits = lm.model(whole[None, :said])[0, -1]
                losses.append(float(F.cross_entropy(logits.float(), whole[said])))
    whole_texts = told(_alone(lm, few))
    return {"texts": len(few), "whole": whole_texts["loss"], "blind": float(np.mean(losses))}
