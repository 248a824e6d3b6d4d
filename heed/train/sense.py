"""Keys of a recipe that are for another task, or that name what there is not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from heed.config import Recipe, Section
from heed.errors import ConfigError, nearest
from heed.train import trackers
from heed.train.optimizers.build import settings_of
from heed.train.optimizers.schedules import schedule

FOR = {
    "data.both": "translate",
    "data.denoise": "translate",
    "data.unit": "generate",
    "model.decoder_layers": "translate",
    "model.ngrams": "classify",
    "train.class_weights": "classify",
    "train.evaluate_bleu": "translate",
    "train.hide_source": "translate",
    "train.mask_share": "generate",
    "train.objective": "generate",
    "train.token_dropout": "classify",
}
"""The task that a key is for. With another it would do nothing, so it must be left as it is."""
METRICS = ("loss", "perplexity", "accuracy")


def complaints(recipe: Recipe) -> Iterator[str]:
    """What makes no sense, a sentence each."""
    train, data = recipe.train, recipe.data
    for key, task in FOR.items():
        name, _, field = key.partition(".")
        # What it begins from may have given it this.
        given = key == "model.decoder_layers" and recipe.init.run is not None
        if task != recipe.task and not given and _is_set(getattr(recipe, name), field):
            yield f"[{name}] {field} is for task {task!r}, not {recipe.task!r}."
    if train.objective == "next" and recipe.task == "generate" and _is_set(train, "mask_share"):
        yield "[train] mask_share is for objective 'masked', not 'next'."
    if (data.pack or data.blocks) and (recipe.task != "generate" or train.objective == "masked"):
        key = "pack" if data.pack else "blocks"
        yield f"[data] {key} is for language models that predict the next token."
    for key in ("dev", "test", "sets"):
        if data.world is not None and getattr(data, key):
            yield (
                f"[data] {key} would not be read: this recipe makes its own text (data.world). "
                "Name files to learn from too (--train FILE), or leave it out."
            )
    yield from _refusals(lambda: settings_of(train))
    yield from _refusals(lambda: schedule(train.schedule, warmup=0, steps=1))
    yield from trackers.complaints(train.track)
    sets = ["dev", *data.sets]
    if "-clean/" in train.best:  # what of a set is not also in train, if any, is yet to be read
        sets += [f"{name}-clean" for name in sets]
    scored = sets + ["train"] * train.evaluate_train
    yield from unknown_best(train.best, scored, sets if train.evaluate_bleu else [])


def unknown_best(best: str, sets: Collection[str], translated: Collection[str]) -> Iterator[str]:
    """A sentence where `train.best` names no metric of these sets; only some have a BLEU."""
    known = [f"{name}/{metric}" for name in sets for metric in METRICS]
    known += [f"{name}/bleu" for name in translated]
    if best not in known:
        options = ", ".join(known)
        yield f"[train] best cannot be {best!r}: it is one of {options}.{nearest(best, known)}"


def _is_set(section: Section, field: str) -> bool:
    """Whether a key has another value than it has by default."""
    default = type(section).model_fields[field].get_default(call_default_factory=True)
    return bool(getattr(section, field) != default)


def _refusals(make: Callable[[], object]) -> list[str]:
    """Why this cannot be made; nothing where it can."""
    try:
        make()
    except ConfigError as error:
        return error.complaints
    return []
