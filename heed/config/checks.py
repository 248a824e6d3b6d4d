"""Validation across the sections of a recipe: keys that conflict, have no effect or name nothing.

Checks of one section's keys stand with the section. Nothing here reads the data or the pretrained
model; `heed.train.prepare.setup.validate_recipe` adds what needs them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from importlib.util import find_spec

from heed.config.base import Section
from heed.config.recipe import Recipe
from heed.config.registry import POSITIONS
from heed.config.train import LAST, TrainConfig
from heed.errors import nearest

TASK_OF_KEY = {
    "data.bidirectional": "translate",
    "data.denoise": "translate",
    "data.unit": "generate",
    "model.decoder_layers": "translate",
    "model.ngrams": "classify",
    "train.class_weights": "classify",
    "train.evaluate_bleu": "translate",
    "train.source_token_dropout": "translate",
    "train.mask_share": "generate",
    "train.objective": "generate",
    "train.token_dropout": "classify",
}
"""Keys that only one task reads. With another task they must have their default value."""
VALIDATION_METRICS = ("loss", "perplexity", "accuracy")
"""Metrics of every evaluated set."""
CHARACTER_TOKENIZERS = ("char", "byte")
"""Tokenizers whose tokens are smaller than words."""


def find_conflicts(recipe: Recipe, *, pretrained_cross_attention: bool = True) -> list[str]:
    """Every error of a recipe that concerns several sections, a sentence each.

    `pretrained_cross_attention` is False where the model of `init.from` has no cross-attention.
    """
    return [
        *_check_source_of_text(recipe),
        *_check_max_length(recipe),
        *_check_task(recipe),
        *_check_language_model(recipe),
        *_check_best_metric(recipe),
        *_check_trackers(recipe),
        *_check_fp8_output(recipe),
        *_check_small_data(recipe),
        *_check_word_ngrams(recipe),
        *_check_init(recipe, pretrained_cross_attention),
    ]


def find_rank_conflicts(recipe: Recipe, *, resumed: bool) -> list[str]:
    """What several ranks cannot do, a sentence each.

    A resumed run may have been started on one GPU: its `execution` is then chosen anew.
    """
    settings, complaints = recipe.train, []
    if settings.execution == "graphs" and not resumed:
        complaints.append(
            "[train] execution cannot be 'graphs' with several ranks: a captured graph does not "
            "hold their communication. Use auto, eager or compile."
        )
    if settings.parallel == "fsdp" and settings.optimizer == "adafactor":
        complaints.append(
            "[train] optimizer cannot be 'adafactor' with parallel 'fsdp': it needs whole matrices "
            "where each rank has a part. Use another, or parallel 'ddp'."
        )
    return complaints


def find_unknown_metric(
    metric: str, sets: Collection[str], translated: Collection[str]
) -> Iterator[str]:
    """An error where `train.best_metric` names no metric of these sets; `translated` have BLEU."""
    known = [LAST, *(f"{name}/{each}" for name in sets for each in VALIDATION_METRICS)]
    known += [f"{name}/bleu" for name in translated]
    if metric not in known:
        options, hint = ", ".join(known), nearest(metric, known)
        yield f"[train] best_metric cannot be {metric!r}: it is one of {options}.{hint}"


def find_long_warmup(settings: TrainConfig, steps: int) -> str | None:
    """A warning where a run of so many steps ends within its warm-up; None where it does not."""
    if settings.warmup is None or steps > settings.warmup:
        return None
    end = "steps" if settings.steps == steps else "epochs"
    return (
        f"[train] warmup {settings.warmup:,} is not below the run's {steps:,} "
        f"step{'s' * (steps != 1)}, so the learning rate rises to the end: "
        f"lower train.warmup, or raise train.{end}."
    )


def missing_tracker(package: str) -> str:
    """The error of a tracker that is not installed."""
    return f"[train] track needs {package}, which is not installed: pip install {package}."


def _check_source_of_text(recipe: Recipe) -> Iterator[str]:
    data = recipe.data
    if not data.train and data.synthetic is None:
        yield (
            "There is no training text: name files (--train FILE, data.train), set data.synthetic, "
            "or start from a shipped recipe (`heed recipes` lists them)."
        )
    for key in ("dev", "test", "sets"):
        if data.synthetic is not None and getattr(data, key):
            yield (
                f"[data] {key} would not be read: the text is generated (data.synthetic). "
                "Name training files too (--train FILE), or leave it out."
            )


def _check_max_length(recipe: Recipe) -> Iterator[str]:
    limit = POSITIONS[recipe.model.position].limit(recipe.model)
    if limit is not None and recipe.data.max_length > limit:
        pretrained = recipe.init.from_model  # its shape is fixed
        todo = "lower" if pretrained else "raise model.max_positions or lower"
        yield (
            f"[data] max_length {recipe.data.max_length} is beyond the {limit} positions of "
            f"{pretrained or repr(recipe.model.position)}: {todo} data.max_length."
        )


def _check_task(recipe: Recipe) -> Iterator[str]:
    for key, task in TASK_OF_KEY.items():
        name, _, field = key.partition(".")
        # A pretrained model of another task may have set it.
        pretrained = key == "model.decoder_layers" and recipe.init.from_model is not None
        if task != recipe.task and not pretrained and _is_set(getattr(recipe, name), field):
            yield f"[{name}] {field} is for task {task!r}, not {recipe.task!r}."


def _check_language_model(recipe: Recipe) -> Iterator[str]:
    train, data = recipe.train, recipe.data
    if train.objective == "causal" and recipe.task == "generate" and _is_set(train, "mask_share"):
        yield "[train] mask_share is for objective 'masked', not 'causal'."
    if (data.pack or data.windows) and (recipe.task != "generate" or train.objective == "masked"):
        key = "pack" if data.pack else "windows"
        yield f"[data] {key} is for causal language models."


def _check_best_metric(recipe: Recipe) -> Iterator[str]:
    train = recipe.train
    sets = [*(["dev"] if recipe.data.has_dev else []), *recipe.data.sets]
    if "-clean/" in train.best_metric:  # whether a set has a clean part is known once it is read
        sets += [f"{name}-clean" for name in sets]
    evaluated = sets + ["train"] * train.evaluate_train
    translated = sets if train.evaluate_bleu else []
    yield from find_unknown_metric(train.best_metric, evaluated, translated)


def _check_trackers(recipe: Recipe) -> Iterator[str]:
    yield from (missing_tracker(name) for name in recipe.train.track if find_spec(name) is None)


def _check_fp8_output(recipe: Recipe) -> Iterator[str]:
    train = recipe.train
    if not train.fp8_output:
        return
    if recipe.task == "classify":
        yield (
            "[train] fp8_output is for an output layer over a vocabulary, which a classifier does "
            "not have: leave it out."
        )
    if train.rdrop:
        yield (
            "[train] fp8_output and rdrop cannot be combined: R-Drop's loss has no 8-bit form. "
            "Leave one of them out."
        )
    if train.precision == "float32":
        yield (
            "[train] fp8_output is for precision 'bf16' or 'auto', not 'float32': change one of "
            "them."
        )


def _check_small_data(recipe: Recipe) -> Iterator[str]:
    data, model = recipe.data, recipe.model
    if data.bidirectional and not model.tie_embeddings:
        yield (
            "[data] bidirectional reads and writes both languages, so they share one embedding "
            "table: set model.tie_embeddings = true."
        )
    rates = (model.dropout, model.attention_dropout, model.feed_forward_dropout)
    if recipe.train.rdrop and not any(rates):
        yield (
            "[train] rdrop compares two passes with different dropout, and this model has none: "
            "set model.dropout."
        )
    if recipe.tokenizer.dropout and (data.pack or data.windows):
        key = "pack" if data.pack else "windows"
        yield (
            f"[tokenizer] dropout and [data] {key} cannot be combined: each epoch would fill rows "
            "differently. Leave one of them out."
        )


def _check_word_ngrams(recipe: Recipe) -> Iterator[str]:
    kind = recipe.tokenizer.kind
    if recipe.model.word_ngrams and kind not in CHARACTER_TOKENIZERS:
        yield (
            f"[model] word_ngrams needs tokens smaller than words, and those of kind {kind!r} are "
            "not: use tokenizer.kind = 'char', or leave it out."
        )


def _check_init(recipe: Recipe, pretrained_cross_attention: bool) -> Iterator[str]:
    init, model = recipe.init, recipe.model
    layers = model.layers
    if recipe.task == "translate":
        layers = max(layers, model.decoder_layers or layers)
    if isinstance(init.freeze, int) and init.freeze > layers:
        yield f"[init] freeze cannot be {init.freeze}: the model has {layers} layers."
    bare_head = model.tie_embeddings and not (model.lm_head_transform or model.lm_head_bias)
    all_pretrained = recipe.task != "translate" or pretrained_cross_attention
    frozen = init.freeze in ("body", layers)
    if recipe.task != "classify" and bare_head and all_pretrained and frozen:
        yield (
            f"[init] freeze = {init.freeze!r} leaves nothing to train: the output projection is "
            "the embedding table, which is frozen too."
        )
    if init.lora is not None and recipe.train.snapshot_every is not None:
        yield (
            "[train] snapshot_every and [init] lora cannot be combined: adapters are merged into "
            "the weights only at the end. Leave one of them out."
        )
    if init.lora is not None and model.family != "transformer":
        yield "[init] lora is for family 'transformer': an LSTM has no such linear layers."


def _is_set(section: Section, field: str) -> bool:
    """Whether a key has another value than its default."""
    default = type(section).model_fields[field].get_default(call_default_factory=True)
    return bool(getattr(section, field) != default)
