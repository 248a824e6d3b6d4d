"""Whether a model computes the same bits for an input alone and in a batch, tried on this machine.

It depends on the CPU's matrix kernels, and on the model: the products of an LSTM are not prepacked,
and some activations are computed by another formula for the last few numbers of a tensor whose
width is no multiple of 64.
"""

from __future__ import annotations

import random
from functools import partial

from heed.api import Classifier, LanguageModel, Translator
from heed.decode.beam import Beam
from heed.decode.greedy import Greedy
from heed.decode.search import Search

LENGTHS = (2, 7, 15, 11, 4)
"""Tokens of the inputs that are tried: all are padded to the same length."""
TOKENS = 10
"""Tokens that are generated for each."""


def has_invariant_batches(model: Translator | LanguageModel | Classifier) -> bool:
    """Whether random inputs have the same results alone and together, to the last bit."""
    draw = random.Random(0)  # noqa: S311
    specials = model.tokenizer.specials
    first = 1 + max(specials.pad, specials.bos, specials.eos, specials.unk or 0)
    last = model.tokenizer.vocab_size - 1
    inputs = [[draw.randint(min(first, last), last) for _ in range(n)] for n in LENGTHS]
    if isinstance(model, Classifier):
        together = model.pipeline.logits_of_ids(inputs)
        return all(
            (model.pipeline.logits_of_ids([ids])[0] == together[i]).all()
            for i, ids in enumerate(inputs)
        )
    return all(_search_is_invariant(model, inputs, beam) for beam in (1, 2))


def _search_is_invariant(
    model: Translator | LanguageModel, inputs: list[list[int]], beam: int
) -> bool:
    strategy = Greedy() if beam == 1 else Beam(beam)
    search = Search(
        [model.model], strategy, specials=model.tokenizer.specials, batch_invariant=True
    )
    if isinstance(model, Translator):
        translate = partial(search.translate, max_ratio=1e-9, max_extra=TOKENS)
        together = translate(inputs)
        return together == [translate([ids])[0] for ids in inputs]
    together = search.generate(inputs, max_tokens=TOKENS)
    return together == [search.generate([ids], max_tokens=TOKENS)[0] for ids in inputs]
