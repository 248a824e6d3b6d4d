"""Weights of `transformers`, in and out: BERT, RoBERTa, GPT-2, Marian and T5 on our own stack.

`load` reads a folder that `save_pretrained` wrote, `save` writes one that `from_pretrained` reads.
Which names belong together stands in one table a model, in the modules beside this.
"""

from __future__ import annotations

from heed.models.huggingface.load import class_names, load, of_pairs
from heed.models.huggingface.save import save

__all__ = ["class_names", "load", "of_pairs", "save"]
