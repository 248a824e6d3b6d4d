"""From a recipe to everything the loop needs: text, tokenizer, batches, model, device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from heed.config import Recipe
from heed.config.checks import find_conflicts
from heed.data.batching.bucketed import BucketedBatches
from heed.data.batching.length_buckets import Rows
from heed.data.batching.packing import PackedBatches
from heed.data.batching.random_windows import RandomWindows
from heed.data.corpus import Corpus
from heed.data.doctor import examine
from heed.data.held_out import DEV_SHARE, hold_out_dev
from heed.data.splits import open_splits
from heed.data.token_store import Store, open_store
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.device import wants_bf16
from heed.errors import ConfigError, DataError
from heed.models import Classifier, Model, build
from heed.runs.labels import Classes
from heed.runs.run import Run
from heed.train import checkpoint
from heed.train.dev_bleu import Pair, pairs_of
from heed.train.distributed.ranks import ALONE, World
from heed.train.precompile import compiling_ahead
from heed.train.prepare import init_from as origins
from heed.train.prepare import ngram_weights
from heed.train.prepare.class_weights import classes_of, refuse_unknown, weights_of
from heed.train.prepare.init_from import Origin
from heed.train.prepare.run_tokenizer import tokenizer_for, tokenizer_text

Say = Callable[[str], None]
MENDED = {
    "unseen-label": "Mend the label, or add texts that have it to train.",
    "one-class": "Give texts of two classes or more.",
    "nothing-left": "Name a file that has text.",
}
"""What to do about what the doctor finds."""


@dataclass
class TrainingSetup:
    """Everything a recipe stands for, made."""

    recipe: Recipe
    device: torch.device
    bf16: bool
    tokenizer: Tokenizer
    classes: tuple[str, ...]
    model: Model
    train: BucketedBatches | PackedBatches
    sets: dict[str, BucketedBatches]
    """The splits to evaluate on while training, by name."""
    data_hashes: dict[str, str]
    world: World = ALONE
    pairs: dict[str, list[Pair]] = field(default_factory=dict)
    """Source and reference of the sets whose BLEU is asked for at every evaluation."""
    begun: bool = False
    """Whether there are checkpoints, from which the weights are to come; whole or not."""
    class_weights: tuple[float, ...] | None = None
    """What a text of each class counts for; None, all alike."""
    new: tuple[str, ...] = ()
    """Parts of the model that its origin did not have, where it began from one."""


def prepare(
    recipe: Recipe,
    run: Run,
    *,
    device: torch.device,
    say: Say,
    world: World = ALONE,
    origin: Origin | None = None,
) -> TrainingSetup:
    """Read and check the text, make or load the tokenizer, build the model.

    Among several ranks the first goes ahead where files are written; the others find them.
    `origin` is what the recipe begins from, where it is open already.
    """
    begun = checkpoint.any_in(run.checkpoints)
    if origin is None and recipe.init.from_model is not None and not begun:
        with world.in_turn():
            origin = origins.open_origin(recipe.init.from_model)
    bf16 = wants_bf16(recipe.train.precision, device)
    with compiling_ahead(recipe, device):
        parts = _prepare(recipe, run, device, bf16, say, world, origin)
    parts.begun = begun
    return parts


def _prepare(
    recipe: Recipe,
    run: Run,
    device: torch.device,
    bf16: bool,
    say: Say,
    world: World,
    origin: Origin | None,
) -> TrainingSetup:
    with world.in_turn():
        corpora = open_splits(recipe)
    known = world.once(lambda: _see_the_doctor(corpora, say))
    with world.in_turn():
        tokenizer = tokenizer_for(
            recipe, run, corpora["train"], origin, say, dev_within="dev" not in corpora
        )
        classes = classes_of(corpora["train"]) if recipe.task == "classify" else Classes(())
        train, sets = _batches(recipe, corpora, tokenizer, classes.names)
        weights = weights_of(recipe, classes, sets["train"])
        classes.save(run)
    if not recipe.data.dev and recipe.data.synthetic is None:
        say(_apart(corpora, sets["dev"].store, recipe.data.dev_seed))
    for name, seen in known.items():
        sets |= _clean(name, sets[name], seen)
    for name, split in sets.items():
        if split.truncated:
            are = "text is" if split.truncated == 1 else "texts are"
            limit = f"longer than {recipe.data.max_length} tokens"
            say(f"{name}: {split.truncated:,} {are} {limit}; cut.")
    torch.manual_seed(recipe.seed)
    model = build_model(recipe, tokenizer, len(classes.names) or None)
    if isinstance(model, Classifier) and model.grams is not None:
        ngram_weights.look_at(model.grams, recipe, tokenizer, sets["train"], len(classes.names))
    if origin is not None:
        new = origins.begin(model, recipe.task, origin, say, classes.names)
    else:  # a run that goes on has kept it: its origin may be gone
        new = tuple(run.environment().get("new_parts", ()))
    origins.choose_learners(model, recipe.init, new, say)
    model.to(device)
    if not recipe.train.evaluate_train:
        sets.pop("train")
    hashes = {name: corpus.fingerprint() for name, corpus in corpora.items()}
    pairs = _pairs(corpora, sets) if recipe.train.evaluate_bleu else {}
    names = classes.names
    return TrainingSetup(
        recipe,
        device,
        bf16,
        tokenizer,
        names,
        model,
        train,
        sets,
        hashes,
        world,
        pairs,
        class_weights=weights,
        new=new,
    )


def _apart(corpora: dict[str, Corpus], store: Store, seed: int) -> str:
    """What is set aside to choose by, in words."""
    part = f"the last {DEV_SHARE:.0%} of the lines of each file of train"
    if "dev" not in corpora:
        held_out, _ = hold_out_dev(len(store), seed)
        part = f"{len(held_out):,} of the {len(store):,} texts of train"
    return f"dev: {part}, set aside, for no files are named."


def _pairs(corpora: dict[str, Corpus], sets: dict[str, BucketedBatches]) -> dict[str, list[Pair]]:
    """The texts of every set but train; a dev set that was set aside is a part of train's."""
    return {
        name: pairs_of(corpora.get(name.removesuffix("-clean"), corpora["train"]), batches)
        for name, batches in sets.items()
        if name != "train"
    }


def validate_recipe(recipe: Recipe, origin: Origin | None = None) -> None:
    """Refuse a recipe whose keys conflict or whose files are missing, before anything is written.

    `origin` is the pretrained model of `init.from`.
    """
    cross_attention = origin is None or origin.has_cross_attention
    complaints = find_conflicts(recipe, pretrained_cross_attention=cross_attention)
    if complaints:
        raise ConfigError(complaints)
    tokenizer_text(recipe)
    if recipe.data.synthetic is None:
        refuse_unknown(recipe, open_splits(recipe)["train"])


def build_model(recipe: Recipe, tokenizer: Tokenizer, classes: int | None) -> Model:
    """The model a recipe asks for, freshly drawn."""
    return build(
        recipe.task,
        recipe.model,
        vocab=tokenizer.vocab_size,
        classes=classes,
        causal=recipe.train.objective == "causal",
    )


def _see_the_doctor(corpora: dict[str, Corpus], say: Say) -> dict[str, list[int]]:
    """Say what would hurt; refuse what cannot be read.

    Returns the sets that train has a part of, each with the texts that it has.
    """
    report = examine(corpora)
    if not report.ok:
        first, errors = report.errors[0], len(report.errors)
        files = ", ".join(corpora[first.split].paths)
        todo = [MENDED[first.code]] if first.code in MENDED else []
        if errors > 1 or not todo:
            todo.append("`heed check` on these files shows everything.")
        raise DataError(
            f"{first.message.rstrip('.')}.",
            where=str(first.places[0]) if first.places else files,
            todo=" ".join(todo),
        )
    for finding in report.findings:
        if finding.severity == "warning":
            lost = finding.code in ("empty", "unlabelled")
            place = f" (the first is {finding.places[0]})" if lost else ""
            say(f"{finding.split}: {finding.message}{place}")
    return {name: np.flatnonzero(seen).tolist() for name, seen in report.seen.items() if seen.any()}


def _clean(name: str, whole: BucketedBatches, seen: list[int]) -> dict[str, BucketedBatches]:
    """The part of a set that is not also in train, to be scored beside the whole."""
    unseen = np.setdiff1d(np.arange(len(whole.store)), seen)
    return {f"{name}-clean": whole.subset(unseen)} if len(unseen) else {}


def batches_of(recipe: Recipe, store: Store, rows: Rows | None = None) -> BucketedBatches:
    """Some of a store's texts, or all, as a recipe's model reads them."""
    settings = recipe.train
    return BucketedBatches(
        store,
        recipe.task,
        max_length=recipe.data.max_length,
        batch_tokens=settings.batch_tokens,
        batch_size=settings.batch_size,
        seed=recipe.seed,
        rows=rows,
        mask_share=_hidden(recipe),
        bidirectional=recipe.data.bidirectional,
        denoise=recipe.data.denoise,
    )


def _hidden(recipe: Recipe) -> float:
    """The share of tokens that a model does not see: to guess it, or to do without."""
    settings = recipe.train
    if recipe.task == "classify":
        return settings.token_dropout
    if recipe.task == "translate":
        return settings.source_token_dropout
    return settings.mask_share if settings.objective == "masked" else 0.0


def _batches(
    recipe: Recipe, corpora: dict[str, Corpus], tokenizer: Tokenizer, classes: tuple[str, ...]
) -> tuple[BucketedBatches | PackedBatches, dict[str, BucketedBatches]]:
    """What to learn from, and every set to evaluate on, the training text under `train`."""
    settings, data = recipe.train, recipe.data
    dropout = {"train": recipe.tokenizer.dropout}
    stores = {
        name: open_store(
            corpus, tokenizer, classes=classes, dropout=dropout.get(name, 0.0), seed=recipe.seed
        )
        for name, corpus in corpora.items()
    }
    rows: dict[str, Rows | None] = dict.fromkeys(stores)
    if "dev" not in stores:  # a share of train is set aside
        stores["dev"] = stores["train"].without_segmentations()
        count = len(stores["train"])
        rows["dev"], rows["train"] = hold_out_dev(count, data.dev_seed)
    sets = {name: batches_of(recipe, store, rows[name]) for name, store in stores.items()}
    if not (data.pack or data.windows):
        return sets["train"], sets
    packed = (RandomWindows if data.windows else PackedBatches)(
        stores["train"],
        max_length=data.max_length,
        batch_tokens=settings.batch_tokens,
        batch_size=settings.batch_size,
        seed=recipe.seed,
        rows=rows["train"],
    )
    return packed, sets
