"""Recipes: one TOML file that describes a whole run. Typed, strict, free of torch.

A recipe has the sections `data`, `tokenizer`, `model`, `init`, `train`, `decode`. Every key has a
default, and the docstring below a key is its help. An unknown key is an error that names the
nearest known one, and all errors of a recipe are reported at once.
"""

from heed.config.base import Section
from heed.config.data import DataConfig, TokenizerConfig
from heed.config.decode import DecodeConfig
from heed.config.model import ModelConfig
from heed.config.recipe import (
    SECTIONS,
    TASKS,
    Recipe,
    apply_overrides,
    error_location,
    read_tables,
)
from heed.config.registry import MERGES, POSITIONS, register
from heed.config.train import InitConfig, TrainConfig

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
    "apply_overrides",
    "error_location",
    "read_tables",
    "register",
]
