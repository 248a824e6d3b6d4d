"""Every language model that is trained, in groups that each answer one question."""

from __future__ import annotations

from ted.systems import System

RECIPE = "lm/nano"
OVER = ("token", "sequence", "batch")
WHEN = {"always": "always", "training": "in training only"}
LONGER = ("train.epochs=3", "train.lr=5e-3", "train.evaluate_every=215")
"""Three epochs at ten times the rate: a model that has learnt more than one epoch teaches."""
SENTENCES = {
    "ordinary": "Good morrow, my lord; I pray you, tell me what news you bring from the king.",
    "odd": "After learning language models model natural language",
    "long": (
        "When the old duke, who had ruled the city for thirty years and had never once in all that "
        "time been seen to weep, heard from the messenger that his ships were lost, that his sons "
        "were taken, and that the friend to whom he had given half of his land and all of his "
        "trust had opened the gates at night and let the enemy come in, he rose from his chair, "
        "walked slowly to the window from which he had so often watched the harbour, looked at the "
        "smoke above the roofs and at the people who ran through the streets with whatever they "
        "could carry, and said to those who stood about him, and who did not dare to look at his "
        "face, that a man who has lost everything may at last sleep soundly, for there is no door "
        "left that he must lock, no letter that he must fear to open, and no voice in the dark "
        "that he must pretend not to hear."
    ),
}
"""Ours, in the manner of the corpus; the odd one is the course report's."""


def _merge(merge: str, when: str, *more: str, prefix: str = "", label: str = "") -> System:
    changes = (f"model.merge={merge}", f"model.merge_when={when}", *more)
    name = label or merge
    kept = f"{prefix}{name.replace(' over a ', '-')}" + ("-training" if when == "training" else "")
    return System(kept, RECIPE, changes, name if when == "always" else f"{name}, {WHEN[when]}")


def _reweight(over: str, when: str, *more: str, prefix: str = "") -> System:
    told = (f"model.reweight_over={over}", f"model.leaky={str(over != 'token').lower()}", *more)
    return _merge("reweight", when, *told, prefix=prefix, label=f"reweight over a {over}")


PLAIN = System("plain", RECIPE, label="concat")
"""The recipe as it is: positions by rotation, heads side by side."""
POSITIONS = [
    System(name, RECIPE, (f"model.position={name}",), name) for name in ("learned", "sinusoidal")
]
REWEIGHT = [_reweight(over, when) for over in OVER for when in WHEN]
MERGES = [PLAIN, *(_merge(merge, when) for merge in ("shuffle", "shift") for when in WHEN)]
LONG_PLAIN = System("longer-concat", RECIPE, LONGER, "concat")
LONG = [LONG_PLAIN, *(_reweight(over, "always", *LONGER, prefix="longer-") for over in OVER)]
HEADS = [
    System(
        f"longer-heads-{heads}",
        RECIPE,
        ("model.merge=reweight", f"model.heads={heads}", *LONGER),
        f"reweight over a token, {heads} heads",
    )
    for heads in (6, 12)
]
"""The width is the same: heads are narrower the more there are."""
GROUPS: dict[str, list[System]] = {
    "longer": [*HEADS, *LONG],
    "positions": [*POSITIONS, PLAIN],
    "merges": [*MERGES, *REWEIGHT[:2]],
    "reweight": [PLAIN, *REWEIGHT],
}
"""In the order in which they are trained: those that take longest first."""
SYSTEMS = {system.name: system for group in GROUPS.values() for system in group}
