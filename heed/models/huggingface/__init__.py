"""Hugging Face weights in and out: BERT, RoBERTa, GPT-2, Marian and T5 on heed's own stack.

`load` reads a folder written by `save_pretrained`; `save` writes one that `from_pretrained` reads.
Each architecture has one module with its table of weight names.
"""

from __future__ import annotations

from heed.models.huggingface.from_pretrained import class_names, is_pair_classifier, load
from heed.models.huggingface.save_pretrained import save

__all__ = ["class_names", "is_pair_classifier", "load", "save"]
