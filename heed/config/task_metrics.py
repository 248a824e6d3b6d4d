"""The metrics of each task by name, the primary one first, and those of which less is better."""

from __future__ import annotations

TASK_METRICS = {
    "translate": ("bleu", "chrf", "ter"),
    "classify": ("accuracy", "macro_f1", "log_loss"),
    "generate": ("bits_per_byte", "perplexity", "word_perplexity", "loss", "accuracy"),
}
"""Metrics that an evaluation gives, for each task; the first is its primary one."""
LOWER_IS_BETTER = ("ter", "log_loss", "bits_per_byte", "perplexity", "word_perplexity", "loss")
"""Metrics of which less is better; of all others, more."""
