"""The plan of a study: which trials its systems and seeds make, in which order.

All systems of the first seed come before those of the second, so that a study that ends early has
compared as many seeds of each system. Without a search the plan is a function of the study file and
of what was added to it: a trial whose file was lost gets the same name and number again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b

from heed.study.study_config import StudyConfig
from heed.study.study_folder import Additions
from heed.study.study_systems import System, expand_systems
from heed.study.trials import Trial

NO_ADDITIONS = Additions()
MAX_LABEL = 80
"""Characters of a system's name in file names."""


def plan_trials(config: StudyConfig, additions: Additions = NO_ADDITIONS) -> list[Trial]:
    """The trials of a study without a search: every system with every seed.

    Those of each addition come after all that the study had before it.
    """
    trials: dict[str, Trial] = {}
    for version in (*additions.before, config):
        systems = expand_systems(version)
        labels = label_systems(systems)
        for system, seed in ((system, seed) for seed in version.seeds for system in systems):
            name = f"{labels[system.name]}-seed{seed}"
            trial = Trial(name, len(trials), system.name, system.changes, system.recipe, seed)
            trials.setdefault(name, mark_added(trial, additions))
    return list(trials.values())


def mark_added(trial: Trial, additions: Additions) -> Trial:
    """The trial, marked as added where its seed or its system was added to the study."""
    is_added = trial.seed in additions.seeds or trial.system in additions.systems
    return replace(trial, added=True) if is_added else trial


def label_systems(systems: Sequence[System]) -> dict[str, str]:
    """A safe file name for each system: its name, with a hash where characters were replaced."""
    labels = {}
    for system in systems:
        label = re.sub(r"[^\w.+=-]+", "-", system.name, flags=re.ASCII).strip("-.")
        if label != system.name:
            suffix = blake2b(system.name.encode(), digest_size=3).hexdigest()
            label = f"{label[:MAX_LABEL]}-{suffix}".strip("-")
        labels[system.name] = label
    return labels
