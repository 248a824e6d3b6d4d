"""The section `decode`: beam search, sampling and output length."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from heed.config.base import MAX_BEAM, Check, Count, Positive, Section, Seed, Share

MAX_RATIO, MAX_EXTRA = 1000.0, 100_000
"""Bounds of the longest output: the decoder's memory grows with it."""


class DecodeConfig(Section):
    """How a trained model generates text."""

    max_ratio: Annotated[float, Field(gt=0.0, le=MAX_RATIO)] = 2.0
    """Most output tokens per source token (the limit is max_ratio · source + max_extra)."""
    max_extra: Annotated[int, Field(ge=0, le=MAX_EXTRA)] = 10
    """Tokens added to that limit."""
    batch_size: Count | None = None
    """Sentences decoded at once. Default: 256 on a CPU, 2,048 on a GPU, fewer if they are long."""
    beam: Annotated[int, Field(ge=1, le=MAX_BEAM)] = 1
    """Beam size; 1 is greedy decoding."""
    length_penalty: Annotated[float, Field(ge=0.0, le=10.0)] = 1.0
    """Hypotheses are ranked by log-probability divided by length to this power."""
    coverage_penalty: Annotated[float, Field(ge=0.0, le=1000.0)] = 0.0
    """Penalty for source tokens that received little attention (Wu et al. 2016)."""
    early_stop: bool = False
    """Stop once as many hypotheses have ended as the beam is wide, even if a running one could
    score higher."""
    sample: bool = False
    """Sample each token instead of searching."""
    temperature: Positive = 1.0
    """Sampling temperature: logits are divided by it; below 1 likely tokens become likelier."""
    top_k: Count | None = None
    """Sample from the k likeliest tokens."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Nucleus sampling: from the fewest tokens that together have this probability."""
    min_p: Share = 0.0
    """Sample from tokens with at least this share of the likeliest token's probability."""
    seed: Seed = 0
    """Random seed of sampling; each sample of each sentence has its own stream."""
    copy_unknown: bool = False
    """Replace each unknown output word by the source word it attends to most."""

    checks: ClassVar[tuple[Check, ...]] = (
        lambda d: (
            f"sample and beam = {d.beam} are two ways to choose a token: use one of them."
            if d.sample and d.beam > 1
            else None
        ),
    )
