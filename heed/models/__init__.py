"""Models: thin heads on the stack, one per task, made by `build`.

`build` makes a fresh model, `from_weights` one with given weights.
"""

from heed.models.backbone import Backbone
from heed.models.build import Model, build, from_weights
from heed.models.classifier import Classifier
from heed.models.language_model import LanguageModel
from heed.models.translator import Translator

__all__ = [
    "Backbone",
    "Classifier",
    "LanguageModel",
    "Model",
    "Translator",
    "build",
    "from_weights",
]
