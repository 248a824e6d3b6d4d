"""heed: train Transformers from scratch, see what they attend to, know which change was real."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from heed.api import Classifier, LanguageModel, Translator, load
    from heed.api.python_study import open_study, run_study, write_report
    from heed.config import register
    from heed.probe.patch import edit_attention
    from heed.runs.run import Run
    from heed.study.compare_named import compare_named as compare

__all__ = [
    "Classifier",
    "LanguageModel",
    "Run",
    "Translator",
    "__version__",
    "compare",
    "edit_attention",
    "load",
    "open_study",
    "register",
    "run_study",
    "write_report",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use: `import heed` alone loads no torch."""
    if name == "register":  # needs no torch either
        from heed.config import register

        return register
    if name == "compare":  # nor does this
        from heed.study.compare_named import compare_named

        return compare_named
    if name == "Run":  # nor does this
        from heed.runs.run import Run

        return Run
    if name == "edit_attention":
        from heed.probe.patch import edit_attention

        return edit_attention
    if name in ("open_study", "run_study", "write_report"):
        from heed.api import python_study

        return getattr(python_study, name)
    if name in __all__:
        from heed import api

        return getattr(api, name)
    raise AttributeError(f"module 'heed' has no attribute {name!r}")
