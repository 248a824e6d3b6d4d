"""Sampling: the next token is drawn from the model's distribution, or from its most probable part.

Every sample has its own stream of uniform random numbers, a function of the seed, the number of the
input and the number of the sample. So a sample does not depend on the batch it is drawn in.

Shapes: b inputs, k samples per input, v vocabulary, c candidate tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from heed.decode.batch_plan import bucket_size
from heed.decode.state import DecodeState, StateTensors
from heed.decode.strategy import IndependentStrategy

WORD = 1 << 32
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-30, 1e30
"""Within these bounds a logit divided by the temperature stays finite."""


class Sample(IndependentStrategy):
    """Ancestral sampling of `samples` independent hypotheses per input."""

    def __init__(
        self,
        samples: int = 1,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int = 0,
        length_penalty: float = 1.0,
    ) -> None:
        super().__init__(samples, length_penalty=length_penalty)
        self.temperature = min(max(temperature, MIN_TEMPERATURE), MAX_TEMPERATURE)
        self.top_k, self.top_p, self.min_p, self.seed = top_k, top_p, min_p, seed

    def begin(
        self, limits: Sequence[int], numbers: Sequence[int], device: torch.device
    ) -> StateTensors:
        """The tensors of every strategy, and one uniform random number per possible token."""
        uniforms_blk = np.zeros((len(limits), bucket_size(max(limits)), self.beams))
        for i, (limit, number) in enumerate(zip(limits, numbers, strict=True)):
            for sample in range(self.beams):
                uniforms_blk[i, :limit, sample] = self.stream(number, sample).random(limit)
        uniforms = torch.from_numpy(uniforms_blk).to(device)
        return super().begin(limits, numbers, device) | {"uniforms": (uniforms, None)}

    def stream(self, number: int, sample: int) -> np.random.Generator:
        """The random generator of one sample of input `number`."""
        return random_stream(self.seed, number, sample)

    def pick(self, logits_bkv: Tensor, state: DecodeState) -> Tensor:
        """Draw a token with the next random number of each sample's stream."""
        uniforms_bk = state["uniforms"].index_select(1, state.generated)[:, 0]
        probabilities, tokens = self.candidates(logits_bkv)
        indices = sample_index(probabilities, uniforms_bk)
        return indices if tokens is None else tokens.gather(-1, indices[..., None])[..., 0]

    def candidates(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Probabilities of the candidate tokens, and their ids (None: the whole vocabulary).

        The temperature is applied first; then `top_k`, `top_p` and `min_p`, each on what is left
        and renormalized. All three keep a prefix of the sorted candidates, so one sort serves them.
        """
        logits, tokens = logits / self.temperature, None
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            logits, tokens = logits.topk(self.top_k, dim=-1)
        elif self.top_p < 1.0 or self.min_p > 0.0:
            logits, tokens = logits.sort(dim=-1, descending=True)
        probabilities = logits.softmax(dim=-1)
        if self.top_p < 1.0:
            before = probabilities.double().cumsum(dim=-1) - probabilities
            probabilities = probabilities.where(before < self.top_p, 0.0)
            probabilities = probabilities / probabilities.sum(dim=-1, keepdim=True)
        if self.min_p > 0.0:
            least = self.min_p * probabilities[..., :1]
            probabilities = probabilities.where(probabilities >= least, 0.0)
            probabilities = probabilities / probabilities.sum(dim=-1, keepdim=True)
        return probabilities, tokens


def random_stream(seed: int, number: int, sample: int) -> np.random.Generator:
    """The random generator of one sample of one input."""
    # One 32-bit word each: numpy would spread a larger number over the next word.
    high, low = divmod(number, WORD)
    return np.random.Generator(np.random.PCG64([seed, low, sample, high]))


def sample_index(probabilities_bkc: Tensor, uniforms_bk: Tensor) -> Tensor:
    """Inverse-CDF sampling: the first candidate whose cumulative probability exceeds u."""
    sums = probabilities_bkc.double().cumsum(dim=-1)
    passed = (sums <= uniforms_bk[..., None] * sums[..., -1:]).sum(dim=-1)
    # A number just below 1 may round up to the whole sum: then the last with a probability > 0.
    last = probabilities_bkc.shape[-1] - 1 - (probabilities_bkc > 0).flip(-1).byte().argmax(dim=-1)
    return passed.minimum(last)
