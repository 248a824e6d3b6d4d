"""What is compared: one model that begins from its pretrained weights, and from random ones.

Both ways try the same learning rates and dropouts with one seed. At its best on dev each is trained
again with seeds that the choice has not seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

FIRST_SEED, FRESH_SEEDS = 0, (1, 2, 3, 4, 5)
"""Trials have the first; what is told of the chosen ones comes from the others."""
PRETRAIN, TUNE = "sst2/pretrain", "sst2/finetune-small"
"""The recipes: all else in them stays as it is."""
SHAPE = (
    "model.layers=4",
    "model.width=256",
    "model.heads=4",
    "model.dropout=0.1",
    "tokenizer.kind=bpe",
    "tokenizer.vocab_size=8000",
    "tokenizer.lowercase=true",
)
"""Of the model and of its tokenizer, either way."""
READING = (
    "train.batch_tokens=32768",
    "train.lr=1e-3",
    "train.warmup=400",
    "train.epochs=12",
)
"""Of the pretraining alone."""
TUNING = ("train.epochs=6",)
"""Of what is learnt with labels, either way."""
RANDOM = "init={}"
"""Takes away where the recipe begins from."""
RATES, DROPOUTS = (1e-4, 3e-4, 1e-3, 3e-3), (0.1, 0.3)
TUNED, SCRATCH = "tuned", "scratch"
WAYS: Mapping[str, str] = {TUNED: "pretrained, then fine-tuned", SCRATCH: "from scratch"}


@dataclass(frozen=True, order=True)
class Trial:
    """What both ways try."""

    rate: float
    dropout: float

    @property
    def changes(self) -> tuple[str, ...]:
        """What it tells the recipe."""
        return (f"train.lr={self.rate:g}", f"model.dropout={self.dropout:g}")

    @property
    def at_edge(self) -> bool:
        """Whether its rate is the lowest or the highest, so that one beyond might be better."""
        return self.rate in (RATES[0], RATES[-1])

    def __str__(self) -> str:
        return f"{self.rate:g}-{self.dropout:g}"


TRIALS = tuple(Trial(*both) for both in product(RATES, DROPOUTS))


@dataclass(frozen=True)
class Wanted:
    """One run of a classifier."""

    way: str
    trial: Trial
    seed: int
    tested: bool = False
    """Whether it is to be scored: only what dev has chosen."""

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.way}-{self.trial}-{self.seed}"


def sweep(way: str) -> list[Wanted]:
    """All trials of a way."""
    return [Wanted(way, trial, FIRST_SEED) for trial in TRIALS]


def fresh(way: str, trial: Trial) -> list[Wanted]:
    """What was chosen, with seeds of its own."""
    return [Wanted(way, trial, seed, tested=True) for seed in FRESH_SEEDS]


def best(found: Mapping[Trial, float]) -> Trial | None:
    """The trial of the highest figure, of equals the lowest rate; None where there is none."""
    return max(sorted(found), key=lambda trial: found[trial], default=None)


def shape(changes: Iterable[str]) -> list[str]:
    """Of some changes those that make the model and its tokenizer what they are."""
    return [change for change in changes if change.startswith(("model.", "tokenizer."))]


def lasting(*lists: Sequence[str]) -> list[str]:
    """Changes without those that a later one takes back."""
    found = {change.partition("=")[0]: change for changes in lists for change in changes}
    return list(found.values())
