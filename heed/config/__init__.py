"""Recipes: one TOML file that says everything about a run. Typed, strict, and free of torch.

A recipe has the sections `data`, `tokenizer`, `model`, `init`, `train`, `decode`. Every key has a
default, the text below a key is its help, an unknown key is an error that names the nearest known
one, and all complaints about a recipe come at once.
"""

from heed.config.base import Section
from heed.config.model import ModelConfig
from heed.config.recipe import SECTIONS, TASKS, Recipe, blamed, changed, read_tables
from heed.config.registry import MERGES, POSITIONS, register
from heed.config.sections import (
    DataConfig,
    DecodeConfig,
    InitConfig,
    TokenizerConfig,
    TrainConfig,
)

__all__ = [
    "MERGES",
    "POSITIONS",
    "SECTIONS",
    "TASKS",
    "DataConfig",
    "DecodeConfig",
    "InitConfig",
    "ModelConfig",
    "Recipe",
    "Section",
    "TokenizerConfig",
    "TrainConfig",
    "blamed",
    "changed",
    "read_tables",
    "register",
]
