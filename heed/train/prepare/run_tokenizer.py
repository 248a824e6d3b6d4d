"""The tokenizer of a run: its own, its pretrained model's, or one trained on its text."""

from __future__ import annotations

from heed.config import Recipe
from heed.data.corpus import Corpus
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.runs.load import load_tokenizer
from heed.runs.run import Run
from heed.terminal import Say
from heed.train.prepare.init_from import PretrainedModel
from heed.train.prepare.text_cache import cached_tokenizer


def get_tokenizer(
    recipe: Recipe,
    run: Run,
    corpora: dict[str, Corpus],
    pretrained: PretrainedModel | None,
    say: Say,
) -> Tokenizer:
    """The run's tokenizer, or its pretrained model's; else a cached or a newly trained one."""
    recorded, damaged = "files" in run.environment(), run.find_damaged_tokenizer()
    if recorded and (damaged is None or recipe.init.from_model is not None):
        return load_tokenizer(run)
    if pretrained is not None:
        pretrained.tokenizer.save(run.tokenizer_path)
        return pretrained.tokenizer
    if damaged is not None:
        say(f"{damaged}: this file is missing or damaged; it is written again.")
    tokenizer = cached_tokenizer(recipe, corpora, say)
    tokenizer.save(run.tokenizer_path)
    return load_tokenizer(run) if recorded else tokenizer
