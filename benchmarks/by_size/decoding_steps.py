"""Decoding by batch and by output length: heed's own greedy search on a translator.

Weights are random and the end token is never the best, so every output has the longest length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from by_size.record import Point
from by_size.training_steps import powers
from by_size.turns import Job
from heed.bench.timing import Work
from heed.config import ModelConfig
from heed.data.tokenizers.special_tokens import EOS, MASK
from heed.decode.greedy import Greedy
from heed.decode.search import Search
from heed.models import Translator, build

SOURCE = 31
"""Tokens of every source, its end token not counted."""


@dataclass(frozen=True)
class DecodingGrid:
    """The model of a device, and the sizes that vary."""

    layers: int
    width: int
    vocab: int
    batches: tuple[int, ...]
    outputs: tuple[int, ...]
    batch: int
    """The batch in which output lengths are measured,"""
    output: int
    """and the output length at which batches are."""


CPU = DecodingGrid(2, 256, 4000, powers(1, 512), powers(16, 512), batch=32, output=32)
CUDA = DecodingGrid(4, 512, 8000, powers(1, 512), powers(16, 1024), batch=256, output=32)
TINY = DecodingGrid(1, 64, 50, powers(1, 4), powers(2, 8), batch=2, output=4)


def decoding_jobs(grid: DecodingGrid, device: torch.device) -> Iterator[Job]:
    """Greedy search by batch, then by output length."""
    for size in grid.batches:
        yield _job(grid, device, "batch", size, batch=size, output=grid.output)
    for size in grid.outputs:
        yield _job(grid, device, "output", size, batch=grid.batch, output=size)


def _job(
    grid: DecodingGrid, device: torch.device, curve: str, size: int, *, batch: int, output: int
) -> Job:
    info = {
        "layers": grid.layers,
        "width": grid.width,
        "vocabulary": grid.vocab,
        "sentences": batch,
        "source_tokens": SOURCE,
        "output_tokens": output,
    }
    build = partial(build_search, grid, device, batch=batch, output=output)
    return Job(Point("decoding", curve, size), build, batch * output, info)


def build_search(grid: DecodingGrid, device: torch.device, *, batch: int, output: int) -> Work:
    """A search that is reused, as a translator reuses it, and its sources."""
    torch.manual_seed(0)
    config = ModelConfig(layers=grid.layers, heads=max(1, grid.width // 64), width=grid.width)
    model = build("translate", config, vocab=grid.vocab)
    if not isinstance(model, Translator):
        raise TypeError("the benchmark measures a translator")
    with torch.no_grad():  # the end token's logit is 0, far below the best
        model.embedding.table.weight[EOS] = 0.0
    sources = torch.randint(MASK + 1, grid.vocab, (batch, SOURCE)).tolist()
    search = Search([model.to(device).eval()], Greedy(), batch_size=batch)

    def run() -> None:
        found = search.translate(sources, max_ratio=1e-9, max_extra=output)
        if any(len(hypotheses[0].ids) != output for hypotheses in found):
            raise RuntimeError(f"an output does not have {output} tokens")

    return run
