"""A forked child may encode text, and nobody need hear of it."""

from __future__ import annotations

import os


def quiet_forks() -> None:
    """Let a forked child encode on one thread, without the library's warning.

    The library's threads do not outlive a fork. Before version 0.23 it prints a warning in the
    child unless it was told so first. So it is told before each fork, and in the parent untold.
    """
    name, told = "TOKENIZERS_PARALLELISM", []

    def before() -> None:
        if name not in os.environ:
            os.environ[name] = "false"
            told.append(name)

    def after_in_parent() -> None:
        while told:
            os.environ.pop(told.pop(), None)

    if hasattr(os, "register_at_fork"):  # Windows has no fork
        os.register_at_fork(
            before=before, after_in_parent=after_in_parent, after_in_child=told.clear
        )
