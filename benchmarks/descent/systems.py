"""What is compared: the optimizers, two tasks, and the learning rates that each optimizer tries.

All try the same rates, half a decade apart, with one seed. Who wins at an edge of them might do
better beyond it: then all of that task try one rate more on that side. At its best rate on dev
each is trained again with seeds that the choice has not seen, and all once more at one rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FIRST_SEED, FRESH_SEEDS = 0, (1, 2, 3)
"""Rates are chosen with the first; what is told of the chosen ones comes from the others."""
LOWEST, HIGHEST = -9, 2
"""Rates are 10^(half/2): 12 of them from 3.16e-05 to 10, so that every rule's usual one is inside.
"""
BEYOND = 2
"""Rates that may be added on a side."""
SHARED = -6
"""The rate that all are held to for comparison, 0.001: AdamW's and Adam's default in torch."""


def rate(half: int) -> float:
    """The learning rate so many half decades from 1."""
    return float(f"{10 ** (half / 2):.3g}")


@dataclass(frozen=True)
class Rule:
    """An optimizer and what it is told."""

    name: str
    label: str
    changes: tuple[str, ...]


@dataclass(frozen=True)
class Task:
    """What is learnt, and by what it is judged."""

    name: str
    title: str
    recipe: str
    changes: tuple[str, ...]
    metric: str
    """Of dev, by which checkpoints and rates are chosen."""
    unit: str
    rises: bool
    """Whether more is better."""
    near: float
    """Rates whose figure is as near to the best are called as good."""

    def better(self, one: float, other: float) -> bool:
        """Whether a figure beats another."""
        return one > other if self.rises else one < other


def _rule(name: str, label: str, optimizer: str, *changes: str, decay: float) -> Rule:
    told = (f"train.optimizer={optimizer}", f"train.weight_decay={decay}", *changes)
    return Rule(name, label, told)


REFERENCE = "adamw"
"""What the others are held against."""
PLAIN, HEAVY = "sgd", "sgd-momentum"
RULES = (
    _rule(REFERENCE, "AdamW", "adamw", decay=0.01),
    _rule("adam", "Adam", "adam", decay=0.0),
    _rule("adagrad", "Adagrad", "adagrad", decay=0.0),
    _rule(PLAIN, "SGD", "sgd", "train.momentum=0.0", decay=0.0),
    _rule(HEAVY, "SGD with momentum", "sgd", "train.momentum=0.9", decay=0.0),
    _rule("muon", "Muon", "muon", decay=0.01),
    _rule("lion", "Lion", "lion", decay=0.01),
)
LABELS: Mapping[str, str] = {rule.name: rule.label for rule in RULES}
ALIKE = ("train.schedule=linear", "train.precision=float32", "train.ema=0.0")
"""For both tasks: no running mean of the weights, which would hide what a rule does by itself."""
TASKS = (
    Task(
        "classify",
        "SST-2",
        "sst2/scratch-stack",
        (*ALIKE, "train.epochs=4", "train.evaluate_every=50"),
        metric="accuracy",
        unit="accuracy",
        rises=True,
        near=0.01,
    ),
    Task(
        "generate",
        "tinyshakespeare",
        "lm/nano",
        (
            *ALIKE,
            "tokenizer.vocab_size=1000",
            "data.windows=random",
            "data.max_length=64",
            "train.batch_size=16",
            "train.steps=600",
            "train.epochs=100",  # more than are needed for the steps
            "train.evaluate_every=60",
        ),
        metric="loss",
        unit="loss a token",
        rises=False,
        near=0.05,
    ),
)


def grid(added: Sequence[int] = (0, 0)) -> list[int]:
    """The half decades to try, with so many added below and above."""
    below, above = added
    return list(range(LOWEST - below, HIGHEST + above + 1))


def best(task: Task, figures: Mapping[int, float]) -> int | None:
    """The half decade with the best figure, of equals the lowest; None where there is none."""
    chosen: int | None = None
    for half in sorted(figures):
        if chosen is None or task.better(figures[half], figures[chosen]):
            chosen = half
    return chosen


def folder_name(task: Task, rule: Rule, half: int, seed: int) -> str:
    """Of a run."""
    return f"{task.name}-{rule.name}-{rate(half):g}-{seed}"
