"""The sections `data` and `tokenizer`: which text, and how it becomes token ids."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from heed.config.base import Check, Count, Section, Seed, Share, Size

RESERVED = (
    *("train", "dev", "test", "train-set", "average"),
    *("event", "step", "epoch", "tokens", "time", "seen", "kept"),
)
"""Names of the recipe's own sets, and other keys of a line of metrics."""


def names_a_file(name: str) -> bool:
    """Whether a file can be named after this, without leaving its folder."""
    return bool(name) and "/" not in name and not name.startswith(".")


def _check_set_name(name: str) -> str | None:
    """Why a set of `data.sets` cannot have this name; None where it can."""
    if name in RESERVED:
        return f"sets cannot have a set {name!r}: the name is reserved. Choose another."
    if not names_a_file(name) or name.endswith("-clean"):
        todo = "Choose one without a slash that neither begins with a dot nor ends with -clean."
        return f"sets cannot have a set {name!r}: files and metrics are named after it. {todo}"
    return None


def _check_pattern(key: str, pattern: str | None) -> str | None:
    try:
        re.compile(pattern or "")
    except (re.error, OverflowError, RecursionError) as error:
        return f"{key} is not a regular expression: {error}."
    return None


class DataConfig(Section):
    """Which text. Two plain files are the two sides of a translation; a table holds both."""

    train: list[str] = Field(default_factory=list)
    """Training files."""
    dev: list[str] = Field(default_factory=list)
    """Dev (validation) files; without any, a share of train is set aside for dev."""
    dev_share: Share = 0.05
    """Share of train that is set aside for dev where no dev files are named, at most 2,000 texts;
    0 trains on all of it, and the last weights are kept."""
    dev_seed: Seed = 0
    """Random seed of the dev split that is set aside. It does not depend on `seed`, so runs with
    different seeds are evaluated on the same sentences."""
    test: list[str] = Field(default_factory=list)
    """Test files, used only for the final score."""
    synthetic: Count | None = None
    """Train on this many generated sentences instead of files (docs/synthetic.md)."""
    synthetic_test: Count = 1000
    """Sentences in the generated dev set, and in the generated test set."""
    world_seed: Seed = 0
    """Random seed of the generated text. It does not depend on `seed`, so runs with different seeds
    are trained and tested on the same sentences."""
    sets: dict[str, list[str]] = Field(default_factory=dict)
    """Further evaluation sets by name: { name = ["file"] }."""
    header: bool | None = None
    """Whether the first row of a TSV or CSV file names its columns; unset, that row decides."""
    groups: str | None = None
    """Column of the test tables that names the talk, document or speaker of each text. Texts of one
    group resemble each other; `heed compare` takes the variance over groups."""
    unit: Literal["line", "document", "file"] = "line"
    """What one example of a plain text file is, for language models."""
    max_length: Size = 256
    """Maximum tokens of a sequence. Longer ones are truncated and counted; a language model reads
    them in windows."""
    drop_pattern: str | None = None
    """Leave out training examples that match this regular expression; "^<" drops markup."""
    bidirectional: bool = False
    """Train every sentence pair in both directions; the model then translates either way
    (docs/small-data.md). Evaluation is source to target."""
    denoise: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Share of target sentences added to each epoch for denoising: tokens are masked, dropped and
    shuffled, and the model restores them. With `bidirectional`, source sentences too."""
    pack: bool = False
    """Pack several sequences into one training row; attention stays within each. For language
    models."""
    windows: Literal["random"] | None = None
    """Train a language model on windows of max_length tokens at random offsets of the concatenated
    text; unset, on whole sequences."""

    checks: ClassVar[tuple[Check, ...]] = (
        lambda d: (
            "pack and windows are two ways to fill a row: use one of them."
            if d.pack and d.windows
            else None
        ),
        lambda d: (
            "synthetic and train are two sources of text: give one of them."
            if d.synthetic is not None and d.train
            else None
        ),
        lambda d: _check_pattern("drop_pattern", d.drop_pattern),
        lambda d: next(filter(None, map(_check_set_name, d.sets)), None),
    )

    @property
    def splits_off_dev(self) -> bool:
        """Whether a share of train is set aside for dev."""
        return not self.dev and self.synthetic is None and self.dev_share > 0

    @property
    def has_dev(self) -> bool:
        """Whether there is a dev set: named, generated or set aside from train."""
        return bool(self.dev) or self.synthetic is not None or self.splits_off_dev


class TokenizerConfig(Section):
    """How text becomes token ids."""

    kind: Literal["bpe", "unigram", "word", "char", "byte"] = "bpe"
    """Subwords (byte-pair encoding or a unigram model), words, characters or bytes."""
    vocab_size: Size | None = None
    """Vocabulary size; unset, as large as the text supports (at most 8,000 for bpe and unigram)."""
    min_count: Count = 1
    """Minimum count of a word or character in the vocabulary; rarer ones are unknown."""
    lowercase: bool = False
    """Lowercase the text first."""
    split: Literal["space", "treebank"] = "space"
    """Pre-tokenization of kind `word`: by white space, or Penn Treebank style."""
    text: list[str] = Field(default_factory=list)
    """Further files to train the tokenizer on, beside data.train."""
    dropout: Share = 0.0
    """BPE dropout (Provilkov et al. 2020): the share of merges skipped at random. Each epoch
    then has other segmentations of the training text (docs/small-data.md); 0.1 is usual."""

    checks: ClassVar[tuple[Check, ...]] = (
        lambda t: (
            f"split {t.split!r} is for kind 'word', not for {t.kind!r}."
            if t.split != "space" and t.kind != "word"
            else None
        ),
        lambda t: (
            f"dropout skips merges, and kind {t.kind!r} has none: use kind = 'bpe'."
            if t.dropout and t.kind != "bpe"
            else None
        ),
    )
