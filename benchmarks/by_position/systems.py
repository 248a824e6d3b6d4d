"""The runs of the study: three models, seven positions, several seeds; and the padded text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import normalizers, pre_tokenizers

from heed.data.corpus import open_corpus
from heed.data.tokenizers.treebank import pre_tokenizer, quote_normalizers

POSITIONS = ("sinusoidal", "learned", "shaw", "t5", "alibi", "rope", "none")
SEEDS = 5
LENGTH = 32
"""Tokens that the report's models read, and the side of its pictures."""
PADDING = "PADDING"
"""A word that the speeches don't have: padding that no mask hides."""
MODELS = {
    "encoder": "the classifier",
    "padded": "the classifier, its padding not masked",
    "decoder": "the language model",
}
SENTENCES = {
    "short": "This is a test sentence",
    "long": (
        "This is a much longer, and perhaps unnecessarily verbose test sentence, designed to show "
        "the capabilities of the attention mechanism"
    ),
}
"""The sentences of the course reports."""


@dataclass(frozen=True)
class RunPlan:
    """One run: its name, and the recipe with its changes."""

    model: str
    position: str
    seed: int

    @property
    def name(self) -> str:
        """The name of its folder and of its measurements."""
        return f"{self.model}-{self.position}-{self.seed}"

    @property
    def padded(self) -> bool:
        """Whether it reads the padded text."""
        return self.model == "padded"

    @property
    def recipe(self) -> str:
        """The shipped recipe with the course report's settings."""
        task = "generate" if self.model == "decoder" else "classify"
        return f"speeches/{task}-reported"

    @property
    def changes(self) -> list[str]:
        """What is changed in the recipe.

        The language model reads lines, each from its begin token, as it will be probed.
        """
        changes = [f"seed={self.seed}", f"model.position={self.position}"]
        if self.padded:
            changes.append("tokenizer.split=space")
        if self.model == "decoder":
            changes.append("data.unit=line")
        return changes


def plan_runs(models: Sequence[str], seeds: int) -> list[RunPlan]:
    """The runs in order: all systems before the next seed, so that each has as many."""
    return [
        RunPlan(model, position, seed)
        for seed in range(seeds)
        for model in models
        for position in POSITIONS
    ]


def split_words(text: str) -> list[str]:
    """The words of a text as the reports' tokenizer splits them."""
    text = normalizers.Sequence(quote_normalizers()).normalize_str(text)
    splitter = pre_tokenizers.Sequence([pre_tokenizer(), pre_tokenizers.WhitespaceSplit()])
    return [word for word, _ in splitter.pre_tokenize_str(text)]


def pad_text(text: str) -> str:
    """A text with padding words up to the model's length, begin and end token counted."""
    words = split_words(text)
    return " ".join([*words, *[PADDING] * (LENGTH - 2 - len(words))])


def read_labeled(path: Path) -> list[tuple[str, str]]:
    """Texts with their labels."""
    records = open_corpus([str(path)], task="classify").usable_records()
    return [(record.texts[0], str(record.label)) for record in records]


def write_padded_speeches(source: Path, folder: Path) -> None:
    """Copies of the labeled speeches in which padding is words."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train_CLS.tsv", "test_CLS.tsv"):
        lines = [f"{label}\t{pad_text(text)}\n" for text, label in read_labeled(source / name)]
        (folder / name).write_text("".join(lines), encoding="utf-8")
