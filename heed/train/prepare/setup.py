"""From a recipe to everything the loop needs: text, tokenizer, batches, model, device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from heed.config import DataConfig, Recipe
from heed.config.checks import find_conflicts
from heed.data.batching.bucketed import BucketedBatches
from heed.data.batching.length_buckets import Rows
from heed.data.batching.packing import PackedBatches
from heed.data.batching.random_windows import RandomWindows
from heed.data.corpus import Corpus, open_corpus
from heed.data.doctor import examine
from heed.data.held_out import hold_out_dev
from heed.data.splits import open_splits
from heed.data.token_store import Store
from heed.data.tokenizers.tokenizer import Tokenizer
from heed.device import wants_bf16
from heed.errors import ConfigError, DataError
from heed.models import Classifier, Model, build
from heed.runs.labels import Classes
from heed.runs.run import Run
from heed.terminal import Say
from heed.train import checkpoint
from heed.train.distributed.ranks import SINGLE, World
from heed.train.precompile import compiling_ahead
from heed.train.prepare import tokenize_ahead
from heed.train.prepare.class_weights import (
    compute_class_weights,
    read_classes,
    refuse_unknown_class,
)
from heed.train.prepare.init_from import (
    PretrainedModel,
    copy_weights,
    freeze_and_adapt,
    load_pretrained,
)
from heed.train.prepare.ngram_weights import initialize_ngrams
from heed.train.prepare.run_tokenizer import get_tokenizer
from heed.train.prepare.text_cache import open_stores, open_tokenizer_text
from heed.train.validate import SentencePair, sentence_pairs

Stage = Callable[[str], AbstractContextManager[None]]
"""Marks a named stage of preparation, as `with stage("tokenizer"):`. Benchmarks time them."""
TODO = {
    "unseen-label": "Correct the label, or add examples that have it to train.",
    "one-class": "Give examples of two classes or more.",
    "nothing-left": "Name a file that has text.",
}
"""What to do about an error of the data doctor, by its code."""


def unmeasured(name: str) -> AbstractContextManager[None]:
    """A stage that nothing measures."""
    return nullcontext()


@dataclass
class TrainingSetup:
    """The prepared inputs of training."""

    recipe: Recipe
    device: torch.device
    bf16: bool
    tokenizer: Tokenizer
    classes: tuple[str, ...]
    model: Model
    train: BucketedBatches | PackedBatches
    sets: dict[str, BucketedBatches]
    """The sets that are evaluated while training, by name."""
    data_hashes: dict[str, str]
    world: World = SINGLE
    pairs: dict[str, list[SentencePair]] = field(default_factory=dict)
    """Source and reference of the sets whose BLEU is computed at every evaluation."""
    has_checkpoints: bool = False
    """Whether the run has checkpoints, damaged or not, from which its weights must come."""
    class_weights: tuple[float, ...] | None = None
    """Loss weight of each class; None if all weigh the same."""
    new_parts: tuple[str, ...] = ()
    """Parts of the model that the pretrained one did not have."""


def prepare(
    recipe: Recipe,
    run: Run,
    *,
    device: torch.device,
    say: Say,
    world: World = SINGLE,
    pretrained: PretrainedModel | None = None,
    stage: Stage = unmeasured,
) -> TrainingSetup:
    """Read and check the data, get the tokenizer, build the model.

    Where files are written, rank 0 goes first and the other ranks read them. `pretrained` is the
    model of `init.from`, if it is loaded already.
    """
    has_checkpoints = checkpoint.has_checkpoints(run.checkpoints)
    if pretrained is None and recipe.init.from_model is not None and not has_checkpoints:
        with world.rank0_first():
            pretrained = load_pretrained(recipe.init.from_model)
    with compiling_ahead(recipe, device):
        with stage("read and check"):
            with world.rank0_first():
                corpora = open_splits(recipe)
            seen = world.broadcast(
                lambda: check_data(corpora, say, open_test(recipe, corpora["train"]))
            )
        with world.rank0_first():
            with stage("tokenizer"):
                tokenize_ahead.wait(say)
                tokenizer = get_tokenizer(recipe, run, corpora, pretrained, say)
            classes, class_weights = Classes(()), None
            if recipe.task == "classify":
                classes = read_classes(corpora["train"])
                classes.save(run)
            with stage("store"):
                train, sets = _open_batches(recipe, corpora, tokenizer, classes.names)
            if recipe.task == "classify":
                class_weights = compute_class_weights(recipe, classes, sets["train"])
        if recipe.data.splits_off_dev:
            say(_describe_dev(recipe.data, corpora, sets["dev"].store))
        elif not recipe.data.has_dev:
            say("dev: none, because data.dev_share is 0.")
        for name, rows in seen.items():
            sets |= _clean_part(name, sets[name], rows)
        _report_truncation(sets, recipe.data.max_length, say)
        torch.manual_seed(recipe.seed)
        with stage("model"):
            model = build_model(recipe, tokenizer, len(classes.names) or None)
        if isinstance(model, Classifier) and model.ngrams is not None:
            initialize_ngrams(model.ngrams, recipe, tokenizer, sets["train"], len(classes.names))
        if pretrained is not None:
            new_parts = copy_weights(model, recipe.task, pretrained, say, classes.names)
        else:  # a resumed run has recorded them: the pretrained model may be gone
            new_parts = tuple(run.environment().get("new_parts", ()))
        if recipe.init.freeze is not None or recipe.init.lora is not None:
            freeze_and_adapt(model, recipe.init, new_parts, say)
        model.to(device)
    if not recipe.train.evaluate_train:
        sets.pop("train")
    return TrainingSetup(
        recipe=recipe,
        device=device,
        bf16=wants_bf16(recipe.train.precision, device),
        tokenizer=tokenizer,
        classes=classes.names,
        model=model,
        train=train,
        sets=sets,
        data_hashes={name: corpus.fingerprint() for name, corpus in corpora.items()},
        world=world,
        pairs=_read_pairs(corpora, sets) if recipe.train.evaluate_bleu else {},
        has_checkpoints=has_checkpoints,
        class_weights=class_weights,
        new_parts=new_parts,
    )


def validate_recipe(recipe: Recipe, pretrained: PretrainedModel | None = None) -> None:
    """Refuse a recipe whose keys conflict or whose files are missing, before anything is written.

    `pretrained` is the model of `init.from`.
    """
    cross_attention = pretrained is None or pretrained.has_cross_attention
    complaints = find_conflicts(recipe, pretrained_cross_attention=cross_attention)
    if complaints:
        raise ConfigError(complaints)
    open_tokenizer_text(recipe)
    if recipe.data.synthetic is None:
        train = open_splits(recipe)["train"]
        if isinstance(recipe.train.class_weights, dict):
            refuse_unknown_class(recipe.train.class_weights, read_classes(train))
        if recipe.train.evaluate_test:  # it is read after training: too late for a wrong name
            data = recipe.data
            open_corpus(data.test, task=recipe.task, unit=data.unit, like=train)


def open_test(recipe: Recipe, train: Corpus) -> Corpus | None:
    """The test set of a recipe, if its files are there: training itself does not read it."""
    data = recipe.data
    if not data.test or data.synthetic is not None:
        return None
    try:
        return open_corpus(
            data.test, task=recipe.task, unit=data.unit, header=data.header, like=train
        )
    except DataError:
        return None


def check_data(
    corpora: dict[str, Corpus], say: Say, test: Corpus | None = None
) -> dict[str, list[int]]:
    """Run the data doctor: print its warnings, and raise its first error.

    Of `test`, which training does not read, it warns only where texts are also in train.
    Returns, for each set of `corpora` that shares examples with train, the rows of those examples.
    """
    report = examine(corpora if test is None else corpora | {"test": test})
    findings = [one for one in report.findings if one.split in corpora or one.code == "overlap"]
    report = replace(report, findings=tuple(findings))
    if not report.ok:
        first, errors = report.errors[0], len(report.errors)
        files = ", ".join(corpora[first.split].paths)
        todo = [TODO[first.code]] if first.code in TODO else []
        if errors > 1 or not todo:
            todo.append("`heed check` on these files shows everything.")
        raise DataError(
            f"{first.message.rstrip('.')}.",
            where=str(first.places[0]) if first.places else files,
            todo=" ".join(todo),
        )
    for finding in report.findings:
        if finding.severity == "warning":
            drops = finding.code in ("empty", "unlabeled")
            place = f" (the first is {finding.places[0]})" if drops else ""
            say(f"{finding.split}: {finding.message}{place}")
    return {
        name: np.flatnonzero(seen).tolist()
        for name, seen in report.seen.items()
        if name in corpora and seen.any()
    }


def build_model(recipe: Recipe, tokenizer: Tokenizer, classes: int | None) -> Model:
    """Build a recipe's model with random weights."""
    return build(
        recipe.task,
        recipe.model,
        vocab=tokenizer.vocab_size,
        classes=classes,
        causal=recipe.train.objective == "causal",
    )


def build_batches(recipe: Recipe, store: Store, rows: Rows | None = None) -> BucketedBatches:
    """The batches of a store's examples, or of some rows, as the recipe's model reads them."""
    settings = recipe.train
    return BucketedBatches(
        store,
        recipe.task,
        max_length=recipe.data.max_length,
        batch_tokens=settings.batch_tokens,
        batch_size=settings.batch_size,
        seed=recipe.seed,
        rows=rows,
        mask_share=_mask_share(recipe),
        bidirectional=recipe.data.bidirectional,
        denoise=recipe.data.denoise,
    )


def _mask_share(recipe: Recipe) -> float:
    """The share of input tokens that are masked or dropped in training."""
    settings = recipe.train
    if recipe.task == "classify":
        return settings.token_dropout
    if recipe.task == "translate":
        return settings.source_token_dropout
    return settings.mask_share if settings.objective == "masked" else 0.0


def _open_batches(
    recipe: Recipe, corpora: dict[str, Corpus], tokenizer: Tokenizer, classes: tuple[str, ...]
) -> tuple[BucketedBatches | PackedBatches, dict[str, BucketedBatches]]:
    """The training batches, and the batches of every set, that of train included."""
    settings, data = recipe.train, recipe.data
    stores = open_stores(recipe, corpora, tokenizer, classes)
    rows: dict[str, Rows | None] = dict.fromkeys(stores)
    if data.splits_off_dev and "dev" not in stores:
        stores["dev"] = stores["train"].without_segmentations()
        count = len(stores["train"])
        rows["dev"], rows["train"] = hold_out_dev(count, data)
    sets = {name: build_batches(recipe, store, rows[name]) for name, store in stores.items()}
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


def _describe_dev(data: DataConfig, corpora: dict[str, Corpus], store: Store) -> str:
    """One line about what is set aside for dev."""
    part = f"the last {data.dev_share:.0%} of the lines of each file of train"
    if "dev" not in corpora:
        held_out, _ = hold_out_dev(len(store), data)
        part = f"{len(held_out):,} of the {len(store):,} texts of train"
    return (
        f"dev: {part}, set aside, because no dev files are named "
        "(--set data.dev_share=0 trains on all)."
    )


def _clean_part(name: str, whole: BucketedBatches, seen: list[int]) -> dict[str, BucketedBatches]:
    """The part of a set that is not also in train, which is evaluated beside the whole set."""
    unseen = np.setdiff1d(np.arange(len(whole.store)), seen)
    return {f"{name}-clean": whole.subset(unseen)} if len(unseen) else {}


def _report_truncation(sets: dict[str, BucketedBatches], max_length: int, say: Say) -> None:
    for name, batches in sets.items():
        if batches.truncated:
            are = "text is" if batches.truncated == 1 else "texts are"
            say(f"{name}: {batches.truncated:,} {are} longer than {max_length} tokens; truncated.")


def _read_pairs(
    corpora: dict[str, Corpus], sets: dict[str, BucketedBatches]
) -> dict[str, list[SentencePair]]:
    """The sentence pairs of every set but train; dev is read from train if it was set aside."""
    return {
        name: sentence_pairs(corpora.get(name.removesuffix("-clean"), corpora["train"]), batches)
        for name, batches in sets.items()
        if name != "train"
    }
